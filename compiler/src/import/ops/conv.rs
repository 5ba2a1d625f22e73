//! Convolution: a product of an unfolding view.

use super::window::{Windows, kernel_attr};
use crate::import::Cx;
use crate::import::op::{Lowered, OpDef, OpError};
use wgfc_ir::op::show;
use wgfc_ir::{BinaryOp, Contract, Dim, Op, Poly, Scalar, Value};

fn conv(cx: &mut Cx) -> Lowered {
    let (x, w) = (cx.input(0)?, cx.input(1)?);
    let mut y = product(cx, x, w)?;
    if let Some(b) = cx.opt(2) {
        let rank = cx.rank(y);
        let b = super::norm::per_channel(cx, b, rank)?;
        y = cx.binary(BinaryOp::Add, y, b)?;
    }
    Ok(vec![y])
}

/// `x [N, G·C, spatial…]` and `w [G·M, C, kernel…]` give `[N, G·M, out…]`, windows and groups as the
/// node's attributes say.
pub(super) fn product(cx: &mut Cx, x: Value, w: Value) -> Result<Value, OpError> {
    let (sx, sw) = (cx.shape(x), cx.shape(w));
    if sx.len() < 3 || sw.len() != sx.len() || cx.dtype(x) != cx.dtype(w) {
        return Err(OpError::model(format!(
            "weights of type {} for an input of type {}",
            cx.ty(w),
            cx.ty(x)
        )));
    }
    let group = cx.int("group", 1)?;
    if group < 1 {
        return Err(OpError::model(format!("{group} groups")).attribute("group"));
    }
    if let Some(k) = kernel_attr(cx)?
        && k != sw[2..]
    {
        let e = OpError::model(format!("{} differs from the weights {}", show(&k), show(&sw)));
        return Err(e.attribute("kernel_shape"));
    }
    let groups = Poly::constant(group);
    let split = |d: &Dim, what: &str| {
        let q = d.div(&groups, &[]);
        if &q * &groups == *d {
            Ok(q)
        } else {
            Err(OpError::model(format!("{d} {what} do not divide into {group} groups")))
        }
    };
    let (channels, outputs) = (split(&sx[1], "channels")?, split(&sw[0], "outputs")?);
    if channels != sw[1] {
        return Err(OpError::model(format!(
            "the input {} has {channels} channels in each of {group} groups, the weights {} take {}",
            show(&sx),
            show(&sw),
            sw[1]
        )));
    }
    let windows = Windows::read(cx, &sx[2..], sw[2..].to_vec())?;
    let n = sx.len() - 2;
    let (mut shape_x, mut shape_w) = (sx.clone(), sw.clone());
    if group > 1 {
        shape_x.splice(1..2, [groups.clone(), channels]);
        shape_w.splice(0..1, [groups, outputs]);
    }
    let x = cx.reshape(x, shape_x)?;
    let w = cx.reshape(w, shape_w)?;
    let zero = Scalar::from_f64(cx.dtype(x), 0.0);
    let unfolded = cx.unfold(x, &windows.axes(), zero)?;
    // Labels: batch 0, group 1, input channel 2, output channel 3, then places, then kernel.
    let places: Vec<u8> = (0..n).map(|i| 4 + i as u8).collect();
    let kernel: Vec<u8> = (0..n).map(|i| 4 + (n + i) as u8).collect();
    let g: &[u8] = if group > 1 { &[1] } else { &[] };
    let contract = Contract {
        a: [&[0], g, &[2], &places, &kernel].concat(),
        b: [g, &[3, 2], &kernel].concat(),
        out: [&[0], g, &[3], &places].concat(),
    };
    let y = cx.push(Op::Contract(contract), &[unfolded, w])?;
    let mut out = vec![sx[0].clone(), sw[0].clone()];
    out.extend(windows.out);
    Ok(cx.reshape(y, out)?)
}

/// `Conv`.
pub const OPS: &[OpDef] =
    &[OpDef::new("Conv", &[1, 11, 22], conv).cases(&["test_basic_conv_", "test_conv_with_"])];
