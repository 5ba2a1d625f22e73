//! Random loops whose body is a random graph.

use super::{Config, Rng, random_graph, random_tensor};
use crate::build::{Builder, Built};
use crate::dtype::DType;
use crate::graph::{Border, Graph, TensorType, Value};
use crate::op::{Op, ReduceOp};
use crate::poly::Dim;
use crate::scalar::{BinaryOp, Scalar, UnaryOp};
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// A `scan` or `while` around a random graph and inputs for it, both determined by the seed. Some of the
/// graph's inputs are carried, some scanned, and the others captured.
///
/// # Errors
/// If the graph cannot be made a loop body.
pub fn random_loop(seed: u64, config: &Config) -> Result<(Graph, BTreeMap<String, Tensor>), String> {
    // Sizes cannot be computed in loop bodies.
    let config = &Config { sized: false, ..config.clone() };
    let (mut body, given) = random_graph(seed, config);
    let mut rng = Rng::new(seed ^ 0x6c6f_6f70);
    let length = rng.below(6);
    let until = rng.one_in(3);
    let borders = std::mem::take(&mut body.inputs);
    let stacked: Vec<Border> = if until { vec![] } else { body.outputs.clone() };
    let results = std::mem::take(&mut body.outputs);
    let [mut carried, mut scanned, mut captured] = [vec![], vec![], vec![]];
    for b in borders {
        let float = body.ty(b.value).dtype == DType::F32;
        match rng.below(6) {
            0..4 if float => carried.push(b),
            4 if !until => scanned.push(b),
            _ => captured.push(b),
        }
    }
    let number = body.add_input("t", TensorType::new(DType::I64, vec![]));
    body.inputs.clear();
    let mut outputs = vec![];
    for (i, c) in carried.iter().enumerate() {
        let from = results.iter().find(|r| body.ty(r.value) == body.ty(c.value)).map(|r| r.value);
        let next = after(&mut Builder::new(&mut body, "carry"), c.value, from)?;
        outputs.push(Border { name: format!("carried{i}").into(), value: next });
    }

    let mut graph = Graph::new();
    let mut inputs = BTreeMap::new();
    let mut outer = |graph: &mut Graph, b: &Border, rows: Option<usize>| -> Result<Value, String> {
        let mut ty = body.ty(b.value).clone();
        let value = given.get(&*b.name).ok_or("an input without a value")?;
        let mut value = value.clone();
        if let Some(rows) = rows {
            ty.shape.insert(0, Dim::from(rows));
            let shape = [vec![rows], value.shape.clone()].concat();
            value = random_tensor(&mut rng, ty.dtype, shape);
        }
        inputs.insert(b.name.to_string(), value);
        Ok(graph.add_input(&b.name, ty))
    };
    let mut first = carried.iter().map(|c| outer(&mut graph, c, None)).collect::<Result<Vec<_>, _>>()?;
    let rows = scanned.iter().map(|c| outer(&mut graph, c, Some(length))).collect::<Result<Vec<_>, _>>()?;
    let fixed = captured.iter().map(|c| outer(&mut graph, c, None)).collect::<Result<Vec<_>, _>>()?;
    let t = Border { name: "t".into(), value: number };
    let ports = carried.len() + stacked.len();
    let node = if until {
        let go = body.add_input("go", TensorType::new(DType::Bool, vec![]));
        let go = Border { name: "go".into(), value: go };
        let condition = goes_on(&mut Builder::new(&mut body, "until"), number, outputs.first(), seed)?;
        outputs.insert(0, Border { name: "condition".into(), value: condition });
        body.inputs = [t, go].into_iter().chain(carried.clone()).chain(captured).collect();
        body.outputs = outputs;
        let mut b = Builder::new(&mut graph, "loop");
        // A loop that ends by its iteration number needs no trip count.
        let counted = carried.is_empty() || seed.is_multiple_of(2);
        let trips = if counted && (seed >> 3) & 1 == 1 { i64::MAX } else { length as i64 };
        let mut all = vec![b.int(DType::I64, trips), b.constant(Tensor::scalar(Scalar::bool(true)))];
        all.append(&mut first);
        all.extend(fixed);
        graph.push(Op::While { body: Box::new(body), carried: carried.len() }, &all, &[])?
    } else {
        let numbers = random_tensor(&mut Rng::new(seed), DType::I64, vec![length]);
        let numbers = Builder::new(&mut graph, "loop").constant(numbers);
        body.inputs = carried.iter().chain([&t]).chain(&scanned).chain(&captured).cloned().collect();
        body.outputs = outputs.into_iter().chain(stacked).collect();
        let all: Vec<Value> = first.into_iter().chain([numbers]).chain(rows).chain(fixed).collect();
        let back = |n: usize| (0..n).map(|i| (seed >> i) & 1 == 1).collect::<Vec<bool>>();
        let op = Op::Scan {
            carried: carried.len(),
            scanned: 1 + scanned.len(),
            reverse_inputs: back(1 + scanned.len()),
            reverse_outputs: back(body.outputs.len() - carried.len()),
            body: Box::new(body),
        };
        graph.push(op, &all, &[])?
    };
    for port in 0..ports as u32 {
        graph.outputs.push(Border { name: format!("y{port}").into(), value: Value { node, port } });
    }
    Ok((graph, inputs))
}

/// `x/2 + tanh(y)/4`, which stays bounded.
fn after(b: &mut Builder<'_>, x: Value, y: Option<Value>) -> Built {
    let half = b.binary_scalar(BinaryOp::Mul, x, 0.5)?;
    let Some(y) = y else { return Ok(half) };
    let y = b.unary(UnaryOp::Tanh, y)?;
    let y = b.binary_scalar(BinaryOp::Mul, y, 0.25)?;
    b.binary(BinaryOp::Add, half, y)
}

/// The condition of a loop: on its iteration number, or on the largest element of a carried value.
fn goes_on(b: &mut Builder<'_>, number: Value, carried: Option<&Border>, seed: u64) -> Built {
    let count = b.int(DType::I64, (seed % 4) as i64);
    let few = b.binary(BinaryOp::Lt, number, count)?;
    let Some(c) = carried.filter(|_| seed % 2 == 1) else { return Ok(few) };
    let axes: Vec<usize> = (0..b.rank(c.value)).collect();
    let largest = b.reduce(ReduceOp::Max, c.value, &axes, false)?;
    let limit = b.scalar(DType::F32, 0.3);
    b.binary(BinaryOp::Gt, largest, limit)
}
