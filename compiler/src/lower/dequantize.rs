//! Quantised weights as expressions of their elements, `(q − zero) · scale`, which are evaluated where they are read:
//! packed weights stay packed in memory.

use super::{Lowering, OpError, Result};
use wgfc_ir::{BinaryOp as B, DType, Dim, Poly, Scalar, ScalarFn, ScalarNode, Tensor, Value};

/// The unsigned integer type of this many bits.
pub fn unsigned(bits: i64) -> Result<DType> {
    match bits {
        2 => Ok(DType::U2),
        4 => Ok(DType::U4),
        8 => Ok(DType::U8),
        _ => {
            let help = "quantise the model to 2, 4 or 8 bits";
            Err(OpError::unsupported(format!("{bits} bits; 2, 4 and 8 are supported"), help).param("bits"))
        }
    }
}

/// Reinterprets bytes as elements of `bits` bits, lowest bits first, of shape `shape`.
pub fn unpacked(cx: &mut Lowering, v: Value, bits: i64, shape: Vec<Dim>) -> Result {
    let (dtype, per) = (unsigned(bits)?, 8 / bits);
    let have: Dim = cx.shape(v).iter().product();
    let want: Dim = shape.iter().product();
    if cx.dtype(v) != DType::U8 || &have * &Dim::from(per) != want {
        let bytes = want.div(&per.into(), &[]);
        let e = OpError::model(format!("needs {bytes} elements of u8, got {}", cx.ty(v)));
        return Err(e.operand(v));
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

/// The zero point, which is subtracted before scaling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Zero {
    /// The number for all elements.
    Is(i64),
    /// One zero point for each element, of any type.
    Of(Value),
}

/// `(q − zero) · scale`, elementwise. It is computed in f32 and rounded to `dtype` once; a product that reads the
/// expression directly skips that rounding.
pub fn dequantized(cx: &mut Lowering, q: Value, scale: Value, zero: &Zero, dtype: DType) -> Result {
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

/// Repeats one value per block to one per element: `v` read at `index / block` along `axis`.
pub fn per_element(cx: &mut Lowering, v: Value, axis: usize, block: i64, shape: &[Dim]) -> Result {
    let mut index: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
    index[axis] = index[axis].div(&block.into(), shape);
    Ok(cx.view(v, shape.to_vec(), index)?)
}
