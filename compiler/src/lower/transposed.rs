//! Operators that reverse unfolding: transposed convolutions, sums of windows (col2im), and unpooling.
//!
//! Along each axis, element `k` of window `i` lies at position `i·stride + k·dilation − before`. Conversely, a
//! position receives element `k` of window `q / stride`, where `q = position + before − k·dilation` is a multiple of
//! the stride. This condition is checked by reading an extra axis of extent 1 at `q mod stride`: an index other than 0
//! is out of bounds and gives the fill value.
//!
//! In a transposed convolution without dilation, a position receives only elements of one phase: with
//! `position + before = stride·q + p` they are `k = stride·j + p` of windows `q − j`. It is therefore computed as a
//! convolution of stride 1 with windows of `⌈kernel / stride⌉` elements and one result per phase, without multiplying
//! by the zeros between elements.

use super::conv::{channel_bias, share};
use super::window::{Padding, require_list};
use super::{Lowering, OpError, Result};
use wgfc_ir::op::{GatherAxis, show};
use wgfc_ir::{Contract, Dim, Op, Poly, ReduceOp, Scalar, Value};

/// One spatial axis.
struct Axis {
    stride: i64,
    dilation: i64,
    before: Dim,
    /// The extent of the window.
    kernel: Dim,
    /// The extent of the result.
    out: Dim,
}

