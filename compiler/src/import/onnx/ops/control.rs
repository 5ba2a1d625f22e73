//! `If`, `Loop`, `Scan`.

use crate::import::onnx::GraphProto;
use crate::import::onnx::prelude::*;
use crate::lower::control::{self, Along, BatchedScan, Loop, Scan};
use wgfc_ir::{DType, Scalar, Tensor, Value};

/// The maximum number of iterations of a loop that is unrolled.
const MAX_UNROLLED: i64 = 256;

fn values(captures: Vec<(String, Value)>) -> Vec<Value> {
    captures.into_iter().map(|c| c.1).collect()
}

/// A constant condition selects its branch at compile time; otherwise both branches become subgraphs.
fn if_(cx: &mut Cx) -> Lowered {
    let condition = cx.input(0)?;
    let condition = control::condition(cx, condition)?;
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
            return OpError::unsupported(
                format!(
                    "one of its branches cannot be computed ({why}); which is taken depends on the data of input {behind}"
                ),
                "give the input's value when compiling (--fix NAME=VALUE), so that only the branch taken is compiled",
            );
        };
        // An error in a branch that is not taken does not count.
        cx.forget_errors(before);
        let open = open.join(", ");
        OpError::unsupported(
            format!("which branch is taken depends on dimensions that are not known: {open}"),
            "fix them with --dim NAME=VALUE, or as in a tensor with --like FILE.npy; `wgfc run` and `wgfc bench` \
             compile for the sizes of the inputs",
        )
    })
}

/// Imports both branches as subgraphs, one of which each run executes.
fn both(cx: &mut Cx, condition: Value, then_branch: &GraphProto, else_branch: &GraphProto) -> Lowered {
    let mut captures = vec![];
    let then_graph = cx.subgraph(then_branch, &[], &mut captures)?.graph;
    let else_graph = cx.subgraph(else_branch, &[], &mut captures)?.graph;
    // Both branches must have the same captures, so the first is imported again if the second added some.
    let then_graph = if then_graph.inputs.len() < captures.len() {
        cx.subgraph(then_branch, &[], &mut captures)?.graph
    } else {
        then_graph
    };
    control::branch(cx, condition, then_graph, else_graph, &values(captures))
}

/// A loop; it is unrolled if shapes of its carried values change.
fn loop_(cx: &mut Cx) -> Lowered {
    let body = cx.graph_attr("body")?;
    let initial = (2..cx.input_count()).map(|i| cx.input(i)).collect::<Result<Vec<_>>>()?;
    let n = initial.len();
    if body.output.len() <= n {
        let e = format!("its body returns {} values, and carries {n}", body.output.len());
        return Err(OpError::model(e));
    }
    let (trips, held) = (cx.opt(0), cx.opt(1));
    let run = Loop::new(cx, trips, held, &initial)?;
    // If these were constants, the loop could be unrolled, or its results would have fixed shapes.
    let unknown: Vec<Value> = [trips, held].into_iter().flatten().collect();
    let mut captures = vec![];
    let few = run.few(MAX_UNROLLED);
    let before = cx.error_mark();
    let sub = match cx.subgraph(body, &run.params(), &mut captures) {
        // Shapes in the body may depend on the iteration number.
        Err(e) if e.reported && few.is_some() => {
            cx.forget_errors(before);
            return unroll(cx, few.unwrap_or(0), &initial, "shapes in its body change".into());
        }
        Err(e) => {
            unknown.iter().for_each(|v| cx.depends_on_data_of(*v));
            return Err(e);
        }
        Ok(sub) => sub,
    };
    match (run.changes(&sub)?, few) {
        (None, _) => run.lower(cx, sub, &values(captures), &unknown),
        (Some(what), Some(count)) => unroll(cx, count, &initial, what),
        (Some(what), None) => Err(control::changing(what)),
    }
}

/// Lowers the body `count` times in place; `why` is the reason why it cannot be a loop.
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
            _ => return Err(control::changing(why)),
        }
    }
    for s in slices {
        if s.is_empty() {
            return Err(OpError::unsupported(
                "a loop that does not run and stacks results",
                "take the loop out of the model, or let it run once",
            ));
        }
        carried.push(cx.concat(&s, 0)?);
    }
    Ok(carried)
}

/// The number of carried inputs, and the number of scanned ones.
fn carried(cx: &Cx, inputs: usize) -> Result<(usize, usize)> {
    let scanned = usize::try_from(cx.int_req("num_scan_inputs")?).unwrap_or(usize::MAX);
    match inputs.checked_sub(scanned).filter(|_| scanned > 0) {
        Some(carried) => Ok((carried, scanned)),
        None => {
            let e = OpError::model(format!("scans {scanned} of {inputs} inputs"));
            Err(e.attribute("num_scan_inputs"))
        }
    }
}

fn scan(cx: &mut Cx) -> Lowered {
    let body = cx.graph_attr("body")?;
    let all = cx.inputs()?;
    let (n, scanned) = carried(cx, all.len())?;
    let outputs = body.output.len().checked_sub(n).ok_or("its body returns less than it carries")?;
    let list = |name: &str, len: usize| -> Result<Vec<i64>> {
        let v = cx.ints(name)?.unwrap_or_else(|| vec![0; len]);
        let e = || OpError::model(format!("{} values for {len}", v.len())).attribute(name);
        if v.len() == len { Ok(v) } else { Err(e()) }
    };
    let along = |axes: &str, ways: &str, len: usize| -> Result<Vec<Along>> {
        let (axes, ways) = (list(axes, len)?, list(ways, len)?);
        Ok(axes.into_iter().zip(ways).map(|(axis, way)| Along { axis, reverse: way == 1 }).collect())
    };
    let inputs = along("scan_input_axes", "scan_input_directions", scanned)?;
    let stacked = along("scan_output_axes", "scan_output_directions", outputs)?;
    let slices: Vec<(Value, Along)> = all[n..].iter().copied().zip(inputs).collect();
    let numbered = cx.draws(body).any;
    let run = Scan::new(cx, &all[..n], &slices, numbered)?;
    let mut captures = vec![];
    let g = cx.subgraph(body, run.params(), &mut captures)?.graph;
    run.lower(cx, g, &values(captures), &stacked)
}

/// `Scan` of opset 8: every operand has a leading batch axis of independent sequences.
fn batched_scan(cx: &mut Cx) -> Lowered {
    let body = cx.graph_attr("body")?;
    if cx.opt(0).is_some() {
        return Err(cx.at_input(0, OpError::unsupported("sequences of different lengths", "export the model at opset 9 or newer, or with sequences that are padded")));
    }
    if cx.draws(body).any {
        return Err(OpError::unsupported(
            "random numbers in the body of a scan before opset 9",
            "export the model at opset 9 or newer",
        ));
    }
    let inputs = (1..cx.input_count()).map(|i| cx.input(i)).collect::<Result<Vec<_>>>()?;
    let (n, scanned) = carried(cx, inputs.len())?;
    if body.output.len() < n {
        return Err("its body returns less than it carries".into());
    }
    let ways = cx.ints("directions")?.unwrap_or_else(|| vec![0; scanned]);
    if ways.len() != scanned {
        let e = format!("{} values for {scanned}", ways.len());
        return Err(OpError::model(e).attribute("directions"));
    }
    let reverse = ways.into_iter().map(|d| d == 1).collect();
    let run = BatchedScan::new(cx, inputs, n, reverse)?;
    let mut captures = vec![];
    let g = cx.subgraph(body, run.params(), &mut captures)?.graph;
    run.lower(cx, g, &values(captures))
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
