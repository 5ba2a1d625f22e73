//! Lp norms: pooling over windows or over all positions, and normalisation.

use super::pool::windows;
use crate::import::onnx::prelude::*;
use crate::lower::{lp, pool};

/// Attribute `p`, at least 1.
fn order(cx: &Cx) -> Result<i64> {
    match cx.int("p", 2)? {
        p @ 1.. => Ok(p),
        p => Err(OpError::model(format!("the order {p} of the norm is less than 1")).attribute("p")),
    }
}

fn lp_pool(cx: &mut Cx) -> Lowered {
    let p = order(cx)?;
    let x = cx.input(0)?;
    let windows = windows(cx, x)?;
    Ok(vec![lp::pool(cx, x, p, &windows)?])
}

fn global(cx: &mut Cx) -> Lowered {
    let p = order(cx)?;
    let x = cx.input(0)?;
    let axes = pool::spatial_axes(cx, x)?;
    Ok(vec![lp::norm(cx, x, p, &axes)?])
}

fn normalization(cx: &mut Cx) -> Lowered {
    let p = order(cx)?;
    if p > 2 {
        return Err(OpError::model(format!("the order {p} of the norm is not 1 or 2")).attribute("p"));
    }
    let x = cx.input(0)?;
    let axis = cx.axis_attr(x, -1)?;
    Ok(vec![lp::normalised(cx, x, p, axis)?])
}

/// `GlobalLpPool`, `LpNormalization`, `LpPool`.
pub const OPS: &[OpDef] = &[
    OpDef::new("GlobalLpPool", &[1, 2, 22], global),
    OpDef::new("LpNormalization", &[1, 22], normalization).cases(&[
        "test_lpnormalization_",
        "test_l1normalization_",
        "test_l2normalization_",
    ]),
    OpDef::new("LpPool", &[1, 2, 11, 18, 22], lp_pool).cases(&["test_lppool_"]),
];
