//! Attention whose caller may modify the scores and the probabilities, as FlexAttention allows.

use super::{Lowering, OpError, Result};
use wgfc_ir::op::show;
use wgfc_ir::{BinaryOp as B, DType, Op, Poly, Value};

/// Repeats each of the `kept` heads of keys or values so that every one of the `heads` query heads has its own:
/// `[B, kept, S, D]` to `[B, heads, S, D]`.
fn per_query_head(cx: &mut Lowering, x: Value, heads: i64, kept: i64) -> Result {
    let mut shape = cx.shape(x);
    shape[1] = heads.into();
    let mut index: Vec<Poly> = (0..4).map(Poly::var).collect();
    index[1] = index[1].div(&(heads / kept).into(), &shape);
    Ok(cx.view(x, shape, index)?)
}

/// Parameters of [`scores`].
#[derive(Clone, Copy, Debug)]
pub struct Flex {
    /// The scale of the scores; by default `1/√d`.
    pub scale: Option<f64>,
    /// The type of scores and probabilities; by default f64 if the operands are f64, else f32.
    pub precision: Option<DType>,
}

/// The scores `scale · q · kᵀ [B, Hq, S, T]` of `q [B, Hq, S, D]` and `k [B, H, T, D]`, where `H` divides `Hq`, and the
/// values with a head for each of q's. The caller may change the scores before [`probabilities`], and the probabilities
/// before [`weighted`].
pub fn scores(cx: &mut Lowering, [q, k, v]: [Value; 3], p: &Flex) -> Result<(Value, Value)> {
    for x in [q, k, v] {
        cx.require_rank(x, 4)?;
    }
    let (sq, sk) = (cx.shape(q), cx.shape(k));
    let dtype = cx.dtype(q);
    if !dtype.is_float() || cx.dtype(k) != dtype || cx.dtype(v) != dtype {
        return Err(OpError::model(format!("q {}, k {} and v {}", cx.ty(q), cx.ty(k), cx.ty(v))));
    }
    let (heads, kept) = match (sq[1].as_const(), sk[1].as_const()) {
        (Some(q), Some(k)) if k > 0 && q % k == 0 => (q, k),
        _ => {
            let e = format!("the heads of q {} are no multiple of those of k {}", show(&sq), show(&sk));
            return Err(OpError::model(e));
        }
    };
    let sv = cx.shape(v);
    if sv[1] != sk[1] {
        let e = format!("k {} and v {} have other numbers of heads", show(&sk), show(&sv));
        return Err(OpError::model(e));
    }
    let scale = match (p.scale, sq[3].as_const()) {
        (Some(s), _) => s,
        (None, Some(d)) if d > 0 => 1.0 / (d as f64).sqrt(),
        _ => return Err(OpError::symbolic(format!("heads of size {}", sq[3])).param("scale")),
    };
    if scale < 0.0 {
        return Err(OpError::model(format!("{scale}")).param("scale"));
    }
    let wide = match p.precision {
        Some(d) => d,
        None if dtype == DType::F64 => DType::F64,
        None => DType::F32,
    };
    let (k, v) = (per_query_head(cx, k, heads, kept)?, per_query_head(cx, v, heads, kept)?);
    let root = scale.sqrt();
    let q = cx.binary_scalar(B::Mul, q, root)?;
    let k = cx.transpose(k, &[0, 1, 3, 2])?;
    let k = cx.binary_scalar(B::Mul, k, root)?;
    let scores = cx.matmul(q, k)?;
    let scores = cx.cast(scores, wide)?;
    Ok((scores, v))
}

/// The softmax of scores over the last axis.
pub fn probabilities(cx: &mut Lowering, scores: Value) -> Result {
    Ok(cx.push(Op::Softmax { axis: 3, log: false }, &[scores])?)
}

/// `probs · v`, computed in the type of `probs` and returned as `dtype`.
pub fn weighted(cx: &mut Lowering, probs: Value, v: Value, dtype: DType) -> Result {
    let wide = cx.dtype(probs);
    let v = cx.cast(v, wide)?;
    let y = cx.matmul(probs, v)?;
    Ok(cx.cast(y, dtype)?)
}
