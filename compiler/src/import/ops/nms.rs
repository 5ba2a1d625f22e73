//! `NonMaxSuppression`: of boxes that overlap, the one of the highest score.
//!
//! Per batch and class, boxes are taken in the order of their scores, and each that stays removes those after
//! it which overlap it too much. That is a scan over the sorted boxes, all batches and classes at once. How
//! many may stay of a class limits afterwards: a box never depends on those after it.

use super::compress::chosen;
use crate::import::Cx;
use crate::import::op::{Lowered, OpDef, OpError};
use wgfc_ir::build::Built;
use wgfc_ir::op::show;
use wgfc_ir::{
    BinaryOp, Body, Border, Builder, DType, Dim, GatherAxis, Graph, Op, Poly, ReduceOp, Scalar, Tensor,
    TensorType, Value,
};

/// Boxes of a word.
const BITS: i64 = 32;

fn suppress(cx: &mut Cx) -> Lowered {
    let (boxes, scores) = (cx.input_of_rank(0, 3)?, cx.input_of_rank(1, 3)?);
    let (sb, shape) = (cx.shape(boxes), cx.shape(scores));
    if sb[2].as_const().is_some_and(|c| c != 4) {
        let e = OpError::model(format!("boxes of shape {}: they need four coordinates", show(&sb)));
        return Err(cx.at_input(0, e));
    }
    for v in [(boxes, 0), (scores, 1)] {
        if cx.dtype(v.0) != DType::F32 {
            let e = OpError::model(format!("needs f32, got {}", cx.ty(v.0)));
            return Err(cx.at_input(v.1, e));
        }
    }
    cx.require_equal(&sb[2], &4i64.into());
    cx.require_equal(&sb[0], &shape[0]);
    cx.require_equal(&sb[1], &shape[2]);
    let centred = match cx.int("center_point_box", 0)? {
        0 => false,
        1 => true,
        other => return Err(OpError::model(format!("{other}")).attribute("center_point_box")),
    };
    if cx.opt(2).is_none() {
        return Ok(vec![cx.constant(Tensor::from_i64(vec![0, 3], &[]))]);
    }
    let [batch, classes, n] = [0, 1, 2].map(|d| shape[d].clone());
    let op = Op::TopK { axis: 2, k: n.clone(), largest: true };
    let node = cx.push(op, &[scores])?.node;
    let sorted = Value { node, port: 0 };
    let order = cx.cast(Value { node, port: 1 }, DType::I32)?;
    let high = match cx.opt(4) {
        Some(_) => {
            let threshold = scalar(cx, 4, DType::F32)?;
            cx.binary(BinaryOp::Gt, sorted, threshold)?
        }
        None => cx.full(&shape, Scalar::bool(true))?,
    };
    let corners = corners(cx, boxes, centred)?;
    let index = vec![
        GatherAxis::Affine(Poly::var(0)),
        GatherAxis::Data { input: 1, at: (0..3).map(Poly::var).collect() },
        GatherAxis::Affine(Poly::var(3)),
    ];
    let of_class = [batch.clone(), classes.clone(), n.clone(), 4i64.into()].to_vec();
    let corners = cx.push(Op::Gather { shape: of_class, index }, &[corners, order])?;
    let least = match cx.opt(3) {
        Some(_) => scalar(cx, 3, DType::F32)?,
        None => cx.scalar(DType::F32, 0.0),
    };
    let overlaps = overlaps(cx, corners, least)?;
    let kept = keep(cx, high, overlaps)?;

    let most = scalar(cx, 2, DType::I64)?;
    let limit = cx.int_const(DType::I64, i64::from(i32::MAX));
    let most = cx.binary(BinaryOp::Min, most, limit)?;
    let known = cx.numbers(most).and_then(|m| Some(*m.first()? as i64));
    let most = cx.cast(most, DType::I32)?;
    let ones = cx.cast(kept, DType::I32)?;
    let running = Op::Cumulate { op: ReduceOp::Sum, axis: 2, exclusive: false, reverse: false };
    let running = cx.push(running, &[ones])?;
    let few = cx.binary(BinaryOp::Le, running, most)?;
    let kept = cx.binary(BinaryOp::And, kept, few)?;
    let all = &(&batch * &classes) * &n;
    let of_class = known.map_or(n.clone(), |k| n.min_of(&k.max(0).into(), &[]));
    let kept = cx.reshape(kept, vec![all.clone()])?;
    let chosen = chosen(cx, kept, &(&batch * &classes) * &of_class)?.places;

    let order = cx.reshape(order, vec![all])?;
    let boxes = cx.take(order, chosen, 0)?;
    let rows = cx.shape(chosen)[0].clone();
    let (chosen, boxes) = (cx.unsqueeze(chosen, &[1])?, cx.unsqueeze(boxes, &[1])?);
    let mut f = Body::default();
    let (place, of_box, column) = (f.arg(0), f.arg(1), f.index(Poly::var(1)));
    let (per_batch, per_class, of) = (f.index(&classes * &n), f.index(n.clone()), f.index(classes));
    let in_batch = f.binary(BinaryOp::Div, place, per_batch);
    let class = f.binary(BinaryOp::Div, place, per_class);
    let class = f.binary(BinaryOp::Mod, class, of);
    let (zero, one) = (f.i32(0), f.i32(1));
    let (first, second) = (f.binary(BinaryOp::Eq, column, zero), f.binary(BinaryOp::Eq, column, one));
    let rest = f.select(second, class, of_box);
    let index = f.select(first, in_batch, rest);
    f.cast(DType::I64, index);
    Ok(vec![cx.map_to(f.0, &[chosen, boxes], vec![rows, 3i64.into()])?])
}

