//! Operators that read or change a tensor's shape and keep the order of its elements.

use crate::import::onnx::prelude::*;
use crate::lower::shape;
use wgfc_ir::graph::Constraint;
use wgfc_ir::{Dim, Value};

/// The extents from `start` to `end`, as i64.
fn shape(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let dims = cx.shape(x);
    let rank = dims.len() as i64;
    let clamp = |v: i64| (if v < 0 { v.saturating_add(rank) } else { v }).clamp(0, rank) as usize;
    let (start, end) = (clamp(cx.int("start", 0)?), clamp(cx.int("end", rank)?));
    let part = dims.get(start..end).unwrap_or_default().to_vec();
    Ok(vec![cx.dims_value(&part, &[part.len()])?])
}

fn size(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let n = cx.ty(x).numel();
    Ok(vec![cx.dims_value(&[n], &[])?])
}

/// In the requested shape, 0 copies an extent (unless `allowzero` is set), and -1 stands for the remaining elements.
fn reshape(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let mut want = cx.const_dims(1)?;
    cx.gives(1, "shape");
    let from = cx.shape(x);
    if !cx.flag("allowzero", false)? {
        for (i, d) in want.iter_mut().enumerate().filter(|(_, d)| d.is(0)) {
            let Some(copied) = from.get(i) else {
                let e = OpError::model(format!("0 copies axis {i} of a tensor of rank {}", from.len()));
                return Err(cx.at_input(1, e));
            };
            *d = copied.clone();
        }
    }
    Ok(vec![shape::reshape(cx, x, &want)?])
}

fn flatten(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axis = cx.first_axis(x, 1)?;
    Ok(vec![shape::flatten(cx, x, axis)?])
}

/// Whether a constraint requires two extents to be equal.
fn is_required(constraints: &[Constraint], a: &Dim, b: &Dim) -> bool {
    constraints.iter().any(|c| (&c.a, &c.b) == (a, b) || (&c.b, &c.a) == (a, b))
}

fn squeeze(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let dims = cx.shape(x);
    let axes = match cx.axes_input_or_attr(1, dims.len())? {
        Some(axes) => axes,
        None => {
            let one = |d: &Dim| d.is(1) || is_required(&cx.graph.constraints, d, &Dim::ONE);
            let free: Vec<String> =
                dims.iter().filter(|d| d.as_const().is_none() && !one(d)).map(Dim::to_string).collect();
            let axes = (0..dims.len()).filter(|i| one(&dims[*i])).collect();
            if !free.is_empty() {
                let node = cx.node.name.clone();
                cx.warn(format!(
                    "node \"{node}\" (Squeeze) lists no axes; the axes of size {} are kept even if they are 1 at run time; fix them with --dim",
                    free.join(", ")
                ));
            }
            axes
        }
    };
    Ok(vec![cx.squeeze(x, &axes)?])
}

fn unsqueeze(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let given = match cx.opt(1) {
        Some(_) => cx.const_ints(1)?,
        None => cx.ints_req("axes")?,
    };
    let rank = cx.rank(x) + given.len();
    let axes = cx.axes(&given, rank)?;
    Ok(vec![cx.unsqueeze(x, &axes)?])
}

fn transpose(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let perm = match cx.ints("perm")? {
        Some(p) => p.iter().map(|v| cx.axis(*v, rank)).collect::<Result<Vec<_>>>().map_err(|_| {
            OpError::model(format!("{p:?} is not a permutation of {rank} axes")).attribute("perm")
        })?,
        None => (0..rank).rev().collect(),
    };
    Ok(vec![cx.transpose(x, &perm)?])
}

fn expand(cx: &mut Cx) -> Lowered {
    let (x, want) = (cx.input(0)?, cx.const_dims(1)?);
    Ok(vec![shape::expand(cx, x, &want)?])
}

fn identity(cx: &mut Cx) -> Lowered {
    Ok(vec![cx.input(0)?])
}

fn concat(cx: &mut Cx) -> Lowered {
    let xs = cx.inputs()?;
    Ok(vec![joined(cx, &xs)?])
}

/// Concatenates tensors along attribute `axis`.
pub(super) fn joined(cx: &mut Cx, xs: &[Value]) -> Result<Value> {
    let axis = cx.int_req("axis")?;
    let rank = xs.first().map_or(0, |x| cx.rank(*x));
    let axis = cx.axis(axis, rank).map_err(|e| e.attribute("axis"))?;
    shape::concat(cx, xs, axis)
}

/// Operators on shapes.
pub const OPS: &[OpDef] = &[
    OpDef::new("Concat", &[4, 11, 13], concat).cases(&["test_concat_"]),
    OpDef::new("Expand", &[8, 13], expand).cases(&["test_expand_"]),
    OpDef::new("Flatten", &[1, 9, 11, 13, 21, 23, 24, 25], flatten).cases(&["test_flatten_"]),
    OpDef::new("Identity", &[1, 13, 14, 16, 19, 21, 23, 24, 25], identity)
        .cases(&["test_identity"])
        .notes("tensors only"),
    OpDef::new("Reshape", &[5, 13, 14, 19, 21, 23, 24, 25], reshape).cases(&["test_reshape_"]),
    OpDef::new("Shape", &[1, 13, 15, 19, 21, 23, 24, 25], shape).cases(&["test_shape"]),
    OpDef::new("Size", &[1, 13, 19, 21, 23, 24, 25], size).cases(&["test_size"]),
    OpDef::new("Squeeze", &[1, 11, 13, 21, 23, 24, 25], squeeze).cases(&["test_squeeze"]),
    OpDef::new("Transpose", &[1, 13, 21, 23, 24, 25], transpose).cases(&["test_transpose"]),
    OpDef::new("Unsqueeze", &[1, 11, 13, 21, 23, 24, 25], unsqueeze).cases(&["test_unsqueeze"]),
];
