//! `Unique`.

use crate::import::onnx::prelude::*;
use crate::lower::unique::{Unique, unique};

fn decode(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let axis = match cx.int_opt("axis")? {
        Some(axis) => Some(cx.axis(axis, cx.rank(x)).map_err(|e| e.attribute("axis"))?),
        None => None,
    };
    let sorted = cx.flag("sorted", true)?;
    let Unique { values, first, inverse, counts } = unique(cx, x, axis, sorted)?;
    Ok(vec![values, first, inverse, counts])
}

/// `Unique`.
pub const OPS: &[OpDef] = &[OpDef::new("Unique", &[11, 28], decode)
    .cases(&["test_unique_"])
    .notes("compares each element, or slice, with each")];
