//! Bindings, loads and stores of packed storage.

use super::handle::Handle;
use super::wgsl::{Module, Scope, Text};
use crate::kernel::bindings::{Binding, Encoding, component, per_word};
use crate::kernel::in_place::reads_of_written;
use crate::kernel::{Expr, Store, TensorId, combines};
use crate::{Diagnostic, kernel::ExprId};
use rustc_hash::FxHashMap;
use std::fmt::Write;
use wgfc_ir::program::Access;
use wgfc_ir::{Class, DType, Poly, ReduceOp};

impl Module<'_> {
    pub(super) fn declarations(&self) -> String {
        let mut out = String::new();
        for (i, b) in self.bindings.list.iter().enumerate() {
            let access = if b.access == Access::Read { "read" } else { "read_write" };
            let element = match b.encoding {
                Encoding::Word if b.dtype == DType::F32 => "f32",
                Encoding::Word if b.dtype == DType::I32 => "i32",
                Encoding::Word | Encoding::Packed => "u32",
                Encoding::Pair => "vec2<u32>",
                Encoding::Pairs => "vec4<u32>",
                Encoding::Half => "f16",
                Encoding::Combined if b.dtype == DType::I32 => "atomic<i32>",
                Encoding::Atomic | Encoding::Combined => "atomic<u32>",
                Encoding::Vector(1) => word_type(b.dtype),
                Encoding::Vector(words) => &format!("vec{words}<{}>", word_type(b.dtype)),
                Encoding::Halves(n) => &format!("vec{n}<f16>"),
            };
            let about = self.cx.legend.and_then(|l| l.about(b.tensor)).unwrap_or_default();
            let name = &self.names[i];
            let _ = writeln!(
                out,
                "@group(0) @binding({i}) var<storage, {access}> {name}: array<{element}>; // {about}"
            );
        }
        if self.uses_dims {
            let n = self.bindings.list.len();
            out.push_str("\nstruct Dims {\n");
            for i in 0..self.cx.symbols.len() {
                let _ = writeln!(out, "    {}: i32,", self.field(i));
            }
            let _ = writeln!(out, "}}\n@group(0) @binding({n}) var<uniform> dims: Dims;");
        }
        out
    }

    /// The binding of a tensor: its number and description.
    pub(super) fn binding(&self, tensor: TensorId) -> Result<(usize, Binding), Diagnostic> {
        self.bindings.find(tensor)
    }

    /// Declares tensors that are only read as arrays of vectors of four words, or two, where every
    /// load that the roots need then reads a known component: offsets are `vector · at + component`
    /// with the same `component` everywhere, as after unrolling. At least half of some vector is used.
    pub fn vectorise(&mut self, roots: &[ExprId]) {
        let body = &self.kernel.body;
        for i in 0..self.bindings.list.len() {
            let b = &self.bindings.list[i];
            let scalar = matches!(b.encoding, Encoding::Word | Encoding::Half | Encoding::Packed);
            if b.access != Access::Read || !scalar {
                continue;
            }
            let mut offsets = vec![];
            for id in body.reachable(roots) {
                if let Expr::Load { tensor, offset, .. } = body.expr(id)
                    && *tensor == b.tensor
                {
                    offsets.push(offset);
                }
            }
            let Some(t) = self.cx.graph.tensors.get(b.tensor) else { continue };
            let numel = t.ty.shape.iter().fold(Poly::ONE, |n, d| &n * d);
            let fits = |words: &u32| {
                let per = words * per_word(b.dtype);
                let mut used: FxHashMap<Poly, u32> = FxHashMap::default();
                for o in &offsets {
                    let Some((at, _)) = component(o, per) else { return false };
                    *used.entry(at).or_default() += 1;
                }
                // A word alone is worth a declaration where it is read as one anyway, or twice.
                let enough = |lanes: &u32| match (words, b.encoding) {
                    (1, Encoding::Word) => false,
                    (1, Encoding::Packed) => true,
                    (1, _) => *lanes == per,
                    _ => lanes * 2 >= per,
                };
                let whole = *words == 1 || component(&numel, per).is_some_and(|(_, rest)| rest == 0);
                whole && used.values().any(enough)
            };
            if let Some(words) = [4, 2, 1].iter().find(|w| fits(w)) {
                self.bindings.list[i].encoding = Encoding::Vector(*words);
            }
        }
    }

    /// The index expression that a load of element `offset` evaluates: the element, or its vector.
    pub(super) fn address(&self, tensor: TensorId, offset: &Poly) -> Result<Poly, Diagnostic> {
        let (_, b) = self.binding(tensor)?;
        let vector = b.vector().and_then(|elements| component(offset, elements));
        Ok(vector.map_or_else(|| offset.clone(), |(at, _)| at))
    }

    /// Reads what load `id` reads without unpacking a vector.
    pub(super) fn fetch(&mut self, s: &mut Scope, id: ExprId) -> Result<(), Diagnostic> {
        if let Expr::Load { tensor, offset, guard } = self.kernel.body.expr(id)
            && let (i, b @ Binding { encoding: Encoding::Vector(_) | Encoding::Pairs, .. }) =
                self.binding(*tensor)?
            && let Some((at, _)) = b.vector().and_then(|elements| component(offset, elements))
        {
            return self.vector(s, i, &at, *guard).map(|_| ());
        }
        self.value(s, id).map(|_| ())
    }

    /// The word that holds the element that a load without a guard reads, and its number among the elements of the word; `None` where it is
    /// no word of storage, or the number is not the same everywhere.
    pub(super) fn word_of(&mut self, s: &mut Scope, id: ExprId) -> Result<Option<(Handle, u32)>, Diagnostic> {
        let Expr::Load { tensor, offset, guard: None } = self.kernel.body.expr(id) else { return Ok(None) };
        let (i, b) = self.binding(*tensor)?;
        let per = per_word(b.dtype);
        let words = match b.encoding {
            Encoding::Vector(words) => words,
            Encoding::Packed => 1,
            _ => return Ok(None),
        };
        let Some((at, lane)) = component(offset, words * per) else { return Ok(None) };
        let vector = self.vector(s, i, &at, None)?;
        let word = match words {
            1 => vector,
            _ => vector.component(["x", "y", "z", "w"][(lane / per) as usize & 3]),
        };
        Ok(Some((word, lane % per)))
    }

    /// The name of vector `at` of binding `i`.
    pub(super) fn vector(
        &mut self,
        s: &mut Scope,
        i: usize,
        at: &Poly,
        guard: Option<ExprId>,
    ) -> Result<Handle, Diagnostic> {
        let at = self.index(s, at)?;
        let name = self.names[i].clone();
        let Some(g) = guard else { return Ok(s.once(&format!("{name}[{at}]"))) };
        let g = self.value(s, g)?;
        Ok(s.once(&format!("{name}[select(0, {at}, {g})]")))
    }

    /// The register value of element `offset`.
    pub(super) fn load(
        &mut self,
        s: &mut Scope,
        tensor: TensorId,
        offset: &Poly,
        guard: Option<ExprId>,
    ) -> Result<Text, Diagnostic> {
        let (i, b) = self.binding(tensor)?;
        let (dtype, per) = (b.dtype, per_word(b.dtype));
        if let Encoding::Vector(words) = b.encoding
            && let Some((at, lane)) = component(offset, words * per)
        {
            let v = self.vector(s, i, &at, guard)?;
            let word = match words {
                1 => v,
                _ => v.component(["x", "y", "z", "w"][(lane / per) as usize & 3]),
            };
            return self.unpacked(s, dtype, &word, lane % per);
        }
        if b.encoding == Encoding::Pairs
            && let Some((at, lane)) = component(offset, 2)
        {
            let pair = self.vector(s, i, &at, guard)?.component(if lane == 0 { "xy" } else { "zw" });
            return Ok(match dtype {
                DType::F64 => Text::Compound(self.call("decode_f64", &[&pair])?),
                _ => Text::Handle(pair),
            });
        }
        let mut at = self.index(s, offset)?;
        if let Some(g) = guard {
            let g = self.value(s, g)?;
            at = s.let_index(&format!("select(0, {at}, {g})"));
        }
        let name = &self.names[i].clone();
        let word = match b.encoding {
            Encoding::Word => return Ok(Text::Compound(format!("{name}[{at}]"))),
            Encoding::Half => return Ok(Text::Compound(format!("f32({name}[{at}])"))),
            Encoding::Pair if dtype == DType::F64 => {
                return Ok(Text::Compound(self.call("decode_f64", &[&format!("{name}[{at}]")])?));
            }
            Encoding::Pair => return Ok(Text::Compound(format!("{name}[{at}]"))),
            Encoding::Pairs => return Err(Diagnostic::internal("half of a vector of pairs is read")),
            Encoding::Packed => format!("{name}[{at} >> {}u]", per.trailing_zeros()),
            Encoding::Atomic => format!("atomicLoad(&{name}[{at} >> {}u])", per.trailing_zeros()),
            Encoding::Halves(_) => return Err(Diagnostic::internal("a vector that is written is read")),
            Encoding::Combined => {
                return Err(Diagnostic::internal("a tensor that stores combine with is read"));
            }
            Encoding::Vector(1) => format!("{name}[{at} >> {}u]", per.trailing_zeros()),
            Encoding::Vector(words) => {
                let (word, vector) = (per.trailing_zeros(), (per * words).trailing_zeros());
                format!("{name}[{at} >> {vector}u][({at} >> {word}u) & {}]", words - 1)
            }
        };
        if per == 1 {
            return Ok(Text::Compound(word));
        }
        let raw = self.call(&format!("field{}", dtype.bits()), &[&word, &at])?;
        self.decode(dtype, &raw).map(Text::Compound)
    }

    /// Element `lane` of those that the named word packs.
    pub(super) fn unpacked(
        &mut self,
        s: &mut Scope,
        dtype: DType,
        word: &Handle,
        lane: u32,
    ) -> Result<Text, Diagnostic> {
        let bits = dtype.bits() as u32;
        if bits == 32 {
            return Ok(Text::Handle(word.clone()));
        }
        if dtype == DType::F16 {
            let pair = s.once(&format!("unpack2x16float({word})"));
            return Ok(Text::Handle(pair.component(if lane == 0 { "x" } else { "y" })));
        }
        let end = (lane + 1) * bits;
        if dtype.class() == Class::Int {
            let (left, right) = (32 - end, 32 - bits);
            let text = format!("bitcast<i32>({word} << {left}u) >> {right}u");
            return Ok(Text::Compound(text));
        }
        let low = if lane == 0 { word.to_string() } else { format!("({word} >> {}u)", lane * bits) };
        let raw = if end == 32 { low } else { format!("({low} & {}u)", (1u64 << bits) - 1) };
        self.decode(dtype, &raw).map(Text::Compound)
    }

    /// Writes a store of the scope's current element. Whole words of packed types are put together in the variable `w<binding>` that is
    /// declared around, and stored with their last element.
    pub fn store(&mut self, s: &mut Scope, store: &Store) -> Result<(), Diagnostic> {
        let (i, b) = self.binding(store.tensor)?;
        let (dtype, own) = (b.dtype, self.kernel.body.dtype(store.value));
        if own != dtype && (own, dtype) != (DType::F32, DType::F16) {
            return Err(Diagnostic::internal(format!("a value of {own} is stored to a tensor of {dtype}")));
        }
        let v = self.value(s, store.value)?;
        let at = self.index(s, &store.offset)?;
        let per = per_word(dtype);
        let name = &self.names[i].clone();
        let lines: Vec<String> = match b.encoding {
            Encoding::Combined => combining(name, dtype, store.combine, &at, &v)?,
            Encoding::Word => vec![format!("{name}[{at}] = {v};")],
            Encoding::Half => vec![format!("{name}[{at}] = f16({v});")],
            Encoding::Pair if dtype == DType::F64 => {
                vec![format!("{name}[{at}] = {};", self.call("encode_f64", &[&v])?)]
            }
            Encoding::Pair => vec![format!("{name}[{at}] = {v};")],
            Encoding::Packed | Encoding::Atomic | Encoding::Vector(1) if per > 1 => {
                let raw = self.encode(dtype, &v)?;
                let bits = dtype.bits();
                let shift = format!("(u32({at}) & {}u) * {bits}u", per - 1);
                let word = format!("{at} >> {}u", per.trailing_zeros());
                if b.encoding != Encoding::Atomic {
                    let last = self.cx.graph.tensors.get(store.tensor).map_or(Poly::ZERO, |t| t.ty.numel());
                    let mut full = format!("({at} & {}) == {}", per - 1, per - 1);
                    if component(&last, per).is_none_or(|(_, rest)| rest != 0) {
                        full = format!("{full} || {at} + 1 == {}", self.index(s, &last)?);
                    }
                    vec![
                        format!("w{i} |= ({raw}) << ({shift});"),
                        format!("if ({full}) {{"),
                        format!("    {name}[{word}] = w{i};"),
                        format!("    w{i} = 0u;"),
                        "}".into(),
                    ]
                } else {
                    let mask = (1u64 << bits) - 1;
                    vec![
                        format!("atomicAnd(&{name}[{word}], ~({mask}u << ({shift})));"),
                        format!("atomicOr(&{name}[{word}], ({raw}) << ({shift}));"),
                    ]
                }
            }
            _ => return Err(Diagnostic::internal("an element of a vector is stored")),
        };
        self.guarded(s, store.guard, &lines)
    }

    /// Writes all stores of a place of the kernel.
    pub fn stores(&mut self, s: &mut Scope, stores: &[Store]) -> Result<(), Diagnostic> {
        self.read_ahead(s, stores.iter().flat_map(Store::reads))?;
        stores.iter().try_for_each(|store| self.store(s, store))
    }

    /// Reads what the roots need of memory that the kernel writes [in place](crate::kernel::in_place): it may be other
    /// memory after the next store.
    pub fn read_ahead(
        &mut self,
        s: &mut Scope,
        roots: impl IntoIterator<Item = ExprId>,
    ) -> Result<(), Diagnostic> {
        if !self.in_place {
            return Ok(());
        }
        let roots: Vec<ExprId> = roots.into_iter().collect();
        for id in reads_of_written(self.kernel, &roots, &self.cx.graph.tensors) {
            self.value(s, id)?;
        }
        Ok(())
    }

    fn guarded(&mut self, s: &mut Scope, guard: Option<ExprId>, lines: &[String]) -> Result<(), Diagnostic> {
        match guard {
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

    /// [`store`](Module::store) of the elements of a vector, in order and under one guard, or of a single element.
    pub(super) fn store_neighbours(&mut self, s: &mut Scope, stores: &[Store]) -> Result<(), Diagnostic> {
        let Some((first, others)) = stores.split_first() else { return Ok(()) };
        if others.is_empty() {
            return self.store(s, first);
        }
        let (i, b) = self.binding(first.tensor)?;
        let (mut values, per) = (vec![], per_word(b.dtype));
        for store in stores {
            values.push(self.value(s, store.value)?);
        }
        let at = self.address(first.tensor, &first.offset)?;
        let at = self.index(s, &at)?;
        let vector = match b.encoding {
            Encoding::Halves(n) => format!("vec{n}<f16>(vec{n}<f32>({}))", values.join(", ")),
            Encoding::Pairs => {
                let mut pairs = vec![];
                for v in &values {
                    pairs.push(match b.dtype {
                        DType::F64 => self.call("encode_f64", &[v])?,
                        _ => v.to_string(),
                    });
                }
                format!("vec4<u32>({})", pairs.join(", "))
            }
            Encoding::Vector(words) => {
                let mut whole = vec![];
                for word in values.chunks(per as usize) {
                    let mut fields = vec![];
                    for (lane, v) in word.iter().enumerate().filter(|_| per > 1) {
                        let raw = self.encode(b.dtype, v)?;
                        fields.push(format!("(({raw}) << {}u)", lane * b.dtype.bits()));
                    }
                    whole.push(if per > 1 { fields.join(" | ") } else { word.concat() });
                }
                let whole = whole.join(", ");
                if words == 1 { whole } else { format!("vec{words}<{}>({whole})", word_type(b.dtype)) }
            }
            _ => return Err(Diagnostic::internal("neighbours are stored to no vector")),
        };
        let name = &self.names[i];
        let line = format!("{name}[{at}] = {vector};");
        self.guarded(s, first.guard, &[line])
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

/// The WGSL type of one word of a packed or 32-bit tensor.
fn word_type(d: DType) -> &'static str {
    match d {
        DType::F32 => "f32",
        DType::I32 => "i32",
        _ => "u32",
    }
}

/// The statements that combine `v` with element `at` of a binding.
fn combining(
    name: &str,
    dtype: DType,
    how: Option<ReduceOp>,
    at: &str,
    v: &str,
) -> Result<Vec<String>, Diagnostic> {
    let function = match how {
        Some(op) if !combines(op, dtype) => None,
        Some(ReduceOp::Sum) => Some("atomicAdd"),
        Some(ReduceOp::Max) => Some("atomicMax"),
        Some(ReduceOp::Min) => Some("atomicMin"),
        _ => None,
    };
    let Some(function) = function else {
        return Err(Diagnostic::internal(format!("stores of {dtype} that combine: {how:?}")));
    };
    // A look costs less than an atomic that changes nothing.
    let changes = match how {
        Some(ReduceOp::Max) => Some("<"),
        Some(ReduceOp::Min) => Some(">"),
        _ => None,
    };
    if let (32, Some(than)) = (dtype.bits(), changes) {
        return Ok(vec![
            format!("if (atomicLoad(&{name}[{at}]) {than} {v}) {{"),
            format!("    {function}(&{name}[{at}], {v});"),
            "}".into(),
        ]);
    }
    if dtype.bits() == 32 {
        return Ok(vec![format!("{function}(&{name}[{at}], {v});")]);
    }
    // The words that overflow are as many in any order.
    Ok(vec![
        "{".into(),
        format!("    let low = atomicAdd(&{name}[2u * u32({at})], {v}.x) + {v}.x;"),
        format!("    atomicAdd(&{name}[2u * u32({at}) + 1u], {v}.y + select(0u, 1u, low < {v}.x));"),
        "}".into(),
    ])
}
