//! Cutting, repeating and padding along axes.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::{BinaryOp, DType, Dim, Poly, Scalar, Value};

/// Sizes are an attribute at first, an input from 13 on; without them equal parts, the last one smaller.
fn split(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axis = cx.axis(cx.int("axis", 0)?, cx.rank(x))?;
    let extent = cx.shape(x)[axis].clone();
    let sizes: Vec<Dim> = match cx.ints("split")? {
        Some(s) => s.into_iter().map(Dim::from).collect(),
        None if cx.opt(1).is_some() => cx.const_dims(1)?,
        None => {
            let count = cx.output_count() as i64;
            let parts = cx.int("num_outputs", count)?;
            if parts != count || parts < 1 {
                let e = OpError::model(format!("{parts}, and the node has {count} outputs"));
                return Err(e.attribute("num_outputs"));
            }
            let part = extent.ceil_div(parts);
            let mut sizes = vec![part.clone(); parts as usize - 1];
            sizes.push(&extent - &(&part * (parts - 1)));
            sizes
        }
    };
    let total: Dim = sizes.iter().cloned().sum();
    if total != extent && total.as_const().is_some() && extent.as_const().is_some() {
        return Err(OpError::model(format!("the parts have {total} elements, the axis has {extent}")));
    }
    cx.require_equal(&total, &extent);
    let mut start = Poly::ZERO;
    let mut out = vec![];
    for s in &sizes {
        if s.as_const().is_some_and(|s| s < 0) {
            return Err(OpError::model(format!("a part of {s} elements")));
        }
        out.push(cx.slice(x, axis, &start, 1, s)?);
        start = &start + s;
    }
    Ok(out)
}

fn tile(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let repeats = cx.const_dims(1)?;
    let from = cx.shape(x);
    if repeats.len() != from.len() {
        return Err(OpError::model(format!("{} repeats for {} axes", repeats.len(), from.len())));
    }
    let shape: Vec<Dim> = from.iter().zip(&repeats).map(|(d, r)| d * r).collect();
    let index = from
        .iter()
        .enumerate()
        .map(|(i, d)| if d.is(0) { Poly::var(i) } else { Poly::var(i).modulo(d, &shape) })
        .collect();
    Ok(vec![cx.view(x, shape, index)?])
}

/// Constant, edge, reflect and wrap padding; amounts may be negative (cropping).
fn pad(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let from = cx.shape(x);
    let rank = from.len();
    let given: Vec<Dim> = match cx.ints("pads")? {
        Some(p) => p.into_iter().map(Dim::from).collect(),
        None => cx.const_dims(1)?,
    };
    let axes: Vec<usize> = match cx.opt(3) {
        Some(_) => {
            let a = cx.const_ints(3)?;
            cx.axes(&a, rank)?
        }
        None => (0..rank).collect(),
    };
    if given.len() != 2 * axes.len() {
        return Err(OpError::model(format!("{} pads for {} axes", given.len(), axes.len())));
    }
    let (mut before, mut after) = (vec![Dim::ZERO; rank], vec![Dim::ZERO; rank]);
    for (i, a) in axes.iter().enumerate() {
        before[*a] = given[i].clone();
        after[*a] = given[axes.len() + i].clone();
    }
    let dtype = cx.dtype(x);
    let mode = cx.string("mode", "constant")?;
    if !["constant", "edge", "reflect", "wrap"].contains(&mode.as_str()) {
        return Err(OpError::model(format!("`{mode}`")).attribute("mode"));
    }
    if mode == "constant" {
        let fill = match cx.opt(2) {
            Some(v) => match cx.splat(v) {
                Some(s) => s,
                None => return pad_with(cx, x, &before, &after, v),
            },
            None => Scalar::from_f64(dtype, f64::from(cx.float("value", 0.0)?)),
        };
        return Ok(vec![cx.pad(x, &before, &after, Scalar { dtype, ..fill })?]);
    }
    let shape: Vec<Dim> = from.iter().zip(&before).zip(&after).map(|((d, b), a)| d + b + a).collect();
    let mut index = vec![];
    for (i, d) in from.iter().enumerate() {
        if d.is(0) && !(before[i].is(0) && after[i].is(0)) {
            let e =
                format!("mode `{mode}` has nothing to repeat along axis {i} of {}, which is empty", cx.ty(x));
            return Err(OpError::model(e).attribute("mode"));
        }
        let p = &Poly::var(i) - &before[i];
        let last = d - &Poly::ONE;
        index.push(if before[i].is(0) && after[i].is(0) {
            Poly::var(i)
        } else {
            match mode.as_str() {
                "edge" => p.max_of(&Poly::ZERO, &shape).min_of(&last, &shape),
                "wrap" => p.modulo(d, &shape),
                _ => {
                    // A triangle wave of period 2(d − 1).
                    let period = (&last * 2).max_of(&Poly::ONE, &[]);
                    let m = p.modulo(&period, &shape);
                    m.min_of(&(&period - &m), &shape)
                }
            }
        });
    }
    Ok(vec![cx.view(x, shape, index)?])
}

