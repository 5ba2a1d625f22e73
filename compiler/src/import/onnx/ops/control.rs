//! `If`, `Loop`, `Scan`.

use super::counters::iterations;
use crate::import::onnx::GraphProto;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use crate::import::onnx::subgraph::draws;
use crate::import::onnx::{Cx, Param};
use wgfc_ir::{Border, Builder, DType, Dim, Graph, Op, Poly, Scalar, Tensor, TensorType, Value};

/// How many iterations a loop whose carried shapes change is unrolled.
const MAX_UNROLLED: i64 = 256;

fn types(g: &Graph) -> Vec<TensorType> {
    g.outputs.iter().map(|o| g.ty(o.value).clone()).collect()
}

fn variable(ty: TensorType) -> Param {
    Param { ty, known: None, iteration: false, hidden: false }
}

/// Adds the node; its outputs in order.
fn push_all(cx: &mut Cx, op: Op, inputs: &[Value]) -> Lowered {
    let origin = cx.origin.clone();
    let node = cx.graph.push(op, inputs, &origin)?;
    Ok((0..cx.graph.node(node).outputs.len()).map(|port| Value { node, port: port as u32 }).collect())
}

fn scalar_bool(cx: &mut Cx, i: usize) -> Result<Value, OpError> {
    let v = cx.input(i)?;
    if cx.dtype(v) != DType::Bool {
        return Err(cx.at_input(i, OpError::model(format!("the condition is {}", cx.ty(v)))));
    }
    Ok(cx.reshape(v, vec![])?)
}

/// A condition known while compiling selects its branch; otherwise both become subgraphs.
fn if_(cx: &mut Cx) -> Lowered {
    let condition = scalar_bool(cx, 0)?;
    let (then_branch, else_branch) = (cx.graph_attr("then_branch")?, cx.graph_attr("else_branch")?);
    if let Some([c]) = cx.dims(condition).as_deref() {
        return cx.inline_graph(if c.is(0) { else_branch } else { then_branch }, &[]);
    }
    let before = cx.error_mark();
    both(cx, condition, then_branch, else_branch).map_err(|e| {
        if cx.is_stopped() {
            return e;
        }
        let Some(open) = cx.open_dimensions(condition) else {
            let behind = cx.inputs_behind(condition).join(", ");
            if behind.is_empty() {
                return e;
            }
            let why = if e.reported { cx.error_since(before) } else { Some(e.message.clone()) };
            let Some(why) = why else { return e };
            cx.forget_errors(before);
            return OpError::unsupported(format!(
                "one of its branches cannot be computed ({why}); which is taken depends on the data of input {behind}"
            ))
            .help("give the input's value when compiling (--fix NAME=VALUE), so that only the branch taken is compiled");
        };
        // An error in the branch that is not taken is none.
        cx.forget_errors(before);
        let open = open.join(", ");
        OpError::unsupported(format!(
            "which branch is taken depends on dimensions that are not known: {open}"
        ))
        .help(
            "fix them with --dim NAME=VALUE, or as in a tensor with --like FILE.npy; `wgfc run` and `wgfc bench` \
             compile for the sizes of the inputs",
        )
    })
}

/// Both branches as subgraphs, of which a run takes one.
fn both(cx: &mut Cx, condition: Value, then_branch: &GraphProto, else_branch: &GraphProto) -> Lowered {
    let mut captures = vec![];
    let then_graph = cx.subgraph(then_branch, &[], &mut captures)?.graph;
    let else_graph = cx.subgraph(else_branch, &[], &mut captures)?.graph;
    // Both branches take the same captured values: the first again with those the second added.
    let then_graph = if then_graph.inputs.len() < captures.len() {
        cx.subgraph(then_branch, &[], &mut captures)?.graph
    } else {
        then_graph
    };
    if types(&then_graph) != types(&else_graph) {
        return Err(OpError::unsupported("branches whose outputs have different types or shapes")
            .help("make the condition a constant, or give both branches the same shapes"));
    }
    let mut inputs = vec![condition];
    inputs.extend(captures.iter().map(|c| c.1));
    push_all(cx, Op::If { then_branch: Box::new(then_graph), else_branch: Box::new(else_graph) }, &inputs)
}

