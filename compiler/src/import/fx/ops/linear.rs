//! Matrix products.

use super::super::prelude::*;
use crate::lower::{einsum, elementwise, matmul, shape};
use wgfc_ir::{Contract, Op, Poly, ReduceOp};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._grouped_mm.default", |cx| grouped(cx, ["self", "mat2"]))
        .notes("rows of a matrix by groups, each with a matrix of its own"),
    OpDef::new("aten._int_mm.default", |cx| product(cx, "self", "mat2")),
    OpDef::new("aten._trilinear.default", trilinear),
    OpDef::new("aten.addbmm.default", |cx| added(cx, ["self", "batch1", "batch2"], true)),
    OpDef::new("aten.addmm.default", |cx| added(cx, ["self", "mat1", "mat2"], false)),
    OpDef::new("aten.addmv.default", |cx| added(cx, ["self", "mat", "vec"], false)),
    OpDef::new("aten.addr.default", plus_outer),
    OpDef::new("aten.baddbmm.default", |cx| added(cx, ["self", "batch1", "batch2"], false)),
    OpDef::new("aten.bilinear.default", bilinear),
    OpDef::new("aten.bmm.default", |cx| product(cx, "self", "mat2")),
    OpDef::new("aten.chain_matmul.default", |cx| chain(cx, "matrices")),
    OpDef::new("aten.dot.default", |cx| product(cx, "self", "tensor")),
    OpDef::new("aten.einsum.default", by_labels).views("tensors"),
    OpDef::new("aten.ger.default", outer),
    OpDef::new("aten.inner.default", inner),
    OpDef::new("aten.kron.default", kronecker),
    OpDef::new("aten.linalg_matmul.default", |cx| product(cx, "self", "other")),
    OpDef::new("aten.linalg_multi_dot.default", |cx| chain(cx, "tensors")),
    OpDef::new("aten.linalg_vecdot.default", along_axis),
    OpDef::new("aten.linear.default", linear),
    OpDef::new("aten.matmul.default", |cx| product(cx, "self", "other")),
    OpDef::new("aten.mm.default", |cx| product(cx, "self", "mat2")),
    OpDef::new("aten.mv.default", |cx| product(cx, "self", "vec")),
    OpDef::new("aten.outer.default", outer),
    OpDef::new("aten.tensordot.default", contracted),
    OpDef::new("aten.vdot.default", |cx| product(cx, "self", "other")),
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

/// `beta · self + alpha · a · b`; if `summed`, the products are summed over the batch.
fn added(cx: &mut Cx, [c, a, b]: [&str; 3], summed: bool) -> Lowered {
    let (mut c, mut a, mut b) = (cx.tensor(c)?, cx.tensor(a)?, cx.tensor(b)?);
    let (alpha, beta) = (cx.number("alpha")?, cx.number("beta")?);
    let result = cx.dtype(a);
    // Scaled terms are computed in f32, so that 16-bit floats are rounded only once.
    let dtype = if result.is_float() && !(alpha.is(1.0) && (beta.is(0.0) || beta.is(1.0))) { DType::F32 } else { result };
    for v in [&mut c, &mut a, &mut b] {
        *v = cx.converted(*v, dtype)?;
    }
    let mut y = matmul::matmul(cx, a, b)?;
    if summed {
        y = cx.reduce(ReduceOp::Sum, y, &[0], false)?;
    }
    if !alpha.is(1.0) {
        let alpha = cx.number_in(&alpha, dtype)?;
        y = cx.binary(BinaryOp::Mul, y, alpha)?;
    }
    // With a factor of 0 the addend is ignored, even if it holds NaN.
    if beta.is(0.0) {
        let want = cx.result(0)?.shape;
        let y = cx.converted(y, result)?;
        return Ok(vec![shape::expand(cx, y, &want)?]);
    }
    if !beta.is(1.0) {
        let beta = cx.number_in(&beta, dtype)?;
        c = cx.binary(BinaryOp::Mul, c, beta)?;
    }
    let y = cx.binary(BinaryOp::Add, y, c)?;
    Ok(vec![cx.converted(y, result)?])
}

fn by_labels(cx: &mut Cx) -> Lowered {
    let xs = cx.tensors("tensors")?;
    let text = cx.text("equation")?.unwrap_or_default();
    Ok(vec![einsum::einsum(cx, &xs, &text)?])
}

/// The product of three tensors with inserted axes, summed along some axes.
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