/// Pads with a value that only a run knows.
fn pad_with(cx: &mut Cx, x: Value, before: &[Dim], after: &[Dim], value: Value) -> Lowered {
    if cx.dtype(value) != cx.dtype(x) || !matches!(cx.ty(value).numel().as_const(), Some(1) | None) {
        let e = OpError::model(format!("a value of type {} for {}", cx.ty(value), cx.ty(x)));
        return Err(cx.at_input(2, e));
    }
    let value = cx.reshape(value, vec![])?;
    let from = cx.shape(x);
    let inside = cx.full(&from, Scalar::bool(true))?;
    let inside = cx.pad(inside, before, after, Scalar::bool(false))?;
    let zero = Scalar::from_i64(cx.dtype(x), 0);
    let x = cx.pad(x, before, after, zero)?;
    Ok(vec![cx.select(inside, x, value)?])
}

/// The triangle below or above a diagonal, zero elsewhere.
fn trilu(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let shape = cx.shape(x);
    let rank = shape.len();
    if rank < 2 {
        return Err(OpError::model("needs a matrix"));
    }
    let k = match cx.opt(1) {
        Some(v) => cx.dims(v).and_then(|d| d.into_iter().next()),
        None => Some(Poly::ZERO),
    };
    let off = &Poly::var(rank - 1) - &Poly::var(rank - 2);
    let near = |k: &Poly| k.as_const().is_none_or(|k| k.unsigned_abs() < 1 << 30);
    let (d, k) = match k.filter(near) {
        Some(k) => (cx.iota(&shape, &off - &k, DType::I32)?, cx.int_const(DType::I32, 0)),
        // What a run computes, or no index expression reaches.
        None => {
            let k = cx.input(1)?;
            (cx.iota(&shape, off, DType::I64)?, cx.reshape(k, vec![])?)
        }
    };
    let upper = cx.flag("upper", true)?;
    let keep = cx.binary(if upper { BinaryOp::Ge } else { BinaryOp::Le }, d, k)?;
    let dtype = cx.dtype(x);
    let empty = cx.int_const(dtype, 0);
    Ok(vec![cx.select(keep, x, empty)?])
}

/// Attribute `blocksize`.
fn block(cx: &Cx) -> Result<i64, OpError> {
    match cx.int_req("blocksize")? {
        b if (1..=1 << 20).contains(&b) => Ok(b),
        b => Err(OpError::model(format!("blocks of {b} elements")).attribute("blocksize")),
    }
}

/// `[n, b·b·c, h, w]` to `[n, c, h·b, w·b]`.
fn depth_to_space(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 4)?;
    let s = cx.shape(x);
    let b = block(cx)?;
    let c = s[1].div(&Poly::constant(b * b), &[]);
    let b = Dim::from(b);
    let (split, perm) = match cx.string("mode", "DCR")?.as_str() {
        "DCR" => (vec![s[0].clone(), b.clone(), b.clone(), c.clone()], [0, 3, 4, 1, 5, 2]),
        "CRD" => (vec![s[0].clone(), c.clone(), b.clone(), b.clone()], [0, 1, 4, 2, 5, 3]),
        other => return Err(OpError::model(format!("mode `{other}`")).attribute("mode")),
    };
    let mut shape = split;
    shape.extend([s[2].clone(), s[3].clone()]);
    let y = cx.reshape(x, shape)?;
    let y = cx.transpose(y, &perm)?;
    Ok(vec![cx.reshape(y, vec![s[0].clone(), c, &s[2] * &b, &s[3] * &b])?])
}

/// `[n, c, h, w]` to `[n, b·b·c, h/b, w/b]`.
fn space_to_depth(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 4)?;
    let s = cx.shape(x);
    let b = block(cx)?;
    let perm = match cx.string("mode", "DCR")?.as_str() {
        "DCR" => &[0, 3, 5, 1, 2, 4],
        "CRD" => &[0, 1, 3, 5, 2, 4],
        other => return Err(OpError::model(format!("mode `{other}`")).attribute("mode")),
    };
    let d = Poly::constant(b);
    let (h, w) = (s[2].div(&d, &[]), s[3].div(&d, &[]));
    let y = cx.reshape(x, vec![s[0].clone(), s[1].clone(), h.clone(), d.clone(), w.clone(), d])?;
    let y = cx.transpose(y, perm)?;
    Ok(vec![cx.reshape(y, vec![s[0].clone(), &s[1] * (b * b), h, w])?])
}

/// Cutting, repeating, padding, rearranging.
pub const OPS: &[OpDef] = &[
    OpDef::new("DepthToSpace", &[1, 11, 13], depth_to_space).cases(&["test_depthtospace"]),
    OpDef::new("Pad", &[1, 2, 11, 13, 18, 19, 21, 23, 24, 25], pad).cases(&[
        "test_constant_pad",
        "test_edge_pad",
        "test_reflect_pad",
        "test_wrap_pad",
    ]),
    OpDef::new("SpaceToDepth", &[1, 13], space_to_depth).cases(&["test_spacetodepth"]),
    OpDef::new("Split", &[1, 2, 11, 13, 18], split).cases(&["test_split_"]),
    OpDef::new("Tile", &[6, 13], tile).cases(&["test_tile"]),
    OpDef::new("Trilu", &[14], trilu).cases(&["test_tril", "test_triu"]),
];
