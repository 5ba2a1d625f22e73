//! Linear algebra of batches of matrices.

use super::super::messages::Argument;
use super::super::prelude::*;
use crate::lower::linalg::{self, Applied, Equation, Reflections, Triangular};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._linalg_det.default", det).notes("its factors are those of A, not of its transpose"),
    OpDef::new("aten._linalg_eigh.default", eigh).notes("signs of vectors are not those of LAPACK"),
    OpDef::new("aten._linalg_slogdet.default", slogdet).notes("its factors are those of A, not of its transpose"),
    OpDef::new("aten._linalg_solve_ex.default", solve_ex),
    OpDef::new("aten._linalg_svd.default", svd).notes("signs of vectors are not those of LAPACK"),
    OpDef::new("aten._lu_with_info.default", lu_factor),
    OpDef::new("aten.cholesky_inverse.default", cholesky_inverse),
    OpDef::new("aten.cholesky_solve.default", cholesky_solve),
    OpDef::new("aten.det.default", det),
    OpDef::new("aten.geqrf.default", geqrf),
    OpDef::new("aten.inverse.default", inverse),
    OpDef::new("aten.linalg_cholesky.default", cholesky),
    OpDef::new("aten.linalg_cholesky_ex.default", cholesky),
    OpDef::new("aten.linalg_det.default", det),
    OpDef::new("aten.linalg_eigh.default", eigh).notes("signs of vectors are not those of LAPACK"),
    OpDef::new("aten.linalg_eigvalsh.default", |cx| Ok(vec![eigh(cx)?[0]])),
    OpDef::new("aten.linalg_householder_product.default", householder),
    OpDef::new("aten.linalg_inv.default", inverse),
    OpDef::new("aten.linalg_inv_ex.default", inverse),
    OpDef::new("aten.linalg_lu.default", lu),
    OpDef::new("aten.linalg_lu_factor.default", lu_factor),
    OpDef::new("aten.linalg_lu_factor_ex.default", lu_factor),
    OpDef::new("aten.linalg_lu_solve.default", lu_solve),
    OpDef::new("aten.linalg_matrix_exp.default", exponential),
    OpDef::new("aten.linalg_matrix_power.default", power),
    OpDef::new("aten.matrix_power.default", power),
    OpDef::new("aten.linalg_matrix_rank.atol_rtol_float|atol_rtol_tensor|default|tol_tensor", rank_of),
    OpDef::new("aten.linalg_matrix_sqrth.default", |cx| {
        let a = matrix(cx)?;
        Ok(vec![linalg::symmetric_root(cx, a)?])
    }),
    OpDef::new("aten.linalg_pinv.atol_rtol_float|atol_rtol_tensor|default|rcond_tensor", pseudo_inverse),
    OpDef::new("aten.linalg_polar.default", |cx| {
        let a = matrix(cx)?;
        let (u, h) = linalg::polar(cx, a)?;
        Ok(vec![u, h])
    }),
    OpDef::new("aten.linalg_qr.default", qr),
    OpDef::new("aten.linalg_slogdet.default", slogdet),
    OpDef::new("aten.linalg_solve.default", solve_ex),
    OpDef::new("aten.linalg_solve_ex.default", solve_ex),
    OpDef::new("aten.linalg_solve_triangular.default", solve_triangular),
    OpDef::new("aten.linalg_svd.default", svd).notes("signs of vectors are not those of LAPACK"),
    OpDef::new("aten.linalg_svdvals.default", |cx| {
        let a = matrix(cx)?;
        Ok(vec![linalg::singular(cx, a, false)?.s])
    }),
    OpDef::new("aten.linalg_tensorinv.default", inverse_of_tensor),
    OpDef::new("aten.linalg_tensorsolve.default", solve_of_tensor),
    OpDef::new("aten.logdet.default", logdet),
    OpDef::new("aten.lu_solve.default", |cx| {
        let (b, lu, pivots) = (cx.tensor("self")?, cx.tensor("LU_data")?, cx.tensor("LU_pivots")?);
        Ok(vec![linalg::lu_solve(cx, lu, pivots, b, Equation { transposed: false, right: false })?])
    }),
    OpDef::new("aten.lu_unpack.default", lu_unpack),
    OpDef::new("aten.matrix_exp.default", exponential),
    OpDef::new("aten.orgqr.default", householder),
    OpDef::new("aten.ormqr.default", ormqr),
    OpDef::new("aten.pinverse.default", pseudo_inverse),
    OpDef::new("aten.slogdet.default", slogdet),
    OpDef::new("aten.svd.default", old_svd).notes("signs of vectors are not those of LAPACK"),
    OpDef::new("aten.triangular_solve.default", triangular_solve),
    OpDef::new("higher_order.with_effects", checked)
        .notes("errors of linear algebra (`_linalg_check_errors`): they are not raised, results are not to be used then"),
];

