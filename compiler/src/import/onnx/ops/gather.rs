//! Reads at indices.

use crate::import::onnx::prelude::*;
use crate::lower::gather;

fn gather(cx: &mut Cx) -> Lowered {
    let (data, idx) = (cx.input(0)?, cx.input(1)?);
    let axis = cx.axis_attr(data, 0)?;
    Ok(vec![gather::gather(cx, data, idx, axis)?])
}

fn gather_elements(cx: &mut Cx) -> Lowered {
    let (data, idx) = (cx.input(0)?, cx.input(1)?);
    let axis = cx.axis_attr(data, 0)?;
    Ok(vec![gather::elements(cx, data, idx, axis)?])
}

fn gather_nd(cx: &mut Cx) -> Lowered {
    let (data, idx) = (cx.input(0)?, cx.input(1)?);
    let batch = usize::try_from(cx.int("batch_dims", 0)?)
        .map_err(|_| OpError::model("negative batch_dims").attribute("batch_dims"))?;
    Ok(vec![gather::places(cx, data, idx, batch)?])
}

/// `Gather`, `GatherElements`, `GatherND`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Gather", &[1, 11, 13], gather).cases(&[
        "test_gather_0",
        "test_gather_1",
        "test_gather_2d",
        "test_gather_negative",
    ]),
    OpDef::new("GatherElements", &[11, 13], gather_elements).cases(&["test_gather_elements_"]),
    OpDef::new("GatherND", &[11, 12, 13], gather_nd).cases(&["test_gathernd_"]),
];
