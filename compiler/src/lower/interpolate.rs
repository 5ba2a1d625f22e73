//! Interpolation along one axis: a weighted sum of neighbouring elements.
//!
//! If both extents are known, the neighbours' positions and weights are constants computed in f64, and evenly spaced
//! nearest neighbours become a view. Otherwise they are computed in f32 from the dimensions.

use super::{Lowering, OpError, Result};
use wgfc_ir::{
    BinaryOp as B, Contract, DType, Dim, Op, Poly, Scalar, ScalarFn, ScalarNode, Tensor, UnaryOp as U, Value,
};

/// The maximum number of neighbours that are summed without a loop.
const UNROLLED: usize = 4;

/// The interpolation mode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// The nearest neighbour.
    Nearest(Nearest),
    /// Linear interpolation of two neighbours.
    Linear,
    /// Cubic convolution with this coefficient.
    Cubic(f64),
}

/// The rounding of a position between two elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nearest {
    /// To the nearest element, and to the lower one from the middle.
    RoundPreferFloor,
    /// To the nearest element, and to the upper one from the middle.
    RoundPreferCeil,
    /// To the lower element.
    Floor,
    /// To the upper element.
    Ceil,
}

/// The mapping of positions in the result to positions in the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Coordinates {
    /// Aligns the outer edges; positions are those of the elements' centres.
    HalfPixel,
    /// [`Coordinates::HalfPixel`] with the centre of the input on the centre of the result even if the extent of the
    /// result was rounded.
    HalfPixelSymmetric,
    /// [`Coordinates::HalfPixel`], but -0.5 in a result of extent 1.
    PytorchHalfPixel,
    /// Aligns the centres of the first and of the last elements.
    AlignCorners,
    /// `position / scale`, without an offset.
    Asymmetric,
    /// A part of the input whose first and last elements are aligned with those of the result.
    TfCropAndResize,
    /// The half-pixel centres of the result, `(position + 0.5) / scale`.
    TfHalfPixelForNn,
}

/// The parameters that all resized axes share.
#[derive(Clone, Copy, Debug)]
pub struct Resize {
    /// The interpolation mode.
    pub mode: Mode,
    /// The mapping of positions.
    pub coordinates: Coordinates,
    /// Whether the kernel is widened to all elements that an element of a smaller result covers.
    pub antialias: bool,
    /// Whether neighbours outside of the input get weight 0.
    pub exclude_outside: bool,
    /// The value read outside of the input by [`Coordinates::TfCropAndResize`].
    pub extrapolation: f64,
}

/// One resized axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The axis.
    pub axis: usize,
    /// Its extent in the input.
    pub from: Dim,
    /// Its extent in the result.
    pub to: Dim,
    /// The scale factor; by default the quotient of the extents.
    pub scale: Option<f64>,
    /// The start and the end of the part of the axis that is read, from 0 to 1.
    pub roi: [f64; 2],
}

/// The positions `[out][taps]` and weights of the neighbours along an axis.
#[derive(Clone, Debug)]
pub struct Table {
    taps: usize,
    index: Vec<i64>,
    weight: Vec<f64>,
    /// Whether each position lies outside of the input.
    outside: Vec<bool>,
}

impl Resize {
    /// The position in the input of element `o` of the result.
    fn position(&self, a: &Axis, o: f64, from: f64, to: f64, scale: f64) -> f64 {
        let width = scale * from;
        match self.coordinates {
            Coordinates::HalfPixel => (o + 0.5) / scale - 0.5,
            Coordinates::HalfPixelSymmetric => from / 2.0 * (1.0 - to / width) + (o + 0.5) / scale - 0.5,
            Coordinates::PytorchHalfPixel if width == 1.0 => -0.5,
            Coordinates::PytorchHalfPixel => (o + 0.5) / scale - 0.5,
            Coordinates::AlignCorners if width == 1.0 => 0.0,
            Coordinates::AlignCorners => o * (from - 1.0) / (width - 1.0),
            Coordinates::Asymmetric => o / scale,
            Coordinates::TfHalfPixelForNn => (o + 0.5) / scale,
            Coordinates::TfCropAndResize => {
                let span = (a.roi[1] - a.roi[0]) * (from - 1.0);
                let at = if width == 1.0 { span / 2.0 } else { o * span / (width - 1.0) };
                at + a.roi[0] * (from - 1.0)
            }
        }
    }

