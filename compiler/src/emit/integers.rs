//! Products in integers: the words of weights and of rounded rows, and the parts of [`thin`](super::thin) products in which they differ
//! from those in floats.
//!
//! With few rows a thread rounds 16 neighbours of a row, or 32 where no subgroup lets two threads share a group: `staged` holds them as bytes, four
//! to a word, `scales` the scale of each unit and, where weights have an offset, the scale times the unit's sum. Weights are put into
//! words of bytes, too: those of 8 bits are such words, and of eight smaller fields the even ones make a word and the odd ones another.
//! The bytes of rows have the same order.
//!
//! A float of 4 bits is two bytes whose sum is twice its value, as a byte alone would need a carry that stays in it: its magnitude,
//! inverted if it is negative, and its sign, 0 or 1. The dot products of both words are added up.

use super::handle::Handle;
use super::thin::Staging;
use super::wgsl::{Module, Scope};
use crate::Diagnostic;
use crate::kernel::integers::{Affine, Term, affine};
use crate::kernel::{Body, ExprId, GROUP};
use crate::schedule::products::integers::Integers;
use crate::schedule::products::{Results, ThinShape};
use wgfc_codegen_templates::thin::{Scales, Stage};

/// Elements in an element of `staged`.
const VECTOR: u32 = 16;
/// The greatest magnitude of a rounded element.
const GREATEST: &str = "127.0";
/// 1.5 · 2²³: a float that has it added is rounded to an integer, whose lowest byte is the float's. One multiply-add then does what a product,
/// a rounding, a clamp and a conversion do else.
const INTEGERS: &str = "12582912.0";
/// Magnitudes below this one are rounded to 0, since 127 over them is no number.
const LEAST: &str = "1e-36";

/// Neighbouring weights that share a scale.
pub(super) struct Unit {
    /// Their integers, four to a word.
    pub words: Vec<String>,
    pub scale: String,
    /// The number that is added to all of them, where any has one.
    pub offset: Option<String>,
}

/// The weights of a block.
pub(super) struct Weights {
    /// How they are integers.
    pub integers: Integers,
    /// By product, column and unit.
    forms: Vec<Vec<Vec<Affine>>>,
}

impl Weights {
    /// The weights that elements of a block, by product, column and k, are.
    pub fn of(body: &mut Body, ys: &[Vec<Vec<ExprId>>], integers: Integers) -> Result<Weights, Diagnostic> {
        let mut units = |elements: &Vec<ExprId>| {
            let units = elements.chunks(integers.unit as usize);
            units.map(|e| affine(body, e)).collect::<Option<Vec<Affine>>>()
        };
        let mut forms = vec![];
        for columns in ys {
            let columns = columns.iter().map(&mut units).collect::<Option<Vec<_>>>();
            forms.push(columns.ok_or_else(|| Diagnostic::internal("weights are no integers"))?);
        }
        Ok(Weights { integers, forms })
    }

    fn all(&self) -> impl Iterator<Item = &Affine> {
        self.forms.iter().flatten().flatten()
    }

    /// Loads whose words are taken as they are.
    pub fn loads(&self) -> Vec<ExprId> {
        self.all().flat_map(|f| &f.terms).flat_map(|t| &t.loads).copied().collect()
    }

    /// Scales and offsets, which are computed in floats.
    pub fn floats(&self) -> Vec<ExprId> {
        self.all().flat_map(|f| f.scale.into_iter().chain(f.offset)).collect()
    }

    /// Reads the words of a block.
    pub fn fetch(&self, m: &mut Module, s: &mut Scope) -> Result<(), Diagnostic> {
        for load in self.loads() {
            m.word_of(s, load)?;
        }
        Ok(())
    }

    /// Reads what is staged of the rows for the block at `step`, of `blocks` in a row.
    pub fn bind_staged(&self, s: &mut Scope, shape: ThinShape, blocks: u32, step: &str, u: u32) {
        let (vectors, units) = (shape.k / VECTOR, shape.k / self.integers.unit);
        for row in 0..shape.rows {
            for v in 0..vectors {
                s.line(&format!("let x{u}_{row}_{v} = staged[{} + {step}];", (row * vectors + v) * blocks));
            }
            for q in 0..units {
                s.line(&format!("let scale{u}_{row}_{q} = scales[{} + {step}];", (row * units + q) * blocks));
            }
        }
    }

