//! `softmax(q·kᵀ·scale + mask)·v` → [`Op::Attention`].
//!
//! The match follows the data, not the shapes of terms: a [`Contract`] names its axes, so whatever
//! order and grouping the exporter chose becomes a view of `q`, `k` or `v` that puts the axes in
//! order, composed with the views that are there already. Scales may stand on the scores, on `q`,
//! on `k`, or on several; heads that share keys and values (GQA) are views too.
//!
//! Not matched: a scale outside the mask's sum, dropout, a softmax whose result others read.

use crate::rewrite::canonical::topo;
use crate::rewrite::views::ViewMap;
use std::sync::Arc;
use wgfc_ir::op::broadcasts_to;
use wgfc_ir::{
    BinaryOp, Contract, DType, Dim, Graph, NodeId, Op, Poly, Scalar, ScalarFn, ScalarNode, UnaryOp, Value,
};

/// Replaces attentions; returns how many.
pub fn recognise(graph: &mut Graph) -> Result<usize, String> {
    let mut found = 0;
    for n in topo(graph)? {
        if let Some(m) = match_at(graph, n) {
            m.replace(graph, n)?;
            found += 1;
        }
    }
    graph.remove_dead();
    Ok(found)
}

/// An attention in the graph.
struct Match {
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Vec<Mask>,
    scale: f64,
    /// The view that puts `[batch…, s, e]` into the order of the contraction's result.
    out: ViewMap,
    absorbed: Vec<NodeId>,
}

/// A value and how its axes are put in order.
struct Operand {
    value: Value,
    view: ViewMap,
}

/// Something added to the scores.
enum Mask {
    /// A tensor that is added as it is.
    Add(Value),
    /// This scalar where the condition holds (or fails), 0 elsewhere.
    Where { condition: Value, otherwise: bool, value: Scalar },
}

/// The parts of a map of one scalar operator.
enum Simple {
    Unary(UnaryOp, Value),
    Cast(Value),
    /// Of an operand and a constant.
    Scalar(BinaryOp, Value, f64),
    /// A scalar operator of two operands.
    Binary(BinaryOp, Value, Value),
    /// `if c { x } else { constant }`, or the other way round when `swapped`.
    Choose {
        condition: Value,
        x: Value,
        constant: Scalar,
        swapped: bool,
    },
}

