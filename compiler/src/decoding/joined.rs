//! A model in front of another: the outputs of the first become inputs of the second that have their names.
//!
//! Exports of vision-language models have the embedding of tokens in a file of its own. Joined in front of the decoder it makes a
//! decoder that takes token ids. A prompt may have features in place of the embeddings of some tokens ([`take_features`]).

use crate::{Diagnostic, Errors};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use wgfc_ir::graph::Value;
use wgfc_ir::op::Op;
use wgfc_ir::{BinaryOp, Body, Border, Builder, DType, Dim, Graph, TensorType};

/// The name of the embeddings of tokens, which the model in front makes, `[batch, seq, width]`.
pub const EMBEDDINGS: &str = "inputs_embeds";
/// The input with the features that tokens stand for: f32 `[rows, width]`. The token −1 − r stands for row r.
pub const FEATURES: &str = "features of tokens";
/// The symbol for the number of features.
const ROWS: &str = "feature_rows";

/// Whether outputs of a model with the first graph are inputs of one with the second.
pub fn are_joinable(front: &Graph, graph: &Graph) -> bool {
    front.outputs.iter().any(|o| graph.inputs.iter().any(|i| i.name == o.name))
}

/// Puts `front` before `graph`. Each output of `front` takes the place of the input of its name, and is an output of the joined model,
/// too. Inputs of both that have the same name are one. Symbols of the same name are the same size.
///
/// # Errors
/// An output that differs in type or shape from the input that it becomes.
pub fn join(front: &Graph, graph: &mut Graph) -> Result<(), Errors> {
    let pairs: Vec<(Border, Value)> = front
        .outputs
        .iter()
        .filter_map(|o| Some((o.clone(), graph.inputs.iter().find(|i| i.name == o.name)?.value)))
        .collect();
    let unfit = pairs.iter().filter(|(o, input)| {
        let (made, taken) = (front.ty(o.value), graph.ty(*input));
        made.shape != taken.shape || !(made.dtype == taken.dtype || floats(made, taken))
    });
    let errors: Vec<Diagnostic> = unfit
        .map(|(o, input)| {
            Diagnostic::model(format!(
                "the model in front makes `{}` {}, and the model takes {}",
                o.name,
                front.ty(o.value),
                graph.ty(*input)
            ))
            .help("take both files from the same export, whose dimensions have the same names")
        })
        .collect();
    if !errors.is_empty() {
        return Err(Errors(errors));
    }
    let mut moved: HashMap<Value, Value> = HashMap::new();
    let first = graph.inputs.len();
    let order = front.topo().map_err(|_| Diagnostic::internal("a graph in front with a cycle"))?;
    for n in order {
        let node = front.node(n);
        if let (Op::Input, Some(b)) = (&node.op, front.inputs.iter().find(|b| b.value.node == n)) {
            let known = graph.inputs.iter().find(|i| i.name == b.name).map(|i| i.value);
            let value = known.unwrap_or_else(|| graph.add_input(&b.name, front.ty(b.value).clone()));
            moved.insert(b.value, value);
            continue;
        }
        let mut copy = node.clone();
        let inputs = node.inputs.iter().map(|v| moved.get(v).copied()).collect::<Option<Vec<Value>>>();
        copy.inputs = inputs.ok_or_else(|| Diagnostic::internal("an operand without its node"))?;
        let ports = copy.outputs.len();
        let id = graph.add_node(copy);
        for port in 0..ports as u32 {
            moved.insert(Value { node: n, port }, Value { node: id, port });
        }
    }
    let place =
        |v: Value| moved.get(&v).copied().ok_or_else(|| Diagnostic::internal("a value that was not moved"));
    for (o, input) in &pairs {
        let mut made = place(o.value)?;
        let dtype = graph.ty(*input).dtype;
        if graph.ty(made).dtype != dtype {
            made = Builder::new(graph, "joined").cast(made, dtype).map_err(Diagnostic::internal)?;
        }
        graph.replace_uses(*input, made);
        graph.outputs.push(Border { name: o.name.clone(), value: made });
    }
    for c in &front.computed {
        graph.computed.push(wgfc_ir::graph::Computed { value: place(c.value)?, ..c.clone() });
    }
    graph.constraints.extend(front.constraints.iter().cloned());
    graph.optional.extend(front.optional.iter().map(|(n, shape)| (n.clone(), shape.clone())));
    // The inputs of the model in front come first.
    let own = graph.inputs.split_off(first);
    let rest = std::mem::replace(&mut graph.inputs, own);
    graph.inputs.extend(rest.into_iter().filter(|b| !pairs.iter().any(|(_, input)| *input == b.value)));
    graph.order_inputs();
    graph.remove_dead();
    Ok(())
}

fn floats(a: &TensorType, b: &TensorType) -> bool {
    a.dtype.is_float() && b.dtype.is_float()
}

/// The number of features' elements for which tokens of this decoder may stand, if it has the embeddings of its tokens from a model in
/// front.
pub fn width(graph: &Graph) -> Option<i64> {
    let ty = graph.outputs.iter().find(|o| *o.name == *EMBEDDINGS).map(|o| graph.ty(o.value))?;
    ty.shape.last().filter(|_| ty.shape.len() == 3)?.as_const()
}

