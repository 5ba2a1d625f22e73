//! Padding.

use super::super::prelude::*;
use crate::lower::split::{self, Padding};
use wgfc_ir::Scalar;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.constant_pad_nd.default", constant).by_parts(),
    OpDef::new("aten.pad.default", by_mode).by_parts(),
    OpDef::new("aten.reflection_pad1d.default", |cx| padded(cx, "padding", Padding::Reflect)).by_parts(),
    OpDef::new("aten.reflection_pad2d.default", |cx| padded(cx, "padding", Padding::Reflect)).by_parts(),
    OpDef::new("aten.reflection_pad3d.default", |cx| padded(cx, "padding", Padding::Reflect)).by_parts(),
    OpDef::new("aten.replication_pad1d.default", |cx| padded(cx, "padding", Padding::Edge)).by_parts(),
    OpDef::new("aten.replication_pad2d.default", |cx| padded(cx, "padding", Padding::Edge)).by_parts(),
    OpDef::new("aten.replication_pad3d.default", |cx| padded(cx, "padding", Padding::Edge)).by_parts(),
];

/// Pads by pairs of amounts before and after, the last axis first. Negative amounts cut elements off.
fn padded(cx: &mut Cx, name: &str, padding: Padding) -> Lowered {
    let x = cx.tensor("self")?;
    let (pads, rank) = (cx.sizes(name)?, cx.rank(x));
    if pads.len() > 2 * rank || pads.len() % 2 != 0 {
        return Err(OpError::model(format!("{} numbers for a tensor of type {}", pads.len(), cx.ty(x))));
    }
    let (mut before, mut after) = (vec![Dim::ZERO; rank], vec![Dim::ZERO; rank]);
    for (i, pair) in pads.chunks_exact(2).enumerate() {
        (before[rank - 1 - i], after[rank - 1 - i]) = (pair[0].clone(), pair[1].clone());
    }
    if matches!(padding, Padding::Wrap) {
        // Elements are cut off before the rest is repeated.
        let less = |d: &Dim| if d.as_const().is_some_and(|n| n < 0) { d.clone() } else { Dim::ZERO };
        let cut = [&before, &after].map(|all| all.iter().map(less).collect::<Vec<_>>());
        let zero = Padding::Constant(Scalar::from_i64(cx.dtype(x), 0));
        let x = split::pad(cx, x, &cut[0], &cut[1], zero)?;
        let rest = |all: &[Dim], cut: &[Dim]| all.iter().zip(cut).map(|(d, c)| d - c).collect::<Vec<_>>();
        let (before, after) = (rest(&before, &cut[0]), rest(&after, &cut[1]));
        return Ok(vec![split::pad(cx, x, &before, &after, padding)?]);
    }
    Ok(vec![split::pad(cx, x, &before, &after, padding)?])
}

fn value(cx: &mut Cx, n: &Number) -> Result<Padding> {
    let x = cx.tensor("self")?;
    let dtype = cx.dtype(x);
    Ok(match n.known() {
        // The fill value of complex numbers is real.
        Some(_) if cx.part == Some(1) => Padding::Constant(Scalar::from_i64(dtype, 0)),
        Some(v) if dtype == DType::Bool => Padding::Constant(Scalar::bool(v != 0.0)),
        Some(v) if dtype.is_float() => Padding::Constant(Scalar::from_f64(dtype, v)),
        Some(v) => Padding::Constant(Scalar::from_i64(dtype, v as i64)),
        None => Padding::Value(cx.number_in(n, dtype)?),
    })
}

fn constant(cx: &mut Cx) -> Lowered {
    let n = cx.number("value")?;
    let padding = value(cx, &n)?;
    padded(cx, "pad", padding)
}

fn by_mode(cx: &mut Cx) -> Lowered {
    let padding = match cx.text("mode")?.as_deref() {
        Some("reflect") => Padding::Reflect,
        Some("replicate") => Padding::Edge,
        Some("circular") => Padding::Wrap,
        _ => {
            let n = cx.opt_number("value")?.unwrap_or(Number::Float(0.0));
            value(cx, &n)?
        }
    };
    padded(cx, "pad", padding)
}
