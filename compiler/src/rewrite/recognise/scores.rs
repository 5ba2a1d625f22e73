//! The scores of an attention below their masks and scales, and the masks in additive form.

use super::simple::{Simple, factor, simple};
use crate::rewrite::views::ViewMap;
use std::sync::Arc;
use wgfc_ir::lower::{finite_is_seen, unseen};
use wgfc_ir::{BinaryOp, Contract, DType, Dim, Graph, NodeId, Op, Poly, Scalar, ScalarFn, ScalarNode, Value};

/// The scores below their masks and scales. `place` is the view that reads a value at positions of the probabilities,
/// `[batch…, s, t]`.
pub struct Scores {
    /// The product of queries and keys.
    pub contract: Contract,
    /// The operands of that product.
    pub inputs: (Value, Value),
    /// The view through which it is read.
    pub place: ViewMap,
    /// The masks applied to the scores, in this order.
    pub mask: Vec<Mask>,
    /// The product of all scale factors.
    pub scale: f64,
    /// The nodes that compute the scores, without the masks.
    pub absorbed: Vec<NodeId>,
}

/// A tensor that is added to the scores, or a number that replaces some of them.
pub struct Mask {
    kind: Kind,
    value: Value,
    place: ViewMap,
}

enum Kind {
    /// The tensor is added.
    Add,
    /// The scalar replaces the score where the condition holds (or, with `otherwise`, fails).
    Where { otherwise: bool, value: Scalar },
}

/// A finite number below this bound absorbs ordinary numbers that are added to it.
const ABSORBS: f64 = -1e30;

/// Whether `v` is read exactly once and is not an output.
pub fn private(graph: &Graph, v: Value) -> bool {
    !graph.is_output(v) && graph.uses(v).len() == 1
}

