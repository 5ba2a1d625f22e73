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
