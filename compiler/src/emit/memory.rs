//! Bindings, loads and stores of packed storage.

use super::wgsl::{Module, Scope};
use crate::kernel::{Store, TensorId};
use crate::{Diagnostic, kernel::ExprId};
use std::fmt::Write;
use wgfc_ir::program::Access;
use wgfc_ir::{Class, DType, Poly};

/// How a tensor is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `array<f32>`, `array<i32>`, `array<u32>`.
    Word,
    /// `array<vec2<u32>>`: 64-bit types.
    Pair,
    /// `array<f16>`.
    Half,
    /// `array<u32>` of which each word packs several elements.
    Packed,
    /// `array<atomic<u32>>`, likewise.
    Atomic,
}

/// A bound tensor.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Which tensor.
    pub tensor: TensorId,
    /// Its element type.
    pub dtype: DType,
    /// How it is used.
    pub access: Access,
    /// How it is declared.
    pub form: Form,
}

impl Module<'_> {
    /// Reads first, in order of first use, then writes.
    pub(super) fn bind_tensors(&mut self, whole_words: bool) -> Result<(), Diagnostic> {
        let (reads, writes) = (self.kernel.reads(), self.kernel.writes());
        let mut all = reads.clone();
        all.extend(writes.iter().filter(|w| !reads.contains(w)));
        for tensor in all {
            let Some(t) = self.cx.graph.tensors.get(tensor) else {
                return Err(Diagnostic::internal(format!(
                    "a kernel uses tensor {tensor}, which does not exist"
                )));
            };
            let dtype = t.ty.dtype;
            let numel = t.ty.shape.iter().fold(Poly::ONE, |n, d| &n * d);
            if numel.as_const().is_some_and(|n| n > i64::from(i32::MAX)) {
                return Err(Diagnostic::unsupported(format!(
                    "a tensor of {numel} elements: kernels address at most 2147483647"
                ))
                .help("split the tensor, or choose smaller dimensions"));
            }
            let mut stores = self.kernel.all_stores().filter(|s| s.tensor == tensor).peekable();
            let written = stores.peek().is_some();
            let aligned = whole_words && stores.all(|s| s.guard.is_none() && s.offset == Poly::var(0));
            let form = match dtype.bits() {
                32 => Form::Word,
                64 => Form::Pair,
                16 if dtype == DType::F16 && self.cx.profile.f16 => {
                    self.uses_f16 = true;
                    Form::Half
                }
                _ if written && !aligned => Form::Atomic,
                _ => Form::Packed,
            };
            let access = if written { Access::ReadWrite } else { Access::Read };
            self.bindings.push(Binding { tensor, dtype, access, form });
        }
        Ok(())
    }

    pub(super) fn declarations(&self) -> String {
        let mut out = String::new();
        for (i, b) in self.bindings.iter().enumerate() {
            let access = if b.access == Access::Read { "read" } else { "read_write" };
            let element = match b.form {
                Form::Word if b.dtype == DType::F32 => "f32",
                Form::Word if b.dtype == DType::I32 => "i32",
                Form::Word | Form::Packed => "u32",
                Form::Pair => "vec2<u32>",
                Form::Half => "f16",
                Form::Atomic => "atomic<u32>",
            };
            let _ = writeln!(out, "@group(0) @binding({i}) var<storage, {access}> b{i}: array<{element}>;");
        }
        if self.uses_dims {
            let n = self.bindings.len();
            out.push_str("\nstruct Dims {\n");
            for i in 0..self.cx.symbols.len() {
                let _ = writeln!(out, "    {}: i32,", self.field(i));
            }
            let _ = writeln!(out, "}}\n@group(0) @binding({n}) var<uniform> dims: Dims;");
        }
        out
    }

    /// The binding of a tensor: its number and description.
    pub fn binding(&self, tensor: TensorId) -> Result<(usize, Binding), Diagnostic> {
        self.bindings
            .iter()
            .enumerate()
            .find(|(_, b)| b.tensor == tensor)
            .map(|(i, b)| (i, b.clone()))
            .ok_or_else(|| Diagnostic::internal(format!("tensor {tensor} is not bound")))
    }

    /// The register value of element `offset`.
    pub(super) fn load(
        &mut self,
        s: &mut Scope,
        tensor: TensorId,
        offset: &Poly,
        guard: Option<ExprId>,
    ) -> Result<String, Diagnostic> {
        let (i, b) = self.binding(tensor)?;
        let mut at = self.index(s, offset)?;
        if let Some(g) = guard {
            let g = self.value(s, g)?;
            at = s.let_index(&format!("select(0, {at}, {g})"));
        }
        match b.form {
            Form::Word => Ok(format!("b{i}[{at}]")),
            Form::Half => Ok(format!("f32(b{i}[{at}])")),
            Form::Pair if b.dtype == DType::F64 => self.call("decode_f64", &[&format!("b{i}[{at}]")]),
            Form::Pair => Ok(format!("b{i}[{at}]")),
            Form::Packed | Form::Atomic => {
                let bits = b.dtype.bits();
                let word = format!("b{i}[{at} >> {}u]", per_word(b.dtype).trailing_zeros());
                let word = if b.form == Form::Atomic { format!("atomicLoad(&{word})") } else { word };
                let raw = self.call(&format!("field{bits}"), &[&word, &at])?;
                self.decode(b.dtype, &raw)
            }
        }
    }

    /// Writes a store of the scope's current element. Whole words of packed types are gathered in the
    /// variable `w<binding>` that the family declares.
    pub fn store(&mut self, s: &mut Scope, store: &Store) -> Result<(), Diagnostic> {
        let (i, b) = self.binding(store.tensor)?;
        let dtype = self.kernel.body.dtype(store.value);
        if dtype != b.dtype {
            return Err(Diagnostic::internal(format!(
                "a value of {dtype} is stored to a tensor of {}",
                b.dtype
            )));
        }
        let v = self.value(s, store.value)?;
        let at = self.index(s, &store.offset)?;
        let per = per_word(dtype);
        let lines: Vec<String> = match b.form {
            Form::Word => vec![format!("b{i}[{at}] = {v};")],
            Form::Half => vec![format!("b{i}[{at}] = f16({v});")],
            Form::Pair if dtype == DType::F64 => {
                vec![format!("b{i}[{at}] = {};", self.call("encode_f64", &[&v])?)]
            }
            Form::Pair => vec![format!("b{i}[{at}] = {v};")],
            Form::Packed | Form::Atomic => {
                let raw = self.encode(dtype, &v)?;
                let bits = dtype.bits();
                let shift = format!("(u32({at}) & {}u) * {bits}u", per - 1);
                let word = format!("{at} >> {}u", per.trailing_zeros());
                if b.form == Form::Packed {
                    vec![
                        format!("w{i} |= ({raw}) << ({shift});"),
                        format!("if (({at} & {}) == {} || {at} + 1 == end) {{", per - 1, per - 1),
                        format!("    b{i}[{word}] = w{i};"),
                        format!("    w{i} = 0u;"),
                        "}".into(),
                    ]
                } else {
                    let mask = (1u64 << bits) - 1;
                    vec![
                        format!("atomicAnd(&b{i}[{word}], ~({mask}u << ({shift})));"),
                        format!("atomicOr(&b{i}[{word}], ({raw}) << ({shift}));"),
                    ]
                }
            }
        };
        match store.guard {
            None => lines.iter().for_each(|l| s.line(l)),
            Some(g) => {
                let g = self.value(s, g)?;
                s.line(&format!("if ({g}) {{"));
                lines.iter().for_each(|l| s.line(&format!("    {l}")));
                s.line("}");
            }
        }
        Ok(())
    }

    /// The register value that raw stored bits (a `u32`) stand for.
    pub fn decode(&mut self, dtype: DType, raw: &str) -> Result<String, Diagnostic> {
        match dtype.class() {
            Class::Float => self.call(&format!("decode_{dtype}"), &[raw]),
            Class::Bool => Ok(format!("{raw} != 0u")),
            Class::Uint => Ok(raw.into()),
            Class::Int => self.call("wrap_i32", &[&format!("i32({raw})"), &format!("{}u", dtype.bits())]),
        }
    }

    /// The stored bits (a `u32`) of a register value of a type of less than 32 bits.
    pub fn encode(&mut self, dtype: DType, v: &str) -> Result<String, Diagnostic> {
        match dtype.class() {
            Class::Float => self.call(&format!("encode_{dtype}"), &[v]),
            Class::Bool => Ok(format!("select(0u, 1u, {v})")),
            _ => Ok(format!("u32({v}) & {}u", (1u64 << dtype.bits()) - 1)),
        }
    }

    /// Elements in a word for each tensor that is written in whole words, as `(binding, elements)`.
    pub(super) fn packed_stores(&self) -> Vec<(usize, u32)> {
        self.bindings
            .iter()
            .enumerate()
            .filter(|(_, b)| b.access == Access::ReadWrite && b.form == Form::Packed)
            .map(|(i, b)| (i, per_word(b.dtype)))
            .collect()
    }

    /// An extent's value, refused where it is too large for the invocations' numbers.
    pub fn extent(&mut self, s: &mut Scope, p: &Poly) -> Result<String, Diagnostic> {
        if let Some(c) = p.as_const().filter(|c| *c > i64::from(i32::MAX) - (1 << 20)) {
            return Err(Diagnostic::unsupported(format!(
                "a kernel over {c} elements: at most 2146435071 are numbered"
            ))
            .help("choose smaller dimensions"));
        }
        self.index(s, p)
    }
}

/// Elements in one 32-bit word, at least 1.
pub fn per_word(d: DType) -> u32 {
    (32 / d.bits() as u32).max(1)
}
