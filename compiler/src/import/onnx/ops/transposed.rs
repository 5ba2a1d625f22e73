//! What undoes unfolding: `ConvTranspose`, `Col2Im`, `MaxUnpool`.
//!
//! Along each axis element `k` of window `i` lies at `i·stride + k·dilation − before`. Read the other way, each
//! place meets element `k` of window `q / stride`, where `q = place + before − k·dilation` is a multiple of the
//! stride: an axis of extent 1, read at `q mod stride`, is outside where it is none.

use super::conv::share;
use super::window::kernel_attr;
use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::op::{GatherAxis, show};
use wgfc_ir::{BinaryOp as B, Contract, Dim, Op, Poly, ReduceOp, Scalar, Value};

type Result<T = Value> = std::result::Result<T, OpError>;

/// One spatial axis.
struct Axis {
    stride: i64,
    dilation: i64,
    before: Dim,
    /// Elements in a window.
    kernel: Dim,
    /// Places of the result.
    out: Dim,
}

/// A list of an attribute, of `len` values of at least `least`.
fn list(cx: &Cx, name: &str, len: usize, default: i64, least: i64) -> Result<Vec<i64>> {
    let v = cx.ints(name)?.unwrap_or_else(|| vec![default; len]);
    if v.len() != len {
        return Err(OpError::model(format!("{} values, not {len}", v.len())).attribute(name));
    }
    match v.iter().find(|x| **x < least || **x > 1 << 31) {
        Some(x) => Err(OpError::model(format!("value {x}")).attribute(name)),
        None => Ok(v),
    }
}

/// What each place of the result meets: `x [lead…, (kernel…,) windows…]` gives `[lead…, out…, kernel…]`, 0
/// where nothing lies. With `own` each element of a window has a value of its own, else all have one.
fn met(cx: &mut Cx, x: Value, lead: usize, axes: &[Axis], own: bool) -> Result {
    let s = cx.shape(x);
    let n = axes.len();
    let mut shape = s[..lead].to_vec();
    shape.extend(axes.iter().map(|a| a.out.clone()));
    shape.extend(axes.iter().map(|a| a.kernel.clone()));
    let mut index: Vec<Poly> = (0..lead).map(Poly::var).collect();
    if own {
        index.extend((0..n).map(|i| Poly::var(lead + n + i)));
    }
    let mut on = vec![];
    for (i, a) in axes.iter().enumerate() {
        let (o, k) = (Poly::var(lead + i), Poly::var(lead + n + i) * a.dilation);
        let q = &(&o + &a.before) - &k;
        index.push(q.div(&a.stride.into(), &shape));
        if a.stride > 1 {
            on.push(q.modulo(&a.stride.into(), &shape));
        }
    }
    let mut with = s.clone();
    with.extend(on.iter().map(|_| Dim::ONE));
    let x = cx.reshape(x, with)?;
    index.extend(on);
    let fill = Some(Scalar::from_f64(cx.dtype(x), 0.0));
    Ok(cx.push(Op::View { shape, index, fill }, &[x])?)
}

