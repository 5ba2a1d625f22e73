//! Operators that torch's ATen dialect keeps and its core dialect decomposes.

use super::super::prelude::*;
use super::super::promote;
use crate::lower::order::{self, Between};
use crate::lower::{elementwise, histogram, search, shape, split};
use wgfc_ir::{Op, Poly, ReduceOp, Scalar};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.block_diag.default", blocks),
    OpDef::new("aten.cartesian_prod.default", products).views("tensors"),
    OpDef::new("aten.combinations.default", combinations),
    OpDef::new("aten.cumulative_trapezoid.dx|x", |cx| areas(cx, true)),
    OpDef::new("aten.diag.default", |cx| {
        let x = cx.tensor("self")?;
        match cx.rank(x) {
            1 => flat_diagonal(cx, "diagonal"),
            _ => {
                let (k, ty) = (cx.int("diagonal")?, cx.result(0)?);
                let at = [&Poly::var(0) - k.min(0), &Poly::var(0) + k.max(0)];
                Ok(vec![cx.view(x, ty.shape, at.to_vec())?])
            }
        }
    }),
    OpDef::new("aten.diagflat.default", |cx| flat_diagonal(cx, "offset")),
    OpDef::new("aten.dsplit.array|int", |cx| parts_at(cx, 2)),
    OpDef::new("aten.hsplit.array|int", |cx| parts_at(cx, 1)),
    OpDef::new("aten.isin.Scalar_Tensor", |cx| is_in(cx, "element", "test_elements")),
    OpDef::new("aten.isin.Tensor_Scalar", |cx| is_in(cx, "elements", "test_element")),
    OpDef::new("aten.isin.Tensor_Tensor", |cx| is_in(cx, "elements", "test_elements")),
    OpDef::new("aten.linspace.Scalar_Tensor|Tensor_Scalar|Tensor_Tensor|default", |cx| spaced(cx, false)),
    OpDef::new("aten.logspace.Scalar_Tensor|Tensor_Scalar|Tensor_Tensor|default", |cx| spaced(cx, true)).notes("powers as integers are refused"),
    OpDef::new("aten.meshgrid.default", |cx| meshes(cx, false)).views("tensors").repeats(),
    OpDef::new("aten.meshgrid.indexing", |cx| {
        let columns = cx.text("indexing")?.as_deref() == Some("xy");
        meshes(cx, columns)
    })
    .views("tensors")
    .repeats(),
    OpDef::new("aten.nanquantile.default|scalar", |cx| quantile(cx, true)),
    OpDef::new("aten.quantile.default|scalar", |cx| quantile(cx, false)),
    OpDef::new("aten.tensor_split.indices|sections", parts),
    OpDef::new("aten.trapezoid.dx|x", |cx| areas(cx, false)),
    OpDef::new("aten.trapz.dx|x", |cx| areas(cx, false)),
    OpDef::new("aten.vsplit.array|int", |cx| parts_at(cx, 0)),
];

/// Evenly spaced numbers, or powers of a base with evenly spaced exponents.
fn spaced(cx: &mut Cx, powers: bool) -> Lowered {
    let ty = cx.result(0)?;
    let wide = if ty.dtype.is_float() { ty.dtype } else { promote::DEFAULT };
    let [start, end] = cx.all_in(["start", "end"], wide)?;
    let (start, end) = (cx.reshape(start, vec![])?, cx.reshape(end, vec![])?);
    let mut y = histogram::spaced(cx, [start, end], steps(&ty.shape)?)?;
    if powers {
        if !ty.dtype.is_float() {
            return Err(OpError::unsupported(
                "powers that are rounded to integers",
                "pass dtype=torch.float32, and round the result",
            )
            .param("dtype"));
        }
        let base = cx.float("base")?;
        let base = cx.scalar(wide, base);
        y = elementwise::pow(cx, base, y)?;
    }
    Ok(vec![cx.converted(y, ty.dtype)?])
}

fn steps(shape: &[Dim]) -> Result<i64> {
    let n = shape.first().and_then(|d| d.as_const());
    n.ok_or_else(|| OpError::symbolic("the number of steps must be a constant").param("steps"))
}

/// A block-diagonal matrix of the given matrices.
fn blocks(cx: &mut Cx) -> Lowered {
    let ty = cx.result(0)?;
    let (mut row, mut column) = (Dim::ZERO, Dim::ZERO);
    let mut rows = vec![];
    for x in cx.tensors("tensors")? {
        let x = cx.converted(x, ty.dtype)?;
        let rank = cx.rank(x);
        let x = cx.unsqueeze(x, if rank == 0 { &[0, 1] } else if rank == 1 { &[0] } else { &[] })?;
        let dims = cx.shape(cx.require_rank(x, 2)?);
        let after = &(&ty.shape[1] - &column) - &dims[1];
        let zero = Scalar::from_i64(ty.dtype, 0);
        rows.push(cx.pad(x, &[Dim::ZERO, column.clone()], &[Dim::ZERO, after], zero)?);
        (row, column) = (&row + &dims[0], &column + &dims[1]);
    }
    cx.require_equal(&row, &ty.shape[0]);
    Ok(vec![shape::concat(cx, &rows, 0)?])
}