/// Input `i` of one element.
fn scalar(cx: &mut Cx, i: usize, dtype: DType) -> Result<Value, OpError> {
    let v = cx.input(i)?;
    if cx.dtype(v) != dtype {
        let e = OpError::model(format!("needs one {dtype}, got {}", cx.ty(v)));
        return Err(cx.at_input(i, e));
    }
    Ok(cx.reshape(v, vec![])?)
}

/// Boxes `[batch, n, 4]` as their least and greatest corners. They are given as any two opposite corners, or
/// (`centred`) as centre and size.
fn corners(cx: &mut Cx, boxes: Value, centred: bool) -> Built {
    let shape = cx.shape(boxes);
    let index = |axis: Poly| vec![Poly::var(0), Poly::var(1), axis];
    // Of column c its own axis is c % 2, greatest where c / 2 is 1.
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

/// Which later boxes each of the sorted boxes `[batch, classes, n, 4]` shares more than `least` with, of what
/// both cover together, in bits: `u32 [n, batch, classes, words]`.
fn overlaps(cx: &mut Cx, corners: Value, least: Value) -> Built {
    let s = cx.shape(corners);
    let (n, words) = (s[2].clone(), s[2].ceil_div(BITS));
    let all = [&n, &s[0], &s[1], &words, &BITS.into()].map(Dim::clone);
    let one = [n.clone(), s[0].clone(), s[1].clone(), Dim::ONE, Dim::ONE];
    let other = [Dim::ONE, s[0].clone(), s[1].clone(), words, BITS.into()];
    let later = &(&Poly::var(3) * BITS) + &Poly::var(4);
    // Column `c` of the earlier box and of the later one; beyond the last there is an empty one.
    let pair = |cx: &mut Cx, v: Value, c: Option<i64>| -> Built<[Value; 2]> {
        let at =
            |j: &Poly| [Poly::var(1), Poly::var(2), j.clone()].into_iter().chain(c.map(Poly::from)).collect();
        let mine = cx.view(v, one.to_vec(), at(&Poly::var(0)))?;
        let fill = Some(Scalar::from_f64(DType::F32, 0.0));
        let op = Op::View { shape: other.to_vec(), index: at(&later), fill };
        Ok([mine, cx.push(op, &[v])?])
    };
    let mut shared = vec![];
    for axis in 0..2 {
        let ([a0, b0], [a1, b1]) = (pair(cx, corners, Some(axis))?, pair(cx, corners, Some(axis + 2))?);
        let mut f = Body::default();
        let [a0_, b0_, a1_, b1_] = [0, 1, 2, 3].map(|i| f.arg(i));
        let (low, high) = (f.binary(BinaryOp::Max, a0_, b0_), f.binary(BinaryOp::Min, a1_, b1_));
        f.binary(BinaryOp::Sub, high, low);
        shared.push(cx.map(f.0, &[a0, b0, a1, b1])?);
    }
    let mut sides = vec![];
    for c in 0..4i64 {
        let at = vec![Poly::var(0), Poly::var(1), Poly::var(2), c.into()];
        sides.push(cx.view(corners, s[..3].to_vec(), at)?);
    }
    let mut f = Body::default();
    let [low_0, low_1, high_0, high_1] = [0, 1, 2, 3].map(|i| f.arg(i));
    let (a, b) = (f.binary(BinaryOp::Sub, high_0, low_0), f.binary(BinaryOp::Sub, high_1, low_1));
    f.binary(BinaryOp::Mul, a, b);
    let area = cx.map(f.0, &sides)?;
    let [area_a, area_b] = pair(cx, area, None)?;
    let mut f = Body::default();
    let [y, x, a, b, least_0] = [0, 1, 2, 3, 4].map(|i| f.arg(i));
    let both = f.binary(BinaryOp::Mul, y, x);
    let sum = f.binary(BinaryOp::Add, a, b);
    let either = f.binary(BinaryOp::Sub, sum, both);
    let share = f.binary(BinaryOp::Div, both, either);
    let (i, j) = (f.index(Poly::var(0)), f.index(later.clone()));
    let mut hit = f.binary(BinaryOp::Lt, i, j);
    let zero = f.f32(0.0);
    for positive in [y, x, a, b, either] {
        let c = f.binary(BinaryOp::Gt, positive, zero);
        hit = f.binary(BinaryOp::And, hit, c);
    }
    let much = f.binary(BinaryOp::Gt, share, least_0);
    let hit = f.binary(BinaryOp::And, hit, much);
    bit(&mut f, hit, Poly::var(4));
    let bits = cx.map_to(f.0, &[shared[0], shared[1], area_a, area_b, least], all.to_vec())?;
    cx.reduce(ReduceOp::Sum, bits, &[4], false)
}

/// Bit `k` of a `u32`, where a condition holds.
fn bit(f: &mut Body, condition: u32, k: Poly) -> u32 {
    let (one, k) = (f.cast(DType::U32, condition), f.index(k));
    let k = f.cast(DType::U32, k);
    f.binary(BinaryOp::Shl, one, k)
}

/// Which of the sorted boxes stay, `[batch, classes, n]`, of those that are high enough. Boxes are bits
/// of a word: a step takes one box, and where it still stays removes those it overlaps.
fn keep(cx: &mut Cx, high: Value, overlaps: Value) -> Built {
    let shape = cx.shape(high);
    let packed = cx.shape(overlaps)[1..].to_vec();
    let mut spread = packed.clone();
    spread.push(BITS.into());
    let place = &(&Poly::var(2) * BITS) + &Poly::var(3);
    let index = vec![Poly::var(0), Poly::var(1), place];
    let op = Op::View { shape: spread, index, fill: Some(Scalar::bool(false)) };
    let high = cx.push(op, &[high])?;
    let mut f = Body::default();
    let condition = f.arg(0);
    bit(&mut f, condition, Poly::var(3));
    let bits = cx.map(f.0, &[high])?;
    let first = cx.reduce(ReduceOp::Sum, bits, &[3], false)?;

    let mut body = Graph::new();
    let now = body.add_input("kept", TensorType::new(DType::U32, packed.clone()));
    let row = body.add_input("overlaps", TensorType::new(DType::U32, packed));
    let i = body.add_input("box", TensorType::new(DType::I32, vec![]));
    let mut b = Builder { graph: &mut body, origin: cx.origin.clone() };
    let mut f = Body::default();
    let (kept, i_0, word) = (f.arg(0), f.arg(1), f.index(Poly::var(2)));
    let (of, zero, one) = (f.i32(BITS), f.u32(0), f.u32(1));
    let (at, k) = (f.binary(BinaryOp::Div, i_0, of), f.binary(BinaryOp::Mod, i_0, of));
    let k = f.cast(DType::U32, k);
    let mine = f.binary(BinaryOp::Shr, kept, k);
    let mine = f.binary(BinaryOp::And, mine, one);
    let here = f.binary(BinaryOp::Eq, word, at);
    f.select(here, mine, zero);
    let mine = b.map(f.0, &[now, i])?;
    let mine = b.reduce(ReduceOp::Max, mine, &[2], true)?;
    let mut f = Body::default();
    let (kept, row_0, mine_0) = (f.arg(0), f.arg(1), f.arg(2));
    let hit = f.binary(BinaryOp::Mul, row_0, mine_0);
    let spared = f.flipped(hit, u32::MAX);
    f.binary(BinaryOp::And, kept, spared);
    let next = b.map(f.0, &[now, row, mine])?;
    body.outputs.push(Border { name: "kept".into(), value: next });
    let all = cx.iota(&[shape[2].clone()], Poly::var(0), DType::I32)?;
    let op = Op::Scan {
        body: Box::new(body),
        carried: 1,
        scanned: 2,
        reverse_inputs: vec![false; 2],
        reverse_outputs: vec![],
    };
    let words = cx.push(op, &[first, overlaps, all])?;
    let word = vec![Poly::var(0), Poly::var(1), Poly::var(2).div(&BITS.into(), &shape)];
    let words = cx.view(words, shape.clone(), word)?;
    let mut f = Body::default();
    let (word, k) = (f.arg(0), f.index(Poly::var(2).modulo(&BITS.into(), &shape)));
    let (k, one) = (f.cast(DType::U32, k), f.u32(1));
    let mine = f.binary(BinaryOp::Shr, word, k);
    let mine = f.binary(BinaryOp::And, mine, one);
    f.cast(DType::Bool, mine);
    cx.map(f.0, &[words])
}

/// `NonMaxSuppression`.
pub const OPS: &[OpDef] =
    &[OpDef::new("NonMaxSuppression", &[10, 11], suppress).cases(&["test_nonmaxsuppression_"])];
