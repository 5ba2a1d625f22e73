//! Operators that read or change a tensor's shape and leave its elements in order.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::graph::Constraint;
use wgfc_ir::op::show;
use wgfc_ir::{Dim, Poly, Value};

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

/// `0` copies an extent (unless `allowzero`), `-1` is what remains.
fn reshape(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let want = cx.const_dims(1)?;
    let from = cx.shape(x);
    let allow_zero = cx.flag("allowzero", false)?;
    let mut shape: Vec<Dim> = vec![];
    let mut rest = None;
    for (i, d) in want.iter().enumerate() {
        match d.as_const() {
            Some(0) if !allow_zero => match from.get(i) {
                Some(d) => shape.push(d.clone()),
                None => {
                    let e = OpError::model(format!("0 copies axis {i} of a tensor of rank {}", from.len()));
                    return Err(cx.at_input(1, e));
                }
            },
            Some(-1) => {
                if rest.replace(i).is_some() {
                    return Err(cx.at_input(1, OpError::model("-1 stands twice in the shape")));
                }
                shape.push(Dim::ONE);
            }
            Some(c) if c < 0 => {
                return Err(cx.at_input(1, OpError::model(format!("extent {c} in shape {}", show(&want)))));
            }
            _ => shape.push(d.clone()),
        }
    }
    if let Some(i) = rest {
        let (total, known): (Dim, Dim) = (from.iter().product(), shape.iter().product());
        shape[i] = if known.is(0) {
            Dim::ZERO
        } else {
            let q = total.div(&known, &[]);
            if total.as_const().is_some() && known.as_const().is_some() && &q * &known != total {
                return Err(OpError::model(format!(
                    "cannot reshape {} to {}: {known} does not divide {total}",
                    show(&from),
                    show(&want)
                )));
            }
            q
        };
    }
    Ok(vec![cx.reshape(x, shape)?])
}

fn flatten(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let dims = cx.shape(x);
    let axis = cx.int("axis", 1)?;
    // The axis may be the rank itself.
    let axis = if axis == dims.len() as i64 { dims.len() } else { cx.axis(axis, dims.len())? };
    let (a, b): (Dim, Dim) = (dims[..axis].iter().product(), dims[axis..].iter().product());
    Ok(vec![cx.reshape(x, vec![a, b])?])
}

/// Whether two extents were required to be equal.
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
                    "node \"{node}\" (Squeeze) names no axes: those of {} stay, also where they are 1; --dim fixes them",
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
        Some(p) => p.iter().map(|v| cx.axis(*v, rank)).collect::<Result<Vec<_>, _>>().map_err(|_| {
            OpError::model(format!("{p:?} is not a permutation of {rank} axes")).attribute("perm")
        })?,
        None => (0..rank).rev().collect(),
    };
    Ok(vec![cx.transpose(x, &perm)?])
}

/// Broadcasts the tensor and the wanted shape against each other.
fn expand(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let (from, want) = (cx.shape(x), cx.const_dims(1)?);
    let rank = from.len().max(want.len());
    let at = |s: &[Dim], i: usize| (i + s.len()).checked_sub(rank).map_or(Dim::ONE, |j| s[j].clone());
    let mut shape = vec![];
    for i in 0..rank {
        let (a, b) = (at(&from, i), at(&want, i));
        if a == b || b.is(1) {
            shape.push(a);
        } else if a.is(1) {
            shape.push(b);
        } else if a.as_const().is_some() && b.as_const().is_some() {
            return Err(OpError::model(format!("shape {} does not expand to {}", show(&from), show(&want))));
        } else {
            cx.require_equal(&a, &b);
            shape.push(if b.as_const().is_some() { b } else { a });
        }
    }
    Ok(vec![cx.expand(x, &shape)?])
}

fn identity(cx: &mut Cx) -> Lowered {
    Ok(vec![cx.input(0)?])
}

fn concat(cx: &mut Cx) -> Lowered {
    let xs = cx.inputs()?;
    Ok(vec![joined(cx, &xs)?])
}

/// Joined along the attribute `axis`.
pub(super) fn joined(cx: &mut Cx, xs: &[Value]) -> Result<Value, OpError> {
    let first = cx.ty(xs[0]).clone();
    let axis = cx.int_req("axis")?;
    let axis = cx.axis(axis, first.rank()).map_err(|e| e.attribute("axis"))?;
    let mut common = first.shape.clone();
    for (i, x) in xs.iter().enumerate().skip(1) {
        let ty = cx.ty(*x).clone();
        if ty.rank() != first.rank() || ty.dtype != first.dtype {
            return Err(cx.at_input(i, OpError::model(format!("{ty} cannot be joined to {first}"))));
        }
        for d in (0..common.len()).filter(|d| *d != axis) {
            let (a, b) = (common[d].clone(), ty.shape[d].clone());
            if a == b {
                continue;
            }
            if a.as_const().is_some() && b.as_const().is_some() {
                let e = OpError::model(format!("{ty} cannot be joined to {first} along axis {axis}"));
                return Err(cx.at_input(i, e));
            }
            cx.require_equal(&a, &b);
            if b.as_const().is_some() {
                common[d] = b;
            }
        }
    }
    let mut parts = vec![];
    for x in xs {
        let mut want = common.clone();
        want[axis] = cx.shape(*x)[axis].clone();
        let index = (0..want.len()).map(Poly::var).collect();
        parts.push(cx.view(*x, want, index)?);
    }
    Ok(cx.concat(&parts, axis)?)
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
