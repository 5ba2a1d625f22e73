//! A simplified form of maps with one scalar operator, for matchers.

use wgfc_ir::{BinaryOp, Graph, Op, Scalar, ScalarNode, UnaryOp, Value};

/// The parts of a map with one scalar operator.
pub enum Simple {
    /// A function of one operand.
    Unary(UnaryOp, Value),
    /// A conversion to another type.
    Cast(Value),
    /// A function of an operand and a constant.
    Scalar(BinaryOp, Value, f64),
    /// A scalar operator of two operands.
    Binary(BinaryOp, Value, Value),
    /// `if c { x } else { constant }`, or the other way round when `swapped`.
    Choose {
        /// The condition that decides.
        condition: Value,
        /// The operand that is chosen where the condition holds or, if `swapped`, fails.
        x: Value,
        /// The value that is selected elsewhere.
        constant: Scalar,
        /// Whether the operand is chosen where the condition fails.
        swapped: bool,
    },
}

/// The operator of `v`, if it is a map with one scalar operator on operands and constants.
pub fn simple(graph: &Graph, v: Value) -> Option<Simple> {
    let node = graph.node(v.node);
    let Op::Map { body, .. } = &node.op else { return None };
    let (last, leaves) = body.nodes.split_last()?;
    let arg = |i: u32| match leaves.get(i as usize)? {
        ScalarNode::Arg(a) => node.inputs.get(*a as usize).copied(),
        _ => None,
    };
    let number = |i: u32| match leaves.get(i as usize)? {
        ScalarNode::Const(c) => Some(*c),
        _ => None,
    };
    if !leaves.iter().all(|n| matches!(n, ScalarNode::Arg(_) | ScalarNode::Const(_))) {
        return None;
    }
    match last {
        ScalarNode::Unary(op, a) => Some(Simple::Unary(*op, arg(*a)?)),
        ScalarNode::Cast(_, a) => Some(Simple::Cast(arg(*a)?)),
        ScalarNode::Binary(op, a, b) => match (arg(*a), arg(*b), number(*a), number(*b)) {
            (Some(a), Some(b), ..) => Some(Simple::Binary(*op, a, b)),
            (Some(a), _, _, Some(c)) => Some(Simple::Scalar(*op, a, c.as_f64())),
            (_, Some(b), Some(c), _) if op.is_commutative() => Some(Simple::Scalar(*op, b, c.as_f64())),
            _ => None,
        },
        ScalarNode::Select(c, a, b) => match (arg(*a), arg(*b), number(*a), number(*b)) {
            (Some(x), _, _, Some(constant)) => {
                Some(Simple::Choose { condition: arg(*c)?, x, constant, swapped: false })
            }
            (_, Some(x), Some(constant), _) => {
                Some(Simple::Choose { condition: arg(*c)?, x, constant, swapped: true })
            }
            _ => None,
        },
        _ => None,
    }
}

/// The operand and the factor of a product or quotient with a constant, or of a negation.
pub fn factor(s: &Simple) -> Option<(Value, f64)> {
    match s {
        Simple::Scalar(BinaryOp::Mul, x, c) => Some((*x, *c)),
        Simple::Scalar(BinaryOp::Div, x, c) if *c != 0.0 => Some((*x, 1.0 / c)),
        Simple::Unary(UnaryOp::Neg, x) => Some((*x, -1.0)),
        _ => None,
    }
}