/// A grouped product: rows before `offs[0]` are multiplied by the first matrix, rows before `offs[1]` by the second, and so on.
fn grouped(cx: &mut Cx, [x, w]: [&str; 2]) -> Lowered {
    let (x, w, ends) = (cx.tensor(x)?, cx.tensor(w)?, cx.tensor("offs")?);
    if cx.rank(x) != 2 || cx.rank(w) != 3 {
        return Err(OpError::unsupported(
            format!("operands of type {} and {}", cx.ty(x), cx.ty(w)),
            "group the rows of the first operand alone",
        ));
    }
    let rows = cx.shape(x)[0].clone();
    // The group of a row is the number of groups that end at or before it.
    let ends = cx.converted(ends, DType::I64)?;
    let row = cx.iota(&[rows, Dim::ONE], Poly::var(0), DType::I64)?;
    let before = cx.binary(BinaryOp::Le, ends, row)?;
    let before = cx.converted(before, DType::I64)?;
    let group = cx.reduce(ReduceOp::Sum, before, &[1], false)?;
    let each = cx.take(w, group, 0)?;
    let contract = Contract { a: vec![0, 1], b: vec![0, 1, 2], out: vec![0, 2] };
    Ok(vec![cx.push(Op::Contract(contract), &[x, each])?])
}

/// `beta · self + alpha · vec1 · vec2ᵀ`.
fn plus_outer(cx: &mut Cx) -> Lowered {
    let ty = cx.result(0)?;
    let [c, a, b] = cx.all_in(["self", "vec1", "vec2"], ty.dtype)?;
    let (alpha, beta) = (cx.number("alpha")?, cx.number("beta")?);
    let (times, plus) = match ty.dtype {
        DType::Bool => (BinaryOp::And, BinaryOp::Or),
        _ => (BinaryOp::Mul, BinaryOp::Add),
    };
    let a = cx.unsqueeze(a, &[1])?;
    let mut y = elementwise::binary(cx, times, a, b)?;
    if !alpha.is(1.0) {
        let alpha = cx.number_in(&alpha, ty.dtype)?;
        y = elementwise::binary(cx, times, y, alpha)?;
    }
    // With a factor of 0 the addend is ignored, even if it holds NaN.
    if beta.is(0.0) {
        return Ok(vec![shape::expand(cx, y, &ty.shape)?]);
    }
    let mut c = c;
    if !beta.is(1.0) {
        let beta = cx.number_in(&beta, ty.dtype)?;
        c = elementwise::binary(cx, times, c, beta)?;
    }
    Ok(vec![elementwise::binary(cx, plus, c, y)?])
}

/// `Σ x1ᵢ · wₒᵢⱼ · x2ⱼ + bias`.
fn bilinear(cx: &mut Cx) -> Lowered {
    let (a, b, w) = (cx.tensor("input1")?, cx.tensor("input2")?, cx.tensor("weight")?);
    let (rank, dims) = (cx.rank(a), cx.shape(cx.require_rank(w, 3)?));
    if rank == 0 || cx.rank(b) != rank {
        return Err(OpError::model(format!("operands of type {} and {}", cx.ty(a), cx.ty(b))));
    }
    let (column, row) = (cx.unsqueeze(a, &[rank])?, cx.unsqueeze(b, &[rank - 1])?);
    let pairs = cx.binary(BinaryOp::Mul, column, row)?;
    let n = &dims[1] * &dims[2];
    let mut flat = cx.shape(a);
    flat[rank - 1] = n.clone();
    let pairs = cx.reshape(pairs, flat)?;
    let w = cx.reshape(w, vec![dims[0].clone(), n])?;
    let w = cx.transpose(w, &[1, 0])?;
    let pairs = if rank == 1 { cx.unsqueeze(pairs, &[0])? } else { pairs };
    let mut y = matmul::matmul(cx, pairs, w)?;
    if rank == 1 {
        y = cx.squeeze(y, &[0])?;
    }
    Ok(vec![match cx.opt_tensor("bias")? {
        Some(b) => cx.binary(BinaryOp::Add, y, b)?,
        None => y,
    }])
}

