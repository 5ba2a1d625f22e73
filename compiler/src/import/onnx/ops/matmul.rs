//! Matrix products.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{Lowered, OpDef, OpError};
use wgfc_ir::BinaryOp;

fn matmul(cx: &mut Cx) -> Lowered {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    if cx.dtype(a) != cx.dtype(b) {
        return Err(OpError::model(format!("operands of different types: {} and {}", cx.ty(a), cx.ty(b))));
    }
    Ok(vec![cx.matmul(a, b)?])
}

/// `alpha·A·B + beta·C`, either operand transposed on request.
pub(super) fn gemm(cx: &mut Cx) -> Lowered {
    let (mut a, mut b) = (cx.input_of_rank(0, 2)?, cx.input_of_rank(1, 2)?);
    if cx.dtype(a) != cx.dtype(b) {
        return Err(OpError::model(format!("operands of different types: {} and {}", cx.ty(a), cx.ty(b))));
    }
    if cx.flag("transA", false)? {
        a = cx.transpose(a, &[1, 0])?;
    }
    if cx.flag("transB", false)? {
        b = cx.transpose(b, &[1, 0])?;
    }
    let mut y = cx.matmul(a, b)?;
    let alpha = cx.float("alpha", 1.0)?;
    if alpha != 1.0 {
        y = cx.binary_scalar(BinaryOp::Mul, y, alpha.into())?;
    }
    let beta = cx.float("beta", 1.0)?;
    if let Some(mut c) = cx.opt(2)
        && beta != 0.0
    {
        if beta != 1.0 {
            c = cx.binary_scalar(BinaryOp::Mul, c, beta.into())?;
        }
        let shape = cx.shape(y);
        let c = cx.expand(c, &shape)?;
        y = cx.binary(BinaryOp::Add, y, c)?;
    }
    Ok(vec![y])
}

/// `alpha·A·B`, of operands whose last two axes, or first and the other batch axes, are exchanged on request.
fn fused(cx: &mut Cx) -> Lowered {
    let mut operands = [cx.input(0)?, cx.input(1)?];
    for (x, (last, batch)) in operands.iter_mut().zip([("transA", "transBatchA"), ("transB", "transBatchB")])
    {
        let rank = cx.rank(*x);
        let mut perm: Vec<usize> = (0..rank).collect();
        if rank > 2 && cx.flag(batch, false)? {
            perm[..rank - 1].rotate_left(1);
        }
        if rank > 1 && cx.flag(last, false)? {
            perm.swap(rank - 2, rank - 1);
        }
        *x = cx.transpose(*x, &perm)?;
    }
    let [a, b] = operands;
    let y = cx.matmul(a, b)?;
    let alpha = cx.float("alpha", 1.0)?;
    Ok(vec![if alpha == 1.0 { y } else { cx.binary_scalar(BinaryOp::Mul, y, alpha.into())? }])
}

/// `FusedMatMul`, `Gemm` and `MatMul`.
pub const OPS: &[OpDef] = &[
    OpDef::new("FusedMatMul", &[1], fused).domain("com.microsoft").cases(&["fused_matmul_"]),
    OpDef::new("Gemm", &[6, 7, 9, 11, 13], gemm).cases(&["test_gemm_"]),
    OpDef::new("MatMul", &[1, 9, 13], matmul).cases(&[
        "test_matmul_1",
        "test_matmul_2d",
        "test_matmul_3d",
        "test_matmul_4d",
        "test_matmul_bcast",
    ]),
];
