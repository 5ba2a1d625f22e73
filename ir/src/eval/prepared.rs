//! Evaluation of one graph again and again.

use super::array::Array;
use super::{Env, EvalError, Limits, StateValues, evaluate_in};
use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::tensor::Tensor;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A graph whose constants are in the evaluator's form, so that no run reads or converts them.
///
/// With the feature `products`, runs are quick rather than exact: f32 sums, softmax and norms are computed in f32, and exponentials by
/// polynomials, whose errors are a few units in the last place.
///
/// ```
/// use wgfc_ir::eval::{Limits, Prepared};
/// use wgfc_ir::{BinaryOp, Border, Builder, DType, Dim, Graph, Tensor, TensorType};
/// let mut graph = Graph::new();
/// let x = graph.add_input("x", TensorType::new(DType::F32, [Dim::sym("n")]));
/// let mut b = Builder::new(&mut graph, "twice");
/// let two = b.constant(Tensor::from_f32(vec![1], &[2.0]));
/// let value = b.binary(BinaryOp::Mul, x, two)?;
/// graph.outputs.push(Border { name: "y".into(), value });
/// let prepared = Prepared::new(graph).map_err(|e| e.to_string())?;
/// for n in [1.0, 3.0] {
///     let x = Tensor::from_f32(vec![1], &[n]);
///     let outputs = prepared.run(&[("x".to_owned(), x)].into(), &[].into(), Limits::default());
///     assert_eq!(outputs.map_err(|e| e.to_string())?[0].to_f32s(), Some(vec![2.0 * n]));
/// }
/// # Ok::<(), String>(())
/// ```
#[derive(Debug)]
pub struct Prepared {
    graph: Graph,
    constants: Arc<HashMap<NodeId, Array>>,
}

impl Prepared {
    /// Converts the constants of a graph, whose own bytes are freed one by one.
    ///
    /// # Errors
    /// A constant whose values cannot be read.
    pub fn new(mut graph: Graph) -> Result<Prepared, EvalError> {
        let mut constants = HashMap::new();
        for id in graph.node_ids().collect::<Vec<_>>() {
            let node = graph.node(id);
            let Op::Const(t) = &node.op else { continue };
            let unread = || EvalError::at("its values cannot be read".into()).in_node(node);
            let array = Array::from_tensor(t).ok_or_else(unread)?;
            let absent = Tensor::absent(array.dtype, array.shape.clone());
            graph.node_mut(id).op = Op::Const(Arc::new(absent));
            constants.insert(id, array);
        }
        Ok(Prepared { graph, constants: Arc::new(constants) })
    }

