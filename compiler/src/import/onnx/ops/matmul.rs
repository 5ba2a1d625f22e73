//! Matrix products.

use crate::import::onnx::prelude::*;
use crate::lower::matmul::{self, Gemm};
use wgfc_ir::{BinaryOp, Value};

fn matmul(cx: &mut Cx) -> Lowered {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    Ok(vec![matmul::matmul(cx, a, b)?])
}

/// `Gemm`.
pub(super) fn gemm(cx: &mut Cx) -> Result<Value> {
    let (a, b, c) = (cx.input(0)?, cx.input(1)?, cx.opt(2));
    let p = Gemm {
        transpose_a: cx.flag("transA", false)?,
        transpose_b: cx.flag("transB", false)?,
        alpha: cx.float("alpha", 1.0)?.into(),
        beta: cx.float("beta", 1.0)?.into(),
    };
    matmul::gemm(cx, a, b, c, &p)
}

/// `alpha·A·B`; attributes request a swap of the last two axes of an operand, or a move of its first axis to the position before the
/// last.
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
    OpDef::new("Gemm", &[6, 7, 9, 11, 13], |cx| Ok(vec![gemm(cx)?])).cases(&["test_gemm_"]),
    OpDef::new("MatMul", &[1, 9, 13], matmul).cases(&[
        "test_matmul_1",
        "test_matmul_2d",
        "test_matmul_3d",
        "test_matmul_4d",
        "test_matmul_bcast",
    ]),
];
