//! Selection of the quotients that must be rounded correctly, as IEEE 754 requires.
//!
//! The division of a device may be some units in the last place off, and rewriting may replace a division by a
//! product. If an integer is computed from a quotient, or the quotient is compared for equality, the last bit matters:
//! `floor(a / b)`, `round(x / scale)`, a scale that is itself a quotient. Such a `div` becomes a [`BinaryOp::Quot`],
//! which no rewrite rule matches; all other divisions stay cheap.

use rustc_hash::FxHashMap;
use wgfc_ir::{BinaryOp, DType, Graph, Node, Op, ReduceOp, Scalar, ScalarFn, ScalarNode, UnaryOp, Value};

/// The use of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    /// No integer is computed from it.
    #[default]
    Plain,
    /// An integer is eventually computed from it.
    Far,
    /// An integer is computed from it without another quotient in between.
    Near,
}

/// Marks the quotients of a graph from which integers are computed.
///
/// # Errors
/// If the graph has a cycle, or scalar functions have types that do not match.
pub fn mark(graph: &mut Graph) -> Result<(), String> {
    marked(graph).map(|_| ())
}

/// Marks quotients and returns the uses of the graph's inputs.
fn marked(graph: &mut Graph) -> Result<Vec<Use>, String> {
    let order = graph.topo().map_err(|_| "the graph has a cycle".to_owned())?;
    let mut same: FxHashMap<Value, bool> = FxHashMap::default();
    for n in &order {
        let is = reproducible(graph, graph.node(*n), &same)?;
        same.extend((0..graph.node(*n).outputs.len() as u32).map(|port| (Value { node: *n, port }, is)));
    }
    let mut uses: FxHashMap<Value, Use> = FxHashMap::default();
    for n in order.into_iter().rev() {
        let all = (0..graph.node(n).outputs.len() as u32).map(|port| Value { node: n, port });
        let own = all.filter_map(|v| uses.get(&v).copied()).max().unwrap_or_default();
        let node = graph.node(n);
        let inputs = node.inputs.clone();
        let through = |x: &Value| if graph.ty(*x).dtype.is_float() { own } else { Use::Plain };
        let of_inputs: Vec<Use> = match &node.op {
            Op::Map { body, .. } => {
                let types = arguments(graph, node);
                let known: Vec<bool> = inputs.iter().map(|x| same.get(x) == Some(&true)).collect();
                let zeros: Vec<bool> = inputs.iter().map(|x| is_zero(graph, *x)).collect();
                let (new, of_inputs) = function(body, (&types, &known, &zeros), own)?;
                if let (Some(new), Op::Map { body, .. }) = (new, &mut graph.node_mut(n).op) {
                    *body = new;
                }
                of_inputs
            }
            Op::View { .. }
            | Op::Gather { .. }
            | Op::Concat { .. }
            | Op::Place { .. }
            | Op::Scatter { .. }
            | Op::Reduce { op: ReduceOp::Max | ReduceOp::Min, .. } => inputs.iter().map(through).collect(),
            Op::If { .. } | Op::While { .. } | Op::Scan { .. } => nested(&mut graph.node_mut(n).op)?,
            _ => vec![],
        };
        for (x, u) in inputs.into_iter().zip(of_inputs) {
            let slot = uses.entry(x).or_default();
            *slot = u.max(*slot);
        }
    }
    Ok(graph.inputs.iter().map(|b| uses.get(&b.value).copied().unwrap_or_default()).collect())
}

/// Marks the subgraphs of an operator and returns the uses of its inputs in them.
fn nested(op: &mut Op) -> Result<Vec<Use>, String> {
    match op {
        Op::If { then_branch, else_branch } => {
            let (a, b) = (marked(then_branch)?, marked(else_branch)?);
            let both = a.into_iter().zip(b).map(|(a, b)| a.max(b));
            Ok([Use::Plain].into_iter().chain(both).collect())
        }
        Op::While { body, .. } | Op::Scan { body, .. } => marked(body),
        _ => Ok(vec![]),
    }
}

fn arguments(graph: &Graph, node: &Node) -> Vec<DType> {
    node.inputs.iter().map(|x| graph.ty(*x).dtype).collect()
}

/// Whether every implementation would compute the same bits if its quotients were correctly rounded; only then correct
/// rounding matters.
fn reproducible(graph: &Graph, node: &Node, same: &FxHashMap<Value, bool>) -> Result<bool, String> {
    let inputs = node.inputs.iter().all(|x| same.get(x) == Some(&true));
    let whole = node.outputs.iter().all(|o| !o.dtype.is_float());
    Ok(match &node.op {
        Op::Input | Op::Const(_) => true,
        Op::Map { body, .. } => {
            let types = body.types(&arguments(graph, node))?;
            inputs && body.nodes.iter().zip(types).all(|(n, t)| exact(n) || !t.is_float())
        }
        Op::View { .. }
        | Op::Gather { .. }
        | Op::Concat { .. }
        | Op::Place { .. }
        | Op::TopK { .. }
        | Op::Sort { .. }
        | Op::ArgReduce { .. }
        | Op::Reduce { op: ReduceOp::Max | ReduceOp::Min, .. }
        | Op::Scatter { reduce: None | Some(ReduceOp::Max | ReduceOp::Min), .. } => inputs,
        Op::Reduce { .. } | Op::PrefixScan { .. } | Op::Contract(_) | Op::Scatter { .. } => inputs && whole,
        _ => false,
    })
}

