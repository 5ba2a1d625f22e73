//! Conversion of element types.

use crate::import::onnx::prelude::*;
use crate::lower::cast::{Round, convert};
use wgfc_ir::DType;

fn cast_to(cx: &mut Cx, to: DType) -> Lowered {
    let x = cx.input(0)?;
    let saturate = cx.flag("saturate", true)?;
    let round = match cx.string("round_mode", "up")?.as_str() {
        "down" => Round::Down,
        "nearest" => Round::Nearest,
        other if other != "up" && to == DType::F8E8M0 => {
            return Err(OpError::model(format!("unknown round_mode `{other}`")).attribute("round_mode"));
        }
        _ => Round::Up,
    };
    Ok(vec![convert(cx, x, to, saturate, round)?])
}

fn cast(cx: &mut Cx) -> Lowered {
    let to = cx.dtype_req("to")?;
    cast_to(cx, to)
}

fn cast_like(cx: &mut Cx) -> Lowered {
    let to = cx.dtype(cx.input(1)?);
    cast_to(cx, to)
}

/// `Cast` and `CastLike`.
pub const OPS: &[OpDef] = &[
    OpDef::new("Cast", &[6, 9, 13, 19, 21, 23, 24, 25, 28], cast).cases(&["test_cast_"]).notes("no strings"),
    OpDef::new("CastLike", &[15, 19, 21, 23, 24, 25], cast_like).cases(&["test_castlike_"]),
];
