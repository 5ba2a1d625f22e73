//! The degree of a value in the seed of the backward pass.
//!
//! | degree | values |
//! |---|---|
//! | [`Degree::Zero`] | zeros, which are of any degree |
//! | [`Degree::Constant`] | do not change with the seed: the data, the parameters, the forward pass |
//! | [`Degree::Linear`] | are multiplied by `s` if the seed is, for each `s > 0`: gradients |
//!
//! An operator whose operands have degrees for which its result has none is not homogeneous: sums of a constant and a linear value,
//! products and quotients of two linear values, and functions, comparisons and integers of one.

use wgfc_ir::{BinaryOp, DType, Op, ReduceOp, Scalar, ScalarFn, ScalarNode, Tensor, UnaryOp};

/// The degree of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Degree {
    /// It is 0 and has every degree.
    Zero,
    /// It does not depend on the seed.
    Constant,
    /// It is linear in the seed.
    Linear,
}
use Degree::{Constant, Linear, Zero};

/// The degree of the results of an operator whose operands have these degrees; `None` if it is not homogeneous.
pub(super) fn of(op: &Op, operands: &[Degree]) -> Option<Degree> {
    let fixed = |all: &[Degree]| all.iter().all(|d| *d != Linear);
    let first = || operands.first().copied().unwrap_or(Constant);
    match op {
        Op::Input => Some(Constant),
        Op::Const(t) => Some(if is_zero(t) { Zero } else { Constant }),
        Op::Map { body, .. } => function(body, operands),
        Op::View { fill: None, .. } => Some(first()),
        Op::View { fill: Some(fill), .. } => sum(first(), constant(*fill)),
        Op::Reduce { op, .. } | Op::PrefixScan { op, .. } => match (op, first()) {
            (ReduceOp::Prod, Linear) => None,
            // The extremes of no elements are infinite.
            (ReduceOp::Sum, Zero) => Some(Zero),
            (_, Zero) => Some(Constant),
            (_, d) => Some(d),
        },
        Op::Contract(_) => product(first(), operands.get(1).copied().unwrap_or(Constant)),
        Op::Gather { .. } => fixed(operands.get(1..)?).then(first),
        Op::Place { .. } => fixed(operands.get(1..)?).then(first),
        Op::Scatter { reduce: Some(ReduceOp::Prod), .. } => fixed(operands).then_some(Constant),
        Op::Scatter { .. } => match fixed(operands.get(2..)?) {
            true => sum(first(), *operands.get(1)?),
            false => None,
        },
        Op::Concat { .. } => operands.iter().try_fold(Zero, |all, d| sum(all, *d)),
        Op::Attention { .. } => {
            let others = operands.iter().enumerate().all(|(i, d)| i == 2 || *d != Linear);
            others.then(|| operands.get(2).copied().unwrap_or(Constant))
        }
        Op::ArgReduce { .. }
        | Op::TopK { .. }
        | Op::Sort { .. }
        | Op::Softmax { .. }
        | Op::Norm { .. }
        | Op::If { .. }
        | Op::While { .. }
        | Op::Scan { .. } => fixed(operands).then_some(Constant),
    }
}

/// Whether all elements of a tensor of floats are 0.
fn is_zero(t: &Tensor) -> bool {
    t.dtype.is_float() && t.bytes().is_some_and(|bytes| bytes.iter().all(|b| *b == 0))
}

fn constant(s: Scalar) -> Degree {
    if s.dtype.is_float() && s.as_f64() == 0.0 { Zero } else { Constant }
}

/// The degree of a sum, or of a choice between two values.
fn sum(a: Degree, b: Degree) -> Option<Degree> {
    match (a, b) {
        (Zero, d) | (d, Zero) => Some(d),
        (a, b) => (a == b).then_some(a),
    }
}

