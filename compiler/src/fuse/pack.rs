//! Packing of small tensors of a kernel into one, so that they take one binding.
//!
//! [`pack`] packs constants at compile time. [`gather`] also packs other tensors: small kernels copy inputs into the packed tensor
//! beforehand, and others copy results out of it afterwards. That way a loop stays one kernel that would be split into one dispatch per
//! step otherwise.

use crate::fuse::count_bindings;
use crate::fuse::tensors::Tensors;
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, KernelTensor, Map, Store, TensorId, TensorKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wgfc_ir::{BinaryOp, DType, Dim, Poly, Scalar, Tensor, TensorType};

/// The most elements of a small constant: packing copies it once for each kernel.
const SMALL: usize = 1 << 15;
/// The alignment of a packed tensor in elements, so that it can be read in vectors.
const ALIGN: usize = 8;

/// Packs the small constants of the most frequent element type; `None` if that frees no binding.
pub(super) fn pack(kernel: &Kernel, tensors: &mut Tensors) -> Option<Kernel> {
    let mut by_type: BTreeMap<DType, Vec<(TensorId, Arc<Tensor>)>> = BTreeMap::new();
    for t in kernel.reads() {
        if let Some(TensorKind::Const(data)) = tensors.list.get(t).map(|t| &t.kind)
            && data.numel() <= SMALL
            && data.dtype.bits() >= 8
        {
            by_type.entry(data.dtype).or_default().push((t, data.clone()));
        }
    }
    let (dtype, parts) = by_type.into_iter().max_by_key(|(_, parts)| parts.len())?;
    if parts.len() < 2 {
        return None;
    }
    let mut starts: BTreeMap<TensorId, usize> = BTreeMap::new();
    let mut bytes: Option<Vec<u8>> = Some(vec![]);
    let mut len = 0;
    for (t, data) in &parts {
        starts.insert(*t, len);
        len += data.numel().next_multiple_of(ALIGN);
        bytes = bytes.zip(data.bytes()).map(|(mut all, part)| {
            all.extend_from_slice(part);
            all.resize(dtype.bytes_for(len), 0);
            all
        });
    }
    let data = match bytes {
        Some(bytes) => Tensor::new(dtype, vec![len], bytes).ok()?,
        None => Tensor::absent(dtype, vec![len]),
    };
    let ty = TensorType::new(dtype, vec![Dim::from(len)]);
    let packed = tensors.add(None, ty, TensorKind::Const(Arc::new(data)));
    Some(kernel.moved(&|t, offset| match starts.get(&t) {
        Some(start) => (packed, offset + &Poly::from(*start)),
        None => (t, offset.clone()),
    }))
}

/// The kernels that pack and unpack tensors beside a kernel.
pub(super) struct Gathered {
    /// Kernels that fill the packed inputs, and kernels that copy packed results out.
    pub before: Vec<Kernel>,
    pub after: Vec<Kernel>,
    /// For each packed tensor, the tensor it is in and the offset of its first element.
    pub places: BTreeMap<TensorId, (TensorId, i64)>,
}

/// The properties that tensors must share to be packed together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    /// Whether the kernel reads the tensor, and whether it writes it.
    read: bool,
    written: bool,
    /// Whether any of the kernels writes the tensor.
    made: bool,
    dtype: DType,
}

