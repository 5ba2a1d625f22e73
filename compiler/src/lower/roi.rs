//! Pooling of regions of interest: the mean or the maximum of samples (RoI align), and the maximum of bins (RoI
//! pooling).

use super::sample::{Mode, Padding, Sampled, weighted};
use super::shape::with_extents;
use super::{Lowering, OpError, Result};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp as B, Body, DType, Dim, Op, Poly, ReduceOp, UnaryOp as U, Value};

/// Parameters of [`align`].
#[derive(Clone, Copy, Debug)]
pub struct Align {
    /// The height and width of the result.
    pub out: [i64; 2],
    /// The number of samples along each axis of a bin; `None` stands for the number of elements in the bin, rounded
    /// up.
    pub samples: Option<i64>,
    /// The factor by which the bounds of regions are multiplied.
    pub scale: f64,
    /// Whether bounds refer to the edges of elements rather than to their centres.
    pub half_pixel: bool,
    /// Whether the largest sample is taken rather than the mean.
    pub largest: bool,
}

/// The sample positions along one axis.
struct Samples {
    /// `[regions, bins, samples]`, f32.
    positions: Value,
    /// The maximum number of samples in a bin.
    most: i64,
    /// The number of samples in a bin of each region, `[regions, 1, 1]`, f32, if it varies.
    count: Option<Value>,
}

impl Align {
    /// The samples along an axis of this extent; `columns` are those of the bounds in `rois [R, 4]`.
    fn samples(
        &self,
        cx: &mut Lowering,
        rois: Value,
        columns: [usize; 2],
        bins: i64,
        extent: &Dim,
    ) -> Result<Samples> {
        let regions = cx.shape(rois)[0].clone();
        let bound = |cx: &mut Lowering, column: usize| -> Result {
            let v = cx.view(
                rois,
                vec![regions.clone(), Dim::ONE, Dim::ONE],
                vec![Poly::var(0), Poly::from(column)],
            )?;
            let v = cx.binary_scalar(B::Mul, v, self.scale)?;
            Ok(if self.half_pixel { cx.binary_scalar(B::Sub, v, 0.5)? } else { v })
        };
        let (start, end) = (bound(cx, columns[0])?, bound(cx, columns[1])?);
        let mut size = cx.binary(B::Sub, end, start)?;
        if !self.half_pixel {
            size = cx.binary_scalar(B::Max, size, 1.0)?;
        }
        let bin = cx.binary_scalar(B::Div, size, bins as f64)?;
        let (most, count) = match (self.samples, extent.as_const()) {
            (Some(n), _) => (n, None),
            // A region is assumed to be at most as large as the input.
            (None, Some(extent)) => {
                let most = (extent.max(1) + bins - 1) / bins;
                // The factor keeps an exact quotient from being rounded up to the next integer.
                let n = cx.binary_scalar(B::Mul, bin, 1.0 - 1e-6)?;
                let n = cx.unary(U::Ceil, n)?;
                let n = cx.binary_scalar(B::Max, n, 0.0)?;
                let largest = cx.reduce(ReduceOp::Max, n, &[0, 1, 2], false)?;
                let largest = cx.binary_scalar(B::Min, largest, most as f64 + 1.0)?;
                let largest = cx.cast(largest, DType::I32)?;
                if let Some(samples) = cx.checked_number("samples_along_a_bin", largest, &most.into())? {
                    cx.require_at_most(&samples, &most.into());
                }
                (most, Some(cx.binary_scalar(B::Min, n, most as f64)?))
            }
            (None, None) => {
                let e = format!("0: as many samples as the regions are large, of an extent {extent}");
                return Err(OpError::symbolic(e).param("samples"));
            }
        };
        let shape = [regions, bins.into(), most.into()];
        let first = cx.iota(&shape, Poly::var(1), DType::F32)?;
        let offset = cx.iota(&shape, &(Poly::var(2) * 2) + 1, DType::F32)?;
        let offset = cx.binary_scalar(B::Mul, offset, 0.5)?;
        let offset = match count {
            Some(n) => cx.binary(B::Div, offset, n)?,
            None => cx.binary_scalar(B::Div, offset, most as f64)?,
        };
        let offset = cx.binary(B::Add, first, offset)?;
        let offset = cx.binary(B::Mul, offset, bin)?;
        Ok(Samples { positions: cx.binary(B::Add, start, offset)?, most, count })
    }
}