/// Where carried values keep their types; what changes, otherwise.
fn invariant(carried: &[TensorType], after: &[TensorType]) -> Result<(), String> {
    if after.len() < carried.len() {
        return Err(format!("its body returns {} values for {} carried ones", after.len(), carried.len()));
    }
    match carried.iter().zip(after).find(|(a, b)| a != b) {
        Some((a, b)) => Err(format!("a carried value of type {a} comes back as {b}")),
        None => Ok(()),
    }
}

fn changing(what: String) -> OpError {
    OpError::unsupported(what)
        .help("carried values must keep their shape, or the number of iterations be a small constant")
}

/// A loop that always runs to its trip count is a scan over the iteration numbers; one whose carried
/// shapes change is unrolled; any other becomes `Op::Loop`.
fn loop_(cx: &mut Cx) -> Lowered {
    let body = cx.graph_attr("body")?;
    let initial: Vec<Value> = (2..cx.input_count()).map(|i| cx.input(i)).collect::<Result<_, _>>()?;
    let carried: Vec<TensorType> = initial.iter().map(|v| cx.ty(*v).clone()).collect();
    let n = carried.len();
    if body.output.len() <= n {
        return Err(OpError::model(format!(
            "its body returns {} values, and carries {n}",
            body.output.len()
        )));
    }
    let trips = match cx.opt(0) {
        Some(v) => {
            let v = cx.reshape(v, vec![])?;
            Some(cx.cast(v, DType::I64)?)
        }
        None => None,
    };
    let condition = match cx.opt(1) {
        Some(_) => scalar_bool(cx, 1)?,
        None => cx.constant(Tensor::scalar(Scalar::bool(true))),
    };
    let starts = cx.dims(condition).is_some_and(|c| c == [Dim::ONE]);
    let count = trips.and_then(|t| cx.dims(t)).and_then(|d| d.into_iter().next());
    // The body only ever runs while its condition holds.
    let mut params = vec![
        Param { iteration: true, ..variable(TensorType::new(DType::I64, vec![])) },
        Param { known: Some(vec![Dim::ONE]), ..variable(TensorType::new(DType::Bool, vec![])) },
    ];
    params.extend(carried.iter().cloned().map(variable));
    let mut captures = vec![];
    let few = count.as_ref().and_then(|c| c.as_const()).filter(|c| starts && (0..=MAX_UNROLLED).contains(c));
    let before = cx.error_mark();
    let mut sub = match cx.subgraph(body, &params, &mut captures) {
        // Shapes in the body may depend on the number of the iteration.
        Err(e) if e.reported && few.is_some() => {
            cx.forget_errors(before);
            return unroll(cx, few.unwrap_or(0), &initial, "shapes in its body change".into());
        }
        Err(e) => {
            // With these known it could be unrolled.
            wants_known(cx);
            return Err(e);
        }
        Ok(sub) => sub,
    };
    let after = types(&sub.graph);
    let Some((first, rest)) = after.split_first() else { return Err("its body returns no condition".into()) };
    if first.dtype != DType::Bool {
        return Err(OpError::model(format!("its body's condition is {first}")));
    }
    let goes_on = sub.eval.dims(&sub.graph, sub.graph.outputs[0].value).is_some_and(|c| c == [Dim::ONE]);
    if let Err(e) = invariant(&carried, rest) {
        return match few {
            Some(n) => unroll(cx, n, &initial, e),
            None => Err(changing(e)),
        };
    }
    let captured: Vec<Value> = captures.iter().map(|c| c.1).collect();
    let counted = match (starts && goes_on, trips.is_some()) {
        (true, _) => count,
        (false, given) => {
            let counted = iterations(cx, (&sub.graph, &mut sub.eval), condition, &initial, &captured);
            match (given, counted, count) {
                (false, counted, _) => counted,
                (true, Some(a), Some(b)) => Some(a.min_of(&b, &[])),
                (true, ..) => None,
            }
        }
    };
    let mut g = sub.graph;
    if let Some(count) = counted {
        let length = count.max_of(&Dim::ZERO, &[]);
        let numbers = cx.iota(&[length], Poly::var(0), DType::I64)?;
        let condition = g.inputs[1].value;
        let yes = Builder::new(&mut g, "").constant(Tensor::scalar(Scalar::bool(true)));
        g.replace_uses(condition, yes);
        g.outputs.remove(0);
        g.inputs.remove(1);
        // Iteration number behind the carried values.
        g.inputs[..=n].rotate_left(1);
        g.remove_dead();
        let inputs: Vec<Value> = initial.into_iter().chain([numbers]).chain(captured).collect();
        let outputs = g.outputs.len() - n;
        return push_all(
            cx,
            Op::Scan {
                body: Box::new(g),
                carried: n,
                scanned: 1,
                reverse_inputs: vec![false],
                reverse_outputs: vec![false; outputs],
            },
            &inputs,
        );
    }
    if g.outputs.len() > 1 + n {
        // With these known it would have one shape.
        wants_known(cx);
    }
    let out = g.outputs[0].value;
    g.outputs[0].value = Builder::new(&mut g, &cx.origin[0]).reshape(out, vec![])?;
    let trips = trips.unwrap_or_else(|| cx.int_const(DType::I64, i64::MAX));
    let inputs: Vec<Value> = [trips, condition].into_iter().chain(initial).chain(captured).collect();
    push_all(cx, Op::Loop { body: Box::new(g), carried: n }, &inputs)
}

