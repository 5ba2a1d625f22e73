//! Softmax, Norm and Attention, computed in f64 and rounded once.

use super::array::{Array, Buf, Elem, around, each};
use super::contract::permuted;
use super::index::{copy_walk, merge};
use super::map::broadcast_strides;
use super::{Env, EvalError, par};
use crate::dtype::DType;
use crate::op::{Contract, NormKind};

fn softmax_row(row: &mut [f64], log: bool) {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, |a, b| if b.is_nan() || b > a { b } else { a });
    let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
    let ln = sum.ln();
    row.iter_mut().for_each(|x| *x = if log { *x - max - ln } else { (*x - max).exp() / sum });
}

pub(super) fn softmax(x: &Array, axis: usize, log: bool, env: &Env) -> Array {
    let (_, extent, after) = around(&x.shape, axis);
    if after == 1
        && let Some(quick) = quick_rows(x, extent, env, |row| quick_softmax(row, log))
    {
        return quick;
    }
    let mut v = x.f64s();
    par::chunks(&mut v, (extent * after).max(1), |_, slab| {
        if after == 1 {
            return softmax_row(slab, log);
        }
        let mut row = vec![0.0; extent];
        for a in 0..after {
            row.iter_mut().enumerate().for_each(|(i, r)| *r = slab[i * after + a]);
            softmax_row(&mut row, log);
            row.iter().enumerate().for_each(|(i, r)| slab[i * after + a] = *r);
        }
    });
    Array::from_f64s(x.dtype, x.shape.clone(), v)
}

/// `x` with `f` applied to each row of `extent` elements, if `x` is f32 and speed counts.
fn quick_rows(x: &Array, extent: usize, env: &Env, f: impl Fn(&mut [f32]) + Send + Sync) -> Option<Array> {
    let Buf::F32(src) = &*x.data else { return None };
    if !quick(env) || x.dtype != DType::F32 {
        return None;
    }
    let mut out = src.clone();
    par::chunks(&mut out, extent.max(1), |_, row| f(row));
    Some(Array::new(x.dtype, x.shape.clone(), Buf::F32(out)))
}

#[cfg(feature = "products")]
use super::smooth::{norm as quick_norm, softmax as quick_softmax};

#[cfg(not(feature = "products"))]
fn quick_softmax(_: &mut [f32], _: bool) {}

#[cfg(not(feature = "products"))]
fn quick_norm(_: &mut [f32], _: bool, _: f32) {}

/// Whether speed counts more than the last bits.
fn quick(env: &Env) -> bool {
    cfg!(feature = "products") && env.quick
}

pub(super) fn norm(x: &Array, kind: NormKind, axes: &[usize], epsilon: f32, env: &Env) -> Array {
    let kept = (0..x.shape.len()).filter(|i| !axes.contains(i));
    let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
    let extent: usize = axes.iter().map(|a| x.shape[*a]).product();
    let centred = kind == NormKind::Layer;
    if order.is_sorted()
        && let Some(quick) = quick_rows(x, extent, env, |row| quick_norm(row, centred, epsilon))
    {
        return quick;
    }
    let rows = permuted(x, &order);
    let mut v = rows.f64s();
    par::chunks(&mut v, extent.max(1), |_, row| {
        let n = row.len() as f64;
        let mean = if centred { row.iter().sum::<f64>() / n } else { 0.0 };
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        let scale = 1.0 / (variance + f64::from(epsilon)).sqrt();
        row.iter_mut().for_each(|x| *x = (*x - mean) * scale);
    });
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, a)| back[*a] = i);
    permuted(&Array::from_f64s(x.dtype, rows.shape, v), &back)
}