fn flat_diagonal(cx: &mut Cx, offset: &str) -> Lowered {
    let (x, k, ty) = (cx.tensor("self")?, cx.int(offset)?, cx.result(0)?);
    let n: Dim = cx.shape(x).iter().product();
    let x = cx.reshape(x, vec![n, Dim::ONE])?;
    let index = vec![&Poly::var(0) + k.min(0), &(&Poly::var(1) - &Poly::var(0)) - k];
    let fill = Some(Scalar::from_i64(ty.dtype, 0));
    Ok(vec![cx.push(Op::View { shape: ty.shape, index, fill }, &[x])?])
}

/// One tensor per axis that varies along that axis only; `columns` swaps the first two axes.
fn meshes(cx: &mut Cx, columns: bool) -> Lowered {
    let xs = cx.tensors("tensors")?;
    let mut out = vec![];
    for (i, x) in xs.iter().enumerate() {
        let want = cx.result(i)?.shape;
        let axis = if columns && i < 2 && xs.len() > 1 { 1 - i } else { i };
        let index = if cx.rank(*x) == 0 { vec![] } else { vec![Poly::var(axis)] };
        out.push(cx.view(*x, want, index)?);
    }
    Ok(out)
}

/// The Cartesian product of the tensors; the last one varies fastest.
fn products(cx: &mut Cx) -> Lowered {
    let xs = cx.tensors("tensors")?;
    if let [x] = xs[..] {
        return Ok(vec![x]);
    }
    let dims: Vec<Dim> = xs.iter().map(|x| cx.ty(*x).numel()).collect();
    let n: Dim = dims.iter().product();
    let mut columns = vec![];
    for (i, x) in xs.iter().enumerate() {
        let all = cx.view(*x, dims.clone(), vec![Poly::var(i)])?;
        columns.push(cx.reshape(all, vec![n.clone(), Dim::ONE])?);
    }
    Ok(vec![shape::concat(cx, &columns, 1)?])
}

/// All combinations of `r` elements, in lexicographic order of positions.
fn combinations(cx: &mut Cx) -> Lowered {
    let (x, r, again) = (cx.tensor("self")?, cx.int("r")?, cx.flag("with_replacement")?);
    let n = cx.shape(cx.require_rank(x, 1)?)[0].clone();
    let Some(n) = n.as_const() else {
        return Err(OpError::symbolic(format!("the number of elements, `{n}`, must be a constant")).operand(x));
    };
    let ty = cx.result(0)?;
    let rows = ty.shape[0].as_const().unwrap_or(0);
    if rows * r > 1 << 24 {
        return Err(OpError::unsupported(format!("{rows} combinations, more than 2^24 elements"), "choose among fewer elements"));
    }
    let mut at: Vec<i64> = vec![];
    let mut row: Vec<i64> = vec![];
    choose(n, r, again, &mut row, &mut at);
    if at.is_empty() {
        return Ok(vec![cx.full(&ty.shape, Scalar::from_i64(ty.dtype, 0))?]);
    }
    let width = usize::try_from(r).unwrap_or(1).max(1);
    let at = cx.constant(wgfc_ir::Tensor::from_i64(vec![at.len() / width, width], &at));
    Ok(vec![cx.take(x, at, 0)?])
}

fn choose(n: i64, r: i64, again: bool, row: &mut Vec<i64>, out: &mut Vec<i64>) {
    if row.len() as i64 >= r {
        out.extend_from_slice(row);
        return;
    }
    let first = row.last().map_or(0, |l| l + i64::from(!again));
    for i in first..n {
        row.push(i);
        choose(n, r, again, row, out);
        row.pop();
    }
}

/// Integrals along an axis by the trapezoidal rule: the total, or the cumulative sums.
fn areas(cx: &mut Cx, cumulative: bool) -> Lowered {
    let to = cx.result_dtype(0)?;
    let y = cx.tensor("y")?;
    let y = cx.converted(y, to)?;
    let rank = cx.rank(y);
    let axis = cx.axis("dim", rank)?;
    let pairs = |cx: &mut Cx, v: Value, axis: usize| -> Result<[Value; 2]> {
        let n = &cx.shape(v)[axis] - 1;
        Ok([cx.slice(v, axis, &Poly::ZERO, 1, &n)?, cx.slice(v, axis, &Poly::ONE, 1, &n)?])
    };
    if cx.shape(y)[axis].is(0) {
        let ty = cx.result(0)?;
        return Ok(vec![cx.full(&ty.shape, Scalar::from_i64(to, 0))?]);
    }
    let [low, high] = pairs(cx, y, axis)?;
    let sum = cx.binary(BinaryOp::Add, low, high)?;
    let step = if cx.declares("dx") {
        let dx = cx.number("dx")?;
        cx.number_in(&dx, to)?
    } else {
        let x = cx.tensor("x")?;
        let x = cx.converted(x, to)?;
        let of = if cx.rank(x) == 1 { 0 } else { axis + cx.rank(x) - rank };
        let [left, right] = pairs(cx, x, of)?;
        let step = cx.binary(BinaryOp::Sub, right, left)?;
        let trailing: Vec<usize> = (1..rank - axis).collect();
        if cx.rank(x) == 1 { cx.unsqueeze(step, &trailing)? } else { step }
    };
    let area = cx.binary(BinaryOp::Mul, sum, step)?;
    let area = cx.binary_scalar(BinaryOp::Div, area, 2.0)?;
    Ok(vec![match cumulative {
        true => crate::lower::scan::running(cx, area, axis, ReduceOp::Sum)?,
        false => cx.reduce(ReduceOp::Sum, area, &[axis], false)?,
    }])
}

