//! Writing at indexed places.

use super::gather::indices;
use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::op::{GatherAxis, show};
use wgfc_ir::{BinaryOp, DType, Dim, Op, Poly, ReduceOp, ScalarFn, ScalarNode};

fn reduction(cx: &Cx) -> Result<Option<ReduceOp>, OpError> {
    match cx.string("reduction", "none")?.as_str() {
        "none" => Ok(None),
        "add" => Ok(Some(ReduceOp::Sum)),
        "mul" => Ok(Some(ReduceOp::Prod)),
        "max" => Ok(Some(ReduceOp::Max)),
        "min" => Ok(Some(ReduceOp::Min)),
        other => Err(OpError::model(format!("`{other}`")).attribute("reduction")),
    }
}

fn scatter_elements(cx: &mut Cx) -> Lowered {
    let (data, idx, updates) = (cx.input(0)?, indices(cx, 1)?, cx.input(2)?);
    let rank = cx.rank(data);
    if cx.rank(idx) != rank || cx.rank(updates) != rank {
        let e = OpError::model(format!(
            "indices of type {} and updates of type {} for data of type {}",
            cx.ty(idx),
            cx.ty(updates),
            cx.ty(data)
        ));
        return Err(cx.at_input(1, e));
    }
    for (a, b) in cx.shape(idx).iter().zip(&cx.shape(updates)) {
        cx.require_equal(a, b);
    }
    let axis = cx.int("axis", 0)?;
    let axis = cx.axis(axis, rank)?;
    let vars: Vec<Poly> = (0..rank).map(Poly::var).collect();
    let mut index: Vec<GatherAxis> = vars.iter().cloned().map(GatherAxis::Affine).collect();
    index[axis] = GatherAxis::Data { input: 2, at: vars };
    let reduce = reduction(cx)?;
    Ok(vec![cx.push(Op::Scatter { reduce, index }, &[data, updates, idx])?])
}

/// The last axis of the indices is a position along the data's first axes.
fn scatter_nd(cx: &mut Cx) -> Lowered {
    let (data, idx, updates) = (cx.input(0)?, indices(cx, 1)?, cx.input(2)?);
    let (sd, si, su) = (cx.shape(data), cx.shape(idx), cx.shape(updates));
    let Some(k) = si.last().and_then(|d| d.as_const()).and_then(|k| usize::try_from(k).ok()) else {
        let e =
            OpError::unsupported(format!("indices of shape {}: the last extent must be known", show(&si)));
        return Err(cx.at_input(1, e));
    };
    let q = si.len() - 1;
    if k > sd.len() || k == 0 || su.len() != q + sd.len() - k {
        return Err(OpError::model(format!(
            "indices of shape {} and updates of shape {} for data of shape {}",
            show(&si),
            show(&su),
            show(&sd)
        )));
    }
    for (a, b) in su.iter().zip(si[..q].iter().chain(&sd[k..])) {
        cx.require_equal(a, b);
    }
    let index = (0..sd.len())
        .map(|d| match d.checked_sub(k) {
            None => {
                let at = (0..q).map(Poly::var).chain([Poly::from(d)]).collect();
                GatherAxis::Data { input: 2, at }
            }
            Some(rest) => GatherAxis::Affine(Poly::var(q + rest)),
        })
        .collect();
    let reduce = reduction(cx)?;
    Ok(vec![cx.push(Op::Scatter { reduce, index }, &[data, updates, idx])?])
}

/// Updates go to the positions from a place that each sequence has.
fn tensor_scatter(cx: &mut Cx) -> Lowered {
    let (data, updates) = (cx.input(0)?, cx.input(1)?);
    let (sd, su) = (cx.shape(data), cx.shape(updates));
    if su.len() != sd.len() {
        let e =
            OpError::model(format!("updates of type {} for data of type {}", cx.ty(updates), cx.ty(data)));
        return Err(cx.at_input(1, e));
    }
    let axis = cx.int("axis", -2)?;
    let axis = match cx.axis(axis, sd.len())? {
        0 => return Err(OpError::model("0 is the batch").attribute("axis")),
        a => a,
    };
    for (_, (a, b)) in su.iter().zip(&sd).enumerate().filter(|(d, _)| *d != axis) {
        cx.require_equal(a, b);
    }
    let circular = match cx.string("mode", "linear")?.as_str() {
        "linear" => false,
        "circular" => true,
        other => return Err(OpError::model(format!("`{other}`")).attribute("mode")),
    };
    let start = match cx.opt(2) {
        Some(_) => {
            let at = indices(cx, 2)?;
            let at = cx.cast(at, DType::I64)?;
            cx.reshape(at, vec![sd[0].clone(), Dim::ONE])?
        }
        None => {
            let zero = cx.int_const(DType::I64, 0);
            cx.unsqueeze(zero, &[0, 1])?
        }
    };
    let mut f = ScalarFn::default();
    let i = f.push(ScalarNode::Index(Poly::var(1)));
    let (i, from) = (f.push(ScalarNode::Cast(DType::I64, i)), f.push(ScalarNode::Arg(0)));
    let at = f.push(ScalarNode::Binary(BinaryOp::Add, i, from));
    if circular {
        let size = f.push(ScalarNode::Index(sd[axis].clone()));
        let size = f.push(ScalarNode::Cast(DType::I64, size));
        f.push(ScalarNode::Binary(BinaryOp::Mod, at, size));
    }
    let places = cx.map_to(f, &[start], vec![sd[0].clone(), su[axis].clone()])?;
    let mut index: Vec<GatherAxis> = (0..sd.len()).map(|d| GatherAxis::Affine(Poly::var(d))).collect();
    index[axis] = GatherAxis::Data { input: 2, at: vec![Poly::var(0), Poly::var(axis)] };
    Ok(vec![cx.push(Op::Scatter { reduce: None, index }, &[data, updates, places])?])
}

/// `ScatterElements`, `ScatterND`, `TensorScatter`, and what the first was called.
pub const OPS: &[OpDef] = &[
    OpDef::new("Scatter", &[9], scatter_elements).cases(&["test_scatter_with"]),
    OpDef::new("ScatterElements", &[11, 13, 16, 18], scatter_elements).cases(&["test_scatter_elements_"]),
    OpDef::new("ScatterND", &[11, 13, 16, 18], scatter_nd).cases(&["test_scatternd"]),
    OpDef::new("TensorScatter", &[24], tensor_scatter).cases(&["test_tensorscatter"]),
];
