//! Products and lookups with weights quantised in blocks.

use crate::import::onnx::prelude::*;
use crate::lower::blocks::{self, Blocks, Table, Weights};

/// A positive size in an attribute.
fn size(cx: &Cx, name: &str) -> Result<i64> {
    match cx.int_req(name)? {
        v if (1..=i64::from(i32::MAX)).contains(&v) => Ok(v),
        v => Err(OpError::model(format!("{v} is not in 1..=2^31 - 1")).attribute(name)),
    }
}

/// The number of elements in a block.
fn block_size(cx: &Cx, default: Option<i64>) -> Result<i64> {
    let v = match default {
        Some(d) => cx.int("block_size", d)?,
        None => cx.int_req("block_size")?,
    };
    if v < 16 || v.count_ones() != 1 || v > 1 << 20 {
        let e = format!("a block of {v} elements; needs a power of two, at least 16");
        return Err(OpError::model(e).attribute("block_size"));
    }
    Ok(v)
}

fn matmul(cx: &mut Cx) -> Lowered {
    let a = cx.input(0)?;
    let (k, n, bits) = (size(cx, "K")?, size(cx, "N")?, cx.int("bits", 4)?);
    let p = Blocks { n, k, bits, block: block_size(cx, None)? };
    let (packed, scale) = (cx.input(1)?, cx.input(2)?);
    let (zero, groups, bias) = (cx.opt(3), cx.opt(4), cx.opt(5));
    Ok(vec![blocks::matmul(cx, a, &Weights { packed, scale, zero, groups }, bias, &p)?])
}

fn gather(cx: &mut Cx) -> Lowered {
    let operands = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
    let (zero, bits, rank) = (cx.opt(3), cx.int("bits", 4)?, cx.rank(operands[0]));
    let (along, across) = (cx.int("quantize_axis", 1)?, cx.int("gather_axis", 0)?);
    let (along, across) = (cx.axis(along, rank)?, cx.axis(across, rank)?);
    let block = block_size(cx, Some(128))?;
    Ok(vec![blocks::gather(cx, operands, zero, &Table { bits, block, along, across })?])
}

/// Products and lookups with weights quantised in blocks.
pub const OPS: &[OpDef] = &[
    OpDef::new("GatherBlockQuantized", &[1], gather)
        .domain(MICROSOFT)
        .notes("packed bytes are quantised along the last axis")
        .cases(&["gather_block_quantized_"]),
    OpDef::new("MatMulNBits", &[1], matmul)
        .domain(MICROSOFT)
        .notes("2, 4 and 8 bits; `accuracy_level` has no effect: sums are in f32")
        .cases(&["matmul_nbits_"]),
];