    /// The weights of the neighbours of a position that lies `ratio` (above 0, at most 1) after an element, and the
    /// offset of the first neighbour from that element.
    fn weights(&self, ratio: f64, scale: f64) -> (Vec<f64>, i64) {
        let shrink = if self.antialias { scale.min(1.0) } else { 1.0 };
        let reach = if matches!(self.mode, Mode::Cubic(_)) { 2.0 } else { 1.0 };
        let start = (-reach / shrink).floor() as i64 + 1;
        let kernel = |x: f64| match self.mode {
            Mode::Cubic(a) => cubic(x, a),
            _ => (1.0 - x.abs()).clamp(0.0, 1.0),
        };
        let mut w: Vec<f64> = (start..2 - start).map(|i| kernel(shrink * (i as f64 - ratio))).collect();
        if self.antialias {
            let sum: f64 = w.iter().sum();
            w.iter_mut().for_each(|x| *x /= sum);
        }
        (w, start)
    }

    /// The number of neighbours that [`Resize::table`] lists.
    pub fn table_size(&self, a: &Axis, from: i64, to: i64) -> f64 {
        let scale = a.scale.unwrap_or(to as f64 / from as f64);
        let taps = match self.mode {
            Mode::Nearest(_) => 1,
            _ => self.weights(0.5, scale.max(1e-6)).0.len(),
        };
        to as f64 * taps as f64
    }

    /// Positions and weights for known extents.
    pub fn table(&self, a: &Axis, from: i64, to: i64) -> Table {
        let scale = a.scale.unwrap_or(to as f64 / from as f64);
        let mut t = Table { taps: 1, index: vec![], weight: vec![], outside: vec![] };
        for o in 0..to {
            let x = self.position(a, o as f64, from as f64, to as f64, scale);
            let crop = self.coordinates == Coordinates::TfCropAndResize;
            t.outside.push(crop && (x < 0.0 || x > (from - 1) as f64));
            let inside = |i: i64| i.clamp(0, from - 1);
            if let Mode::Nearest(n) = self.mode {
                t.index.push(inside(n.of(x) as i64));
                t.weight.push(1.0);
                continue;
            }
            let whole = x == x.floor();
            let (base, ratio) = if whole { (x as i64 - 1, 1.0) } else { (x.floor() as i64, x - x.floor()) };
            let (mut w, start) = self.weights(ratio, scale);
            t.taps = w.len();
            if self.exclude_outside {
                for (i, w) in w.iter_mut().enumerate() {
                    let at = base + start + i as i64;
                    if at != inside(at) {
                        *w = 0.0;
                    }
                }
                let sum: f64 = w.iter().sum();
                w.iter_mut().for_each(|x| *x /= if sum == 0.0 { 1.0 } else { sum });
            }
            t.index.extend((0..w.len() as i64).map(|i| inside(base + start + i)));
            t.weight.extend(w);
        }
        t
    }
}

impl Table {
    /// The table with weights as 16-bit fixed-point integers, as torch uses them for bytes, and the number of fraction
    /// bits.
    pub fn in_words(mut self) -> (Table, u32) {
        for row in 0..self.outside.len() {
            let row = row * self.taps..(row + 1) * self.taps;
            // Several neighbours clamped to the same element are merged, and their weights added.
            for i in row.clone() {
                if let Some(first) = (row.start..i).find(|k| self.index[*k] == self.index[i]) {
                    self.weight[first] += std::mem::take(&mut self.weight[i]);
                }
            }
        }
        let largest = self.weight.iter().copied().fold(0.0, f64::max);
        let bits = (0..22u32)
            .find(|bits| (0.5 + largest * f64::from(1u32 << (bits + 1))).floor() >= 32768.0)
            .unwrap_or(22);
        let unit = f64::from(1u32 << bits);
        self.weight.iter_mut().for_each(|w| *w = (*w * unit + 0.5f64.copysign(*w)).trunc());
        (self, bits)
    }
}

