//! Non-maximum suppression: among boxes that overlap, the one with the highest score is chosen.
//!
//! It is a scan. Each step chooses the best remaining box of each batch element and class, and removes the boxes that
//! overlap it too much. There are as many steps as boxes may be chosen per class.

use super::chosen::chosen;
use super::{Lowering, OpError, Result};
use wgfc_ir::build::Built;
use wgfc_ir::op::show;
use wgfc_ir::{
    BinaryOp, Body, Border, Builder, DType, Dim, GatherAxis, Graph, Op, Poly, ReduceOp, Tensor, TensorType,
    Value,
};

/// The score of a box that has been chosen or removed, or that must not be chosen.
const GONE: f64 = f32::MIN as f64;

/// Parameters of [`suppress`].
#[derive(Clone, Copy, Debug)]
pub struct Suppress {
    /// The maximum number of boxes chosen per class, an i64 of one element; by default 0.
    pub most: Option<Value>,
    /// The intersection over union above which a box is removed, an f32 of one element; by default 0.
    pub share: Option<Value>,
    /// The score that a box must exceed, an f32 of one element.
    pub least: Option<Value>,
    /// Whether boxes are given as centre and size rather than as two corners.
    pub centred: bool,
}

/// Non-maximum suppression of `boxes [N, n, 4]` with `scores [N, classes, n]`. The result is i64 `[chosen, 3]`: batch
/// index, class and box index.
pub fn suppress(cx: &mut Lowering, boxes: Value, scores: Value, p: &Suppress) -> Result {
    cx.require_rank(boxes, 3)?;
    cx.require_rank(scores, 3)?;
    let (sb, shape) = (cx.shape(boxes), cx.shape(scores));
    if sb[2].as_const().is_some_and(|c| c != 4) {
        let e = OpError::model(format!("boxes of shape {}: they need four coordinates", show(&sb)));
        return Err(e.operand(boxes));
    }
    for v in [boxes, scores] {
        if cx.dtype(v) != DType::F32 {
            return Err(OpError::model(format!("needs f32, got {}", cx.ty(v))).operand(v));
        }
    }
    cx.require_equal(&sb[2], &4i64.into());
    cx.require_equal(&sb[0], &shape[0]);
    cx.require_equal(&sb[1], &shape[2]);
    let [batch, classes, n] = [0, 1, 2].map(|d| shape[d].clone());
    let most = match p.most {
        Some(v) => scalar(cx, v, DType::I64)?,
        None => cx.int(DType::I64, 0),
    };
    let steps = match cx.numbers(most).and_then(|m| Some(*m.first()? as i64)) {
        Some(known) => n.min_of(&known.max(0).into(), &[]),
        None => n.clone(),
    };
    if steps.is(0) {
        return Ok(cx.constant(Tensor::from_i64(vec![0, 3], &[])));
    }
    cx.require_open_sizes(scores)?;
    let limit = cx.int(DType::I64, i64::from(i32::MAX));
    let most = cx.binary(BinaryOp::Min, most, limit)?;
    let most = cx.cast(most, DType::I32)?;
    let left = match p.least {
        Some(v) => {
            let threshold = scalar(cx, v, DType::F32)?;
            let high = cx.binary(BinaryOp::Gt, scores, threshold)?;
            let gone = cx.scalar(DType::F32, GONE);
            cx.select(high, scores, gone)?
        }
        None => scores,
    };
    let corners = corners(cx, boxes, p.centred)?;
    let share = match p.share {
        Some(v) => scalar(cx, v, DType::F32)?,
        None => cx.scalar(DType::F32, 0.0),
    };
    let numbers = cx.iota(std::slice::from_ref(&steps), Poly::var(0), DType::I32)?;
    let inputs = [left, numbers, corners, share, most];
    let op = Op::Scan {
        body: Box::new(step(cx, &inputs)?),
        carried: 1,
        scanned: 1,
        reverse_inputs: vec![false],
        reverse_outputs: vec![false],
    };
    let node = cx.push(op, &inputs)?.node;
    // From `[step, batch, class]` to the order of the result: batch, class, step.
    let picked = cx.transpose(Value { node, port: 1 }, &[1, 2, 0])?;
    let all = &(&batch * &classes) * &steps;
    let picked = cx.reshape(picked, vec![all.clone()])?;
    let some = cx.binary_scalar(BinaryOp::Ge, picked, 0.0)?;
    let places = chosen(cx, some, all)?.places;
    let boxes = cx.take(picked, places, 0)?;
    let rows = cx.shape(places)[0].clone();
    let (places, boxes) = (cx.unsqueeze(places, &[1])?, cx.unsqueeze(boxes, &[1])?);
    let mut f = Body::default();
    let (place, of_box, column) = (f.arg(0), f.arg(1), f.index(Poly::var(1)));
    let (per_batch, per_class, of) = (f.index(&classes * &steps), f.index(steps.clone()), f.index(classes));
    let in_batch = f.binary(BinaryOp::Div, place, per_batch);
    let class = f.binary(BinaryOp::Div, place, per_class);
    let class = f.binary(BinaryOp::Mod, class, of);
    let (zero, one) = (f.i32(0), f.i32(1));
    let (first, second) = (f.binary(BinaryOp::Eq, column, zero), f.binary(BinaryOp::Eq, column, one));
    let rest = f.select(second, class, of_box);
    let index = f.select(first, in_batch, rest);
    f.cast(DType::I64, index);
    Ok(cx.map_to(f.0, &[places, boxes], vec![rows, 3i64.into()])?)
}

