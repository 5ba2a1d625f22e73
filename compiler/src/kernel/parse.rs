//! Text to kernel graph. The form is described in the [module](super).

use super::{
    Array, Attention, Body, Carry, Combined, Expr, ExprId, Family, Kernel, KernelGraph, KernelTensor, Loop,
    Map, Matmul, Part, PrefixScan, ReduceKind, Reduction, Repeat, Row, Sort, Stage, StagedLoop, Store,
    TensorId, TensorKind, Until, Write, renumbered,
};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use wgfc_ir::tensor::{Tensor, checked_numel};
use wgfc_ir::text::{Parsed, Parser, TextError};
use wgfc_ir::{BinaryOp, DType, Dim, Poly, ReduceOp, TensorType, UnaryOp};

/// Parses a kernel graph. Only the syntax is checked, so that graphs which the verifier rejects can be parsed.
///
/// # Errors
/// Syntax errors, each with the line, the column and the expected token.
pub fn parse(text: &str) -> Result<KernelGraph, TextError> {
    Parser::whole(text, graph)
}

fn graph(p: &mut Parser<'_>) -> Parsed<KernelGraph> {
    let mut g = KernelGraph::default();
    let mut bounds: Vec<(Arc<str>, Dim)> = vec![];
    while !p.is_at_end() {
        let start = p.at;
        let word = p.peek();
        if numbered(word, "t").is_some() {
            let id = reference(p, "t", "a tensor")?;
            in_turn(p, start, "t", id, g.tensors.len())?;
            g.tensors.push(tensor(p)?);
        } else if p.eat_word("compute") {
            let symbol = p.word("a symbol")?.into();
            p.expect("=")?;
            g.computed.push((symbol, reference(p, "t", "a tensor")?));
        } else if p.eat_word("bound") {
            let symbol = p.word("a symbol")?.into();
            p.expect("=")?;
            bounds.push((symbol, p.poly("\n")?));
        } else if p.eat_word("kernel") {
            p.space();
            let start = p.at;
            let number = p.integer()?;
            in_turn(p, start, "kernel ", number, g.kernels.len())?;
            g.kernels.push(kernel(p)?);
        } else if p.eat_word("repeat") {
            g.repeats.push(repeat(p)?);
        } else {
            return Err(p.unexpected("a tensor, `compute`, `bound`, `kernel` or `repeat`"));
        }
    }
    g.bounds = bounds.into_iter().collect();
    Ok(g)
}

fn in_turn(p: &mut Parser<'_>, start: usize, what: &str, number: usize, next: usize) -> Parsed<()> {
    if number == next {
        return Ok(());
    }
    p.at = start;
    Err(format!("expected `{what}{next}`: they are numbered in order"))
}