/// Notes that more could be done if trip count and condition were known.
fn wants_known(cx: &mut Cx) {
    for v in [cx.opt(0), cx.opt(1)].into_iter().flatten() {
        cx.depends_on_data_of(v);
    }
}

/// The body `count` times in place; `why` it is not a loop.
fn unroll(cx: &mut Cx, count: i64, initial: &[Value], why: String) -> Lowered {
    let body = cx.graph_attr("body")?;
    let mut carried = initial.to_vec();
    let n = initial.len();
    let mut slices: Vec<Vec<Value>> = vec![vec![]; body.output.len().saturating_sub(1 + n)];
    for i in 0..count {
        let mut inputs = vec![cx.int_const(DType::I64, i), cx.constant(Tensor::scalar(Scalar::bool(true)))];
        inputs.extend(&carried);
        let out = cx.inline_graph(body, &inputs)?;
        if cx.is_stopped() {
            return Err(OpError::reported());
        }
        for (s, v) in slices.iter_mut().zip(&out[1 + n..]) {
            s.push(cx.unsqueeze(*v, &[0])?);
        }
        carried = out[1..=n].to_vec();
        match cx.dims(out[0]).as_deref() {
            Some([c]) if c.is(1) => {}
            Some([_]) => break,
            _ => return Err(changing(why)),
        }
    }
    for s in slices {
        if s.is_empty() {
            return Err(OpError::unsupported("a loop that does not run and stacks results"));
        }
        carried.push(cx.concat(&s, 0)?);
    }
    Ok(carried)
}

