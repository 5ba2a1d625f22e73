//! Weights quantised in blocks: integers of 2, 4 or 8 bits packed in bytes, with a scale and a zero
//! point for each block of elements along an axis.
//!
//! The bytes become a constant of a sub-byte type, and the value an expression of it,
//! `(q − zero) · scale`, which is computed where it is read: packed weights stay packed.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use wgfc_ir::op::show;
use wgfc_ir::{BinaryOp as B, Contract, DType, Dim, Op, Poly, Scalar, ScalarFn, ScalarNode, Tensor, Value};

type Result<T = Value> = std::result::Result<T, OpError>;

const MICROSOFT: &str = "com.microsoft";

/// The unsigned type of that many bits.
fn unsigned(bits: i64) -> Result<DType> {
    match bits {
        2 => Ok(DType::U2),
        4 => Ok(DType::U4),
        8 => Ok(DType::U8),
        _ => Err(OpError::unsupported(format!("{bits} bits; 2, 4 and 8 are supported")).attribute("bits")),
    }
}

/// The elements of `bits` bits in the bytes of input `i`, lowest bits first, as `shape`.
fn unpacked(cx: &mut Cx, i: usize, bits: i64, shape: Vec<Dim>) -> Result {
    let v = cx.input(i)?;
    let (dtype, per) = (unsigned(bits)?, 8 / bits);
    let have: Dim = cx.shape(v).iter().product();
    let want: Dim = shape.iter().product();
    if cx.dtype(v) != DType::U8 || &have * &Dim::from(per) != want {
        let bytes = want.div(&per.into(), &[]);
        let e = OpError::model(format!("needs {bytes} elements of u8, got {}", cx.ty(v)));
        return Err(cx.at_input(i, e));
    }
    let fixed = shape.iter().map(|d| d.as_const().and_then(|c| usize::try_from(c).ok())).collect();
    if let (Some(t), Some(shape)) = (cx.as_const(v).cloned(), fixed) {
        let name = cx.graph.node(v.node).names.clone();
        let v = cx.constant(Tensor { dtype, shape, data: t.data.clone() });
        cx.graph.node_mut(v.node).names = name;
        return Ok(v);
    }
    let bytes = cx.reshape(v, vec![have])?;
    let flat = vec![want];
    let (byte, place) = (Poly::var(0).div(&per.into(), &flat), Poly::var(0).modulo(&per.into(), &flat));
    let bytes = cx.view(bytes, flat.clone(), vec![byte])?;
    let mut f = ScalarFn::default();
    let x = f.push(ScalarNode::Arg(0));
    let x = f.push(ScalarNode::Cast(DType::I32, x));
    let shift = f.push(ScalarNode::Index(place * bits));
    let x = f.push(ScalarNode::Binary(B::Shr, x, shift));
    let mask = f.push(ScalarNode::Const(Scalar::from_i64(DType::I32, (1 << bits) - 1)));
    f.push(ScalarNode::Binary(B::And, x, mask));
    let v = cx.map_to(f, &[bytes], flat)?;
    Ok(cx.reshape(v, shape)?)
}

/// What is subtracted before scaling.
pub(super) enum Zero {
    /// The same everywhere.
    Is(i64),
    /// One for each element, of any type.
    Of(Value),
}

/// `(q − zero) · scale`, elementwise: made in f32 and rounded to `dtype` once, which a product that
/// reads it directly leaves out.
pub(super) fn dequantized(cx: &mut Cx, q: Value, scale: Value, zero: &Zero, dtype: DType) -> Result {
    let mut args = vec![q, scale];
    let mut f = ScalarFn::default();
    let wide = DType::F32;
    let arg = |f: &mut ScalarFn, i: u32, from: DType| {
        let x = f.push(ScalarNode::Arg(i));
        if from == wide { x } else { f.push(ScalarNode::Cast(wide, x)) }
    };
    let mut x = arg(&mut f, 0, cx.dtype(q));
    match zero {
        Zero::Is(0) => {}
        Zero::Is(z) => {
            let z = f.push(ScalarNode::Const(Scalar::from_i64(wide, *z)));
            x = f.push(ScalarNode::Binary(B::Sub, x, z));
        }
        Zero::Of(z) => {
            args.push(*z);
            let z = arg(&mut f, 2, cx.dtype(*z));
            x = f.push(ScalarNode::Binary(B::Sub, x, z));
        }
    }
    let s = arg(&mut f, 1, cx.dtype(scale));
    let product = f.push(ScalarNode::Binary(B::Mul, x, s));
    if dtype != wide {
        f.push(ScalarNode::Cast(dtype, product));
    }
    let shape = cx.shape(q);
    Ok(cx.map_to(f, &args, shape)?)
}

/// One value a block becomes one value an element: `v` read at `index / block` along `axis`.
pub(super) fn per_element(cx: &mut Cx, v: Value, axis: usize, block: i64, shape: &[Dim]) -> Result {
    let mut index: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
    index[axis] = index[axis].div(&block.into(), shape);
    Ok(cx.view(v, shape.to_vec(), index)?)
}

/// A size given by an attribute.
fn size(cx: &Cx, name: &str) -> Result<i64> {
    match cx.int_req(name)? {
        v if (1..=i64::from(i32::MAX)).contains(&v) => Ok(v),
        v => Err(OpError::model(format!("`{name}` is {v}")).attribute(name)),
    }
}

/// A block's length.
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

