//! A graph without the rounding of narrow floats between nodes.
//!
//! The evaluator rounds what a node of f16 or bf16 gives; a kernel rounds what it stores, and which of a model's values that
//! are is a matter of fusion. How far the two evaluations are apart bounds what that rounding does to a result.

use wgfc_ir::{DType, Graph, Op, Scalar, ScalarFn, ScalarNode, Tensor};

fn is_narrow(d: DType) -> bool {
    matches!(d, DType::F16 | DType::BF16)
}

fn wide_scalar(c: Scalar) -> Scalar {
    if is_narrow(c.dtype) { Scalar::from_f64(DType::F32, c.as_f64()) } else { c }
}

/// f16 and bf16 as f32.
pub fn wide_tensor(t: &Tensor) -> Option<Tensor> {
    if !is_narrow(t.dtype) {
        return Some(t.clone());
    }
    let v: Vec<Scalar> = t.scalars()?.into_iter().map(wide_scalar).collect();
    Some(Tensor::from_scalars(DType::F32, t.shape.clone(), &v))
}

/// The same function of f32; conversions that it names still round.
fn wide_function(f: &ScalarFn, arguments: &[DType]) -> Option<ScalarFn> {
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
            ScalarNode::Const(c) => push(ScalarNode::Const(wide_scalar(*c))),
            ScalarNode::Arg(_) | ScalarNode::Index(_) => push(n.clone()),
            ScalarNode::Unary(op, a) => push(ScalarNode::Unary(*op, r(a))),
            ScalarNode::Binary(op, a, b) => push(ScalarNode::Binary(*op, r(a), r(b))),
            ScalarNode::Select(c, a, b) => push(ScalarNode::Select(r(c), r(a), r(b))),
            ScalarNode::Cast(to, a) => push(ScalarNode::Cast(*to, r(a))),
            ScalarNode::Bitcast(to, a) => {
                let from = *types.get(*a as usize)?;
                let bits = if is_narrow(from) { push(ScalarNode::Cast(from, r(a))) } else { r(a) };
                push(ScalarNode::Bitcast(*to, bits))
            }
        };
        if is_narrow(*t) && matches!(n, ScalarNode::Cast(..) | ScalarNode::Bitcast(..)) {
            new = push(ScalarNode::Cast(DType::F32, new));
        }
        at.push(new);
    }
    Some(out)
}

/// The graph in which f16 and bf16 are f32; `None` where it has none of them.
pub fn widened(graph: &Graph) -> Option<Graph> {
    let mut g = graph.clone();
    widen(&mut g)?.then_some(g)
}

/// Whether there was something to widen; `None` where it cannot be.
fn widen(g: &mut Graph) -> Option<bool> {
    let mut changed = false;
    for n in g.topo().ok()? {
        let mut op = g.node(n).op.clone();
        match &mut op {
            Op::Const(t) if is_narrow(t.dtype) => *t = wide_tensor(t)?.into(),
            Op::View { fill: Some(f), .. } => *f = wide_scalar(*f),
            Op::If { then_branch, else_branch } => {
                changed |= widen(then_branch)? | widen(else_branch)?;
            }
            Op::While { body, .. } | Op::Scan { body, .. } => changed |= widen(body)?,
            _ => {}
        }
        g.node_mut(n).op = op;
    }
    // Functions last: their operands' types are still those of the graph.
    let functions = g.topo().ok()?.into_iter().filter_map(|n| match &g.node(n).op {
        Op::Map { body, .. } => {
            let arguments: Vec<DType> = g.node(n).inputs.iter().map(|v| g.ty(*v).dtype).collect();
            Some((n, wide_function(body, &arguments)))
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
            if is_narrow(ty.dtype) {
                ty.dtype = DType::F32;
                changed = true;
            }
        }
    }
    Some(changed)
}

/// `want`, moved towards `got` by what rounding between nodes may do: `wide` is the same without it.
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
    use std::collections::BTreeMap;
    use wgfc_ir::eval::evaluate;
    use wgfc_ir::{BinaryOp, Border, Builder, UnaryOp};

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
        let wide = widened(&g).expect("there is f16");
        wgfc_ir::verify::verify(&wide).expect("a sound graph");
        let (a, b) = (evaluate(&g, &BTreeMap::new()).unwrap(), evaluate(&wide, &BTreeMap::new()).unwrap());
        assert_eq!((values(&a[0]), b[0].dtype), (vec![0.0], DType::F32));
        assert!((values(&b[0])[0] - 0.001).abs() < 1e-6, "{:?}", values(&b[0]));
        let root = values(&b[1])[0];
        assert_eq!(root, Scalar::from_f64(DType::F16, root).as_f64());
        assert!(widened(&wide).is_none());
    }

    #[test]
    fn what_is_wanted_moves_no_further_than_rounding_does() {
        let wide = Tensor::from_f32(vec![4], &[1.5, 1.0, 3.0, f32::INFINITY]);
        let got = halves(&[1.75, 1.25, f64::NAN, 7.0]);
        let moved = towards(&halves(&[1.0, 1.0, 2.0, 7.0]), &wide, &got).unwrap();
        assert_eq!(values(&moved), [1.75, 1.0, 2.0, 7.0]);
    }
}
