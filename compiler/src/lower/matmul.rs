//! Matrix products.

use super::{Lowering, OpError, Result};
use wgfc_ir::{BinaryOp, Value};

/// The matrix product of operands of the same type; batch axes broadcast.
pub fn matmul(cx: &mut Lowering, a: Value, b: Value) -> Result {
    if cx.dtype(a) != cx.dtype(b) {
        return Err(OpError::model(format!("operands of different types: {} and {}", cx.ty(a), cx.ty(b))));
    }
    Ok(cx.matmul(a, b)?)
}

/// Parameters of [`gemm`].
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    /// Whether A is transposed.
    pub transpose_a: bool,
    /// Whether B is transposed.
    pub transpose_b: bool,
    /// The factor of the product.
    pub alpha: f64,
    /// The factor of C.
    pub beta: f64,
}

/// `alpha·A·B + beta·C` for matrices.
pub fn gemm(cx: &mut Lowering, mut a: Value, mut b: Value, c: Option<Value>, p: &Gemm) -> Result {
    cx.require_rank(a, 2)?;
    cx.require_rank(b, 2)?;
    if cx.dtype(a) != cx.dtype(b) {
        return Err(OpError::model(format!("operands of different types: {} and {}", cx.ty(a), cx.ty(b))));
    }
    if p.transpose_a {
        a = cx.transpose(a, &[1, 0])?;
    }
    if p.transpose_b {
        b = cx.transpose(b, &[1, 0])?;
    }
    let mut y = cx.matmul(a, b)?;
    if p.alpha != 1.0 {
        y = cx.binary_scalar(BinaryOp::Mul, y, p.alpha)?;
    }
    if let Some(mut c) = c
        && p.beta != 0.0
    {
        if p.beta != 1.0 {
            c = cx.binary_scalar(BinaryOp::Mul, c, p.beta)?;
        }
        let shape = cx.shape(y);
        let c = cx.expand(c, &shape)?;
        y = cx.binary(BinaryOp::Add, y, c)?;
    }
    Ok(y)
}
