//! The preparation of loops before kernels are built: one canonical form, with as much as possible moved out of the body.
//!
//! - A `loop` whose condition may end it early becomes a `scan` that also carries whether the loop still runs; once it has ended, further
//!   steps leave all values unchanged.
//! - Constants of a body become captured inputs.
//! - A view at the end of a stacked result is applied to the whole stacked result instead.

use crate::fuse::loops::lanes;
use crate::fuse::loops::rounds::{ENDLESS, MOST_STEPS};
use crate::options::Options;
use wgfc_ir::build::Builder;
use wgfc_ir::{
    BinaryOp, Border, DType, Dim, Graph, Node, NodeId, Op, Poly, ReduceOp, Scalar, ScalarNode, Tensor, Value,
};

/// Why a loop has no kernels.
pub(crate) struct Refused {
    pub node: NodeId,
    pub why: String,
}

/// Brings the loops of a graph into the form that kernels are built from. `nested` says that the graph is itself the step of a loop.
pub(crate) fn prepare(graph: &mut Graph, options: &Options, nested: bool) -> Result<(), Refused> {
    for n in graph.node_ids() {
        let Op::Scan { carried, .. } = graph.node(n).op else { continue };
        let length = graph.node(n).inputs.get(carried).and_then(|v| graph.ty(*v).shape.first());
        if let Some(steps) = length.and_then(Dim::as_const).filter(|s| *s > MOST_STEPS) {
            let why = format!("it has {steps} iterations; at most {MOST_STEPS} are supported");
            return Err(Refused { node: n, why });
        }
    }
    let loops: Vec<NodeId> =
        graph.node_ids().filter(|n| matches!(graph.node(*n).op, Op::While { .. })).collect();
    for n in loops {
        while_to_scan(graph, n, options, nested).map_err(|why| Refused { node: n, why })?;
    }
    let scans: Vec<NodeId> =
        graph.node_ids().filter(|n| matches!(graph.node(*n).op, Op::Scan { .. })).collect();
    for n in scans {
        let refused = |why| Refused { node: n, why };
        let n = lift_constants(graph, n).map_err(refused)?;
        lift_views(graph, n, options).map_err(refused)?;
    }
    graph.remove_dead();
    Ok(())
}

/// Replaces loop `n` by `outputs`, one for each of its results.
pub(in crate::fuse) fn replace(graph: &mut Graph, n: NodeId, outputs: &[Value]) {
    let names = graph.node(n).names.clone();
    for (port, v) in outputs.iter().enumerate() {
        let name = names.get(port).cloned().flatten();
        if let (Some(slot), Some(name)) = (graph.node_mut(v.node).names.get_mut(v.port as usize), name) {
            slot.get_or_insert(name);
        }
        graph.replace_uses(Value { node: n, port: port as u32 }, *v);
    }
}

fn results(graph: &Graph, n: NodeId) -> Vec<Value> {
    (0..graph.node(n).outputs.len() as u32).map(|port| Value { node: n, port }).collect()
}

