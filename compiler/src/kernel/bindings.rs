//! The declarations of a kernel's tensors: one binding each, in an encoding that the element type and the accesses allow.

use super::{Family, Kernel, KernelGraph, KernelTensor, Store, TensorId};
use crate::Diagnostic;
use wgfc_ir::program::Access;
use wgfc_ir::{DType, Poly};

/// The declaration of a tensor in WGSL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `array<f32>`, `array<i32>`, `array<u32>`.
    Word,
    /// `array<vec2<u32>>`: 64-bit types.
    Pair,
    /// `array<vec4<u32>>`: two elements of 64 bits each; loads and stores are whole vectors.
    Pairs,
    /// `array<f16>`.
    Half,
    /// `array<u32>`, each word of which packs several elements.
    Packed,
    /// `array<atomic<u32>>`, each word of which packs several elements.
    Atomic,
    /// `array<atomic<i32>>` or `array<atomic<u32>>`, where each element is one word or two: stores combine with the old value.
    Combined,
    /// `array<vec4<f32>>` and the like, of the given number of words (1: `array<u32>`): loads and stores are whole vectors.
    Vector(u32),
    /// `array<vec4<f16>>` or `array<vec2<f16>>`, written only.
    Halves(u32),
}

/// A bound tensor.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The tensor that is bound.
    pub tensor: TensorId,
    /// Its element type.
    pub dtype: DType,
    /// Whether it is read or written.
    pub access: Access,
    /// Its declaration.
    pub encoding: Encoding,
}

impl Binding {
    /// Elements of a vector, if it is declared as an array of vectors.
    pub fn vector(&self) -> Option<u32> {
        match self.encoding {
            Encoding::Vector(words) => Some(words * per_word(self.dtype)),
            Encoding::Halves(n) => Some(n),
            Encoding::Pairs => Some(2),
            _ => None,
        }
    }
}

/// The bindings of a kernel's tensors: those that are read first, in order of first use, then those that are only
/// written.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// Binding `i` of group 0.
    pub list: Vec<Binding>,
}

impl Bindings {
    /// The bindings of a kernel on a device with or without `f16`. A store of a packed type at offset `%0` may write whole words if
    /// `whole_words` says that the family does so; all others use atomics.
    ///
    /// # Errors
    /// `Unsupported` if a tensor has too many elements for 31-bit offsets; `Internal` if a tensor does not exist.
    pub fn of(
        kernel: &Kernel,
        graph: &KernelGraph,
        f16: bool,
        whole_words: bool,
    ) -> Result<Bindings, Diagnostic> {
        let (reads, writes) = (kernel.reads(), kernel.writes());
        let mut all = reads.clone();
        all.extend(writes.iter().filter(|w| !reads.contains(w)));
        let stores: Vec<&Store> = kernel.all_stores().collect();
        let element = |s: &Store| s.guard.is_none() && s.offset == Poly::var(0);
        Bindings::declare(&all, &stores, graph, f16, &|t, own| {
            // The last word may be written as a whole if it holds no elements that the kernel does not write.
            let ends = match &kernel.family {
                Family::Map(map) => {
                    let word = i64::from(per_word(t.ty.dtype).max(1));
                    map.elements == t.ty.numel() || map.elements.modulo(&word.into(), &[]).is(0)
                }
                _ => true,
            };
            whole_words && ends && own.iter().all(|s| element(s))
        })
    }

    /// The bindings of tensors in this order, which `stores` write; `whole` says whether all stores of a packed type write whole words.
    ///
    /// # Errors
    /// As [`Bindings::of`].
    pub fn declare(
        tensors: &[TensorId],
        stores: &[&Store],
        graph: &KernelGraph,
        f16: bool,
        whole: &dyn Fn(&KernelTensor, &[&Store]) -> bool,
    ) -> Result<Bindings, Diagnostic> {
        let mut list = vec![];
        for tensor in tensors.iter().copied() {
            let Some(t) = graph.tensors.get(tensor) else {
                return Err(Diagnostic::internal(format!(
                    "a kernel uses tensor {tensor}, which does not exist"
                )));
            };
            let dtype = t.ty.dtype;
            let numel = t.ty.numel();
            if numel.as_const().is_some_and(|n| n > i64::from(i32::MAX)) {
                return Err(Diagnostic::unsupported(format!(
                    "a tensor of {numel} elements: kernels address at most 2147483647"
                ))
                .help("split the tensor, or choose smaller dimensions"));
            }
            let own: Vec<&Store> = stores.iter().copied().filter(|s| s.tensor == tensor).collect();
            let written = !own.is_empty();
            let encoding = match dtype.bits() {
                _ if own.iter().any(|s| s.combine.is_some()) => Encoding::Combined,
                32 => Encoding::Word,
                64 => Encoding::Pair,
                16 if dtype == DType::F16 && f16 => Encoding::Half,
                _ if written && !whole(t, &own) => Encoding::Atomic,
                _ => Encoding::Packed,
            };
            let access = if written { Access::ReadWrite } else { Access::Read };
            list.push(Binding { tensor, dtype, access, encoding });
        }
        Ok(Bindings { list })
    }

