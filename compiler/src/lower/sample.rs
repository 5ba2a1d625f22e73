//! Sampling at computed positions, and grids of them.
//!
//! A position has neighbours along each axis, its *taps*, each with an index and a weight. A sample is a sum of
//! gathered elements times weights over the taps of all axes.

use super::interpolate::{cubic_kernel, linear_kernel};
use super::shape::with_extents;
use super::{Lowering, OpError, Result};
use wgfc_ir::op::{GatherAxis, show};
use wgfc_ir::{BinaryOp as B, DType, Dim, Op, Poly, ReduceOp, UnaryOp as U, Value};

/// The interpolation mode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// The nearest neighbour.
    Nearest,
    /// Linear interpolation of two neighbours.
    Linear,
    /// Cubic interpolation of four neighbours.
    Cubic,
}

/// The values of elements outside of the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Padding {
    /// Zeros.
    Zeros,
    /// The nearest element.
    Border,
    /// Reflections of the input.
    Reflection,
}

/// A sampled axis.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// Its extent.
    pub extent: Dim,
    /// The interpolation mode.
    pub mode: Mode,
    /// The values of elements outside of the input.
    pub padding: Padding,
    /// Whether reflection is at the centres of the outermost elements rather than at their edges.
    pub align_corners: bool,
}

/// The taps of positions `[p…]`: indices (i32, within the axis) and weights (f32), both `[p…, taps]`.
#[derive(Clone, Copy, Debug)]
pub struct Taps {
    /// The indices.
    pub index: Value,
    /// The weights.
    pub weight: Value,
}

impl Sampled {
    /// The taps of the positions `at`, f32.
    pub fn taps(&self, cx: &mut Lowering, at: Value) -> Result<Taps> {
        let at = if self.mode == Mode::Nearest { cx.unary(U::Round, at)? } else { at };
        let at = self.moved_inside(cx, at)?;
        let (start, taps) = match self.mode {
            Mode::Nearest => (0, 1),
            Mode::Linear => (0, 2),
            Mode::Cubic => (-1, 4),
        };
        let rank = cx.rank(at);
        let mut shape = cx.shape(at);
        shape.push(Dim::from(taps as i64));
        let at = cx.unsqueeze(at, &[rank])?;
        let base = cx.unary(U::Floor, at)?;
        let step = cx.iota(&shape, &Poly::var(rank) + start, DType::F32)?;
        let place = cx.binary(B::Add, base, step)?;
        let mut weight = match self.mode {
            Mode::Nearest => cx.full(&shape, wgfc_ir::Scalar::from_f64(DType::F32, 1.0))?,
            mode => {
                let ratio = cx.binary(B::Sub, at, base)?;
                let distance = cx.binary(B::Sub, ratio, step)?;
                if mode == Mode::Cubic {
                    cubic_kernel(cx, distance, -0.75)?
                } else {
                    linear_kernel(cx, distance)?
                }
            }
        };
        let last = self.last(cx)?;
        if self.padding == Padding::Zeros {
            let (above, below) = (cx.binary_scalar(B::Ge, place, 0.0)?, cx.binary(B::Le, place, last)?);
            let inside = cx.binary(B::And, above, below)?;
            let zero = cx.scalar(DType::F32, 0.0);
            weight = cx.select(inside, weight, zero)?;
        }
        let place = if self.padding == Padding::Reflection { self.reflected(cx, place)? } else { place };
        let place = cx.binary_scalar(B::Max, place, 0.0)?;
        let place = cx.binary(B::Min, place, last)?;
        Ok(Taps { index: cx.cast(place, DType::I32)?, weight })
    }

