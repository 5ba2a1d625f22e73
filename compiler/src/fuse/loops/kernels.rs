//! Builds the kernels of loops from their mappings, with the stores of each step and those after the last.

use crate::fuse::build::{Built, P, acc, finish, follow_up, tensor_of};
use crate::fuse::loops::lanes::{self, Executor, Mapping};
use crate::fuse::loops::stages::{self, Staged};
use crate::fuse::loops::tidy::tidy;
use crate::fuse::points::Point;
use crate::fuse::pulling::{Puller, flat_offset};
use crate::fuse::tensors::{InMemory, Tensors};
use crate::fuse::unit::Unit;
use crate::kernel::{Expr, ExprId, Family, Loop, Part, StagedLoop, Store, TensorId};
use wgfc_ir::{DType, Graph, Poly, Value};

/// A loop whose lanes are independent.
pub(in crate::fuse) fn looped<'a>(
    graph: &'a Graph,
    unit: &Unit,
    mapping: &Mapping,
    carried: usize,
    tensors: &mut Tensors<'a>,
) -> Built {
    let mut to = vec![];
    for port in 0..carried as u32 {
        let v = Value { node: unit.anchor, port };
        to.push(unit.outputs.contains(&v).then(|| tensor_of(tensors, v)).transpose()?);
    }
    let mut p = Puller::new(graph, InMemory::new(tensors), mapping.domain());
    if mapping.executor == Executor::Workgroup {
        let family = workgroup_loop(graph, unit, mapping, None, &to, &mut p)?;
        return finish(graph, unit, p, family, vec![]);
    }
    let (family, results) = lane_loop(graph, unit, mapping, carried, None, &mut p)?;
    let stores = follow_up(graph, unit, &mut p, results)?;
    finish(graph, unit, p, family, stores)
}

/// Values with their points and the expressions at them.
pub(in crate::fuse) type Results = Vec<(Value, Vec<Point>, Vec<ExprId>)>;

/// The family of a loop kernel, and the values that its lanes carry at the end. For one part of a loop, `part` gives the tensors that
/// hold the carried values between dispatches, and the number of the first step.
pub(in crate::fuse) fn lane_loop(
    graph: &Graph,
    unit: &Unit,
    mapping: &Mapping,
    carried: usize,
    part: Option<(&[TensorId], TensorId)>,
    p: &mut P,
) -> Result<(Family, Results), String> {
    let mut steps = mapping.pull(graph, unit.anchor, part.map(|x| x.0), p)?;
    p.unroll = false;
    let (mut results, mut next) = (vec![], 0u32);
    for (v, points) in mapping.points(unit.anchor, carried) {
        let dtype = graph.ty(v).dtype;
        let values: Vec<ExprId> = points.iter().zip(next..).map(|(_, i)| acc(p, i, dtype)).collect();
        next += points.len() as u32;
        results.push((v, points, values));
    }
    // A lane that stores nothing may stop once nothing changes.
    let stores_nothing = (carried..graph.node(unit.anchor).outputs.len())
        .all(|port| !unit.outputs.contains(&Value { node: unit.anchor, port: port as u32 }));
    let flag = if stores_nothing { lanes::alive(p.body(), &steps.carries) } else { None };
    let domain = p.domain.clone();
    let roots: Vec<ExprId> = steps.carries.iter().map(|c| c.next).collect();
    let smaller = tidy(p.body_mut(), &roots, flag, &domain);
    steps.carries.iter_mut().zip(smaller).for_each(|(c, next)| c.next = next);
    for elements in &mut steps.stacked {
        let roots: Vec<ExprId> = elements.iter().map(|e| e.1).collect();
        let smaller = tidy(p.body_mut(), &roots, None, &domain);
        elements.iter_mut().zip(smaller).for_each(|(e, value)| e.1 = value);
    }
    let mut step_stores = vec![];
    for (j, elements) in steps.stacked.iter().enumerate() {
        let v = Value { node: unit.anchor, port: (carried + j) as u32 };
        if !unit.outputs.contains(&v) {
            continue;
        }
        let tensor = tensor_of(p.resolver.tensors, v)?;
        let mut guard = None;
        for (at, d) in mapping.when(carried + j) {
            let first = p.inside(&at, &d);
            guard = p.and(guard, first);
        }
        for (at, value) in elements {
            let offset = flat_offset(&graph.ty(v).shape, at, &p.domain);
            step_stores.push(Store { tensor, offset, value: *value, guard, combine: None });
        }
    }
    let alive = flag.map(|i| acc(p, i as u32, DType::Bool));
    let part = part.zip(mapping.part).map(|((_, number), most)| {
        let load = Expr::Load { tensor: number, offset: Poly::ZERO, guard: None };
        Part { first: p.push(load, DType::I32), most }
    });
    let family = Family::Loop(Loop {
        lanes: mapping.lanes.clone(),
        steps: mapping.steps.clone(),
        part,
        carries: steps.carries,
        alive,
        step_stores,
    });
    Ok((family, results))
}

