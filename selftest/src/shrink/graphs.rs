//! Smaller variants of a graph.

use crate::failure::{Failure, caught};
use crate::subject::{Source, Subject};
use std::collections::HashMap;
use wgfc_ir::eval::evaluate;
use wgfc_ir::{Border, Graph, Op, Tensor, Value};

/// Variants by kind: one output alone (0); an inner value as the only output (1); an inner value as an input (2).
pub fn edits<'a>(graph: &'a Graph, s: &'a Subject, kind: usize) -> Box<dyn Iterator<Item = Subject> + 'a> {
    let size = graph.len();
    let keep = move |mut g: Graph, given: Option<(String, Tensor)>| {
        g.remove_dead();
        drop_inputs(&mut g);
        let mut inputs = s.inputs.clone();
        inputs.extend(given);
        inputs.retain(|n, _| g.inputs.iter().any(|b| *b.name == **n));
        let smaller = g.len() < size || g.outputs.len() < graph.outputs.len();
        smaller.then(|| Subject { source: Source::Graph(Box::new(g)), inputs, rule: s.rule })
    };
    let order = graph.topo().unwrap_or_default();
    let inner: Vec<Value> = order
        .iter()
        .filter(|n| !matches!(graph.node(**n).op, Op::Input | Op::Const(_)))
        .flat_map(|n| (0..graph.node(*n).outputs.len() as u32).map(|port| Value { node: *n, port }))
        .collect();
    match kind {
        0 => Box::new(graph.outputs.iter().filter_map(move |b| {
            let mut g = graph.clone();
            g.outputs = vec![b.clone()];
            keep(g, None)
        })),
        1 => Box::new(inner.into_iter().filter_map(move |value| {
            let mut g = graph.clone();
            g.outputs = vec![Border { name: "y".into(), value }];
            keep(g, None)
        })),
        2 => {
            let values = values(graph, s, &inner);
            Box::new(inner.into_iter().rev().filter_map(move |v| {
                let t = values.get(&v)?.clone();
                let mut g = graph.clone();
                let name =
                    (0..).map(|i| format!("v{i}")).find(|n| !g.inputs.iter().any(|b| *b.name == **n))?;
                let ty = g.ty(v).clone();
                let new = g.add_input(&name, ty);
                g.replace_uses(v, new);
                if g.outputs.iter().any(|o| o.value == new) {
                    return None;
                }
                keep(g, Some((name, t)))
            }))
        }
        _ => Box::new(std::iter::empty()),
    }
}

/// Removes inputs that nothing reads.
fn drop_inputs(g: &mut Graph) {
    let used: Vec<bool> =
        g.inputs.iter().map(|b| !g.uses(b.value).is_empty() || g.is_output(b.value)).collect();
    let mut used = used.into_iter();
    g.inputs.retain(|_| used.next().unwrap_or(true));
    g.remove_dead();
}

/// The evaluator's results for inner values.
fn values(graph: &Graph, s: &Subject, inner: &[Value]) -> HashMap<Value, Tensor> {
    let mut g = graph.clone();
    g.outputs = inner.iter().map(|v| Border { name: "v".into(), value: *v }).collect();
    let all = caught(|| evaluate(&g, &s.inputs).map_err(|e| Failure::error(e.to_string())));
    inner.iter().copied().zip(all.unwrap_or_default()).collect()
}