impl Nearest {
    fn of(self, x: f64) -> f64 {
        match self {
            Nearest::RoundPreferFloor => (x - 0.5).ceil(),
            Nearest::RoundPreferCeil => (x + 0.5).floor(),
            Nearest::Floor => x.floor(),
            Nearest::Ceil => x.ceil(),
        }
    }
}

/// The cubic convolution kernel with coefficient `a`.
fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}

/// Reshapes a vector of values along `axis` so that it broadcasts to a tensor of rank `rank`.
fn aligned(cx: &mut Lowering, v: Value, axis: usize, rank: usize) -> Result {
    let mut shape = cx.shape(v);
    shape.extend(std::iter::repeat_n(Dim::ONE, rank - axis - 1));
    Ok(cx.reshape(v, shape)?)
}

fn constant(cx: &mut Lowering, dtype: DType, shape: Vec<usize>, v: impl Iterator<Item = f64>) -> Value {
    let v: Vec<Scalar> = v.map(|x| Scalar::from_f64(dtype, x)).collect();
    cx.constant(Tensor::from_scalars(dtype, shape, &v))
}

/// `[first, distance, repeats]`, if every position `o` is `first + o / repeats · distance`.
fn even(index: &[i64]) -> Option<[i64; 3]> {
    let first = *index.first()?;
    let repeats = index.iter().position(|i| *i != first).unwrap_or(index.len());
    let distance = index.get(repeats).map_or(0, |i| i - first);
    let even = index.iter().enumerate().all(|(o, i)| *i == first + (o / repeats) as i64 * distance);
    even.then_some([first, distance, repeats as i64])
}

/// Resizes one axis with a table of constant positions and weights.
pub fn fixed(cx: &mut Lowering, r: &Resize, x: Value, a: &Axis, t: &Table) -> Result {
    let (axis, rank, dtype) = (a.axis, cx.rank(x), cx.dtype(x));
    let n = t.outside.len();
    let column = |j: usize| (0..n).map(move |o| o * t.taps + j);
    let taken = |cx: &mut Lowering, j: usize| -> Result {
        let index: Vec<i64> = column(j).map(|i| t.index[i]).collect();
        if let Some([first, distance, repeats]) = even(&index) {
            let mut shape = cx.shape(x);
            shape[axis] = a.to.clone();
            let mut at: Vec<Poly> = (0..rank).map(Poly::var).collect();
            at[axis] = &(at[axis].div(&repeats.into(), &shape) * distance) + first;
            return Ok(cx.view(x, shape, at)?);
        }
        let index = constant(cx, DType::I32, vec![n], index.iter().map(|i| *i as f64));
        Ok(cx.take(x, index, axis)?)
    };
    let mut y = if matches!(r.mode, Mode::Nearest(_)) {
        taken(cx, 0)?
    } else if t.taps <= UNROLLED {
        let mut sum = None;
        for j in 0..t.taps {
            let w = constant(cx, dtype, vec![n], column(j).map(|i| t.weight[i]));
            let w = aligned(cx, w, axis, rank)?;
            let part = taken(cx, j)?;
            let part = cx.binary(B::Mul, part, w)?;
            sum = Some(match sum {
                None => part,
                Some(s) => cx.binary(B::Add, s, part)?,
            });
        }
        sum.ok_or("no neighbours")?
    } else {
        let index = constant(cx, DType::I32, vec![n, t.taps], t.index.iter().map(|i| *i as f64));
        let parts = cx.take(x, index, axis)?;
        let w = constant(cx, dtype, vec![n, t.taps], t.weight.iter().copied());
        let label = |i: usize| i as u8;
        let out: Vec<u8> = (0..rank).map(label).collect();
        let (here, tap) = (label(axis), label(rank));
        let mut labels = out.clone();
        labels.insert(axis + 1, tap);
        cx.push(Op::Contract(Contract { a: labels, b: vec![here, tap], out }), &[parts, w])?
    };
    if t.outside.iter().any(|o| *o) {
        let outside = constant(cx, DType::Bool, vec![n], t.outside.iter().map(|o| f64::from(u8::from(*o))));
        let outside = aligned(cx, outside, axis, rank)?;
        let value = cx.scalar(dtype, r.extrapolation);
        y = cx.select(outside, value, y)?;
    }
    Ok(y)
}

