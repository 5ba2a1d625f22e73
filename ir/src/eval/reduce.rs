//! Reduce, ArgReduce, PrefixScan, TopK, Sort.

use super::array::{Array, Buf, Elem, around, each, narrow};
use super::contract::permuted;
use super::{Env, EvalError};
use crate::dtype::DType;
use crate::op::ReduceOp;
use std::cmp::Ordering;

pub(super) fn combine<T: Elem>(op: ReduceOp, a: T, b: T) -> T {
    match op {
        ReduceOp::Sum => a.plus(b),
        ReduceOp::Prod => a.times(b),
        ReduceOp::Max => a.larger(b),
        ReduceOp::Min => a.smaller(b),
    }
}

pub(super) fn reduce(x: &Array, op: ReduceOp, axes: &[usize], env: &Env) -> Result<Array, EvalError> {
    let rank = x.shape.len();
    let mut shape = x.shape.clone();
    for a in axes {
        shape[*a] = 1;
    }
    // The memory is checked first: a result of a reduction without elements may be large.
    let n = env.numel(&shape)?;
    // The reduced axes are moved to the end, unless they are already adjacent.
    let run = axes.windows(2).all(|w| w[1] == w[0] + 1);
    let (x, extent, after) = match axes {
        [first, .., last] | [first @ last] if run => {
            let (_, _, rest) = around(&x.shape, *first);
            let (_, _, after) = around(&x.shape, *last);
            (x.clone(), rest / after.max(1) * x.shape[*first], after)
        }
        [] => return Ok(x.clone()),
        _ => {
            let kept = (0..rank).filter(|i| !axes.contains(i));
            let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
            let extent = axes.iter().map(|a| x.shape[*a]).product();
            (permuted(x, &order), extent, 1)
        }
    };
    let mut out = Buf::full(op.identity(x.dtype), n);
    // Float sums are computed in f64 and rounded once, which is as accurate as the element type allows.
    if let (Buf::F32(src), Buf::F32(out), ReduceOp::Sum | ReduceOp::Prod) = (&*x.data, &mut out, op) {
        let first = if op == ReduceOp::Sum { 0.0 } else { 1.0 };
        let mut acc = vec![0f64; after];
        for (b, o) in out.chunks_mut(after.max(1)).enumerate() {
            acc.fill(first);
            for row in src[b * extent * after..(b + 1) * extent * after].chunks(after.max(1)) {
                if op == ReduceOp::Sum {
                    acc.iter_mut().zip(row).for_each(|(a, r)| *a += f64::from(*r));
                } else {
                    acc.iter_mut().zip(row).for_each(|(a, r)| *a *= f64::from(*r));
                }
            }
            o.iter_mut().zip(&acc).for_each(|(o, a)| *o = *a as f32);
        }
    } else {
        each!(&mut out, out => {
            if let Some(src) = Elem::slice(&x.data) {
                for (b, o) in out.chunks_mut(after.max(1)).enumerate() {
                    for row in src[b * extent * after..(b + 1) * extent * after].chunks(after.max(1)) {
                        o.iter_mut().zip(row).for_each(|(a, r)| *a = combine(op, *a, *r));
                    }
                }
            }
        });
    }
    narrow(x.dtype, &mut out);
    Ok(Array::new(x.dtype, shape, out))
}

pub(super) fn arg_reduce(x: &Array, op: ReduceOp, axis: usize, last: bool) -> Result<Array, EvalError> {
    let (before, extent, after) = around(&x.shape, axis);
    let mut shape = x.shape.clone();
    shape[axis] = 1;
    if extent == 0 && before * after > 0 {
        return Err(EvalError::at(format!("the position of the {} of no elements", op.name())));
    }
    let wanted = if op == ReduceOp::Max { Ordering::Greater } else { Ordering::Less };
    let mut out = vec![0i64; before * after];
    each!(&*x.data, src => {
        for b in 0..before {
            for a in 0..after {
                let at = |i: usize| src[(b * extent + i) * after + a];
                let mut best = 0;
                for i in 1..extent {
                    let (new, old) = (at(i), at(best));
                    let better = if new.is_nan() || old.is_nan() {
                        new.is_nan() && (last || !old.is_nan())
                    } else if new == old {
                        last
                    } else {
                        new.partial_cmp(&old) == Some(wanted)
                    };
                    if better {
                        best = i;
                    }
                }
                out[b * after + a] = best as i64;
            }
        }
    });
    Ok(Array::new(DType::I64, shape, Buf::I64(out)))
}

