//! `torch.gradient`: derivatives along axes by finite differences.

use super::super::messages::Argument;
use super::super::prelude::*;
use crate::lower::{self, shape};
use wgfc_ir::Poly;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.gradient.array|scalararray|scalarint|scalarrayarray|scalarrayint|tensorarray|tensorarrayint", slopes).in_f32(),
];

/// The coordinates of the elements along an axis.
#[derive(Clone, Copy)]
enum Spacing {
    /// Multiples of a constant distance.
    Even(f64),
    /// The elements of a tensor of rank 1.
    At(Value),
}

/// A derivative for each axis.
fn slopes(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let x = cx.as_float(x)?;
    let rank = cx.rank(x);
    let axes: Vec<usize> = match &*cx.argument("dim")? {
        Argument::None => (0..rank).collect(),
        Argument::Int(d) => vec![lower::axis(*d, rank)?],
        _ => cx.ints("dim")?.into_iter().map(|d| lower::axis(d, rank)).collect::<Result<_>>()?,
    };
    let places = cx.declares("spacing") && matches!(&*cx.argument("spacing")?, Argument::Tensors(_));
    let mut spacing: Vec<Spacing> = if places {
        cx.tensors("spacing")?.into_iter().map(Spacing::At).collect()
    } else if cx.declares("spacing") {
        cx.opt_floats("spacing")?.unwrap_or(vec![1.0]).into_iter().map(Spacing::Even).collect()
    } else {
        vec![Spacing::Even(1.0)]
    };
    if spacing.len() == 1 {
        spacing = vec![spacing[0]; axes.len()];
    }
    if spacing.len() != axes.len() {
        let e = format!("{} distances for {} axes", spacing.len(), axes.len());
        return Err(OpError::model(e).param("spacing"));
    }
    let order = cx.int("edge_order")?;
    if !(1..=2).contains(&order) {
        return Err(OpError::model(format!("unknown edge order {order}")).param("edge_order"));
    }
    axes.into_iter().zip(spacing).map(|(axis, s)| slope(cx, x, axis, s, order == 2)).collect()
}

/// The derivative along `axis`. Inner elements take the parabola through both neighbours; the ends take the difference from their
/// neighbour, or the parabola through three elements where `curved`.
fn slope(cx: &mut Cx, x: Value, axis: usize, spacing: Spacing, curved: bool) -> Result {
    let n = cx.shape(x)[axis].clone();
    if n.as_const().is_some_and(|n| n < if curved { 3 } else { 2 }) {
        let e = format!("{n} elements along axis {axis} are too few for a slope");
        return Err(OpError::model(e).operand(x));
    }
    let inner = &n - 2;
    let part = |cx: &mut Cx, from: &Poly, len: &Dim| -> Result { Ok(cx.slice(x, axis, from, 1, len)?) };
    let (one, two) = (Poly::constant(1), Poly::constant(2));
    let rows = [Poly::ZERO, one.clone(), two.clone()];
    let mut middle = vec![];
    for from in &rows {
        middle.push(part(cx, from, &inner)?);
    }
    let count = if curved { 3 } else { 2 };
    let (mut first, mut last) = (vec![], vec![]);
    for from in &rows[..count] {
        first.push(part(cx, from, &one)?);
        last.push(part(cx, &(from + &(&n - count as i64)), &one)?);
    }
    let parts = match spacing {
        Spacing::Even(h) => {
            let (start, end): (&[f64], &[f64]) =
                if curved { (&[-1.5, 2.0, -0.5], &[0.5, -2.0, 1.5]) } else { (&[-1.0, 1.0], &[-1.0, 1.0]) };
            let even = |cx: &mut Cx, v: &[Value], by: &[f64]| -> Result {
                let mut sum = None;
                for (v, by) in v.iter().zip(by) {
                    let v = cx.binary_scalar(BinaryOp::Mul, *v, *by)?;
                    sum = Some(match sum {
                        Some(s) => cx.binary(BinaryOp::Add, s, v)?,
                        None => v,
                    });
                }
                let sum = sum.ok_or_else(|| OpError::internal("a slope of nothing"))?;
                Ok(cx.binary_scalar(BinaryOp::Div, sum, h)?)
            };
            let around = even(cx, &[middle[0], middle[2]], &[-0.5, 0.5])?;
            [even(cx, &first, start)?, around, even(cx, &last, end)?]
        }
        Spacing::At(at) => {
            let at = cx.converted(cx.require_rank(at, 1)?, cx.dtype(x))?;
            let places = cx.shape(at)[0].clone();
            cx.require_equal(&places, &n);
            let trailing: Vec<usize> = (1..cx.rank(x) - axis).collect();
            let at = cx.unsqueeze(at, &trailing)?;
            let gap = |cx: &mut Cx, from: &Poly, len: &Dim| -> Result {
                let (a, b) = (cx.slice(at, 0, from, 1, len)?, cx.slice(at, 0, &(from + &Poly::ONE), 1, len)?);
                Ok(cx.binary(BinaryOp::Sub, b, a)?)
            };
            let (left, right) = (gap(cx, &Poly::ZERO, &inner)?, gap(cx, &one, &inner)?);
            let around = parabola(cx, &middle, [left, right], 1)?;
            let ends = [(Poly::ZERO, &first, 0), (&n - count as i64, &last, 2)];
            let mut made = vec![];
            for (from, v, place) in ends {
                let near = gap(cx, &from, &one)?;
                made.push(if curved {
                    let far = gap(cx, &(&from + &Poly::ONE), &one)?;
                    parabola(cx, v, [near, far], place)?
                } else {
                    let d = cx.binary(BinaryOp::Sub, v[1], v[0])?;
                    cx.binary(BinaryOp::Div, d, near)?
                });
            }
            [made[0], around, made[1]]
        }
    };
    shape::concat(cx, &parts, axis)
}

/// The derivative at one of three coordinates, `h` and `k` apart, of the parabola through the values there.
fn parabola(cx: &mut Cx, v: &[Value], [h, k]: [Value; 2], place: usize) -> Result {
    let mut f = wgfc_ir::Body::default();
    let v0: Vec<u32> = (0..3).map(|i| f.arg(i)).collect();
    let (h0, k0) = (f.arg(3), f.arg(4));
    // The slopes on both sides, and the second-order coefficient.
    let (rise_left, rise_right) = (f.binary(BinaryOp::Sub, v0[1], v0[0]), f.binary(BinaryOp::Sub, v0[2], v0[1]));
    let (left, right) = (f.binary(BinaryOp::Div, rise_left, h0), f.binary(BinaryOp::Div, rise_right, k0));
    let both = f.binary(BinaryOp::Add, h0, k0);
    let bend = f.binary(BinaryOp::Sub, right, left);
    let bend = f.binary(BinaryOp::Div, bend, both);
    match place {
        0 => {
            let less = f.binary(BinaryOp::Mul, bend, h0);
            f.binary(BinaryOp::Sub, left, less);
        }
        1 => {
            let more = f.binary(BinaryOp::Mul, bend, h0);
            f.binary(BinaryOp::Add, left, more);
        }
        _ => {
            let more = f.binary(BinaryOp::Mul, bend, k0);
            f.binary(BinaryOp::Add, right, more);
        }
    }
    Ok(cx.map(f.0, &[v[0], v[1], v[2], h, k])?)
}
