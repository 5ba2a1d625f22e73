//! Pooling: a reduction of an unfolding view.

use super::window::{Windows, kernel_attr};
use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::build::WindowAxis;
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp, Class, DType, Dim, Op, Poly, ReduceOp, Scalar, Value};

/// What a pool works on: the input, its spatial extents, its windows.
pub(super) fn read(cx: &mut Cx) -> Result<(Value, Vec<Dim>, Windows), OpError> {
    let x = cx.input(0)?;
    let (spatial, windows) = over(cx, x)?;
    Ok((x, spatial, windows))
}

/// The spatial extents of `x`, and the windows over them.
fn over(cx: &Cx, x: Value) -> Result<(Vec<Dim>, Windows), OpError> {
    let shape = cx.shape(x);
    if shape.len() < 3 {
        return Err(cx.at_input(0, OpError::model(format!("needs spatial axes, got {}", cx.ty(x)))));
    }
    let kernel = kernel_attr(cx)?
        .ok_or_else(|| OpError::model("attribute `kernel_shape` is required").attribute("kernel_shape"))?;
    let windows = Windows::read(cx, &shape[2..], kernel)?;
    Ok((shape[2..].to_vec(), windows))
}

/// The least finite value of a type.
pub(super) fn least(dtype: DType) -> Scalar {
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

fn max_pool(cx: &mut Cx) -> Lowered {
    let (x, spatial, w) = read(cx)?;
    let n = spatial.len();
    let fill = least(cx.dtype(x));
    let windows = cx.unfold(x, &w.axes(), fill)?;
    let axes: Vec<usize> = (2 + n..2 + 2 * n).collect();
    let y = cx.reduce(ReduceOp::Max, windows, &axes, false)?;
    if !cx.wants(1) {
        return Ok(vec![y]);
    }
    // Positions: the flat index of every element of a window, picked where the largest stands.
    let column_major = cx.flag("storage_order", false)?;
    let full = cx.shape(x);
    let mut order: Vec<usize> = (0..n).collect();
    if column_major {
        order.reverse();
    }
    let mut flat = &(&Poly::var(0) * &full[1]) + &Poly::var(1);
    for i in order {
        let o = &Poly::var(2 + i) * w.strides[i];
        let k = &Poly::var(2 + n + i) * w.dilations[i];
        flat = &(&flat * &spatial[i]) + &(&(&o + &k) - &w.before[i]);
    }
    let shape = cx.shape(windows);
    let places = cx.iota(&shape, flat, DType::I64)?;
    let mut rows = shape[..2 + n].to_vec();
    rows.push(w.kernel.iter().product());
    let values = cx.reshape(windows, rows.clone())?;
    let places = cx.reshape(places, rows.clone())?;
    let best = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis: 2 + n, last: false }, &[values])?;
    let vars: Vec<Poly> = (0..3 + n).map(Poly::var).collect();
    let mut index: Vec<GatherAxis> = vars[..2 + n].iter().cloned().map(GatherAxis::Affine).collect();
    index.push(GatherAxis::Data { input: 1, at: vars });
    rows[2 + n] = Dim::ONE;
    let picked = cx.push(Op::Gather { shape: rows, index }, &[places, best])?;
    let picked = cx.squeeze(picked, &[2 + n])?;
    Ok(vec![y, picked])
}

fn average_pool(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    Ok(vec![average(cx, x)?])
}

/// The mean of each window over `x`.
pub(super) fn average(cx: &mut Cx, x: Value) -> Result<Value, OpError> {
    let (spatial, w) = over(cx, x)?;
    let n = spatial.len();
    let dtype = cx.dtype(x);
    let windows = cx.unfold(x, &w.axes(), Scalar::from_f64(dtype, 0.0))?;
    let sum = cx.reduce(ReduceOp::Sum, windows, &(2 + n..2 + 2 * n).collect::<Vec<_>>(), false)?;
    let with_padding = cx.flag("count_include_pad", false)?;
    // Extents in which an element counts, and how far before them a window starts.
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
        return Ok(cx.binary(BinaryOp::Div, sum, count)?);
    }
    let ones = cx.full(&extents, Scalar::from_f64(dtype, 1.0))?;
    let ones = cx.unfold(ones, &axes, Scalar::from_f64(dtype, 0.0))?;
    let count = cx.reduce(ReduceOp::Sum, ones, &(n..2 * n).collect::<Vec<_>>(), false)?;
    Ok(cx.binary(BinaryOp::Div, sum, count)?)
}

/// The axes behind the channels; at least one.
pub(super) fn spatial_axes(cx: &Cx, x: Value) -> Result<Vec<usize>, OpError> {
    if cx.rank(x) < 3 {
        return Err(cx.at_input(0, OpError::model(format!("needs spatial axes, got {}", cx.ty(x)))));
    }
    Ok((2..cx.rank(x)).collect())
}

fn global_average(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axes = spatial_axes(cx, x)?;
    Ok(vec![cx.mean(x, &axes)?])
}

fn global_max(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axes = spatial_axes(cx, x)?;
    Ok(vec![cx.reduce(ReduceOp::Max, x, &axes, true)?])
}

/// Pools.
pub const OPS: &[OpDef] = &[
    OpDef::new("AveragePool", &[1, 7, 10, 11, 19, 22], average_pool).cases(&["test_averagepool_"]),
    OpDef::new("GlobalAveragePool", &[1, 22], global_average).cases(&["test_globalaveragepool"]),
    OpDef::new("GlobalMaxPool", &[1, 22], global_max).cases(&["test_globalmaxpool"]),
    OpDef::new("MaxPool", &[1, 8, 10, 11, 12, 22], max_pool).cases(&["test_maxpool_"]),
];
