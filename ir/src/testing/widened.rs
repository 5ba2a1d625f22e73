//! A graph with its floats replaced by a wider type.

use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::Op;
use crate::scalar::{Scalar, ScalarFn, ScalarNode};
use crate::tensor::Tensor;

/// The type that replaces narrower floats, and the treatment of conversions to these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wide {
    /// f16 and bf16 become f32; a conversion to one of them still rounds to it.
    ///
    /// The evaluator rounds the result of each f16 or bf16 node; a kernel rounds only stored values, which depend on
    /// fusion. The distance between the two evaluations bounds the effect of that rounding on a result.
    F32,
    /// f16, bf16 and f32 become f64, and no conversion among floats rounds.
    F64,
}

impl Wide {
    fn dtype(self) -> DType {
        match self {
            Wide::F32 => DType::F32,
            Wide::F64 => DType::F64,
        }
    }
    fn widens(self, d: DType) -> bool {
        matches!(d, DType::F16 | DType::BF16) || (self == Wide::F64 && d == DType::F32)
    }
    fn scalar(self, c: Scalar) -> Scalar {
        if self.widens(c.dtype) { Scalar::from_f64(self.dtype(), c.as_f64()) } else { c }
    }

    /// A tensor converted to the wider type; `None` if its values are absent.
    pub fn tensor(self, t: &Tensor) -> Option<Tensor> {
        if !self.widens(t.dtype) {
            return Some(t.clone());
        }
        let v: Vec<Scalar> = t.scalars()?.into_iter().map(|c| self.scalar(c)).collect();
        Some(Tensor::from_scalars(self.dtype(), t.shape.clone(), &v))
    }

    /// The graph with narrower floats replaced by the wider type; `None` if it has none.
    pub fn graph(self, graph: &Graph) -> Option<Graph> {
        let mut g = graph.clone();
        widen(self, &mut g)?.then_some(g)
    }
}

/// The scalar function with wider floats.
fn wide_function(wide: Wide, f: &ScalarFn, arguments: &[DType]) -> Option<ScalarFn> {
    let types = f.types(arguments).ok()?;
    let mut out = ScalarFn::default();
    let mut at: Vec<u32> = vec![];
    for (n, t) in f.nodes.iter().zip(&types) {
        let r = |i: &u32| at[*i as usize];
        let mut push = |n: ScalarNode| {
            out.nodes.push(n);
            out.nodes.len() as u32 - 1
        };
        let mut new = match n {
            ScalarNode::Const(c) => push(ScalarNode::Const(wide.scalar(*c))),
            ScalarNode::Arg(_) | ScalarNode::Index(_) => push(n.clone()),
            ScalarNode::Unary(op, a) => push(ScalarNode::Unary(*op, r(a))),
            ScalarNode::Binary(op, a, b) => push(ScalarNode::Binary(*op, r(a), r(b))),
            ScalarNode::Select(c, a, b) => push(ScalarNode::Select(r(c), r(a), r(b))),
            ScalarNode::Cast(to, a) if wide == Wide::F64 && wide.widens(*to) => {
                push(ScalarNode::Cast(DType::F64, r(a)))
            }
            ScalarNode::Cast(to, a) => push(ScalarNode::Cast(*to, r(a))),
            ScalarNode::Bitcast(to, a) => {
                let from = *types.get(*a as usize)?;
                let bits = if wide.widens(from) { push(ScalarNode::Cast(from, r(a))) } else { r(a) };
                push(ScalarNode::Bitcast(*to, bits))
            }
        };
        let rounded =
            matches!(n, ScalarNode::Bitcast(..)) || (matches!(n, ScalarNode::Cast(..)) && wide == Wide::F32);
        if wide.widens(*t) && rounded {
            new = push(ScalarNode::Cast(wide.dtype(), new));
        }
        at.push(new);
    }
    Some(out)
}

/// Whether anything was widened; `None` if the graph cannot be widened.
fn widen(wide: Wide, g: &mut Graph) -> Option<bool> {
    let mut changed = false;
    for n in g.topo().ok()? {
        let mut op = g.node(n).op.clone();
        match &mut op {
            Op::Const(t) if wide.widens(t.dtype) => *t = wide.tensor(t)?.into(),
            Op::View { fill: Some(f), .. } => *f = wide.scalar(*f),
            Op::If { then_branch, else_branch } => {
                changed |= widen(wide, then_branch)? | widen(wide, else_branch)?;
            }
            Op::While { body, .. } | Op::Scan { body, .. } => changed |= widen(wide, body)?,
            _ => {}
        }
        g.node_mut(n).op = op;
    }
    // Functions are replaced last, because they need the original types of their operands.
    let functions = g.topo().ok()?.into_iter().filter_map(|n| match &g.node(n).op {
        Op::Map { body, .. } => {
            let arguments: Vec<DType> = g.node(n).inputs.iter().map(|v| g.ty(*v).dtype).collect();
            Some((n, wide_function(wide, body, &arguments)))
        }
        _ => None,
    });
    for (n, function) in functions.collect::<Vec<_>>() {
        if let Op::Map { body, .. } = &mut g.node_mut(n).op {
            *body = function?;
        }
    }
    for n in g.node_ids().collect::<Vec<_>>() {
        for ty in &mut g.node_mut(n).outputs {
            if wide.widens(ty.dtype) {
                ty.dtype = wide.dtype();
                changed = true;
            }
        }
    }
    Some(changed)
}

