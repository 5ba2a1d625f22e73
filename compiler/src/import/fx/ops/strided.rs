//! Strided parts, writes into them, and permutations of elements.

use super::super::prelude::*;
use super::super::scope;
use super::views::from_end;
use crate::lower::{self, placed, shape};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{Op, Poly};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.as_strided.default", |cx| {
        let memory = cx.memory("self").ok_or_else(|| OpError::model("argument `self` is not a tensor"))?;
        let (flat, index, want) = strided(cx, &memory)?;
        Ok(vec![cx.view(flat, want, vec![index])?])
    })
    .repeats()
    .notes("Of memory that one tensor has, whose elements lie side by side."),
    OpDef::new("aten.as_strided_scatter.default", |cx| {
        let source = cx.tensor("src")?;
        let own = cx.tensor_name("self").ok_or_else(|| OpError::model("argument `self` is not a tensor"))?;
        let (flat, index, sizes) = strided(cx, own)?;
        let strides = cx.sizes("stride")?;
        if !cx.require_apart(&sizes, &strides) {
            return Err(OpError::unsupported(
                "several of the replaced elements may be at one place in memory",
                "replace parts of the tensor whose elements do not overlap",
            ));
        }
        let written =
            cx.push(Op::Scatter { reduce: None, index: vec![GatherAxis::Affine(index)] }, &[flat, source])?;
        let dims = cx.result(0)?.shape;
        let order = memory_order(cx, own)?;
        let stored: Vec<Dim> = order.iter().map(|d| dims[*d].clone()).collect();
        let y = cx.reshape(written, stored)?;
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(i, d)| back[*d] = i);
        Ok(vec![cx.transpose(y, &back)?])
    })
    .notes("Of a tensor whose elements lie side by side."),
    OpDef::new("aten.diff.default", diff),
    OpDef::new("aten.fliplr.default", |cx| flipped(cx, 1)),
    OpDef::new("aten.flipud.default", |cx| flipped(cx, 0)),
    OpDef::new("aten.movedim.int|intlist", moved),
    OpDef::new("aten.moveaxis.int|intlist", moved),
    OpDef::new("aten.narrow.default", narrow),
    OpDef::new("aten.narrow_copy.default", narrow),
    OpDef::new("aten.roll.default", roll),
    OpDef::new("aten.rot90.default", turned),
    OpDef::new("aten.select_scatter.default", select_scatter).by_parts(),
    OpDef::new("aten.slice_scatter.default", slice_scatter).by_parts(),
    OpDef::new("aten.swapaxes.default", |cx| swapped(cx, ["axis0", "axis1"])),
    OpDef::new("aten.swapdims.default", |cx| swapped(cx, ["dim0", "dim1"])),
    OpDef::new("aten.unfold.default", unfold).repeats(),
];

/// The axes of a dense tensor by descending stride. A tensor with gaps between its elements is an error.
fn memory_order(cx: &Cx, tensor: &str) -> Result<Vec<usize>> {
    let unknown = || {
        OpError::unsupported(
            "it reads memory whose layout is not known, or that other tensors share",
            "call contiguous() on the tensor first",
        )
    };
    let Some((sizes, strides)) = cx.layout(tensor) else { return Err(unknown()) };
    // Axes of extent 1 come first, as their strides are irrelevant.
    let (mut order, mut rest): (Vec<usize>, Vec<usize>) = (0..sizes.len()).partition(|d| sizes[*d].is(1));
    let (mut inner, mut expected) = (vec![], Dim::ONE);
    while !rest.is_empty() {
        let next = rest.iter().position(|d| strides[*d] == expected).ok_or_else(unknown)?;
        let d = rest.remove(next);
        expected = &expected * &sizes[d];
        inner.push(d);
    }
    order.extend(inner.into_iter().rev());
    Ok(order)
}

/// The elements of a tensor in memory order, the position of each result element in them, and the result's shape.
fn strided(cx: &mut Cx, memory: &str) -> Result<(Value, Poly, Vec<Dim>)> {
    let x = cx.by_name(memory)?;
    let n: Dim = cx.shape(x).iter().product();
    let (size, stride) = (cx.sizes("size")?, cx.sizes("stride")?);
    if size.len() != stride.len() {
        return Err(OpError::model(format!("{} strides for {} axes", stride.len(), size.len())));
    }
    let offset = match cx.opt_size("storage_offset")? {
        Some(offset) => offset,
        None => cx.offset("self").unwrap_or(Dim::ZERO),
    };
    let steps = stride.iter().enumerate().map(|(d, s)| &Poly::var(d) * s);
    let index = steps.fold(offset.clone(), |at, step| &at + &step);
    if !size.iter().any(|d| d.is(0)) && !index.in_range(&n, &size) {
        let end = size.iter().zip(&stride).fold(&offset + 1, |at, (n, s)| &at + &(&(n - 1) * s));
        if end.as_const().is_some() && n.as_const().is_some() {
            return Err(OpError::unsupported(
                format!("it reads memory outside of the {n} elements of its tensor"),
                "call as_strided on the whole tensor",
            ));
        }
        cx.require_at_most(&end, &n);
    }
    let order = memory_order(cx, memory)?;
    let stored = cx.transpose(x, &order)?;
    Ok((cx.reshape(stored, vec![n])?, index, size))
}

