//! Convolution: a product of an unfolding view.

use super::window::{Windows, kernel_attr};
use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::op::show;
use wgfc_ir::{BinaryOp, Contract, Dim, Op, Poly, Scalar, Value};

/// `Conv`.
pub(super) fn conv(cx: &mut Cx) -> Lowered {
    let (x, w) = (cx.input(0)?, cx.input(1)?);
    let mut y = product(cx, x, w)?;
    if let Some(b) = cx.opt(2) {
        let rank = cx.rank(y);
        let b = crate::lower::norm::per_channel(cx, b, rank)?;
        y = cx.binary(BinaryOp::Add, y, b)?;
    }
    Ok(vec![y])
}

/// `x [N, G·C, spatial…]` and `w [G·M, C, kernel…]` give `[N, G·M, out…]`, windows and groups as the
/// node's attributes say.
pub(super) fn product(cx: &mut Cx, x: Value, w: Value) -> Result<Value, OpError> {
    let x = known_channels(cx, x, w)?;
    let groups = Groups::read(cx, x, w)?;
    let (sx, sw) = (cx.shape(x), cx.shape(w));
    let windows = Windows::read(cx, &sx[2..], sw[2..].to_vec())?;
    let split = groups.split(&sx);
    let x = cx.reshape(x, split)?;
    let zero = Scalar::from_f64(cx.dtype(x), 0.0);
    let unfolded = cx.unfold(x, &windows.axes(), zero)?;
    groups.product(cx, unfolded, w)
}

/// `x`, whose number of channels the weights tell where its own shape does not.
fn known_channels(cx: &mut Cx, x: Value, w: Value) -> Result<Value, OpError> {
    let (mut shape, sw) = (cx.shape(x), cx.shape(w));
    match (shape.get(1), sw.get(1).and_then(Dim::as_const)) {
        (Some(have), Some(_)) if have.as_const().is_none() => {
            shape[1] = &sw[1] * cx.int("group", 1)?;
            super::heads::as_shape(cx, x, &shape)
        }
        _ => Ok(x),
    }
}

/// How channels are divided.
pub(super) struct Groups {
    count: Dim,
    channels: Dim,
    outputs: Dim,
}

impl Groups {
    /// Reads `group`, and checks that weights `w [G·M, C, kernel…]` fit the input `x [N, G·C, spatial…]`.
    pub fn read(cx: &Cx, x: Value, w: Value) -> Result<Groups, OpError> {
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
        let count = Poly::constant(group);
        let channels = share(&sx[1], &count, "channels")?;
        let outputs = share(&sw[0], &count, "outputs")?;
        if channels != sw[1] {
            return Err(OpError::model(format!(
                "the input {} has {channels} channels in each of {group} groups, the weights {} take {}",
                show(&sx),
                show(&sw),
                sw[1]
            )));
        }
        Ok(Groups { count, channels, outputs })
    }

    /// A shape whose axis 1 is the input's channels, with an axis for the groups if there are several.
    pub fn split(&self, shape: &[Dim]) -> Vec<Dim> {
        let mut s = shape.to_vec();
        if !self.count.is(1) {
            s.splice(1..2, [self.count.clone(), self.channels.clone()]);
        }
        s
    }

    /// `unfolded [N, (G,) C, out…, kernel…]` and `w [G·M, C, kernel…]` give `[N, G·M, out…]`.
    pub fn product(&self, cx: &mut Cx, unfolded: Value, w: Value) -> Result<Value, OpError> {
        let (grouped, sw) = (!self.count.is(1), cx.shape(w));
        let n = sw.len() - 2;
        let mut split = sw.clone();
        if grouped {
            split.splice(0..1, [self.count.clone(), self.outputs.clone()]);
        }
        let w = cx.reshape(w, split)?;
        // Labels: batch 0, group 1, input channel 2, output channel 3, then places, then kernel.
        let places: Vec<u8> = (0..n).map(|i| 4 + i as u8).collect();
        let kernel: Vec<u8> = (0..n).map(|i| 4 + (n + i) as u8).collect();
        let g: &[u8] = if grouped { &[1] } else { &[] };
        let contract = Contract {
            a: [&[0], g, &[2], &places, &kernel].concat(),
            b: [g, &[3, 2], &kernel].concat(),
            out: [&[0], g, &[3], &places].concat(),
        };
        let su = cx.shape(unfolded);
        let y = cx.push(Op::Contract(contract), &[unfolded, w])?;
        let mut out = vec![su[0].clone(), sw[0].clone()];
        let lead = if grouped { 3 } else { 2 };
        out.extend(su[lead..lead + n].iter().cloned());
        Ok(cx.reshape(y, out)?)
    }
}

/// `d` divided by the number of groups.
pub(super) fn share(d: &Dim, groups: &Dim, what: &str) -> Result<Dim, OpError> {
    let q = d.div(groups, &[]);
    if &q * groups == *d {
        return Ok(q);
    }
    Err(OpError::model(format!("{d} {what} do not divide into {groups} groups")))
}

/// `Conv`.
pub const OPS: &[OpDef] =
    &[OpDef::new("Conv", &[1, 11, 22], conv).cases(&["test_basic_conv_", "test_conv_with_"])];
