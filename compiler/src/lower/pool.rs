//! Pooling as a reduction of an unfolding view.

use super::window::{Window, Windows};
use super::{Lowering, OpError, Result};
use wgfc_ir::build::WindowAxis;
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp, Class, DType, Dim, Op, Poly, ReduceOp, Scalar, Value};

/// The windows of extents `kernel` over the spatial axes of `x [N, C, spatial…]`.
pub fn over(cx: &Lowering, x: Value, kernel: &[Dim], p: &Window) -> Result<Windows> {
    Windows::over(spatial(cx, x)?, kernel.to_vec(), p)
}

/// The extents of the spatial axes behind the channels; at least one.
fn spatial<'a>(cx: &'a Lowering, x: Value) -> Result<&'a [Dim]> {
    match cx.ty(x).shape.get(2..) {
        Some(s) if !s.is_empty() => Ok(s),
        _ => Err(OpError::model(format!("needs spatial axes, got {}", cx.ty(x))).operand(x)),
    }
}

/// The spatial axes behind the channels; at least one.
pub fn spatial_axes(cx: &Lowering, x: Value) -> Result<Vec<usize>> {
    Ok((2..2 + spatial(cx, x)?.len()).collect())
}

/// The least finite value of a type.
pub fn least(dtype: DType) -> Scalar {
    match (dtype.class(), dtype.bits()) {
        (Class::Float, _) => Scalar::from_f64(
            dtype,
            match dtype {
                DType::F16 => -65504.0,
                DType::BF16 => -f64::from_bits(0x47ef_e000_0000_0000),
                DType::F32 | DType::F64 => f64::from(f32::MIN),
                _ => -448.0,
            },
        ),
        (Class::Int, bits) => Scalar::from_i64(dtype, i64::MIN >> (64 - bits)),
        _ => Scalar::from_i64(dtype, 0),
    }
}

/// The numbering of positions in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The last axis fastest.
    RowMajor,
    /// The first spatial axis varies fastest.
    ColumnMajor,
}

/// The largest element of each window and, if requested, its position in the whole tensor (i64).
pub fn max(
    cx: &mut Lowering,
    x: Value,
    w: &Windows,
    places: Option<Order>,
) -> Result<(Value, Option<Value>)> {
    let spatial = spatial(cx, x)?.to_vec();
    let n = spatial.len();
    let fill = least(cx.dtype(x));
    let (windows, at) = cx.unfold_inside(x, &w.axes(), fill)?;
    let axes: Vec<usize> = (2 + n..2 + 2 * n).collect();
    let y = cx.reduce(ReduceOp::Max, windows, &axes, false)?;
    let Some(numbering) = places else { return Ok((y, None)) };
    // The flat index of every element of a window, of which the one of the largest element is picked.
    let full = cx.shape(x);
    let mut order: Vec<usize> = (0..n).collect();
    if numbering == Order::ColumnMajor {
        order.reverse();
    }
    let mut flat = &(&Poly::var(0) * &full[1]) + &Poly::var(1);
    for i in order {
        flat = &(&flat * &spatial[i]) + &at[2 + i];
    }
    let shape = cx.shape(windows);
    let places = cx.iota(&shape, flat, DType::I64)?;
    let picked = picked(cx, windows, places, n)?;
    Ok((y, Some(picked)))
}

/// The mean of each window; padding counts as elements if `with_padding`.
pub fn average(cx: &mut Lowering, x: Value, w: &Windows, with_padding: bool) -> Result {
    let spatial = spatial(cx, x)?.to_vec();
    let n = spatial.len();
    let (narrow, x) = (cx.dtype(x), cx.widened(x)?);
    let dtype = cx.dtype(x);
    let (windows, _) = cx.unfold_inside(x, &w.axes(), Scalar::from_f64(dtype, 0.0))?;
    let sum = cx.reduce(ReduceOp::Sum, windows, &(2 + n..2 + 2 * n).collect::<Vec<_>>(), false)?;
    // The extents in which an element counts, and the number of elements before them at which a window starts.
    let extents: Vec<Dim> = (0..n)
        .map(|i| if with_padding { &(&spatial[i] + &w.before[i]) + &w.after[i] } else { spatial[i].clone() })
        .collect();
    let axes: Vec<WindowAxis> = w
        .axes()
        .into_iter()
        .map(|a| WindowAxis { pad: if with_padding { Dim::ZERO } else { a.pad }, ..a })
        .collect();
    let all_count = (0..n).all(|i| {
        let last = &(&(&(&w.out[i] - 1) * w.strides[i]) + &w.reach(i)) - &axes[i].pad;
        axes[i].pad.is(0) && (&extents[i] - &last).proves_nonneg(&[])
    });
    if all_count {
        let count: Dim = w.kernel.iter().product();
        let count = cx.dim_scalar(&count, dtype)?;
        let mean = cx.binary(BinaryOp::Div, sum, count)?;
        return Ok(cx.cast(mean, narrow)?);
    }
    let ones = cx.full(&extents, Scalar::from_f64(dtype, 1.0))?;
    let (ones, _) = cx.unfold_inside(ones, &axes, Scalar::from_f64(dtype, 0.0))?;
    let count = cx.reduce(ReduceOp::Sum, ones, &(n..2 * n).collect::<Vec<_>>(), false)?;
    let mean = cx.binary(BinaryOp::Div, sum, count)?;
    Ok(cx.cast(mean, narrow)?)
}

/// The reduction of the windows of [`adaptive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adaptive {
    /// Their mean.
    Average,
    /// Their largest element.
    Max,
}

