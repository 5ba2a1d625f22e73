//! Reshapes, slices and concatenations.

use super::super::prelude::*;
use crate::lower::{self, Size, shape, slice, split};
use wgfc_ir::Poly;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._reshape_alias.default", |cx| reshape(cx, "size")).by_parts(),
    OpDef::new("aten._unsafe_view.default", |cx| reshape(cx, "size")).by_parts().views("self"),
    OpDef::new("aten.adjoint.default", turned),
    OpDef::new("aten.atleast_1d.Sequence", each_reshaped).views("tensors"),
    OpDef::new("aten.atleast_1d.default", same_elements).by_parts().views("self"),
    OpDef::new("aten.atleast_2d.Sequence", each_reshaped).views("tensors"),
    OpDef::new("aten.atleast_2d.default", same_elements).by_parts().views("self"),
    OpDef::new("aten.atleast_3d.Sequence", each_reshaped).views("tensors"),
    OpDef::new("aten.atleast_3d.default", same_elements).by_parts().views("self"),
    OpDef::new("aten.broadcast_tensors.default", broadcast).views("tensors").repeats(),
    OpDef::new("aten.broadcast_to.default", |cx| expand(cx, "size")).by_parts().repeats(),
    OpDef::new("aten.cat.default", cat).by_parts(),
    OpDef::new("aten.chunk.default", pieces).by_parts(),
    OpDef::new("aten.column_stack.default", |cx| stacked(cx, Stack::Columns)),
    OpDef::new("aten.concat.default", cat).by_parts(),
    OpDef::new("aten.concatenate.default", cat).by_parts(),
    OpDef::new("aten.dstack.default", |cx| stacked(cx, Stack::Depth)),
    OpDef::new("aten.expand.default", |cx| expand(cx, "size")).by_parts().repeats(),
    OpDef::new("aten.expand_as.default", expand_as).by_parts().repeats(),
    OpDef::new("aten.flatten.using_ints", flatten).by_parts(),
    OpDef::new("aten.flip.default", flip).by_parts(),
    OpDef::new("aten.hstack.default", |cx| stacked(cx, Stack::Side)),
    OpDef::new("aten.mH.default", turned),
    OpDef::new("aten.mT.default", turned).by_parts(),
    OpDef::new("aten.matrix_H.default", turned),
    OpDef::new("aten.numpy_T.default", |cx| transposed(cx, "self")).by_parts(),
    OpDef::new("aten.permute.default", permute).by_parts(),
    OpDef::new("aten.ravel.default", same_elements).by_parts(),
    OpDef::new("aten.repeat.default", repeat).by_parts(),
    OpDef::new("aten.reshape.default", |cx| reshape(cx, "shape")).by_parts(),
    OpDef::new("aten.reshape_as.default", same_elements).by_parts(),
    OpDef::new("aten.row_stack.default", |cx| stacked(cx, Stack::Rows)),
    OpDef::new("aten.select.int", select).by_parts(),
    OpDef::new("aten.slice.Tensor", slice_one).by_parts(),
    OpDef::new("aten.split.Tensor|sizes", pieces).by_parts(),
    OpDef::new("aten.split_with_sizes.default", pieces).by_parts(),
    OpDef::new("aten.squeeze.default|dim|dims", squeeze).by_parts(),
    OpDef::new("aten.stack.default", stack).by_parts(),
    OpDef::new("aten.sum_to_size.default", summed_to).views("self"),
    OpDef::new("aten.t.default", |cx| transposed(cx, "self")).by_parts(),
    OpDef::new("aten.tile.default", repeat).by_parts(),
    OpDef::new("aten.transpose.int", transpose).by_parts(),
    OpDef::new("aten.unbind.int", unbind).by_parts(),
    OpDef::new("aten.unflatten.int", same_elements).by_parts(),
    OpDef::new("aten.unsafe_chunk.default", pieces).by_parts().views("self"),
    OpDef::new("aten.unsafe_split.Tensor", pieces).by_parts().views("self"),
    OpDef::new("aten.unsqueeze.default", unsqueeze).by_parts(),
    OpDef::new("aten.view.default", |cx| reshape(cx, "size")).by_parts(),
    OpDef::new("aten.view_as.default", same_elements).by_parts(),
    OpDef::new("aten.vstack.default", |cx| stacked(cx, Stack::Rows)),
];