/// The elements that each position of the result receives: `x [lead…, (kernel…,) windows…]` gives
/// `[lead…, out…, kernel…]`, 0 where there is none. With `own` each element of a window has a value of its own, else
/// all elements share one.
fn met(cx: &mut Lowering, x: Value, lead: usize, axes: &[Axis], own: bool) -> Result {
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

/// Parameters of [`conv_transpose`], one value per spatial axis. Lists of another length are errors.
#[derive(Clone, Debug)]
pub struct ConvTranspose {
    /// The distances between windows.
    pub strides: Vec<i64>,
    /// The distances between elements of a window.
    pub dilations: Vec<i64>,
    /// The number of elements that are cropped around the result.
    pub padding: Padding,
    /// Extra positions after the last window.
    pub output_padding: Vec<i64>,
    /// The extents of the result, from which the cropping follows.
    pub output_shape: Option<Vec<i64>>,
    /// The number of groups of channels.
    pub groups: i64,
}

/// The cropping before, and the extents of the result.
fn placed(spatial: &[Dim], kernel: &[Dim], p: &ConvTranspose) -> Result<Vec<Axis>> {
    let n = spatial.len();
    require_list(&p.strides, "strides", n, 1)?;
    require_list(&p.dilations, "dilations", n, 1)?;
    require_list(&p.output_padding, "output_padding", n, 0)?;
    let none = vec![0; 2 * n];
    let pads = match &p.padding {
        Padding::Explicit(pads) => pads,
        _ => &none,
    };
    require_list(pads, "pads", 2 * n, i64::from(i32::MIN))?;
    if let Some(w) = &p.output_shape {
        require_list(w, "output_shape", n, 0)?;
    }
    let same = matches!(p.padding, Padding::SameUpper | Padding::SameLower);
    let mut axes = vec![];
    for i in 0..n {
        let (stride, dilation) = (p.strides[i], p.dilations[i]);
        let reach = &(&(&kernel[i] - 1) * dilation) + 1;
        let full = &(&(&(&spatial[i] - 1) * stride) + &reach) + p.output_padding[i];
        let out = match &p.output_shape {
            Some(w) => Some(Dim::from(w[i])),
            None if same => Some(&spatial[i] * stride),
            None => None,
        };
        let (before, out) = match out {
            Some(out) => {
                let total = (&full - &out).max_of(&Dim::ZERO, &[]);
                let less = total.div(&Poly::constant(2), &[]);
                (if p.padding == Padding::SameUpper { less } else { &total - &less }, out)
            }
            None if p.padding == Padding::Valid => (Dim::ZERO, full.clone()),
            None => (Dim::from(pads[i]), &full - (pads[i] + pads[n + i])),
        };
        if out.as_const().is_some_and(|o| o < 0) {
            return Err(OpError::model(format!("the padding leaves {out} of {full} places")).param("pads"));
        }
        axes.push(Axis { stride, dilation, before, kernel: kernel[i].clone(), out });
    }
    Ok(axes)
}

/// Labels: batch 0, group 1, input channel 2, output channel 3, then `n` each for positions, kernel and phases.
fn labels(n: usize, which: usize) -> Vec<u8> {
    (0..n).map(|i| 4 + (which * n + i) as u8).collect()
}

/// `x [N, (G,) C, spatial…]` and `w [(G,) C, M, kernel…]` give `[N, (G,) M, out…]`, visiting all elements of a window
/// for each position.
fn all_windows(cx: &mut Lowering, x: Value, w: Value, lead: usize, axes: &[Axis]) -> Result {
    let met = met(cx, x, lead, axes, false)?;
    let (places, kernel) = (labels(axes.len(), 0), labels(axes.len(), 1));
    let g: &[u8] = if lead > 2 { &[1] } else { &[] };
    let contract = Contract {
        a: [&[0], g, &[2], &places, &kernel].concat(),
        b: [g, &[2, 3], &kernel].concat(),
        out: [&[0], g, &[3], &places].concat(),
    };
    Ok(cx.push(Op::Contract(contract), &[met, w])?)
}

/// The transposed convolution without dilation, separately for each phase of the stride.
fn phases(cx: &mut Lowering, x: Value, w: Value, lead: usize, axes: &[Axis]) -> Result {
    let n = axes.len();
    let (sx, sw) = (cx.shape(x), cx.shape(w));
    let fill = Some(Scalar::from_f64(cx.dtype(x), 0.0));
    // The first `q`, the number of them, and the number of elements of a window in one phase.
    let first: Vec<Dim> = axes.iter().map(|a| a.before.div(&a.stride.into(), &[])).collect();
    let last = |a: &Axis| (&(&a.before + &a.out) - 1).div(&a.stride.into(), &[]);
    let count: Vec<Dim> = axes.iter().zip(&first).map(|(a, q)| &(&last(a) - q) + 1).collect();
    let taps: Vec<Dim> = axes.iter().map(|a| a.kernel.ceil_div(a.stride)).collect();

    let shape: Vec<Dim> = sx[..lead].iter().chain(&count).chain(&taps).cloned().collect();
    let mut index: Vec<Poly> = (0..lead).map(Poly::var).collect();
    index.extend((0..n).map(|i| &(&Poly::var(lead + i) + &first[i]) - &Poly::var(lead + n + i)));
    let x = cx.push(Op::View { shape, index, fill }, &[x])?;

    let mut shape: Vec<Dim> = sw[..lead].to_vec();
    shape.extend(taps.iter().cloned());
    shape.extend(axes.iter().map(|a| Dim::from(a.stride)));
    let mut index: Vec<Poly> = (0..lead).map(Poly::var).collect();
    index.extend((0..n).map(|i| &(&Poly::var(lead + i) * axes[i].stride) + &Poly::var(lead + n + i)));
    let whole = axes.iter().all(|a| a.kernel.modulo(&a.stride.into(), &[]).is(0));
    let w = cx.push(Op::View { shape, index, fill: fill.filter(|_| !whole) }, &[w])?;

    let (places, kernel, phase) = (labels(n, 0), labels(n, 1), labels(n, 2));
    let g: &[u8] = if lead > 2 { &[1] } else { &[] };
    let apart: Vec<u8> = places.iter().zip(&phase).flat_map(|(q, p)| [*q, *p]).collect();
    let contract = Contract {
        a: [&[0], g, &[2], &places, &kernel].concat(),
        b: [g, &[2, 3], &kernel, &phase].concat(),
        out: [&[0], g, &[3], &apart].concat(),
    };
    let mut y = cx.push(Op::Contract(contract), &[x, w])?;
    let mut shape = cx.shape(y)[..lead].to_vec();
    shape.extend(axes.iter().zip(&count).map(|(a, q)| q * a.stride));
    y = cx.reshape(y, shape)?;
    for (i, (a, q)) in axes.iter().zip(&first).enumerate() {
        let skipped = &a.before - &(q * a.stride);
        y = cx.slice(y, lead + i, &skipped, 1, &a.out)?;
    }
    Ok(y)
}

/// `x [N, G·C, spatial…]` and `w [G·C, M, kernel…]` give `[N, G·M, out…]`.
pub fn conv_transpose(
    cx: &mut Lowering,
    x: Value,
    w: Value,
    bias: Option<Value>,
    p: &ConvTranspose,
) -> Result {
    let (sx, sw) = (cx.shape(x), cx.shape(w));
    if sx.len() < 3 || sw.len() != sx.len() || cx.dtype(x) != cx.dtype(w) || sx[1] != sw[0] {
        let e = format!("weights of type {} for an input of type {}", cx.ty(w), cx.ty(x));
        return Err(OpError::model(e));
    }
    let group = p.groups;
    if group < 1 {
        return Err(OpError::model(format!("{group} groups")).param("groups"));
    }
    let groups = Dim::from(group);
    let channels = share(&sx[1], &groups, "channels")?;
    let axes = placed(&sx[2..], &sw[2..], p)?;
    let (mut split_x, mut split_w) = (sx.clone(), sw.clone());
    if group > 1 {
        split_x.splice(1..2, [groups.clone(), channels.clone()]);
        split_w.splice(0..1, [groups.clone(), channels]);
    }
    let x = cx.reshape(x, split_x)?;
    let w = cx.reshape(w, split_w)?;
    let lead = if group > 1 { 3 } else { 2 };
    let in_phases = axes.iter().any(|a| a.stride > 1) && axes.iter().all(|a| a.dilation == 1);
    let y = if in_phases { phases(cx, x, w, lead, &axes)? } else { all_windows(cx, x, w, lead, &axes)? };
    let mut out = vec![sx[0].clone(), &sw[1] * &groups];
    out.extend(axes.into_iter().map(|a| a.out));
    let y = cx.reshape(y, out)?;
    match bias {
        Some(b) => channel_bias(cx, y, b),
        None => Ok(y),
    }
}

/// The layout of windows in the image into which they are summed.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The distances between windows.
    pub strides: Vec<i64>,
    /// The distances between elements of a window.
    pub dilations: Vec<i64>,
    /// Padding around the image: before all axes, then after all axes.
    pub pads: Vec<i64>,
}

