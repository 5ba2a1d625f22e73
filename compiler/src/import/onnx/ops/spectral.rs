//! Operators for spectral analysis: window functions, mel filter weights.

use crate::import::onnx::prelude::*;
use crate::lower::spectral;
use wgfc_ir::DType;

fn window(cx: &mut Cx, a: [f64; 3]) -> Lowered {
    let size = cx.const_dims(0)?;
    cx.gives(0, "size");
    let [size] = size.as_slice() else {
        return Err(cx.at_input(0, OpError::model(format!("needs one number, got {}", size.len()))));
    };
    let periodic = cx.flag("periodic", true)?;
    let to = cx.dtype_opt("output_datatype")?.unwrap_or(DType::F32);
    Ok(vec![spectral::window(cx, a, size, periodic, to)?])
}

fn mel_weights(cx: &mut Cx) -> Lowered {
    let mut sizes = vec![];
    for i in 0..2 {
        let given = cx.const_dims(i)?;
        match given.as_slice() {
            [one] if one.as_const().is_none_or(|n| n >= 0) => sizes.push(one.clone()),
            _ => return Err(cx.at_input(i, OpError::model("needs one number, not negative"))),
        }
    }
    let numbers = [cx.input(2)?, cx.input(3)?, cx.input(4)?];
    let to = cx.dtype_opt("output_datatype")?.unwrap_or(DType::F32);
    Ok(vec![spectral::mel_weights(cx, &sizes[0], &sizes[1], numbers, to)?])
}

/// `BlackmanWindow`, `HammingWindow`, `HannWindow`, `MelWeightMatrix`.
pub const OPS: &[OpDef] = &[
    OpDef::new("BlackmanWindow", &[17], |cx| window(cx, [0.42, 0.5, 0.08])).cases(&["test_blackmanwindow"]),
    OpDef::new("HammingWindow", &[17], |cx| window(cx, [25.0 / 46.0, 21.0 / 46.0, 0.0]))
        .cases(&["test_hammingwindow"]),
    OpDef::new("HannWindow", &[17], |cx| window(cx, [0.5, 0.5, 0.0])).cases(&["test_hannwindow"]),
    OpDef::new("MelWeightMatrix", &[17], mel_weights)
        .cases(&["test_melweightmatrix"])
        .notes("sizes must not depend on data"),
];