/// Scanned axes are brought to the front before, results to their axis after.
fn scan(cx: &mut Cx) -> Lowered {
    let body = cx.graph_attr("body")?;
    let scanned = usize::try_from(cx.int_req("num_scan_inputs")?).unwrap_or(usize::MAX);
    let all = cx.inputs()?;
    let Some(n) = all.len().checked_sub(scanned).filter(|_| scanned > 0) else {
        return Err(
            OpError::model(format!("scans {scanned} of {} inputs", all.len())).attribute("num_scan_inputs")
        );
    };
    let outputs = body.output.len().checked_sub(n).ok_or("its body returns less than it carries")?;
    let list = |name: &str, len: usize| -> Result<Vec<i64>, OpError> {
        let v = cx.ints(name)?.unwrap_or_else(|| vec![0; len]);
        let e = || OpError::model(format!("{} values for {len}", v.len())).attribute(name);
        if v.len() == len { Ok(v) } else { Err(e()) }
    };
    let (in_axes, in_ways) = (list("scan_input_axes", scanned)?, list("scan_input_directions", scanned)?);
    let (out_axes, out_ways) = (list("scan_output_axes", outputs)?, list("scan_output_directions", outputs)?);
    let mut inputs = all[..n].to_vec();
    let mut params: Vec<Param> = inputs.iter().map(|v| variable(cx.ty(*v).clone())).collect();
    let mut length: Option<Dim> = None;
    for (x, axis) in all[n..].iter().zip(&in_axes) {
        let axis = cx.axis(*axis, cx.rank(*x))?;
        let mut order: Vec<usize> = (0..cx.rank(*x)).filter(|d| *d != axis).collect();
        order.insert(0, axis);
        let x = cx.transpose(*x, &order)?;
        let mut shape = cx.shape(x);
        let mine = shape.remove(0);
        match &length {
            None => length = Some(mine),
            Some(l) if *l != mine => {
                if l.as_const().is_some() && mine.as_const().is_some() {
                    return Err(OpError::model(format!("scanned inputs have lengths {l} and {mine}")));
                }
                let l = l.clone();
                cx.require_equal(&l, &mine);
            }
            Some(_) => {}
        }
        params.push(variable(TensorType::new(cx.dtype(x), shape)));
        inputs.push(x);
    }
    let mut all_scanned = scanned;
    if let Some(length) = length.filter(|_| draws(body)) {
        inputs.push(cx.iota(&[length], Poly::var(0), DType::I64)?);
        let number = variable(TensorType::new(DType::I64, vec![]));
        params.push(Param { iteration: true, hidden: true, ..number });
        all_scanned += 1;
    }
    let mut captures = vec![];
    let g = cx.subgraph(body, &params, &mut captures)?.graph;
    let carried: Vec<TensorType> = params[..n].iter().map(|p| p.ty.clone()).collect();
    invariant(&carried, &types(&g)).map_err(changing)?;
    inputs.extend(captures.iter().map(|c| c.1));
    let reversed = |v: Vec<i64>| v.into_iter().map(|d| d == 1).collect::<Vec<bool>>();
    let hidden = (scanned < all_scanned).then_some(false);
    let op = Op::Scan {
        body: Box::new(g),
        carried: n,
        scanned: all_scanned,
        reverse_inputs: reversed(in_ways).into_iter().chain(hidden).collect(),
        reverse_outputs: reversed(out_ways),
    };
    let mut out = push_all(cx, op, &inputs)?;
    for (v, axis) in out[n..].iter_mut().zip(&out_axes) {
        let rank = cx.rank(*v);
        let axis = crate::lower::axis(*axis, rank)
            .map_err(|_| OpError::model(format!("axis {axis}")).attribute("scan_output_axes"))?;
        let mut order: Vec<usize> = (1..rank).collect();
        order.insert(axis, 0);
        *v = cx.transpose(*v, &order)?;
    }
    Ok(out)
}