/// Windows of `size` elements along an axis, every `step`, along a new last axis.
fn unfold(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let (size, step) = (cx.int("size")?, cx.int("step")?);
    let mut dims = cx.shape(x);
    if dims.is_empty() {
        return Ok(vec![cx.view(x, vec![size.into()], vec![])?]);
    }
    let rank = dims.len();
    let axis = cx.axis("dimension", rank)?;
    if step < 1 || size < 0 {
        return Err(OpError::model(format!("windows of {size} elements every {step}")));
    }
    dims[axis] = &(&dims[axis] - size).div(&step.into(), &[]) + 1;
    dims.push(size.into());
    let mut index: Vec<Poly> = (0..rank).map(Poly::var).collect();
    index[axis] = &(Poly::var(axis) * step) + &Poly::var(rank);
    Ok(vec![cx.view(x, dims, index)?])
}

/// Replaces a slice; its length is that of the source.
fn slice_scatter(cx: &mut Cx) -> Lowered {
    cx.apart("self")?;
    let (x, source) = (cx.tensor("self")?, cx.tensor("src")?);
    let rank = cx.rank(x);
    let axis = cx.axis("dim", rank)?;
    let (dims, step) = (cx.shape(x), cx.int("step")?);
    let start = cx.opt_size("start")?.unwrap_or(Dim::ZERO);
    let start = from_end(cx, start, &dims[axis]).max_of(&Dim::ZERO, &[]);
    let start = start.min_of(&dims[axis], &[]);
    let mut want = dims.clone();
    want[axis] = cx.shape(source)[axis].clone();
    let source = cx.converted(source, cx.dtype(x))?;
    let source = shape::expand(cx, source, &want)?;
    Ok(vec![over_slice(cx, x, source, axis, &start, step)?])
}

/// `x` with a slice replaced: the elements along an axis from `start` in steps of `step`.
pub fn over_slice(cx: &mut Cx, x: Value, source: Value, axis: usize, start: &Dim, step: i64) -> Result {
    let dims = cx.shape(x);
    let mut index: Vec<Poly> = (0..dims.len()).map(Poly::var).collect();
    if step == 1 {
        index[axis] = &index[axis] + start;
        return scope::placed(cx, x, source, &index);
    }
    let far = &index[axis] - start;
    index[axis] = far.div(&step.into(), &dims);
    index.push(far.modulo(&step.into(), &dims));
    let source = cx.unsqueeze(source, &[dims.len()])?;
    placed::over(cx, x, source, index)
}

fn select_scatter(cx: &mut Cx) -> Lowered {
    cx.apart("self")?;
    let (x, source) = (cx.tensor("self")?, cx.tensor("src")?);
    let rank = cx.rank(x);
    let axis = cx.axis("dim", rank)?;
    let dims = cx.shape(x);
    let at = cx.size("index")?;
    let at = from_end(cx, at, &dims[axis]);
    let source = cx.converted(source, cx.dtype(x))?;
    let mut want = dims;
    want.remove(axis);
    let source = shape::expand(cx, source, &want)?;
    let source = cx.unsqueeze(source, &[axis])?;
    Ok(vec![over_slice(cx, x, source, axis, &at, 1)?])
}

fn narrow(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let axis = cx.axis("dim", cx.rank(x))?;
    let start = cx.size("start")?;
    let start = from_end(cx, start, &cx.shape(x)[axis]);
    let len = cx.size("length")?;
    Ok(vec![cx.slice(x, axis, &start, 1, &len)?])
}

