//! Elements selected by a condition, and distinct elements.

use super::super::prelude::*;
use super::binary::truth;
use crate::lower::{chosen, elementwise, scan, search, shape, unique};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{Body, Op, Poly, ReduceOp, Scalar};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._unique2.default", |cx| {
        let x = cx.tensor("self")?;
        let found = unique::unique(cx, x, None, true)?;
        distinct(cx, &found)
    })
    .notes("In ascending order. All NaNs count as one value."),
    OpDef::new("aten.argwhere.default", non_zero),
    OpDef::new("aten.masked_scatter.default", masked_scatter),
    OpDef::new("aten.masked_scatter_backward.default", masked_scatter_backward),
    OpDef::new("aten.masked_select.default", masked_select),
    OpDef::new("aten.nonzero.default", non_zero),
    OpDef::new("aten.nonzero_numpy.default", |cx| {
        let found = non_zero(cx)?[0];
        let rank = cx.result_count();
        let mut parts = vec![];
        for i in 0..rank {
            let part = cx.slice(found, 1, &i.into(), 1, &Dim::ONE)?;
            parts.push(cx.squeeze(part, &[1])?);
        }
        Ok(parts)
    }),
    OpDef::new("aten.nonzero_static.default", non_zero_of_size),
    OpDef::new("aten.put.default", put),
    OpDef::new("aten.repeat_interleave.Tensor", |cx| {
        let repeats = cx.tensor("repeats")?;
        let at = repeated(cx, repeats, 0)?;
        let to = cx.result_dtype(0)?;
        Ok(vec![cx.converted(at, to)?])
    }),
    OpDef::new("aten.repeat_interleave.self_Tensor", repeat_by),
    OpDef::new("aten.repeat_interleave.self_int", repeat_each),
    OpDef::new("aten.take.default", take),
    OpDef::new("aten.unique_consecutive.default", |cx| {
        let (x, axis) = (cx.tensor("self")?, cx.opt_int("dim")?);
        let axis = match axis {
            Some(_) => Some(cx.axis("dim", cx.rank(x))?),
            None => None,
        };
        let found = unique::consecutive(cx, x, axis)?;
        distinct(cx, &found)
    }),
    OpDef::new("aten.unique_dim.default", |cx| {
        let x = cx.tensor("self")?;
        let axis = cx.axis("dim", cx.rank(x))?;
        let found = unique::unique(cx, x, Some(axis), true)?;
        distinct(cx, &found)
    })
    .notes("All NaNs count as one value."),
    OpDef::new("aten.unique_dim_consecutive.default", |cx| {
        let x = cx.tensor("self")?;
        let axis = cx.axis("dim", cx.rank(x))?;
        let found = unique::consecutive(cx, x, Some(axis))?;
        distinct(cx, &found)
    }),
];

/// The distinct values, for each element the index of its value, and the count of each value.
fn distinct(cx: &mut Cx, found: &unique::Unique) -> Lowered {
    let mut out = vec![found.values];
    let mut inverse = found.inverse;
    if cx.has("self") && !cx.has("dim") {
        let x = cx.tensor("self")?;
        let dims = cx.shape(x);
        inverse = cx.reshape(inverse, dims)?;
    }
    for (i, name, v) in [(1, "return_inverse", inverse), (2, "return_counts", found.counts)] {
        // Results that are not requested may be declared as empty, with the type of the elements.
        match cx.result(i) {
            Ok(t) if !cx.flag(name)? && t.shape.iter().any(|d| d.is(0)) => {
                out.push(cx.full(&[Dim::ZERO], Scalar::from_i64(t.dtype, 0))?);
            }
            _ => out.push(v),
        }
    }
    Ok(out)
}

/// The positions of the non-zero elements, one per row.
fn non_zero(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let found = chosen::non_zero(cx, x)?;
    Ok(vec![cx.transpose(found, &[1, 0])?])
}