/// Swaps the last two axes.
fn turned(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let rank = cx.rank(x);
    let mut order: Vec<usize> = (0..rank).collect();
    if rank > 1 {
        order.swap(rank - 2, rank - 1);
    }
    Ok(vec![cx.transpose(x, &order)?])
}

fn expand_as(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let want = cx.result(0)?.shape;
    Ok(vec![shape::expand(cx, x, &want)?])
}

fn broadcast(cx: &mut Cx) -> Lowered {
    let all = cx.tensors("tensors")?;
    let want = cx.broadcast_shape(&all)?;
    all.into_iter().map(|x| shape::expand(cx, x, &want)).collect()
}

/// The axis of a concatenation whose operands may have fewer axes.
#[derive(Clone, Copy, PartialEq)]
enum Stack {
    /// Axis 0 of at least two axes: `[n]` is a row.
    Rows,
    /// Axis 1, or the only axis of `[n]`.
    Side,
    /// Axis 2 of at least three axes: `[n]` is `[1, n, 1]`.
    Depth,
    /// Axis 1 of at least two axes: `[n]` is a column.
    Columns,
}

fn stacked(cx: &mut Cx, how: Stack) -> Lowered {
    let mut all = cx.tensors("tensors")?;
    let single = all.iter().all(|x| cx.rank(*x) < 2);
    for x in &mut all {
        let mut dims = cx.shape(*x);
        if dims.is_empty() {
            dims.push(Dim::ONE);
        }
        match (how, dims.len()) {
            (Stack::Rows, 1) => dims.insert(0, Dim::ONE),
            (Stack::Columns, 1) => dims.push(Dim::ONE),
            (Stack::Depth, 1) => {
                dims.insert(0, Dim::ONE);
                dims.push(Dim::ONE);
            }
            (Stack::Depth, 2) => dims.push(Dim::ONE),
            _ => {}
        }
        let to = cx.result_dtype(0)?;
        *x = cx.converted(*x, to)?;
        *x = shape::reshape(cx, *x, &dims)?;
    }
    let axis = match how {
        Stack::Rows => 0,
        Stack::Side => usize::from(!single),
        Stack::Depth => 2,
        Stack::Columns => 1,
    };
    Ok(vec![cx.concat(&all, axis)?])
}

/// The operand reshaped to the declared shape.
fn same_elements(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let want = cx.result(0)?.shape;
    Ok(vec![shape::reshape(cx, x, &want)?])
}

fn reshape(cx: &mut Cx, size: &str) -> Lowered {
    let x = cx.tensor("self")?;
    let mut want = cx.sizes(size)?;
    // The declared type states the extent that -1 stands for.
    let result = cx.result(0)?.shape;
    for (w, r) in want.iter_mut().zip(&result) {
        if w.is(-1) {
            *w = r.clone();
        }
    }
    Ok(vec![shape::reshape(cx, x, &want)?])
}

fn flatten(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let rank = cx.rank(x);
    let (from, to) = (cx.axis("start_dim", rank)?, cx.axis("end_dim", rank)?);
    let dims = cx.shape(x);
    if rank == 0 {
        return Ok(vec![shape::reshape(cx, x, &[Dim::ONE])?]);
    }
    if from > to {
        return Err(OpError::model(format!("axis {from} is behind axis {to}")).param("start_dim"));
    }
    let mut want = dims[..from].to_vec();
    want.push(dims[from..=to].iter().product());
    want.extend_from_slice(&dims[to + 1..]);
    Ok(vec![shape::reshape(cx, x, &want)?])
}

/// Expands to a shape; -1 keeps an extent.
fn expand(cx: &mut Cx, size: &str) -> Lowered {
    let x = cx.tensor("self")?;
    let mut want = cx.sizes(size)?;
    let dims = cx.shape(x);
    let new = want.len().saturating_sub(dims.len());
    for (w, d) in want.iter_mut().skip(new).zip(&dims) {
        if w.is(-1) {
            *w = d.clone();
        }
    }
    Ok(vec![shape::expand(cx, x, &want)?])
}