/// Converts a loop with a condition to a scan over its trip count.
fn while_to_scan(graph: &mut Graph, n: NodeId, options: &Options, nested: bool) -> Result<(), String> {
    let node = graph.node(n).clone();
    let Op::While { body, carried } = &node.op else { return Err("not a while".into()) };
    let carried = *carried;
    let trips = match &graph.node(node.inputs[0].node).op {
        Op::Const(t) => t.to_i64s().and_then(|v| v.first().copied()),
        _ => None,
    };
    if body.outputs.len() > 1 + carried {
        return Err("the number of its stacked results is known only after it has run".into());
    }
    let endless = Dim::from(ENDLESS);
    let length = match trips {
        Some(trips) if trips <= MOST_STEPS => Dim::from(trips.max(0)),
        _ => endless.clone(),
    };
    let start = node.inputs[1];
    let always = |g: &Graph, v: Value| matches!(&g.node(v.node).op, Op::Const(t) if t.scalars().is_some_and(|s| s[0].bits != 0));
    if length == endless && trips.is_some() && always(graph, start) && always(body, body.outputs[0].value) {
        return Err("neither a trip count nor a condition ends it".into());
    }
    let op = |body: Graph, carried: usize| Op::Scan {
        body: Box::new(body),
        carried,
        scanned: 1,
        reverse_inputs: vec![false],
        reverse_outputs: vec![],
    };

    // Drops the condition if nothing changes in any lane once it is false. The number of steps is then the trip count as a computed size,
    // unless that is known only within a step of an outer loop.
    if always(graph, start) && (trips.is_some() || !nested) {
        let mut plain = body.as_ref().clone();
        let yes = Builder { graph: &mut plain, origin: node.origin.clone() }
            .constant(Tensor::scalar(Scalar::bool(true)));
        plain.replace_uses(plain.inputs[1].value, yes);
        let condition = plain.outputs.remove(0).value;
        let flag = any_of(&plain, condition);
        plain.inputs.remove(1);
        // The iteration number comes after the carried values.
        plain.inputs[..=carried].rotate_left(1);
        plain.remove_dead();
        if let Some(flag) = flag.and_then(|v| plain.outputs[..carried].iter().position(|o| o.value == v)) {
            let before = graph.computed.len();
            let length = match trips {
                Some(_) => length.clone(),
                None => computed_trips(graph, &node)?,
            };
            let numbers = numbers(graph, &node, length)?;
            let mut inputs = node.inputs[2..2 + carried].to_vec();
            inputs.push(numbers);
            inputs.extend(&node.inputs[2 + carried..]);
            let new = graph.push(op(plain, carried), &inputs, &node.origin)?;
            if lanes::map(graph, new, options).is_ok_and(|p| p.stops_with(graph, new) == Some(flag)) {
                let outputs = results(graph, new);
                replace(graph, n, &outputs);
                return Ok(());
            }
            graph.computed.truncate(before);
        }
    }

    let mut g = body.as_ref().clone();
    let go = g.inputs[1].value;
    let outputs: Vec<Value> = g.outputs.iter().map(|o| o.value).collect();
    let (mut condition, mut first, mut captured) = (outputs[0], start, node.inputs[2 + carried..].to_vec());
    if trips.is_none() {
        // Without a constant trip count, the count is part of the condition.
        let count = node.inputs[0];
        let inside = g.add_input("trips", graph.ty(count).clone());
        captured.push(count);
        let number = g.inputs[0].value;
        let mut b = Builder { graph: &mut g, origin: node.origin.clone() };
        let one = b.int(DType::I64, 1);
        let next = b.binary(BinaryOp::Add, number, one)?;
        let inside = b.reshape(inside, vec![])?;
        let more = b.binary(BinaryOp::Lt, next, inside)?;
        condition = b.binary(BinaryOp::And, condition, more)?;
        let mut b = Builder { graph: &mut *graph, origin: node.origin.clone() };
        let none = b.int(DType::I64, 0);
        let count = b.reshape(count, vec![])?;
        let any = b.binary(BinaryOp::Lt, none, count)?;
        first = b.binary(BinaryOp::And, first, any)?;
    }
    let mut b = Builder { graph: &mut g, origin: node.origin.clone() };
    let mut after = vec![b.binary(BinaryOp::And, go, condition)?];
    for i in 0..carried {
        let before = b.graph.inputs[2 + i].value;
        after.push(b.select(go, outputs[1 + i], before)?);
    }
    for (o, v) in g.outputs.iter_mut().zip(after) {
        o.value = v;
    }
    g.inputs[..2 + carried].rotate_left(1);
    let numbers = numbers(graph, &node, length)?;
    let carries = &node.inputs[2..2 + carried];
    let inputs = [&[first], carries, &[numbers], &captured].concat();
    let new = graph.push(op(g, carried + 1), &inputs, &node.origin)?;
    let outputs = results(graph, new);
    replace(graph, n, &outputs[1..]);
    Ok(())
}

/// The iteration numbers of a loop with `length` iterations.
fn numbers(graph: &mut Graph, node: &Node, length: Dim) -> Result<Value, String> {
    Builder { graph, origin: node.origin.clone() }.iota(&[length], Poly::var(0), DType::I64)
}

/// The trip count of a loop as a computed size.
fn computed_trips(graph: &mut Graph, node: &Node) -> Result<Dim, String> {
    let mut b = Builder { graph, origin: node.origin.clone() };
    let (least, most) = (b.int(DType::I64, 0), b.int(DType::I64, ENDLESS));
    let count = b.binary(BinaryOp::Min, node.inputs[0], most)?;
    let count = b.binary(BinaryOp::Max, count, least)?;
    Ok(b.computed("trips", count, Dim::from(ENDLESS)))
}

