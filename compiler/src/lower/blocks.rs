//! Matrix products and table lookups with block-quantised weights: integers of 2, 4 or 8 bits packed in bytes, with a
//! scale and a zero point for each block of elements along an axis.

use super::dequantize::{Zero, dequantized, per_element, unpacked, unsigned};
use super::{Lowering, OpError, Result};
use wgfc_ir::op::show;
use wgfc_ir::{BinaryOp as B, Contract, DType, Dim, Op, Poly, Value};

/// `v` reshaped to a shape with the same number of elements.
fn shaped(cx: &mut Lowering, v: Value, shape: Vec<Dim>) -> Result {
    let text = show(&shape);
    let e = OpError::model(format!("needs the elements of {text}, got {}", cx.ty(v)));
    cx.reshape(v, shape).map_err(|_| e.operand(v))
}

/// Weights `[N, K]` quantised in blocks along their rows, as packed bytes.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// Rows.
    pub n: i64,
    /// Columns.
    pub k: i64,
    /// Bits of an element: 2, 4 or 8.
    pub bits: i64,
    /// Elements of a block.
    pub block: i64,
}

/// The operands of [`matmul`] that describe its weights.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// The packed elements, `[N, blocks, bytes]`.
    pub packed: Value,
    /// A scale for each block.
    pub scale: Value,
    /// The zero point of each block, as a float or packed like the elements; by default the middle of the range.
    pub zero: Option<Value>,
    /// The block of each column (i32), if the columns are not in block order.
    pub groups: Option<Value>,
}

/// `A · dequantised(B)ᵀ + bias`.
pub fn matmul(cx: &mut Lowering, a: Value, b: &Weights, bias: Option<Value>, p: &Blocks) -> Result {
    let Blocks { n, k, bits, block } = *p;
    let dtype = cx.dtype(a);
    let rank = cx.rank(a);
    let inner = cx.shape(a).last().cloned();
    let inner = match inner {
        Some(d) if dtype.is_float() && (d.as_const().is_none() || d.is(k)) => d,
        _ => {
            let e = OpError::model(format!("needs floats with {k} along the last axis, got {}", cx.ty(a)));
            return Err(e.operand(a));
        }
    };
    let (rows, depth) = (Dim::from(n), Dim::from(k));
    cx.require_equal(&inner, &depth);
    let blocks = Dim::from(k).ceil_div(block);
    let shape = vec![rows.clone(), depth.clone()];

    let q = unpacked(cx, b.packed, bits, vec![rows.clone(), &blocks * &block.into()])?;
    let q = cx.slice(q, 1, &Poly::ZERO, 1, &depth)?;
    let per_block = vec![rows.clone(), blocks.clone()];
    let scale = shaped(cx, b.scale, per_block.clone())?;
    let zero = match b.zero {
        None => None,
        Some(z) if cx.dtype(z).is_float() => Some(shaped(cx, z, per_block)?),
        Some(z) => {
            let bytes = (&blocks * bits).ceil_div(8);
            Some(unpacked(cx, z, bits, vec![rows.clone(), (&bytes * 8).div(&bits.into(), &[])])?)
        }
    };
    let spread = |cx: &mut Lowering, v: Value| match b.groups {
        None => per_element(cx, v, 1, block, &shape),
        Some(groups) => {
            if cx.dtype(groups) != DType::I32 || cx.rank(groups) != 1 {
                let e = OpError::model(format!("needs a list of i32, got {}", cx.ty(groups)));
                return Err(e.operand(groups));
            }
            let groups = cx.slice(groups, 0, &Poly::ZERO, 1, &depth)?;
            Ok(cx.take(v, groups, 1)?)
        }
    };
    let scale = spread(cx, scale)?;
    let zero = match zero {
        Some(z) => Zero::Of(spread(cx, z)?),
        None => Zero::Is(1 << (bits - 1)),
    };
    let weights = dequantized(cx, q, scale, &zero, dtype)?;

    let label = |i: usize| i as u8;
    let lead: Vec<u8> = (0..rank - 1).map(label).collect();
    let (kl, nl) = (label(rank - 1), label(rank));
    let c =
        Contract { a: [lead.clone(), vec![kl]].concat(), b: vec![nl, kl], out: [lead, vec![nl]].concat() };
    // From here on the depth axis of A has the extent K, which it was required to equal.
    let a = cx.slice(a, rank - 1, &Poly::ZERO, 1, &depth)?;
    let mut y = cx.push(Op::Contract(c), &[a, weights])?;
    if let Some(bias) = bias {
        let bias = shaped(cx, bias, vec![rows])?;
        y = cx.binary(B::Add, y, bias)?;
    }
    Ok(y)
}

/// Parameters of [`gather`].
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Bits of each packed element: 2, 4 or 8.
    pub bits: i64,
    /// The number of elements in a block.
    pub block: i64,
    /// The axis that is divided into blocks.
    pub along: usize,
    /// The axis that is indexed.
    pub across: usize,
}

/// Gathers rows of a block-quantised table of packed bytes or of elements of a sub-byte type.
pub fn gather(
    cx: &mut Lowering,
    [data, indices, scale]: [Value; 3],
    zero: Option<Value>,
    p: &Table,
) -> Result {
    let Table { bits, block, along, across } = *p;
    let rank = cx.rank(data);
    let indices = cx.require_indices(indices)?;
    let packed = cx.dtype(data) == DType::U8;
    if packed && along + 1 != rank {
        let what = "packed bytes quantised along another axis than the last";
        let help = "quantise along the last axis, or store one element a byte";
        return Err(OpError::unsupported(what, help).param("along"));
    }
    let dtype = cx.dtype(scale);
    let wider = |cx: &Lowering, v: Value| {
        let mut s = cx.shape(v);
        if let Some(last) = s.last_mut() {
            *last = (&*last * 8).div(&bits.into(), &[]);
        }
        s
    };
    unsigned(bits)?;
    let q = if packed {
        let s = wider(cx, data);
        unpacked(cx, data, bits, s)?
    } else {
        data
    };
    let shape = cx.shape(q);
    let mut per_block = shape.clone();
    per_block[along] = shape[along].ceil_div(block);
    let scale = shaped(cx, scale, per_block)?;
    let scale = per_element(cx, scale, along, block, &shape)?;
    let zero = match zero {
        Some(given) => {
            let z = if packed {
                let s = wider(cx, given);
                unpacked(cx, given, bits, s)?
            } else {
                given
            };
            if cx.rank(z) != rank {
                let e = OpError::model(format!("needs rank {rank}, got {}", cx.ty(z)));
                return Err(e.operand(given));
            }
            Zero::Of(per_element(cx, z, along, block, &shape)?)
        }
        None if packed => Zero::Is(1 << (bits - 1)),
        None => Zero::Is(0),
    };
    let table = dequantized(cx, q, scale, &zero, dtype)?;
    Ok(cx.take(table, indices, across)?)
}