/// Whether a scalar operator gives the same bits in every implementation.
fn exact(n: &ScalarNode) -> bool {
    use UnaryOp::*;
    match n {
        ScalarNode::Unary(op, _) => {
            matches!(op, Neg | Abs | Sign | Floor | Ceil | Round | Trunc | Recip | Not | IsNan | IsInf)
        }
        ScalarNode::Binary(op, ..) => !matches!(op, BinaryOp::Pow | BinaryOp::Special(_)),
        _ => true,
    }
}

/// Whether a value is the constant 0.
fn is_zero(graph: &Graph, v: Value) -> bool {
    match &graph.node(v.node).op {
        Op::Const(t) if t.numel() == 1 => t.scalars().is_some_and(|s| s.iter().all(|s| s.as_f64() == 0.0)),
        _ => false,
    }
}

/// The function with its quotients marked, or `None` if there are none to mark, and the uses of its operands. Given
/// for each operand are its type, whether every implementation computes the same bits for it, and whether it is 0.
fn function(
    f: &ScalarFn,
    (arguments, known, zeros): (&[DType], &[bool], &[bool]),
    own: Use,
) -> Result<(Option<ScalarFn>, Vec<Use>), String> {
    let types = f.types(arguments)?;
    let float = |i: u32| types[i as usize].is_float();
    let mut same: Vec<bool> = vec![];
    for n in &f.nodes {
        let of = |i: &u32| same[*i as usize];
        same.push(match n {
            ScalarNode::Arg(i) => known.get(*i as usize) == Some(&true),
            ScalarNode::Const(_) | ScalarNode::Index(_) => true,
            ScalarNode::Unary(_, a) | ScalarNode::Cast(_, a) | ScalarNode::Bitcast(_, a) => of(a) && exact(n),
            ScalarNode::Binary(_, a, b) => of(a) && of(b) && exact(n),
            ScalarNode::Select(a, b, c) => of(a) && of(b) && of(c),
        });
    }
    let zero = |i: u32| match &f.nodes[i as usize] {
        ScalarNode::Const(c) => c.as_f64() == 0.0,
        ScalarNode::Arg(a) => zeros.get(*a as usize) == Some(&true),
        _ => false,
    };
    let mut uses = vec![Use::Plain; f.nodes.len()];
    let mut inputs = vec![Use::Plain; arguments.len()];
    let mut wanted = vec![false; f.nodes.len()];
    if let Some(root) = uses.last_mut() {
        *root = own;
    }
    for (i, n) in f.nodes.iter().enumerate().rev() {
        let own = if types[i].is_float() { uses[i] } else { Use::Plain };
        let mut give = |x: u32, u: Use| {
            if float(x) {
                uses[x as usize] = uses[x as usize].max(u);
            }
        };
        let far = own.min(Use::Far);
        match *n {
            ScalarNode::Arg(a) => {
                if let Some(slot) = inputs.get_mut(a as usize) {
                    *slot = own.max(*slot);
                }
            }
            ScalarNode::Unary(UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc, a) => {
                give(a, Use::Near);
            }
            ScalarNode::Unary(UnaryOp::Neg | UnaryOp::Abs, a) => give(a, own),
            ScalarNode::Unary(UnaryOp::Recip, a) => {
                wanted[i] = own == Use::Near || own == Use::Far && same[i];
                give(a, far);
            }
            ScalarNode::Unary(_, a) => give(a, far),
            ScalarNode::Cast(to, a) if to.is_float() && to.bits() > 8 => give(a, own),
            ScalarNode::Cast(DType::Bool, _) | ScalarNode::Bitcast(..) => {}
            ScalarNode::Cast(_, a) => give(a, Use::Near),
            ScalarNode::Binary(BinaryOp::Div, a, b) => {
                wanted[i] = own == Use::Near || own == Use::Far && same[i];
                give(a, far);
                give(b, far);
            }
            ScalarNode::Binary(BinaryOp::Rem | BinaryOp::Mod, a, b) => {
                give(a, Use::Near);
                give(b, Use::Near);
            }
            // The last bit decides a comparison by size only if both sides are nearly equal; the sign of a quotient is
            // always right.
            ScalarNode::Binary(op, a, b) if op.is_comparison() => {
                if matches!(op, BinaryOp::Eq | BinaryOp::Ne) && !zero(a) && !zero(b) {
                    give(a, Use::Near);
                    give(b, Use::Near);
                }
            }
            ScalarNode::Binary(op, a, b) => {
                use BinaryOp::{Add, Max, Min, Mul, Sub};
                let u = if matches!(op, Add | Sub | Mul | Min | Max) { own } else { far };
                give(a, u);
                give(b, u);
            }
            ScalarNode::Select(_, a, b) => {
                give(a, own);
                give(b, own);
            }
            ScalarNode::Const(_) | ScalarNode::Index(_) => {}
        }
    }
    if !wanted.contains(&true) {
        return Ok((None, inputs));
    }
    let (mut new, mut of) = (ScalarFn::default(), vec![]);
    for (i, n) in f.nodes.iter().enumerate() {
        let at = |x: &u32| of[*x as usize];
        let n = match n {
            ScalarNode::Arg(_) | ScalarNode::Const(_) | ScalarNode::Index(_) => n.clone(),
            ScalarNode::Unary(UnaryOp::Recip, a) if wanted[i] => {
                let one = new.push(ScalarNode::Const(Scalar::from_f64(types[i], 1.0)));
                ScalarNode::Binary(BinaryOp::Quot, one, at(a))
            }
            ScalarNode::Unary(op, a) => ScalarNode::Unary(*op, at(a)),
            ScalarNode::Binary(_, a, b) if wanted[i] => ScalarNode::Binary(BinaryOp::Quot, at(a), at(b)),
            ScalarNode::Binary(op, a, b) => ScalarNode::Binary(*op, at(a), at(b)),
            ScalarNode::Select(a, b, c) => ScalarNode::Select(at(a), at(b), at(c)),
            ScalarNode::Cast(t, a) => ScalarNode::Cast(*t, at(a)),
            ScalarNode::Bitcast(t, a) => ScalarNode::Bitcast(*t, at(a)),
        };
        of.push(new.push(n));
    }
    Ok((Some(new), inputs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::build::Builder;
    use wgfc_ir::{Dim, TensorType};

    /// The numbers of marked and of unmarked quotients in a graph that `make` builds from two inputs.
    fn counted(make: impl Fn(&mut Builder<'_>, Value, Value) -> Result<Value, String>) -> (usize, usize) {
        let mut g = Graph::new();
        let shape = vec![Dim::from(4i64)];
        let [x, y] = ["x", "y"].map(|n| g.add_input(n, TensorType::new(DType::F32, shape.clone())));
        let out = make(&mut Builder::new(&mut g, "n"), x, y).unwrap();
        g.outputs.push(wgfc_ir::Border { name: "out".into(), value: out });
        mark(&mut g).unwrap();
        let bodies = g.node_ids().filter_map(|n| match &g.node(n).op {
            Op::Map { body, .. } => Some(body.nodes.clone()),
            _ => None,
        });
        let all: Vec<ScalarNode> = bodies.flatten().collect();
        let count = |op| all.iter().filter(|n| matches!(n, ScalarNode::Binary(o, ..) if *o == op)).count();
        (count(BinaryOp::Quot), count(BinaryOp::Div))
    }

    #[test]
    fn quotients_before_integers_are_marked() {
        use BinaryOp::*;
        let plain = |b: &mut Builder<'_>, x, y| b.binary(Div, x, y);
        assert_eq!(counted(plain), (0, 1));
        assert_eq!(
            counted(|b, x, y| {
                let q = b.binary(Div, x, y)?;
                b.unary(UnaryOp::Floor, q)
            }),
            (1, 0)
        );
        // The quotient is used through operators that move and add elements.
        assert_eq!(
            counted(|b, x, y| {
                let q = b.binary(Div, x, y)?;
                let q = b.reshape(q, vec![Dim::from(2i64), Dim::from(2i64)])?;
                let q = b.binary_scalar(Add, q, 0.5)?;
                b.cast(q, DType::I32)
            }),
            (1, 0)
        );
        // A scale that is itself a quotient.
        assert_eq!(
            counted(|b, x, y| {
                let scale = b.reduce(ReduceOp::Max, y, &[0], true)?;
                let scale = b.binary_scalar(Div, scale, 255.0)?;
                let q = b.binary(Div, x, scale)?;
                b.unary(UnaryOp::Round, q)
            }),
            (2, 0)
        );
        // A quotient of an exponential, whose last bit differs between implementations.
        assert_eq!(
            counted(|b, x, y| {
                let e = b.unary(UnaryOp::Exp, y)?;
                let scale = b.binary_scalar(Div, e, 255.0)?;
                let q = b.binary(Div, x, scale)?;
                b.unary(UnaryOp::Round, q)
            }),
            (1, 1)
        );
        assert_eq!(
            counted(|b, x, y| {
                let q = b.unary(UnaryOp::Recip, x)?;
                b.binary(Mod, q, y)
            }),
            (1, 0)
        );
        let compared = |with: f64| {
            move |b: &mut Builder<'_>, x, y| {
                let q = b.binary(Div, x, y)?;
                b.binary_scalar(Eq, q, with)
            }
        };
        assert_eq!(counted(compared(0.5)), (1, 0));
        assert_eq!(counted(compared(0.0)), (0, 1));
    }
}