/// The bool tensor of which `v` tells whether any element is true.
fn any_of(graph: &Graph, mut v: Value) -> Option<Value> {
    let mut reduced = false;
    loop {
        let node = graph.node(v.node);
        let from = *node.inputs.first()?;
        match &node.op {
            Op::Reduce { op: ReduceOp::Max, axes } => {
                reduced |= !axes.is_empty();
                let ty = graph.ty(from);
                if (0..ty.rank()).any(|d| !axes.contains(&d) && !ty.shape[d].is(1)) {
                    return None;
                }
            }
            Op::View { shape, fill: None, .. } if shape.iter().all(|d| d.is(1)) => {
                if !graph.ty(from).numel().is(1) {
                    return None;
                }
            }
            Op::Map { body, .. } if node.inputs.len() == 1 => match &body.nodes[..] {
                [ScalarNode::Arg(0), ScalarNode::Cast(..)] => {}
                _ => return None,
            },
            _ => return None,
        }
        v = from;
        if reduced && graph.ty(v).dtype == DType::Bool {
            return Some(v);
        }
    }
}

/// Turns a body's constants of more than one element into captured inputs. Returns the new loop.
fn lift_constants(graph: &mut Graph, n: NodeId) -> Result<NodeId, String> {
    let node = graph.node(n).clone();
    let Op::Scan { body, .. } = &node.op else { return Ok(n) };
    let mut body = body.as_ref().clone();
    let mut inputs = node.inputs.clone();
    let constants: Vec<(NodeId, std::sync::Arc<Tensor>)> = body
        .node_ids()
        .filter_map(|c| match &body.node(c).op {
            Op::Const(t) if t.numel() > 1 => Some((c, t.clone())),
            _ => None,
        })
        .collect();
    if constants.is_empty() {
        return Ok(n);
    }
    for (c, t) in constants {
        let ty = body.ty(c.into()).clone();
        let inside = body.add_input(&format!("constant {}", c.index()), ty);
        body.replace_uses(c.into(), inside);
        let names = body.node(c).names.clone();
        let outside = graph.push(Op::Const(t), &[], &body.node(c).origin)?;
        graph.node_mut(outside).names = names;
        inputs.push(outside.into());
    }
    body.remove_dead();
    let mut op = node.op.clone();
    if let Op::Scan { body: b, .. } = &mut op {
        **b = body;
    }
    let new = graph.push(op, &inputs, &node.origin)?;
    let outputs = results(graph, new);
    replace(graph, n, &outputs);
    Ok(new)
}

/// Moves views at the end of stacked results out of the loop.
fn lift_views(graph: &mut Graph, n: NodeId, options: &Options) -> Result<(), String> {
    let node = graph.node(n).clone();
    let Op::Scan { body, carried, .. } = &node.op else { return Ok(()) };
    let mut body = body.as_ref().clone();
    let mut views: Vec<(usize, Op)> = vec![];
    for i in *carried..body.outputs.len() {
        let view = body.node(body.outputs[i].value.node).clone();
        let Op::View { shape, index, fill } = &view.op else { continue };
        let from = view.inputs[0];
        let size = |shape: &[Dim]| options.expect.estimate(&shape.iter().product());
        if size(&body.ty(from).shape) > size(shape) || matches!(body.node(from.node).op, Op::Input) {
            continue;
        }
        body.outputs[i] = Border { name: body.outputs[i].name.clone(), value: from };
        let stacked = graph.ty(Value { node: n, port: i as u32 }).shape.clone();
        let later: Vec<Poly> = (1..stacked.len()).map(Poly::var).collect();
        let index = std::iter::once(Poly::var(0))
            .chain(index.iter().map(|p| p.subst_vars(&later, &stacked)))
            .collect();
        views.push((i, Op::View { shape: stacked, index, fill: *fill }));
    }
    if views.is_empty() {
        return Ok(());
    }
    body.remove_dead();
    let mut op = node.op.clone();
    if let Op::Scan { body: b, .. } = &mut op {
        **b = body;
    }
    let new = graph.push(op, &node.inputs, &node.origin)?;
    let mut outputs = results(graph, new);
    for (i, view) in views {
        outputs[i] = graph.push(view, &[outputs[i]], &node.origin)?.into();
    }
    replace(graph, n, &outputs);
    lift_views(graph, new, options)
}