/// Input `i` under another shape of as many elements.
fn shaped(cx: &mut Cx, i: usize, shape: Vec<Dim>) -> Result {
    let v = cx.input(i)?;
    let text = show(&shape);
    let e = OpError::model(format!("needs the elements of {text}, got {}", cx.ty(v)));
    cx.reshape(v, shape).map_err(|_| cx.at_input(i, e))
}

/// `A · dequantised(B)ᵀ + bias`, B `[N, blocks, bytes]`.
fn matmul(cx: &mut Cx) -> Lowered {
    let a = cx.input(0)?;
    let (k, n, bits) = (size(cx, "K")?, size(cx, "N")?, cx.int("bits", 4)?);
    let block = block_size(cx, None)?;
    let dtype = cx.dtype(a);
    let rank = cx.rank(a);
    let inner = cx.shape(a).last().cloned();
    let inner = match inner {
        Some(d) if dtype.is_float() && (d.as_const().is_none() || d.is(k)) => d,
        _ => {
            let e = OpError::model(format!("needs floats with {k} along the last axis, got {}", cx.ty(a)));
            return Err(cx.at_input(0, e));
        }
    };
    let (rows, depth) = (Dim::from(n), Dim::from(k));
    cx.require_equal(&inner, &depth);
    let blocks = Dim::from(k).ceil_div(block);
    let shape = vec![rows.clone(), depth.clone()];

    let q = unpacked(cx, 1, bits, vec![rows.clone(), &blocks * &block.into()])?;
    let q = cx.slice(q, 1, &Poly::ZERO, 1, &depth)?;
    let per_block = vec![rows.clone(), blocks.clone()];
    let scale = shaped(cx, 2, per_block.clone())?;
    let zero = match cx.opt(3) {
        None => None,
        Some(z) if cx.dtype(z).is_float() => Some(shaped(cx, 3, per_block)?),
        Some(_) => {
            let bytes = (&blocks * bits).ceil_div(8);
            Some(unpacked(cx, 3, bits, vec![rows.clone(), (&bytes * 8).div(&bits.into(), &[])])?)
        }
    };
    let spread = |cx: &mut Cx, v: Value| match cx.opt(4) {
        None => per_element(cx, v, 1, block, &shape),
        Some(groups) => {
            if cx.dtype(groups) != DType::I32 || cx.rank(groups) != 1 {
                let e = OpError::model(format!("needs a list of i32, got {}", cx.ty(groups)));
                return Err(cx.at_input(4, e));
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
    let b = dequantized(cx, q, scale, &zero, dtype)?;

    let label = |i: usize| i as u8;
    let lead: Vec<u8> = (0..rank - 1).map(label).collect();
    let (kl, nl) = (label(rank - 1), label(rank));
    let c =
        Contract { a: [lead.clone(), vec![kl]].concat(), b: vec![nl, kl], out: [lead, vec![nl]].concat() };
    // The extent that was required to be K is K from here on.
    let a = cx.slice(a, rank - 1, &Poly::ZERO, 1, &depth)?;
    let mut y = cx.push(Op::Contract(c), &[a, b])?;
    if cx.opt(5).is_some() {
        let bias = shaped(cx, 5, vec![rows])?;
        y = cx.binary(B::Add, y, bias)?;
    }
    Ok(vec![y])
}

/// Rows of a table that is quantised along an axis.
fn gather(cx: &mut Cx) -> Lowered {
    let (data, indices, scale) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let bits = cx.int("bits", 4)?;
    let rank = cx.rank(data);
    let (along, across) = (cx.int("quantize_axis", 1)?, cx.int("gather_axis", 0)?);
    let (along, across) = (cx.axis(along, rank)?, cx.axis(across, rank)?);
    let block = block_size(cx, Some(128))?;
    if !matches!(cx.dtype(indices), DType::I32 | DType::I64) {
        let e = OpError::model(format!("indices of type {}", cx.ty(indices)));
        return Err(cx.at_input(1, e));
    }
    let packed = cx.dtype(data) == DType::U8;
    if packed && along + 1 != rank {
        return Err(OpError::unsupported("packed bytes quantised along another axis than the last")
            .attribute("quantize_axis"));
    }
    let dtype = cx.dtype(scale);
    let wider = |cx: &Cx, v: Value| {
        let mut s = cx.shape(v);
        if let Some(last) = s.last_mut() {
            *last = (&*last * 8).div(&bits.into(), &[]);
        }
        s
    };
    unsigned(bits)?;
    let q = if packed {
        let s = wider(cx, data);
        unpacked(cx, 0, bits, s)?
    } else {
        data
    };
    let shape = cx.shape(q);
    let mut per_block = shape.clone();
    per_block[along] = shape[along].ceil_div(block);
    let scale = shaped(cx, 2, per_block)?;
    let scale = per_element(cx, scale, along, block, &shape)?;
    let zero = match cx.opt(3) {
        Some(z) => {
            let z = if packed {
                let s = wider(cx, z);
                unpacked(cx, 3, bits, s)?
            } else {
                z
            };
            if cx.rank(z) != rank {
                let e = OpError::model(format!("needs rank {rank}, got {}", cx.ty(z)));
                return Err(cx.at_input(3, e));
            }
            Zero::Of(per_element(cx, z, along, block, &shape)?)
        }
        None if packed => Zero::Is(1 << (bits - 1)),
        None => Zero::Is(0),
    };
    let table = dequantized(cx, q, scale, &zero, dtype)?;
    Ok(vec![cx.take(table, indices, across)?])
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