/// Strips masks, views and scales from the scores `v`.
pub fn scores(graph: &Graph, v: Value, place: ViewMap, depth: usize) -> Option<Scores> {
    if depth > 12 {
        return None;
    }
    let node = graph.node(v.node);
    if let Op::Contract(c) = &node.op {
        return Some(Scores {
            contract: c.clone(),
            inputs: (node.inputs[0], node.inputs[1]),
            place,
            mask: vec![],
            scale: 1.0,
            absorbed: vec![v.node],
        });
    }
    if let Some(view) = ViewMap::of(&node.op) {
        let x = node.inputs[0];
        let place = view.then(&place, &graph.ty(x).shape).filter(|p| p.fill.is_none())?;
        let mut found = private(graph, x).then(|| scores(graph, x, place, depth + 1)).flatten()?;
        found.absorbed.push(v.node);
        return Some(found);
    }
    let shape = &graph.ty(v).shape;
    let deeper = |x: Value| {
        // A tensor that is broadcast to the scores cannot be the scores themselves.
        let fits = &graph.ty(x).shape == shape && private(graph, x);
        fits.then(|| scores(graph, x, place.clone(), depth + 1)).flatten()
    };
    let masked = |value: Value, kind: Kind| {
        let place = broadcast(&graph.ty(value).shape, shape, &place)?;
        Some(Mask { kind, value, place })
    };
    let mut found = match &simple(graph, v)? {
        Simple::Binary(BinaryOp::Add, a, b) => {
            let (mut f, m) = match (deeper(*a), deeper(*b)) {
                (Some(f), _) => (f, *b),
                (None, Some(f)) => (f, *a),
                _ => return None,
            };
            // A row in which all scores are replaced gets its weights from the added mask, unless the constant absorbs
            // it.
            if f.mask.iter().filter_map(Mask::chosen).any(|c| c > ABSORBS) {
                return None;
            }
            f.mask.push(masked(m, Kind::Add)?);
            f
        }
        Simple::Choose { condition, x, constant, swapped } => {
            // The constant must be below all scores, so that replaced scores have no weight. Two masks must have the
            // same constant, because the larger one would win in rows in which all scores are replaced.
            if constant.as_f64() > -1e4 {
                return None;
            }
            let mut f = deeper(*x)?;
            if f.mask.iter().filter_map(Mask::chosen).any(|c| c != constant.as_f64()) {
                return None;
            }
            f.mask.push(masked(*condition, Kind::Where { otherwise: !*swapped, value: *constant })?);
            f
        }
        Simple::Cast(x) if graph.ty(*x).dtype.is_float() && graph.ty(v).dtype == DType::F32 => deeper(*x)?,
        s => {
            let (x, c) = factor(s)?;
            let mut f = deeper(x)?;
            // `(scores + mask)·c` is not matched.
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

/// The view of a tensor of shape `of` that broadcasts to a value of shape `to`, which is read at `place`. Axes along
/// which the tensor does not vary have extent 1.
fn broadcast(of: &[Dim], to: &[Dim], place: &ViewMap) -> Option<ViewMap> {
    let skip = to.len().checked_sub(of.len())?;
    let index: Vec<Poly> =
        (0..of.len()).map(|i| if of[i].is(1) { Poly::ZERO } else { place.index[skip + i].clone() }).collect();
    let fits = (0..of.len()).all(|i| of[i].is(1) || of[i] == to[skip + i]);
    let varies = |j: usize| index.iter().any(|p| p.vars().contains(&j));
    let shape = place.shape.iter().enumerate();
    let shape = shape.map(|(j, d)| if varies(j) { d.clone() } else { Dim::ONE }).collect();
    fits.then_some(ViewMap { shape, index, fill: None })
}

impl Mask {
    /// The shape of the mask at positions of the probabilities.
    pub fn shape(&self) -> &[Dim] {
        &self.place.shape
    }

    /// The number that replaces scores, if there is one.
    fn chosen(&self) -> Option<f64> {
        match self.kind {
            Kind::Add => None,
            Kind::Where { value, .. } => Some(value.as_f64()),
        }
    }

    /// The mask as numbers to add to the scores, combined with `before`, of type `dtype`; with `empty_is_zero`, in the
    /// form for an attention whose result is 0 in rows without visible keys.
    pub fn build(
        &self,
        graph: &mut Graph,
        before: Option<Value>,
        dtype: DType,
        empty_is_zero: bool,
        origin: &[Arc<str>],
    ) -> Result<Value, String> {
        let own = graph.ty(self.value).clone();
        let mut x = self.value;
        if !self.place.is_broadcast(&own.shape) {
            x = graph.push(self.place.clone().op(), &[x], origin)?.into();
        }
        let mut body = ScalarFn::default();
        let a = body.push(ScalarNode::Arg(0));
        match &self.kind {
            Kind::Add => {
                let added = if own.dtype == dtype { a } else { body.push(ScalarNode::Cast(dtype, a)) };
                let added = if empty_is_zero { finite_is_seen(&mut body, added, dtype) } else { added };
                if before.is_some() {
                    let before = body.push(ScalarNode::Arg(1));
                    body.push(ScalarNode::Binary(BinaryOp::Add, before, added));
                } else if added == a {
                    return Ok(x);
                }
            }
            Kind::Where { otherwise, value } => {
                let out = match empty_is_zero {
                    true if value.as_f64() == f64::NEG_INFINITY => unseen(dtype),
                    true => Scalar::from_f64(dtype, f64::from(f32::MIN.next_up())),
                    false => Scalar::from_f64(dtype, f64::from(f32::MIN)),
                };
                let out = body.push(ScalarNode::Const(out));
                let rest = match before {
                    Some(_) => body.push(ScalarNode::Arg(1)),
                    None => body.push(ScalarNode::Const(Scalar::from_f64(dtype, 0.0))),
                };
                let (yes, no) = if *otherwise { (rest, out) } else { (out, rest) };
                body.push(ScalarNode::Select(a, yes, no));
            }
        }
        let operands: Vec<Value> = [Some(x), before].into_iter().flatten().collect();
        map(graph, body, &operands, origin)
    }
}

/// The type in which masks are added, for queries of type `dtype`: f32 if the scores were f32, or if masks contain
/// numbers that absorb any score.
pub fn mask_type(graph: &Graph, masks: &[Mask], dtype: DType) -> DType {
    let exact = |m: &Mask| matches!(m.kind, Kind::Add) && graph.ty(m.value).dtype == dtype;
    if matches!(dtype, DType::F32 | DType::F64) || masks.iter().all(exact) { dtype } else { DType::F32 }
}

/// A map of operands that broadcast against each other.
fn map(graph: &mut Graph, body: ScalarFn, inputs: &[Value], origin: &[Arc<str>]) -> Result<Value, String> {
    let shape = crate::rewrite::views::broadcast(inputs.iter().map(|v| graph.ty(*v).shape.as_slice()))
        .ok_or("masks that do not broadcast")?;
    Ok(graph.push(Op::Map { body, shape }, inputs, origin)?.into())
}