/// `v`, which must have one element, as a scalar.
fn scalar(cx: &mut Lowering, v: Value, dtype: DType) -> Result {
    if cx.dtype(v) != dtype {
        return Err(OpError::model(format!("needs one {dtype}, got {}", cx.ty(v))).operand(v));
    }
    Ok(cx.reshape(v, vec![])?)
}

/// Boxes `[batch, n, 4]` as their minimum and maximum corners. They are given as any two opposite corners, or as
/// centre and size if `centred`.
fn corners(cx: &mut Lowering, boxes: Value, centred: bool) -> Built {
    let shape = cx.shape(boxes);
    let index = |axis: Poly| vec![Poly::var(0), Poly::var(1), axis];
    // Column c belongs to axis c % 2; it is the minimum coordinate if c < 2, else the maximum.
    let own = Poly::var(2).modulo(&2i64.into(), &shape);
    let a = cx.view(boxes, shape.clone(), index(own.clone()))?;
    let b = cx.view(boxes, shape.clone(), index(&own + 2))?;
    let mut f = Body::default();
    let (a_0, b_0, column) = (f.arg(0), f.arg(1), f.index(Poly::var(2)));
    let two = f.i32(2);
    let least = f.binary(BinaryOp::Lt, column, two);
    let (low, high) = if centred {
        let half = f.f32(0.5);
        let size = f.binary(BinaryOp::Mul, b_0, half);
        (f.binary(BinaryOp::Sub, a_0, size), f.binary(BinaryOp::Add, a_0, size))
    } else {
        (f.binary(BinaryOp::Min, a_0, b_0), f.binary(BinaryOp::Max, a_0, b_0))
    };
    f.select(least, low, high);
    cx.map(f.0, &[a, b])
}

