//! View, Gather, Scatter, Place and Concat: operators that move elements.

use super::array::{Array, Buf, Elem, around, each, narrow, strides};
use super::index::{Index, advance, concrete, point_at};
use super::{Env, EvalError, par};
use crate::op::{GatherAxis, ReduceOp};
use crate::poly::Poly;
use crate::scalar::Scalar;
use crate::storage;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of elements in a task of one thread.
const BLOCK: usize = 1 << 15;

pub(super) fn view(
    x: &Array,
    shape: Vec<usize>,
    index: &[Poly],
    fill: Option<Scalar>,
    env: &Env,
) -> Result<Array, EvalError> {
    let n = env.numel(&shape)?;
    if n == 0 {
        return Ok(Array::new(x.dtype, shape, Buf::zeros(x.dtype, 0)));
    }
    if fill.is_none() && n == x.numel() && is_reshape(x, &shape, index, env) {
        return Ok(Array { dtype: x.dtype, shape, data: Arc::clone(&x.data) });
    }
    let axes = index.iter().map(|p| Index::new(p, &shape, env)).collect::<Result<Vec<_>, _>>()?;
    let mut out = Buf::zeros(x.dtype, n);
    let outside = AtomicUsize::new(usize::MAX);
    each!(&mut out, out => {
        if let Some(src) = Elem::slice(&x.data) {
            let fill = fill.map(|s| Elem::from_scalar(storage::from_raw(x.dtype, storage::to_raw(x.dtype, s))));
            copy(src, &x.shape, &axes, &shape, fill, out, &outside);
        }
    });
    match outside.into_inner() {
        usize::MAX => Ok(Array::new(x.dtype, shape, out)),
        flat => {
            let point = point_at(flat, &shape);
            let at: Vec<_> = axes.iter().map(|a| a.at(&point)).collect();
            Err(EvalError::at(format!(
                "element {point:?} of the view reads {at:?} of an operand of shape {:?}, and there is no fill",
                x.shape
            )))
        }
    }
}

/// Whether the view reads the elements in their order in memory.
fn is_reshape(x: &Array, shape: &[usize], index: &[Poly], env: &Env) -> bool {
    let flat = |strides: Vec<usize>, index: &[Poly]| -> Poly {
        index.iter().zip(strides).map(|(p, s)| p * &Poly::from(s)).sum()
    };
    let kept: Vec<Poly> =
        index.iter().zip(&x.shape).map(|(p, d)| if *d == 1 { Poly::ZERO } else { p.clone() }).collect();
    let vars: Vec<Poly> =
        shape.iter().enumerate().map(|(i, d)| if *d == 1 { Poly::ZERO } else { Poly::var(i) }).collect();
    let from = concrete(&flat(x.strides(), &kept), shape, env).subst_vars(&vars, &[]);
    from == flat(strides(shape), &vars)
}

fn copy<T: Elem>(
    src: &[T],
    from: &[usize],
    axes: &[Index],
    shape: &[usize],
    fill: Option<T>,
    out: &mut [T],
    outside: &AtomicUsize,
) {
    match Rows::new(from, axes, shape, fill) {
        Some(rows) => {
            let per_block = (BLOCK / rows.inner).max(1) * rows.inner;
            par::chunks(out, per_block, |b, chunk| rows.copy(src, b * per_block, chunk));
        }
        None => par::chunks(out, BLOCK, |b, chunk| {
            copy_points(src, from, axes, shape, fill, chunk, b * BLOCK, outside);
        }),
    }
}

/// A view whose indices are sums of terms of one variable each, so that it is read row by row.
pub(super) struct Rows<T> {
    outer: Vec<usize>,
    /// The extent of the last axis.
    pub(super) inner: usize,
    /// The offset of each element in the operand.
    offset: Terms,
    fill: T,
    /// The axes of the operand that some points are outside of.
    edges: Vec<Edge>,
}