/// Resizes one axis whose extents are only known at run time.
pub fn dynamic(cx: &mut Lowering, r: &Resize, x: Value, a: &Axis) -> Result {
    let (axis, rank, dtype) = (a.axis, cx.rank(x), cx.dtype(x));
    if r.antialias {
        let e = format!("needs known, moderate extents, and axis {axis} has {} and becomes {}", a.from, a.to);
        return Err(OpError::symbolic(e).param("antialias"));
    }
    let at = position(r, a)?;
    let list = vec![a.to.clone()];
    let base = match r.mode {
        Mode::Nearest(n) => {
            let at = cx.map_to(at, &[], list)?;
            let (op, half) = match n {
                Nearest::RoundPreferFloor => (U::Ceil, -0.5),
                Nearest::RoundPreferCeil => (U::Floor, 0.5),
                Nearest::Floor => (U::Floor, 0.0),
                Nearest::Ceil => (U::Ceil, 0.0),
            };
            let at = cx.binary_scalar(B::Add, at, half)?;
            let at = cx.unary(op, at)?;
            let index = clamped(cx, at, 0, &a.from)?;
            let y = cx.take(x, index, axis)?;
            return extrapolated(cx, r, a, y);
        }
        _ => cx.map_to(at, &[], list)?,
    };
    let floor = cx.unary(U::Floor, base)?;
    let ratio = cx.binary(B::Sub, base, floor)?;
    let start = if matches!(r.mode, Mode::Cubic(_)) { -1 } else { 0 };
    let mut weights = vec![];
    for i in start..2 - start {
        let mut weight = weight(cx, r.mode, ratio, i)?;
        if r.exclude_outside {
            let here = cx.binary_scalar(B::Add, floor, i as f64)?;
            let outside = outside(cx, here, &a.from)?;
            let zero = cx.scalar(DType::F32, 0.0);
            weight = cx.select(outside, zero, weight)?;
        }
        weights.push(weight);
    }
    if r.exclude_outside {
        let mut total = weights[0];
        for w in &weights[1..] {
            total = cx.binary(B::Add, total, *w)?;
        }
        let none = cx.binary_scalar(B::Eq, total, 0.0)?;
        let one = cx.scalar(DType::F32, 1.0);
        let total = cx.select(none, one, total)?;
        for w in &mut weights {
            *w = cx.binary(B::Div, *w, total)?;
        }
    }
    let mut sum = None;
    for (i, weight) in (start..).zip(weights) {
        let weight = cx.cast(weight, dtype)?;
        let weight = aligned(cx, weight, axis, rank)?;
        let index = clamped(cx, floor, i, &a.from)?;
        let part = cx.take(x, index, axis)?;
        let part = cx.binary(B::Mul, part, weight)?;
        sum = Some(match sum {
            None => part,
            Some(s) => cx.binary(B::Add, s, part)?,
        });
    }
    let y = sum.ok_or("no neighbours")?;
    extrapolated(cx, r, a, y)
}