/// An operator that raises an error in torch. Its first result is a token that orders such operators.
fn checked(cx: &mut Cx) -> Lowered {
    let what = cx.positional().find_map(|a| match a {
        Argument::Operator(name) => Some(name.strip_prefix("torch.ops.").unwrap_or(name)),
        _ => None,
    });
    match what {
        Some("aten._linalg_check_errors.default") => Ok(vec![cx.scalar(DType::F32, 0.0)]),
        what => {
            let what = what.unwrap_or("the operator");
            Err(OpError::unsupported(
                format!("{what} has an effect on the host"),
                "remove it from the module",
            ))
        }
    }
}

fn eigh(cx: &mut Cx) -> Lowered {
    let a = matrix(cx)?;
    let upper = if cx.declares("UPLO") { cx.text("UPLO")? } else { None };
    let upper = upper.is_some_and(|t| t.eq_ignore_ascii_case("u"));
    let (values, vectors) = linalg::eigen(cx, a, upper)?;
    some(cx, vec![values, vectors])
}

fn svd(cx: &mut Cx) -> Lowered {
    let (a, full) = (matrix(cx)?, cx.flag("full_matrices")?);
    let d = linalg::singular(cx, a, full)?;
    Ok(vec![d.u, d.s, d.vt])
}

fn exponential(cx: &mut Cx) -> Lowered {
    let a = matrix(cx)?;
    Ok(vec![linalg::exponential(cx, a)?])
}

/// The thresholds below which singular values count as 0. The relative one is a share of the largest singular value, by default the
/// machine epsilon times the longer side; the absolute one is 0 by default. If only an absolute one is given, the relative one is 0.
fn limits(cx: &mut Cx, a: Value) -> Result<linalg::Limits> {
    let shape = cx.shape(a);
    let limit = |cx: &mut Cx, names: &[&str]| -> Result<Option<Value>> {
        let Some(name) = names.iter().find(|n| cx.declares(n)) else { return Ok(None) };
        // The threshold is a tensor or a number.
        if let Ok(v) = cx.opt_tensor(name) {
            return Ok(v);
        }
        let number = cx.opt_float(name)?;
        Ok(number.map(|v| cx.scalar(DType::F32, v)))
    };
    let (absolute, relative) = (limit(cx, &["atol", "tol"])?, limit(cx, &["rtol", "rcond"])?);
    let zero = cx.scalar(DType::F32, 0.0);
    let relative = match relative {
        Some(v) => v,
        None if cx.declares("tol") => zero,
        None => {
            let longest = match &shape[..] {
                [.., m, n] => m.max_of(n, &[]),
                _ => Dim::ONE,
            };
            let longest = cx.dim_scalar(&longest, DType::F32)?;
            let share = cx.binary_scalar(BinaryOp::Mul, longest, f64::from(f32::EPSILON))?;
            match absolute {
                None => share,
                Some(v) => {
                    let v = cx.converted(v, DType::F32)?;
                    let some = cx.binary_scalar(BinaryOp::Gt, v, 0.0)?;
                    cx.select(some, zero, share)?
                }
            }
        }
    };
    Ok(linalg::Limits { absolute: absolute.unwrap_or(zero), relative })
}

fn pseudo_inverse(cx: &mut Cx) -> Lowered {
    let a = cx.tensor("self")?;
    let limits = limits(cx, a)?;
    let symmetric = cx.declares("hermitian") && cx.flag("hermitian")?;
    Ok(vec![linalg::pseudo_inverse(cx, a, limits, symmetric)?])
}

/// The matrix operand, which different operators name differently.
fn matrix(cx: &mut Cx) -> Result {
    cx.tensor(if cx.declares("A") { "A" } else { "self" })
}

/// The first results, as many as the node has.
fn some(cx: &Cx, mut all: Vec<Value>) -> Lowered {
    all.truncate(cx.result_count());
    Ok(all)
}