    /// The taps of the positions `at`, with the derivatives of the weights with respect to the position instead of the
    /// weights.
    fn slopes(&self, cx: &mut Lowering, at: Value) -> Result<Taps> {
        let mut taps = self.taps(cx, at)?;
        let shape = cx.shape(taps.weight);
        let rank = cx.rank(at);
        if self.mode == Mode::Nearest {
            taps.weight = cx.full(&shape, wgfc_ir::Scalar::from_f64(DType::F32, 0.0))?;
            return Ok(taps);
        }
        let moved = self.moved_inside(cx, at)?;
        let last = self.last(cx)?;
        // The weight of the lower neighbour falls with the position, that of the upper one rises.
        let mut weight = cx.iota(&shape, &(Poly::var(rank) * 2) - 1, DType::F32)?;
        let zero = cx.scalar(DType::F32, 0.0);
        if self.padding == Padding::Zeros {
            let base = cx.unary(U::Floor, at)?;
            let base = cx.unsqueeze(base, &[rank])?;
            let step = cx.iota(&shape, Poly::var(rank), DType::F32)?;
            let place = cx.binary(B::Add, base, step)?;
            let (above, below) = (cx.binary_scalar(B::Ge, place, 0.0)?, cx.binary(B::Le, place, last)?);
            let inside = cx.binary(B::And, above, below)?;
            taps.weight = cx.select(inside, weight, zero)?;
            return Ok(taps);
        }
        // Where the position is clamped to the border, the derivative is 0.
        let source = if self.padding == Padding::Border { at } else { moved };
        let (above, below) = (cx.binary_scalar(B::Gt, source, 0.0)?, cx.binary(B::Lt, source, last)?);
        let inside = cx.binary(B::And, above, below)?;
        let one = cx.scalar(DType::F32, 1.0);
        let mut factor = cx.select(inside, one, zero)?;
        if self.padding == Padding::Reflection {
            let (low, span) = self.mirrors();
            let span = cx.dim_scalar(&span, DType::F32)?;
            let d = cx.binary_scalar(B::Sub, at, low)?;
            let turned = cx.binary_scalar(B::Lt, d, 0.0)?;
            let d = cx.unary(U::Abs, d)?;
            let turns = cx.binary(B::Div, d, span)?;
            let turns = cx.unary(U::Floor, turns)?;
            let odd = cx.binary_scalar(B::Mod, turns, 2.0)?;
            let odd = cx.binary_scalar(B::Gt, odd, 0.5)?;
            let backwards = cx.binary(B::Ne, odd, turned)?;
            let opposite = cx.unary(U::Neg, factor)?;
            factor = cx.select(backwards, opposite, factor)?;
        }
        let factor = cx.unsqueeze(factor, &[rank])?;
        weight = cx.binary(B::Mul, weight, factor)?;
        taps.weight = weight;
        Ok(taps)
    }

    /// The position of the first mirror, and the distance to the second one.
    fn mirrors(&self) -> (f64, Dim) {
        match self.align_corners {
            true => (0.0, (&self.extent - &Dim::ONE).max_of(&Dim::ONE, &[])),
            false => (-0.5, self.extent.clone()),
        }
    }

    fn last(&self, cx: &mut Lowering) -> Result {
        Ok(cx.dim_scalar(&(&self.extent - &Dim::ONE), DType::F32)?)
    }

    fn moved_inside(&self, cx: &mut Lowering, at: Value) -> Result {
        match self.padding {
            Padding::Zeros => Ok(at),
            // As in PyTorch, taps outside of the input are clamped individually.
            Padding::Border if self.mode == Mode::Cubic => Ok(at),
            Padding::Border => {
                let last = self.last(cx)?;
                let at = cx.binary_scalar(B::Max, at, 0.0)?;
                Ok(cx.binary(B::Min, at, last)?)
            }
            Padding::Reflection => self.reflected(cx, at),
        }
    }

    /// The position reflected at the borders as often as needed.
    fn reflected(&self, cx: &mut Lowering, at: Value) -> Result {
        let (low, span) = self.mirrors();
        let span = cx.dim_scalar(&span, DType::F32)?;
        let d = cx.binary_scalar(B::Sub, at, low)?;
        let d = cx.unary(U::Abs, d)?;
        let turns = cx.binary(B::Div, d, span)?;
        let turns = cx.unary(U::Floor, turns)?;
        let whole = cx.binary(B::Mul, turns, span)?;
        let rest = cx.binary(B::Sub, d, whole)?;
        let back = cx.binary(B::Sub, span, rest)?;
        let odd = cx.binary_scalar(B::Mod, turns, 2.0)?;
        let odd = cx.binary_scalar(B::Gt, odd, 0.5)?;
        let d = cx.select(odd, back, rest)?;
        Ok(cx.binary_scalar(B::Add, d, low)?)
    }
}

/// `v` read at `index`, as a tensor of `shape`.
pub fn spread(cx: &mut Lowering, v: Value, shape: &[Dim], index: &[Poly]) -> Result {
    Ok(cx.view(v, shape.to_vec(), index.to_vec())?)
}

/// Elements of `x` times the weights of the taps, in f32, as a tensor of `shape`: `x` is gathered at `lead` along its
/// first axes and at the taps along the others. `at` are the indices at which each axis' taps are read.
pub fn weighted(
    cx: &mut Lowering,
    x: Value,
    shape: &[Dim],
    lead: Vec<GatherAxis>,
    more: &[Value],
    taps: &[(Taps, Vec<Poly>)],
) -> Result {
    let mut inputs = vec![x];
    inputs.extend(more);
    let mut index = lead;
    for (t, at) in taps {
        index.push(GatherAxis::Data { input: inputs.len(), at: at.clone() });
        inputs.push(t.index);
    }
    let mut y = cx.push(Op::Gather { shape: shape.to_vec(), index }, &inputs)?;
    y = cx.cast(y, DType::F32)?;
    for (t, at) in taps {
        let w = spread(cx, t.weight, shape, at)?;
        y = cx.binary(B::Mul, y, w)?;
    }
    Ok(y)
}