/// The body of the scan. Its inputs are the remaining scores `[batch, classes, n]`, the step number, the corners
/// `[batch, n, 4]`, the intersection over union above which a box is removed, and the maximum number of chosen boxes.
/// Its outputs are the remaining scores, and the index of the box chosen for each class, or -1, `[batch, classes]`.
fn step(cx: &mut Lowering, inputs: &[Value; 5]) -> Built<Graph> {
    let shape = cx.shape(inputs[0]);
    let mut body = Graph::new();
    let mut given = |cx: &Lowering, name: &str, i: usize, skip: usize| {
        let ty = cx.ty(inputs[i]);
        body.add_input(name, TensorType::new(ty.dtype, ty.shape[skip..].to_vec()))
    };
    let (left, number) = (given(cx, "left", 0, 0), given(cx, "number", 1, 1));
    let (corners, share) = (given(cx, "corners", 2, 0), given(cx, "share", 3, 0));
    let most = given(cx, "most", 4, 0);
    let mut b = Builder { graph: &mut body, origin: cx.origin.clone() };
    let one = vec![shape[0].clone(), shape[1].clone(), Dim::ONE];
    let others = vec![shape[0].clone(), Dim::ONE, shape[2].clone()];
    let best = b.push(Op::ArgReduce { op: ReduceOp::Max, axis: 2, last: false }, &[left])?;
    let best = b.cast(best, DType::I32)?;
    let at_best = || GatherAxis::Data { input: 1, at: (0..3).map(Poly::var).collect() };
    let [batch, class] = [0, 1].map(|d| GatherAxis::Affine(Poly::var(d)));
    let index = vec![batch.clone(), class, at_best()];
    let top = b.push(Op::Gather { shape: one.clone(), index }, &[left, best])?;
    let (mut mine, mut theirs) = (vec![], vec![]);
    for c in 0..4i64 {
        let index = vec![batch.clone(), at_best(), GatherAxis::Affine(c.into())];
        mine.push(b.push(Op::Gather { shape: one.clone(), index }, &[corners, best])?);
        theirs.push(b.view(corners, others.clone(), vec![Poly::var(0), Poly::var(2), c.into()])?);
    }
    let mut shared = vec![];
    for axis in 0..2 {
        let mut f = Body::default();
        let [a0, b0, a1, b1] = [0, 1, 2, 3].map(|i| f.arg(i));
        let (low, high) = (f.binary(BinaryOp::Max, a0, b0), f.binary(BinaryOp::Min, a1, b1));
        f.binary(BinaryOp::Sub, high, low);
        shared.push(b.map(f.0, &[mine[axis], theirs[axis], mine[axis + 2], theirs[axis + 2]])?);
    }
    let area = |b: &mut Builder, sides: &[Value]| {
        let mut f = Body::default();
        let [low_0, low_1, high_0, high_1] = [0, 1, 2, 3].map(|i| f.arg(i));
        let (y, x) = (f.binary(BinaryOp::Sub, high_0, low_0), f.binary(BinaryOp::Sub, high_1, low_1));
        f.binary(BinaryOp::Mul, y, x);
        b.map(f.0, sides)
    };
    let (my_area, their_area) = (area(&mut b, &mine)?, area(&mut b, &theirs)?);
    let mut f = Body::default();
    let [y, x, my, their, least, best_0] = [0, 1, 2, 3, 4, 5].map(|i| f.arg(i));
    let both = f.binary(BinaryOp::Mul, y, x);
    let sum = f.binary(BinaryOp::Add, my, their);
    let either = f.binary(BinaryOp::Sub, sum, both);
    let part = f.binary(BinaryOp::Div, both, either);
    let mut hit = f.binary(BinaryOp::Gt, part, least);
    let zero = f.f32(0.0);
    for positive in [y, x, my, their, either] {
        let c = f.binary(BinaryOp::Gt, positive, zero);
        hit = f.binary(BinaryOp::And, hit, c);
    }
    let here = f.index(Poly::var(2));
    let itself = f.binary(BinaryOp::Eq, here, best_0);
    f.binary(BinaryOp::Or, hit, itself);
    let gone = b.map(f.0, &[shared[0], shared[1], my_area, their_area, share, best])?;
    let no_score = b.scalar(DType::F32, GONE);
    let next = b.select(gone, no_score, left)?;
    let mut f = Body::default();
    let [top_0, best_0, number_0, most_0] = [0, 1, 2, 3].map(|i| f.arg(i));
    let (gone, none) = (f.f32(GONE), f.i32(-1));
    let (there, wanted) = (f.binary(BinaryOp::Gt, top_0, gone), f.binary(BinaryOp::Lt, number_0, most_0));
    let taken = f.binary(BinaryOp::And, there, wanted);
    f.select(taken, best_0, none);
    let picked = b.map(f.0, &[top, best, number, most])?;
    let picked = b.squeeze(picked, &[2])?;
    for (name, value) in [("left", next), ("picked", picked)] {
        body.outputs.push(Border { name: name.into(), value });
    }
    Ok(body)
}
