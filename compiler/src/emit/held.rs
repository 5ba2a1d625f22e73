//! Loads that are read in one place and computed with in another: what memory holds passes between them.
//!
//! A kernel that reads the next step's elements while this step's are multiplied waits for memory as soon as it computes with them.
//! Until then it holds the words, which are also fewer than the numbers that they pack.

use super::handle::Handle;
use super::wgsl::{Module, Scope, Text, reg_type};
use crate::Diagnostic;
use crate::kernel::bindings::{Encoding, component, per_word};
use crate::kernel::{Expr, ExprId};
use std::fmt::Write;
use wgfc_ir::{DType, Poly, Reg};

/// The memory that a load reads, and where in it the element is.
pub(super) struct Stored {
    /// The name of the word, vector or number that is read.
    text: Handle,
    /// Its type.
    ty: &'static str,
    /// The words of 32 bits that it takes.
    words: u32,
    element: Element,
}

/// An element in what a load reads.
enum Element {
    /// All of it.
    All,
    /// All of it, which is an f16.
    Half,
    /// The element of this number, in so many words.
    Lane { dtype: DType, words: u32, lane: u32 },
    /// The field of this number in a word of fields, which is not the same everywhere: `per` times the position, and `lane`.
    Field { dtype: DType, at: Poly, per: u32, lane: u32 },
}

/// Loads in the fields of a structure.
pub(super) struct Held {
    loads: Vec<(ExprId, usize, Element)>,
    /// The name of what each field holds, and the field's type.
    fields: Vec<(Handle, &'static str)>,
    /// The words of 32 bits that the fields take.
    pub words: u32,
}

impl Held {
    /// Reads the loads in a scope.
    pub fn read(m: &mut Module, s: &mut Scope, ids: &[ExprId]) -> Result<Held, Diagnostic> {
        let mut held = Held { loads: vec![], fields: vec![], words: 0 };
        for id in ids {
            let Stored { text, ty, words, element } = m.stored(s, *id)?;
            let known = held.fields.iter().position(|(t, _)| **t == *text);
            let field = known.unwrap_or_else(|| {
                held.fields.push((text, ty));
                held.words += words;
                held.fields.len() - 1
            });
            held.loads.push((*id, field, element));
        }
        Ok(held)
    }

    /// The declaration of the structure.
    pub fn structure(&self, name: &str) -> String {
        let mut out = format!("struct {name} {{\n");
        for (i, (_, ty)) in self.fields.iter().enumerate() {
            let _ = writeln!(out, "    p{i}: {ty},");
        }
        out + "}\n"
    }

    /// A value of the structure.
    pub fn value(&self, name: &str) -> String {
        let fields: Vec<&str> = self.fields.iter().map(|(text, _)| &**text).collect();
        format!("{name}({})", fields.join(", "))
    }

    /// Makes the elements known in a scope in which the structure has this name.
    pub fn bind(&self, m: &mut Module, s: &mut Scope, name: &str) -> Result<(), Diagnostic> {
        for (id, field, element) in &self.loads {
            let value = m.element(s, element, &Handle::named(format!("{name}.p{field}")))?;
            s.bind(*id, value);
        }
        Ok(())
    }
}

impl Module<'_> {
    /// Reads what a load reads, as it is in memory.
    fn stored(&mut self, s: &mut Scope, id: ExprId) -> Result<Stored, Diagnostic> {
        let Expr::Load { tensor, offset, guard } = self.kernel.body.expr(id) else {
            return Err(Diagnostic::internal("no load is held"));
        };
        let (i, b) = self.binding(*tensor)?;
        let (dtype, per) = (b.dtype, per_word(b.dtype));
        match b.encoding {
            Encoding::Vector(words) => {
                if let (Some((at, lane)), Some(ty)) =
                    (component(offset, words * per), vector_type(words, dtype))
                {
                    let text = self.vector(s, i, &at, *guard)?;
                    return Ok(Stored { text, ty, words, element: Element::Lane { dtype, words, lane } });
                }
            }
            Encoding::Half => {
                let text = self.vector(s, i, offset, *guard)?;
                return Ok(Stored { text, ty: "f16", words: 1, element: Element::Half });
            }
            Encoding::Packed if per > 1 => {
                // Neighbours of which it is known which is which are in one word, whichever that is.
                let mut together = per / 2;
                let (at, lane) = loop {
                    match component(offset, together.max(1)) {
                        Some(found) => break found,
                        None => together /= 2,
                    }
                };
                let per = together.max(1);
                let mut index = self.index(s, &at)?;
                if let Some(g) = guard {
                    let g = self.value(s, *g)?;
                    index = s.let_index(&format!("select(0, {index}, {g})"));
                }
                let shift = (per_word(dtype) / per).trailing_zeros();
                let text = s.once(&format!("{}[{index} >> {shift}u]", self.names[i]));
                return Ok(Stored {
                    text,
                    ty: "u32",
                    words: 1,
                    element: Element::Field { dtype, at, per, lane },
                });
            }
            _ => {}
        }
        let reg = self.kernel.body.dtype(id).reg();
        let words = if matches!(reg, Reg::I64 | Reg::U64) { 2 } else { 1 };
        Ok(Stored { text: self.value(s, id)?, ty: reg_type(reg), words, element: Element::All })
    }

    /// The element in what was read, which has a name.
    fn element(&mut self, s: &mut Scope, element: &Element, name: &Handle) -> Result<Handle, Diagnostic> {
        let text = match element {
            Element::All => return Ok(name.clone()),
            Element::Half => return Ok(s.once(&format!("f32({name})"))),
            Element::Lane { dtype, words, lane } => {
                let per = per_word(*dtype);
                let word = match words {
                    1 => name.clone(),
                    _ => name.component(["x", "y", "z", "w"][(lane / per) as usize & 3]),
                };
                self.unpacked(s, *dtype, &word, lane % per)?
            }
            Element::Field { dtype, at, per, lane } => {
                let at = self.index(s, at)?;
                let raw =
                    self.call(&format!("field{}", dtype.bits()), &[name, &format!("{at} * {per} + {lane}")])?;
                Text::Compound(self.decode(*dtype, &raw)?)
            }
        };
        Ok(match text {
            Text::Handle(h) => h,
            Text::Compound(t) => s.let_value(&t),
        })
    }
}

/// The type of a vector of so many words.
fn vector_type(words: u32, dtype: DType) -> Option<&'static str> {
    let types = match dtype {
        DType::F32 => ["f32", "vec2<f32>", "vec4<f32>"],
        DType::I32 => ["i32", "vec2<i32>", "vec4<i32>"],
        _ => ["u32", "vec2<u32>", "vec4<u32>"],
    };
    types.get(words.trailing_zeros() as usize).copied()
}
