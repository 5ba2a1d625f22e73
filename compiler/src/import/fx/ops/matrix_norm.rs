//! Matrix norms and condition numbers.

use super::super::prelude::*;
use super::reduce::norm_along;
use crate::lower::{self, linalg};
use wgfc_ir::{ReduceOp, Scalar};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.linalg_cond.default|p_str", condition),
    OpDef::new("aten.linalg_matrix_norm.default|str_ord", of_matrices).in_f32(),
    OpDef::new("aten.linalg_norm.default|ord_str", either).in_f32(),
    OpDef::new("aten.nuclear_norm.default|dim", nuclear),
];

/// The order of a norm.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// The root of the sum of squares.
    Frobenius,
    /// The sum of singular values.
    Nuclear,
    /// ±1, ±2 or ±∞.
    Number(f64),
}

fn order(cx: &mut Cx, name: &str) -> Result<Option<Order>> {
    match cx.text(name).ok().flatten().as_deref() {
        Some("fro") => Ok(Some(Order::Frobenius)),
        Some("nuc") => Ok(Some(Order::Nuclear)),
        Some(t) => match t.parse() {
            Ok(n) => Ok(Some(Order::Number(n))),
            Err(_) => Err(OpError::model(format!("unknown norm `{t}`")).param("ord")),
        },
        None => Ok(cx.opt_float(name)?.map(Order::Number)),
    }
}

/// The norm along the axes of rows and columns.
fn norm(cx: &mut Lowering, x: Value, ord: Order, [rows, columns]: [usize; 2], keep: bool) -> Result {
    let (sum, of) = match ord {
        Order::Frobenius => return norm_along(cx, x, 2.0, &[rows, columns], keep),
        Order::Nuclear => return singular(cx, x, ReduceOp::Sum, [rows, columns], keep),
        Order::Number(p) if p.abs() == 2.0 => return singular(cx, x, extreme(p), [rows, columns], keep),
        Order::Number(p) if p.abs() == 1.0 => (rows, columns),
        Order::Number(p) if p.is_infinite() => (columns, rows),
        Order::Number(p) => return Err(OpError::model(format!("matrix norms of order {p} are not defined")).param("ord")),
    };
    let Order::Number(p) = ord else { return Ok(x) };
    let x = cx.unary(UnaryOp::Abs, x)?;
    let sums = cx.reduce(ReduceOp::Sum, x, &[sum], true)?;
    let y = cx.reduce(extreme(p), sums, &[of], true)?;
    Ok(if keep { y } else { cx.squeeze(y, &[rows, columns])? })
}

fn extreme(p: f64) -> ReduceOp {
    if p > 0.0 { ReduceOp::Max } else { ReduceOp::Min }
}

/// A reduction of the singular values.
fn singular(cx: &mut Lowering, x: Value, op: ReduceOp, [rows, columns]: [usize; 2], keep: bool) -> Result {
    let rank = cx.rank(x);
    let mut order: Vec<usize> = (0..rank).filter(|d| *d != rows && *d != columns).collect();
    order.extend([rows, columns]);
    let x = cx.transpose(x, &order)?;
    let s = linalg::singular(cx, x, false)?.s;
    let y = cx.reduce(op, s, &[rank - 2], false)?;
    let (first, second) = (rows.min(columns), rows.max(columns));
    Ok(if keep { cx.unsqueeze(y, &[first, second])? } else { y })
}

fn of_matrices(cx: &mut Cx) -> Lowered {
    let (x, dtype, keep) = (cx.tensor("self")?, cx.result_dtype(0)?, cx.flag("keepdim")?);
    let axes = two(cx, x, cx.opt_ints("dim")?)?;
    let ord = order(cx, "ord")?.unwrap_or(Order::Frobenius);
    let x = cx.converted(x, dtype)?;
    Ok(vec![norm(cx, x, ord, axes, keep)?])
}

/// The axes of rows and columns, by default the last two.
fn two(cx: &Cx, x: Value, dims: Option<Vec<i64>>) -> Result<[usize; 2]> {
    let dims = dims.unwrap_or_else(|| vec![-2, -1]);
    let [rows, columns] = dims[..] else {
        return Err(OpError::model(format!("needs two axes, got {}", dims.len())).param("dim"));
    };
    let axes = [lower::axis(rows, cx.rank(x))?, lower::axis(columns, cx.rank(x))?];
    if axes[0] == axes[1] {
        return Err(OpError::model(format!("both axes are {}", axes[0])).param("dim"));
    }
    Ok(axes)
}

/// A matrix norm if an order and two axes are given, else a vector norm.
fn either(cx: &mut Cx) -> Lowered {
    let (x, dtype, keep) = (cx.tensor("self")?, cx.result_dtype(0)?, cx.flag("keepdim")?);
    let (ord, dims) = (order(cx, "ord")?, cx.opt_ints("dim")?);
    let x = cx.converted(x, dtype)?;
    let matrices = dims.as_ref().map_or(cx.rank(x), Vec::len) == 2;
    Ok(vec![match ord {
        Some(o) if matrices || !matches!(o, Order::Number(_)) => {
            let axes = two(cx, x, dims)?;
            norm(cx, x, o, axes, keep)?
        }
        o => {
            let p = if let Some(Order::Number(p)) = o { p } else { 2.0 };
            let axes = cx.axes("dim", cx.rank(x))?;
            norm_along(cx, x, p, &axes, keep)?
        }
    }])
}

fn nuclear(cx: &mut Cx) -> Lowered {
    let (x, keep) = (cx.tensor("self")?, cx.flag("keepdim")?);
    let dims = if cx.declares("dim") { cx.opt_ints("dim")? } else { None };
    let axes = two(cx, x, dims)?;
    Ok(vec![singular(cx, x, ReduceOp::Sum, axes, keep)?])
}

/// The condition number: the norm times that of the inverse. For the norm 2 it is the ratio of the largest and smallest singular values.
fn condition(cx: &mut Cx) -> Lowered {
    let (a, ty) = (cx.tensor("self")?, cx.result(0)?);
    if cx.ty(a).numel().is(0) {
        return Ok(vec![cx.full(&ty.shape, Scalar::from_f64(ty.dtype, 0.0))?]);
    }
    let rank = cx.rank(a);
    let axes = two(cx, a, None)?;
    let ord = order(cx, "p")?.unwrap_or(Order::Number(2.0));
    if let Order::Number(p) = ord
        && p.abs() == 2.0
    {
        let s = linalg::singular(cx, a, false)?.s;
        let most = cx.reduce(ReduceOp::Max, s, &[rank - 2], false)?;
        let least = cx.reduce(ReduceOp::Min, s, &[rank - 2], false)?;
        let [a, b] = if p > 0.0 { [most, least] } else { [least, most] };
        return Ok(vec![cx.binary(BinaryOp::Div, a, b)?]);
    }
    let (x, info) = linalg::inverse(cx, a)?;
    let none = cx.binary_scalar(BinaryOp::Ne, info, 0.0)?;
    let none = cx.unsqueeze(none, &[rank - 2, rank - 1])?;
    let infinite = cx.scalar(cx.dtype(x), f64::INFINITY);
    let x = cx.select(none, infinite, x)?;
    let (of_a, of_x) = (norm(cx, a, ord, axes, false)?, norm(cx, x, ord, axes, false)?);
    Ok(vec![cx.binary(BinaryOp::Mul, of_a, of_x)?])
}