    /// The graph, without the values of its constants.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Evaluates the graph on named inputs and returns its outputs in order. `symbols` has the values of symbols that the shapes of the
    /// inputs do not determine.
    ///
    /// # Errors
    /// As [`evaluate`](super::evaluate).
    pub fn run(
        &self,
        inputs: &BTreeMap<String, Tensor>,
        symbols: &BTreeMap<String, i64>,
        limits: Limits,
    ) -> Result<Vec<Tensor>, EvalError> {
        let mut states = StateValues { capacities: symbols.clone(), ..StateValues::default() };
        let env = Env { limits, constants: Some(self.constants.clone()), quick: true, ..Env::default() };
        evaluate_in(&self.graph, inputs, &mut states, env)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{Builder, WindowAxis};
    use crate::eval::evaluate;
    use crate::graph::{Border, TensorType};
    use crate::op::Contract;
    use crate::poly::Dim;
    use crate::scalar::Scalar;
    use crate::testing::{Config, Rng, random_graph, random_tensor};
    use crate::{DType, Value};

    fn agrees(graph: &Graph, inputs: &BTreeMap<String, Tensor>, what: &str) {
        let want = evaluate(graph, inputs).unwrap();
        let prepared = Prepared::new(graph.clone()).unwrap();
        for _ in 0..2 {
            let got = prepared.run(inputs, &BTreeMap::new(), Limits::default()).unwrap();
            assert_eq!(got.len(), want.len());
            for (got, want) in got.iter().zip(&want) {
                assert_eq!((got.dtype, &got.shape), (want.dtype, &want.shape), "{what}");
                for (x, y) in got.to_f32s().unwrap().iter().zip(want.to_f32s().unwrap()) {
                    assert!((x - y).abs() <= 1e-4 * y.abs().max(1.0), "{what}: {x} for {y}\n{graph}");
                }
            }
        }
    }

    #[test]
    fn random_graphs_have_the_evaluators_results() {
        for seed in 0..200 {
            let (graph, inputs) = random_graph(seed, &Config::default());
            agrees(&graph, &inputs, &format!("seed {seed}"));
        }
    }

    /// A convolution of an image of `c` channels in each of `g` groups by windows along two axes: extent, kernel, step, distance, padding.
    fn convolution(dtype: DType, [n, g, c, m]: [i64; 4], axes: [[i64; 5]; 2]) -> Graph {
        let mut graph = Graph::new();
        let ty =
            |shape: &[i64]| TensorType::new(dtype, shape.iter().map(|d| Dim::from(*d)).collect::<Vec<_>>());
        let [[h, p, ..], [w, q, ..]] = axes;
        let x = graph.add_input("x", ty(&[n, g, c, h, w]));
        let k = graph.add_input("k", ty(&[g, m, c, p, q]));
        let mut b = Builder::new(&mut graph, "conv");
        let windows = axes.map(|[extent, kernel, stride, dilation, pad]| WindowAxis {
            kernel: kernel.into(),
            stride,
            dilation,
            pad: pad.into(),
            out: ((extent + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1).into(),
        });
        let unfolded = b.unfold(x, &windows, Scalar::from_f64(dtype, 0.0)).unwrap();
        let product =
            Contract { a: vec![0, 1, 2, 4, 5, 6, 7], b: vec![1, 3, 2, 6, 7], out: vec![0, 1, 3, 4, 5] };
        let value: Value = b.push(Op::Contract(product), &[unfolded, k]).unwrap();
        graph.outputs.push(Border { name: "y".into(), value });
        graph
    }

    #[test]
    fn convolutions_have_the_evaluators_results() {
        let mut rng = Rng::new(7);
        for case in 0..300 {
            let mut any = |least: i64, most: i64| least + rng.below((most - least + 1) as usize) as i64;
            let sizes = [any(1, 2), any(1, 3), any(1, 3), any(1, 4)];
            let axes = [0, 1].map(|_| {
                let (kernel, dilation) = (any(1, 4), any(1, 2));
                [any(1, 40).max(dilation * (kernel - 1) + 1), kernel, any(1, 3), dilation, any(0, 3)]
            });
            let dtype = if case % 5 == 0 { DType::F16 } else { DType::F32 };
            let graph = convolution(dtype, sizes, axes);
            let shape = |v: Value| graph.ty(v).shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
            let inputs = graph.inputs.iter().map(|b| (b.name.to_string(), shape(b.value)));
            let inputs = inputs.map(|(name, shape)| (name, random_tensor(&mut rng, dtype, shape)));
            let what = format!("{sizes:?} {axes:?}");
            let inputs: BTreeMap<String, Tensor> = inputs.collect();
            match dtype {
                DType::F32 => agrees(&graph, &inputs, &what),
                // Sums in another order may be rounded to a neighbour.
                _ => {
                    let want = evaluate(&graph, &inputs).unwrap()[0].to_f32s().unwrap();
                    let prepared = Prepared::new(graph).unwrap();
                    let got = prepared.run(&inputs, &BTreeMap::new(), Limits::default()).unwrap();
                    let close = |(x, y): (&f32, &f32)| (x - y).abs() <= 2e-3 * y.abs().max(1.0);
                    assert!(got[0].to_f32s().unwrap().iter().zip(&want).all(close), "{what}");
                }
            }
        }
    }
}