    /// The binding of a tensor, with its number.
    ///
    /// # Errors
    /// `Internal` if the tensor is not bound.
    pub fn find(&self, tensor: TensorId) -> Result<(usize, Binding), Diagnostic> {
        self.list
            .iter()
            .enumerate()
            .find(|(_, b)| b.tensor == tensor)
            .map(|(i, b)| (i, b.clone()))
            .ok_or_else(|| Diagnostic::internal(format!("tensor {tensor} is not bound")))
    }

    /// Whether a tensor is in a binding that the kernel only reads.
    pub fn is_read(&self, tensor: TensorId) -> bool {
        self.find(tensor).is_ok_and(|(_, b)| b.access == Access::Read)
    }

    /// Declares a tensor as an array of vectors of `elements`; it must be only read, or only written in whole vectors. False if that is
    /// not possible.
    pub fn declare_vectors(&mut self, graph: &KernelGraph, tensor: TensorId, elements: u32) -> bool {
        let Some(b) = self.list.iter_mut().find(|b| b.tensor == tensor) else { return false };
        let Some(t) = graph.tensors.get(tensor) else { return false };
        let bits = elements * b.dtype.bits() as u32;
        b.encoding = match b.encoding {
            Encoding::Pair => return false,
            Encoding::Half if b.access == Access::ReadWrite => Encoding::Halves(elements),
            Encoding::Vector(_) | Encoding::Halves(_) | Encoding::Pairs => b.encoding,
            _ => Encoding::Vector(bits / 32),
        };
        // The last word of packed elements is always allocated as a whole.
        let word = bits == 32 && elements > 1;
        let whole = word || component(&t.ty.numel(), elements).is_some_and(|(_, rest)| rest == 0);
        bits.is_multiple_of(32) && whole && b.vector() == Some(elements)
    }

    /// Declares a tensor of 64-bit elements that is only read, or only written, as an array of vectors of two. False if that is not
    /// possible.
    pub fn declare_pairs(&mut self, graph: &KernelGraph, tensor: TensorId) -> bool {
        let Some(b) = self.list.iter_mut().find(|b| b.tensor == tensor) else { return false };
        let whole = |t: &KernelTensor| component(&t.ty.numel(), 2).is_some_and(|(_, rest)| rest == 0);
        if b.encoding == Encoding::Pair && graph.tensors.get(tensor).is_some_and(whole) {
            b.encoding = Encoding::Pairs;
        }
        b.encoding == Encoding::Pairs
    }

    /// Whether kernels with these bindings declare `f16`.
    pub fn use_f16(&self) -> bool {
        self.list.iter().any(|b| matches!(b.encoding, Encoding::Half | Encoding::Halves(_)))
    }
}

/// Whether the offsets are, in order, those of the elements of one vector.
pub fn neighbours<'a>(offsets: impl ExactSizeIterator<Item = &'a Poly>) -> bool {
    let count = offsets.len() as u32;
    let mut vector = None;
    offsets.enumerate().all(|(i, o)| {
        component(o, count)
            .is_some_and(|(at, lane)| lane == i as u32 && *vector.get_or_insert_with(|| at.clone()) == at)
    })
}

/// An offset as `per · vector + component`, if the component is the same for all values of the variables.
pub fn component(offset: &Poly, per: u32) -> Option<(Poly, u32)> {
    let per = i64::from(per);
    let mut lane = 0;
    for (m, c) in offset.terms() {
        match c.rem_euclid(per) {
            0 => {}
            rest if m.is_empty() => lane = rest,
            _ => return None,
        }
    }
    Some(((offset - &Poly::constant(lane)).div(&Poly::constant(per), &[]), lane as u32))
}

/// Elements in one 32-bit word, at least 1.
pub fn per_word(d: DType) -> u32 {
    (32 / d.bits() as u32).max(1)
}
