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
    /// Windows may begin inside and end behind what lies around.
    pub ceil: bool,
}

/// The elements around a tensor that windows slide over.
#[derive(Clone, Debug, PartialEq)]
pub enum Padding {
    /// So many elements: before all axes, then behind all.
    Explicit(Vec<i64>),
    /// As many windows as the extent has strides; of an odd number the more behind.
    SameUpper,
    /// Padding that keeps the extent, the larger half of an odd number before.
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

    /// How far a window reaches along spatial axis `i`.
    pub fn reach(&self, i: usize) -> Dim {
        &(&(&self.kernel[i] - 1) * self.dilations[i]) + 1
    }

    /// As the builder wants them.
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

/// Windows of `size` along one axis, `before` elements back: a new last axis with the elements to sum up, of extent `size` or less, where no
/// more are inside.
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