/// Whether float positions lie outside of an axis.
fn outside(cx: &mut Lowering, at: Value, extent: &Dim) -> Result {
    let last = cx.dim_scalar(&(extent - &Dim::ONE), DType::F32)?;
    let (before, behind) = (cx.binary_scalar(B::Lt, at, 0.0)?, cx.binary(B::Gt, at, last)?);
    Ok(cx.binary(B::Or, before, behind)?)
}

/// `y` with the extrapolation value where a crop reads outside of the input.
fn extrapolated(cx: &mut Lowering, r: &Resize, a: &Axis, y: Value) -> Result {
    if r.coordinates != Coordinates::TfCropAndResize {
        return Ok(y);
    }
    let at = cx.map_to(position(r, a)?, &[], vec![a.to.clone()])?;
    let outside = outside(cx, at, &a.from)?;
    let outside = aligned(cx, outside, a.axis, cx.rank(y))?;
    let dtype = cx.dtype(y);
    let value = cx.scalar(dtype, r.extrapolation);
    Ok(cx.select(outside, value, y)?)
}

/// The weight of the neighbour `i` elements after the base element, for a position at `ratio` after the base.
fn weight(cx: &mut Lowering, mode: Mode, ratio: Value, i: i64) -> Result {
    let d = cx.binary_scalar(B::Sub, ratio, i as f64)?;
    match mode {
        Mode::Cubic(a) => cubic_kernel(cx, d, a),
        _ => linear_kernel(cx, d),
    }
}

/// The linear kernel `1 − |x|` at a distance of at most 1.
pub fn linear_kernel(cx: &mut Lowering, x: Value) -> Result {
    let d = cx.unary(U::Abs, x)?;
    let d = cx.unary(U::Neg, d)?;
    Ok(cx.binary_scalar(B::Add, d, 1.0)?)
}

/// The cubic convolution kernel with coefficient `a` at a distance of at most 2.
pub fn cubic_kernel(cx: &mut Lowering, x: Value, a: f64) -> Result {
    let x = cx.unary(U::Abs, x)?;
    let horner = |cx: &mut Lowering, coefficients: [f64; 4]| -> Result {
        let mut y = cx.binary_scalar(B::Mul, x, coefficients[0])?;
        for c in &coefficients[1..3] {
            y = cx.binary_scalar(B::Add, y, *c)?;
            y = cx.binary(B::Mul, y, x)?;
        }
        Ok(cx.binary_scalar(B::Add, y, coefficients[3])?)
    };
    let near = horner(cx, [a + 2.0, -(a + 3.0), 0.0, 1.0])?;
    let far = horner(cx, [a, -5.0 * a, 8.0 * a, -4.0 * a])?;
    let is_near = cx.binary_scalar(B::Le, x, 1.0)?;
    Ok(cx.select(is_near, near, far)?)
}

/// `at + by` as an i32 position, clamped to `extent`.
fn clamped(cx: &mut Lowering, at: Value, by: i64, extent: &Dim) -> Result {
    let last = cx.dim_scalar(&(extent - &Dim::ONE), DType::I32)?;
    let i = cx.cast(at, DType::I32)?;
    let i = if by == 0 { i } else { cx.binary_scalar(B::Add, i, by as f64)? };
    let i = cx.binary_scalar(B::Max, i, 0.0)?;
    Ok(cx.binary(B::Min, i, last)?)
}

