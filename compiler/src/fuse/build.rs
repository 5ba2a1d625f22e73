//! Helpers shared by the builders of all units: stores of the epilogue, copy kernels and fill kernels.

use super::origins;
use crate::fuse::points::{self, Point};
use crate::fuse::pulling::{Puller, Source, broadcast_index, flat_offset, unflatten};
use crate::fuse::tensors::{InMemory, Tensors};
use crate::fuse::unit::Unit;
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, KernelTensor, Map, Store, TensorId};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use wgfc_ir::{DType, Dim, Graph, Op, Poly, Scalar, Value};

pub(super) type P<'a, 't, 'b> = Puller<'a, InMemory<'t, 'b>>;
pub(super) type Built = Result<(Kernel, Vec<(Value, ExprId)>), String>;

/// A kernel that copies a value to a tensor.
pub fn copy_kernel<'a>(
    graph: &'a Graph,
    v: Value,
    to: TensorId,
    tensors: &mut Tensors<'a>,
) -> Result<Kernel, String> {
    let ty = graph.ty(v).clone();
    let elements = ty.numel();
    let mut p = Puller::new(graph, InMemory::new(tensors), vec![elements.clone()]);
    let index = unflatten(&Poly::var(0), &ty.shape, &p.domain);
    let value = p.pull(v, &index, None)?;
    let stores = vec![Store { tensor: to, offset: Poly::var(0), value, guard: None, combine: None }];
    Ok(Kernel {
        family: Family::Map(Map { elements }),
        body: p.resolver.body,
        stores,
        nodes: origins(graph, [v.node].into_iter()),
    })
}

/// A kernel that copies one tensor to another.
pub fn copy_of(from: TensorId, to: TensorId, tensors: &[KernelTensor], nodes: Vec<Arc<str>>) -> Kernel {
    let ty = &tensors[to].ty;
    let mut body = Body::default();
    let value = body.push(Expr::Load { tensor: from, offset: Poly::var(0), guard: None }, ty.dtype);
    let stores = vec![Store { tensor: to, offset: Poly::var(0), value, guard: None, combine: None }];
    Kernel { family: Family::Map(Map { elements: ty.numel() }), body, stores, nodes }
}

/// A kernel that writes one scalar.
pub fn fill_kernel(to: TensorId, s: Scalar, nodes: Vec<Arc<str>>) -> Kernel {
    let mut body = Body::default();
    let value = body.push(Expr::Const(s), s.dtype);
    let stores = vec![Store { tensor: to, offset: Poly::var(0), value, guard: None, combine: None }];
    Kernel { family: Family::Map(Map { elements: Dim::ONE }), body, stores, nodes }
}

pub(super) fn finish(graph: &Graph, unit: &Unit, p: P, family: Family, stores: Vec<Store>) -> Built {
    let inlined = p.inlined();
    let inlined_nodes = inlined.iter().map(|(v, _)| v.node);
    let own = std::iter::once(unit.anchor).chain(unit.members.iter().copied());
    let mut nodes = origins(graph, own.chain(inlined_nodes));
    nodes.dedup();
    Ok((Kernel { family, body: p.resolver.body, stores, nodes }, inlined))
}

/// The tensor that holds a value.
pub(super) fn tensor_of(tensors: &mut Tensors, v: Value) -> Result<TensorId, String> {
    match tensors.source(v) {
        Source::Tensor(t) => Ok(t),
        _ => Err(format!("value {v:?} has no memory")),
    }
}

/// Applies the unit's members to the anchor's results, which are `values` at the positions `at`, and returns the stores of the unit's
/// outputs.
pub(super) fn epilogue(
    graph: &Graph,
    unit: &Unit,
    p: &mut P,
    values: &[ExprId],
    at: &[Vec<Poly>],
) -> Result<Vec<Store>, String> {
    let first = at.iter().map(|at| Point { at: at.clone(), when: vec![], from: vec![] }).collect();
    follow_up(graph, unit, p, vec![(unit.anchor.into(), first, values.to_vec())])
}

