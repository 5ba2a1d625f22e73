//! Linear quantisation, and products of quantised operands.

use super::conv::attributes;
use crate::import::onnx::prelude::*;
use crate::lower::quantize::{self, Grain, Quantize, Quantized, along, centred, matrix_axes, requantized};
use crate::lower::{conv, norm};
use wgfc_ir::{BinaryOp as B, DType, Value};

/// The granularity of scale and zero point. There is an axis from opset 13 on, and a block size from opset 21 on.
fn grain(cx: &Cx) -> Result<Grain> {
    let block = if cx.since >= 21 { cx.int("block_size", 0)? } else { 0 };
    if block < 0 {
        return Err(OpError::model(format!("block size {block} is negative")).attribute("block_size"));
    }
    let axis = if cx.since >= 13 || cx.node.domain == MICROSOFT { cx.int("axis", 1)? } else { 1 };
    Ok(if block > 0 { Grain::Block(axis, block) } else { Grain::Axis(axis) })
}

/// The element type in an attribute, where 0 counts as absent.
fn named_type(cx: &Cx, name: &str, since: i64) -> Result<Option<DType>> {
    if cx.since < since || cx.int(name, 0)? == 0 { Ok(None) } else { cx.dtype_opt(name) }
}

fn quantize(cx: &mut Cx) -> Lowered {
    let (x, scale, zero) = (cx.input(0)?, cx.input(1)?, cx.opt(2));
    let given = named_type(cx, "output_dtype", 21)?;
    let dtype = match (zero.map(|z| cx.dtype(z)), given) {
        (Some(z), Some(d)) if z != d => {
            let e = format!("it is {d}, but the zero point has type {z}");
            return Err(OpError::model(e).attribute("output_dtype"));
        }
        (z, d) => z.or(d).unwrap_or(DType::U8),
    };
    let p = Quantize {
        dtype,
        grain: grain(cx)?,
        precision: named_type(cx, "precision", 23)?,
        saturate: cx.flag("saturate", true)?,
    };
    Ok(vec![quantize::quantize(cx, x, scale, zero, &p)?])
}

fn dequantize(cx: &mut Cx) -> Lowered {
    let (x, scale, zero) = (cx.input(0)?, cx.input(1)?, cx.opt(2));
    let dtype = named_type(cx, "output_dtype", 23)?.unwrap_or(cx.dtype(scale));
    let grain = grain(cx)?;
    Ok(vec![quantize::dequantize(cx, x, scale, zero, grain, dtype)?])
}

/// Quantises a tensor with one range for all elements; returns the quantised tensor, the scale and the zero point.
fn dynamic(cx: &mut Cx) -> Lowered {
    let x = cx.input(0)?;
    Ok(quantize::dynamic(cx, x)?.to_vec())
}

fn matmul_integer(cx: &mut Cx) -> Lowered {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let (rows, columns) = matrix_axes(cx, a, b)?;
    let (za, zb) = (cx.opt(2), cx.opt(3));
    let (a, b) = (centred(cx, a, za, rows)?, centred(cx, b, zb, columns)?);
    Ok(vec![cx.matmul(a, b)?])
}

/// The exact integer convolution of `x` with weights `w`, from both of which their zero points are subtracted.
fn conv_sum(cx: &mut Cx, (x, zx): (Value, Option<Value>), (w, zw): (Value, Option<Value>)) -> Result<Value> {
    let p = attributes(cx, x, w)?;
    let (x, w) = (centred(cx, x, zx, 0)?, centred(cx, w, zw, 0)?);
    conv::product(cx, x, w, &p)
}

fn conv_integer(cx: &mut Cx) -> Lowered {
    let (x, w) = ((cx.input(0)?, cx.opt(2)), (cx.input(1)?, cx.opt(3)));
    Ok(vec![conv_sum(cx, x, w)?])
}

fn q_matmul(cx: &mut Cx) -> Lowered {
    let a = Quantized { q: cx.input(0)?, scale: cx.input(1)?, zero: cx.opt(2) };
    let b = Quantized { q: cx.input(3)?, scale: cx.input(4)?, zero: cx.opt(5) };
    let (scale, zero) = (cx.input(6)?, cx.input(7)?);
    let (sum, scales) = quantize::product(cx, a, b)?;
    Ok(vec![requantized(cx, sum, scales, scale, zero)?])
}

fn q_conv(cx: &mut Cx) -> Lowered {
    let (x, w) = ((cx.input(0)?, cx.opt(2)), (cx.input(3)?, cx.opt(5)));
    let (sx, sw, scale, zero) = (cx.input(1)?, cx.input(4)?, cx.input(6)?, cx.input(7)?);
    let mut sum = conv_sum(cx, x, w)?;
    let rank = cx.rank(sum);
    if let Some(bias) = cx.opt(8) {
        quantize::require_bias(cx, bias)?;
        let bias = norm::per_channel(cx, bias, rank)?;
        sum = cx.binary(B::Add, sum, bias)?;
    }
    let scales = [along(cx, sx, 1, rank)?, along(cx, sw, 1, rank)?];
    Ok(vec![requantized(cx, sum, scales, scale, zero)?])
}

/// Quantisation, and products of quantised operands.
pub const OPS: &[OpDef] = &[
    OpDef::new("ConvInteger", &[10], conv_integer).cases(&["test_convinteger_"]),
    OpDef::new("DequantizeLinear", &[10, 13, 19, 21, 23, 24, 25, 28], dequantize)
        .cases(&["test_dequantizelinear"]),
    OpDef::new("DequantizeLinear", &[1], dequantize).domain(MICROSOFT).cases(&["dequantize_linear"]),
    OpDef::new("DynamicQuantizeLinear", &[11], dynamic).cases(&["test_dynamicquantizelinear"]),
    OpDef::new("MatMulInteger", &[10], matmul_integer).cases(&["test_matmulinteger"]),
    OpDef::new("QLinearConv", &[10], q_conv).cases(&["test_qlinearconv"]),
    OpDef::new("QLinearMatMul", &[10, 21], q_matmul).cases(&["test_qlinearmatmul_"]),
    OpDef::new("QuantizeLinear", &[1], quantize).domain(MICROSOFT).cases(&["quantize_linear"]),
    OpDef::new("QuantizeLinear", &[10, 13, 19, 21, 23, 24, 25, 28], quantize).cases(&["test_quantizelinear"]),
];