/// Contracts axes of both operands; the other axes keep their order.
fn over(cx: &mut Cx, [a, b]: [Value; 2], [of_a, of_b]: [&[usize]; 2]) -> Result {
    let ty = cx.result(0)?;
    let (mut a, mut b) = (cx.converted(a, ty.dtype)?, cx.converted(b, ty.dtype)?);
    // If one of a pair of axes has the extent 1, the other operand is summed along its axis.
    for (i, j) in of_a.iter().zip(of_b) {
        let (m, n) = (cx.shape(a)[*i].clone(), cx.shape(b)[*j].clone());
        if n.is(1) && !m.is(1) {
            a = cx.reduce(ReduceOp::Sum, a, &[*i], true)?;
        } else if m.is(1) && !n.is(1) {
            b = cx.reduce(ReduceOp::Sum, b, &[*j], true)?;
        }
    }
    let rest = |cx: &Cx, v: Value, along: &[usize]| -> Vec<usize> { (0..cx.rank(v)).filter(|d| !along.contains(d)).collect() };
    let extent = |cx: &Cx, v: Value, axes: &[usize]| -> Dim { axes.iter().map(|d| cx.shape(v)[*d].clone()).product() };
    let (free_a, free_b) = (rest(cx, a, of_a), rest(cx, b, of_b));
    let k = extent(cx, a, of_a);
    let (m, n) = (extent(cx, a, &free_a), extent(cx, b, &free_b));
    let a = cx.transpose(a, &[&free_a, of_a].concat())?;
    let b = cx.transpose(b, &[of_b, &free_b].concat())?;
    let a = shape::reshape(cx, a, &[m, k.clone()])?;
    let b = shape::reshape(cx, b, &[k, n])?;
    let y = matmul::matmul(cx, a, b)?;
    shape::reshape(cx, y, &ty.shape)
}

fn contracted(cx: &mut Cx) -> Lowered {
    let (a, b) = (cx.tensor("self")?, cx.tensor("other")?);
    let axes = |cx: &Cx, name: &str, rank: usize| -> Result<Vec<usize>> {
        cx.ints(name)?.iter().map(|d| crate::lower::axis(*d, rank)).collect()
    };
    let (of_a, of_b) = (axes(cx, "dims_self", cx.rank(a))?, axes(cx, "dims_other", cx.rank(b))?);
    if of_a.len() != of_b.len() {
        return Err(OpError::model(format!("{} axes and {}", of_a.len(), of_b.len())).param("dims_other"));
    }
    Ok(vec![over(cx, [a, b], [&of_a, &of_b])?])
}

/// The inner product along the last axes; an operand of rank 0 scales the other.
fn inner(cx: &mut Cx) -> Lowered {
    let (a, b) = (cx.tensor("self")?, cx.tensor("other")?);
    let (rank_a, rank_b) = (cx.rank(a), cx.rank(b));
    if rank_a == 0 || rank_b == 0 {
        let [a, b] = cx.promoted(["self", "other"])?;
        return Ok(vec![elementwise::binary(cx, BinaryOp::Mul, a, b)?]);
    }
    Ok(vec![over(cx, [a, b], [&[rank_a - 1], &[rank_b - 1]])?])
}

/// The sum of products along an axis.
fn along_axis(cx: &mut Cx) -> Lowered {
    let [a, b] = cx.promoted(["x", "y"])?;
    let product = cx.binary(BinaryOp::Mul, a, b)?;
    let axes: Vec<usize> = match cx.rank(product) {
        0 => vec![],
        rank => vec![cx.axis("dim", rank)?],
    };
    Ok(vec![cx.reduce(ReduceOp::Sum, product, &axes, false)?])
}

/// The Kronecker product; the operand of lower rank gets leading axes of extent 1.
fn kronecker(cx: &mut Cx) -> Lowered {
    let want = cx.result(0)?.shape;
    let [a, b] = cx.promoted(["self", "other"])?;
    let rank = cx.rank(a).max(cx.rank(b));
    let interleaved = |cx: &mut Cx, v: Value, second: bool| -> Result {
        let mut dims = vec![Dim::ONE; rank - cx.rank(v)];
        dims.extend(cx.shape(v));
        let pairs: Vec<Dim> =
            dims.into_iter().flat_map(|d| if second { [Dim::ONE, d] } else { [d, Dim::ONE] }).collect();
        shape::reshape(cx, v, &pairs)
    };
    let (a, b) = (interleaved(cx, a, false)?, interleaved(cx, b, true)?);
    let y = elementwise::binary(cx, BinaryOp::Mul, a, b)?;
    Ok(vec![shape::reshape(cx, y, &want)?])
}

/// A product of several matrices, of which the first or the last may be a vector.
fn chain(cx: &mut Cx, name: &'static str) -> Lowered {
    let mut all = cx.tensors(name)?;
    let from_end = all.last().is_some_and(|v| cx.rank(*v) == 1);
    if from_end {
        all.reverse();
    }
    let Some((first, others)) = all.split_first() else {
        return Err(OpError::model("no matrices").param(name));
    };
    let mut y = *first;
    for x in others {
        y = if from_end { matmul::matmul(cx, *x, y)? } else { matmul::matmul(cx, y, *x)? };
    }
    Ok(vec![y])
}