/// Padding before, and the extents of the result.
fn placed(cx: &Cx, spatial: &[Dim], kernel: &[Dim]) -> Result<Vec<Axis>> {
    let n = spatial.len();
    let (strides, dilations) = (list(cx, "strides", n, 1, 1)?, list(cx, "dilations", n, 1, 1)?);
    let more = list(cx, "output_padding", n, 0, 0)?;
    let pads = list(cx, "pads", 2 * n, 0, i64::from(i32::MIN))?;
    let wanted = match cx.ints("output_shape")? {
        Some(v) => Some(match v.len().checked_sub(n) {
            // Batch and channels may stand before.
            Some(0 | 2) if v.iter().all(|d| (0..=1 << 31).contains(d)) => v[v.len() - n..].to_vec(),
            _ => return Err(OpError::model(format!("{v:?}")).attribute("output_shape")),
        }),
        None => None,
    };
    let auto = cx.string("auto_pad", "NOTSET")?;
    if !matches!(auto.as_str(), "" | "NOTSET" | "VALID" | "SAME_UPPER" | "SAME_LOWER") {
        return Err(OpError::model(format!("`{auto}`")).attribute("auto_pad"));
    }
    let mut axes = vec![];
    for i in 0..n {
        let (stride, dilation) = (strides[i], dilations[i]);
        let reach = &(&(&kernel[i] - 1) * dilation) + 1;
        let full = &(&(&(&spatial[i] - 1) * stride) + &reach) + more[i];
        let out = match &wanted {
            Some(w) => Some(Dim::from(w[i])),
            None if auto.starts_with("SAME") => Some(&spatial[i] * stride),
            None => None,
        };
        let (before, out) = match out {
            Some(out) => {
                let total = (&full - &out).max_of(&Dim::ZERO, &[]);
                let less = total.div(&Poly::constant(2), &[]);
                (if auto == "SAME_UPPER" { less } else { &total - &less }, out)
            }
            None if auto == "VALID" => (Dim::ZERO, full.clone()),
            None => (Dim::from(pads[i]), &full - (pads[i] + pads[n + i])),
        };
        if out.as_const().is_some_and(|o| o < 0) {
            return Err(
                OpError::model(format!("the padding leaves {out} of {full} places")).attribute("pads")
            );
        }
        axes.push(Axis { stride, dilation, before, kernel: kernel[i].clone(), out });
    }
    Ok(axes)
}

/// `x [N, G·C, spatial…]` and `w [G·C, M, kernel…]` give `[N, G·M, out…]`.
fn conv_transpose(cx: &mut Cx) -> Lowered {
    let (x, w) = (cx.input(0)?, cx.input(1)?);
    let (sx, sw) = (cx.shape(x), cx.shape(w));
    if sx.len() < 3 || sw.len() != sx.len() || cx.dtype(x) != cx.dtype(w) || sx[1] != sw[0] {
        let e = format!("weights of type {} for an input of type {}", cx.ty(w), cx.ty(x));
        return Err(OpError::model(e));
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
    let groups = Dim::from(group);
    let channels = share(&sx[1], &groups, "channels")?;
    let n = sx.len() - 2;
    let axes = placed(cx, &sx[2..], &sw[2..])?;
    let (mut split_x, mut split_w) = (sx.clone(), sw.clone());
    if group > 1 {
        split_x.splice(1..2, [groups.clone(), channels.clone()]);
        split_w.splice(0..1, [groups.clone(), channels]);
    }
    let x = cx.reshape(x, split_x)?;
    let w = cx.reshape(w, split_w)?;
    let lead = if group > 1 { 3 } else { 2 };
    let met = met(cx, x, lead, &axes, false)?;
    // Labels: batch 0, group 1, input channel 2, output channel 3, then places, then kernel.
    let places: Vec<u8> = (0..n).map(|i| 4 + i as u8).collect();
    let kernel: Vec<u8> = (0..n).map(|i| 4 + (n + i) as u8).collect();
    let g: &[u8] = if group > 1 { &[1] } else { &[] };
    let contract = Contract {
        a: [&[0], g, &[2], &places, &kernel].concat(),
        b: [g, &[2, 3], &kernel].concat(),
        out: [&[0], g, &[3], &places].concat(),
    };
    let y = cx.push(Op::Contract(contract), &[met, w])?;
    let mut out = vec![sx[0].clone(), &sw[1] * &groups];
    out.extend(axes.into_iter().map(|a| a.out));
    let mut y = cx.reshape(y, out)?;
    if let Some(b) = cx.opt(2) {
        let b = crate::lower::norm::per_channel(cx, b, n + 2)?;
        y = cx.binary(B::Add, y, b)?;
    }
    Ok(vec![y])
}

/// Windows `[N, C·kernel, count]` summed where they lie in an image.
fn col2im(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 3)?;
    let (image, block) = (cx.const_dims(1)?, cx.const_dims(2)?);
    let (n, sx) = (image.len(), cx.shape(x));
    if n == 0 || block.len() != n {
        return Err(cx.at_input(2, OpError::model(format!("{} axes for {n} of the image", block.len()))));
    }
    let (strides, dilations) = (list(cx, "strides", n, 1, 1)?, list(cx, "dilations", n, 1, 1)?);
    let pads = list(cx, "pads", 2 * n, 0, 0)?;
    let size: Dim = block.iter().product();
    let channels = share(&sx[1], &size, "rows")?;
    let mut split = vec![sx[0].clone(), channels];
    split.extend(block.iter().cloned());
    let mut axes = vec![];
    for i in 0..n {
        let reach = &(&(&block[i] - 1) * dilations[i]) + 1;
        let room = &(&image[i] + (pads[i] + pads[n + i])) - &reach;
        split.push(&room.div(&strides[i].into(), &[]) + 1);
        axes.push(Axis {
            stride: strides[i],
            dilation: dilations[i],
            before: pads[i].into(),
            kernel: block[i].clone(),
            out: image[i].clone(),
        });
    }
    let x = cx.reshape(x, split).map_err(|e| cx.at_input(0, e.into()))?;
    let met = met(cx, x, 2, &axes, true)?;
    Ok(vec![cx.reduce(ReduceOp::Sum, met, &(2 + n..2 + 2 * n).collect::<Vec<_>>(), false)?])
}

