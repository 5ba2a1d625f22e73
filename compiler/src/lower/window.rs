//! Sliding windows: what convolutions and pools have in common.

use super::{Lowering, OpError, Result};
use wgfc_ir::build::WindowAxis;
use wgfc_ir::{Dim, Op, Poly, Scalar, Value};

/// How windows lie over the spatial axes of a tensor, one value for each axis. Lists of another length are
/// errors.
#[derive(Clone, Debug)]
pub struct Window {
    /// Distances between windows.
    pub strides: Vec<i64>,
    /// Distances between elements of a window.
    pub dilations: Vec<i64>,
    /// The elements around the tensor.
    pub padding: Padding,
    /// The number of windows is rounded up: the last one may end behind the padding.
    pub ceil: bool,
}

/// The elements around a tensor that windows slide over.
#[derive(Clone, Debug, PartialEq)]
pub enum Padding {
    /// Numbers of elements: those before each axis, then those behind each.
    Explicit(Vec<i64>),
    /// Padding for `ceil(extent / stride)` windows; of an odd number of elements, one more lies behind.
    SameUpper,
    /// Padding for `ceil(extent / stride)` windows; of an odd number of elements, one more lies before.
    SameLower,
    /// None.
    Valid,
}

impl Padding {
    /// Padding by one number around every one of `n` axes.
    pub fn around(n: usize, elements: i64) -> Padding {
        Padding::Explicit(vec![elements; 2 * n])
    }
}

impl Window {
    /// One element after another, of `n` spatial axes, without padding.
    pub fn plain(n: usize) -> Window {
        Window { strides: vec![1; n], dilations: vec![1; n], padding: Padding::around(n, 0), ceil: false }
    }
}

/// A list of `len` values of at least `least`, or an error about the parameter of that name.
pub fn require_list(list: &[i64], name: &'static str, len: usize, least: i64) -> Result<()> {
    if list.len() != len {
        return Err(OpError::model(format!("{} values, not {len}", list.len())).param(name));
    }
    match list.iter().find(|x| **x < least || **x > 1 << 31) {
        Some(x) => Err(OpError::model(format!("value {x}")).param(name)),
        None => Ok(()),
    }
}

/// Windows over extents.
#[derive(Clone, Debug)]
pub struct Windows {
    /// Extents of the window.
    pub kernel: Vec<Dim>,
    /// Distances between windows.
    pub strides: Vec<i64>,
    /// Distances between elements of a window.
    pub dilations: Vec<i64>,
    /// Padding before.
    pub before: Vec<Dim>,
    /// Padding after.
    pub after: Vec<Dim>,
    /// Numbers of windows.
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

/// Windows of `size` elements along `axis`, each beginning `before` elements before its position, as a new last axis. Elements outside
/// of the tensor are 0; the new axis is shorter than `size` if no window has so many elements inside.
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