/// A sum of terms: one for each outer variable, and one along a row.
struct Terms {
    base: i64,
    /// Terms of outer variables, but for the last.
    outer: Vec<(usize, Vec<i64>)>,
    /// The term of the last outer variable.
    row: Option<Vec<i64>>,
    along: Along,
}

/// A function of the position along a row.
enum Along {
    Steps { first: i64, step: i64 },
    Table(Vec<i64>),
}

/// An axis of the operand, and the index along it.
struct Edge {
    extent: i64,
    index: Terms,
}

/// A part of a row.
enum Piece<'a> {
    /// Points outside of the operand.
    Fill,
    /// Elements of the operand from the first one on, with a step between them.
    Steps { first: usize, step: i64 },
    /// Elements of the operand, by their offsets from a first one.
    Table { first: i64, offsets: &'a [i64] },
}

impl Along {
    fn new(table: Vec<i64>) -> Along {
        let first = table.first().copied().unwrap_or(0);
        let step = table.get(1).map_or(1, |t| t.wrapping_sub(first));
        match table.windows(2).all(|w| w[1].wrapping_sub(w[0]) == step) {
            true => Along::Steps { first, step },
            false => Along::Table(table),
        }
    }
    fn at(&self, j: usize) -> i64 {
        match self {
            Along::Steps { first, step } => first.wrapping_add(step.wrapping_mul(j as i64)),
            Along::Table(t) => t[j],
        }
    }
    /// The positions `j` below `inner` at which `0 ≤ start + self(j) < extent`, if they are a range that is easy to find.
    fn inside(&self, start: i64, extent: i64, inner: usize) -> Option<Range<usize>> {
        let Along::Steps { first, step } = *self else { return None };
        let start = start.saturating_add(first);
        if step == 0 {
            return Some(0..if (0..extent).contains(&start) { inner } else { 0 });
        }
        if step < 0 {
            return None;
        }
        let up = |n: i64| n.max(0).saturating_add(step - 1) / step;
        let low = up(start.saturating_neg()).min(inner as i64);
        let high = up(extent.saturating_sub(start)).clamp(low, inner as i64);
        Some(low as usize..high as usize)
    }
}

impl Terms {
    /// The sum of `tables` of variables, each times a factor.
    fn new(base: i64, tables: &[(usize, Vec<i64>)], (outer, inner): (usize, usize)) -> Terms {
        let (mut before, mut row, mut along) = (vec![], None, None);
        for (v, table) in tables {
            match outer.checked_sub(*v) {
                Some(0) => along = Some(table.clone()),
                Some(1) => row = Some(table.clone()),
                _ => before.push((*v, table.clone())),
            }
        }
        let along = along.map_or(Along::Steps { first: 0, step: 0 }, Along::new);
        let along = if inner == 1 { Along::Steps { first: along.at(0), step: 1 } } else { along };
        Terms { base, outer: before, row, along }
    }
    /// The terms of all outer variables but the last.
    fn before(&self, point: &[usize]) -> i64 {
        self.outer.iter().fold(self.base, |n, (v, t)| n.wrapping_add(t[point[*v]]))
    }
    fn row(&self, row: usize) -> i64 {
        self.row.as_ref().map_or(0, |t| t[row])
    }
}