    /// Adds block `u` of a round to the sums.
    pub fn add(
        &self,
        m: &mut Module,
        s: &mut Scope,
        shape: ThinShape,
        r: Results,
        u: usize,
    ) -> Result<(), Diagnostic> {
        for (g, columns) in self.forms.iter().enumerate() {
            for (j, units) in columns.iter().enumerate() {
                for (q, form) in units.iter().enumerate() {
                    let words = self.words(m, s, form)?;
                    let scale = form.scale.map(|e| m.value(s, e)).transpose()?;
                    let offset = form.offset.map(|e| m.value(s, e)).transpose()?;
                    for row in 0..shape.rows {
                        let first = q * self.integers.unit as usize / 4;
                        let dots = words.iter().map(|(w, four)| {
                            let at = first + four;
                            let lane = ["x", "y", "z", "w"][at & 3];
                            format!("dot4I8Packed({w}, x{u}_{row}_{}.{lane})", at / 4)
                        });
                        let dots = dots.collect::<Vec<String>>().join(" + ");
                        let of = format!("scale{u}_{row}_{q}");
                        let (of, sum) = if self.integers.offsets {
                            (format!("{of}.x"), format!("{of}.y"))
                        } else {
                            (of, String::new())
                        };
                        let mut value = format!("{of} * f32({dots})");
                        if form.zero != 0 {
                            value = format!("{value} + {}.0 * {sum}", form.zero);
                        }
                        if let Some(scale) = &scale {
                            value = format!("{scale} * ({value})");
                        }
                        if let Some(offset) = &offset {
                            value = format!("{value} + {offset} * {sum}");
                        }
                        let to = shape.sum_of(r, g as u32, row, j as u32);
                        s.line(&format!("sum{to} += {value};"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the zero of the weights can be taken off their bytes, which are fields without a sign.
    fn zero_in_bytes(&self) -> bool {
        self.integers.pairs
            && !self.integers.floats
            && self.all().all(|f| f.offset.is_none() && (-128..=0).contains(&f.zero))
    }

    /// Whether a number is added to the integers of [`units`](Weights::units).
    pub fn have_offsets(&self) -> bool {
        self.integers.offsets && !self.zero_in_bytes()
    }

    /// The units of a column of one product.
    pub fn units(&self, m: &mut Module, s: &mut Scope) -> Result<Vec<Unit>, Diagnostic> {
        let mut out = vec![];
        for form in self.forms.iter().flatten().flatten() {
            let mut fours = self.words(m, s, form)?;
            if self.integers.floats {
                // The sum of the bytes of two words, of which a carry stays in its byte.
                let sum = |w: &[(String, usize)]| {
                    let ((bytes, four), (signs, _)) = (&w[0], &w[1]);
                    let sum = format!("(({bytes} & 0x7f7f7f7fu) + {signs}) ^ ({bytes} & 0x80808080u)");
                    (s.let_value(&sum).to_string(), *four)
                };
                fours = fours.chunks_exact(2).map(sum).collect();
            }
            fours.sort_by_key(|(_, four)| *four);
            let zeros = if self.zero_in_bytes() { -form.zero as u32 * 0x0101_0101 } else { 0 };
            let words = fours.into_iter().map(|(word, _)| match zeros {
                0 => word,
                // The highest bit of a byte is set meanwhile, from which a difference borrows.
                z => s.let_value(&format!("(({word} | 0x80808080u) - {z:#x}u) ^ 0x80808080u")).to_string(),
            });
            let words = words.collect();
            let scale = form.scale.map(|e| m.value(s, e)).transpose()?;
            let scale = scale.map_or("1.0".to_owned(), |s| s.to_string());
            let offset = form.offset.map(|e| m.value(s, e)).transpose()?;
            let offset = match (offset, form.zero) {
                _ if !self.have_offsets() => None,
                (None, zero) => Some(format!("{scale} * {zero}.0")),
                (Some(offset), 0) => Some(offset.to_string()),
                (Some(offset), zero) => Some(format!("{scale} * {zero}.0 + {offset}")),
            };
            out.push(Unit { words, scale, offset });
        }
        Ok(out)
    }

    /// The integers of a unit as words of four bytes, each with the number of its four.
    fn words(
        &self,
        m: &mut Module,
        s: &mut Scope,
        form: &Affine,
    ) -> Result<Vec<(String, usize)>, Diagnostic> {
        if !self.integers.pairs {
            let [term] = &form.terms[..] else {
                return Err(Diagnostic::internal("bytes are no sum"));
            };
            let words = term.loads.iter().step_by(4).enumerate();
            return words.map(|(four, load)| Ok((word(m, s, term, *load)?.0, four))).collect();
        }
        let mut words = vec![];
        for eight in 0..self.integers.unit as usize / 8 {
            if self.integers.floats {
                let [term] = &form.terms[..] else {
                    return Err(Diagnostic::internal("floats are no sum"));
                };
                let (codes, _) = word(m, s, term, term.loads[eight * 8])?;
                let magnitudes = m.call("twice_magnitudes_e2m1", &[&codes])?;
                let magnitudes = s.let_value(&magnitudes);
                for (four, shifted) in
                    [magnitudes.to_string(), format!("({magnitudes} >> 4u)")].iter().enumerate()
                {
                    let signs = s.let_value(&format!("({codes} >> {}u) & 0x01010101u", four * 4 + 3));
                    let bytes = s.let_value(&format!("({shifted} & 0x0f0f0f0fu) ^ ({signs} * 255u)"));
                    words.extend([bytes, signs].map(|w| (w.to_string(), eight * 2 + four)));
                }
                continue;
            }
            for odd in [0, 1] {
                let mut parts = vec![];
                for t in &form.terms {
                    let (w, lane) = word(m, s, t, t.loads[eight * 8])?;
                    let bits = t.dtype.bits() as u32;
                    let shift = lane * bits + odd * bits;
                    let fields = if shift == 0 { w } else { format!("({w} >> {shift}u)") };
                    let bytes = match bits {
                        4 => format!("({fields} & 0x0f0f0f0fu)"),
                        2 => m.call("bytes_of_fields", &[&format!("{fields} & 0x3333u")])?,
                        _ => return Err(Diagnostic::internal("fields of neither 4 nor 2 bits")),
                    };
                    parts.push(match t.factor.trailing_zeros() {
                        0 => bytes,
                        shift => format!("({bytes} << {shift}u)"),
                    });
                }
                let word = s.let_value(&parts.join(" + ")).to_string();
                words.push((word, eight * 2 + odd as usize));
            }
        }
        Ok(words)
    }

    /// Fills the arrays with what is made of the loads of `staging`, and adds up what is summed beside the products.
    pub fn stage(
        &self,
        m: &mut Module,
        s: &mut Scope,
        shape: ThinShape,
        r: Results,
        (lines, staging): (&[Vec<ExprId>], &Staging),
    ) -> Result<Stage, Diagnostic> {
        let Staging { turns, width, per_line, subgroup, .. } = staging;
        let Integers { unit, pairs, offsets, .. } = self.integers;
        let threads = shape.threads();
        let (blocks, vectors, units) = (per_line * width / shape.k, shape.k / VECTOR, shape.k / unit);
        for (u, scope) in turns.iter().enumerate() {
            let ends = (u as u32 + 1) * threads > *per_line;
            let inside = format!("t < {}", per_line.saturating_sub(u as u32 * threads));
            let mut turn = scope.inner(4);
            turn.resume(s);
            for (line, ids) in lines.iter().enumerate() {
                let values = ids.iter().map(|id| m.value(&mut turn, *id)).collect::<Result<Vec<_>, _>>()?;
                let (of, row) = (line as u32 / shape.rows, line as u32 % shape.rows);
                if of > 0 {
                    let sum = shape.sum_of(r, r.products + of - 1, row, 0);
                    let added = values.join(" + ");
                    let added = if ends { format!("select(0.0, {added}, {inside})") } else { added };
                    turn.line(&format!("sum{sum} += {added};"));
                    continue;
                }
                let rounded = round(&mut turn, &values, pairs, |turn, greatest| match *width < GROUP {
                    true => turn.let_value(&format!("max({greatest}, subgroupShuffleXor({greatest}, 1u))")),
                    false => greatest,
                });
                let Rounded { words, scale } = rounded;
                // The sums of the integers of each unit of this thread, or of its part of one.
                let per = unit.min(*width) as usize / 4;
                let mut of_units = vec![];
                for words in words.chunks(per).filter(|_| offsets) {
                    let mut sum = sum_of_words(&mut turn, words);
                    if *width < unit {
                        sum = turn.let_value(&format!("{sum} + subgroupShuffleXor({sum}, 1u)"));
                    }
                    of_units.push(sum);
                }
                let mut stores = vec![];
                let staged = |i: u32, per: u32, of: u32| {
                    let at = match (width / of).max(1) {
                        1 if *width < of => format!("stage{u} / {}", of / width),
                        1 => format!("stage{u}"),
                        n => format!("(stage{u} * {n} + {i})"),
                    };
                    let place = if per == 1 { at } else { format!("{at} % {per} * {blocks} + {at} / {per}") };
                    format!("{} + {place}", row * per * blocks)
                };
                for (i, four) in words.chunks(4).enumerate() {
                    let at = staged(i as u32, vectors, VECTOR);
                    stores.push(format!("staged[{at}] = vec4<u32>({});", four.join(", ")));
                }
                for i in 0..(width / unit).max(1) {
                    let at = staged(i, units, unit);
                    let value = match of_units.get(i as usize) {
                        Some(sum) => format!("vec2<f32>({scale}, {scale} * f32({sum}))"),
                        None => scale.to_string(),
                    };
                    let store = format!("scales[{at}] = {value};");
                    let first = format!("if ((t & {}) == 0) {{ {store} }}", unit / width.min(&unit) - 1);
                    stores.push(if *width < unit { first } else { store });
                }
                if ends {
                    turn.line(&format!("if ({inside}) {{"));
                    stores.iter().for_each(|l| turn.line(&format!("    {l}")));
                    turn.line("}");
                } else {
                    stores.iter().for_each(|l| turn.line(l));
                }
            }
            s.resume(&mut turn);
        }
        let scales = Scales {
            element: if offsets { "vec2<f32>".into() } else { "f32".into() },
            len: shape.rows * blocks * units,
        };
        Ok(Stage {
            element: "vec4<u32>".into(),
            len: shape.rows * blocks * vectors,
            scales: Some(scales),
            subgroup: *subgroup,
            text: std::mem::take(&mut s.text),
        })
    }
}

/// Neighbours of a row as integers of 8 bits, four to a word, times a scale.
pub(super) struct Rounded {
    pub words: Vec<String>,
    pub scale: Handle,
}

/// Rounds neighbours, in the order in which [`Weights`] have their bytes if those are `pairs` of fields. The greatest magnitude of all that
/// share a scale is made of that of these by `joined`.
pub(super) fn round(
    s: &mut Scope,
    values: &[Handle],
    pairs: bool,
    joined: impl FnOnce(&mut Scope, Handle) -> Handle,
) -> Rounded {
    let order = |i: usize| if pairs { i / 8 * 8 + i % 4 * 2 + i % 8 / 4 } else { i };
    let fours: Vec<String> = (0..values.len() / 4)
        .map(|f| {
            let four: Vec<&str> = (f * 4..f * 4 + 4).map(|i| &*values[order(i)]).collect();
            s.let_value(&format!("vec4<f32>({})", four.join(", "))).to_string()
        })
        .collect();
    let magnitudes = fours.iter().map(|f| format!("abs({f})"));
    let greatest = magnitudes.reduce(|a, b| format!("max({a}, {b})")).unwrap_or_default();
    let greatest = s.let_value(&greatest);
    let text = format!("max(max({greatest}.x, {greatest}.y), max({greatest}.z, {greatest}.w))");
    let greatest = s.let_value(&text);
    let greatest = joined(s, greatest);
    let inverse = s.let_value(&format!("select({GREATEST} / {greatest}, 0.0, {greatest} < {LEAST})"));
    let scale = s.let_value(&format!("{greatest} / {GREATEST}"));
    let mut word = |f: &String| {
        let word = format!("pack4xU8(bitcast<vec4<u32>>({f} * {inverse} + {INTEGERS}))");
        s.let_value(&word).to_string()
    };
    Rounded { words: fours.iter().map(&mut word).collect(), scale }
}

/// The sum of the integers in words.
pub(super) fn sum_of_words(s: &mut Scope, words: &[String]) -> Handle {
    let ones = words.iter().map(|w| format!("dot4I8Packed({w}, 0x01010101u)"));
    s.let_value(&ones.collect::<Vec<_>>().join(" + "))
}

/// The word of a load, with the fields that the form has, and the load's number among them.
fn word(m: &mut Module, s: &mut Scope, term: &Term, load: ExprId) -> Result<(String, u32), Diagnostic> {
    let Some((word, lane)) = m.word_of(s, load)? else {
        return Err(Diagnostic::internal("weights are no words"));
    };
    let word = match (term.flipped, term.dtype.bits()) {
        (false, _) => word.to_string(),
        (true, 8) => s.once(&format!("{word} ^ 0x80808080u")).to_string(),
        (true, 4) => s.once(&format!("{word} ^ 0x88888888u")).to_string(),
        (true, _) => s.once(&format!("{word} ^ 0xaaaaaaaau")).to_string(),
    };
    Ok((word, lane))
}
