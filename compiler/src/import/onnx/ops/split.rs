//! Splitting, repeating and padding along axes.

use crate::import::onnx::prelude::*;
use crate::lower::Size;
use crate::lower::split::{self, Blocks, Padding};
use wgfc_ir::{Dim, Poly, Scalar, Value};

/// Sizes are an attribute before opset 13 and an input from then on; without them the parts are equal, with a smaller last one.
fn split(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axis = cx.axis_attr(x, 0)?;
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
            let extent = cx.shape(x)[axis].clone();
            let part = extent.ceil_div(parts);
            let mut sizes = vec![part.clone(); parts as usize - 1];
            sizes.push(&extent - &(&part * (parts - 1)));
            sizes
        }
    };
    split::split(cx, x, axis, &sizes)
}

fn tile(cx: &mut Cx) -> Lowered {
    let (x, repeats) = (cx.input(0)?, cx.const_dims(1)?);
    Ok(vec![split::tile(cx, x, &repeats)?])
}

/// Padding; amounts and fill value are attributes before opset 11 and inputs from then on.
fn pad(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
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
    let padding = padding(cx, x)?;
    Ok(vec![split::pad(cx, x, &before, &after, padding)?])
}

fn padding(cx: &mut Cx, x: Value) -> Result<Padding> {
    let dtype = cx.dtype(x);
    Ok(match cx.string("mode", "constant")?.as_str() {
        "constant" => match cx.opt(2) {
            Some(v) => match cx.splat(v) {
                Some(s) => Padding::Constant(Scalar { dtype, ..s }),
                None => Padding::Value(v),
            },
            None => Padding::Constant(Scalar::from_f64(dtype, f64::from(cx.float("value", 0.0)?))),
        },
        "edge" => Padding::Edge,
        "reflect" => Padding::Reflect,
        "wrap" => Padding::Wrap,
        other => return Err(OpError::model(format!("unknown value `{other}`")).attribute("mode")),
    })
}

fn trilu(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let k = match cx.opt(1) {
        Some(v) => {
            let known = cx.dims(v).and_then(|d| d.into_iter().next()).filter(split::is_near);
            known.map_or(Size::Computed(v), Size::Known)
        }
        None => Size::Known(Poly::ZERO),
    };
    let upper = cx.flag("upper", true)?;
    Ok(vec![split::triangle(cx, x, &k, upper)?])
}

/// Attributes `blocksize` and `mode`.
fn blocks(cx: &Cx) -> Result<(i64, Blocks)> {
    let size = match cx.int_req("blocksize")? {
        b if (1..=1 << 20).contains(&b) => b,
        b => return Err(OpError::model(format!("blocks of {b} elements")).attribute("blocksize")),
    };
    match cx.string("mode", "DCR")?.as_str() {
        "DCR" => Ok((size, Blocks::First)),
        "CRD" => Ok((size, Blocks::Last)),
        other => Err(OpError::model(format!("mode `{other}`")).attribute("mode")),
    }
}

fn depth_to_space(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 4)?;
    let (size, blocks) = blocks(cx)?;
    Ok(vec![split::depth_to_space(cx, x, size, blocks)?])
}

fn space_to_depth(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 4)?;
    let (size, blocks) = blocks(cx)?;
    Ok(vec![split::space_to_depth(cx, x, size, blocks)?])
}

/// Splitting, repeating, padding, and rearrangement.
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
