//! Elements chosen by a condition. How many there are must be known when compiling.

use crate::import::Cx;
use crate::import::op::{Lowered, OpDef, OpError};
use wgfc_ir::{DType, Dim, Tensor};

/// The slices along an axis, or the elements, where the condition is true. It may be shorter than the axis.
fn compress(cx: &mut Cx) -> Lowered {
    let mut x = cx.input(0)?;
    let condition = cx.input_of_rank(1, 1)?;
    if cx.dtype(condition) != DType::Bool {
        return Err(
            cx.at_input(1, OpError::model(format!("the condition is {}, not bool", cx.ty(condition))))
        );
    }
    let axis = match cx.int_opt("axis")? {
        Some(axis) => cx.axis(axis, cx.rank(x)).map_err(|e| e.attribute("axis"))?,
        None => {
            let n: Dim = cx.shape(x).iter().product();
            x = cx.reshape(x, vec![n])?;
            0
        }
    };
    let condition = cx.const_ints(1)?;
    if let Some(n) = cx.shape(x)[axis].as_const()
        && condition.len() as i64 > n
    {
        let e = OpError::model(format!("{} conditions for {n} slices", condition.len()));
        return Err(cx.at_input(1, e));
    }
    let places: Vec<i64> = (0..).zip(&condition).filter(|(_, c)| **c != 0).map(|(i, _)| i).collect();
    let places = cx.constant(Tensor::from_i64(vec![places.len()], &places));
    Ok(vec![cx.take(x, places, axis)?])
}

/// The positions of elements that are not 0, `[rank, count]`, in row-major order.
fn non_zero(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let shape = cx.shape(x);
    let extents: Option<Vec<usize>> =
        shape.iter().map(|d| d.as_const().and_then(|c| usize::try_from(c).ok())).collect();
    let elements = cx.const_numbers(0)?;
    let Some(extents) = extents else {
        let e = OpError::unsupported(format!("the shape of {} must be known", cx.ty(x)));
        return Err(cx.at_input(0, e.help("fix the dimension with --dim NAME=VALUE")));
    };
    let places: Vec<usize> =
        elements.iter().enumerate().filter(|(_, e)| **e != 0.0).map(|(at, _)| at).collect();
    let mut rows = vec![];
    for axis in 0..extents.len() {
        let inner: usize = extents[axis + 1..].iter().product();
        rows.extend(places.iter().map(|at| (at / inner % extents[axis]) as i64));
    }
    Ok(vec![cx.constant(Tensor::from_i64(vec![extents.len(), places.len()], &rows))])
}

/// `Compress` and `NonZero`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Compress", &[9, 11, 28], compress)
        .cases(&["test_compress_"])
        .notes("the condition must be known when compiling"),
    OpDef::new("NonZero", &[9, 13], non_zero)
        .cases(&["test_nonzero_"])
        .notes("the operand must be known when compiling"),
];
