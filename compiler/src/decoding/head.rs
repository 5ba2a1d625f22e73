//! The last nodes of a decoder: the logits of the last position, and the choice of a token.

use super::choose::{self, Limits};
use crate::{Diagnostic, Errors};
use std::collections::HashMap;
use wgfc_ir::graph::Value;
use wgfc_ir::op::Op;
use wgfc_ir::{Border, Builder, DType, Dim, Graph, Poly, ScalarNode, TensorType};

/// The output that holds the logits of the last position: `[batch, 1, vocabulary]` or `[1, vocabulary]`.
pub const LOGITS: &str = "logits";
/// The output that holds the next token: `[batch, 1]`, of the type of the model's token ids.
pub const TOKEN: &str = "token";
/// The input that specifies how the token is chosen: see [`word`](choose::word).
pub const CHOICE: &str = "choice of the token";
/// The input with the tokens whose logits are changed: i32 `[rows, n, 3]`, see [`choose::adjusted`].
pub const LIST: &str = "changed logits";
/// The input with a bit for each token that may be chosen: i32 `[rows, words]`, see [`choose::masked`].
pub const MASK: &str = "allowed tokens";

/// The positions whose next tokens a program chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// The last one. [`CHOICE`] is the same for all sequences.
    Last,
    /// All of them, for one sequence. [`LOGITS`] is `[…, positions, vocabulary]`, [`TOKEN`] `[positions, 1]`, and [`CHOICE`] has a
    /// row for each position.
    All,
}

/// Makes [`LOGITS`] and [`TOKEN`] the outputs of a decoder whose states have been introduced and whose
/// token ids are of type `ids`, before those that `taps` names. All others are removed. [`CHOICE`] becomes its last input.
pub fn replace_outputs(graph: &mut Graph, ids: DType, chosen: Chosen, taps: &[String]) -> Result<(), Errors> {
    let logits = found(graph)?;
    let made = match chosen {
        Chosen::Last => tail(graph, logits, ids),
        Chosen::All => every(graph, logits, ids),
    };
    let (logits, token) = made.map_err(Diagnostic::internal)?;
    let border = |name: &str, value| Border { name: name.into(), value };
    let is_tap = |o: &Border| taps.iter().any(|t| **t == *o.name) && !matches!(&*o.name, LOGITS | TOKEN);
    graph.outputs.retain(is_tap);
    graph.outputs.splice(0..0, [border(LOGITS, logits), border(TOKEN, token)]);
    graph.remove_dead();
    Ok(())
}

/// Makes [`LOGITS`] the only output of a decoder, with all positions: `[batch, positions, vocabulary]` or
/// `[positions, vocabulary]`.
pub fn all_logits(graph: &mut Graph) -> Result<(), Errors> {
    graph.outputs = vec![Border { name: LOGITS.into(), value: found(graph)? }];
    graph.remove_dead();
    Ok(())
}

/// The logits among a decoder's outputs.
fn found(graph: &Graph) -> Result<Value, Errors> {
    logits(graph).ok_or_else(|| {
        let outputs: Vec<String> =
            graph.outputs.iter().map(|o| format!("`{}` {}", o.name, graph.ty(o.value))).collect();
        Diagnostic::model(format!(
            "no output holds the logits of the next token, which would be floats [batch, positions, vocabulary]; there is: {}",
            outputs.join(", ")
        ))
        .help("export the model with its head, as for text generation")
        .into()
    })
}

fn logits(graph: &Graph) -> Option<Value> {
    let fits = |o: &&Border| {
        let ty = graph.ty(o.value);
        let leading = ty.shape.len().saturating_sub(2);
        ty.dtype.is_float()
            && (2..=3).contains(&ty.shape.len())
            && ty.shape.last().and_then(Dim::as_const).is_some_and(|n| n > 0)
            && ty.shape.iter().take(leading).all(|d| d.as_const().is_some_and(|n| n > 0))
    };
    let named = graph.outputs.iter().filter(fits).find(|o| o.name.to_lowercase().contains("logits"));
    Some(named.or_else(|| graph.outputs.iter().find(fits))?.value)
}

fn tail(graph: &mut Graph, logits: Value, ids: DType) -> Result<(Value, Value), String> {
    let choice = choice(graph, None, choose::word::COUNT);
    let mut b = Builder::new(graph, "last position");
    let axis = b.rank(logits).checked_sub(2).ok_or("logits without positions")?;
    let positions = b.shape(logits)[axis].clone();
    let last = if positions.is(1) {
        logits
    } else {
        narrow(&mut b, logits, axis, &(&positions - &Dim::ONE), &mut HashMap::new())?
    };
    b.origin = vec!["choice".into()];
    let mut rows = b.shape(last);
    let len = rows.pop().ok_or("logits without a vocabulary")?;
    let rows = b.reshape(last, vec![rows.iter().product(), len])?;
    let token = choose::token(&mut b, rows, choice, Limits::default(), ids)?;
    Ok((last, token))
}