/// Elements at the places that `MaxPool` found them, 0 elsewhere.
fn max_unpool(cx: &mut Cx) -> Lowered {
    let (x, _) = (cx.input(0)?, cx.input(1)?);
    let places = super::gather::indices(cx, 1)?;
    let (sx, si) = (cx.shape(x), cx.shape(places));
    if sx.len() < 3 || si.len() != sx.len() {
        return Err(OpError::model(format!("indices {} for {}", show(&si), show(&sx))));
    }
    for (a, b) in si.iter().zip(&sx) {
        cx.require_equal(a, b);
    }
    let n = sx.len() - 2;
    let kernel = kernel_attr(cx)?.filter(|k| k.len() == n);
    let kernel =
        kernel.ok_or_else(|| OpError::model(format!("needs {n} extents")).attribute("kernel_shape"))?;
    let strides = list(cx, "strides", n, 1, 1)?;
    let pads = list(cx, "pads", 2 * n, 0, 0)?;
    let mut shape = sx[..2].to_vec();
    for i in 0..n {
        let full = &(&(&sx[2 + i] - 1) * strides[i]) + &kernel[i];
        shape.push(&full - (pads[i] + pads[n + i]));
    }
    let zero = Scalar::from_f64(cx.dtype(x), 0.0);
    let flat = cx.full(&[shape.iter().product()], zero)?;
    let at = (0..sx.len()).map(Poly::var).collect();
    let index = vec![GatherAxis::Data { input: 2, at }];
    let y = cx.push(Op::Scatter { reduce: None, index }, &[flat, x, places])?;
    let y = cx.reshape(y, shape.clone())?;
    if cx.opt(2).is_none() {
        return Ok(vec![y]);
    }
    let wanted = cx.const_dims(2)?;
    if wanted.len() != shape.len() {
        let e = OpError::model(format!("{} extents for rank {}", wanted.len(), shape.len()));
        return Err(cx.at_input(2, e));
    }
    let after: Vec<Dim> = wanted.iter().zip(&shape).map(|(w, s)| w - s).collect();
    Ok(vec![cx.pad(y, &vec![Dim::ZERO; shape.len()], &after, zero)?])
}

/// `Col2Im`, `ConvTranspose`, `MaxUnpool`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Col2Im", &[18], col2im).cases(&["test_col2im"]),
    OpDef::new("ConvTranspose", &[1, 11, 22], conv_transpose).cases(&["test_convtranspose"]),
    OpDef::new("MaxUnpool", &[9, 11, 22], max_unpool).cases(&["test_maxunpool_"]),
];