pub(super) fn prefix_scan(x: &Array, op: ReduceOp, axis: usize, exclusive: bool, reverse: bool) -> Array {
    let (before, extent, after) = around(&x.shape, axis);
    let mut out = (*x.data).clone();
    let first = op.identity(x.dtype);
    macro_rules! run {
        ($src:expr, $out:expr, $acc:ty, $to:expr, $from:expr) => {
            for b in 0..before {
                for a in 0..after {
                    let mut acc: $acc = Elem::from_scalar(first);
                    for step in 0..extent {
                        let i = if reverse { extent - 1 - step } else { step };
                        let at = (b * extent + i) * after + a;
                        let next = combine(op, acc, $to($src[at]));
                        $out[at] = $from(if exclusive { acc } else { next });
                        acc = next;
                    }
                }
            }
        };
    }
    match (&*x.data, &mut out) {
        (Buf::F32(src), Buf::F32(out)) => run!(src, out, f64, f64::from, |v| v as f32),
        (_, out) => each!(out, out => {
            if let Some(src) = Elem::slice(&x.data) {
                run!(src, out, _, |v| v, |v| v);
            }
        }),
    }
    narrow(x.dtype, &mut out);
    Array::new(x.dtype, x.shape.clone(), out)
}

pub(super) fn top_k(
    x: &Array,
    axis: usize,
    k: usize,
    largest: bool,
    env: &Env,
) -> Result<Vec<Array>, EvalError> {
    let (before, extent, after) = around(&x.shape, axis);
    if k > extent {
        return Err(EvalError::at(format!("the {k} first of an axis of {extent}")));
    }
    let mut shape = x.shape.clone();
    shape[axis] = k;
    let n = env.numel(&shape)?;
    let mut values = Buf::zeros(x.dtype, n);
    let mut places = vec![0i64; n];
    each!(&mut values, values => {
        if let Some(src) = Elem::slice(&x.data) {
            top_rows(src, (before, extent, after), k, largest, values, &mut places);
        }
    });
    Ok(vec![Array::new(x.dtype, shape.clone(), values), Array::new(DType::I64, shape, Buf::I64(places))])
}

fn top_rows<T: Elem>(
    src: &[T],
    (before, extent, after): (usize, usize, usize),
    k: usize,
    largest: bool,
    values: &mut [T],
    places: &mut [i64],
) {
    let mut order: Vec<usize> = vec![];
    for b in 0..before {
        for a in 0..after {
            let at = |i: usize| src[(b * extent + i) * after + a];
            order.clear();
            order.extend(0..extent);
            // A stable sort, so that the first of equal elements wins; NaN counts as the greatest.
            order.sort_by(|i, j| {
                let (x, y) = (at(*i), at(*j));
                let o = x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()));
                if largest { o.reverse() } else { o }
            });
            for (slot, i) in order.iter().take(k).enumerate() {
                let to = (b * k + slot) * after + a;
                values[to] = at(*i);
                places[to] = *i as i64;
            }
        }
    }
}

pub(super) fn sort(x: &Array, axis: usize, (part, keep): (i64, i64), env: &Env) -> Result<Array, EvalError> {
    let (before, extent, after) = around(&x.shape, axis);
    let least = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
    let (part, keep) = (least(part).max(1), least(keep));
    let whole = keep >= part;
    let mut shape = x.shape.clone();
    shape[axis] = if whole { extent } else { extent.div_ceil(part).saturating_mul(keep) };
    let (places, n) = (shape[axis], env.numel(&shape)?);
    let mut out = Buf::full(ReduceOp::Min.identity(x.dtype), n);
    each!(&mut out, out => {
        if let Some(src) = Elem::slice(&x.data) {
            for b in 0..before {
                for a in 0..after {
                    let row = |i: usize| src[(b * extent + i) * after + a];
                    let put = |place: usize, v| out[(b * places + place) * after + a] = v;
                    sort_row(row, extent, (part, keep), put);
                }
            }
        }
    });
    narrow(x.dtype, &mut out);
    Ok(Array::new(x.dtype, shape, out))
}

fn sort_row<T: Elem>(
    row: impl Fn(usize) -> T,
    extent: usize,
    (part, keep): (usize, usize),
    mut put: impl FnMut(usize, T),
) {
    for (p, begin) in (0..extent).step_by(part).enumerate() {
        let mut all: Vec<T> = (begin..extent.min(begin.saturating_add(part))).map(&row).collect();
        all.sort_by(|x, y| x.partial_cmp(y).unwrap_or(Ordering::Equal));
        let to = if keep >= part { begin } else { p * keep };
        all.into_iter().take(keep).enumerate().for_each(|(slot, v)| put(to + slot, v));
    }
}
