//! Contract: the operands are permuted to `[batch, m, k] × [batch, k, n]`, and summed in order or by `gemm`.

use super::array::{Array, Buf, Elem, each, narrow, strides};
use super::index::{copy_walk, merge};
use super::{Env, EvalError, par};
use crate::op::Contract;
use std::collections::BTreeMap;

/// The transpose of `x` in which axis `i` is axis `order[i]` of `x`.
pub(super) fn permuted(x: &Array, order: &[usize]) -> Array {
    let s = x.strides();
    let walk = merge(order.iter().map(|a| (x.shape[*a], s[*a])));
    let mut out = Buf::zeros(x.dtype, x.numel());
    each!(&mut out, out => {
        if let Some(src) = Elem::slice(&x.data) {
            par::chunks(out, 1 << 16, |i, c| copy_walk(src, &walk, i << 16, c));
        }
    });
    Array::new(x.dtype, order.iter().map(|a| x.shape[*a]).collect(), out)
}

/// An operand as matrices: the start of each batch element, and the strides of rows and columns.
pub(super) struct Matrices {
    x: Array,
    pub(super) starts: Vec<usize>,
    pub(super) row: usize,
    pub(super) col: usize,
}

fn matrices(
    x: &Array,
    labels: &[u8],
    [batch, rows, cols]: [&[u8]; 3],
    extent: &BTreeMap<u8, usize>,
) -> Matrices {
    let s = x.strides();
    let stride: BTreeMap<u8, usize> = labels.iter().copied().zip(s).collect();
    let walk = |ls: &[u8], stride: &BTreeMap<u8, usize>| {
        merge(ls.iter().map(|l| (extent[l], stride[l])).collect::<Vec<_>>().into_iter())
    };
    let (r, c) = (walk(rows, &stride), walk(cols, &stride));
    if r.len() > 1 || c.len() > 1 {
        let order: Vec<u8> = [batch, rows, cols].concat();
        let places = order.iter().filter_map(|l| labels.iter().position(|m| m == l)).collect::<Vec<_>>();
        return matrices(&permuted(x, &places), &order, [batch, rows, cols], extent);
    }
    let mut starts = vec![0];
    for l in batch {
        let (n, step) = (extent[l], stride[l]);
        starts = starts.iter().flat_map(|s| (0..n).map(move |i| s + i * step)).collect();
    }
    Matrices { x: x.clone(), starts, row: r[0].1, col: c[0].1 }
}

pub(super) fn contract(c: &Contract, a: &Array, b: &Array, env: &Env) -> Result<Array, EvalError> {
    let mut extent = BTreeMap::new();
    for (labels, x) in [(&c.a, a), (&c.b, b)] {
        for (l, d) in labels.iter().zip(&x.shape) {
            if extent.insert(*l, *d).is_some_and(|e| e != *d) {
                return Err(EvalError::at(format!(
                    "inner dimensions of {:?} and {:?} differ",
                    a.shape, b.shape
                )));
            }
        }
    }
    let shape: Vec<usize> = c.out.iter().map(|l| extent.get(l).copied().unwrap_or(0)).collect();
    let total = env.numel(&shape)?;
    let (batch, m, n, k) = (c.batch(), c.m(), c.n(), c.k());
    let seen: usize = batch.len() + m.len() + k.len();
    if seen != c.a.len() || batch.len() + n.len() + k.len() != c.b.len() {
        return Err(EvalError::at("a label occurs in one place only, or twice in one operand".into()));
    }
    let size = |ls: &[u8]| ls.iter().map(|l| extent[l]).product::<usize>();
    let (nb, nm, nn, nk) = (size(&batch), size(&m), size(&n), size(&k));
    env.spend((total as u64).saturating_mul(nk as u64))?;
    let mut out = Buf::zeros(a.dtype, total);
    if total > 0 && nk > 0 {
        let a = matrices(a, &c.a, [&batch, &m, &k], &extent);
        let b = matrices(b, &c.b, [&batch, &k, &n], &extent);
        let size = (nb, nm, nn, nk);
        match (&*a.x.data, &*b.x.data, &mut out) {
            #[cfg(feature = "products")]
            (Buf::F32(x), Buf::F32(y), Buf::F32(o)) if !env.in_order => {
                super::fast::products(x, &a, y, &b, o, size, (0.0, 1.0));
            }
            #[cfg(feature = "products")]
            (Buf::F64(x), Buf::F64(y), Buf::F64(o)) if !env.in_order => {
                super::fast::products(x, &a, y, &b, o, size, (0.0, 1.0));
            }
            (x, y, out) => each!(out, o => {
                if let (Some(x), Some(y)) = (Elem::slice(x), Elem::slice(y)) {
                    in_order(x, &a, y, &b, o, size);
                }
            }),
        }
    }
    narrow(a.dtype, &mut out);
    // The product has its axes in the order batch, m, n.
    let order: Vec<u8> = [batch, m, n].concat();
    let computed = Array::new(a.dtype, order.iter().map(|l| extent[l]).collect(), out);
    let places: Vec<usize> = c.out.iter().filter_map(|l| order.iter().position(|m| m == l)).collect();
    let s = strides(&computed.shape);
    let in_order = merge(places.iter().map(|p| (computed.shape[*p], s[*p]))).len() == 1;
    if in_order {
        return Ok(Array { shape, ..computed });
    }
    Ok(permuted(&computed, &places))
}

/// Sums in the order of `k` without fused multiply-adds, which gives the same bits on every machine.
fn in_order<T: Elem>(
    x: &[T],
    a: &Matrices,
    y: &[T],
    b: &Matrices,
    out: &mut [T],
    (_, nm, nn, nk): (usize, usize, usize, usize),
) {
    for (g, dst) in out.chunks_mut(nm * nn).enumerate() {
        for (i, row) in dst.chunks_mut(nn).enumerate() {
            for l in 0..nk {
                let v = x[a.starts[g] + i * a.row + l * a.col];
                let base = b.starts[g] + l * b.row;
                row.iter_mut().enumerate().for_each(|(j, o)| *o = o.plus(v.times(y[base + j * b.col])));
            }
        }
    }
}