fn permute(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let rank = cx.rank(x);
    let order = cx.ints("dims")?.iter().map(|d| lower::axis(*d, rank)).collect::<Result<Vec<_>>>()?;
    Ok(vec![cx.transpose(x, &order)?])
}

fn transpose(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let rank = cx.rank(x);
    let (a, b) = (cx.axis("dim0", rank)?, cx.axis("dim1", rank)?);
    if rank == 0 {
        return Ok(vec![x]);
    }
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(a, b);
    Ok(vec![cx.transpose(x, &order)?])
}

/// Reverses the order of the axes.
fn transposed(cx: &mut Cx, name: &str) -> Lowered {
    let x = cx.tensor(name)?;
    let order: Vec<usize> = (0..cx.rank(x)).rev().collect();
    Ok(vec![cx.transpose(x, &order)?])
}

fn unsqueeze(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let axis = cx.axis("dim", cx.rank(x) + 1)?;
    Ok(vec![cx.unsqueeze(x, &[axis])?])
}

/// Removes the axes of extent 1 among those requested.
fn squeeze(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let rank = cx.rank(x);
    let asked: Vec<usize> = match cx.declares("dim") {
        true => cx.ints("dim")?.iter().map(|d| lower::axis(*d, rank.max(1))).collect::<Result<_>>()?,
        false => (0..rank).collect(),
    };
    let dims = cx.shape(x);
    let axes: Vec<usize> = asked.into_iter().filter(|a| dims.get(*a).is_some_and(|d| d.is(1))).collect();
    Ok(vec![cx.squeeze(x, &axes)?])
}

fn select(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let axis = cx.axis("dim", cx.rank(x))?;
    if let Some(Size::Computed(at)) = cx.opt_place("index")? {
        return Ok(vec![cx.take(x, at, axis)?]);
    }
    let at = cx.size("index")?;
    let at = from_end(cx, at, &cx.shape(x)[axis]);
    let v = cx.slice(x, axis, &at, 1, &Dim::ONE)?;
    Ok(vec![cx.squeeze(v, &[axis])?])
}

/// A position, with negative ones counted from the end. If the sign is not known, the result is an expression that decides it in each
/// run.
pub fn from_end(cx: &Cx, at: Dim, extent: &Dim) -> Poly {
    if (&-&at - 1).proves_nonneg(&[]) {
        return &at + extent;
    }
    if cx.never_negative(&at) {
        return at;
    }
    &at + &(extent * &slice::is_negative(&at))
}

fn slice_one(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let axis = cx.axis("dim", cx.rank(x))?;
    let start = cx.opt_place("start")?.unwrap_or(Size::Known(Dim::ZERO));
    let end = cx.opt_place("end")?.unwrap_or(Size::Known(i64::MAX.into()));
    let step = cx.int("step")?;
    let (start, end) = match (start, end) {
        (Size::Known(start), Size::Known(end)) => (start, end),
        (start, end) => return Ok(vec![slice::slice(cx, x, axis, &start, &end, step)?]),
    };
    // The declared type states the number of elements.
    let len = cx.result(0)?.shape.get(axis).cloned();
    let extent = cx.shape(x)[axis].clone();
    if let Some(len) = &len
        && start.as_const().is_none()
    {
        let at = match cx.never_negative(&start) {
            true => start,
            false => from_end(cx, start, &extent).max_of(&Dim::ZERO, &[]).min_of(&extent, &[]),
        };
        return Ok(vec![cx.slice(x, axis, &at, step, len)?]);
    }
    if let Some(len) = len
        && start.proves_nonneg(&[])
        && (start.is(0) || start.as_const().is_none() || extent.as_const().is_none_or(|e| start.as_const() <= Some(e)))
    {
        return Ok(vec![cx.slice(x, axis, &start, step, &len)?]);
    }
    Ok(vec![slice::slice(cx, x, axis, &Size::Known(start), &Size::Known(end), step)?])
}

