//! The outputs of a graph as real numbers, and bounds for the rounding errors of a device.
//!
//! The graph is evaluated in f64, then a few more times with every intermediate result perturbed at random by as much
//! as a device may round it. The spread of the outputs shows how much rounding matters in each place: a sum with
//! cancellation may have a large error, a product may not. (Stochastic arithmetic, after J. Vignes, "A stochastic
//! arithmetic for reliable scientific computation", Mathematics and Computers in Simulation 35, 1993.)

use super::Wide;
use crate::build::Builder;
use crate::dtype::DType;
use crate::eval::evaluate;
use crate::graph::{Border, Graph, NodeId, Value};
use crate::lower::lower_raised;
use crate::op::Op;
use crate::poly::Poly;
use crate::scalar::{BinaryOp, Scalar, ScalarFn, ScalarNode, UnaryOp};
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// An output in f64 (or as integers), and the permitted error of each element.
#[derive(Clone, Debug)]
pub struct Bounded {
    /// The type of the output in the graph.
    pub dtype: DType,
    /// The reference values.
    pub want: Tensor,
    /// The permitted error of each element.
    pub error: Vec<f64>,
}

/// The number of perturbed evaluations.
const SAMPLES: u64 = 5;
/// The permitted error as a multiple of the spread of the samples.
const SLACK: f64 = 6.0;

/// Evaluates a graph whose floats must all stay within the range of normal numbers of their types.
///
/// # Errors
/// If a float leaves that range, an integer depends on rounding, or the graph cannot be evaluated.
pub fn bounded(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Result<Vec<Bounded>, String> {
    // Norms and softmax are lowered, because each of their steps rounds.
    let lowered = &mut graph.clone();
    lower_raised(lowered);
    let graph = &*lowered;
    let mut wide = Wide::F64.graph(graph).unwrap_or_else(|| graph.clone());
    let given = inputs
        .iter()
        .map(|(n, t)| Some((n.clone(), Wide::F64.tensor(t)?)))
        .collect::<Option<BTreeMap<_, _>>>()
        .ok_or("an input is absent")?;
    let outputs = wide.outputs.clone();
    let nodes = wide.topo().map_err(|n| format!("a cycle at {n:?}"))?;
    let floats: Vec<Value> =
        nodes.iter().map(|n| Value::from(*n)).filter(|v| graph.ty(*v).dtype.is_float()).collect();
    wide.outputs.extend(floats.iter().map(|v| Border { name: format!("{v:?}").into(), value: *v }));
    let mut all = evaluate(&wide, &given).map_err(|e| e.to_string())?;
    for (v, t) in floats.iter().zip(all.split_off(outputs.len())) {
        within(graph.ty(*v).dtype, &t)?;
    }
    wide.outputs = outputs;
    let mut bounds: Vec<Bounded> = graph
        .outputs
        .iter()
        .zip(all)
        .map(|(o, want)| {
            let dtype = graph.ty(o.value).dtype;
            let error = vec![0.0; want.numel()];
            Bounded { dtype, want, error }
        })
        .collect();
    for sample in 0..SAMPLES {
        let moved = moved(graph, &wide, &nodes, sample)?;
        let results = evaluate(&moved, &given).map_err(|e| e.to_string())?;
        for (b, t) in bounds.iter_mut().zip(results) {
            let (Some(x), Some(y)) = (b.want.scalars(), t.scalars()) else { return Err("absent".into()) };
            if !b.dtype.is_float() && x != y {
                return Err("an integer depends on rounding".into());
            }
            for ((e, x), y) in b.error.iter_mut().zip(&x).zip(&y) {
                *e = e.max((x.as_f64() - y.as_f64()).abs());
            }
        }
    }
    for b in bounds.iter_mut().filter(|b| b.dtype.is_float()) {
        let values = b.want.scalars().ok_or("absent")?;
        for (e, v) in b.error.iter_mut().zip(values) {
            *e = *e * SLACK + 2.0 * unit(b.dtype) * v.as_f64().abs() + least(b.dtype);
        }
    }
    Ok(bounds)
}

impl Bounded {
    /// Checks that a tensor is within the permitted errors.
    ///
    /// # Errors
    /// Describes the first difference.
    pub fn check(&self, got: &Tensor) -> Result<(), String> {
        if got.dtype != self.dtype || got.shape != self.want.shape {
            return Err(format!(
                "{} {:?} instead of {} {:?}",
                got.dtype, got.shape, self.dtype, self.want.shape
            ));
        }
        let (Some(a), Some(b)) = (got.scalars(), self.want.scalars()) else {
            return Err("values are absent".into());
        };
        if !self.dtype.is_float() {
            return match a.iter().zip(&b).position(|(x, y)| x != y) {
                Some(i) => Err(format!("element {i} is {} instead of {}", a[i], b[i])),
                None => Ok(()),
            };
        }
        let off = |i: &usize| {
            let (x, y) = (a[*i].as_f64(), b[*i].as_f64());
            !x.is_finite() || (x - y).abs() > self.error[*i]
        };
        match (0..a.len()).find(off) {
            Some(i) => {
                let (x, y, e) = (a[i].as_f64(), b[i].as_f64(), self.error[i]);
                Err(format!("element {i} is {x:e} instead of {y:e}, which may be off by {e:.1e}"))
            }
            None => Ok(()),
        }
    }
}

/// The distance from 1 to the next number of the type; f64 is computed in f32.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f64::powi(2.0, -10),
        DType::BF16 => f64::powi(2.0, -7),
        _ => f64::powi(2.0, -23),
    }
}
/// The smallest normal number of the type; a device may flush smaller numbers to 0.
fn least(dtype: DType) -> f64 {
    if dtype == DType::F16 { f64::powi(2.0, -14) } else { f64::from(f32::MIN_POSITIVE) }
}
fn most(dtype: DType) -> f64 {
    if dtype == DType::F16 { 65504.0 } else { f64::from(f32::MAX) }
}