/// The number in a word such as `e12`.
fn numbered(word: &str, letter: &str) -> Option<usize> {
    word.strip_prefix(letter).filter(|n| n.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

fn reference(p: &mut Parser<'_>, letter: &str, what: &str) -> Parsed<usize> {
    let word = p.peek();
    let n = numbered(word, letter).ok_or_else(|| p.unexpected(&format!("{what} (`{letter}0`)")))?;
    p.at += word.len();
    Ok(n)
}

fn number(p: &mut Parser<'_>) -> Parsed<u32> {
    p.space();
    let start = p.at;
    u32::try_from(p.integer()?).map_err(|_| {
        p.at = start;
        "a number beyond 32 bits".to_owned()
    })
}

fn bracketed(p: &mut Parser<'_>) -> Parsed<Poly> {
    p.expect("[")?;
    let d = p.poly("]")?;
    p.expect("]")?;
    Ok(d)
}

/// A tensor: the rest of a line after `t0`.
fn tensor(p: &mut Parser<'_>) -> Parsed<KernelTensor> {
    p.expect(":")?;
    p.space();
    let types_at = p.at;
    let ty = p.ty()?;
    p.space();
    let start = p.at;
    let kind = match p.word("what the tensor is")? {
        "input" => TensorKind::Input(p.integer()?),
        "output" => TensorKind::Output(p.integer()?),
        "const" => constant(p, &ty, types_at)?,
        "state" => TensorKind::State {
            state: p.integer()?,
            grows: p.eat_word("grows"),
            after: p.eat_word("updated"),
        },
        "intermediate" => TensorKind::Intermediate,
        "under" => TensorKind::Under(reference(p, "t", "a tensor")?),
        _ => {
            p.at = start;
            let kinds = "`input`, `output`, `const`, `state`, `intermediate` or `under`";
            return Err(p.unexpected(kinds));
        }
    };
    let name = if p.eat_word("as") { Some(p.string()?) } else { None };
    Ok(KernelTensor { ty, kind, name })
}

fn constant(p: &mut Parser<'_>, ty: &TensorType, types_at: usize) -> Parsed<TensorKind> {
    if p.eat_word("hash") {
        let word = p.word("a hash")?;
        let hash = u64::from_str_radix(word, 16);
        return Ok(TensorKind::Withheld(hash.map_err(|_| format!("`{word}` is no hash of 16 digits"))?));
    }
    let shape = ty.static_shape().and_then(|s| Some((checked_numel(&s)?, s)));
    let Some((n, shape)) = shape else {
        p.at = types_at;
        return Err("a constant needs a constant shape".into());
    };
    let tensor =
        if p.eat_word("absent") { Tensor::absent(ty.dtype, shape) } else { p.numbers(ty, shape, n)? };
    Ok(TensorKind::Const(Arc::new(tensor)))
}

/// A repeat: the rest of a line after `repeat`.
fn repeat(p: &mut Parser<'_>) -> Parsed<Repeat> {
    let first = p.integer()?;
    p.expect("..")?;
    let end = p.integer()?;
    p.expect_word("times")?;
    let times = bracketed(p)?;
    p.expect_word("keeps")?;
    let keeps = p.list("[", "]", |p| reference(p, "t", "a tensor"))?;
    let mut until = None;
    if p.eat_word("until") {
        let word = reference(p, "t", "a tensor")?;
        p.expect_word("rounds")?;
        until = Some(Until { word, rounds: p.integer()? as u64 });
    }
    p.expect_word("as")?;
    let why = p.string()?.to_string();
    Ok(Repeat { kernels: first..end, times, keeps, why, until })
}

/// A kernel being read.
struct Reader<'p, 'a> {
    p: &'p mut Parser<'a>,
    body: Body,
    /// The expression of each number in the text.
    named: FxHashMap<usize, ExprId>,
}

/// The rest of a kernel after its number.
fn kernel(p: &mut Parser<'_>) -> Parsed<Kernel> {
    p.space();
    let start = p.at;
    let name = p.word("a family")?;
    let mut family = header(p, name).inspect_err(|e| {
        if e.starts_with("no family") {
            p.at = start;
        }
    })?;
    let mut nodes = vec![];
    if p.eat("@") {
        nodes.push(p.string()?);
        while p.eat(",") {
            nodes.push(p.string()?);
        }
    }
    let mut r = Reader { p, body: Body::default(), named: FxHashMap::default() };
    let mut stores = vec![];
    let mut seen = Parts::default();
    while r.statement(&mut family, &mut stores, &mut seen)? {}
    seen.complete(&family)?;
    Ok(Kernel { family, body: r.body, stores, nodes })
}

/// The family with the extents of its variables; its expressions follow in statements.
fn header(p: &mut Parser<'_>, name: &str) -> Parsed<Family> {
    p.space();
    let at = p.at;
    let extents = p.polys()?;
    let mut wrong = |names: &str| -> String {
        p.at = at;
        format!("`{name}` has extents [{names}], not {}", extents.len())
    };
    Ok(match name {
        "map" => match <[Dim; 1]>::try_from(extents.clone()) {
            Ok([elements]) => Family::Map(Map { elements }),
            Err(_) => return Err(wrong("elements")),
        },
        "row" | "prefix_scan" => {
            let Ok([rows, len]) = <[Dim; 2]>::try_from(extents.clone()) else {
                return Err(wrong("rows, positions"));
            };
            if name == "row" {
                Family::Row(Row { rows, len, reductions: vec![], row_stores: vec![] })
            } else {
                let (exclusive, reverse) = (p.eat_word("exclusive"), p.eat_word("reverse"));
                let reduction = Reduction { kind: ReduceKind::Sum, value: 0, dtype: DType::F32 };
                Family::PrefixScan(PrefixScan { rows, len, reduction, exclusive, reverse })
            }
        }
        "sort" => {
            let Ok([rows, len, places]) = <[Dim; 3]>::try_from(extents.clone()) else {
                return Err(wrong("rows, positions, places"));
            };
            p.expect_word("sorted")?;
            let sorted = p.count()?;
            p.expect_word("part")?;
            let part = p.count()?;
            p.expect_word("keep")?;
            Family::Sort(Sort { rows, len, places, sorted, part, keep: p.count()?, key: 0 })
        }
        "loop" => {
            p.expect_word("steps")?;
            let (steps, lanes) = (bracketed(p)?, extents);
            let (carries, step_stores) = (vec![], vec![]);
            Family::Loop(Loop { lanes, steps, part: None, carries, alive: None, step_stores })
        }
        "staged_loop" => {
            p.expect_word("steps")?;
            let (steps, lanes) = (bracketed(p)?, extents);
            p.expect_word("as")?;
            let why = p.string()?.to_string();
            let (arrays, first, each, last) = (vec![], vec![], vec![], vec![]);
            let (part, alive, meet) = (None, None, None);
            Family::StagedLoop(StagedLoop { lanes, steps, part, arrays, first, each, last, alive, meet, why })
        }
        "matmul" => match <[Dim; 4]>::try_from(extents.clone()) {
            Ok([batch, m, n, k]) => {
                let (b, sums, rounded) = (vec![], vec![], p.eat_word("rounded"));
                Family::Matmul(Matmul { batch, m, n, k, a: 0, b, sums, rounded })
            }
            Err(_) => return Err(wrong("batch, m, n, k")),
        },
        "attention" => {
            let Ok([batch, s, t, d, e]) = <[Dim; 5]>::try_from(extents.clone()) else {
                return Err(wrong("batch, s, t, d, e"));
            };
            p.expect_word("parts")?;
            let parts = p.poly("@\n")?;
            let (q, k, v, mask, scale, part_stores) = (0, 0, 0, None, 1.0, vec![]);
            let empty_is_zero = false;
            Family::Attention(Attention {
                batch,
                s,
                t,
                d,
                e,
                q,
                k,
                v,
                mask,
                scale,
                empty_is_zero,
                parts,
                part_stores,
            })
        }
        _ => return Err(format!("no family of kernels is called `{name}`")),
    })
}

/// The parts of a family that have been read.
#[derive(Default)]
struct Parts {
    accs: usize,
    first_operand: Option<ExprId>,
}

impl Parts {
    fn complete(&self, f: &Family) -> Parsed<()> {
        let needs = match f {
            Family::PrefixScan(_) => "acc0 = running …",
            Family::Sort(_) => "acc0 = sorted …",
            Family::Matmul(_) => "acc0 = sum(e0 * e1)",
            Family::Attention(_) => "acc0 = attention(…)",
            _ => return Ok(()),
        };
        let there = self.accs > 0 && !matches!(f, Family::Matmul(m) if m.b.is_empty());
        if there { Ok(()) } else { Err(format!("expected `{needs}` in the kernel that ends here")) }
    }
}

impl Reader<'_, '_> {
    /// Reads the next statement; false if there is none.
    fn statement(&mut self, f: &mut Family, stores: &mut Vec<Store>, seen: &mut Parts) -> Parsed<bool> {
        let word = self.p.peek();
        let start = self.p.at;
        if let Some(name) = numbered(word, "e") {
            self.p.at += word.len();
            self.expression(name, start)?;
        } else if numbered(word, "t").is_some() {
            stores.push(self.store()?);
        } else if numbered(word, "acc").is_some() {
            let acc = reference(self.p, "acc", "a result")?;
            in_turn(self.p, start, "acc", acc, seen.accs)?;
            seen.accs += 1;
            self.p.expect("=")?;
            self.result(f, seen)?;
        } else {
            return self.of_family(f, word);
        }
        Ok(true)
    }

    /// A statement that only some families have.
    fn of_family(&mut self, f: &mut Family, word: &str) -> Parsed<bool> {
        let start = self.p.at;
        self.p.at += word.len();
        match (word, f) {
            ("row", Family::Row(f)) => f.row_stores.push(self.store()?),
            ("step", Family::Loop(f)) => f.step_stores.push(self.store()?),
            ("part", Family::Attention(f)) => f.part_stores.push(self.store()?),
            ("from", Family::Loop(f)) => f.part = Some(self.part()?),
            ("from", Family::StagedLoop(f)) => f.part = Some(self.part()?),
            ("meet", Family::StagedLoop(f)) => f.meet = Some(self.store()?),
            ("while", Family::Loop(f)) => f.alive = Some(self.operand()?),
            ("while", Family::StagedLoop(f)) => f.alive = Some(self.array()?),
            ("first", Family::StagedLoop(f)) => f.first.push(self.stage()?),
            ("each", Family::StagedLoop(f)) => f.each.push(self.stage()?),
            ("last", Family::StagedLoop(f)) => f.last.push(self.stage()?),
            (w, Family::StagedLoop(f)) if numbered(w, "s").is_some() => {
                let at = numbered(w, "s").unwrap_or_default();
                in_turn(self.p, start, "s", at, f.arrays.len())?;
                self.p.expect(":")?;
                let dtype = self.p.dtype()?;
                self.p.expect("[")?;
                let len = number(self.p)?;
                self.p.expect("]")?;
                f.arrays.push(Array { dtype, len });
            }
            (w, f) => {
                self.p.at = start;
                let ends = w.is_empty() && self.p.is_at_end() || matches!(w, "kernel" | "repeat");
                if !ends {
                    let what = format!("a statement of a kernel of family `{}`", f.name());
                    return Err(self.p.unexpected(&what));
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A result of the family: the rest of a line after `acc0 =`.
    fn result(&mut self, f: &mut Family, seen: &mut Parts) -> Parsed<()> {
        match f {
            Family::Row(f) => f.reductions.push(self.reduction()?),
            Family::PrefixScan(f) => {
                self.p.expect_word("running")?;
                f.reduction = self.reduction()?;
            }
            Family::Sort(f) => {
                self.p.expect_word("sorted")?;
                f.key = self.operand()?;
            }
            Family::Loop(f) => {
                let init = self.operand()?;
                self.p.expect_word("then")?;
                f.carries.push(Carry { init, next: self.operand()? });
            }
            Family::Matmul(f) => {
                self.p.expect_word("sum")?;
                self.p.expect("(")?;
                self.p.space();
                let at = self.p.at;
                let first = self.operand()?;
                if self.p.eat("*") {
                    if *seen.first_operand.get_or_insert(first) != first {
                        self.p.at = at;
                        return Err("products of one kernel share their first operand".into());
                    }
                    if !f.sums.is_empty() {
                        self.p.at = at;
                        return Err("products come before sums".into());
                    }
                    f.a = first;
                    f.b.push(self.operand()?);
                } else {
                    f.sums.push(first);
                }
                self.p.expect(")")?;
            }
            Family::Attention(f) => {
                self.p.expect_word("attention")?;
                self.p.expect("(")?;
                for (i, (name, slot)) in
                    [("q", &mut f.q), ("k", &mut f.k), ("v", &mut f.v)].into_iter().enumerate()
                {
                    if i > 0 {
                        self.p.expect(",")?;
                    }
                    self.p.expect_word(name)?;
                    *slot = self.operand()?;
                }
                self.p.expect(",")?;
                if self.p.eat_word("mask") {
                    f.mask = Some(self.operand()?);
                    self.p.expect(",")?;
                }
                self.p.expect_word("scale")?;
                f.scale = self.p.f32()?;
                f.empty_is_zero = self.p.eat(",");
                if f.empty_is_zero {
                    self.p.expect_word("empty")?;
                    self.p.expect_word("zero")?;
                }
                self.p.expect(")")?;
            }
            Family::Map(_) | Family::StagedLoop(_) => {
                return Err(format!("a kernel of family `{}` has no such results", f.name()));
            }
        }
        Ok(())
    }

    /// A reference to an expression that has been read.
    fn operand(&mut self) -> Parsed<ExprId> {
        self.p.space();
        let start = self.p.at;
        let name = reference(self.p, "e", "an expression")?;
        self.named.get(&name).copied().ok_or_else(|| {
            self.p.at = start;
            format!("e{name} is used before it is computed")
        })
    }

    fn array(&mut self) -> Parsed<u32> {
        Ok(reference(self.p, "s", "an array")? as u32)
    }

    /// An index expression up to `close`, with data referred to by name.
    fn index(&mut self, close: &str) -> Parsed<Poly> {
        self.p.space();
        let start = self.p.at;
        let index = self.p.poly(close)?;
        for name in index.data() {
            if !self.named.contains_key(&(name as usize)) {
                self.p.at = start;
                return Err(format!("e{name} is used before it is computed"));
            }
        }
        self.p.expect(close)?;
        let of = |name: ExprId| self.named.get(&(name as usize)).copied().unwrap_or(name);
        let same = index.data().into_iter().all(|name| of(name) == name);
        Ok(if same { index } else { renumbered(&index, of, &[]) })
    }

    fn guard(&mut self) -> Parsed<Option<ExprId>> {
        if self.p.eat_word("if") { Ok(Some(self.operand()?)) } else { Ok(None) }
    }

    fn part(&mut self) -> Parsed<Part> {
        let first = self.operand()?;
        self.p.expect_word("most")?;
        Ok(Part { first, most: number(self.p)? })
    }

    /// `t0[offset] = sum e3 if e4`.
    fn store(&mut self) -> Parsed<Store> {
        let tensor: TensorId = reference(self.p, "t", "a tensor")?;
        self.p.expect("[")?;
        let offset = self.index("]")?;
        self.p.expect("=")?;
        let mut combine = None;
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
            if combine.is_none() && self.p.eat_word(op.name()) {
                combine = Some(op);
            }
        }
        let value = self.operand()?;
        Ok(Store { tensor, offset, value, guard: self.guard()?, combine })
    }

    /// `sum(e3): f32`.
    fn reduction(&mut self) -> Parsed<Reduction> {
        self.p.space();
        let start = self.p.at;
        let name = self.p.word("a reduction")?;
        self.p.expect("(")?;
        let value = self.operand()?;
        let arg = |largest, last| ReduceKind::Arg { largest, last };
        let kind = match name {
            "sum" => ReduceKind::Sum,
            "prod" => ReduceKind::Prod,
            "max" => ReduceKind::Max,
            "min" => ReduceKind::Min,
            "arg_max" => arg(true, false),
            "arg_max_last" => arg(true, true),
            "arg_min" => arg(false, false),
            "arg_min_last" => arg(false, true),
            "last" => {
                self.p.expect_word("when")?;
                let when = self.operand()?;
                self.p.expect_word("else")?;
                ReduceKind::Last { when, init: self.operand()? }
            }
            _ => {
                self.p.at = start;
                return Err(format!("no reduction is called `{name}`"));
            }
        };
        self.p.expect(")")?;
        self.p.expect(":")?;
        Ok(Reduction { kind, value, dtype: self.p.dtype()? })
    }

    /// A stage: the rest of a line after `first`, `each` or `last`.
    fn stage(&mut self) -> Parsed<Stage> {
        self.p.expect("[")?;
        let elements = number(self.p)?;
        self.p.expect("]")?;
        self.p.expect("{")?;
        let mut s = Stage { elements, combined: None, writes: vec![], stores: vec![] };
        while !self.p.eat("}") {
            let word = self.p.peek();
            if numbered(word, "acc").is_some() && s.combined.is_none() {
                let acc = reference(self.p, "acc", "a result")? as u32;
                self.p.expect("=")?;
                let reduction = self.reduction()?;
                self.p.expect_word("terms")?;
                s.combined = Some(Combined { terms: number(self.p)?, acc, reduction });
            } else if numbered(word, "s").is_some() {
                let array = self.array()?;
                self.p.expect("=")?;
                s.writes.push(Write { array, value: self.operand()? });
            } else if numbered(word, "t").is_some() {
                s.stores.push(self.store()?);
            } else {
                return Err(self.p.unexpected("a result, an array, a tensor or `}`"));
            }
        }
        Ok(s)
    }

    /// An expression: the rest of a line after its name, which is at `start`.
    fn expression(&mut self, name: usize, start: usize) -> Parsed<()> {
        if self.named.contains_key(&name) {
            self.p.at = start;
            return Err(format!("e{name} is computed twice"));
        }
        self.p.expect(":")?;
        let dtype = self.p.dtype()?;
        self.p.expect("=")?;
        let e = self.value()?;
        let id = self.body.append(e, dtype);
        self.named.insert(name, id);
        Ok(())
    }

    fn value(&mut self) -> Parsed<Expr> {
        let w = self.p.peek();
        let start = self.p.at;
        if let Some(tensor) = numbered(w, "t") {
            self.p.at += w.len();
            self.p.expect("[")?;
            let offset = self.index("]")?;
            return Ok(Expr::Load { tensor, offset, guard: self.guard()? });
        }
        if numbered(w, "s").is_some() {
            let array = self.array()?;
            self.p.expect("[")?;
            let at = self.index("]")?;
            return Ok(Expr::Shared { array, at, guard: self.guard()? });
        }
        if let Some(acc) = numbered(w, "acc") {
            self.p.at += w.len();
            return Ok(Expr::Acc(acc as u32));
        }
        self.p.at += w.len();
        if w.is_empty() || !self.p.eat("(") {
            self.p.at = start;
            return Ok(Expr::Const(self.p.scalar()?));
        }
        if w == "index" {
            return Ok(Expr::Index(self.index(")")?));
        }
        let mut to = None;
        if matches!(w, "cast" | "bitcast") {
            to = Some(self.p.dtype()?);
            self.p.expect(",")?;
        }
        let mut args = vec![self.operand()?];
        while self.p.eat(",") {
            args.push(self.operand()?);
        }
        self.p.expect(")")?;
        let e = match (w, to, args.as_slice()) {
            ("cast", Some(to), [a]) => Some(Expr::Cast(to, *a)),
            ("bitcast", Some(to), [a]) => Some(Expr::Bitcast(to, *a)),
            ("select", None, [c, a, b]) => Some(Expr::Select(*c, *a, *b)),
            (w, None, [a]) => UnaryOp::from_name(w).map(|op| Expr::Unary(op, *a)),
            (w, None, [a, b]) => BinaryOp::from_name(w).map(|op| Expr::Binary(op, *a, *b)),
            _ => None,
        };
        e.ok_or_else(|| {
            self.p.at = start;
            format!("no scalar operator `{w}` of {} operands", args.len())
        })
    }
}
