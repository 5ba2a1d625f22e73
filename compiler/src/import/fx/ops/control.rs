//! Higher-order operators with graphs as arguments: branches, loops, scans.

use super::super::messages::{Argument, Graph};
use super::super::prelude::*;
use super::random::draws;
use super::super::walk::tensors;
use crate::lower::control::{self, Along, Loop, Scan};
use wgfc_ir::Poly;

pub const OPS: &[OpDef] = &[
    OpDef::new("higher_order.associative_scan", associative_scan),
    OpDef::new("higher_order.cond", cond),
    OpDef::new("higher_order.map_impl", map),
    OpDef::new("higher_order.scan", scan).notes("carried values keep their shape"),
    OpDef::new("higher_order.while_loop", while_loop).notes("carried values keep their shape"),
    OpDef::new("higher_order.wrap_with_autocast", wrapped),
    OpDef::new("higher_order.wrap_with_set_grad_enabled", wrapped),
];

const FORWARD: Along = Along { axis: 0, reverse: false };

/// Lowers a graph in place. The other arguments, on gradients and precision, have no effect, as the graph states the types of its
/// results.
fn wrapped(cx: &mut Cx) -> Lowered {
    let graph = cx.positional().find_map(|a| cx.inner(a).ok());
    let graph = graph.ok_or_else(|| OpError::model("it has no graph"))?;
    let given: Vec<&str> = cx.positional().flat_map(tensors).collect();
    cx.inline(graph, &given)
}

/// The argument at a position.
fn at<'m>(cx: &Cx<'_, '_, 'm>, i: usize) -> Result<&'m Argument> {
    cx.positional().nth(i).ok_or_else(|| OpError::model(format!("it has no argument {i}")))
}

fn graph<'m>(cx: &Cx<'_, '_, 'm>, i: usize) -> Result<&'m Graph> {
    cx.inner(at(cx, i)?)
}

/// The names of the tensors in an argument; empty if it is left out.
fn names<'m>(cx: &Cx<'_, '_, 'm>, i: usize) -> Vec<&'m str> {
    cx.positional().nth(i).map(tensors).into_iter().flatten().collect()
}

fn values(cx: &mut Cx, names: &[&str]) -> Result<Vec<Value>> {
    names.iter().map(|n| cx.by_name(n)).collect()
}

/// A branch; a constant condition selects one graph at compile time.
fn cond(cx: &mut Cx) -> Lowered {
    let (on, off, operands) = (graph(cx, 1)?, graph(cx, 2)?, names(cx, 3));
    let known = match at(cx, 0)? {
        Argument::Bool(b) => Some(*b),
        Argument::Tensor(_) => None,
        a => {
            return Err(OpError::unsupported(
                format!("its condition is {} that sizes decide", a.kind()),
                "fix the dimensions it depends on when exporting",
            ));
        }
    };
    if let Some(b) = known {
        return cx.inline(if b { on } else { off }, &operands);
    }
    let condition = values(cx, &names(cx, 0))?[0];
    let condition = control::condition(cx, condition)?;
    if let Some([c]) = cx.dims(condition).as_deref() {
        return cx.inline(if c.is(0) { off } else { on }, &operands);
    }
    let captured = values(cx, &operands)?;
    let captured = cx.captured(&[on, off], captured)?;
    let then_branch = cx.body(&[], &captured, |cx, _, inner| cx.nodes_of(on, inner))?;
    let else_branch = cx.body(&[], &captured, |cx, _, inner| cx.nodes_of(off, inner))?;
    control::branch(cx, condition, then_branch.graph, else_branch.graph, &captured)
}