impl<T: Elem> Rows<T> {
    /// `None` if an index is no sum of terms of one variable each, or if a point is outside of the operand and there is no fill.
    pub(super) fn new(from: &[usize], axes: &[Index], shape: &[usize], fill: Option<T>) -> Option<Rows<T>> {
        let (inner, outer) = shape.split_last()?;
        let size = (outer.len(), *inner);
        let mut base = 0i64;
        let mut sums: Vec<(usize, Vec<i64>)> = vec![];
        let mut edges = vec![];
        for ((axis, extent), stride) in axes.iter().zip(from).zip(strides(from)) {
            let Index::Tables { base: first, tables } = axis else { return None };
            let stride = stride as i64;
            base = base.wrapping_add(first.wrapping_mul(stride));
            for (v, table) in tables {
                let at = sums.iter().position(|s| s.0 == *v).unwrap_or_else(|| {
                    sums.push((*v, vec![0; table.len()]));
                    sums.len() - 1
                });
                let sum = &mut sums[at].1;
                sum.iter_mut().zip(table).for_each(|(s, t)| *s = s.wrapping_add(t.wrapping_mul(stride)));
            }
            let (low, high) = axis.range()?;
            if low < 0 || high >= *extent as i64 {
                fill?;
                edges.push(Edge { extent: *extent as i64, index: Terms::new(*first, tables, size) });
            }
        }
        let offset = Terms::new(base, &sums, size);
        Some(Rows { outer: outer.to_vec(), inner: *inner, offset, fill: fill.unwrap_or_default(), edges })
    }

    /// The offset of the first element and the step along each axis, if there are such steps and no point is outside.
    #[cfg(feature = "products")]
    pub(super) fn steps(&self) -> Option<(usize, Vec<usize>)> {
        if !self.edges.is_empty() {
            return None;
        }
        let Along::Steps { first, step } = self.offset.along else { return None };
        let mut base = self.offset.base.wrapping_add(first);
        let last = self.outer.len();
        let mut steps = vec![0; last + 1];
        steps[last] = usize::try_from(step).ok()?;
        let row = self.offset.row.as_ref().map(|t| (last - 1, t));
        for (v, table) in self.offset.outer.iter().map(|(v, t)| (*v, t)).chain(row) {
            let Along::Steps { first, step } = Along::new(table.clone()) else { return None };
            base = base.wrapping_add(first);
            steps[v] = usize::try_from(step).ok()?;
        }
        Some((usize::try_from(base).ok()?, steps))
    }

    /// Fills `out` with the elements from the `start`-th on.
    pub(super) fn copy(&self, src: &[T], start: usize, out: &mut [T]) {
        self.pieces(start, out.len(), |to, piece| {
            let out = &mut out[to];
            match piece {
                Piece::Fill => out.fill(self.fill),
                Piece::Steps { first, step: 1 } => out.copy_from_slice(&src[first..first + out.len()]),
                Piece::Steps { first, step: 0 } => out.fill(src[first]),
                Piece::Steps { first, step } if step > 0 => {
                    let from = src[first..].iter().step_by(step as usize);
                    out.iter_mut().zip(from).for_each(|(o, s)| *o = *s);
                }
                Piece::Steps { first, step } => {
                    (0..).zip(out).for_each(|(j, o)| *o = src[(first as i64 + step * j) as usize]);
                }
                Piece::Table { first, offsets } => {
                    out.iter_mut().zip(offsets).for_each(|(o, t)| *o = src[first.wrapping_add(*t) as usize]);
                }
            }
        });
    }

    /// Calls `f` with the parts of the `len` elements from the `start`-th on, and the places of each among them.
    fn pieces(&self, start: usize, len: usize, mut f: impl FnMut(Range<usize>, Piece<'_>)) {
        let (rows, before) = match self.outer.split_last() {
            Some((rows, before)) => (*rows, before),
            None => (1, &[][..]),
        };
        let (mut row, mut first, mut done) = (start / self.inner % rows, start % self.inner, 0);
        let mut point = point_at(start / self.inner / rows, before);
        let mut at = vec![0; self.edges.len()];
        while done < len {
            let offset = self.offset.before(&point);
            at.iter_mut().zip(&self.edges).for_each(|(at, e)| *at = e.index.before(&point));
            let all = self.inside(&at, None, 0..self.inner);
            while row < rows && done < len {
                let n = (self.inner - first).min(len - done);
                let offset = offset.wrapping_add(self.offset.row(row));
                match all.clone().and_then(|all| self.inside(&at, Some(row), all)) {
                    Some(inside) => {
                        let low = inside.start.clamp(first, first + n);
                        let high = inside.end.clamp(low, first + n);
                        let mut part = |columns: Range<usize>, piece: Piece<'_>| {
                            if !columns.is_empty() {
                                f(done + columns.start - first..done + columns.end - first, piece);
                            }
                        };
                        part(first..low, Piece::Fill);
                        part(low..high, self.piece(offset, low..high));
                        part(high..first + n, Piece::Fill);
                    }
                    None => {
                        for (j, to) in (first..first + n).zip(done..) {
                            let outside = |(at, e): (&i64, &Edge)| {
                                let at = at.wrapping_add(e.index.row(row)).wrapping_add(e.index.along.at(j));
                                !(0..e.extent).contains(&at)
                            };
                            let filled = at.iter().zip(&self.edges).any(outside);
                            f(to..to + 1, if filled { Piece::Fill } else { self.piece(offset, j..j + 1) });
                        }
                    }
                }
                (row, first, done) = (row + 1, 0, done + n);
            }
            row = 0;
            advance(&mut point, before);
        }
    }