/// Fails if an element exceeds half the range of the type, or is below twice its smallest normal number and not 0.
fn within(dtype: DType, t: &Tensor) -> Result<(), String> {
    let inside = |v: f64| v == 0.0 || (2.0 * least(dtype)..=most(dtype) / 2.0).contains(&v.abs());
    match t.scalars().ok_or("absent")?.iter().find(|s| !inside(s.as_f64())) {
        Some(s) => Err(format!("{s} is outside the range of {dtype}")),
        None => Ok(()),
    }
}

/// The graph with every computed float, and every summand of a sum, perturbed.
fn moved(graph: &Graph, wide: &Graph, nodes: &[NodeId], sample: u64) -> Result<Graph, String> {
    let mut g = wide.clone();
    let mut number = sample * 1_000;
    for n in nodes {
        let dtype = graph.ty((*n).into()).dtype;
        let steps = match &graph.node(*n).op {
            // Drivers may turn `(x - a) * c` into `x * c - a * c`, whose error is as if `x` had been rounded.
            Op::Input => 1.0,
            Op::Const(_) | Op::View { .. } | Op::Concat { .. } | Op::Gather { .. } => continue,
            Op::Map { body, .. } => body.nodes.iter().map(ulps).fold(0.0, f64::max),
            _ => {
                for (i, v) in graph.node(*n).inputs.iter().enumerate() {
                    let d = graph.ty(*v).dtype;
                    if d.is_float() {
                        number += 1;
                        let given = g.node(*n).inputs[i];
                        let near = shaken(&mut g, given, unit(d), number)?;
                        g.set_input(*n, i, near);
                    }
                }
                1.0
            }
        };
        if dtype.is_float() && steps > 0.0 {
            number += 1;
            let v = Value::from(*n);
            let near = shaken(&mut g, v, steps * unit(dtype), number)?;
            let by = near.node;
            g.replace_uses(v, near);
            g.set_input(by, 0, v);
        }
    }
    Ok(g)
}

/// The permitted error of a device in units in the last place: WGSL's "Accuracy of Concrete Floating Point
/// Expressions", with 50 % more for functions for which it permits more than a few units.
fn ulps(n: &ScalarNode) -> f64 {
    use UnaryOp::*;
    match n {
        ScalarNode::Arg(_) | ScalarNode::Const(_) | ScalarNode::Index(_) | ScalarNode::Select(..) => 0.0,
        ScalarNode::Unary(Neg | Abs, _) | ScalarNode::Bitcast(..) => 0.0,
        ScalarNode::Binary(BinaryOp::Min | BinaryOp::Max, ..) => 0.0,
        ScalarNode::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul, ..) | ScalarNode::Cast(..) => 1.0,
        ScalarNode::Binary(BinaryOp::Div, ..) | ScalarNode::Unary(Sqrt | Rsqrt | Recip, _) => 2.5,
        _ => 16.0,
    }
}