/// The condition is computed before the loop, and at the end of each iteration.
fn while_loop(cx: &mut Cx) -> Lowered {
    let (test, body) = (graph(cx, 0)?, graph(cx, 1)?);
    let (carried, others) = (names(cx, 2), names(cx, 3));
    let all: Vec<&str> = carried.iter().chain(&others).copied().collect();
    let first = cx.inline(test, &all)?;
    let first = *first.first().ok_or_else(|| OpError::model("its condition returns nothing"))?;
    let first = control::condition(cx, first)?;
    let (initial, captured) = (values(cx, &carried)?, values(cx, &others)?);
    let captured = cx.captured(&[test, body], captured)?;
    let run = Loop::new(cx, None, Some(first), &initial)?;
    let n = initial.len();
    let made = cx.body(&run.params(), &captured, |cx, params, captured| {
        // The parameters start with the iteration number and the condition.
        let before = &params[params.len() - n..];
        let after = cx.nodes_of(body, &[before, captured].concat())?;
        let again = cx.nodes_of(test, &[&after, captured].concat())?;
        let again = *again.first().ok_or_else(|| OpError::model("its condition returns nothing"))?;
        let again = control::condition(cx, again)?;
        Ok([vec![again], after].concat())
    })?;
    if let Some(what) = run.changes(&made)? {
        return Err(control::changing(what));
    }
    run.lower(cx, made, &captured, &[])
}

/// A scan along the first axis, with carried values and stacked results.
fn scan(cx: &mut Cx) -> Lowered {
    let combine = graph(cx, 0)?;
    let (initial, over, others) = (names(cx, 1), names(cx, 2), names(cx, 3));
    let (initial, over, captured) = (values(cx, &initial)?, values(cx, &over)?, values(cx, &others)?);
    scanned(cx, combine, &initial, &over, &captured)
}

fn scanned<'m>(cx: &mut Cx<'_, '_, 'm>, combine: &'m Graph, initial: &[Value], over: &[Value], captured: &[Value]) -> Lowered {
    let slices: Vec<(Value, Along)> = over.iter().map(|v| (*v, FORWARD)).collect();
    let run = Scan::new(cx, initial, &slices, draws(combine))?;
    let captured = &cx.captured(&[combine], captured.to_vec())?;
    let made = cx.body(run.params(), captured, |cx, params, captured| {
        cx.nodes_of(combine, &[params, captured].concat())
    })?;
    let stacked = vec![FORWARD; made.graph.outputs.len().saturating_sub(initial.len())];
    run.lower(cx, made.graph, captured, &stacked)
}

/// Applies a function to each slice along the first axis.
fn map(cx: &mut Cx) -> Lowered {
    let f = graph(cx, 0)?;
    let (over, others) = (names(cx, 1), names(cx, 2));
    let (over, captured) = (values(cx, &over)?, values(cx, &others)?);
    scanned(cx, f, &[], &over, &captured)
}

/// The scan of a combining function, lowered sequentially: the carried value is the result so far.
fn associative_scan(cx: &mut Cx) -> Lowered {
    let combine = graph(cx, 0)?;
    let (over, others) = (names(cx, 1), names(cx, 2));
    let (over, captured) = (values(cx, &over)?, values(cx, &others)?);
    let (mut initial, mut first, mut rest) = (vec![], vec![], vec![]);
    for x in &over {
        let extent = cx.shape(*x)[0].clone();
        let one = cx.slice(*x, 0, &Poly::ZERO, 1, &Dim::ONE)?;
        first.push(one);
        initial.push(cx.squeeze(one, &[0])?);
        rest.push(cx.slice(*x, 0, &Poly::ONE, 1, &(&extent - &Poly::ONE))?);
    }
    let slices: Vec<(Value, Along)> = rest.iter().map(|v| (*v, FORWARD)).collect();
    let run = Scan::new(cx, &initial, &slices, draws(combine))?;
    let captured = cx.captured(&[combine], captured)?;
    let made = cx.body(run.params(), &captured, |cx, params, captured| {
        let after = cx.nodes_of(combine, &[params, captured].concat())?;
        Ok([after.clone(), after].concat())
    })?;
    let stacked = vec![FORWARD; over.len()];
    let out = run.lower(cx, made.graph, &captured, &stacked)?;
    let mut results = vec![];
    for (one, more) in first.into_iter().zip(&out[over.len()..]) {
        results.push(cx.concat(&[one, *more], 0)?);
    }
    Ok(results)
}