/// Adaptive pooling: divides the spatial axes of `x [N, C, spatial…]` into `out` parts, where part `i` of an extent
/// `d` is `⌊i·d/out⌋ .. ⌈(i+1)·d/out⌉`. For maxima it also returns their positions in the spatial plane (i64).
pub fn adaptive(cx: &mut Lowering, x: Value, out: &[Dim], what: Adaptive) -> Result<(Value, Option<Value>)> {
    let spatial = spatial(cx, x)?.to_vec();
    let n = spatial.len();
    if out.len() != n {
        return Err(
            OpError::model(format!("{} extents for {n} spatial axes", out.len())).param("output_size")
        );
    }
    // Parts of equal extent are plain windows.
    let divides = spatial.iter().zip(out).all(|(d, o)| !o.is(0) && d.modulo(o, &[]).is(0));
    if divides && what == Adaptive::Average {
        let kernel: Vec<Dim> = spatial.iter().zip(out).map(|(d, o)| d.div(o, &[])).collect();
        let mut split = cx.shape(x)[..2].to_vec();
        for (o, k) in out.iter().zip(&kernel) {
            split.extend([o.clone(), k.clone()]);
        }
        let x = cx.reshape(x, split)?;
        let axes: Vec<usize> = (0..n).map(|i| 3 + 2 * i).collect();
        let m = cx.mean(x, &axes)?;
        return Ok((cx.squeeze(m, &axes)?, None));
    }
    let narrow = cx.dtype(x);
    let x = if what == Adaptive::Average { cx.widened(x)? } else { x };
    let full = cx.shape(x);
    // The maximum length of a part.
    let longest = |d: &Dim, o: &Dim| match (d.as_const(), o.as_const()) {
        (Some(d), Some(o)) if o > 0 => {
            let length = |i: i64| ((i + 1) * d + o - 1) / o - i * d / o;
            Dim::from((0..o.min(1 << 16)).map(length).max().unwrap_or(0))
        }
        _ => &d.div(o, &[]) + 2,
    };
    let mut shape = full[..2].to_vec();
    shape.extend(out.iter().cloned());
    shape.extend(spatial.iter().zip(out).map(|(d, o)| longest(d, o)));
    let domain = shape.clone();
    let mut f = wgfc_ir::Body::default();
    let element = f.arg(0);
    let mut inside = None;
    let (mut index, mut flat, mut counts) = (vec![Poly::var(0), Poly::var(1)], Poly::ZERO, vec![]);
    for (i, (d, o)) in spatial.iter().zip(out).enumerate() {
        let (part, step) = (Poly::var(2 + i), Poly::var(2 + n + i));
        let first = (&part * d).div(o, &domain);
        let end = (&(&(&(&part + &Poly::ONE) * d) + o) - &Poly::ONE).div(o, &domain);
        let at = &first + &step;
        let (at_index, end_index) = (f.index(at.clone()), f.index(end.clone()));
        let here = f.binary(BinaryOp::Lt, at_index, end_index);
        inside = Some(inside.map_or(here, |all| f.binary(BinaryOp::And, all, here)));
        flat = &(&flat * d) + &at;
        index.push(at.min_of(&(d - &Poly::ONE), &domain));
        counts.push(&end - &first);
    }
    let dtype = cx.dtype(x);
    let fill = if what == Adaptive::Max { least(dtype) } else { Scalar::from_f64(dtype, 0.0) };
    let fill = f.constant(fill);
    if let Some(inside) = inside {
        f.select(inside, element, fill);
    }
    let windows = cx.view(x, shape.clone(), index)?;
    let windows = cx.map_to(f.0, &[windows], shape.clone())?;
    let axes: Vec<usize> = (2 + n..2 + 2 * n).collect();
    if what == Adaptive::Average {
        let sum = cx.reduce(ReduceOp::Sum, windows, &axes, false)?;
        // The element counts are expressions of the parts' numbers, which are the index variables of the result.
        let count: Poly = counts.into_iter().product();
        let to = cx.shape(sum);
        let count = cx.iota(&to, count, dtype)?;
        let mean = cx.binary(BinaryOp::Div, sum, count)?;
        return Ok((cx.cast(mean, narrow)?, None));
    }
    let y = cx.reduce(ReduceOp::Max, windows, &axes, false)?;
    let places = cx.iota(&shape, flat, DType::I64)?;
    let picked = picked(cx, windows, places, n)?;
    Ok((y, Some(picked)))
}

/// The number of each window's first largest element, where `numbers` holds the number of each element and the last
/// `n` axes are those of the window.
fn picked(cx: &mut Lowering, windows: Value, numbers: Value, n: usize) -> Result {
    let shape = cx.shape(windows);
    let mut rows = shape[..2 + n].to_vec();
    rows.push(shape[2 + n..].iter().product());
    let values = cx.reshape(windows, rows.clone())?;
    let numbers = cx.reshape(numbers, rows.clone())?;
    let best = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis: 2 + n, last: false }, &[values])?;
    let vars: Vec<Poly> = (0..3 + n).map(Poly::var).collect();
    let mut index: Vec<GatherAxis> = vars[..2 + n].iter().cloned().map(GatherAxis::Affine).collect();
    index.push(GatherAxis::Data { input: 1, at: vars });
    rows[2 + n] = Dim::ONE;
    let picked = cx.push(Op::Gather { shape: rows, index }, &[numbers, best])?;
    Ok(cx.squeeze(picked, &[2 + n])?)
}