    /// The columns of a row that are inside of the operand, if they are a range that is easy to find. `None` as the row stands for all rows:
    /// the axes of the operand along which these differ are left out, and only these are looked at for a row.
    fn inside(&self, at: &[i64], row: Option<usize>, mut columns: Range<usize>) -> Option<Range<usize>> {
        for (at, e) in at.iter().zip(&self.edges).filter(|(_, e)| e.index.row.is_some() == row.is_some()) {
            let at = at.wrapping_add(row.map_or(0, |row| e.index.row(row)));
            let one = e.index.along.inside(at, e.extent, self.inner)?;
            columns = columns.start.max(one.start)..columns.end.min(one.end);
        }
        Some(columns)
    }

    fn piece(&self, offset: i64, columns: Range<usize>) -> Piece<'_> {
        match &self.offset.along {
            Along::Steps { step, .. } if !columns.is_empty() => {
                let first = offset.wrapping_add(self.offset.along.at(columns.start)) as usize;
                Piece::Steps { first, step: *step }
            }
            Along::Steps { .. } => Piece::Fill,
            Along::Table(t) => Piece::Table { first: offset, offsets: &t[columns] },
        }
    }
}

#[cfg(feature = "products")]
impl Rows<f32> {
    /// Adds the elements from the `start`-th on, times a factor.
    pub(super) fn add(&self, src: &[f32], start: usize, factor: f32, out: &mut [f32]) {
        self.pieces(start, out.len(), |to, piece| {
            let out = &mut out[to];
            match piece {
                Piece::Fill if self.fill == 0.0 => {}
                Piece::Fill => out.iter_mut().for_each(|o| *o += factor * self.fill),
                Piece::Steps { first, step: 1 } => {
                    let from = &src[first..first + out.len()];
                    out.iter_mut().zip(from).for_each(|(o, s)| *o += factor * s);
                }
                Piece::Steps { first, step: 2 } => {
                    let from = src[first..].chunks(2);
                    out.iter_mut().zip(from).for_each(|(o, s)| *o += factor * s[0]);
                }
                Piece::Steps { first, step } => {
                    (0..).zip(out).for_each(|(j, o)| *o += factor * src[(first as i64 + step * j) as usize]);
                }
                Piece::Table { first, offsets } => {
                    let at = |t: &i64| src[first.wrapping_add(*t) as usize];
                    out.iter_mut().zip(offsets).for_each(|(o, t)| *o += factor * at(t));
                }
            }
        });
    }
}