/// The family of a loop kernel with a workgroup for each lane. `to` gives the tensor that each carried value is written to at the end, if
/// any. For one part of a loop, `part` gives the tensors that hold the carried values between dispatches, and the number of the first
/// step.
pub(in crate::fuse) fn workgroup_loop(
    graph: &Graph,
    unit: &Unit,
    mapping: &Mapping,
    part: Option<(&[TensorId], TensorId)>,
    to: &[Option<TensorId>],
    p: &mut P,
) -> Result<Family, String> {
    let Staged { arrays, first, mut each, stacked, alive } =
        mapping.stage(graph, unit.anchor, part.map(|x| x.0), p)?;
    p.unroll = false;
    let mut last = vec![];
    // The epilogue applies to single elements, unless the loop continues in another dispatch.
    let carried = to.len();
    let mut followed = vec![false; carried];
    if part.is_none() {
        p.over(mapping.inside(1, 1));
        let mut results = vec![];
        for (v, points) in mapping.points(unit.anchor, carried) {
            let shared = Expr::Shared { array: v.port, at: Poly::ZERO, guard: None };
            let value = p.push(shared, graph.ty(v).dtype);
            followed[v.port as usize] = true;
            results.push((v, points, vec![value]));
        }
        for s in follow_up(graph, unit, p, results)? {
            stages::store(&mut last, 1, s);
        }
    }
    let mut writes_steps = false;
    for i in 0..graph.node(unit.anchor).outputs.len() {
        let v = Value { node: unit.anchor, port: i as u32 };
        let shape = &graph.ty(v).shape;
        let (n, at) = mapping.own(i)?;
        p.over(mapping.inside(n, 1));
        let mut guard = None;
        for (at, d) in mapping.when(i) {
            let only = p.inside(&at, &d);
            guard = p.and(guard, only);
        }
        if let Some(to) = to.get(i) {
            let Some(tensor) = to.filter(|_| !followed[i]) else { continue };
            let own = Poly::var(mapping.element());
            let shared = Expr::Shared { array: i as u32, at: own, guard: None };
            let value = p.push(shared, graph.ty(v).dtype);
            let offset = flat_offset(shape, &at, &p.domain);
            stages::store(&mut last, n, Store { tensor, offset, value, guard, combine: None });
        } else if unit.outputs.contains(&v) {
            let (stage, at, value) = &stacked[i - to.len()];
            writes_steps = true;
            let tensor = tensor_of(p.resolver.tensors, v)?;
            let offset = flat_offset(shape, at, &p.domain);
            each[*stage].stores.push(Store { tensor, offset, value: *value, guard, combine: None });
        }
    }
    each.retain(|s| !s.writes.is_empty() || !s.stores.is_empty());
    let part = part.zip(mapping.part).map(|((_, number), most)| {
        let load = Expr::Load { tensor: number, offset: Poly::ZERO, guard: None };
        Part { first: p.push(load, DType::I32), most }
    });
    let alive = if writes_steps { None } else { alive };
    let (lanes, steps) = (mapping.lanes.clone(), mapping.steps.clone());
    let why = mapping.why.clone();
    let meet = None;
    Ok(Family::StagedLoop(StagedLoop { lanes, steps, part, arrays, first, each, last, alive, meet, why }))
}