/// Parameters of [`grid_sample`].
#[derive(Clone, Copy, Debug)]
pub struct GridSample {
    /// The interpolation mode.
    pub mode: Mode,
    /// The values of elements outside of the input.
    pub padding: Padding,
    /// Whether -1 and 1 are the centres of the outermost elements rather than their edges.
    pub align_corners: bool,
}

/// The positions along spatial axis `i` of `x` (of shape `sx`) that a grid of shape `sg` selects, and their index for
/// a tensor with batch, channel, position and tap axes.
fn named(
    cx: &mut Lowering,
    grid: Value,
    sx: &[Dim],
    sg: &[Dim],
    i: usize,
    align_corners: bool,
) -> Result<(Value, Vec<Poly>)> {
    let n = sx.len() - 2;
    let places: Vec<Dim> = [&sx[..1], &sg[1..=n]].concat();
    // The last axis of the grid lists the spatial axes from the last to the first.
    let mut index: Vec<Poly> = (0..=n).map(Poly::var).collect();
    index.push(Poly::from(n - 1 - i));
    let at = spread(cx, grid, &places, &index)?;
    let at = denormalised(cx, at, &sx[2 + i], align_corners)?;
    let batch_and_places = [0].into_iter().chain(2..2 + n).chain([2 + n + i]);
    Ok((at, batch_and_places.map(Poly::var).collect()))
}

/// Samples `x [N, C, spatial…]` at the positions `grid [N, out…, axes]`, coordinates in `-1..=1`, those of the last
/// axis first.
pub fn grid_sample(cx: &mut Lowering, x: Value, grid: Value, p: &GridSample) -> Result {
    let (sx, mut sg) = (cx.shape(x), cx.shape(grid));
    let rank = sx.len();
    let n = rank.saturating_sub(2);
    if n == 0 || sg.len() != rank {
        return Err(OpError::model(format!("a grid {} for an input {}", show(&sg), show(&sx))));
    }
    sg[rank - 1] = n.into();
    let grid = with_extents(cx, grid, &sg).map_err(|e| e.operand(grid))?;
    cx.require_equal(&sx[0], &sg[0]);
    let GridSample { mode, padding, align_corners } = *p;
    let grid = cx.cast(grid, DType::F32)?;
    // Batch, channel, output positions, then a tap axis for each spatial axis.
    let mut out = vec![sx[0].clone(), sx[1].clone()];
    out.extend(sg[1..=n].iter().cloned());
    let mut shape = out.clone();
    let mut taps = vec![];
    for i in 0..n {
        let (places, at) = named(cx, grid, &sx, &sg, i, align_corners)?;
        let t = Sampled { extent: sx[2 + i].clone(), mode, padding, align_corners }.taps(cx, places)?;
        shape.push(cx.shape(t.index)[n + 1].clone());
        taps.push((t, at));
    }
    let lead = vec![GatherAxis::Affine(Poly::var(0)), GatherAxis::Affine(Poly::var(1))];
    let parts = weighted(cx, x, &shape, lead, &[], &taps)?;
    let y = cx.reduce(ReduceOp::Sum, parts, &(2 + n..2 + 2 * n).collect::<Vec<_>>(), false)?;
    let dtype = cx.dtype(x);
    Ok(cx.cast(y, dtype)?)
}