/// Copies point by point, for arbitrary index expressions.
#[expect(clippy::too_many_arguments, reason = "one loop shared by two callers")]
fn copy_points<T: Elem>(
    src: &[T],
    from: &[usize],
    axes: &[Index],
    shape: &[usize],
    fill: Option<T>,
    out: &mut [T],
    start: usize,
    outside: &AtomicUsize,
) {
    let stride = strides(from);
    let mut point = point_at(start, shape);
    for (i, o) in out.iter_mut().enumerate() {
        let mut at = Some(0usize);
        for (d, a) in axes.iter().enumerate() {
            at = match (at, a.at(&point)) {
                (Some(at), Some(p)) if (0..from[d] as i64).contains(&p) => Some(at + p as usize * stride[d]),
                _ => None,
            };
        }
        match (at, fill) {
            (Some(at), _) => *o = src[at],
            (None, Some(f)) => *o = f,
            (None, None) => {
                outside.fetch_min(start + i, Ordering::Relaxed);
            }
        }
        advance(&mut point, shape);
    }
}

/// One axis of a gather or scatter, compiled.
enum Axis {
    Affine(Index),
    Data { values: Vec<i64>, at: Vec<Index>, shape: Vec<usize>, stride: Vec<usize> },
}

fn compile(
    index: &[GatherAxis],
    inputs: &[&Array],
    domain: &[usize],
    env: &Env,
) -> Result<Vec<Axis>, EvalError> {
    index
        .iter()
        .map(|ax| {
            Ok(match ax {
                GatherAxis::Affine(p) => Axis::Affine(Index::new(p, domain, env)?),
                GatherAxis::Data { input, at } => {
                    let a =
                        inputs.get(*input).ok_or_else(|| EvalError::at("no such index operand".into()))?;
                    let values = a.ints().ok_or_else(|| EvalError::at("indices are not integers".into()))?;
                    let at = at.iter().map(|p| Index::new(p, domain, env)).collect::<Result<_, _>>()?;
                    Axis::Data { values, at, shape: a.shape.clone(), stride: a.strides() }
                }
            })
        })
        .collect()
}

impl Axis {
    /// The index along the axis. A negative value of an index operand counts from the end; values outside the axis are not clamped.
    fn at(&self, point: &[usize], extent: usize) -> Result<i64, EvalError> {
        let zero = || EvalError::at("an index expression divides by zero".into());
        match self {
            Axis::Affine(p) => {
                let v = p.at(point).ok_or_else(zero)?;
                if !(0..extent as i64).contains(&v) {
                    return Err(EvalError::at(format!(
                        "index {v} is outside an axis of {extent} at element {point:?}"
                    )));
                }
                Ok(v)
            }
            Axis::Data { values, at, shape, stride } => {
                let mut flat = 0usize;
                for ((p, d), s) in at.iter().zip(shape).zip(stride) {
                    let v = p.at(point).ok_or_else(zero)?;
                    if !(0..*d as i64).contains(&v) {
                        return Err(EvalError::at(format!(
                            "position {v} is outside an axis of {d} of the indices at element {point:?}"
                        )));
                    }
                    flat += v as usize * s;
                }
                let v = values.get(flat).copied().unwrap_or(0);
                Ok(if v < 0 { v.saturating_add(extent as i64) } else { v })
            }
        }
    }
}

pub(super) fn gather(
    inputs: &[&Array],
    shape: Vec<usize>,
    index: &[GatherAxis],
    env: &Env,
) -> Result<Array, EvalError> {
    let data = inputs[0];
    let n = env.numel(&shape)?;
    if n > 0 && data.numel() == 0 {
        return Err(EvalError::at(format!("reads {shape:?} elements of empty data {:?}", data.shape)));
    }
    let axes = compile(index, inputs, &shape, env)?;
    let stride = data.strides();
    let mut point = vec![0; shape.len()];
    let mut offsets = Vec::with_capacity(n);
    for _ in 0..n {
        let mut flat = 0;
        for (d, a) in axes.iter().enumerate() {
            let at = a.at(&point, data.shape[d])?.clamp(0, data.shape[d] as i64 - 1);
            flat += at as usize * stride[d];
        }
        offsets.push(flat);
        advance(&mut point, &shape);
    }
    let mut out = Buf::zeros(data.dtype, n);
    each!(&mut out, out => {
        if let Some(src) = Elem::slice(&data.data) {
            out.iter_mut().zip(&offsets).for_each(|(o, i)| *o = src[*i]);
        }
    });
    Ok(Array::new(data.dtype, shape, out))
}

