//! View, Gather, Scatter, Place and Concat: operators that move elements.

use super::array::{Array, Buf, Elem, around, each, narrow, strides};
use super::index::{Index, advance, concrete, point_at};
use super::{Env, EvalError, par};
use crate::op::{GatherAxis, ReduceOp};
use crate::poly::Poly;
use crate::scalar::Scalar;
use crate::storage;
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
    let inner = shape.last().copied().unwrap_or(1);
    let Some(v_last) = shape.len().checked_sub(1) else {
        copy_points(src, from, axes, shape, fill, out, 0, outside);
        return;
    };
    let separable = axes.iter().all(|a| matches!(a, Index::Tables { .. }));
    let inside =
        axes.iter().zip(from).all(|(a, d)| a.range().is_some_and(|(lo, hi)| lo >= 0 && hi < *d as i64));
    if !separable || (fill.is_none() && !inside) {
        par::chunks(out, BLOCK, |b, chunk| {
            copy_points(src, from, axes, shape, fill, chunk, b * BLOCK, outside);
        });
        return;
    }
    // The offsets along the last axis, shared by all rows, and the axes of the operand that move along it.
    let stride = strides(from);
    let mut along = vec![0i64; inner];
    let mut moving: Vec<(usize, &[i64])> = vec![];
    for (d, a) in axes.iter().enumerate() {
        let Index::Tables { tables, .. } = a else { continue };
        for (v, t) in tables.iter().filter(|(v, _)| *v == v_last) {
            debug_assert_eq!(*v, v_last);
            moving.push((d, t));
            along.iter_mut().zip(t).for_each(|(o, t)| *o = o.wrapping_add(t.wrapping_mul(stride[d] as i64)));
        }
    }
    let contiguous = along.windows(2).all(|w| w[1] == w[0].wrapping_add(1));
    let rows_per_block = (BLOCK / inner.max(1)).max(1);
    let outer = &shape[..v_last];
    par::chunks(out, rows_per_block * inner, |b, chunk| {
        let mut point = point_at(b * rows_per_block, outer);
        let mut row_at = vec![0i64; axes.len()];
        for row in chunk.chunks_mut(inner) {
            let mut base = 0i64;
            let mut fixed_inside = true;
            for (d, a) in axes.iter().enumerate() {
                let Index::Tables { base: b, tables } = a else { continue };
                let mut at = *b;
                let mut moves = false;
                for (v, t) in tables {
                    if *v == v_last {
                        moves = true;
                    } else {
                        at = at.wrapping_add(t[point[*v]]);
                    }
                }
                row_at[d] = at;
                fixed_inside &= moves || (0..from[d] as i64).contains(&at);
                base = base.wrapping_add(at.wrapping_mul(stride[d] as i64));
            }
            if inside {
                if contiguous {
                    let start = (base + along[0]) as usize;
                    row.copy_from_slice(&src[start..start + inner]);
                } else {
                    row.iter_mut().zip(&along).for_each(|(o, a)| *o = src[(base + a) as usize]);
                }
            } else if let Some(fill) = fill {
                if !fixed_inside {
                    row.fill(fill);
                } else {
                    for (j, o) in row.iter_mut().enumerate() {
                        let ok = moving
                            .iter()
                            .all(|(d, t)| (0..from[*d] as i64).contains(&row_at[*d].wrapping_add(t[j])));
                        *o = if ok { src[base.wrapping_add(along[j]) as usize] } else { fill };
                    }
                }
            }
            advance(&mut point, outer);
        }
    });
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
