//! Tensors of one value with other values at some positions.

use super::super::prelude::*;
use super::strided::over_slice;
use super::views::from_end;
use crate::lower::shape;
use wgfc_ir::{Body, Poly, Scalar};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.fill_diagonal.default", fill_diagonal).notes("without `wrap`"),
    OpDef::new("aten.one_hot.default", one_hot).notes("with `num_classes`"),
    OpDef::new("aten.pad_sequence.default", pad_sequence),
    OpDef::new("aten.select_backward.default", |cx| {
        let (g, sizes) = (cx.tensor("grad_output")?, cx.sizes("input_sizes")?);
        let axis = cx.axis("dim", sizes.len())?;
        let at = cx.size("index")?;
        let start = from_end(cx, at, &sizes[axis]);
        let g = cx.unsqueeze(g, &[axis])?;
        among_zeros(cx, g, &sizes, axis, &start, 1)
    }),
    OpDef::new("aten.slice_backward.default", |cx| {
        let (g, sizes) = (cx.tensor("grad_output")?, cx.sizes("input_sizes")?);
        let axis = cx.axis("dim", sizes.len())?;
        let at = cx.size("start")?;
        let start = from_end(cx, at, &sizes[axis]).max_of(&Dim::ZERO, &[]).min_of(&sizes[axis], &[]);
        let step = cx.int("step")?;
        among_zeros(cx, g, &sizes, axis, &start, step)
    }),
];

/// A tensor of zeros with the elements of `x` along an axis, from `start` in steps of `step`.
fn among_zeros(cx: &mut Cx, x: Value, dims: &[Dim], axis: usize, start: &Dim, step: i64) -> Lowered {
    let zero = Scalar::from_i64(cx.dtype(x), 0);
    let zeros = cx.full(dims, zero)?;
    Ok(vec![over_slice(cx, zeros, x, axis, start, step)?])
}

/// Writes a number where the indices along all axes are equal.
fn fill_diagonal(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    if cx.flag("wrap")? {
        return Err(OpError::unsupported(
            "`wrap` continues the diagonal below the square",
            "call fill_diagonal_ without wrap",
        )
        .param("wrap"));
    }
    let (dims, dtype) = (cx.shape(x), cx.dtype(x));
    let fill = cx.number("fill_value")?;
    let fill = cx.number_in(&fill, dtype)?;
    let mut f = Body::default();
    let (element, fill_value) = (f.arg(0), f.arg(1));
    let mut all = f.constant(Scalar::bool(true));
    let first = f.index(Poly::var(0));
    for axis in 1..dims.len() {
        let here = f.index(Poly::var(axis));
        let same = f.binary(BinaryOp::Eq, first, here);
        all = f.binary(BinaryOp::And, all, same);
    }
    f.select(all, fill_value, element);
    let fill = cx.expand(fill, &dims)?;
    Ok(vec![cx.map_to(f.0, &[x, fill], dims)?])
}

fn one_hot(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let classes = cx.size("num_classes")?;
    if classes.is(-1) {
        return Err(OpError::unsupported(
            "the values decide how many classes there are",
            "give the number of classes: one_hot(x, num_classes)",
        )
        .param("num_classes"));
    }
    let rank = cx.rank(x);
    let x = cx.converted(x, DType::I64)?;
    let x = cx.unsqueeze(x, &[rank])?;
    let class = cx.iota(&[classes], Poly::var(0), DType::I64)?;
    let same = cx.binary(BinaryOp::Eq, x, class)?;
    Ok(vec![cx.converted(same, DType::I64)?])
}

/// Stacks sequences of different lengths, padded to the longest.
fn pad_sequence(cx: &mut Cx) -> Lowered {
    let (want, batch_first) = (cx.result(0)?.shape, cx.flag("batch_first")?);
    let longest = want[usize::from(batch_first)].clone();
    let value = cx.float("padding_value")?;
    let left = cx.text("padding_side")?.as_deref() == Some("left");
    let mut rows = vec![];
    for x in cx.tensors("sequences")? {
        let (dims, dtype) = (cx.shape(x), cx.dtype(x));
        let mut before = vec![Dim::ZERO; dims.len()];
        let mut after = before.clone();
        let missing = &longest - &dims[0];
        if left {
            before[0] = missing;
        } else {
            after[0] = missing;
        }
        let x = cx.pad(x, &before, &after, Scalar::from_f64(dtype, value))?;
        rows.push(cx.unsqueeze(x, &[usize::from(!batch_first)])?);
    }
    Ok(vec![shape::concat(cx, &rows, usize::from(!batch_first))?])
}
