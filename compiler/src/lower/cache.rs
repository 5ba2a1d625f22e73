//! Key-value caches, `[batch, heads, positions, d]`, and the positions of new tokens in them.

use super::heads::Offset;
use super::shape::with_extents;
use super::{Lowering, OpError, Result, rotary};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp as B, Dim, Op, Poly, Scalar, ScalarFn, ScalarNode as N, Value};

/// The layout of the keys and values of earlier runs.
#[derive(Clone, Debug)]
pub enum Cache {
    /// There is no cache.
    None,
    /// A cache of this many positions, to which the new ones are appended.
    Grows(Dim),
    /// A cache as long as the longest sequence of a batch, whose sequences end at different positions.
    Ragged(Dim),
    /// A buffer with a fixed capacity of this many positions, into which the new ones are written.
    Fixed(Dim),
}

/// The rows of a table that belong to the new tokens, as `[batch, 1, s, r]`.
pub fn angles(cx: &mut Lowering, table: Value, offset: &Offset, batch: &Dim, s: &Dim) -> Result {
    match offset {
        Offset::Is(p) => {
            let (end, all) = (p + s, cx.shape(table)[0].clone());
            if let (Some(end), Some(all)) = (end.as_const(), all.as_const())
                && end > all
            {
                let e = format!("reads row {} of a table of {all}", end - 1);
                return Err(OpError::model(e).operand(table));
            }
            cx.require_at_most(&end, &all);
            let rows = cx.slice(table, 0, p, 1, s)?;
            Ok(cx.unsqueeze(rows, &[0, 1])?)
        }
        Offset::Of(start) => {
            let at = positions(cx, *start, batch, s)?;
            rotary::rows(cx, table, at)
        }
    }
}

/// The positions `start + i` of the new tokens: i32, `[batch, s]`.
pub fn positions(cx: &mut Lowering, start: Value, batch: &Dim, s: &Dim) -> Result {
    let mut f = ScalarFn::default();
    let i = f.push(N::Index(Poly::var(1)));
    let x = f.push(N::Arg(0));
    f.push(N::Binary(B::Add, i, x));
    let start = cx.reshape(start, vec![batch.clone(), Dim::ONE])?;
    Ok(cx.map_to(f, &[start], vec![batch.clone(), s.clone()])?)
}

/// The buffer `past` with `new` written at the positions from `start`.
pub fn written(cx: &mut Lowering, past: Value, new: Value, start: Value, capacity: &Dim) -> Result {
    let mut shape = cx.shape(new);
    let at = positions(cx, start, &shape[0], &shape[2])?;
    shape[2] = capacity.clone();
    let past = with_extents(cx, past, &shape)?;
    let mut index: Vec<GatherAxis> = (0..4).map(|d| GatherAxis::Affine(Poly::var(d))).collect();
    index[2] = GatherAxis::Data { input: 2, at: vec![Poly::var(0), Poly::var(2)] };
    Ok(cx.push(Op::Scatter { reduce: None, index }, &[past, new, at])?)
}

/// `past` with `new` written at the positions from `start`; the result is as long as both together. Positions after
/// `new` hold no token.
pub fn inserted(cx: &mut Lowering, past: Value, new: Value, start: Value, len: &Dim) -> Result {
    let news = cx.shape(new);
    let mut shape = news.clone();
    shape[2] = len.clone();
    let past = with_extents(cx, past, &shape)?;
    shape[2] = len + &news[2];
    let zero = Scalar::from_f64(cx.dtype(new), 0.0);
    let index = (0..4).map(Poly::var).collect();
    let room = cx.push(Op::View { shape: shape.clone(), index, fill: Some(zero) }, &[past])?;
    written(cx, room, new, start, &shape[2])
}

/// The result of [`inserted`], with zeros after the `s` positions from `start`.
pub fn ended(cx: &mut Lowering, present: Value, start: Value, s: &Dim) -> Result {
    let shape = cx.shape(present);
    let mut f = ScalarFn::default();
    let (x, start_arg) = (f.push(N::Arg(0)), f.push(N::Arg(1)));
    let at = f.push(N::Index(Poly::var(2) - s));
    let inside = f.push(N::Binary(B::Lt, at, start_arg));
    let zero = f.push(N::Const(Scalar::from_f64(cx.dtype(present), 0.0)));
    f.push(N::Select(inside, x, zero));
    Ok(cx.map_to(f, &[present, start], shape)?)
}
