//! Packing a kernel's small constants into one, so that they take one binding.

use crate::fuse::tensors::Tensors;
use crate::kernel::{Kernel, TensorId, TensorKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_ir::{DType, Dim, Poly, Tensor, TensorType};

/// Constants of at most so many elements are small: packing copies them once for each kernel.
const SMALL: usize = 1 << 15;
/// Elements that a constant's place is a multiple of, so that it can be read in vectors.
const ALIGN: usize = 8;

/// Packs the small constants of the type of which there are most; `None` when that frees no binding.
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
