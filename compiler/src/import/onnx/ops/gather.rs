//! Reading at indexed places.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::op::{GatherAxis, show};
use wgfc_ir::{DType, Op, Poly, Value};

/// Indices must be i32 or i64.
pub(super) fn indices(cx: &Cx, i: usize) -> Result<Value, OpError> {
    let v = cx.input(i)?;
    match cx.dtype(v) {
        DType::I32 | DType::I64 => Ok(v),
        _ => Err(cx.at_input(i, OpError::model(format!("indices of type {}", cx.ty(v))))),
    }
}

fn gather(cx: &mut Cx) -> Lowered {
    let (data, idx) = (cx.input(0)?, indices(cx, 1)?);
    let rank = cx.rank(data);
    let axis = cx.int("axis", 0)?;
    let axis = cx.axis(axis, rank)?;
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
        return Ok(vec![cx.view(data, shape, index)?]);
    }
    Ok(vec![cx.take(data, idx, axis)?])
}

/// Variables of axes behind one that becomes `n` axes.
fn shift(rank: usize, n: usize) -> Vec<Poly> {
    (0..rank).map(|d| Poly::var((d + n).saturating_sub(1))).collect()
}

/// First place and step, where the indices (at most one axis of them) are known and evenly spaced.
fn known_places(cx: &mut Cx, data: Value, idx: Value, axis: usize) -> Result<Option<(Poly, i64)>, OpError> {
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
            return Err(cx.at_input(1, e));
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

fn gather_elements(cx: &mut Cx) -> Lowered {
    let (data, idx) = (cx.input(0)?, indices(cx, 1)?);
    let rank = cx.rank(data);
    if cx.rank(idx) != rank {
        let e = OpError::model(format!("indices of type {} for data of type {}", cx.ty(idx), cx.ty(data)));
        return Err(cx.at_input(1, e));
    }
    let axis = cx.int("axis", 0)?;
    let axis = cx.axis(axis, rank)?;
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
    Ok(vec![cx.push(Op::Gather { shape, index }, &[data, idx])?])
}

/// The last axis of the indices is a position along the data's axes behind `batch_dims`.
fn gather_nd(cx: &mut Cx) -> Lowered {
    let (data, idx) = (cx.input(0)?, indices(cx, 1)?);
    let (sd, si) = (cx.shape(data), cx.shape(idx));
    let batch = usize::try_from(cx.int("batch_dims", 0)?)
        .map_err(|_| OpError::model("negative batch_dims").attribute("batch_dims"))?;
    let Some(k) = si.last().and_then(|d| d.as_const()).and_then(|k| usize::try_from(k).ok()) else {
        let e =
            OpError::unsupported(format!("indices of shape {}: the last extent must be known", show(&si)));
        return Err(cx.at_input(1, e));
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
    Ok(vec![cx.push(Op::Gather { shape, index }, &[data, idx])?])
}

/// `Gather`, `GatherElements`, `GatherND`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Gather", &[1, 11, 13], gather).cases(&[
        "test_gather_0",
        "test_gather_1",
        "test_gather_2d",
        "test_gather_negative",
    ]),
    OpDef::new("GatherElements", &[11, 13], gather_elements).cases(&["test_gather_elements_"]),
    OpDef::new("GatherND", &[11, 12, 13], gather_nd).cases(&["test_gathernd_"]),
];