fn cholesky(cx: &mut Cx) -> Lowered {
    let (a, upper) = (matrix(cx)?, cx.flag("upper")?);
    let c = linalg::cholesky(cx, a, upper)?;
    some(cx, vec![c.factor, c.info])
}

fn cholesky_solve(cx: &mut Cx) -> Lowered {
    let (b, factor, upper) = (cx.tensor("self")?, cx.tensor("input2")?, cx.flag("upper")?);
    Ok(vec![linalg::cholesky_solve(cx, b, factor, upper)?])
}

fn cholesky_inverse(cx: &mut Cx) -> Lowered {
    let (factor, upper) = (cx.tensor("self")?, cx.flag("upper")?);
    Ok(vec![linalg::cholesky_inverse(cx, factor, upper)?])
}

fn inverse(cx: &mut Cx) -> Lowered {
    let a = matrix(cx)?;
    let (x, info) = linalg::inverse(cx, a)?;
    some(cx, vec![x, info])
}

fn det(cx: &mut Cx) -> Lowered {
    let a = matrix(cx)?;
    let f = linalg::lu_factor(cx, a, true)?;
    let d = linalg::determinant(cx, &f)?;
    some(cx, vec![d, f.lu, f.pivots])
}

fn slogdet(cx: &mut Cx) -> Lowered {
    let a = matrix(cx)?;
    let f = linalg::lu_factor(cx, a, true)?;
    let (sign, log) = linalg::log_determinant(cx, &f)?;
    some(cx, vec![sign, log, f.lu, f.pivots])
}

/// The logarithm of the determinant; NaN if the determinant is negative.
fn logdet(cx: &mut Cx) -> Lowered {
    let a = matrix(cx)?;
    let f = linalg::lu_factor(cx, a, true)?;
    let (sign, log) = linalg::log_determinant(cx, &f)?;
    let of_sign = cx.unary(UnaryOp::Log, sign)?;
    let singular = cx.binary_scalar(BinaryOp::Eq, sign, 0.0)?;
    let sum = cx.binary(BinaryOp::Add, log, of_sign)?;
    Ok(vec![cx.select(singular, log, sum)?])
}

/// The right-hand side as a matrix, and whether it was a vector.
fn columns(cx: &mut Cx, a: Value, b: Value) -> Result<(Value, bool)> {
    let (ra, rb) = (cx.rank(a), cx.rank(b));
    let vector = rb == 1 || rb + 1 == ra && cx.shape(b)[..] == cx.shape(a)[..ra - 1];
    Ok((if vector { cx.unsqueeze(b, &[rb])? } else { b }, vector))
}

fn solve_ex(cx: &mut Cx) -> Lowered {
    let (a, b, left) = (cx.tensor("A")?, cx.tensor("B")?, cx.flag("left")?);
    let (b, vector) = columns(cx, a, b)?;
    let (x, f) = linalg::solve(cx, a, b, !left)?;
    let last = cx.rank(x) - 1;
    let x = if vector { cx.squeeze(x, &[last])? } else { x };
    // One overload does not return the factors.
    match cx.result_count() {
        2 => Ok(vec![x, f.info]),
        _ => some(cx, vec![x, f.lu, f.pivots, f.info]),
    }
}

fn lu_factor(cx: &mut Cx) -> Lowered {
    let (a, pivot) = (matrix(cx)?, cx.flag("pivot")?);
    let f = linalg::lu_factor(cx, a, pivot)?;
    some(cx, vec![f.lu, f.pivots, f.info])
}

fn lu(cx: &mut Cx) -> Lowered {
    let (a, pivot) = (matrix(cx)?, cx.flag("pivot")?);
    let f = linalg::lu_factor(cx, a, pivot)?;
    let (lower, upper) = linalg::lu_parts(cx, f.lu)?;
    let p = match pivot {
        true => permutation(cx, f.lu, f.pivots)?,
        // Without pivoting the permutation is an empty tensor.
        false => nothing(cx, 0)?,
    };
    Ok(vec![p, lower, upper])
}

fn permutation(cx: &mut Cx, lu: Value, pivots: Value) -> Result {
    let (rank, dtype) = (cx.rank(lu), cx.dtype(lu));
    let m = cx.shape(lu)[rank - 2].clone();
    linalg::permutation(cx, pivots, &m, dtype)
}