/// The positions of the non-zero elements in a fixed number of rows, padded with a fill value. Row `i` is the first position at which the
/// running count of non-zero elements exceeds `i`.
fn non_zero_of_size(cx: &mut Cx) -> Lowered {
    let (x, size, fill) = (cx.tensor("self")?, cx.size("size")?, cx.int("fill_value")?);
    let dims = cx.shape(x);
    let all: Dim = dims.iter().product();
    let want = [size.clone(), dims.len().into()];
    if all.is(0) || size.is(0) || dims.is_empty() {
        return Ok(vec![cx.full(&want, Scalar::from_i64(DType::I64, fill))?]);
    }
    let flat = cx.reshape(x, vec![all.clone()])?;
    let holds = truth(cx, flat)?;
    let ones = cx.cast(holds, DType::I32)?;
    let found = scan::running(cx, ones, 0, ReduceOp::Sum)?;
    let row = cx.iota(std::slice::from_ref(&size), Poly::var(0), DType::I32)?;
    let at = search::place(cx, found, row, true)?;
    let at = cx.unsqueeze(at, &[1])?;
    let mut f = Body::default();
    let (place, axis, end, fill) =
        (f.arg(0), f.index(Poly::var(1)), f.index(all), f.int(DType::I64, fill));
    let (mut inner, mut position) = (Dim::ONE, f.i32(0));
    for (d, extent) in dims.iter().enumerate().rev() {
        let (step, of, this) = (f.index(inner.clone()), f.index(extent.clone()), f.i32(d as i64));
        let at = f.binary(BinaryOp::Div, place, step);
        let at = f.binary(BinaryOp::Mod, at, of);
        let here = f.binary(BinaryOp::Eq, axis, this);
        position = f.select(here, at, position);
        inner = &inner * extent;
    }
    let position = f.cast(DType::I64, position);
    let none = f.binary(BinaryOp::Ge, place, end);
    f.select(none, fill, position);
    Ok(vec![cx.map_to(f.0, &[at], want.to_vec())?])
}

fn masked_select(cx: &mut Cx) -> Lowered {
    let (x, mask) = (cx.tensor("self")?, cx.tensor("mask")?);
    let dims = cx.broadcast_shape(&[x, mask])?;
    let (x, mask) = (cx.expand(x, &dims)?, cx.expand(mask, &dims)?);
    let n: Dim = dims.iter().product();
    let (x, mask) = (cx.reshape(x, vec![n.clone()])?, cx.reshape(mask, vec![n])?);
    Ok(vec![chosen::compress(cx, x, mask, Some(0))?])
}

/// Replaces the elements under the mask by consecutive elements of the source.
fn masked_scatter(cx: &mut Cx) -> Lowered {
    let (x, mask, source) = (cx.tensor("self")?, cx.tensor("mask")?, cx.tensor("source")?);
    let dims = cx.broadcast_shape(&[x, mask])?;
    let (x, mask) = (cx.expand(x, &dims)?, cx.expand(mask, &dims)?);
    let (n, m): (Dim, Dim) = (dims.iter().product(), cx.shape(source).iter().product());
    if m.is(0) || n.is(0) {
        return Ok(vec![x]);
    }
    let (flat, source) = (cx.reshape(mask, vec![n])?, cx.reshape(source, vec![m.clone()])?);
    let ones = cx.cast(flat, DType::I32)?;
    let found = scan::running(cx, ones, 0, ReduceOp::Sum)?;
    let mut f = Body::default();
    let (found0, one, zero, end) = (f.arg(0), f.i32(1), f.i32(0), f.index(&m - 1));
    let at = f.binary(BinaryOp::Sub, found0, one);
    let at = f.binary(BinaryOp::Max, at, zero);
    f.binary(BinaryOp::Min, at, end);
    let at = cx.map(f.0, &[found])?;
    let taken = cx.take(source, at, 0)?;
    let taken = cx.reshape(taken, dims)?;
    Ok(vec![elementwise::choose(cx, mask, taken, x)?])
}

/// The gradient of the source: the elements under the mask in order, then zeros.
fn masked_scatter_backward(cx: &mut Cx) -> Lowered {
    let (grad, mask) = (cx.tensor("grad_output")?, cx.tensor("mask")?);
    let (dims, sizes) = (cx.shape(grad), cx.sizes("sizes")?);
    let mask = cx.expand(mask, &dims)?;
    let (n, m): (Dim, Dim) = (dims.iter().product(), sizes.iter().product());
    let zero = Scalar::from_f64(cx.dtype(grad), 0.0);
    let none = cx.full(std::slice::from_ref(&m), zero)?;
    if m.is(0) || n.is(0) {
        return Ok(vec![cx.reshape(none, sizes)?]);
    }
    let (flat, grad) = (cx.reshape(mask, vec![n.clone()])?, cx.reshape(grad, vec![n])?);
    let ones = cx.cast(flat, DType::I32)?;
    let found = scan::running(cx, ones, 0, ReduceOp::Sum)?;
    // Elements outside of the mask get a position past the end, where nothing is written.
    let mut f = Body::default();
    let (found0, chosen, one, end) = (f.arg(0), f.arg(1), f.i32(1), f.index(m));
    let at = f.binary(BinaryOp::Sub, found0, one);
    f.select(chosen, at, end);
    let at = cx.map(f.0, &[found, flat])?;
    let to = vec![GatherAxis::Data { input: 2, at: vec![Poly::var(0)] }];
    let y = cx.push(Op::Scatter { reduce: None, index: to }, &[none, grad, at])?;
    Ok(vec![cx.reshape(y, sizes)?])
}