/// `Scan` of opset 8: every operand has a batch axis in front, each element of which is a sequence of its own.
fn batched_scan(cx: &mut Cx) -> Lowered {
    let body = cx.graph_attr("body")?;
    let scanned = usize::try_from(cx.int_req("num_scan_inputs")?).unwrap_or(usize::MAX);
    if cx.opt(0).is_some() {
        return Err(cx.at_input(0, OpError::unsupported("sequences of different lengths")));
    }
    if draws(body) {
        return Err(OpError::unsupported("random numbers in the body of a scan before opset 9"));
    }
    let inputs: Vec<Value> = (1..cx.input_count()).map(|i| cx.input(i)).collect::<Result<_, _>>()?;
    let Some(n) = inputs.len().checked_sub(scanned).filter(|_| scanned > 0) else {
        let e = format!("scans {scanned} of {} inputs", inputs.len());
        return Err(OpError::model(e).attribute("num_scan_inputs"));
    };
    let outputs = body.output.len().checked_sub(n).ok_or("its body returns less than it carries")?;
    let ways = cx.ints("directions")?.unwrap_or_else(|| vec![0; scanned]);
    if ways.len() != scanned {
        let e = format!("{} values for {scanned}", ways.len());
        return Err(OpError::model(e).attribute("directions"));
    }
    // One element of the batch: what the scan over its sequence gets.
    let mut outer = Graph::new();
    let (mut given, mut params) = (vec![], vec![]);
    let (mut batch, mut length): (Option<Dim>, Option<Dim>) = (None, None);
    for (i, x) in inputs.iter().enumerate() {
        let least = if i < n { 1 } else { 2 };
        let mut shape = cx.shape(*x);
        if shape.len() < least {
            return Err(cx.at_input(i + 1, OpError::model("it needs axes for the batch and the sequence")));
        }
        let same = |cx: &mut Cx, known: &mut Option<Dim>, d: Dim| match known {
            Some(k) if *k != d => cx.require_equal(&k.clone(), &d),
            _ => *known = Some(d),
        };
        same(cx, &mut batch, shape.remove(0));
        let dtype = cx.dtype(*x);
        given.push(outer.add_input(&format!("element {i}"), TensorType::new(dtype, shape.clone())));
        if i >= n {
            same(cx, &mut length, shape.remove(0));
        }
        params.push(variable(TensorType::new(dtype, shape)));
    }
    let mut captures = vec![];
    let g = cx.subgraph(body, &params, &mut captures)?.graph;
    let carried: Vec<TensorType> = params[..n].iter().map(|p| p.ty.clone()).collect();
    invariant(&carried, &types(&g)).map_err(changing)?;
    for (i, (_, v)) in captures.iter().enumerate() {
        given.push(outer.add_input(&format!("captured {i}"), cx.ty(*v).clone()));
    }
    let inner = Op::Scan {
        body: Box::new(g),
        carried: n,
        scanned,
        reverse_inputs: ways.into_iter().map(|d| d == 1).collect(),
        reverse_outputs: vec![false; outputs],
    };
    let node = outer.push(inner, &given, &cx.origin)?;
    for (port, o) in body.output.iter().enumerate() {
        let value = Value { node, port: port as u32 };
        outer.outputs.push(Border { name: o.name.as_str().into(), value });
    }
    let op = Op::Scan {
        body: Box::new(outer),
        carried: 0,
        scanned: inputs.len(),
        reverse_inputs: vec![false; inputs.len()],
        reverse_outputs: vec![false; body.output.len()],
    };
    let all: Vec<Value> = inputs.into_iter().chain(captures.into_iter().map(|c| c.1)).collect();
    push_all(cx, op, &all)
}

/// Control flow.
pub const OPS: &[OpDef] = &[
    OpDef::new("If", &[1, 11, 13, 16, 19, 21, 23, 24, 25], if_).cases(&["test_if"]).notes(
        "both branches give the same shapes, and are computed, unless the condition is known; no sizes computed in \
         a branch; no sequences, no optionals",
    ),
    OpDef::new("Loop", &[1, 11, 13, 16, 19, 21, 23, 24, 25], loop_)
        .cases(&["test_loop", "test_range_"])
        .notes(
            "carried shapes change only in loops of a known number of iterations, at most 256; results are stacked \
             where the condition does not end the loop, or only counts, and the trip count is a dimension or known; at most 2^30 \
             iterations, an error beyond (2^24 on the CPU); no sizes computed in the body; no sequences, no optionals",
        ),
    OpDef::new("Scan", &[8, 9, 11, 16, 19, 21, 23, 24, 25], |cx| match cx.since {
        8 => batched_scan(cx),
        _ => scan(cx),
    })
        .cases(&["test_scan9", "test_scan_"])
        .notes("carried values keep their shape; no sizes computed in the body"),
];
