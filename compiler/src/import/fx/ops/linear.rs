//! Products of matrices.

use super::super::prelude::*;
use crate::lower::{einsum, matmul, shape};
use wgfc_ir::{Contract, Op, Poly, ReduceOp};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._grouped_mm.default", |cx| grouped(cx, ["self", "mat2"]))
        .notes("rows of a matrix by groups, each with a matrix of its own"),
    OpDef::new("aten._int_mm.default", |cx| product(cx, "self", "mat2")),
    OpDef::new("aten._trilinear.default", trilinear),
    OpDef::new("aten.addbmm.default", |cx| added(cx, ["self", "batch1", "batch2"], true)),
    OpDef::new("aten.addmm.default", |cx| added(cx, ["self", "mat1", "mat2"], false)),
    OpDef::new("aten.addmv.default", |cx| added(cx, ["self", "mat", "vec"], false)),
    OpDef::new("aten.baddbmm.default", |cx| added(cx, ["self", "batch1", "batch2"], false)),
    OpDef::new("aten.bmm.default", |cx| product(cx, "self", "mat2")),
    OpDef::new("aten.dot.default", |cx| product(cx, "self", "tensor")),
    OpDef::new("aten.einsum.default", by_labels),
    OpDef::new("aten.linear.default", linear),
    OpDef::new("aten.matmul.default", |cx| product(cx, "self", "other")),
    OpDef::new("aten.mm.default", |cx| product(cx, "self", "mat2")),
    OpDef::new("aten.mv.default", |cx| product(cx, "self", "vec")),
    OpDef::new("aten.outer.default", outer),
    OpDef::new("transformers.grouped_mm_fallback.default", |cx| grouped(cx, ["input", "weight"])),
];

fn product(cx: &mut Cx, a: &str, b: &str) -> Lowered {
    let (a, b) = (cx.tensor(a)?, cx.tensor(b)?);
    let dtype = cx.result_dtype(0)?;
    let (a, b) = (cx.converted(a, dtype)?, cx.converted(b, dtype)?);
    Ok(vec![matmul::matmul(cx, a, b)?])
}

fn outer(cx: &mut Cx) -> Lowered {
    let [a, b] = cx.promoted(["self", "vec2"])?;
    let a = cx.unsqueeze(a, &[1])?;
    Ok(vec![cx.binary(BinaryOp::Mul, a, b)?])
}

/// `x · wᵀ + bias`.
fn linear(cx: &mut Cx) -> Lowered {
    let (x, w, bias) = (cx.tensor("input")?, cx.tensor("weight")?, cx.opt_tensor("bias")?);
    let w = if cx.rank(w) == 2 { cx.transpose(w, &[1, 0])? } else { w };
    let y = matmul::matmul(cx, x, w)?;
    Ok(vec![match bias {
        Some(b) => cx.binary(BinaryOp::Add, y, b)?,
        None => y,
    }])
}

/// `beta · self + alpha · a · b`; of a batch of products the sum, where that is asked for.
fn added(cx: &mut Cx, [c, a, b]: [&str; 3], summed: bool) -> Lowered {
    let (c, a, b) = (cx.tensor(c)?, cx.tensor(a)?, cx.tensor(b)?);
    let dtype = cx.dtype(a);
    let mut y = matmul::matmul(cx, a, b)?;
    if summed {
        y = cx.reduce(ReduceOp::Sum, y, &[0], false)?;
    }
    let (alpha, beta) = (cx.number("alpha")?, cx.number("beta")?);
    if !alpha.is(1.0) {
        let alpha = cx.number_in(&alpha, dtype)?;
        y = cx.binary(BinaryOp::Mul, y, alpha)?;
    }
    // Nothing of what is multiplied with 0 counts, not even what is not a number.
    if beta.is(0.0) {
        let want = cx.result(0)?.shape;
        return Ok(vec![shape::expand(cx, y, &want)?]);
    }
    let mut c = c;
    if !beta.is(1.0) {
        let beta = cx.number_in(&beta, dtype)?;
        c = cx.binary(BinaryOp::Mul, c, beta)?;
    }
    Ok(vec![cx.binary(BinaryOp::Add, y, c)?])
}

fn by_labels(cx: &mut Cx) -> Lowered {
    let xs = cx.tensors("tensors")?;
    let text = cx.text("equation")?.unwrap_or_default();
    Ok(vec![einsum::einsum(cx, &xs, &text)?])
}

/// The product of three tensors with axes put in, summed along some.
fn trilinear(cx: &mut Cx) -> Lowered {
    let mut factors = vec![];
    for (name, axes) in [("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")] {
        let x = cx.tensor(name)?;
        let mut at: Vec<usize> = cx.ints(axes)?.iter().filter_map(|a| usize::try_from(*a).ok()).collect();
        at.sort_unstable();
        factors.push(cx.unsqueeze(x, &at)?);
    }
    let along: Vec<usize> = cx.ints("sumdim")?.iter().filter_map(|a| usize::try_from(*a).ok()).collect();
    let y = cx.binary(BinaryOp::Mul, factors[0], factors[1])?;
    let y = cx.binary(BinaryOp::Mul, y, factors[2])?;
    Ok(vec![cx.reduce(ReduceOp::Sum, y, &along, false)?])
}

/// Rows by groups: those before `offs[0]` times the first matrix, those up to `offs[1]` times the second, and so on.
fn grouped(cx: &mut Cx, [x, w]: [&str; 2]) -> Lowered {
    let (x, w, ends) = (cx.tensor(x)?, cx.tensor(w)?, cx.tensor("offs")?);
    if cx.rank(x) != 2 || cx.rank(w) != 3 {
        return Err(OpError::unsupported(
            format!("operands of type {} and {}", cx.ty(x), cx.ty(w)),
            "group the rows of the first operand alone",
        ));
    }
    let rows = cx.shape(x)[0].clone();
    // The group of a row is how many groups end at it or before.
    let ends = cx.converted(ends, DType::I64)?;
    let row = cx.iota(&[rows, Dim::ONE], Poly::var(0), DType::I64)?;
    let before = cx.binary(BinaryOp::Le, ends, row)?;
    let before = cx.converted(before, DType::I64)?;
    let group = cx.reduce(ReduceOp::Sum, before, &[1], false)?;
    let each = cx.take(w, group, 0)?;
    let contract = Contract { a: vec![0, 1], b: vec![0, 1, 2], out: vec![0, 2] };
    Ok(vec![cx.push(Op::Contract(contract), &[x, each])?])
}
