//! Splitting, repeating and padding along axes, triangles, and blocks of channels.

use super::{Lowered, Lowering, OpError, Result, Size};
use wgfc_ir::{BinaryOp, DType, Dim, Poly, Scalar, Value};

/// Splits an axis into parts of these sizes.
pub fn split(cx: &mut Lowering, x: Value, axis: usize, sizes: &[Dim]) -> Lowered {
    let extent = cx.shape(x)[axis].clone();
    let total: Dim = sizes.iter().cloned().sum();
    if total != extent && total.as_const().is_some() && extent.as_const().is_some() {
        return Err(OpError::model(format!("the parts have {total} elements, the axis has {extent}")));
    }
    cx.require_equal(&total, &extent);
    let mut start = Poly::ZERO;
    let mut out = vec![];
    for s in sizes {
        if s.as_const().is_some_and(|s| s < 0) {
            return Err(OpError::model(format!("a part of {s} elements")));
        }
        out.push(cx.slice(x, axis, &start, 1, s)?);
        start = &start + s;
    }
    Ok(out)
}

/// Repeats each axis by its number of repeats.
pub fn tile(cx: &mut Lowering, x: Value, repeats: &[Dim]) -> Result {
    let from = cx.shape(x);
    if repeats.len() != from.len() {
        return Err(OpError::model(format!("{} repeats for {} axes", repeats.len(), from.len())));
    }
    let shape: Vec<Dim> = from.iter().zip(repeats).map(|(d, r)| d * r).collect();
    let index = from
        .iter()
        .enumerate()
        .map(|(i, d)| if d.is(0) { Poly::var(i) } else { Poly::var(i).modulo(d, &shape) })
        .collect();
    Ok(cx.view(x, shape, index)?)
}

/// The values of padding elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Padding {
    /// A number of the tensor's type.
    Constant(Scalar),
    /// A tensor of one element of the tensor's type.
    Value(Value),
    /// The nearest element.
    Edge,
    /// The element mirrored at the first or last one, which is not repeated.
    Reflect,
    /// The tensor repeated periodically.
    Wrap,
}

/// Pads each axis by `before` and `after` elements; negative numbers crop.
pub fn pad(cx: &mut Lowering, x: Value, before: &[Dim], after: &[Dim], padding: Padding) -> Result {
    let mode = match padding {
        Padding::Constant(fill) => return Ok(cx.pad(x, before, after, fill)?),
        Padding::Value(v) => return pad_with(cx, x, before, after, v),
        Padding::Edge => "edge",
        Padding::Reflect => "reflect",
        Padding::Wrap => "wrap",
    };
    let from = cx.shape(x);
    let shape: Vec<Dim> = from.iter().zip(before).zip(after).map(|((d, b), a)| d + b + a).collect();
    let mut index = vec![];
    for (i, d) in from.iter().enumerate() {
        if d.is(0) && !(before[i].is(0) && after[i].is(0)) {
            let e =
                format!("mode `{mode}` has nothing to repeat along axis {i} of {}, which is empty", cx.ty(x));
            return Err(OpError::model(e).param("mode"));
        }
        let p = &Poly::var(i) - &before[i];
        let last = d - &Poly::ONE;
        index.push(if before[i].is(0) && after[i].is(0) {
            Poly::var(i)
        } else {
            match padding {
                Padding::Edge => p.max_of(&Poly::ZERO, &shape).min_of(&last, &shape),
                Padding::Wrap => p.modulo(d, &shape),
                _ => {
                    // A triangle wave of period 2(d − 1).
                    let period = (&last * 2).max_of(&Poly::ONE, &[]);
                    let m = p.modulo(&period, &shape);
                    m.min_of(&(&period - &m), &shape)
                }
            }
        });
    }
    Ok(cx.view(x, shape, index)?)
}