pub(super) fn scatter(
    inputs: &[&Array],
    reduce: Option<ReduceOp>,
    index: &[GatherAxis],
    env: &Env,
) -> Result<Array, EvalError> {
    let (data, updates) = (inputs[0], inputs[1]);
    let axes = compile(index, inputs, &updates.shape, env)?;
    let stride = data.strides();
    let mut point = vec![0; updates.shape.len()];
    let mut offsets = Vec::with_capacity(updates.numel());
    for _ in 0..updates.numel() {
        let mut flat = Some(0);
        for (d, a) in axes.iter().enumerate() {
            let at = a.at(&point, data.shape[d])?;
            flat =
                flat.filter(|_| (0..data.shape[d] as i64).contains(&at)).map(|f| f + at as usize * stride[d]);
        }
        offsets.push(flat);
        advance(&mut point, &updates.shape);
    }
    let mut out = (*data.data).clone();
    each!(&mut out, out => {
        if let Some(src) = Elem::slice(&updates.data) {
            for (at, u) in offsets.iter().zip(src) {
                let Some(at) = at else { continue };
                out[*at] = match reduce {
                    None => *u,
                    Some(op) => super::reduce::combine(op, out[*at], *u),
                };
            }
        }
    });
    narrow(data.dtype, &mut out);
    Ok(Array::new(data.dtype, data.shape.clone(), out))
}

pub(super) fn place(
    inputs: &[&Array],
    shape: Vec<usize>,
    index: &[GatherAxis],
    env: &Env,
) -> Result<Array, EvalError> {
    let n = env.numel(&shape)?;
    let updates = inputs[0];
    let axes = compile(index, inputs, &updates.shape, env)?;
    let mut from: Vec<Option<usize>> = vec![None; n];
    let mut point = vec![0; updates.shape.len()];
    for i in 0..updates.numel() {
        let mut flat = Some(0);
        for (a, d) in axes.iter().zip(&shape) {
            let at = a.at(&point, *d)?;
            flat = flat.filter(|_| (0..*d as i64).contains(&at)).map(|f| f * d + at as usize);
        }
        if let Some(flat) = flat
            && from[flat].replace(i).is_some()
        {
            return Err(EvalError::at(format!("element {flat} of {shape:?} is written twice")));
        }
        advance(&mut point, &updates.shape);
    }
    let from = from.into_iter().collect::<Option<Vec<usize>>>();
    let from = from.ok_or_else(|| EvalError::at(format!("an element of {shape:?} is not written")))?;
    let mut out = Buf::zeros(updates.dtype, n);
    each!(&mut out, out => {
        if let Some(src) = Elem::slice(&updates.data) {
            out.iter_mut().zip(&from).for_each(|(o, i)| *o = src[*i]);
        }
    });
    Ok(Array::new(updates.dtype, shape, out))
}

pub(super) fn concat(inputs: &[&Array], axis: usize, env: &Env) -> Result<Array, EvalError> {
    let mut shape = inputs[0].shape.clone();
    shape[axis] = inputs.iter().map(|x| x.shape[axis]).sum();
    let mut out = Buf::zeros(inputs[0].dtype, env.numel(&shape)?);
    let (before, _, after) = around(&shape, axis);
    let row = shape[axis] * after;
    each!(&mut out, out => {
        let mut at = 0;
        for x in inputs {
            let n = x.shape[axis] * after;
            if let Some(src) = Elem::slice(&x.data) {
                for i in 0..before {
                    out[i * row + at..i * row + at + n].copy_from_slice(&src[i * n..(i + 1) * n]);
                }
            }
            at += n;
        }
    });
    Ok(Array::new(inputs[0].dtype, shape, out))
}