fn cat(cx: &mut Cx) -> Lowered {
    let xs = cx.tensors("tensors")?;
    let dtype = cx.result_dtype(0)?;
    // An empty tensor of rank 1, such as an initial cache, can be concatenated with any shape.
    let empty = |cx: &Cx, v: &Value| cx.rank(*v) == 1 && cx.shape(*v)[0].is(0);
    let rank = xs.iter().map(|v| cx.rank(*v)).max().unwrap_or(0);
    let axis = cx.axis("dim", rank)?;
    let mut parts = vec![];
    for v in xs {
        if !(rank > 1 && empty(cx, &v)) {
            parts.push(cx.converted(v, dtype)?);
        }
    }
    Ok(vec![shape::concat(cx, &parts, axis)?])
}

fn stack(cx: &mut Cx) -> Lowered {
    let xs = cx.tensors("tensors")?;
    let dtype = cx.result_dtype(0)?;
    let rank = xs.first().map_or(0, |v| cx.rank(*v));
    let axis = cx.axis("dim", rank + 1)?;
    let mut parts = vec![];
    for v in xs {
        let v = cx.converted(v, dtype)?;
        parts.push(cx.unsqueeze(v, &[axis])?);
    }
    Ok(vec![shape::concat(cx, &parts, axis)?])
}

/// Parts along an axis; their lengths are those of the declared results.
fn pieces(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let axis = cx.axis("dim", cx.rank(x))?;
    let mut sizes = vec![];
    for i in 0..cx.result_count() {
        sizes.push(cx.result(i)?.shape[axis].clone());
    }
    split::split(cx, x, axis, &sizes)
}

fn unbind(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let axis = cx.axis("dim", cx.rank(x))?;
    let mut parts = vec![];
    for i in 0..cx.result_count() {
        let part = cx.slice(x, axis, &i.into(), 1, &Dim::ONE)?;
        parts.push(cx.squeeze(part, &[axis])?);
    }
    Ok(parts)
}

fn flip(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let rank = cx.rank(x);
    let dims = cx.shape(x);
    let mut index: Vec<Poly> = (0..rank).map(Poly::var).collect();
    for d in cx.ints("dims")? {
        let axis = lower::axis(d, rank.max(1))?;
        if axis < rank {
            index[axis] = &(&dims[axis] - &Poly::ONE) - &Poly::var(axis);
        }
    }
    Ok(vec![cx.view(x, dims, index)?])
}

fn repeat(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let mut repeats = cx.sizes(if cx.declares("dims") { "dims" } else { "repeats" })?;
    // Missing leading repeats of `tile` are 1.
    while repeats.len() < cx.rank(x) {
        repeats.insert(0, Dim::ONE);
    }
    let new: Vec<usize> = (0..repeats.len().saturating_sub(cx.rank(x))).collect();
    let x = cx.unsqueeze(x, &new)?;
    Ok(vec![split::tile(cx, x, &repeats)?])
}

/// [`same_elements`] for each tensor of a list.
fn each_reshaped(cx: &mut Cx) -> Lowered {
    let mut out = vec![];
    for (i, x) in cx.tensors("tensors")?.into_iter().enumerate() {
        let want = cx.result(i)?.shape;
        out.push(shape::reshape(cx, x, &want)?);
    }
    Ok(out)
}

/// The sum over broadcast axes: the leading ones, and those whose requested extent is 1.
fn summed_to(cx: &mut Cx) -> Lowered {
    let (x, size, ty) = (cx.tensor("self")?, cx.sizes("size")?, cx.result(0)?);
    let dims = cx.shape(x);
    let Some(front) = dims.len().checked_sub(size.len()) else {
        return Err(OpError::model(format!("its operand {} has fewer axes", cx.ty(x))).param("size"));
    };
    let narrow = |a: &usize| *a < front || size[a - front].is(1) && !dims[*a].is(1);
    let axes: Vec<usize> = (0..dims.len()).filter(narrow).collect();
    let x = cx.converted(x, ty.dtype)?;
    let y = cx.reduce(wgfc_ir::ReduceOp::Sum, x, &axes, true)?;
    Ok(vec![shape::reshape(cx, y, &ty.shape)?])
}