/// A cyclic shift along axes; without axes, of the flattened tensor.
fn roll(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let (shifts, axes) = (cx.sizes("shifts")?, cx.ints("dims")?);
    let dims = cx.shape(x);
    if dims.iter().any(|d| d.is(0)) {
        return Ok(vec![x]);
    }
    let moved = |cx: &mut Lowering, x: Value, by: &[(usize, Dim)]| -> Result {
        let dims = cx.shape(x);
        let mut index: Vec<Poly> = (0..dims.len()).map(Poly::var).collect();
        for (axis, by) in by {
            index[*axis] = (&index[*axis] - by).modulo(&dims[*axis], &dims);
        }
        Ok(cx.view(x, dims, index)?)
    };
    if axes.is_empty() {
        let flat = cx.reshape(x, vec![dims.iter().product()])?;
        let y = moved(cx, flat, &[(0, shifts.into_iter().sum())])?;
        return Ok(vec![cx.reshape(y, dims)?]);
    }
    let mut by: Vec<(usize, Dim)> = vec![];
    for (axis, shift) in axes.iter().zip(shifts) {
        let axis = lower::axis(*axis, dims.len())?;
        match by.iter_mut().find(|(a, _)| *a == axis) {
            Some((_, s)) => *s = &*s + &shift,
            None => by.push((axis, shift)),
        }
    }
    Ok(vec![moved(cx, x, &by)?])
}

/// Rotates by multiples of 90° in the plane of two axes.
fn turned(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let dims = cx.shape(x);
    let axes = cx.ints("dims")?.iter().map(|d| lower::axis(*d, dims.len())).collect::<Result<Vec<_>>>()?;
    let [a, b] = axes[..] else {
        return Err(OpError::model("must have 2 axes").param("dims"));
    };
    let mut index: Vec<Poly> = (0..dims.len()).map(Poly::var).collect();
    let quarters = cx.int("k")?.rem_euclid(4);
    let mut want = dims.clone();
    if quarters % 2 == 1 {
        want.swap(a, b);
        index.swap(a, b);
    }
    let from_last = |p: &Poly, d: usize| &(&dims[d] - 1) - p;
    if quarters == 2 || quarters == 3 {
        index[a] = from_last(&index[a], a);
    }
    if quarters == 1 || quarters == 2 {
        index[b] = from_last(&index[b], b);
    }
    Ok(vec![cx.view(x, want, index)?])
}

fn flipped(cx: &mut Cx, axis: usize) -> Lowered {
    let x = cx.tensor("self")?;
    let dims = cx.shape(x);
    if axis >= dims.len() {
        return Err(OpError::model(format!("a tensor {} has no axis {axis}", cx.ty(x))).operand(x));
    }
    let mut index: Vec<Poly> = (0..dims.len()).map(Poly::var).collect();
    index[axis] = &(&dims[axis] - 1) - &index[axis];
    Ok(vec![cx.view(x, dims, index)?])
}

fn moved(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let rank = cx.rank(x);
    let axes = |cx: &Cx, name: &str| {
        cx.ints(name)?.iter().map(|d| lower::axis(*d, rank.max(1))).collect::<Result<Vec<usize>>>()
    };
    let (from, to) = (axes(cx, "source")?, axes(cx, "destination")?);
    if rank == 0 {
        return Ok(vec![x]);
    }
    let mut order: Vec<Option<usize>> = vec![None; rank];
    from.iter().zip(&to).for_each(|(f, t)| order[*t] = Some(*f));
    let mut rest = (0..rank).filter(|d| !from.contains(d));
    let order: Vec<usize> = order.into_iter().filter_map(|o| o.or_else(|| rest.next())).collect();
    Ok(vec![cx.transpose(x, &order)?])
}

fn swapped(cx: &mut Cx, names: [&str; 2]) -> Lowered {
    let x = cx.tensor("self")?;
    let rank = cx.rank(x);
    let (a, b) = (cx.axis(names[0], rank)?, cx.axis(names[1], rank)?);
    let mut order: Vec<usize> = (0..rank).collect();
    if rank > 0 {
        order.swap(a, b);
    }
    Ok(vec![cx.transpose(x, &order)?])
}

/// Differences of neighbours along an axis, `n` times.
fn diff(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let axis = cx.axis("dim", cx.rank(x))?;
    let mut parts = vec![];
    for part in [cx.opt_tensor("prepend")?, Some(x), cx.opt_tensor("append")?].into_iter().flatten() {
        parts.push(part);
    }
    let mut y = shape::concat(cx, &parts, axis)?;
    let op = if cx.dtype(y) == DType::Bool { BinaryOp::Xor } else { BinaryOp::Sub };
    for _ in 0..cx.int("n")?.clamp(0, 64) {
        let n = &cx.shape(y)[axis] - 1;
        let n = if n.as_const() == Some(-1) { Dim::ZERO } else { n };
        let (low, high) = (cx.slice(y, axis, &Poly::ZERO, 1, &n)?, cx.slice(y, axis, &Poly::ONE, 1, &n)?);
        y = cx.binary(op, high, low)?;
    }
    Ok(vec![y])
}
