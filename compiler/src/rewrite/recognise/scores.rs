//! The scores of an attention under their masks and scales, and the masks as they are added.

use super::simple::{Simple, factor, simple};
use crate::rewrite::views::ViewMap;
use std::sync::Arc;
use wgfc_ir::lower::{finite_is_seen, unseen};
use wgfc_ir::{BinaryOp, Contract, DType, Dim, Graph, NodeId, Op, Poly, Scalar, ScalarFn, ScalarNode, Value};

/// The scores under their masks and scales. A `place` is the view that reads a value at positions of the
/// probabilities, `[batch…, s, t]`.
pub struct Scores {
    /// The product of queries and keys.
    pub contract: Contract,
    /// Its operands.
    pub inputs: (Value, Value),
    /// Where it is read.
    pub place: ViewMap,
    /// What is added, the last one first.
    pub mask: Vec<Mask>,
    /// The product of the factors.
    pub scale: f64,
    /// What computes all this, without the masks.
    pub absorbed: Vec<NodeId>,
}

/// Something added to the scores.
pub struct Mask {
    kind: Kind,
    value: Value,
    place: ViewMap,
}

enum Kind {
    /// A tensor that is added as it is.
    Add,
    /// This scalar where the condition holds (or fails), 0 elsewhere.
    Where { otherwise: bool, value: Scalar },
}

/// Whether `v` is read only once, and is no output.
pub fn private(graph: &Graph, v: Value) -> bool {
    !graph.is_output(v) && graph.uses(v).len() == 1
}

/// Peels masks, views and scales off the scores `v`.
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
        // What broadcasts to the scores is not the scores.
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
            f.mask.push(masked(m, Kind::Add)?);
            f
        }
        Simple::Choose { condition, x, constant, swapped } => {
            // Only a constant that no score reaches means the same added as chosen.
            if constant.as_f64() > -1e4 {
                return None;
            }
            let mut f = deeper(*x)?;
            f.mask.push(masked(*condition, Kind::Where { otherwise: !*swapped, value: *constant })?);
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

/// The view of a tensor of shape `of`, which broadcasts to a value of shape `to` that is read at `place`. Axes along which it
/// does not vary have extent 1.
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
    /// Its shape at positions of the probabilities.
    pub fn shape(&self) -> &[Dim] {
        &self.place.shape
    }

    /// What is added, of type `dtype`. With `empty_is_zero` as such an attention has it.
    pub fn build(
        &self,
        graph: &mut Graph,
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
            Kind::Add if own.dtype == dtype && !empty_is_zero => return Ok(x),
            Kind::Add if empty_is_zero => {
                let wide = if own.dtype == DType::F64 { DType::F64 } else { DType::F32 };
                let a = if own.dtype == wide { a } else { body.push(ScalarNode::Cast(wide, a)) };
                let m = finite_is_seen(&mut body, a, wide);
                if dtype != wide {
                    body.push(ScalarNode::Cast(dtype, m));
                }
            }
            Kind::Add => {
                // The least finite number stays finite in a narrower type.
                let least = body.push(ScalarNode::Const(least(own.dtype, dtype)));
                let m = body.push(ScalarNode::Binary(BinaryOp::Max, a, least));
                body.push(ScalarNode::Cast(dtype, m));
            }
            Kind::Where { otherwise, value } => {
                let number = value.as_f64();
                let out = match empty_is_zero {
                    true if number == f64::NEG_INFINITY => unseen(dtype),
                    true => Scalar::from_f64(dtype, number.max(f64::from(f32::MIN.next_up()))),
                    false => Scalar::from_f64(dtype, number.max(least(dtype, dtype).as_f64())),
                };
                let out = body.push(ScalarNode::Const(out));
                let zero = body.push(ScalarNode::Const(Scalar::from_f64(dtype, 0.0)));
                let (yes, no) = if *otherwise { (zero, out) } else { (out, zero) };
                body.push(ScalarNode::Select(a, yes, no));
            }
        }
        map(graph, body, &[x], origin)
    }
}

/// The least finite number of `of`, as a constant of type `dtype`.
fn least(dtype: DType, of: DType) -> Scalar {
    let v = if of == DType::F16 { -65504.0 } else { f64::from(f32::MIN) };
    Scalar::from_f64(dtype, v)
}

/// A map of operands that broadcast.
pub fn map(
    graph: &mut Graph,
    body: ScalarFn,
    inputs: &[Value],
    origin: &[Arc<str>],
) -> Result<Value, String> {
    let shape = crate::rewrite::views::broadcast(inputs.iter().map(|v| graph.ty(*v).shape.as_slice()))
        .ok_or("masks that do not broadcast")?;
    Ok(graph.push(Op::Map { body, shape }, inputs, origin)?.into())
}
