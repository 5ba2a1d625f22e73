//! Reading at indexed positions.

use super::{Lowering, OpError, Result};
use wgfc_ir::op::{GatherAxis, show};
use wgfc_ir::{Op, Poly, Value};

/// Gathers slices along an axis; the axes of the indices replace it. Indices that are known and evenly spaced become a
/// view.
pub fn gather(cx: &mut Lowering, data: Value, idx: Value, axis: usize) -> Result {
    let idx = cx.require_indices(idx)?;
    let rank = cx.rank(data);
    if let Some(at) = known_places(cx, data, idx, axis)? {
        let mut shape = cx.shape(data);
        let mut index: Vec<Poly> = (0..rank).map(Poly::var).collect();
        let inner = cx.shape(idx);
        index[axis] = at.0 + &(Poly::var(axis) * at.1);
        for i in index.iter_mut().skip(axis + 1) {
            *i = i.subst_vars(&shift(rank, inner.len()), &[]);
        }
        if inner.is_empty() {
            index[axis] = index[axis].subst_vars(&vec![Poly::ZERO; axis + 1], &[]);
        }
        shape.splice(axis..=axis, inner);
        return Ok(cx.view(data, shape, index)?);
    }
    Ok(cx.take(data, idx, axis)?)
}

/// The index variables of `rank` axes after an axis that is replaced by `n` axes.
fn shift(rank: usize, n: usize) -> Vec<Poly> {
    (0..rank).map(|d| Poly::var((d + n).saturating_sub(1))).collect()
}

/// The first position and the step, if the indices (of rank 0 or 1) are known and evenly spaced.
fn known_places(cx: &mut Lowering, data: Value, idx: Value, axis: usize) -> Result<Option<(Poly, i64)>> {
    if cx.rank(idx) > 1 {
        return Ok(None);
    }
    let Some(places) = cx.dims(idx) else { return Ok(None) };
    let extent = cx.shape(data)[axis].clone();
    let mut at = vec![];
    for p in &places {
        let p = if p.proves_nonneg(&[]) {
            p.clone()
        } else if (&-p - 1).proves_nonneg(&[]) {
            p + &extent
        } else {
            return Ok(None);
        };
        if let (Some(c), Some(n)) = (p.as_const(), extent.as_const())
            && !(0..n).contains(&c)
        {
            let e = OpError::model(format!("index {c} is outside axis {axis} of {}", show(&cx.shape(data))));
            return Err(e.operand(idx));
        }
        at.push(p);
    }
    let Some(first) = at.first().cloned() else { return Ok(None) };
    let step = match at.get(1) {
        None => 0,
        Some(second) => match (second - &first).as_const() {
            Some(s) => s,
            None => return Ok(None),
        },
    };
    let even = at.windows(2).all(|w| (&w[1] - &w[0]).is(step));
    Ok(even.then_some((first, step)))
}

/// GatherElements: each index selects the element along an axis; the other coordinates are those of the index itself.
pub fn elements(cx: &mut Lowering, data: Value, idx: Value, axis: usize) -> Result {
    let idx = cx.require_indices(idx)?;
    let rank = cx.rank(data);
    if cx.rank(idx) != rank {
        let e = OpError::model(format!("indices of type {} for data of type {}", cx.ty(idx), cx.ty(data)));
        return Err(e.operand(idx));
    }
    let vars: Vec<Poly> = (0..rank).map(Poly::var).collect();
    let index = (0..rank)
        .map(|d| {
            if d == axis {
                GatherAxis::Data { input: 1, at: vars.clone() }
            } else {
                GatherAxis::Affine(Poly::var(d))
            }
        })
        .collect();
    let shape = cx.shape(idx);
    Ok(cx.push(Op::Gather { shape, index }, &[data, idx])?)
}

/// GatherND: the last axis of the indices holds coordinates along the axes of the data after the first `batch` ones.
pub fn places(cx: &mut Lowering, data: Value, idx: Value, batch: usize) -> Result {
    let idx = cx.require_indices(idx)?;
    let (sd, si) = (cx.shape(data), cx.shape(idx));
    let Some(k) = si.last().and_then(|d| d.as_const()).and_then(|k| usize::try_from(k).ok()) else {
        let e = OpError::symbolic(format!("indices of shape {}: the last extent must be known", show(&si)));
        return Err(e.operand(idx));
    };
    let q = si.len() - 1;
    if batch + k > sd.len() || batch > q || k == 0 {
        return Err(OpError::model(format!(
            "indices of shape {} for data of shape {} with batch_dims {batch}",
            show(&si),
            show(&sd)
        )));
    }
    let mut shape = si[..q].to_vec();
    shape.extend(sd[batch + k..].iter().cloned());
    let index = (0..sd.len())
        .map(|d| {
            if d < batch {
                GatherAxis::Affine(Poly::var(d))
            } else if d < batch + k {
                let at = (0..q).map(Poly::var).chain([Poly::from(d - batch)]).collect();
                GatherAxis::Data { input: 1, at }
            } else {
                GatherAxis::Affine(Poly::var(q + d - batch - k))
            }
        })
        .collect();
    Ok(cx.push(Op::Gather { shape, index }, &[data, idx])?)
}