/// Pads with a value that is only known at run time.
fn pad_with(cx: &mut Lowering, x: Value, before: &[Dim], after: &[Dim], value: Value) -> Result {
    if cx.dtype(value) != cx.dtype(x) || !matches!(cx.ty(value).numel().as_const(), Some(1) | None) {
        let e = OpError::model(format!("a value of type {} for {}", cx.ty(value), cx.ty(x)));
        return Err(e.operand(value));
    }
    let value = cx.reshape(value, vec![])?;
    let from = cx.shape(x);
    let inside = cx.full(&from, Scalar::bool(true))?;
    let inside = cx.pad(inside, before, after, Scalar::bool(false))?;
    let zero = Scalar::from_i64(cx.dtype(x), 0);
    let x = cx.pad(x, before, after, zero)?;
    Ok(cx.select(inside, x, value)?)
}

/// The upper or lower triangle of matrices from diagonal `k` on; zero elsewhere.
pub fn triangle(cx: &mut Lowering, x: Value, k: &Size, upper: bool) -> Result {
    let shape = cx.shape(x);
    let rank = shape.len();
    if rank < 2 {
        return Err(OpError::model("needs a matrix"));
    }
    let off = &Poly::var(rank - 1) - &Poly::var(rank - 2);
    let (d, k) = match k {
        Size::Known(k) if is_near(k) => (cx.iota(&shape, &off - k, DType::I32)?, cx.int(DType::I32, 0)),
        Size::Known(k) => (cx.iota(&shape, off, DType::I64)?, cx.dim_scalar(k, DType::I64)?),
        Size::Computed(k) => (cx.iota(&shape, off, DType::I64)?, cx.reshape(*k, vec![])?),
    };
    let keep = cx.binary(if upper { BinaryOp::Ge } else { BinaryOp::Le }, d, k)?;
    let dtype = cx.dtype(x);
    let empty = cx.int(dtype, 0);
    Ok(cx.select(keep, x, empty)?)
}

/// Whether a diagonal is in the range of 32-bit index expressions.
pub fn is_near(k: &Poly) -> bool {
    k.as_const().is_none_or(|k| k.unsigned_abs() < 1 << 30)
}

/// The position of the block axes among the channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Before the channel (`DCR`: depth, column, row).
    First,
    /// After the channel (`CRD`).
    Last,
}

/// `[n, b·b·c, h, w]` to `[n, c, h·b, w·b]`.
pub fn depth_to_space(cx: &mut Lowering, x: Value, b: i64, blocks: Blocks) -> Result {
    let s = cx.shape(cx.require_rank(x, 4)?);
    let c = s[1].div(&Poly::constant(b * b), &[]);
    let b = Dim::from(b);
    let (split, perm) = match blocks {
        Blocks::First => (vec![s[0].clone(), b.clone(), b.clone(), c.clone()], [0, 3, 4, 1, 5, 2]),
        Blocks::Last => (vec![s[0].clone(), c.clone(), b.clone(), b.clone()], [0, 1, 4, 2, 5, 3]),
    };
    let mut shape = split;
    shape.extend([s[2].clone(), s[3].clone()]);
    let y = cx.reshape(x, shape)?;
    let y = cx.transpose(y, &perm)?;
    Ok(cx.reshape(y, vec![s[0].clone(), c, &s[2] * &b, &s[3] * &b])?)
}

/// `[n, c, h, w]` to `[n, b·b·c, h/b, w/b]`.
pub fn space_to_depth(cx: &mut Lowering, x: Value, b: i64, blocks: Blocks) -> Result {
    let s = cx.shape(cx.require_rank(x, 4)?);
    let perm = match blocks {
        Blocks::First => &[0, 3, 5, 1, 2, 4],
        Blocks::Last => &[0, 1, 3, 5, 2, 4],
    };
    let d = Poly::constant(b);
    let (h, w) = (s[2].div(&d, &[]), s[3].div(&d, &[]));
    let y = cx.reshape(x, vec![s[0].clone(), s[1].clone(), h.clone(), d.clone(), w.clone(), d])?;
    let y = cx.transpose(y, perm)?;
    Ok(cx.reshape(y, vec![s[0].clone(), &s[1] * (b * b), h, w])?)
}