/// [`epilogue`] of an anchor with several results, each with its points and their values.
pub(super) fn follow_up(
    graph: &Graph,
    unit: &Unit,
    p: &mut P,
    results: Vec<(Value, Vec<Point>, Vec<ExprId>)>,
) -> Result<Vec<Store>, String> {
    type Here = (Vec<Point>, Vec<ExprId>);
    let mut here: FxHashMap<Value, Here> =
        results.into_iter().map(|(v, points, values)| (v, (points, values))).collect();
    let mut placed: FxHashMap<Value, Vec<Store>> = FxHashMap::default();
    for m in &unit.members {
        let node = graph.node(*m);
        let of = |v: Value| here.get(&v).map(|(points, _)| points.as_slice());
        if let (Op::Place { index, shape }, Some((operand, all))) = (&node.op, points::placed(graph, *m, &of))
        {
            let tensor = tensor_of(p.resolver.tensors, (*m).into())?;
            let (found, values) = here.get(&node.inputs[operand]).ok_or("indices from nowhere")?;
            let mut stores = vec![];
            for ((from, point), at) in all.iter().zip(found).zip(values) {
                let given = |i: usize| (i == operand).then_some(*at);
                let (offset, inside) = p.target(&node.inputs, index, shape, from, &given)?;
                let exists = existence(p, point);
                let value = p.pull(node.inputs[0], from, exists)?;
                let guard = p.and(exists, inside);
                stores.push(Store { tensor, offset, value, guard, combine: None });
            }
            placed.insert(Value::from(*m), stores);
            continue;
        }
        let found = points::follow(graph, *m, &of, &p.domain, true)
            .ok_or_else(|| format!("`{}` does not follow its unit", node.op.name()))?;
        let mut values = vec![];
        for point in &found {
            let exists = existence(p, point);
            let inside = |i: usize| {
                let j = point.from.get(i).copied().flatten()?;
                here.get(&node.inputs[i]).and_then(|(_, values)| values.get(j)).copied()
            };
            values.push(match &node.op {
                Op::Map { body, shape } => {
                    let mut args = vec![];
                    for (i, x) in node.inputs.iter().enumerate() {
                        args.push(match inside(i) {
                            Some(e) => e,
                            None => {
                                let ty = graph.ty(*x);
                                let at = broadcast_index(ty, shape, &point.at);
                                // Without a condition it is computed once for all points.
                                let inside = at.iter().zip(&ty.shape).all(|(i, d)| i.in_range(d, &p.domain));
                                p.pull(*x, &at, if inside { None } else { exists })?
                            }
                        });
                    }
                    p.scalar_fn(body, &args, &point.at)?
                }
                Op::Gather { index, .. } => p.gather(&node.inputs, index, &point.at, exists, &inside)?,
                _ => (0..node.inputs.len()).find_map(inside).ok_or("a point from nowhere")?,
            });
        }
        here.insert(Value::from(*m), (found, values));
    }
    let mut stores = vec![];
    for v in &unit.outputs {
        if let Some(all) = placed.remove(v) {
            stores.extend(all);
            continue;
        }
        // A loop's epilogue does not have the values that the loop stores in every step.
        let Some((found, values)) = here.get(v) else {
            if v.node == unit.anchor {
                continue;
            }
            return Err("an output outside its unit".into());
        };
        let tensor = tensor_of(p.resolver.tensors, *v)?;
        for (point, value) in found.iter().zip(values) {
            let guard = existence(p, point);
            let offset = flat_offset(&graph.ty(*v).shape, &point.at, &p.domain);
            stores.push(Store { tensor, offset, value: *value, guard, combine: None });
        }
    }
    Ok(stores)
}

/// The condition under which a point exists; `None` if it always does.
pub(super) fn existence(p: &mut P, point: &Point) -> Option<ExprId> {
    let mut guard = None;
    for (i, d) in &point.when {
        let inside = p.inside(i, d);
        guard = p.and(guard, inside);
    }
    guard
}

pub(super) fn acc(p: &mut P, i: u32, dtype: DType) -> ExprId {
    p.push(Expr::Acc(i), dtype)
}

/// The identity of max: the least value of a type.
pub fn least(t: DType) -> Scalar {
    match t {
        t if t.is_float() => Scalar::from_f64(t, f64::NEG_INFINITY),
        DType::Bool => Scalar::bool(false),
        t if t.class() == wgfc_ir::Class::Uint => Scalar::from_i64(t, 0),
        t => Scalar::from_i64(t, -1i64 << (t.bits() - 1)),
    }
}

/// The identity of min: the greatest value of a type.
pub fn greatest(t: DType) -> Scalar {
    match t {
        t if t.is_float() => Scalar::from_f64(t, f64::INFINITY),
        DType::Bool => Scalar::bool(true),
        t if t.class() == wgfc_ir::Class::Uint => Scalar { dtype: t, bits: u64::MAX >> (64 - t.bits()) },
        t => Scalar { dtype: t, bits: (1u64 << (t.bits() - 1)) - 1 },
    }
}