/// Zeros for a result that is not requested.
fn nothing(cx: &mut Cx, i: usize) -> Result {
    let ty = cx.result(i)?;
    Ok(cx.full(&ty.shape, wgfc_ir::Scalar::from_f64(ty.dtype, 0.0))?)
}

fn lu_unpack(cx: &mut Cx) -> Lowered {
    let (lu, pivots) = (cx.tensor("LU_data")?, cx.tensor("LU_pivots")?);
    let p = if cx.flag("unpack_pivots")? { permutation(cx, lu, pivots)? } else { nothing(cx, 0)? };
    let (lower, upper) = match cx.flag("unpack_data")? {
        true => linalg::lu_parts(cx, lu)?,
        false => (nothing(cx, 1)?, nothing(cx, 2)?),
    };
    Ok(vec![p, lower, upper])
}

fn lu_solve(cx: &mut Cx) -> Lowered {
    let (lu, pivots, b) = (cx.tensor("LU")?, cx.tensor("pivots")?, cx.tensor("B")?);
    let p = Equation { transposed: cx.flag("adjoint")?, right: !cx.flag("left")? };
    Ok(vec![linalg::lu_solve(cx, lu, pivots, b, p)?])
}

fn solve_triangular(cx: &mut Cx) -> Lowered {
    let (a, b) = (cx.tensor("self")?, cx.tensor("B")?);
    let p = Triangular {
        upper: cx.flag("upper")?,
        right: !cx.flag("left")?,
        unit: cx.flag("unitriangular")?,
        ..Triangular::default()
    };
    Ok(vec![linalg::solve_triangular(cx, a, b, p)?])
}

/// Solves a triangular system; the second result is the matrix.
fn triangular_solve(cx: &mut Cx) -> Lowered {
    let (b, a) = (cx.tensor("self")?, cx.tensor("A")?);
    let p = Triangular {
        upper: cx.flag("upper")?,
        transposed: cx.flag("transpose")?,
        unit: cx.flag("unitriangular")?,
        ..Triangular::default()
    };
    Ok(vec![linalg::solve_triangular(cx, a, b, p)?, a])
}

fn qr(cx: &mut Cx) -> Lowered {
    let a = matrix(cx)?;
    match cx.text("mode")?.as_deref() {
        Some("r") => {
            let (_, r) = linalg::qr(cx, a, false)?;
            Ok(vec![nothing(cx, 0)?, r])
        }
        mode => {
            let (q, r) = linalg::qr(cx, a, mode == Some("complete"))?;
            Ok(vec![q, r])
        }
    }
}

fn geqrf(cx: &mut Cx) -> Lowered {
    let a = cx.tensor("self")?;
    let r = linalg::reflections(cx, a)?;
    Ok(vec![r.vectors, r.tau])
}

fn householder(cx: &mut Cx) -> Lowered {
    let names = if cx.declares("tau") { ["input", "tau"] } else { ["self", "input2"] };
    let (vectors, tau) = (cx.tensor(names[0])?, cx.tensor(names[1])?);
    let n = cx.shape(vectors).last().cloned().unwrap_or(Dim::ONE);
    Ok(vec![linalg::columns_of(cx, &Reflections { vectors, tau }, &n)?])
}

fn ormqr(cx: &mut Cx) -> Lowered {
    let (vectors, tau, c) = (cx.tensor("self")?, cx.tensor("input2")?, cx.tensor("input3")?);
    let p = Applied { transposed: cx.flag("transpose")?, right: !cx.flag("left")? };
    Ok(vec![linalg::apply(cx, &Reflections { vectors, tau }, c, p)?])
}

/// The singular value decomposition that returns V instead of its transpose, and zeros for vectors that are not requested.
fn old_svd(cx: &mut Cx) -> Lowered {
    let (a, full) = (matrix(cx)?, !cx.flag("some")?);
    let d = linalg::singular(cx, a, full)?;
    if !cx.flag("compute_uv")? {
        return Ok(vec![nothing(cx, 0)?, d.s, nothing(cx, 2)?]);
    }
    let rank = cx.rank(d.vt);
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    Ok(vec![d.u, d.s, cx.transpose(d.vt, &order)?])
}