/// Sums windows `[N, C·kernel, count]` of extents `block` at their positions in an image.
pub fn col2im(cx: &mut Lowering, x: Value, image: &[Dim], block: &[Dim], p: &Layout) -> Result {
    let sx = cx.shape(cx.require_rank(x, 3)?);
    let n = image.len();
    if n == 0 || block.len() != n {
        let e = OpError::model(format!("{} axes for {n} of the image", block.len()));
        return Err(e.param("block"));
    }
    require_list(&p.strides, "strides", n, 1)?;
    require_list(&p.dilations, "dilations", n, 1)?;
    require_list(&p.pads, "pads", 2 * n, 0)?;
    let Layout { strides, dilations, pads } = p;
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
    let x = cx.reshape(x, split).map_err(|e| OpError::from(e).operand(x))?;
    let met = met(cx, x, 2, &axes, true)?;
    Ok(cx.reduce(ReduceOp::Sum, met, &(2 + n..2 + 2 * n).collect::<Vec<_>>(), false)?)
}

/// Writes elements to the positions at which max pooling found them, 0 elsewhere. The result has the given extents, or
/// those that windows of extents `kernel` cover.
pub fn max_unpool(
    cx: &mut Lowering,
    x: Value,
    places: Value,
    wanted: Option<&[Dim]>,
    kernel: &[Dim],
    p: &Layout,
) -> Result {
    let places = cx.require_indices(places)?;
    let (sx, si) = (cx.shape(x), cx.shape(places));
    if sx.len() < 3 || si.len() != sx.len() {
        return Err(OpError::model(format!("indices {} for {}", show(&si), show(&sx))));
    }
    for (a, b) in si.iter().zip(&sx) {
        cx.require_equal(a, b);
    }
    let n = sx.len() - 2;
    if kernel.len() != n {
        return Err(OpError::model(format!("needs {n} extents")).param("kernel"));
    }
    require_list(&p.strides, "strides", n, 1)?;
    require_list(&p.pads, "pads", 2 * n, 0)?;
    let Layout { strides, pads, .. } = p;
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
    let Some(wanted) = wanted else { return Ok(y) };
    if wanted.len() != shape.len() {
        let e = OpError::model(format!("{} extents for rank {}", wanted.len(), shape.len()));
        return Err(e.param("output_shape"));
    }
    let after: Vec<Dim> = wanted.iter().zip(&shape).map(|(w, s)| w - s).collect();
    Ok(cx.pad(y, &vec![Dim::ZERO; shape.len()], &after, zero)?)
}
