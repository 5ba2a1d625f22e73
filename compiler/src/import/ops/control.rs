//! `If`.

use crate::import::Cx;
use crate::import::op::{Lowered, OpDef, OpError};
use wgfc_ir::{DType, Op, Value};

/// A condition known while compiling selects its branch; otherwise both become subgraphs.
fn if_(cx: &mut Cx) -> Lowered {
    let mut condition = cx.input(0)?;
    if cx.dtype(condition) != DType::Bool {
        return Err(cx.at_input(0, OpError::model(format!("the condition is {}", cx.ty(condition)))));
    }
    let (then_branch, else_branch) = (cx.graph_attr("then_branch")?, cx.graph_attr("else_branch")?);
    if let Some([c]) = cx.dims(condition).as_deref() {
        let taken = if c.is(0) { else_branch } else { then_branch };
        return cx.inline_graph(taken, &[]);
    }
    condition = cx.reshape(condition, vec![])?;
    let mut captures = vec![];
    let then_graph = cx.subgraph(then_branch, &[], &mut captures)?;
    let else_graph = cx.subgraph(else_branch, &[], &mut captures)?;
    // Both branches take the same captured values: the first again with those the second added.
    let known = then_graph.inputs.len();
    let then_graph =
        if known < captures.len() { cx.subgraph(then_branch, &[], &mut captures)? } else { then_graph };
    let types = |g: &wgfc_ir::Graph| g.outputs.iter().map(|o| g.ty(o.value).clone()).collect::<Vec<_>>();
    let (a, b) = (types(&then_graph), types(&else_graph));
    if a != b {
        return Err(OpError::unsupported("branches whose outputs have different types or shapes")
            .help("make the condition a constant, or give both branches the same shapes"));
    }
    let mut inputs: Vec<Value> = vec![condition];
    inputs.extend(captures.iter().map(|c| c.1));
    let op = Op::If { then_branch: Box::new(then_graph), else_branch: Box::new(else_graph) };
    let origin = cx.origin.clone();
    let node = cx.graph.push(op, &inputs, &origin)?;
    Ok((0..a.len()).map(|port| Value { node, port: port as u32 }).collect())
}

/// Control flow.
pub const OPS: &[OpDef] =
    &[OpDef::new("If", &[1, 11, 13, 16, 19, 21, 23, 24, 25], if_).cases(&["test_if"]).notes(
        "both branches must give the same shapes unless the condition is known; no sequences, no optionals",
    )];