fn product(a: Degree, b: Degree) -> Option<Degree> {
    match (a, b) {
        (Zero, _) | (_, Zero) => Some(Zero),
        (Linear, Linear) => None,
        (Linear, Constant) | (Constant, Linear) => Some(Linear),
        (Constant, Constant) => Some(Constant),
    }
}

/// The degree of the result of a scalar function.
fn function(body: &ScalarFn, operands: &[Degree]) -> Option<Degree> {
    let mut all: Vec<Degree> = vec![];
    for n in &body.nodes {
        let at = |i: &u32| all.get(*i as usize).copied();
        let fixed = |of: &[Option<Degree>]| of.iter().all(|d| *d != Some(Linear)).then_some(Constant);
        let degree = match n {
            ScalarNode::Arg(i) => *operands.get(*i as usize)?,
            ScalarNode::Const(s) => constant(*s),
            ScalarNode::Index(_) => Constant,
            ScalarNode::Unary(UnaryOp::Neg | UnaryOp::Abs, a) => at(a)?,
            ScalarNode::Unary(_, a) => fixed(&[at(a)])?,
            ScalarNode::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Min | BinaryOp::Max, a, b) => {
                sum(at(a)?, at(b)?)?
            }
            ScalarNode::Binary(BinaryOp::Mul, a, b) => product(at(a)?, at(b)?)?,
            ScalarNode::Binary(BinaryOp::Div | BinaryOp::Quot, a, b) if at(b)? == Constant => at(a)?,
            ScalarNode::Binary(_, a, b) => fixed(&[at(a), at(b)])?,
            ScalarNode::Select(c, a, b) => match at(c)? {
                Linear => return None,
                _ => sum(at(a)?, at(b)?)?,
            },
            ScalarNode::Cast(to, a) if to.is_float() && *to != DType::F8E8M0 => at(a)?,
            ScalarNode::Cast(_, a) | ScalarNode::Bitcast(_, a) => fixed(&[at(a)])?,
        };
        all.push(degree);
    }
    all.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The degree of `text`, an expression of the operands `g`, which is linear, and `x`, which is constant.
    fn degree(build: impl FnOnce(&mut ScalarFn, u32, u32)) -> Option<Degree> {
        let mut f = ScalarFn::default();
        let (g, x) = (f.push(ScalarNode::Arg(0)), f.push(ScalarNode::Arg(1)));
        build(&mut f, g, x);
        function(&f, &[Linear, Constant])
    }

    #[test]
    fn functions_have_degrees() {
        let binary = |op: BinaryOp| degree(|f, g, x| _ = f.push(ScalarNode::Binary(op, g, x)));
        assert_eq!(binary(BinaryOp::Mul), Some(Linear));
        assert_eq!(binary(BinaryOp::Div), Some(Linear));
        assert_eq!(binary(BinaryOp::Add), None);
        assert_eq!(binary(BinaryOp::Lt), None);
        let twice = |op: BinaryOp| degree(|f, g, _| _ = f.push(ScalarNode::Binary(op, g, g)));
        assert_eq!(twice(BinaryOp::Add), Some(Linear));
        assert_eq!(twice(BinaryOp::Mul), None);
        assert_eq!(twice(BinaryOp::Div), None);
        // The derivative of a rectifier: 0, or the gradient, by the sign of a value of the forward pass.
        let rectified = |c: bool| {
            degree(|f, g, x| {
                let zero = f.push(ScalarNode::Const(Scalar::from_f64(DType::F32, 0.0)));
                let tested = f.push(ScalarNode::Binary(BinaryOp::Gt, if c { x } else { g }, zero));
                f.push(ScalarNode::Select(tested, g, zero));
            })
        };
        assert_eq!(rectified(true), Some(Linear));
        assert_eq!(rectified(false), None);
        assert_eq!(degree(|f, g, _| _ = f.push(ScalarNode::Unary(UnaryOp::Sqrt, g))), None);
        assert_eq!(degree(|f, _, x| _ = f.push(ScalarNode::Unary(UnaryOp::Sqrt, x))), Some(Constant));
    }
}
