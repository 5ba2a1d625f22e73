//! The tensors that kernels read and write.

use crate::fuse::pulling::{self, Resolver, Source};
use crate::fuse::unit::KeyParts;
use crate::kernel::{Body, ExprId, KernelTensor, TensorId, TensorKind};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use wgfc_ir::{Dim, Graph, Op, Poly, Tensor, TensorType, Value};

/// The tensors made so far and the values they hold.
pub(crate) struct Tensors<'a> {
    pub(super) graph: &'a Graph,
    pub(super) list: Vec<KernelTensor>,
    pub(super) of: FxHashMap<Value, TensorId>,
    pub(super) cut: FxHashMap<Value, Vec<(TensorId, i64)>>,
    pub(super) parts: FxHashMap<Value, pulling::Parts>,
    /// A value that should get memory, since a kernel that computes it grows too large.
    pub(super) wanted: Option<Value>,
    /// Whether a kernel grew too large.
    pub(super) too_large: bool,
    pub(super) max_binding_bytes: usize,
    /// The values whose source was asked for since [`Tensors::take_asked`] was last called.
    asked: Vec<(Value, Source)>,
}

impl<'a> Tensors<'a> {
    /// An empty set of tensors.
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
            asked: vec![],
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

    /// Adds the tensors of attention with split keys.
    pub(super) fn add_parts(&mut self, v: Value, parts: KeyParts) {
        let keys =
            self.graph.node(v.node).inputs.get(1).and_then(|k| self.graph.ty(*k).shape.iter().rev().nth(1));
        let (count, len) = (parts.most, parts.count(keys.unwrap_or(&Dim::ONE)));
        let shape = &self.graph.ty(v).shape;
        let count_dim = Dim::from(i64::from(count));
        let mut sums = shape.clone();
        sums.insert(shape.len().saturating_sub(1), count_dim.clone());
        let mut scales: Vec<Dim> = shape[..shape.len().saturating_sub(1)].to_vec();
        scales.extend([count_dim, Dim::from(2i64)]);
        let f = wgfc_ir::DType::F32;
        let sums = self.add(None, TensorType::new(f, sums), TensorKind::Intermediate);
        let scales = self.add(None, TensorType::new(f, scales), TensorKind::Intermediate);
        self.parts.insert(v, pulling::Parts { count, len, sums, scales });
    }
}

impl Tensors<'_> {
    /// The source of a value of the graph.
    pub(super) fn source(&mut self, v: Value) -> Source {
        let source = match (self.parts.get(&v), &self.graph.node(v.node).op) {
            (Some(parts), _) => Source::Parts(parts.clone()),
            (None, Op::Const(t)) if t.dtype.bytes_for(t.numel()) > self.max_binding_bytes => {
                Source::Segments(self.segments(v, t))
            }
            _ => self.tensor(v).map_or(Source::Computed, Source::Tensor),
        };
        self.asked.push((v, source.clone()));
        source
    }

    /// The values whose source was asked for since the last call.
    pub(super) fn take_asked(&mut self) -> Vec<(Value, Source)> {
        std::mem::take(&mut self.asked)
    }

    /// The tensor that holds all of a value, if it is in memory.
    pub(super) fn tensor(&mut self, v: Value) -> Option<TensorId> {
        if let Some(t) = self.of.get(&v) {
            return Some(*t);
        }
        let node = self.graph.node(v.node);
        match &node.op {
            Op::Const(t) => Some(self.add(Some(v), node.outputs[0].clone(), TensorKind::Const(t.clone()))),
            _ => None,
        }
    }

    /// The tensors of a constant that is too large for one binding.
    fn segments(&mut self, v: Value, t: &Tensor) -> Vec<(TensorId, i64)> {
        if let Some(s) = self.cut.get(&v) {
            return s.clone();
        }
        let per = (self.max_binding_bytes / 256 * 256 * 8 / t.dtype.bits()).max(1);
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
        out
    }
}

/// A resolver for a kernel whose operands are in memory.
pub(crate) struct InMemory<'t, 'a> {
    pub(super) tensors: &'t mut Tensors<'a>,
    pub(super) body: Body,
}

impl<'t, 'a> InMemory<'t, 'a> {
    /// A resolver with an empty body.
    pub(super) fn new(tensors: &'t mut Tensors<'a>) -> InMemory<'t, 'a> {
        InMemory { tensors, body: Body::default() }
    }
}

impl Resolver for InMemory<'_, '_> {
    fn body(&self) -> &Body {
        &self.body
    }

    fn body_mut(&mut self) -> &mut Body {
        &mut self.body
    }

    fn resolve(&mut self, v: Value, _: &[Poly], _: Option<ExprId>) -> Result<Source, String> {
        Ok(self.tensors.source(v))
    }

    fn too_large(&mut self, path: &[Value]) {
        let graph = self.tensors.graph;
        let alone = |v: &&Value| {
            matches!(
                graph.node(v.node).op,
                Op::Map { .. } | Op::View { .. } | Op::Gather { .. } | Op::Concat { .. }
            )
        };
        self.tensors.too_large = true;
        let (first, last) = path.split_at(path.len() / 2);
        self.tensors.wanted = last.iter().find(alone).or(first.iter().rev().find(alone)).copied();
    }
}
