//! `NonMaxSuppression`.

use crate::import::onnx::prelude::*;
use crate::lower::nms::{self, Suppress};

fn suppress(cx: &mut Cx) -> Lowered {
    let (boxes, scores) = (cx.input_of_rank(0, 3)?, cx.input_of_rank(1, 3)?);
    let centred = match cx.int("center_point_box", 0)? {
        0 => false,
        1 => true,
        other => return Err(OpError::model(format!("unknown value {other}")).attribute("center_point_box")),
    };
    let p = Suppress { most: cx.opt(2), share: cx.opt(3), least: cx.opt(4), centred };
    Ok(vec![nms::suppress(cx, boxes, scores, &p)?])
}

/// `NonMaxSuppression`.
pub const OPS: &[OpDef] =
    &[OpDef::new("NonMaxSuppression", &[10, 11], suppress).cases(&["test_nonmaxsuppression_"])];
