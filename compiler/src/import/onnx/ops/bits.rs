//! Operators on the bits of elements.

use crate::import::onnx::prelude::*;
use crate::lower::elementwise::{self, Shift};

fn shift(cx: &mut Cx) -> Lowered {
    let (x, by) = (cx.input(0)?, cx.input(1)?);
    let direction = match cx.string_req("direction")?.as_str() {
        "LEFT" => Shift::Left,
        "RIGHT" => Shift::Right,
        other => {
            let e = format!("`{other}` is neither `LEFT` nor `RIGHT`");
            return Err(OpError::model(e).attribute("direction"));
        }
    };
    Ok(vec![elementwise::shift(cx, x, by, direction)?])
}

fn bit_cast(cx: &mut Cx) -> Lowered {
    let (x, to) = (cx.input(0)?, cx.dtype_req("to")?);
    Ok(vec![elementwise::bit_cast(cx, x, to)?])
}

/// `BitCast` and `BitShift`.
pub const OPS: &[OpDef] = &[
    OpDef::new("BitCast", &[26], bit_cast).cases(&["test_bitcast_"]),
    OpDef::new("BitShift", &[11, 28], shift).cases(&["test_bitshift_"]),
];