/// [`Resize::position`] as an f32 expression of the result's index variable 0.
fn position(r: &Resize, a: &Axis) -> Result<ScalarFn> {
    let mut f = ScalarFn::default();
    let dim = |f: &mut ScalarFn, d: Poly| {
        let i = f.push(ScalarNode::Index(d));
        f.push(ScalarNode::Cast(DType::F32, i))
    };
    let num = |f: &mut ScalarFn, v: f64| f.push(ScalarNode::Const(Scalar::from_f64(DType::F32, v)));
    let o = dim(&mut f, Poly::var(0));
    let over_scale = |f: &mut ScalarFn, x: u32| match a.scale {
        Some(s) => {
            let s = num(f, s);
            f.push(ScalarNode::Binary(B::Div, x, s))
        }
        None => {
            let (n, d) = (dim(f, a.from.clone()), dim(f, a.to.clone()));
            let x = f.push(ScalarNode::Binary(B::Mul, x, n));
            f.push(ScalarNode::Binary(B::Div, x, d))
        }
    };
    // The width of the result is not rounded if a scale is given.
    let width = |f: &mut ScalarFn| match a.scale {
        Some(s) => {
            let (n, s) = (dim(f, a.from.clone()), num(f, s));
            f.push(ScalarNode::Binary(B::Mul, n, s))
        }
        None => dim(f, a.to.clone()),
    };
    // Selects `single` if the width of the result is 1, else `x`.
    let unless_single = |f: &mut ScalarFn, single: u32, x: u32| {
        let (width, one) = (width(f), num(f, 1.0));
        let is_single = f.push(ScalarNode::Binary(B::Eq, width, one));
        f.push(ScalarNode::Select(is_single, single, x))
    };
    // `o · span / (width − 1)`.
    let spread = |f: &mut ScalarFn, span: u32| {
        let (width, one) = (width(f), num(f, 1.0));
        let d = f.push(ScalarNode::Binary(B::Sub, width, one));
        let x = f.push(ScalarNode::Binary(B::Mul, o, span));
        f.push(ScalarNode::Binary(B::Div, x, d))
    };
    let half = num(&mut f, 0.5);
    match r.coordinates {
        Coordinates::Asymmetric => {
            over_scale(&mut f, o);
        }
        Coordinates::HalfPixel | Coordinates::PytorchHalfPixel | Coordinates::TfHalfPixelForNn => {
            let x = f.push(ScalarNode::Binary(B::Add, o, half));
            let x = over_scale(&mut f, x);
            if r.coordinates != Coordinates::TfHalfPixelForNn {
                let x = f.push(ScalarNode::Binary(B::Sub, x, half));
                if r.coordinates == Coordinates::PytorchHalfPixel {
                    let single = num(&mut f, -0.5);
                    unless_single(&mut f, single, x);
                }
            }
        }
        Coordinates::AlignCorners => {
            let (n, zero) = (dim(&mut f, &a.from - 1), num(&mut f, 0.0));
            let x = spread(&mut f, n);
            unless_single(&mut f, zero, x);
        }
        Coordinates::HalfPixelSymmetric => {
            let (to, width, one) = (dim(&mut f, a.to.clone()), width(&mut f), num(&mut f, 1.0));
            let part = f.push(ScalarNode::Binary(B::Div, to, width));
            let rest = f.push(ScalarNode::Binary(B::Sub, one, part));
            let n = dim(&mut f, a.from.clone());
            let middle = f.push(ScalarNode::Binary(B::Mul, n, half));
            let offset = f.push(ScalarNode::Binary(B::Mul, middle, rest));
            let x = f.push(ScalarNode::Binary(B::Add, o, half));
            let x = over_scale(&mut f, x);
            let x = f.push(ScalarNode::Binary(B::Sub, x, half));
            f.push(ScalarNode::Binary(B::Add, offset, x));
        }
        Coordinates::TfCropAndResize => {
            let (n, part) = (dim(&mut f, &a.from - 1), num(&mut f, a.roi[1] - a.roi[0]));
            let span = f.push(ScalarNode::Binary(B::Mul, n, part));
            let x = spread(&mut f, span);
            let middle = f.push(ScalarNode::Binary(B::Mul, span, half));
            let x = unless_single(&mut f, middle, x);
            let first = num(&mut f, a.roi[0]);
            let start = f.push(ScalarNode::Binary(B::Mul, n, first));
            f.push(ScalarNode::Binary(B::Add, start, x));
        }
    }
    Ok(f)
}
