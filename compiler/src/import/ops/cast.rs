//! Conversion of element types.

use crate::import::Cx;
use crate::import::op::{Lowered, OpDef, OpError};

fn cast(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    let to =
        cx.dtype_opt("to")?.ok_or_else(|| OpError::model("attribute `to` is required").attribute("to"))?;
    Ok(vec![cx.cast(x, to)?])
}

fn cast_like(cx: &mut Cx) -> Lowered {
    let (x, like) = (cx.input(0)?, cx.input(1)?);
    let to = cx.dtype(like);
    Ok(vec![cx.cast(x, to)?])
}

/// `Cast` and `CastLike`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Cast", &[6, 9, 13, 19, 21, 23, 24, 25, 28], cast).cases(&["test_cast_"]),
    OpDef::new("CastLike", &[15, 19, 21, 23, 24, 25], cast_like).cases(&["test_castlike_"]),
];