/// `want`, moved towards `got` by at most the effect of rounding between nodes: `wide` is the result without that
/// rounding.
pub fn towards(want: &Tensor, wide: &Tensor, got: &Tensor) -> Option<Tensor> {
    if want.shape != wide.shape || want.shape != got.shape || want.dtype != got.dtype {
        return None;
    }
    let (w, x, g) = (want.scalars()?, wide.scalars()?, got.scalars()?);
    let moved = |((w, x), g): ((&Scalar, &Scalar), &Scalar)| {
        let (a, b, c) = (w.as_f64(), x.as_f64(), g.as_f64());
        let apart = (a - b).abs();
        if w == g || (a.is_nan() && c.is_nan()) {
            return *w;
        }
        match want.dtype.is_float() && c.is_finite() && apart.is_finite() {
            true => Scalar::from_f64(want.dtype, c.clamp(a.min(b) - apart, a.max(b) + apart)),
            false if want.dtype.is_float() && a.is_finite() => *w,
            false if want.dtype.is_float() => Scalar::from_f64(want.dtype, b),
            false if x == g => *x,
            false => *w,
        }
    };
    let v: Vec<Scalar> = w.iter().zip(&x).zip(&g).map(moved).collect();
    Some(Tensor::from_scalars(want.dtype, want.shape.clone(), &v))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Builder;
    use crate::eval::evaluate;
    use crate::graph::Border;
    use crate::scalar::{BinaryOp, UnaryOp};
    use std::collections::BTreeMap;

    fn values(t: &Tensor) -> Vec<f64> {
        t.scalars().unwrap().iter().map(|s| s.as_f64()).collect()
    }
    fn halves(v: &[f64]) -> Tensor {
        let v: Vec<Scalar> = v.iter().map(|x| Scalar::from_f64(DType::F16, *x)).collect();
        Tensor::from_scalars(DType::F16, vec![v.len()], &v)
    }

    #[test]
    fn only_what_is_said_to_be_rounded_is() {
        let mut g = Graph::new();
        let (rounded, cast) = {
            let mut b = Builder::new(&mut g, "test");
            let (x, y) = (b.constant(halves(&[4.0])), b.constant(halves(&[0.001])));
            let sum = b.binary(BinaryOp::Add, x, y).unwrap();
            let rest = b.binary(BinaryOp::Sub, sum, x).unwrap();
            let wide = b.cast(rest, DType::F32).unwrap();
            let root = b.unary(UnaryOp::Sqrt, wide).unwrap();
            (rest, b.cast(root, DType::F16).unwrap())
        };
        for (name, value) in [("rest", rounded), ("root", cast)] {
            g.outputs.push(Border { name: name.into(), value });
        }
        let wide = Wide::F32.graph(&g).expect("there is f16");
        crate::verify::verify(&wide).expect("a sound graph");
        let (a, b) = (evaluate(&g, &BTreeMap::new()).unwrap(), evaluate(&wide, &BTreeMap::new()).unwrap());
        assert_eq!((values(&a[0]), b[0].dtype), (vec![0.0], DType::F32));
        assert!((values(&b[0])[0] - 0.001).abs() < 1e-6, "{:?}", values(&b[0]));
        let root = values(&b[1])[0];
        assert_eq!(root, Scalar::from_f64(DType::F16, root).as_f64());
        assert!(Wide::F32.graph(&wide).is_none());
    }

    #[test]
    fn what_is_wanted_moves_no_further_than_rounding_does() {
        let wide = Tensor::from_f32(vec![4], &[1.5, 1.0, 3.0, f32::INFINITY]);
        let got = halves(&[1.75, 1.25, f64::NAN, 7.0]);
        let moved = towards(&halves(&[1.0, 1.0, 2.0, 7.0]), &wide, &got).unwrap();
        assert_eq!(values(&moved), [1.75, 1.0, 2.0, 7.0]);
    }
}