/// `v` with each element multiplied by a random factor between `1 - by` and `1 + by`.
fn shaken(g: &mut Graph, v: Value, by: f64, number: u64) -> Result<Value, String> {
    let mut b = Builder::new(g, "moved");
    let shape = b.shape(v);
    let mut f = ScalarFn::default();
    let mut at = Poly::constant(number as i64);
    for i in 0..shape.len() {
        at = &at + &(&Poly::var(i) * &Poly::constant([7919, 104_729, 1299, 17, 5, 3][i % 6]));
    }
    let constant = |f: &mut ScalarFn, c: f64| f.push(ScalarNode::Const(Scalar::from_f64(DType::F64, c)));
    let x = f.push(ScalarNode::Arg(0));
    let at = f.push(ScalarNode::Index(at));
    let at = f.push(ScalarNode::Cast(DType::F64, at));
    // The late digits of a sine serve as a pseudorandom number.
    let (fast, far, by, half) = (
        constant(&mut f, 78.233),
        constant(&mut f, 43_758.545_3),
        constant(&mut f, 2.0 * by),
        constant(&mut f, 0.5),
    );
    let one = constant(&mut f, 1.0);
    let at = f.push(ScalarNode::Binary(BinaryOp::Mul, at, fast));
    let s = f.push(ScalarNode::Unary(UnaryOp::Sin, at));
    let s = f.push(ScalarNode::Binary(BinaryOp::Mul, s, far));
    let whole = f.push(ScalarNode::Unary(UnaryOp::Floor, s));
    let s = f.push(ScalarNode::Binary(BinaryOp::Sub, s, whole));
    let s = f.push(ScalarNode::Binary(BinaryOp::Sub, s, half));
    let s = f.push(ScalarNode::Binary(BinaryOp::Mul, s, by));
    let s = f.push(ScalarNode::Binary(BinaryOp::Add, s, one));
    f.push(ScalarNode::Binary(BinaryOp::Mul, x, s));
    b.map_to(f, &[v], shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::TensorType;

    fn of(f: impl FnOnce(&mut Builder, Value) -> Value, x: f32) -> Result<Bounded, String> {
        let mut g = Graph::new();
        let input = g.add_input("x", TensorType::new(DType::F32, [1i64.into()]));
        let value = f(&mut Builder::new(&mut g, "test"), input);
        g.outputs.push(Border { name: "y".into(), value });
        let inputs = BTreeMap::from([("x".to_owned(), Tensor::from_f32(vec![1], &[x]))]);
        bounded(&g, &inputs).map(|mut b| b.remove(0))
    }

    #[test]
    fn sums_that_cancel_may_be_off_by_more() {
        let sum = |c: f64| {
            move |b: &mut Builder, x: Value| {
                let s = b.binary_scalar(BinaryOp::Add, x, c).unwrap();
                b.binary_scalar(BinaryOp::Sub, s, c).unwrap()
            }
        };
        let (near, far) = (of(sum(1.0), 0.25).unwrap(), of(sum(1e4), 0.25).unwrap());
        assert_eq!(near.want.scalars().unwrap()[0].as_f64(), 0.25);
        assert!(near.error[0] < 2e-6 && far.error[0] > 1e-4 && far.error[0] < 1e-1, "{near:?} {far:?}");
        assert!(near.check(&Tensor::from_f32(vec![1], &[0.250_000_1])).is_ok());
        assert!(near.check(&Tensor::from_f32(vec![1], &[0.251])).unwrap_err().contains("0 is 2.5"));
        assert!(near.check(&Tensor::from_f32(vec![1], &[f32::NAN])).is_err());
        assert!(near.check(&Tensor::from_f32(vec![1, 1], &[0.25])).is_err());
    }

    #[test]
    fn moves_are_spread() {
        let mut g = Graph::new();
        let one = Builder::new(&mut g, "test").scalar(DType::F64, 1.0);
        let ones = Builder::new(&mut g, "test").expand(one, &[20i64.into(), 30i64.into()]).unwrap();
        let mut square = vec![0.0; 600];
        for number in 0..5u64 {
            let mut g = g.clone();
            let value = shaken(&mut g, ones, 0.5, 1000 * number + 3).unwrap();
            g.outputs.push(Border { name: "y".into(), value });
            let v = evaluate(&g, &BTreeMap::new()).unwrap().remove(0).scalars().unwrap();
            square.iter_mut().zip(v).for_each(|(s, v)| *s = f64::max(*s, (v.as_f64() - 1.0).abs()));
        }
        assert!(square.iter().all(|s| *s > 0.02 && *s <= 0.5), "{square:?}");
        assert!(square.iter().filter(|s| **s > 0.25).count() > 550, "{square:?}");
    }

    #[test]
    fn ranges_are_those_of_the_types() {
        let times = |c: f64| move |b: &mut Builder, x: Value| b.binary_scalar(BinaryOp::Mul, x, c).unwrap();
        assert!(of(times(1e30), 1e5).is_ok());
        assert!(of(times(1e30), 1e10).unwrap_err().contains("f32"));
        assert!(of(times(1e-30), 1e-10).is_err());
        let half = |b: &mut Builder, x: Value| b.cast(x, DType::F16).unwrap();
        assert!(of(half, 1e4).is_ok());
        assert!(of(half, 1e5).unwrap_err().contains("f16"));
    }
}
