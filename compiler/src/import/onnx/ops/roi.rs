//! `RoiAlign` and `MaxRoiPool`.

use crate::import::onnx::prelude::*;
use crate::lower::roi::{self, Align};

fn align(cx: &mut Cx) -> Lowered {
    let (x, rois, batch) = (cx.input_of_rank(0, 4)?, cx.input_of_rank(1, 2)?, cx.input_of_rank(2, 1)?);
    let largest = match cx.string("mode", "avg")?.as_str() {
        "avg" => false,
        "max" => true,
        other => return Err(OpError::model(format!("unknown value `{other}`")).attribute("mode")),
    };
    let samples = match cx.int("sampling_ratio", 0)? {
        v if (1..=1 << 10).contains(&v) => Some(v),
        0 => None,
        v => return Err(OpError::model(format!("{v} samples; 0 to 1024 are supported")).attribute("sampling_ratio")),
    };
    let half_pixel = match cx.string("coordinate_transformation_mode", "half_pixel")?.as_str() {
        _ if cx.since < 16 => false,
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => {
            let e = OpError::model(format!("unknown value `{other}`"));
            return Err(e.attribute("coordinate_transformation_mode"));
        }
    };
    let extent = |name: &str| match cx.int(name, 1)? {
        v if (1..=1 << 20).contains(&v) => Ok(v),
        v => Err(OpError::model(format!("extent {v} is not in 1..=2^20")).attribute(name)),
    };
    let out = [extent("output_height")?, extent("output_width")?];
    let scale = cx.float("spatial_scale", 1.0)?.into();
    Ok(vec![roi::align(cx, x, rois, batch, &Align { out, samples, scale, half_pixel, largest })?])
}

fn max_pool(cx: &mut Cx) -> Lowered {
    let (x, rois) = (cx.input_of_rank(0, 4)?, cx.input_of_rank(1, 2)?);
    let pooled = cx.ints_req("pooled_shape")?;
    let [height, width] = pooled[..] else {
        return Err(OpError::model(format!("{} extents, not 2", pooled.len())).attribute("pooled_shape"));
    };
    if [height, width].iter().any(|e| !(1..=1 << 20).contains(e)) {
        return Err(OpError::model(format!("extents {pooled:?} are not in 1..=2^20")).attribute("pooled_shape"));
    }
    let scale = cx.float("spatial_scale", 1.0)?;
    Ok(vec![roi::max_pool(cx, x, rois, [height, width], scale.into())?])
}

/// `MaxRoiPool` and `RoiAlign`.
pub const OPS: &[OpDef] = &[
    OpDef::new("MaxRoiPool", &[1, 22], max_pool).cases(&["max_roi_pool"]),
    OpDef::new("RoiAlign", &[10, 16, 22], align)
        .cases(&["test_roialign_"])
        .notes("`sampling_ratio` 0 needs known extents, and takes no region for larger than the input"),
];