/// The tokens behind all positions.
fn every(graph: &mut Graph, logits: Value, ids: DType) -> Result<(Value, Value), String> {
    let mut rows = graph.ty(logits).shape.clone();
    let len = rows.pop().ok_or("logits without a vocabulary")?;
    let rows: Dim = rows.iter().product();
    let limits = Limits { each: true, ..Limits::default() };
    let choice = choice(graph, Some(rows.clone()), limits.words());
    let mut b = Builder::new(graph, "choice");
    let each = b.reshape(logits, vec![rows, len])?;
    let token = choose::token(&mut b, each, choice, limits, ids)?;
    Ok((logits, token))
}

/// [`CHOICE`] for all rows together, or for each of `rows`.
fn choice(graph: &mut Graph, rows: Option<Dim>, words: usize) -> Value {
    let shape: Vec<Dim> = rows.into_iter().chain([words.into()]).collect();
    graph.add_input(CHOICE, TensorType::new(DType::U32, shape))
}

/// A graph from [`LOGITS`] of this type and [`CHOICE`], and [`LIST`] and [`MASK`] if the limits have them, to [`TOKEN`], which is sampled
/// within limits.
pub fn limited(logits: TensorType, limits: Limits, ids: DType) -> Result<Graph, String> {
    let mut graph = Graph::new();
    let (len, rows) = logits.shape.split_last().ok_or("logits without a vocabulary")?;
    let rows = rows.iter().fold(Dim::ONE, |n, d| &n * d);
    let shape = vec![rows.clone(), len.clone()];
    let len = len.clone();
    let logits = graph.add_input(LOGITS, logits);
    let choice = choice(&mut graph, limits.each.then(|| rows.clone()), limits.words());
    let list = limits.list.then(|| {
        let shape = [rows.clone(), Dim::sym("changed"), Dim::constant(3)];
        graph.add_input(LIST, TensorType::new(DType::I32, shape))
    });
    let mask = limits.mask.then(|| {
        let words = choose::mask_words(len.as_const().unwrap_or(0));
        graph.add_input(MASK, TensorType::new(DType::I32, [rows.clone(), words.into()]))
    });
    let mut b = Builder::new(&mut graph, "choice");
    let mut rows = b.reshape(logits, shape)?;
    if let Some(list) = list {
        rows = choose::adjusted(&mut b, rows, list)?;
    }
    if let Some(mask) = mask {
        rows = choose::masked(&mut b, rows, mask)?;
    }
    let token = choose::token(&mut b, rows, choice, limits, ids)?;
    graph.outputs = vec![Border { name: TOKEN.into(), value: token }];
    Ok(graph)
}

type Seen = HashMap<(Value, usize), Value>;

/// `v` at one position of an axis, which keeps the extent 1. Elementwise operators, views that do not change the axis, and
/// the product before them are rebuilt for that position only, so that the head computes one token instead of all.
fn narrow(b: &mut Builder<'_>, v: Value, axis: usize, at: &Dim, seen: &mut Seen) -> Result<Value, String> {
    if let Some(done) = seen.get(&(v, axis)) {
        return Ok(*done);
    }
    let (op, inputs) = (b.graph.node(v.node).op.clone(), b.graph.node(v.node).inputs.clone());
    let origin = std::mem::replace(&mut b.origin, b.graph.node(v.node).origin.clone());
    let done = match op {
        Op::Map { body, mut shape } if !body.nodes.iter().any(|n| matches!(n, ScalarNode::Index(_))) => {
            let mut args = vec![];
            for a in inputs {
                let own = (axis + b.rank(a)).checked_sub(shape.len()).filter(|d| !b.shape(a)[*d].is(1));
                args.push(match own {
                    Some(d) => narrow(b, a, d, at, seen)?,
                    None => a,
                });
            }
            shape[axis] = Dim::ONE;
            b.push(Op::Map { body, shape }, &args)?
        }
        Op::View { mut shape, index, fill: None } if kept(&index, axis).is_some() => {
            let from = narrow(b, inputs[0], kept(&index, axis).unwrap_or(axis), at, seen)?;
            shape[axis] = Dim::ONE;
            b.view(from, shape, index)?
        }
        Op::Contract(c) => {
            let label = c.out[axis];
            let mut args = inputs;
            for (arg, labels) in args.iter_mut().zip([&c.a, &c.b]) {
                if let Some(d) = labels.iter().position(|l| *l == label) {
                    *arg = b.slice(*arg, d, at, 1, &Dim::ONE)?;
                }
            }
            b.push(Op::Contract(c), &args)?
        }
        _ => b.slice(v, axis, at, 1, &Dim::ONE)?,
    };
    b.origin = origin;
    seen.insert((v, axis), done);
    Ok(done)
}

/// The operand's axis that this axis of the view equals, if no other operand axis depends on it.
fn kept(index: &[Poly], axis: usize) -> Option<usize> {
    let mut readers = index.iter().enumerate().filter(|(_, p)| p.vars().contains(&axis));
    let (d, p) = readers.next()?;
    (p.as_var() == Some(axis) && readers.next().is_none()).then_some(d)
}