pub(super) fn attention(
    inputs: &[&Array],
    scale: f32,
    empty_is_zero: bool,
    env: &Env,
) -> Result<Array, EvalError> {
    let [q, k, v, rest @ ..] = inputs else { return Err(EvalError::at("needs q, k and v".into())) };
    let rank = q.shape.len();
    if rank < 2 {
        return Err(EvalError::at("needs operands of rank 2 at least".into()));
    }
    let dtype = q.dtype;
    // Widened so that only the result is rounded to a narrow type.
    let wide = |x: &Array| {
        let dtype = if x.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        Array { dtype, ..x.clone() }
    };
    let batch: Vec<u8> = (0..rank as u8 - 2).collect();
    let (s, d, t, e) = (rank as u8, rank as u8 + 1, rank as u8 + 2, rank as u8 + 3);
    let with = |x: u8, y: u8| [batch.clone(), vec![x, y]].concat();
    let qk = Contract { a: with(s, d), b: with(t, d), out: with(s, t) };
    let scores = super::contract::contract(&qk, &wide(q), &wide(k), env)?;
    let len = k.shape[rank - 2];
    let pv = Contract { a: with(s, t), b: with(t, e), out: with(s, e) };
    if quick(env) && dtype == DType::F32 {
        let p = quick_weights(&scores, rest.first().copied(), len, (scale, empty_is_zero))?;
        return super::contract::contract(&pv, &p, v, env);
    }
    let mut p = scores.f64s();
    let mask = match rest.first() {
        Some(m) => {
            let walk = merge(broadcast_strides(m, &scores.shape)?.into_iter());
            let mut full = vec![0.0; p.len()];
            copy_walk(&m.f64s(), &walk, 0, &mut full);
            Some(full)
        }
        None => None,
    };
    par::chunks(&mut p, len.max(1), |i, row| {
        for (j, x) in row.iter_mut().enumerate() {
            let m = mask.as_ref().map_or(0.0, |m| m[i * len + j]);
            let score = *x * f64::from(scale) + m;
            // Adding any score to the least finite f32 leaves it unchanged in f32.
            let least = (score as f32) <= f32::MIN;
            *x = match least {
                true if empty_is_zero => f64::NEG_INFINITY,
                true => f64::from(f32::MIN),
                false => score,
            };
        }
        if empty_is_zero && row.iter().all(|x| *x == f64::NEG_INFINITY) {
            return row.fill(0.0);
        }
        softmax_row(row, false);
    });
    let p = Array::from_f64s(scores.dtype, scores.shape.clone(), p);
    let out = super::contract::contract(&pv, &p, &wide(v), env)?;
    Ok(Array::from_f64s(dtype, out.shape.clone(), out.f64s()))
}

/// The weights of attention from its scores, in f32.
fn quick_weights(
    scores: &Array,
    mask: Option<&Array>,
    len: usize,
    (scale, empty_is_zero): (f32, bool),
) -> Result<Array, EvalError> {
    let (Buf::F32(src), len) = (&*scores.data, len.max(1)) else { return Ok(scores.clone()) };
    let mut p = src.clone();
    let mask = match mask {
        Some(m) => Some((f32s(m), merge(broadcast_strides(m, &scores.shape)?.into_iter()))),
        None => None,
    };
    par::chunks(&mut p, len, |i, row| {
        let mut added = vec![0.0; row.len()];
        if let Some((m, walk)) = &mask {
            copy_walk(m, walk, i * len, &mut added);
        }
        let empty = if empty_is_zero { f32::NEG_INFINITY } else { f32::MIN };
        for (x, m) in row.iter_mut().zip(&added) {
            let score = *x * scale + m;
            // Adding any score to the least finite f32 leaves it unchanged.
            *x = if score <= f32::MIN { empty } else { score };
        }
        if empty_is_zero && row.iter().all(|x| *x == f32::NEG_INFINITY) {
            return row.fill(0.0);
        }
        quick_softmax(row, false);
    });
    Ok(Array::new(scores.dtype, scores.shape.clone(), Buf::F32(p)))
}

fn f32s(x: &Array) -> Vec<f32> {
    each!(&*x.data, v => v.iter().map(|x| x.to_f32()).collect())
}
