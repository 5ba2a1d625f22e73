//! Triangles and diagonals of matrices.

use super::super::prelude::*;
use crate::lower::{Size, elementwise, placed, search, split};
use wgfc_ir::{Body, Op, Poly, Scalar, Tensor};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.diag_embed.default", |cx| {
        let x = cx.tensor("self")?;
        let (want, place) = diagonal_of(cx, 0)?;
        let index = place.index(&want);
        let fill = Some(Scalar::from_i64(cx.dtype(x), 0));
        let rank = cx.rank(x);
        let x = cx.unsqueeze(x, &[rank])?;
        Ok(vec![cx.push(Op::View { shape: want, index, fill }, &[x])?])
    }),
    OpDef::new("aten.diagonal.default", diagonal),
    OpDef::new("aten.diagonal_scatter.default", |cx| {
        cx.apart("self")?;
        let (x, source) = (cx.tensor("self")?, cx.tensor("src")?);
        let (want, place) = diagonal_of(cx, 0)?;
        let index = place.index(&want);
        let rank = cx.rank(source);
        let source = cx.unsqueeze(source, &[rank])?;
        Ok(vec![placed::over(cx, x, source, index)?])
    }),
    OpDef::new("aten.eye.default|m", eye),
    OpDef::new("aten.linalg_diagonal.default", diagonal),
    OpDef::new("aten.trace.default", |cx| {
        let x = cx.tensor("self")?;
        let dims = cx.shape(cx.require_rank(x, 2)?);
        let n = dims[0].min_of(&dims[1], &[]);
        let to = cx.result_dtype(0)?;
        let d = cx.view(x, vec![n], vec![Poly::var(0), Poly::var(0)])?;
        let d = cx.converted(d, to)?;
        Ok(vec![cx.reduce(wgfc_ir::ReduceOp::Sum, d, &[0], false)?])
    }),
    OpDef::new("aten.tril.default", |cx| triangle(cx, false)),
    OpDef::new("aten.tril_indices.default", |cx| indices(cx, false)),
    OpDef::new("aten.triu.default", |cx| triangle(cx, true)),
    OpDef::new("aten.triu_indices.default", |cx| indices(cx, true)),
];

fn eye(cx: &mut Cx) -> Lowered {
    let ty = cx.result(0)?;
    Ok(vec![placed::eye(cx, &ty.shape, 0, ty.dtype)?])
}

/// A diagonal of matrices along two axes, `offset` columns to the right of the main one.
struct Diagonal {
    rows: usize,
    columns: usize,
    offset: i64,
}

impl Diagonal {
    /// The index map from matrices to `[…, diagonal, 1]`: the last index is 0 on the diagonal and out of range beside it.
    fn index(&self, matrices: &[Dim]) -> Vec<Poly> {
        let others = (0..matrices.len()).filter(|d| *d != self.rows && *d != self.columns);
        let mut index: Vec<Poly> = others.map(Poly::var).collect();
        index.push(&Poly::var(self.rows) + self.offset.min(0));
        index.push(&(&Poly::var(self.columns) - &Poly::var(self.rows)) - self.offset);
        index
    }
}

/// The shape of a result that contains matrices, and the diagonal that the arguments describe.
fn diagonal_of(cx: &Cx, result: usize) -> Result<(Vec<Dim>, Diagonal)> {
    let want = cx.result(result)?.shape;
    Ok((want.clone(), which(cx, want.len())?))
}

fn which(cx: &Cx, rank: usize) -> Result<Diagonal> {
    let (rows, columns) = (cx.axis("dim1", rank)?, cx.axis("dim2", rank)?);
    if rows == columns {
        return Err(OpError::model(format!("both axes are {rows}")).param("dim2"));
    }
    Ok(Diagonal { rows, columns, offset: cx.int("offset")? })
}

fn diagonal(cx: &mut Cx) -> Lowered {
    let x = cx.tensor(if cx.declares("A") { "A" } else { "self" })?;
    let rank = cx.rank(x);
    let Diagonal { rows, columns, offset } = which(cx, rank)?;
    let mut want: Vec<Dim> = vec![];
    let mut index = vec![Poly::ZERO; rank];
    for (d, extent) in cx.shape(x).into_iter().enumerate() {
        if d != rows && d != columns {
            index[d] = Poly::var(want.len());
            want.push(extent);
        }
    }
    let last = Poly::var(want.len());
    want.extend(cx.result(0)?.shape.pop());
    index[rows] = &last - offset.min(0);
    index[columns] = &last + offset.max(0);
    Ok(vec![cx.view(x, want, index)?])
}

fn triangle(cx: &mut Cx, upper: bool) -> Lowered {
    let (x, k) = (cx.tensor("self")?, cx.size("diagonal")?);
    if cx.dtype(x) != DType::Bool {
        return Ok(vec![split::triangle(cx, x, &Size::Known(k), upper)?]);
    }
    let dims = cx.shape(x);
    let ones = cx.full(&dims, Scalar::from_i64(DType::I32, 1))?;
    let inside = split::triangle(cx, ones, &Size::Known(k), upper)?;
    let inside = cx.cast(inside, DType::Bool)?;
    Ok(vec![elementwise::binary(cx, BinaryOp::And, inside, x)?])
}

/// The row and column indices of the elements of a triangle, in row-major order.
fn indices(cx: &mut Cx, upper: bool) -> Lowered {
    let (rows, columns, offset) = (cx.int("row")?, cx.int("col")?, cx.int("offset")?);
    let to = cx.result_dtype(0)?;
    let (mut ends, mut total) = (vec![], 0i64);
    let edge = |r: i64| r.saturating_add(offset);
    for r in 0..rows {
        let first = if upper { edge(r).clamp(0, columns) } else { 0 };
        let end = if upper { columns } else { edge(r).saturating_add(1).clamp(0, columns) };
        total += end - first;
        ends.push(total);
    }
    if total == 0 {
        return Ok(vec![cx.full(&[2i64.into(), Dim::ZERO], Scalar::from_i64(to, 0))?]);
    }
    if total > i32::MAX.into() {
        return Err(OpError::model(format!("a triangle of {total} elements, more than 2^31 - 1")));
    }
    let ends = cx.constant(Tensor::from_i64(vec![ends.len()], &ends));
    let ends = cx.cast(ends, DType::I32)?;
    let at = cx.iota(&[total.into()], Poly::var(0), DType::I32)?;
    let row = search::place(cx, ends, at, true)?;
    // The column is counted back from the row's last element.
    let end = cx.take(ends, row, 0)?;
    let mut f = Body::default();
    let (row0, end0, at0, axis) = (f.arg(0), f.arg(1), f.index(Poly::var(1)), f.index(Poly::var(0)));
    let (zero, one, wide, columns) = (f.i32(0), f.i32(1), f.i32(offset.clamp(-(1 << 30), 1 << 30)), f.i32(columns));
    let behind = f.binary(BinaryOp::Sub, end0, at0);
    let last = if upper {
        columns
    } else {
        let edge = f.binary(BinaryOp::Add, row0, wide);
        let edge = f.binary(BinaryOp::Add, edge, one);
        f.binary(BinaryOp::Min, edge, columns)
    };
    let column = f.binary(BinaryOp::Sub, last, behind);
    let is_row = f.binary(BinaryOp::Eq, axis, zero);
    let y = f.select(is_row, row0, column);
    f.cast(to, y);
    Ok(vec![cx.map_to(f.0, &[row, end], vec![2i64.into(), total.into()])?])
}