/// Pools the regions `rois [R, 4]` (first column, first row, last column, last row), each of the image `batch [R]` in
/// `x [N, C, h, w]`, to `[R, C, out…]`.
pub fn align(cx: &mut Lowering, x: Value, rois: Value, batch: Value, pool: &Align) -> Result {
    let sx = cx.shape(cx.require_rank(x, 4)?);
    let sr = [cx.shape(cx.require_rank(rois, 2)?)[0].clone(), 4i64.into()];
    let rois = with_extents(cx, rois, &sr).map_err(|e| e.operand(rois))?;
    cx.require_rank(batch, 1)?;
    cx.require_indices(batch)?;
    let of_batch = cx.shape(batch)[0].clone();
    cx.require_equal(&of_batch, &sr[0]);
    let largest = pool.largest;
    let rois = cx.cast(rois, DType::F32)?;
    // The axes of the samples: region, channel, bins, samples, taps.
    let mut shape = vec![sr[0].clone(), sx[1].clone()];
    shape.extend(pool.out.map(Dim::from));
    let (mut taps, mut samples) = (vec![], vec![]);
    for (i, columns) in [[1, 3], [0, 2]].into_iter().enumerate() {
        let extent = sx[2 + i].clone();
        let along = pool.samples(cx, rois, columns, pool.out[i], &extent)?;
        let at = along.positions;
        shape.push(along.most.into());
        samples.push(along);
        let axis = Sampled {
            extent: extent.clone(),
            mode: Mode::Linear,
            padding: Padding::Border,
            align_corners: false,
        };
        let mut t = axis.taps(cx, at)?;
        // Positions more than one element outside of the input contribute nothing.
        let limit = cx.dim_scalar(&extent, DType::F32)?;
        let (above, below) = (cx.binary_scalar(B::Ge, at, -1.0)?, cx.binary(B::Le, at, limit)?);
        let inside = cx.binary(B::And, above, below)?;
        let inside = cx.unsqueeze(inside, &[3])?;
        let zero = cx.scalar(DType::F32, 0.0);
        t.weight = cx.select(inside, t.weight, zero)?;
        let at = vec![Poly::var(0), Poly::var(2 + i), Poly::var(4 + i), Poly::var(6 + i)];
        taps.push((t, at));
    }
    shape.extend([2i64.into(), 2i64.into()]);
    let lead = vec![GatherAxis::Data { input: 1, at: vec![Poly::var(0)] }, GatherAxis::Affine(Poly::var(1))];
    let mut parts = weighted(cx, x, &shape, lead, &[batch], &taps)?;
    let mut count = cx.scalar(DType::F32, (samples[0].most * samples[1].most) as f64);
    if let (Some(rows), Some(columns)) = (samples[0].count, samples[1].count) {
        parts = only(cx, parts, [rows, columns], if largest { f64::from(f32::MIN) } else { 0.0 })?;
        count = cx.binary(B::Mul, rows, columns)?;
        count = cx.unsqueeze(count, &[3])?;
    }
    let inner: Vec<usize> = (4..8).collect();
    let op = if largest { ReduceOp::Max } else { ReduceOp::Sum };
    let mut y = cx.reduce(op, parts, &inner, false)?;
    if !largest {
        let count = cx.binary_scalar(B::Max, count, 1.0)?;
        y = cx.binary(B::Div, y, count)?;
    } else if samples[0].count.is_some() {
        // A region without samples gives 0.
        let some = cx.binary_scalar(B::Gt, count, 0.0)?;
        let zero = cx.scalar(DType::F32, 0.0);
        y = cx.select(some, y, zero)?;
    }
    let dtype = cx.dtype(x);
    Ok(cx.cast(y, dtype)?)
}

/// `parts [region, channel, bins, samples, taps]` for the first `counts` samples; `other` for the remaining ones.
fn only(cx: &mut Lowering, parts: Value, counts: [Value; 2], other: f64) -> Result {
    let mut f = Body::default();
    let (x, rows, columns) = (f.arg(0), f.arg(1), f.arg(2));
    let mut below = |axis: usize, count: u32| {
        let at = f.index(Poly::var(axis));
        let at = f.cast(DType::F32, at);
        f.binary(B::Lt, at, count)
    };
    let (row, column) = (below(4, rows), below(5, columns));
    let inside = f.binary(B::And, row, column);
    let other = f.f32(other);
    f.select(inside, x, other);
    let mut args = vec![parts];
    for c in counts {
        args.push(cx.unsqueeze(c, &[3, 4, 5, 6, 7])?);
    }
    Ok(cx.map(f.0, &args)?)
}