/// Elements at positions in the flattened tensor.
fn take(cx: &mut Cx) -> Lowered {
    let (x, index) = (cx.tensor("self")?, cx.tensor("index")?);
    let n: Dim = cx.shape(x).iter().product();
    let flat = cx.reshape(x, vec![n])?;
    let index = cx.require_indices(index)?;
    Ok(vec![cx.take(flat, index, 0)?])
}

/// Writes elements at positions in the flattened tensor.
fn put(cx: &mut Cx) -> Lowered {
    let (x, index, source) = (cx.tensor("self")?, cx.tensor("index")?, cx.tensor("source")?);
    let (dims, m): (Vec<Dim>, Dim) = (cx.shape(x), cx.shape(index).iter().product());
    let flat = cx.reshape(x, vec![dims.iter().product()])?;
    let index = cx.require_indices(index)?;
    let (index, source) = (cx.reshape(index, vec![m.clone()])?, cx.reshape(source, vec![m])?);
    let reduce = cx.flag("accumulate")?.then_some(ReduceOp::Sum);
    let to = vec![GatherAxis::Data { input: 2, at: vec![Poly::var(0)] }];
    let y = cx.push(Op::Scatter { reduce, index: to }, &[flat, source, index])?;
    Ok(vec![cx.reshape(y, dims)?])
}

/// The source position of each element of the repeated axis: the first at which the running sum of repeats exceeds the element's
/// position.
fn repeated(cx: &mut Cx, repeats: Value, axis: usize) -> Result {
    let repeats = cx.nearest_i32(repeats)?;
    let repeats = cx.require_rank(repeats, 1)?;
    let ends = scan::running(cx, repeats, 0, ReduceOp::Sum)?;
    let total = match (cx.opt_size("output_size")?, cx.dims(repeats)) {
        (Some(n), None) => {
            // Torch rejects repeats whose sum differs.
            let sum = cx.reduce(ReduceOp::Sum, repeats, &[0], false)?;
            if let Some(sum) = cx.checked_number("total_of_repeats", sum, &n)? {
                cx.require_equal(&sum, &n);
            }
            n
        }
        (Some(n), Some(known)) => {
            let sum: Dim = known.into_iter().sum();
            cx.require_equal(&sum, &n);
            n
        }
        (None, Some(known)) => known.into_iter().sum(),
        (None, None) => {
            let most = cx.most(0, axis)?;
            if most.as_const().is_some() && cx.result(0).is_ok_and(|ty| ty.shape[axis] == most) {
                most
            } else {
                cx.require_open_sizes(repeats)?;
                let sum = cx.reduce(ReduceOp::Sum, repeats, &[0], false)?;
                let sum = cx.cast(sum, DType::I64)?;
                cx.computed_size(sum, most)
            }
        }
    };
    let at = cx.iota(&[total], Poly::var(0), DType::I32)?;
    search::place(cx, ends, at, true)
}

/// The tensor and the axis `dim`, or the flattened tensor and its axis if `dim` is absent.
fn along(cx: &mut Cx) -> Result<(Value, usize)> {
    let x = cx.tensor("self")?;
    if cx.has("dim") && cx.rank(x) > 0 {
        return Ok((x, cx.axis("dim", cx.rank(x))?));
    }
    Ok((shape::reshape(cx, x, &[Dim::from(-1i64)])?, 0))
}

fn repeat_by(cx: &mut Cx) -> Lowered {
    let ((x, axis), repeats) = (along(cx)?, cx.tensor("repeats")?);
    let n = cx.shape(x)[axis].clone();
    let repeats = match cx.rank(repeats) {
        1 if !cx.shape(repeats)[0].is(1) => repeats,
        _ => {
            let one = cx.reshape(repeats, vec![])?;
            cx.expand(one, &[n])?
        }
    };
    let at = repeated(cx, repeats, axis)?;
    Ok(vec![cx.take(x, at, axis)?])
}

fn repeat_each(cx: &mut Cx) -> Lowered {
    let ((x, axis), times) = (along(cx)?, cx.size("repeats")?);
    let mut dims = cx.shape(x);
    dims[axis] = &dims[axis] * &times;
    let mut index: Vec<Poly> = (0..dims.len()).map(Poly::var).collect();
    if !times.is(0) {
        index[axis] = index[axis].div(&times, &dims);
    }
    Ok(vec![cx.view(x, dims, index)?])
}
