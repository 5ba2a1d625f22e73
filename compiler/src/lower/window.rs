//! Sliding windows, as used by convolutions and pools.

use super::{Lowering, OpError, Result};
use wgfc_ir::build::WindowAxis;
use wgfc_ir::{Dim, Op, Poly, Scalar, Value};

/// The layout of windows over the spatial axes of a tensor, with one value per axis. Lists of another length are
/// errors.
#[derive(Clone, Debug)]
pub struct Window {
    /// The distances between windows.
    pub strides: Vec<i64>,
    /// The distances between elements of a window.
    pub dilations: Vec<i64>,
    /// The padding around the tensor.
    pub padding: Padding,
    /// Whether the number of windows is rounded up: the last one may end after the padding.
    pub ceil: bool,
}

/// The padding around a tensor over which windows slide.
#[derive(Clone, Debug, PartialEq)]
pub enum Padding {
    /// The numbers of elements before each axis, then those after each axis.
    Explicit(Vec<i64>),
    /// Padding for `ceil(extent / stride)` windows; if the total is odd, the extra element is after the axis.
    SameUpper,
    /// Padding for `ceil(extent / stride)` windows; if the total is odd, the extra element is before the axis.
    SameLower,
    /// No padding.
    Valid,
}

impl Padding {
    /// Padding by `elements` on both sides of `n` axes.
    pub fn around(n: usize, elements: i64) -> Padding {
        Padding::Explicit(vec![elements; 2 * n])
    }
}

impl Window {
    /// Windows with strides and dilations of 1 over `n` spatial axes, without padding.
    pub fn plain(n: usize) -> Window {
        Window { strides: vec![1; n], dilations: vec![1; n], padding: Padding::around(n, 0), ceil: false }
    }
}

/// Checks that a list has `len` values of at least `least`; the error is about the parameter `name`.
pub fn require_list(list: &[i64], name: &'static str, len: usize, least: i64) -> Result<()> {
    if list.len() != len {
        return Err(OpError::model(format!("{} values, not {len}", list.len())).param(name));
    }
    match list.iter().find(|x| **x < least || **x > 1 << 31) {
        Some(x) => Err(OpError::model(format!("value {x}")).param(name)),
        None => Ok(()),
    }
}

/// Windows over given extents.
#[derive(Clone, Debug)]
pub struct Windows {
    /// The extents of the window.
    pub kernel: Vec<Dim>,
    /// The distances between windows.
    pub strides: Vec<i64>,
    /// The distances between elements of a window.
    pub dilations: Vec<i64>,
    /// The padding before each axis.
    pub before: Vec<Dim>,
    /// The padding after each axis.
    pub after: Vec<Dim>,
    /// The number of windows along each axis.
    pub out: Vec<Dim>,
}

impl Windows {
    /// Windows of extents `kernel` over the extents `spatial`.
    pub fn over(spatial: &[Dim], kernel: Vec<Dim>, p: &Window) -> Result<Windows> {
        let n = spatial.len();
        if kernel.len() != n {
            let e = format!("a window of {} axes over {n} spatial axes", kernel.len());
            return Err(OpError::model(e).param("kernel"));
        }
        let list = |v: &[i64], name: &'static str, len: usize, least: i64| {
            if v.len() != len {
                let e = OpError::model(format!("{} values for {n} spatial axes", v.len()));
                return Err(e.param(name));
            }
            require_list(v, name, len, least)
        };
        list(&p.strides, "strides", n, 1)?;
        list(&p.dilations, "dilations", n, 1)?;
        let pads: Vec<Dim> = match &p.padding {
            Padding::Explicit(pads) => {
                list(pads, "pads", 2 * n, i64::from(i32::MIN))?;
                pads.iter().map(|p| Poly::constant(*p)).collect()
            }
            _ => vec![Dim::ZERO; 2 * n],
        };
        let mut w = Windows {
            kernel,
            strides: p.strides.clone(),
            dilations: p.dilations.clone(),
            before: pads[..n].to_vec(),
            after: pads[n..].to_vec(),
            out: vec![],
        };
        for (i, d) in spatial.iter().enumerate() {
            let (s, reach) = (w.strides[i], w.reach(i));
            if matches!(p.padding, Padding::SameUpper | Padding::SameLower) {
                let out = d.ceil_div(s);
                let total = &(&(&(&out - 1) * s) + &reach) - d;
                let total = total.max_of(&Dim::ZERO, &[]);
                let half = total.div(&Poly::constant(2), &[]);
                let rest = &total - &half;
                (w.before[i], w.after[i]) =
                    if p.padding == Padding::SameUpper { (half, rest) } else { (rest, half) };
                w.out.push(out);
                continue;
            }
            let room = &(&(d + &w.before[i]) + &w.after[i]) - &reach;
            let out = if p.ceil {
                // A window must start inside the input or the padding before it.
                let most = (d + &w.before[i]).ceil_div(s);
                (&room.ceil_div(s) + 1).min_of(&most, &[])
            } else {
                &room.div(&Poly::constant(s), &[]) + 1
            };
            if out.as_const().is_some_and(|c| c < 1) {
                return Err(OpError::model(format!(
                    "the window ({reach} wide) is larger than the input ({d})"
                )));
            }
            w.out.push(out);
        }
        Ok(w)
    }

    /// The extent of a dilated window along spatial axis `i`.
    pub fn reach(&self, i: usize) -> Dim {
        &(&(&self.kernel[i] - 1) * self.dilations[i]) + 1
    }

    /// The axes for [`Builder::unfold`](wgfc_ir::Builder::unfold).
    pub fn axes(&self) -> Vec<WindowAxis> {
        (0..self.kernel.len())
            .map(|i| WindowAxis {
                kernel: self.kernel[i].clone(),
                stride: self.strides[i],
                dilation: self.dilations[i],
                pad: self.before[i].clone(),
                out: self.out[i].clone(),
            })
            .collect()
    }
}

/// Windows of `size` elements along `axis`, each starting `before` elements before its position, as a new last axis.
/// Elements outside of the tensor are 0. The new axis is shorter than `size` if no window has that many elements
/// inside of the tensor.
pub fn along(cx: &mut Lowering, x: Value, axis: usize, size: i64, before: i64) -> Result {
    let mut shape = cx.shape(x);
    let rank = shape.len();
    let mut index: Vec<Poly> = (0..rank).map(Poly::var).collect();
    let out = shape[axis].clone();
    let window = WindowAxis { kernel: size.into(), stride: 1, dilation: 1, pad: before.into(), out };
    let (first, count) = window.inside(&shape[axis], axis, &shape);
    index[axis] = &(&(&Poly::var(axis) + &first) + &Poly::var(rank)) - before;
    shape.push(count);
    let fill = Some(Scalar::from_f64(cx.dtype(x), 0.0));
    Ok(cx.push(Op::View { shape, index, fill }, &[x])?)
}