/// Makes token −1 − r stand for row r of the input [`FEATURES`], in place of the embedding that the model in front would make.
///
/// # Errors
/// A graph without token ids or without the output [`EMBEDDINGS`].
pub fn take_features(graph: &mut Graph) -> Result<(), String> {
    let width = width(graph).ok_or("no embeddings of tokens")?;
    let embedded = graph.outputs.iter().find(|o| *o.name == *EMBEDDINGS).ok_or("no embeddings")?.value;
    let ids = super::roles::ids(graph).ok_or("no token ids")?.value;
    let readers = graph.uses(ids);
    let (ids_type, embedded_type) = (graph.ty(ids).clone(), graph.ty(embedded).clone());
    let inputs = graph.inputs.iter().flat_map(|b| &graph.ty(b.value).shape).flat_map(Dim::symbols);
    let taken: BTreeSet<Arc<str>> = inputs.collect();
    let mut rows = ROWS.to_owned();
    while taken.contains(rows.as_str()) {
        rows.push('_');
    }
    let features = TensorType::new(DType::F32, [Dim::sym(&rows), Dim::constant(width)]);
    let features = graph.add_input(FEATURES, features);
    let mut b = Builder::new(graph, "features");
    let dtype = ids_type.dtype;
    let at_least_0 = |f: &mut Body, x: u32| {
        let zero = f.int(dtype, 0);
        f.binary(BinaryOp::Max, x, zero);
    };
    let mut f = Body::default();
    let id = f.arg(0);
    at_least_0(&mut f, id);
    let tokens = b.map(f.0, &[ids])?;
    let mut f = Body::default();
    let (id, last) = (f.arg(0), f.int(dtype, -1));
    let row = f.binary(BinaryOp::Sub, last, id);
    at_least_0(&mut f, row);
    let row = b.map(f.0, &[ids])?;
    let own = b.take(features, row, 0)?;
    let own = b.cast(own, embedded_type.dtype)?;
    let zero = b.int(dtype, 0);
    let stands = b.binary(BinaryOp::Lt, ids, zero)?;
    let stands = b.unsqueeze(stands, &[2])?;
    let embeddings = b.graph.uses(embedded);
    let chosen = b.select(stands, own, embedded)?;
    embeddings.into_iter().for_each(|(n, i)| graph.set_input(n, i, chosen));
    graph.outputs.iter_mut().filter(|o| o.value == embedded).for_each(|o| o.value = chosen);
    readers.into_iter().for_each(|(n, i)| graph.set_input(n, i, tokens));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use wgfc_ir::Tensor;
    use wgfc_ir::eval::evaluate;

    fn batch() -> Vec<Dim> {
        vec![Dim::sym("batch"), Dim::sym("seq")]
    }

    /// The embedding of 3 tokens in 2 numbers.
    fn front(dtype: DType) -> Graph {
        let mut g = Graph::new();
        let ids = g.add_input("input_ids", TensorType::new(DType::I64, batch()));
        let mut b = Builder::new(&mut g, "embed");
        let table = b.constant(Tensor::from_f32(vec![3, 2], &[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]));
        let rows = b.take(table, ids, 0).unwrap();
        let rows = b.cast(rows, dtype).unwrap();
        g.outputs.push(Border { name: EMBEDDINGS.into(), value: rows });
        g
    }

    /// A model that doubles embeddings.
    fn back(width: i64) -> Graph {
        let mut g = Graph::new();
        let shape = [batch(), vec![Dim::constant(width)]].concat();
        let x = g.add_input(EMBEDDINGS, TensorType::new(DType::F32, shape));
        let twice = Builder::new(&mut g, "twice").binary_scalar(BinaryOp::Mul, x, 2.0).unwrap();
        g.outputs.push(Border { name: "twice".into(), value: twice });
        g
    }

    fn run(g: &Graph, inputs: &[(&str, Tensor)]) -> Vec<f32> {
        let inputs: BTreeMap<String, Tensor> =
            inputs.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
        evaluate(g, &inputs).unwrap()[0].to_f32s().unwrap()
    }

    #[test]
    fn tokens_are_embedded_or_stand_for_features() {
        let ids = |ids: &[i64]| ("input_ids", Tensor::from_i64(vec![1, ids.len()], ids));
        for dtype in [DType::F32, DType::F16] {
            let mut g = back(2);
            assert!(are_joinable(&front(dtype), &g) && !are_joinable(&g, &front(dtype)));
            join(&front(dtype), &mut g).unwrap();
            wgfc_ir::verify::verify(&g).unwrap();
            let names = |b: &[Border]| b.iter().map(|b| b.name.to_string()).collect::<Vec<_>>();
            assert_eq!(
                (names(&g.inputs), names(&g.outputs)),
                (vec!["input_ids".to_owned()], vec!["twice".to_owned(), EMBEDDINGS.to_owned()])
            );
            assert_eq!(run(&g, &[ids(&[2, 0])]), [40.0, 42.0, 0.0, 2.0]);
            assert_eq!(width(&g), Some(2));
            take_features(&mut g).unwrap();
            wgfc_ir::verify::verify(&g).unwrap();
            let features = (FEATURES, Tensor::from_f32(vec![2, 2], &[5.0, 6.0, 7.0, 8.0]));
            assert_eq!(run(&g, &[ids(&[-2, 1, -1]), features]), [14.0, 16.0, 20.0, 22.0, 10.0, 12.0]);
        }
    }

    #[test]
    fn models_that_do_not_fit_each_other_are_refused() {
        let mut g = back(3);
        let e = join(&front(DType::F32), &mut g).unwrap_err().to_string();
        assert!(e.contains("makes `inputs_embeds` f32[batch, seq, 2]"), "{e}");
        assert!(take_features(&mut back(2)).is_err() && width(&back(2)).is_none());
    }
}
