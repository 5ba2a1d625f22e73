//! Convolution as a contraction of an unfolding view with the weights.

use super::norm::per_channel;
use super::shape::with_extents;
use super::window::{Window, Windows};
use super::{Lowering, OpError, Result};
use wgfc_ir::op::show;
use wgfc_ir::{BinaryOp, Contract, Dim, Op, Poly, Scalar, Value};

/// Parameters of [`conv`].
#[derive(Clone, Debug)]
pub struct Conv {
    /// The strides, dilations and padding of the windows.
    pub window: Window,
    /// The number of groups of channels.
    pub groups: i64,
}

/// [`product`] plus a bias per channel.
pub fn conv(cx: &mut Lowering, x: Value, w: Value, bias: Option<Value>, p: &Conv) -> Result {
    let y = product(cx, x, w, p)?;
    match bias {
        Some(b) => channel_bias(cx, y, b),
        None => Ok(y),
    }
}

/// `y` plus one number per channel.
pub fn channel_bias(cx: &mut Lowering, y: Value, bias: Value) -> Result {
    let rank = cx.rank(y);
    let b = per_channel(cx, bias, rank)?;
    Ok(cx.binary(BinaryOp::Add, y, b)?)
}

/// `x [N, G·C, spatial…]` and `w [G·M, C, kernel…]` give `[N, G·M, out…]`.
pub fn product(cx: &mut Lowering, x: Value, w: Value, p: &Conv) -> Result {
    let x = known_channels(cx, x, w, p.groups)?;
    let groups = Groups::of(cx, x, w, p.groups)?;
    let (sx, sw) = (cx.shape(x), cx.shape(w));
    let windows = Windows::over(&sx[2..], sw[2..].to_vec(), &p.window)?;
    let split = groups.split(&sx);
    let x = cx.reshape(x, split)?;
    let zero = Scalar::from_f64(cx.dtype(x), 0.0);
    let unfolded = cx.unfold(x, &windows.axes(), zero)?;
    groups.product(cx, unfolded, w)
}

/// `x` with the number of channels taken from the weights if its own shape does not tell it.
fn known_channels(cx: &mut Lowering, x: Value, w: Value, groups: i64) -> Result {
    let (mut shape, sw) = (cx.shape(x), cx.shape(w));
    match (shape.get(1), sw.get(1).and_then(Dim::as_const)) {
        (Some(have), Some(_)) if have.as_const().is_none() => {
            shape[1] = &sw[1] * groups;
            with_extents(cx, x, &shape)
        }
        _ => Ok(x),
    }
}

/// The division of channels into groups.
#[derive(Clone, Debug)]
pub struct Groups {
    count: Dim,
    channels: Dim,
    outputs: Dim,
}

impl Groups {
    /// Checks that weights `w [G·M, C, kernel…]` fit the input `x [N, G·C, spatial…]`.
    pub fn of(cx: &Lowering, x: Value, w: Value, group: i64) -> Result<Groups> {
        let (sx, sw) = (cx.shape(x), cx.shape(w));
        if sx.len() < 3 || sw.len() != sx.len() || cx.dtype(x) != cx.dtype(w) {
            return Err(OpError::model(format!(
                "weights of type {} for an input of type {}",
                cx.ty(w),
                cx.ty(x)
            )));
        }
        if group < 1 {
            return Err(OpError::model(format!("{group} groups")).param("groups"));
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

    /// `shape` with its channel axis 1 split into groups and channels if there are several groups.
    pub fn split(&self, shape: &[Dim]) -> Vec<Dim> {
        let mut s = shape.to_vec();
        if !self.count.is(1) {
            s.splice(1..2, [self.count.clone(), self.channels.clone()]);
        }
        s
    }

    /// `unfolded [N, (G,) C, out…, kernel…]` and `w [G·M, C, kernel…]` give `[N, G·M, out…]`.
    pub fn product(&self, cx: &mut Lowering, unfolded: Value, w: Value) -> Result {
        let (grouped, sw) = (!self.count.is(1), cx.shape(w));
        let n = sw.len() - 2;
        let mut split = sw.clone();
        if grouped {
            split.splice(0..1, [self.count.clone(), self.outputs.clone()]);
        }
        let w = cx.reshape(w, split)?;
        // Labels: batch 0, group 1, input channel 2, output channel 3, then output positions, then kernel positions.
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

/// `d` divided by the number of groups; fails if it does not divide evenly.
pub fn share(d: &Dim, groups: &Dim, what: &str) -> Result<Dim> {
    let q = d.div(groups, &[]);
    if &q * groups == *d {
        return Ok(q);
    }
    Err(OpError::model(format!("{d} {what} do not divide into {groups} groups")))
}
