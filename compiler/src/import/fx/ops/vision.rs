//! Operators of torchvision: RoI align and non-maximum suppression.

use super::super::prelude::*;
use crate::lower::nms::{self, Suppress};
use crate::lower::roi::{self, Align};
use wgfc_ir::Poly;

pub const OPS: &[OpDef] = &[
    OpDef::new("torchvision.nms.default", suppressed)
        .notes("In as many steps as there are boxes. How many are chosen, the run computes."),
    OpDef::new("torchvision.roi_align.default", aligned)
        .notes("`sampling_ratio` 0 needs known extents, and takes no region for larger than the input."),
];

/// RoI align with regions `[R, 5]`: the index of an image, and the coordinates x1, y1, x2, y2.
fn aligned(cx: &mut Cx) -> Lowered {
    let (x, rois) = (cx.tensor("input")?, cx.tensor("rois")?);
    let rois = cx.require_rank(rois, 2)?;
    let extent = |cx: &Cx, name: &'static str| match cx.int(name)? {
        v if (1..=1 << 20).contains(&v) => Ok(v),
        v => Err(OpError::model(format!("extent {v} is not in 1..=2^20")).param(name)),
    };
    let out = [extent(cx, "pooled_height")?, extent(cx, "pooled_width")?];
    let samples = Some(cx.int("sampling_ratio")?).filter(|v| *v > 0);
    if samples.is_some_and(|v| v > 1 << 10) {
        return Err(OpError::model("more than 1024 samples along a bin").param("sampling_ratio"));
    }
    let p = Align {
        out,
        samples,
        scale: cx.float("spatial_scale")?,
        half_pixel: cx.flag("aligned")?,
        largest: false,
    };
    let batch = cx.slice(rois, 1, &Poly::ZERO, 1, &Dim::ONE)?;
    let batch = cx.squeeze(batch, &[1])?;
    let batch = cx.cast(batch, DType::I32)?;
    let bounds = cx.slice(rois, 1, &Poly::ONE, 1, &4i64.into())?;
    Ok(vec![roi::align(cx, x, bounds, batch, &p)?])
}

/// The indices of the boxes that are kept, by descending score.
fn suppressed(cx: &mut Cx) -> Lowered {
    let (boxes, scores) = (cx.tensor("dets")?, cx.tensor("scores")?);
    let (boxes, scores) = (cx.require_rank(boxes, 2)?, cx.require_rank(scores, 1)?);
    let share = cx.float("iou_threshold")?;
    let (boxes, scores) = (cx.converted(boxes, DType::F32)?, cx.converted(scores, DType::F32)?);
    let (boxes, scores) = (cx.unsqueeze(boxes, &[0])?, cx.unsqueeze(scores, &[0, 1])?);
    let most = cx.lowering.int(DType::I64, i64::from(i32::MAX));
    let share = cx.scalar(DType::F32, share);
    let p = Suppress { most: Some(most), share: Some(share), least: None, centred: false };
    let chosen = nms::suppress(cx, boxes, scores, &p)?;
    let kept = cx.slice(chosen, 1, &2i64.into(), 1, &Dim::ONE)?;
    Ok(vec![cx.squeeze(kept, &[1])?])
}