fn simple(graph: &Graph, v: Value) -> Option<Simple> {
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

/// The factor of a product or quotient with a constant.
fn factor(s: &Simple) -> Option<(Value, f64)> {
    match s {
        Simple::Scalar(BinaryOp::Mul, x, c) => Some((*x, *c)),
        Simple::Scalar(BinaryOp::Div, x, c) if *c != 0.0 => Some((*x, 1.0 / c)),
        Simple::Unary(UnaryOp::Neg, x) => Some((*x, -1.0)),
        _ => None,
    }
}

/// Whether `v` is read only once, and is no output.
fn private(graph: &Graph, v: Value) -> bool {
    !graph.is_output(v) && graph.uses(v).len() == 1
}

/// The scores under their masks and scales.
struct Scores {
    contract: Contract,
    inputs: (Value, Value),
    mask: Vec<Mask>,
    scale: f64,
    absorbed: Vec<NodeId>,
}

/// Peels masks, then scales, off the scores.
fn scores(graph: &Graph, v: Value, depth: usize) -> Option<Scores> {
    if depth > 8 || !private(graph, v) {
        return None;
    }
    let shape = &graph.ty(v).shape;
    let deeper = |x: Value| {
        // What broadcasts to the scores is not the scores.
        (&graph.ty(x).shape == shape).then(|| scores(graph, x, depth + 1)).flatten()
    };
    if let Op::Contract(c) = &graph.node(v.node).op {
        let i = &graph.node(v.node).inputs;
        return Some(Scores {
            contract: c.clone(),
            inputs: (i[0], i[1]),
            mask: vec![],
            scale: 1.0,
            absorbed: vec![v.node],
        });
    }
    let s = simple(graph, v)?;
    let mut found = match &s {
        Simple::Binary(BinaryOp::Add, a, b) => {
            let (mut f, m) = match (deeper(*a), deeper(*b)) {
                (Some(f), _) => (f, *b),
                (None, Some(f)) => (f, *a),
                _ => return None,
            };
            f.mask.push(Mask::Add(m));
            f
        }
        Simple::Choose { condition, x, constant, swapped } => {
            // Only a constant that no score reaches means the same added as chosen.
            if constant.as_f64() > -1e4 {
                return None;
            }
            let mut f = deeper(*x)?;
            f.mask.push(Mask::Where { condition: *condition, otherwise: !*swapped, value: *constant });
            f
        }
        Simple::Cast(x) if graph.ty(*x).dtype.is_float() && graph.ty(v).dtype == DType::F32 => deeper(*x)?,
        s => {
            let (x, c) = factor(s)?;
            let mut f = deeper(x)?;
            // (scores + mask)·c is another thing.
            if !f.mask.is_empty() {
                return None;
            }
            f.scale *= c;
            f
        }
    };
    found.absorbed.push(v.node);
    Some(found)
}

impl Operand {
    /// Composes the views before the value and, where a `scale` is given, multiplies factors into it.
    fn simplify(mut self, graph: &Graph, mut scale: Option<&mut f64>, absorbed: &mut Vec<NodeId>) -> Operand {
        loop {
            let v = self.value;
            let node = graph.node(v.node);
            if let Some(scale) = scale.as_deref_mut()
                && let Some((x, c)) = simple(graph, v).as_ref().and_then(factor)
                && graph.ty(x) == graph.ty(v)
            {
                *scale *= c;
                absorbed.push(v.node);
                self.value = x;
                continue;
            }
            if let Some(inner) = ViewMap::of(&node.op)
                && let Some(both) = inner.then(&self.view, &graph.ty(node.inputs[0]).shape)
            {
                self.view = both;
                self.value = node.inputs[0];
                continue;
            }
            return self;
        }
    }

    /// The value with its axes in order.
    fn build(&self, graph: &mut Graph, origin: &[Arc<str>]) -> Result<Value, String> {
        if self.view.is_identity(&graph.ty(self.value).shape) {
            return Ok(self.value);
        }
        Ok(graph.push(self.view.clone().op(), &[self.value], origin)?.into())
    }
}

/// Operand `x` with axes `labels`, as axes `want` of the extents `shape`; an axis it lacks is broadcast.
fn arranged(x: Value, labels: &[u8], want: &[u8], shape: &[Dim]) -> Option<Operand> {
    let index =
        labels.iter().map(|l| want.iter().position(|w| w == l).map(Poly::var)).collect::<Option<Vec<_>>>()?;
    Some(Operand { value: x, view: ViewMap { shape: shape.to_vec(), index, fill: None } })
}

fn match_at(graph: &Graph, n: NodeId) -> Option<Match> {
    let node = graph.node(n);
    let Op::Contract(pv) = &node.op else { return None };
    (0..2).find_map(|which| {
        let (p, v) = (node.inputs[which], node.inputs[1 - which]);
        let (lp, lv) = if which == 0 { (&pv.a, &pv.b) } else { (&pv.b, &pv.a) };
        match_with(graph, pv, p, lp, v, lv)
    })
}

fn match_with(graph: &Graph, pv: &Contract, p: Value, lp: &[u8], v: Value, lv: &[u8]) -> Option<Match> {
    let mut absorbed = vec![];
    let mut p = p;
    // Probabilities narrowed to the type of v.
    if let Some(Simple::Cast(x)) = simple(graph, p)
        && private(graph, p)
    {
        absorbed.push(p.node);
        p = x;
    }
    let node = graph.node(p.node);
    let Op::Softmax { axis, log: false } = node.op else { return None };
    let rank = lp.len();
    if axis + 1 != rank || rank < 2 || !private(graph, p) {
        return None;
    }
    absorbed.push(p.node);
    let mut s = scores(graph, node.inputs[0], 0)?;
    absorbed.append(&mut s.absorbed);
    let out = &s.contract.out;
    let (batch, s_axis) = (rank - 2, rank - 2);

    // The scores' axes are batch…, s, t: which operand brings s, which t.
    let (ls, lt) = (out[s_axis], out[rank - 1]);
    let (a, b) = (&s.contract.a, &s.contract.b);
    let (q, lq, k, lk) = if a.contains(&ls) && !b.contains(&ls) && b.contains(&lt) && !a.contains(&lt) {
        (s.inputs.0, a, s.inputs.1, b)
    } else if b.contains(&ls) && !a.contains(&ls) && a.contains(&lt) && !b.contains(&lt) {
        (s.inputs.1, b, s.inputs.0, a)
    } else {
        return None;
    };
    let [ld] = s.contract.k()[..] else { return None };
    let scores_shape = &graph.ty(p).shape;
    let extent = |x: Value, labels: &[u8], l: u8| {
        labels.iter().position(|m| *m == l).map(|i| graph.ty(x).shape[i].clone())
    };
    let with = |last: [Dim; 2]| -> Vec<Dim> { scores_shape[..batch].iter().cloned().chain(last).collect() };
    let d = extent(q, lq, ld)?;
    let labels = |last: [u8; 2]| -> Vec<u8> { out[..batch].iter().copied().chain(last).collect() };
    let q = arranged(q, lq, &labels([ls, ld]), &with([scores_shape[s_axis].clone(), d.clone()]))?;
    let k = arranged(k, lk, &labels([lt, ld]), &with([scores_shape[rank - 1].clone(), d]))?;

    // The second product: t is summed over, s and the batch axes stay, e is new.
    let [k2] = pv.k()[..] else { return None };
    let e: Vec<u8> = lv.iter().copied().filter(|l| !lp.contains(l)).collect();
    let [e] = e[..] else { return None };
    if lp[rank - 1] != k2 || lv.contains(&lp[s_axis]) || pv.out.len() != rank {
        return None;
    }
    let want: Vec<u8> = lp[..batch].iter().copied().chain([k2, e]).collect();
    let e_extent = extent(v, lv, e)?;
    let v = arranged(v, lv, &want, &with([scores_shape[rank - 1].clone(), e_extent.clone()]))?;
    let made = with([scores_shape[s_axis].clone(), e_extent]);
    let order: Vec<u8> = lp[..=s_axis].iter().copied().chain([e]).collect();
    let perm = pv.out.iter().map(|l| order.iter().position(|o| o == l)).collect::<Option<Vec<_>>>()?;
    let result = ViewMap::permutation(&made, &perm);

    let mut scale = s.scale;
    let q = q.simplify(graph, Some(&mut scale), &mut absorbed);
    let k = k.simplify(graph, Some(&mut scale), &mut absorbed);
    let v = v.simplify(graph, None, &mut absorbed);
    let dtype = |o: &Operand| graph.ty(o.value).dtype;
    let fits = (scale as f32).is_finite() && dtype(&q) == dtype(&k) && dtype(&k) == dtype(&v);
    let mask_fits = s.mask.iter().all(|m| {
        let shape = match m {
            Mask::Add(v) | Mask::Where { condition: v, .. } => &graph.ty(*v).shape,
        };
        broadcasts_to(shape, scores_shape)
    });
    (fits && mask_fits).then_some(Match { q, k, v, mask: s.mask, scale, out: result, absorbed })
}

impl Match {
    fn replace(self, graph: &mut Graph, n: NodeId) -> Result<(), String> {
        let mut origin = graph.node(n).origin.clone();
        for a in &self.absorbed {
            for o in &graph.node(*a).origin {
                if !origin.contains(o) {
                    origin.push(o.clone());
                }
            }
        }
        let (q, k, v) =
            (self.q.build(graph, &origin)?, self.k.build(graph, &origin)?, self.v.build(graph, &origin)?);
        let dtype = graph.ty(q).dtype;
        let mut inputs = vec![q, k, v];
        let mut sum: Option<Value> = None;
        for m in &self.mask {
            let m = m.build(graph, dtype, &origin)?;
            sum = Some(match sum {
                None => m,
                Some(s) => map(graph, ScalarFn::binary(BinaryOp::Add), &[s, m], &origin)?,
            });
        }
        inputs.extend(sum);
        let scale = (self.scale as f32).to_bits();
        let made = graph.push(Op::Attention { scale }, &inputs, &origin)?;
        let out: Value = if self.out.is_identity(&graph.ty(made.into()).shape) {
            made.into()
        } else {
            graph.push(self.out.op(), &[made.into()], &origin)?.into()
        };
        if graph.ty(out) != graph.ty(n.into()) {
            return Err(format!("an attention of type {} for {}", graph.ty(out), graph.ty(n.into())));
        }
        graph.node_mut(out.node).names = graph.node(n).names.clone();
        graph.replace_uses(n.into(), out);
        Ok(())
    }
}

impl Mask {
    fn build(&self, graph: &mut Graph, dtype: DType, origin: &[Arc<str>]) -> Result<Value, String> {
        let mut body = ScalarFn::default();
        let x = match self {
            Mask::Add(x) if graph.ty(*x).dtype == dtype => return Ok(*x),
            Mask::Add(x) => {
                let a = body.push(ScalarNode::Arg(0));
                // The least finite number stays finite in a narrower type.
                let least = body.push(ScalarNode::Const(least(graph.ty(*x).dtype, dtype)));
                let m = body.push(ScalarNode::Binary(BinaryOp::Max, a, least));
                body.push(ScalarNode::Cast(dtype, m));
                *x
            }
            Mask::Where { condition, otherwise, value } => {
                let c = body.push(ScalarNode::Arg(0));
                let limited = value.as_f64().max(least(dtype, dtype).as_f64());
                let out = body.push(ScalarNode::Const(Scalar::from_f64(dtype, limited)));
                let zero = body.push(ScalarNode::Const(Scalar::from_f64(dtype, 0.0)));
                let (a, b) = if *otherwise { (zero, out) } else { (out, zero) };
                body.push(ScalarNode::Select(c, a, b));
                *condition
            }
        };
        map(graph, body, &[x], origin)
    }
}

/// The least finite number of `of`, as a constant of type `dtype`.
fn least(dtype: DType, of: DType) -> Scalar {
    let v = if of == DType::F16 { -65504.0 } else { f64::from(f32::MIN) };
    Scalar::from_f64(dtype, v)
}

fn map(graph: &mut Graph, body: ScalarFn, inputs: &[Value], origin: &[Arc<str>]) -> Result<Value, String> {
    let shape = crate::rewrite::views::broadcast(inputs.iter().map(|v| graph.ty(*v).shape.as_slice()))
        .ok_or("masks that do not broadcast")?;
    Ok(graph.push(Op::Map { body, shape }, inputs, origin)?.into())
}