/// Packs small tensors, of at most `little` bytes, until kernel number `wide` binds at most `most` tensors; `None` if that is impossible.
/// The kernels run one after another. Tensors that are `fixed` are not packed.
pub(super) fn gather(
    kernels: &mut [Kernel],
    wide: usize,
    tensors: &mut Tensors,
    (most, little): (usize, i64),
    fixed: &dyn Fn(TensorId) -> bool,
) -> Option<Gathered> {
    let mut kernel = kernels.get(wide)?.clone();
    let (reads, writes) = (kernel.reads(), kernel.writes());
    let made: BTreeSet<TensorId> = kernels.iter().flat_map(Kernel::writes).collect();
    let values: BTreeSet<TensorId> = tensors.of.values().copied().collect();
    let shared = |t: TensorId| {
        let others = tensors.list.iter().enumerate();
        others.into_iter().any(|(i, other)| match other.kind {
            TensorKind::Under(over) => i == t || over == t,
            _ => false,
        })
    };
    let mut classes: BTreeMap<Class, Vec<(i64, TensorId)>> = BTreeMap::new();
    for t in kernel.tensors() {
        let KernelTensor { ty, kind, .. } = &tensors.list[t];
        let class = Class {
            read: reads.contains(&t),
            written: writes.contains(&t),
            made: made.contains(&t),
            dtype: ty.dtype,
        };
        let free = match kind {
            TensorKind::Input(_) | TensorKind::Const(_) => !class.made,
            TensorKind::Output(_) => class.made,
            TensorKind::Intermediate => true,
            _ => false,
        };
        let Some(len) = ty.numel().as_const().filter(|n| *n > 0) else { continue };
        let small = len.saturating_mul(ty.dtype.bits() as i64) <= little.saturating_mul(8);
        if free && ty.dtype.bits() >= 8 && small && !fixed(t) && !shared(t) {
            classes.entry(class).or_default().push((len, t));
        }
    }
    classes.values_mut().for_each(|all| all.sort_unstable_by(|a, b| b.cmp(a)));
    let mut gathered = Gathered { before: vec![], after: vec![], places: BTreeMap::new() };
    while let Some(excess) = count_bindings(&kernel).checked_sub(most).filter(|n| *n > 0) {
        let (class, all) = classes.iter_mut().max_by_key(|(_, all)| all.len())?;
        let take = all.len().min(excess + 1).min(most.saturating_sub(1));
        if take < 2 {
            return None;
        }
        // The smallest are at the end.
        let parts = all.split_off(all.len() - take);
        let starts: Vec<i64> = (parts.iter())
            .scan(0, |next, (len, _)| {
                let start = *next;
                *next = (start + len + ALIGN as i64 - 1) / ALIGN as i64 * ALIGN as i64;
                Some(start)
            })
            .collect();
        let total = starts.last().zip(parts.last()).map_or(0, |(start, (len, _))| start + len);
        let ty = TensorType::new(class.dtype, vec![Dim::from(total)]);
        let packed = tensors.add(None, ty, TensorKind::Intermediate);
        gathered.places.extend(parts.iter().zip(&starts).map(|((_, t), start)| (*t, (packed, *start))));
        kernel = gathered.moved(&kernel);
        if class.made {
            let outside = parts.iter().zip(&starts).filter(|((_, t), _)| values.contains(t));
            let copies =
                outside.map(|((len, t), start)| taken((packed, *start), *t, *len, class.dtype, &kernel));
            gathered.after.extend(copies);
        } else {
            gathered.before.push(filled(packed, &parts, &starts, class.dtype, &kernel));
        }
    }
    for k in kernels {
        *k = gathered.moved(k);
    }
    Some(gathered)
}

impl Gathered {
    /// The kernel with its accesses to packed tensors redirected.
    fn moved(&self, k: &Kernel) -> Kernel {
        k.moved(&|t, offset| match self.places.get(&t) {
            Some((packed, start)) => (*packed, offset + &Poly::constant(*start)),
            None => (t, offset.clone()),
        })
    }
}

/// A kernel that copies tensors into parts of one tensor, which begin at `starts`.
fn filled(to: TensorId, parts: &[(i64, TensorId)], starts: &[i64], dtype: DType, reader: &Kernel) -> Kernel {
    let mut body = Body::default();
    let place = Poly::var(0);
    let elements = parts.last().zip(starts.last()).map_or(0, |((len, _), start)| start + len);
    let mut result: Option<ExprId> = None;
    for (i, ((len, tensor), start)) in parts.iter().zip(starts).enumerate().rev() {
        let mut compare = |op, with: i64| {
            let a = body.push(Expr::Index(place.clone()), DType::I32);
            let b = body.push(Expr::Const(Scalar::from_i64(DType::I32, with)), DType::I32);
            body.push(Expr::Binary(op, a, b), DType::Bool)
        };
        let next = starts.get(i + 1);
        let mine = next.map(|next| compare(BinaryOp::Lt, *next));
        let below = next.map(|next| if *next == start + len { None } else { Some(start + len) });
        let below = below.and_then(|end| end.map_or(mine, |end| Some(compare(BinaryOp::Lt, end))));
        let above = (i > 0).then(|| compare(BinaryOp::Ge, *start));
        let guard = match (above, below) {
            (Some(a), Some(b)) => Some(body.push(Expr::Binary(BinaryOp::And, a, b), DType::Bool)),
            (a, b) => a.or(b),
        };
        let offset = &place - &Poly::constant(*start);
        let e = body.push(Expr::Load { tensor: *tensor, offset, guard }, dtype);
        result = Some(match (result, mine) {
            (Some(r), Some(c)) => body.push(Expr::Select(c, e, r), dtype),
            _ => e,
        });
    }
    let value = result.unwrap_or_default();
    let stores = vec![Store { tensor: to, offset: place, value, guard: None, combine: None }];
    let family = Family::Map(Map { elements: Dim::from(elements) });
    Kernel { family, body, stores, nodes: reader.nodes.clone() }
}

/// A kernel that copies a part of a tensor into a tensor of its own.
fn taken((from, start): (TensorId, i64), to: TensorId, len: i64, dtype: DType, writer: &Kernel) -> Kernel {
    let mut body = Body::default();
    let offset = &Poly::var(0) + &Poly::constant(start);
    let value = body.push(Expr::Load { tensor: from, offset, guard: None }, dtype);
    let stores = vec![Store { tensor: to, offset: Poly::var(0), value, guard: None, combine: None }];
    let family = Family::Map(Map { elements: Dim::from(len) });
    Kernel { family, body, stores, nodes: writer.nodes.clone() }
}
