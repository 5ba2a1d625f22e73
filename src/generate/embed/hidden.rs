//! The hidden states in a model's graph, and their pooling.

use crate::generate::roles;
use crate::value_info::graph_values;
use std::collections::HashSet;
use wgfc_compiler::{Diagnostic, Errors};
use wgfc_ir::graph::Value;
use wgfc_ir::op::Op;
use wgfc_ir::{BinaryOp as B, Border, Builder, Contract, DType, Dim, Graph, NodeId, TensorType};

/// The input with the weights of the pooling, f32 `[batch, positions]`; 0 for padding.
pub const POOL: &str = "weights of the pooling";
/// The output, f32 `[batch, width]`.
pub const EMBEDDING: &str = "embedding";
/// Parts of the names of outputs that hold hidden states.
const NAMES: [&str; 2] = ["hidden_state", "token_embeddings"];

/// The hidden states that were found.
pub struct Found {
    /// The number of elements of a state.
    pub width: usize,
    /// The number of tokens that the model knows, if its embedding is found.
    pub vocabulary: Option<usize>,
    /// Whether they are the operand of the product that makes logits.
    pub by_head: bool,
}

/// Makes the pooled hidden states the only output of a model. [`POOL`] becomes its last input.
pub fn replace_outputs(graph: &mut Graph) -> Result<Found, Errors> {
    let ports = graph_values(graph, &graph.inputs);
    let ids = roles::ids(&ports).map(|p| p.name.clone());
    let ids = ids.and_then(|name| graph.inputs.iter().find(|i| *i.name == *name)).map(|i| i.value);
    let ids = ids.ok_or_else(|| Diagnostic::model("none of the model's inputs holds token ids"))?;
    let shape = graph.ty(ids).shape.clone();
    let named = named(graph);
    let by_head = named.is_none();
    let hidden = match named {
        Some(v) => Some(v),
        None => logits(graph).and_then(|logits| operand_of_head(graph, logits)),
    };
    let width = hidden.and_then(|v| width(graph, v, &shape));
    let Some((hidden, width)) = hidden.zip(width) else {
        let outputs: Vec<String> =
            graph.outputs.iter().map(|o| format!("`{}` {}", o.name, graph.ty(o.value))).collect();
        let message = format!(
            "the model's hidden states [batch, positions, width] are not found; it has the outputs {}",
            outputs.join(", ")
        );
        let help = "export it with an output `last_hidden_state`, or with logits that are a product of the hidden states";
        return Err(Diagnostic::unsupported(message).help(help).into());
    };
    let vocabulary = vocabulary(graph, ids);
    let pool = graph.add_input(POOL, TensorType::new(DType::F32, shape.clone()));
    let embedding = pooled(graph, hidden, pool, &shape, width).map_err(Diagnostic::internal)?;
    graph.outputs = vec![Border { name: EMBEDDING.into(), value: embedding }];
    graph.remove_dead();
    Ok(Found { width, vocabulary, by_head })
}

/// An output of hidden states.
fn named(graph: &Graph) -> Option<Value> {
    let fits = |o: &&Border| {
        let (name, ty) = (o.name.to_lowercase(), graph.ty(o.value));
        ty.dtype.is_float() && ty.shape.len() == 3 && NAMES.iter().any(|n| name.contains(n))
    };
    // A model with such outputs of all layers has that of the last layer first.
    Some(graph.outputs.iter().find(fits)?.value)
}

/// The output that holds logits.
fn logits(graph: &Graph) -> Option<Value> {
    let mut floats = graph.outputs.iter().filter(|o| graph.ty(o.value).dtype.is_float());
    let first = floats.clone().next();
    Some(floats.find(|o| o.name.to_lowercase().contains("logits")).or(first)?.value)
}

/// The operand of the product with the vocabulary: the logits are this product, perhaps with a bias, a factor or a cap.
fn operand_of_head(graph: &Graph, logits: Value) -> Option<Value> {
    let varying = varying(graph);
    let mut at = logits;
    loop {
        let node = graph.node(at.node);
        let mut operands = node.inputs.iter().copied().filter(|v| varying.contains(&v.node));
        let operand = operands.next().filter(|first| operands.all(|v| v == *first))?;
        match node.op {
            Op::Contract(_) => return Some(operand),
            Op::Map { .. } | Op::View { .. } => at = operand,
            _ => return None,
        }
    }
}

/// The nodes that depend on inputs of the graph.
fn varying(graph: &Graph) -> HashSet<NodeId> {
    let mut found: HashSet<NodeId> = graph.inputs.iter().map(|i| i.value.node).collect();
    let mut open: Vec<NodeId> = found.iter().copied().collect();
    while let Some(node) = open.pop() {
        for port in 0..graph.node(node).outputs.len() {
            let value = Value { node, port: port as u32 };
            open.extend(graph.uses(value).into_iter().map(|(n, _)| n).filter(|n| found.insert(*n)));
        }
    }
    found
}

/// The width of hidden states of tokens of this shape.
fn width(graph: &Graph, hidden: Value, ids: &[Dim]) -> Option<usize> {
    let shape = &graph.ty(hidden).shape;
    let width = shape.last()?.as_const()?;
    let states: Dim = shape.iter().take(shape.len() - 1).product();
    let tokens: Dim = ids.iter().product();
    usize::try_from(width).ok().filter(|w| *w > 0 && states == tokens)
}

/// The rows of the table in which token ids are looked up.
fn vocabulary(graph: &Graph, ids: Value) -> Option<usize> {
    let mut open = vec![ids];
    let mut seen = HashSet::new();
    while let Some(v) = open.pop() {
        for (n, input) in graph.uses(v) {
            let node = graph.node(n);
            match &node.op {
                Op::Gather { .. } if input > 0 => {
                    let table = graph.ty(*node.inputs.first()?);
                    return usize::try_from(table.shape.first()?.as_const()?).ok();
                }
                Op::Map { .. } | Op::View { .. } if seen.insert(n) => open.push(n.into()),
                _ => {}
            }
        }
    }
    None
}

/// The sum of the hidden states of each sequence with these weights.
fn pooled(graph: &mut Graph, hidden: Value, pool: Value, ids: &[Dim], width: usize) -> Result<Value, String> {
    let mut b = Builder::new(graph, "pooling");
    let states: Vec<Dim> = ids.iter().cloned().chain([width.into()]).collect();
    let hidden = b.reshape(hidden, states.clone())?;
    let hidden = b.cast(hidden, DType::F32)?;
    // The states of padding may be anything, even NaN.
    let zero = b.scalar(DType::F32, 0.0);
    let counts = b.binary(B::Ne, pool, zero)?;
    let counts = b.unsqueeze(counts, &[2])?;
    let hidden = b.select(counts, hidden, zero)?;
    b.push(Op::Contract(Contract { a: vec![0, 1], b: vec![0, 1, 2], out: vec![0, 2] }), &[pool, hidden])
}
