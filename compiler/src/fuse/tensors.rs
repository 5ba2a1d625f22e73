//! The memory that kernels read and write.

use crate::fuse::pulling;
use crate::kernel::{KernelTensor, TensorId, TensorKind};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use wgfc_ir::{Dim, Graph, Op, TensorType, Value};

/// The tensors made so far and which values they hold.
pub(crate) struct Tensors<'a> {
    pub(super) graph: &'a Graph,
    pub(super) list: Vec<KernelTensor>,
    pub(super) of: FxHashMap<Value, TensorId>,
    pub(super) cut: FxHashMap<Value, Vec<(TensorId, i64)>>,
    pub(super) parts: FxHashMap<Value, pulling::Parts>,
    /// What should get memory, as a kernel that computes it grows too large.
    pub(super) wanted: Option<Value>,
    /// Whether one did.
    pub(super) too_large: bool,
    pub(super) max_binding_bytes: usize,
}

impl<'a> Tensors<'a> {
    /// None yet.
    pub(super) fn new(graph: &'a Graph, max_binding_bytes: usize) -> Tensors<'a> {
        Tensors {
            graph,
            list: vec![],
            of: FxHashMap::default(),
            cut: FxHashMap::default(),
            parts: FxHashMap::default(),
            wanted: None,
            too_large: false,
            max_binding_bytes,
        }
    }

    pub(super) fn add(&mut self, v: Option<Value>, ty: TensorType, kind: TensorKind) -> TensorId {
        let id = self.list.len();
        let name = v.and_then(|v| self.graph.node(v.node).names.get(v.port as usize).cloned().flatten());
        self.list.push(KernelTensor { ty, kind, name });
        if let Some(v) = v {
            self.of.insert(v, id);
        }
        id
    }

    /// Memory for attention in parts.
    pub(super) fn add_parts(&mut self, v: Value, count: u32) {
        let shape = &self.graph.ty(v).shape;
        let count_dim = Dim::from(i64::from(count));
        let mut sums = shape.clone();
        sums.push(count_dim.clone());
        let mut scales: Vec<Dim> = shape[..shape.len().saturating_sub(1)].to_vec();
        scales.extend([count_dim, Dim::from(2i64)]);
        let f = wgfc_ir::DType::F32;
        let sums = self.add(None, TensorType::new(f, sums), TensorKind::Intermediate);
        let scales = self.add(None, TensorType::new(f, scales), TensorKind::Intermediate);
        self.parts.insert(v, pulling::Parts { count, sums, scales });
    }
}

impl pulling::Memory for Tensors<'_> {
    fn tensor(&mut self, v: Value) -> Option<TensorId> {
        if let Some(t) = self.of.get(&v) {
            return Some(*t);
        }
        let node = self.graph.node(v.node);
        match &node.op {
            Op::Const(t) => Some(self.add(Some(v), node.outputs[0].clone(), TensorKind::Const(t.clone()))),
            _ => None,
        }
    }

    fn too_large(&mut self, path: &[Value]) {
        let alone = |v: &&Value| {
            matches!(
                self.graph.node(v.node).op,
                Op::Map { .. } | Op::View { .. } | Op::Gather { .. } | Op::Concat { .. }
            )
        };
        self.too_large = true;
        let (first, last) = path.split_at(path.len() / 2);
        self.wanted = last.iter().find(alone).or(first.iter().rev().find(alone)).copied();
    }

    fn parts(&mut self, v: Value) -> Option<pulling::Parts> {
        self.parts.get(&v).copied()
    }

    fn segments(&mut self, v: Value) -> Option<Vec<(TensorId, i64)>> {
        let Op::Const(t) = &self.graph.node(v.node).op else { return None };
        let bits = t.dtype.bits();
        if t.dtype.bytes_for(t.numel()) <= self.max_binding_bytes {
            return None;
        }
        if let Some(s) = self.cut.get(&v) {
            return Some(s.clone());
        }
        let per = (self.max_binding_bytes / 256 * 256 * 8 / bits).max(1);
        let mut out = vec![];
        for start in (0..t.numel()).step_by(per) {
            let len = per.min(t.numel() - start);
            let data = t.flat_slice(start, len);
            let ty = TensorType::new(t.dtype, vec![Dim::from(len)]);
            let id = self.add(None, ty, TensorKind::Const(Arc::new(data)));
            let names = &self.graph.node(v.node).names;
            self.list[id].name = names.first().cloned().flatten();
            out.push((id, (start + len) as i64));
        }
        self.cut.insert(v, out.clone());
        Some(out)
    }
}