/// The gradients of [`grid_sample`] with respect to `x`, to which `grad` is scattered with the weights of the taps,
/// and to the grid.
pub fn grid_sample_backward(
    cx: &mut Lowering,
    grad: Value,
    x: Value,
    grid: Value,
    p: &GridSample,
) -> Result<[Value; 2]> {
    let (sx, sg, dtype) = (cx.shape(x), cx.shape(grid), cx.dtype(x));
    let rank = sx.len();
    let n = rank.saturating_sub(2);
    if n == 0 || sg.len() != rank || cx.rank(grad) != rank {
        return Err(OpError::model(format!("a grid {} for an input {}", show(&sg), show(&sx))));
    }
    let GridSample { mode, padding, align_corners } = *p;
    let (grid_type, grid) = (cx.dtype(grid), cx.cast(grid, DType::F32)?);
    let (grad, x) = (cx.cast(grad, DType::F32)?, cx.cast(x, DType::F32)?);
    // Batch, channel, output positions, then a tap axis for each spatial axis.
    let mut shape = vec![sx[0].clone(), sx[1].clone()];
    shape.extend(sg[1..=n].iter().cloned());
    let (mut taps, mut slopes) = (vec![], vec![]);
    for i in 0..n {
        let (places, at) = named(cx, grid, &sx, &sg, i, align_corners)?;
        let axis = Sampled { extent: sx[2 + i].clone(), mode, padding, align_corners };
        let (t, s) = (axis.taps(cx, places)?, axis.slopes(cx, places)?);
        shape.push(cx.shape(t.index)[n + 1].clone());
        taps.push((t, at.clone()));
        slopes.push((s, at));
    }
    let lead = || vec![GatherAxis::Affine(Poly::var(0)), GatherAxis::Affine(Poly::var(1))];
    let over = (0..2 + n).map(Poly::var).collect::<Vec<_>>();
    let mut share = spread(cx, grad, &shape, &over)?;
    let grads = share;
    let (mut index, mut inputs) = (lead(), vec![]);
    for (t, at) in &taps {
        index.push(GatherAxis::Data { input: 2 + inputs.len(), at: at.clone() });
        inputs.push(t.index);
        let w = spread(cx, t.weight, &shape, at)?;
        share = cx.binary(B::Mul, share, w)?;
    }
    let none = cx.full(&sx, wgfc_ir::Scalar::from_f64(DType::F32, 0.0))?;
    let inputs = [vec![none, share], inputs].concat();
    let of_x = cx.push(Op::Scatter { reduce: Some(ReduceOp::Sum), index }, &inputs)?;
    // The gradient along each coordinate of the grid, that of the last spatial axis first.
    let inner: Vec<usize> = std::iter::once(1).chain(2 + n..2 + 2 * n).collect();
    let mut parts = vec![];
    for i in (0..n).rev() {
        let mut along = taps.clone();
        along[i] = slopes[i].clone();
        let changed = weighted(cx, x, &shape, lead(), &[], &along)?;
        let changed = cx.binary(B::Mul, changed, grads)?;
        let sum = cx.reduce(ReduceOp::Sum, changed, &inner, false)?;
        let span = if align_corners { &sx[2 + i] - &Dim::ONE } else { sx[2 + i].clone() };
        let span = cx.dim_scalar(&span, DType::F32)?;
        let sum = cx.binary(B::Mul, sum, span)?;
        let sum = cx.binary_scalar(B::Mul, sum, 0.5)?;
        parts.push(cx.unsqueeze(sum, &[n + 1])?);
    }
    let of_grid = cx.concat(&parts, n + 1)?;
    Ok([cx.cast(of_x, dtype)?, cx.cast(of_grid, grid_type)?])
}

/// Converts a coordinate in `-1..=1` to a position along `extent`.
fn denormalised(cx: &mut Lowering, at: Value, extent: &Dim, align_corners: bool) -> Result {
    let at = cx.binary_scalar(B::Add, at, 1.0)?;
    let span = if align_corners { extent - &Dim::ONE } else { extent.clone() };
    let span = cx.dim_scalar(&span, DType::F32)?;
    let at = cx.binary(B::Mul, at, span)?;
    let at = if align_corners { at } else { cx.binary_scalar(B::Sub, at, 1.0)? };
    Ok(cx.binary_scalar(B::Mul, at, 0.5)?)
}

/// `theta [N, d, d + 1]` times the homogeneous coordinates of every position of a tensor of shape `size`,
/// `[N, C, spatial…]`.
pub fn affine_grid(cx: &mut Lowering, theta: Value, size: &[Dim], align: bool) -> Result {
    cx.require_rank(theta, 3)?;
    let n = size.len().saturating_sub(2);
    if !(2..=3).contains(&n) {
        return Err(OpError::model(format!("a size of {} axes, not 4 or 5", size.len())).param("size"));
    }
    let st = [size[0].clone(), n.into(), (n + 1).into()];
    let theta = with_extents(cx, theta, &st).map_err(|e| e.operand(theta))?;
    let dtype = cx.dtype(theta);
    let mut shape = vec![st[0].clone()];
    shape.extend(size[2..].iter().cloned());
    shape.push(Dim::from(n));
    let column = |cx: &mut Lowering, j: usize| {
        spread(cx, theta, &shape, &[Poly::var(0), Poly::var(n + 1), Poly::from(j)])
    };
    let mut y = column(cx, n)?;
    for i in 0..n {
        // Coordinate 0 belongs to the last axis.
        let axis = n - i;
        let extent = &shape[axis];
        let (count, span) = if align {
            (Poly::var(axis) * 2, (extent - &Dim::ONE).max_of(&Dim::ONE, &[]))
        } else {
            (&(Poly::var(axis) * 2) + 1, extent.clone())
        };
        let at = cx.iota(&shape, count, DType::F32)?;
        let span = cx.dim_scalar(&span, DType::F32)?;
        let at = cx.binary(B::Div, at, span)?;
        let at = cx.binary_scalar(B::Sub, at, 1.0)?;
        let at = cx.cast(at, dtype)?;
        let factor = column(cx, i)?;
        let part = cx.binary(B::Mul, at, factor)?;
        y = cx.binary(B::Add, y, part)?;
    }
    Ok(y)
}