/// The number of singular values above the thresholds.
fn rank_of(cx: &mut Cx) -> Lowered {
    let a = cx.tensor(if cx.declares("input") { "input" } else { "self" })?;
    let limits = limits(cx, a)?;
    let ty = cx.result(0)?;
    if cx.ty(a).numel().is(0) {
        return Ok(vec![cx.full(&ty.shape, wgfc_ir::Scalar::from_i64(ty.dtype, 0))?]);
    }
    let sizes = match cx.flag("hermitian")? {
        true => {
            let (values, _) = linalg::eigen(cx, a, false)?;
            cx.unary(UnaryOp::Abs, values)?
        }
        false => linalg::singular(cx, a, false)?.s,
    };
    let (axis, dtype) = (cx.rank(sizes) - 1, cx.dtype(sizes));
    let mut each = [limits.absolute, limits.relative];
    for v in &mut each {
        let rank = cx.rank(*v);
        *v = cx.unsqueeze(*v, &[rank])?;
        *v = cx.converted(*v, dtype)?;
    }
    let most = cx.reduce(wgfc_ir::ReduceOp::Max, sizes, &[axis], true)?;
    let share = cx.binary(BinaryOp::Mul, most, each[1])?;
    let least = cx.binary(BinaryOp::Max, share, each[0])?;
    let count = cx.binary(BinaryOp::Gt, sizes, least)?;
    let count = cx.converted(count, ty.dtype)?;
    let axis = cx.rank(count) - 1;
    Ok(vec![cx.reduce(wgfc_ir::ReduceOp::Sum, count, &[axis], false)?])
}

/// An integer power of a matrix by repeated squaring; a negative power is one of the inverse.
fn power(cx: &mut Cx) -> Lowered {
    let (mut a, n) = (cx.tensor("self")?, cx.int("n")?);
    if n == 0 {
        let ty = cx.result(0)?;
        let [.., m, n] = &ty.shape[..] else {
            return Err(OpError::model(format!("needs matrices, got {}", cx.ty(a))).operand(a));
        };
        let one = crate::lower::placed::eye(cx, &[m.clone(), n.clone()], 0, ty.dtype)?;
        return Ok(vec![crate::lower::shape::expand(cx, one, &ty.shape)?]);
    }
    if n < 0 {
        a = linalg::inverse(cx, a)?.0;
    }
    let (mut rest, mut y) = (n.unsigned_abs(), None);
    loop {
        if rest % 2 == 1 {
            y = Some(match y {
                Some(y) => cx.matmul(y, a)?,
                None => a,
            });
        }
        rest /= 2;
        match y {
            Some(y) if rest == 0 => return Ok(vec![y]),
            _ => a = cx.matmul(a, a)?,
        }
    }
}

/// The inverse of a tensor whose first `ind` axes are the rows of a matrix and whose other axes are the columns.
fn inverse_of_tensor(cx: &mut Cx) -> Lowered {
    let (a, want) = (cx.tensor("self")?, cx.result(0)?.shape);
    let first = usize::try_from(cx.int("ind")?).unwrap_or(0).min(cx.rank(a));
    let n: Dim = cx.shape(a)[..first].iter().product();
    let a = crate::lower::shape::reshape(cx, a, &[n.clone(), n])?;
    let (x, _) = linalg::inverse(cx, a)?;
    Ok(vec![crate::lower::shape::reshape(cx, x, &want)?])
}

/// Solves a system whose matrix has several axes as rows and several as columns; the axes `dims` are first moved to the end.
fn solve_of_tensor(cx: &mut Cx) -> Lowered {
    let (mut a, b, want) = (cx.tensor("self")?, cx.tensor("other")?, cx.result(0)?.shape);
    let rank = cx.rank(a);
    let moved = cx.ints("dims")?.iter().map(|d| crate::lower::axis(*d, rank)).collect::<Result<Vec<_>>>()?;
    let mut order: Vec<usize> = (0..rank).filter(|d| !moved.contains(d)).collect();
    order.extend(moved);
    a = cx.transpose(a, &order)?;
    let n = cx.ty(b).numel();
    let a = crate::lower::shape::reshape(cx, a, &[n.clone(), n.clone()])?;
    let b = crate::lower::shape::reshape(cx, b, &[n, Dim::ONE])?;
    let (x, _) = linalg::solve(cx, a, b, false)?;
    Ok(vec![crate::lower::shape::reshape(cx, x, &want)?])
}