fn parts(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let axis = cx.axis("dim", cx.rank(x))?;
    parts_along(cx, x, axis)
}

/// Parts along `axis`, or along the last axis if the rank is too small.
fn parts_at(cx: &mut Cx, axis: usize) -> Lowered {
    let x = cx.tensor("self")?;
    let axis = axis.min(cx.rank(x).saturating_sub(1));
    parts_along(cx, x, axis)
}

/// Parts along an axis; their lengths are those of the declared results.
fn parts_along(cx: &mut Cx, x: Value, axis: usize) -> Lowered {
    let mut sizes = vec![];
    for i in 0..cx.result_count() {
        sizes.push(cx.result(i)?.shape[axis].clone());
    }
    if cx.declares("sections") {
        return split::split(cx, x, axis, &sizes);
    }
    // Parts given by indices may start anywhere and overlap.
    let extent = cx.shape(x)[axis].clone();
    let begins = [Dim::ZERO].into_iter().chain(cx.sizes("indices")?);
    let mut out = vec![];
    for (at, len) in begins.zip(sizes) {
        let at = super::views::from_end(cx, at, &extent).max_of(&Dim::ZERO, &[]).min_of(&extent, &[]);
        out.push(cx.slice(x, axis, &at, 1, &len)?);
    }
    Ok(out)
}

/// Whether each element is among others. It is if its left and right insertion positions in the sorted others differ.
fn is_in(cx: &mut Cx, elements: &str, among: &str) -> Lowered {
    let (a, b) = (cx.operand(elements)?, cx.operand(among)?);
    let mut dtype = promote::common(&[cx.kind(&a), cx.kind(&b)]);
    if dtype == DType::Bool {
        dtype = DType::I32;
    }
    let (a, b) = (cx.in_type(&a, dtype)?, cx.in_type(&b, dtype)?);
    let among = shape::reshape(cx, b, &[Dim::from(-1i64)])?;
    let n = cx.shape(among)[0].clone();
    let [sorted, _] = order::sort(cx, among, 0, &n, false)?;
    let (first, behind) = (search::place(cx, sorted, a, false)?, search::place(cx, sorted, a, true)?);
    let op = if cx.flag("invert")? { BinaryOp::Eq } else { BinaryOp::Ne };
    Ok(vec![elementwise::binary(cx, op, first, behind)?])
}

/// Quantiles along an axis, or over all elements without one. A tensor of several `q` adds a first axis to the result.
fn quantile(cx: &mut Cx, skip_nan: bool) -> Lowered {
    let x = cx.tensor("self")?;
    let dtype = cx.dtype(x);
    let q = cx.operand("q")?;
    let q = cx.in_type(&q, dtype)?;
    let several = cx.rank(q) > 0;
    let q = shape::reshape(cx, q, &[Dim::from(-1i64)])?;
    let between = match cx.text("interpolation")?.as_deref() {
        None | Some("linear") => Between::Linear,
        Some("lower") => Between::Lower,
        Some("higher") => Between::Higher,
        Some("midpoint") => Between::Middle,
        Some("nearest") => Between::Nearest,
        Some(m) => return Err(OpError::model(format!("unknown interpolation `{m}`")).param("interpolation")),
    };
    let dims = cx.shape(x);
    let (mut lead, rows) = match cx.has("dim") && !dims.is_empty() {
        true => {
            let axis = cx.axis("dim", dims.len())?;
            let mut order: Vec<usize> = (0..dims.len()).filter(|d| *d != axis).collect();
            let lead: Vec<Dim> = order.iter().map(|d| dims[*d].clone()).collect();
            order.push(axis);
            (lead.clone(), {
                let moved = cx.transpose(x, &order)?;
                cx.reshape(moved, vec![lead.iter().product(), dims[axis].clone()])?
            })
        }
        false => (vec![], cx.reshape(x, vec![Dim::ONE, dims.iter().product()])?),
    };
    let y = order::quantile(cx, rows, q, between, skip_nan)?;
    let y = cx.transpose(y, &[1, 0])?;
    if several {
        lead.insert(0, cx.shape(y)[0].clone());
    }
    let y = cx.reshape(y, lead)?;
    let want = cx.result(0)?.shape;
    Ok(vec![cx.reshape(y, want)?])
}