/// The bounds `[regions, bins]` of bins along one axis: the first position, and the one after the last. They are
/// computed on integers (i32), because the rounding error of a float quotient could move a bound.
fn bounds(cx: &mut Lowering, [first, last]: [Value; 2], bins: i64, extent: &Dim) -> Result<[Value; 2]> {
    let size = cx.binary(B::Sub, last, first)?;
    let size = cx.binary_scalar(B::Add, size, 1.0)?;
    let size = cx.binary_scalar(B::Max, size, 1.0)?;
    let shape = [cx.shape(first)[0].clone(), bins.into()];
    let extent = cx.dim_scalar(extent, DType::I32)?;
    let mut bound = |number: Poly, more: i64| -> Result {
        let at = cx.iota(&shape, number, DType::I32)?;
        let at = cx.binary(B::Mul, at, size)?;
        let at = cx.binary_scalar(B::Add, at, more as f64)?;
        let at = cx.binary_scalar(B::Div, at, bins as f64)?;
        let at = cx.binary(B::Add, at, first)?;
        let at = cx.binary_scalar(B::Max, at, 0.0)?;
        Ok(cx.binary(B::Min, at, extent)?)
    };
    Ok([bound(Poly::var(1), 0)?, bound(&Poly::var(1) + 1, bins - 1)?])
}

/// The largest element of each bin of the regions `[R, 5]`: batch index, then inclusive bounds. Every position of the
/// input is visited for every bin.
pub fn max_pool(cx: &mut Lowering, x: Value, rois: Value, [height, width]: [i64; 2], scale: f64) -> Result {
    let (dtype, sx) = (cx.dtype(x), cx.shape(cx.require_rank(x, 4)?));
    let regions = cx.shape(cx.require_rank(rois, 2)?)[0].clone();
    let rois = with_extents(cx, rois, &[regions.clone(), 5i64.into()]).map_err(|e| e.operand(rois))?;
    let rois = cx.cast(rois, DType::F32)?;
    let column = |cx: &mut Lowering, i: i64| cx.slice(rois, 1, &i.into(), 1, &Dim::ONE);
    let place = |cx: &mut Lowering, i: i64| -> Result {
        let v = column(cx, i)?;
        let v = cx.binary_scalar(B::Mul, v, scale)?;
        let v = cx.binary_scalar(B::Add, v, 0.5)?;
        let v = cx.unary(U::Floor, v)?;
        Ok(cx.cast(v, DType::I32)?)
    };
    let rows = [place(cx, 2)?, place(cx, 4)?];
    let rows = bounds(cx, rows, height, &sx[2])?;
    let columns = [place(cx, 1)?, place(cx, 3)?];
    let columns = bounds(cx, columns, width, &sx[3])?;
    let batch = column(cx, 0)?;
    let batch = cx.squeeze(batch, &[1])?;
    let batch = cx.cast(batch, DType::I32)?;

    // Region, channel, bins, input positions.
    let one = Dim::ONE;
    let shape = vec![regions, sx[1].clone(), one.clone(), one, sx[2].clone(), sx[3].clone()];
    let mut index = vec![GatherAxis::Data { input: 1, at: vec![Poly::var(0)] }];
    index.extend([1, 4, 5].map(|i| GatherAxis::Affine(Poly::var(i))));
    let all = cx.push(Op::Gather { shape, index }, &[x, batch])?;
    let mut f = Body::default();
    let mut inside = None;
    for (i, axis) in [4, 5].into_iter().enumerate() {
        let at = f.index(Poly::var(axis));
        let (low, high) = (f.arg(1 + 2 * i as u32), f.arg(2 + 2 * i as u32));
        for within in [f.binary(B::Ge, at, low), f.binary(B::Lt, at, high)] {
            inside = Some(match inside {
                Some(so_far) => f.binary(B::And, so_far, within),
                None => within,
            });
        }
    }
    let (x, least) = (f.arg(0), f.constant(super::pool::least(dtype)));
    let inside = inside.ok_or("no bounds")?;
    f.select(inside, x, least);
    let mut args = vec![all];
    for v in rows {
        args.push(cx.unsqueeze(v, &[1, 3, 4, 5])?);
    }
    for v in columns {
        args.push(cx.unsqueeze(v, &[1, 2, 4, 5])?);
    }
    let parts = cx.map(f.0, &args)?;
    let y = cx.reduce(ReduceOp::Max, parts, &[4, 5], false)?;
    // An empty bin gives 0.
    let mut empty = None;
    for ([low, high], axes) in [(rows, [1, 3]), (columns, [1, 2])] {
        let none = cx.binary(B::Ge, low, high)?;
        let none = cx.unsqueeze(none, &axes)?;
        empty = Some(match empty {
            Some(so_far) => cx.binary(B::Or, so_far, none)?,
            None => none,
        });
    }
    let zero = cx.scalar(dtype, 0.0);
    Ok(cx.select(empty.ok_or("no bins")?, zero, y)?)
}
