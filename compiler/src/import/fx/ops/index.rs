//! Reads and writes at indices.

use super::super::prelude::*;
use super::binary::truth;
use crate::lower::{chosen, elementwise, gather, scatter, shape};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{Op, Poly, ReduceOp};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._unsafe_index.Tensor", read),
    OpDef::new("aten._unsafe_index_put.default", put),
    OpDef::new("aten._unsafe_masked_index.default", masked_read),
    OpDef::new("aten._unsafe_masked_index_put_accumulate.default", masked_put),
    OpDef::new("aten.embedding.default", embedding),
    OpDef::new("aten.gather.default", gathered),
    OpDef::new("aten.index.Tensor", read),
    OpDef::new("aten.index_add.default", |cx| along(cx, "source", Some(ReduceOp::Sum))),
    OpDef::new("aten.index_copy.default", |cx| along(cx, "source", None)),
    OpDef::new("aten.index_fill.int_Scalar|int_Tensor", filled),
    OpDef::new("aten.index_put.default", put),
    OpDef::new("aten.index_select.default", selected).by_parts(),
    OpDef::new("aten.masked_fill.Scalar|Tensor", masked),
    OpDef::new("aten.scatter.reduce|src|value|value_reduce", scattered),
    OpDef::new("aten.scatter_add.default", |cx| {
        let parts = elements_of(cx, "src")?;
        Ok(vec![combined(cx, parts, Some(ReduceOp::Sum))?])
    }),
    OpDef::new("aten.take_along_dim.default", along_dim),
];

/// The index of each axis, or `None` for an axis that is taken whole. A bool mask becomes the positions of its true elements, one index
/// for each of its axes.
fn places(cx: &mut Cx, x: Value) -> Result<Vec<Option<Value>>> {
    let mut out = vec![];
    for i in cx.opt_tensors("indices")? {
        match i {
            None => out.push(None),
            Some(v) if matches!(cx.dtype(v), DType::Bool | DType::U8) => {
                let mask = truth(cx, v)?;
                let n = cx.rank(mask);
                let rows = chosen::non_zero(cx, mask)?;
                for axis in 0..n {
                    let row = cx.slice(rows, 0, &axis.into(), 1, &Dim::ONE)?;
                    out.push(Some(cx.squeeze(row, &[0])?));
                }
            }
            Some(v) => out.push(Some(if cx.dtype(v) == DType::I32 { v } else { cx.converted(v, DType::I64)? })),
        }
    }
    if out.len() > cx.rank(x) {
        return Err(OpError::model(format!("{} indices for a tensor of type {}", out.len(), cx.ty(x))).param("indices"));
    }
    out.resize(cx.rank(x), None);
    Ok(out)
}

/// A gather or scatter: the shape of the indexed elements, the index of each axis of `x` over that shape's variables, and the index
/// operands.
struct Indexed {
    shape: Vec<Dim>,
    index: Vec<GatherAxis>,
    operands: Vec<Value>,
}

/// Broadcasts the indices against each other. Their axes replace the indexed ones if those are adjacent, else they come first. Operands
/// are numbered from `first`.
fn indexed(cx: &mut Cx, x: Value, places: &[Option<Value>], first: usize) -> Result<Indexed> {
    let operands: Vec<Value> = places.iter().flatten().copied().collect();
    let common = cx.broadcast_shape(&operands)?;
    let dims = cx.shape(x);
    let at: Vec<usize> = (0..places.len()).filter(|d| places[*d].is_some()).collect();
    let neighbours = at.windows(2).all(|w| w[0] + 1 == w[1]);
    let front = if neighbours { at.first().copied().unwrap_or(0) } else { 0 };
    let whole: Vec<usize> = (0..dims.len()).filter(|d| places.get(*d).is_none_or(Option::is_none)).collect();
    let before: Vec<usize> = whole.iter().copied().filter(|d| neighbours && *d < front).collect();
    let behind: Vec<usize> = whole.iter().copied().filter(|d| !before.contains(d)).collect();
    let mut shape: Vec<Dim> = before.iter().map(|d| dims[*d].clone()).collect();
    let offset = shape.len();
    shape.extend(common.iter().cloned());
    shape.extend(behind.iter().map(|d| dims[*d].clone()));
    let mut index = vec![];
    let mut input = first;
    for (d, p) in places.iter().enumerate() {
        match p {
            Some(v) => {
                let own = cx.shape(*v);
                let skip = common.len() - own.len();
                let at = own.iter().enumerate().map(|(i, e)| {
                    if e.is(1) && !common[skip + i].is(1) { Poly::ZERO } else { Poly::var(offset + skip + i) }
                });
                index.push(GatherAxis::Data { input, at: at.collect() });
                input += 1;
            }
            None => {
                let position = match before.iter().position(|b| *b == d) {
                    Some(i) => i,
                    None => offset + common.len() + behind.iter().position(|b| *b == d).unwrap_or(0),
                };
                index.push(GatherAxis::Affine(Poly::var(position)));
            }
        }
    }
    Ok(Indexed { shape, index, operands })
}

fn read(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let places = places(cx, x)?;
    Ok(vec![read_at(cx, x, &places)?])
}

fn read_at(cx: &mut Cx, x: Value, places: &[Option<Value>]) -> Result {
    if places.iter().all(Option::is_none) {
        return Ok(x);
    }
    // A single index is a gather along one axis, which becomes a view if the index is constant.
    if let [axis] = (0..places.len()).filter(|d| places[*d].is_some()).collect::<Vec<_>>()[..]
        && let Some(at) = places[axis]
    {
        return gather::gather(cx, x, at, axis);
    }
    let i = indexed(cx, x, places, 1)?;
    let inputs: Vec<Value> = std::iter::once(x).chain(i.operands).collect();
    Ok(cx.push(Op::Gather { shape: i.shape, index: i.index }, &inputs)?)
}

/// [`places`] with index 0 where the mask is false.
fn masked_places(cx: &mut Cx, x: Value, mask: Value) -> Result<Vec<Option<Value>>> {
    let mut places = places(cx, x)?;
    for p in places.iter_mut().flatten() {
        let zero = cx.int_const(cx.dtype(*p), 0);
        *p = elementwise::choose(cx, mask, *p, zero)?;
    }
    Ok(places)
}

/// Reads elements where the mask is true, and gives the fill value elsewhere.
fn masked_read(cx: &mut Cx) -> Lowered {
    let (x, mask) = (cx.tensor("self")?, cx.tensor("mask")?);
    let (fill, dtype) = (cx.number("fill")?, cx.dtype(x));
    let fill = cx.number_in(&fill, dtype)?;
    let places = masked_places(cx, x, mask)?;
    let y = read_at(cx, x, &places)?;
    Ok(vec![elementwise::choose(cx, mask, y, fill)?])
}

/// Adds values where the mask is true.
fn masked_put(cx: &mut Cx) -> Lowered {
    let (x, mask, values) = (cx.tensor("self")?, cx.tensor("mask")?, cx.tensor("values")?);
    let zero = wgfc_ir::Scalar::from_i64(cx.dtype(values), 0);
    let zero = cx.full(&[], zero)?;
    let values = elementwise::choose(cx, mask, values, zero)?;
    let places = masked_places(cx, x, mask)?;
    put_at(cx, x, &places, values, true)
}

fn put(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let (values, accumulate) = (cx.tensor("values")?, cx.flag("accumulate")?);
    let dtype = cx.dtype(x);
    let values = cx.converted(values, dtype)?;
    // Writing one number under a mask is a select.
    let given = cx.opt_tensors("indices")?;
    if let [Some(mask)] = given[..]
        && cx.dtype(mask) == DType::Bool
        && !accumulate
        && cx.ty(values).numel().is(1)
    {
        let value = cx.reshape(values, vec![])?;
        let behind: Vec<usize> = (cx.rank(mask)..cx.rank(x)).collect();
        let mask = cx.unsqueeze(mask, &behind)?;
        return Ok(vec![elementwise::choose(cx, mask, value, x)?]);
    }
    let places = places(cx, x)?;
    put_at(cx, x, &places, values, accumulate)
}

fn put_at(cx: &mut Cx, x: Value, places: &[Option<Value>], values: Value, accumulate: bool) -> Lowered {
    let dtype = cx.dtype(x);
    if places.iter().all(Option::is_none) {
        let want = cx.shape(x);
        let values = shape::expand(cx, values, &want)?;
        return Ok(vec![if accumulate { elementwise::binary(cx, BinaryOp::Add, x, values)? } else { values }]);
    }
    let i = indexed(cx, x, places, 2)?;
    let values = shape::expand(cx, values, &i.shape)?;
    let reduce = accumulate.then_some(if dtype == DType::Bool { ReduceOp::Max } else { ReduceOp::Sum });
    let inputs: Vec<Value> = [x, values].into_iter().chain(i.operands).collect();
    Ok(vec![cx.push(Op::Scatter { reduce, index: i.index }, &inputs)?])
}

/// Rows of an embedding table.
fn embedding(cx: &mut Cx) -> Lowered {
    let (table, at) = (cx.tensor("weight")?, cx.tensor("indices")?);
    Ok(vec![cx.take(table, at, 0)?])
}

/// The tensor, the axis and the index; a tensor of rank 0 becomes one of one element.
fn index_along(cx: &mut Cx) -> Result<(Value, usize, Value)> {
    let (x, at) = (cx.tensor("self")?, cx.tensor("index")?);
    let x = if cx.rank(x) == 0 { cx.reshape(x, vec![Dim::ONE])? } else { x };
    let axis = cx.axis("dim", cx.rank(x))?;
    Ok((x, axis, at))
}

fn selected(cx: &mut Cx) -> Lowered {
    let (x, axis, at) = index_along(cx)?;
    let at = if cx.rank(at) == 0 { cx.reshape(at, vec![Dim::ONE])? } else { at };
    let y = gather::gather(cx, x, at, axis)?;
    let want = cx.result(0)?.shape;
    Ok(vec![if want.is_empty() { cx.reshape(y, vec![])? } else { y }])
}

fn gathered(cx: &mut Cx) -> Lowered {
    let (x, axis, at) = index_along(cx)?;
    let at = if cx.rank(at) == 0 { cx.reshape(at, vec![Dim::ONE])? } else { at };
    let at = if cx.dtype(at) == DType::I32 { at } else { cx.converted(at, DType::I64)? };
    let y = gather::elements(cx, x, at, axis)?;
    let want = cx.result(0)?.shape;
    Ok(vec![if want.is_empty() { cx.reshape(y, vec![])? } else { y }])
}

fn along_dim(cx: &mut Cx) -> Lowered {
    let (x, at) = (cx.tensor("self")?, cx.tensor("indices")?);
    if cx.opt_int("dim")?.is_none() {
        let (nx, nat) = (cx.ty(x).numel(), cx.ty(at).numel());
        let (x, at) = (cx.reshape(x, vec![nx])?, cx.reshape(at, vec![nat])?);
        return Ok(vec![gather::elements(cx, x, at, 0)?]);
    }
    let axis = cx.axis("dim", cx.rank(x))?;
    let (mut to_x, mut to_at) = (cx.shape(x), cx.shape(at));
    let common: Vec<Dim> = to_x.iter().zip(&to_at).map(|(a, b)| if a.is(1) { b.clone() } else { a.clone() }).collect();
    for d in (0..to_x.len()).filter(|d| *d != axis) {
        (to_x[d], to_at[d]) = (common[d].clone(), common[d].clone());
    }
    let (x, at) = (shape::expand(cx, x, &to_x)?, shape::expand(cx, at, &to_at)?);
    Ok(vec![gather::elements(cx, x, at, axis)?])
}

/// Scatters slices along an axis to the positions in the index.
fn along(cx: &mut Cx, source: &str, reduce: Option<ReduceOp>) -> Lowered {
    let (x, axis, at) = index_along(cx)?;
    let source = cx.tensor(source)?;
    let mut source = cx.converted(source, cx.dtype(x))?;
    if cx.declares("alpha") {
        let alpha = cx.number("alpha")?;
        if !alpha.is(1.0) {
            let alpha = cx.number_in(&alpha, cx.dtype(x))?;
            source = cx.binary(BinaryOp::Mul, source, alpha)?;
        }
    }
    let y = slices(cx, x, axis, at, source, reduce)?;
    let want = cx.result(0)?.shape;
    Ok(vec![if want.is_empty() { cx.reshape(y, vec![])? } else { y }])
}

fn slices(cx: &mut Cx, x: Value, axis: usize, at: Value, source: Value, reduce: Option<ReduceOp>) -> Result {
    let at = if cx.rank(at) == 0 { cx.reshape(at, vec![Dim::ONE])? } else { at };
    let mut want = cx.shape(x);
    want[axis] = cx.shape(at)[0].clone();
    let source = if cx.rank(source) == 0 { shape::expand(cx, source, &want)? } else { source };
    let reduce = reduce.map(|r| if cx.dtype(x) == DType::Bool { ReduceOp::Max } else { r });
    let mut index: Vec<GatherAxis> = (0..cx.rank(x)).map(|d| GatherAxis::Affine(Poly::var(d))).collect();
    index[axis] = GatherAxis::Data { input: 2, at: vec![Poly::var(axis)] };
    Ok(cx.push(Op::Scatter { reduce, index }, &[x, source, at])?)
}

fn filled(cx: &mut Cx) -> Lowered {
    let (x, axis, at) = index_along(cx)?;
    let value = cx.operand("value")?;
    let value = cx.in_type(&value, cx.dtype(x))?;
    let value = cx.reshape(value, vec![])?;
    let y = slices(cx, x, axis, at, value, None)?;
    let want = cx.result(0)?.shape;
    Ok(vec![if want.is_empty() { cx.reshape(y, vec![])? } else { y }])
}

fn masked(cx: &mut Cx) -> Lowered {
    let (x, mask, value) = (cx.tensor("self")?, cx.tensor("mask")?, cx.operand("value")?);
    let (mask, value) = (truth(cx, mask)?, cx.in_type(&value, cx.dtype(x))?);
    Ok(vec![elementwise::choose(cx, mask, value, x)?])
}

/// Data, indices and updates of a scatter along an axis. The updates that torch gives may exceed the shape of the indices; these do not.
struct Parts {
    x: Value,
    axis: usize,
    at: Value,
    updates: Value,
}

fn elements_of(cx: &mut Cx, source: &str) -> Result<Parts> {
    let (x, axis, at) = index_along(cx)?;
    let at = if cx.rank(at) == 0 { cx.reshape(at, vec![Dim::ONE])? } else { at };
    let at = if cx.dtype(at) == DType::I32 { at } else { cx.converted(at, DType::I64)? };
    let given = cx.operand(source)?;
    let mut updates = cx.in_type(&given, cx.dtype(x))?;
    let want = cx.shape(at);
    if cx.rank(updates) == 0 {
        updates = shape::expand(cx, updates, &want)?;
    }
    if cx.shape(updates) != want {
        let vars = (0..want.len()).map(Poly::var).collect();
        updates = cx.view(updates, want, vars)?;
    }
    Ok(Parts { x, axis, at, updates })
}

fn combined(cx: &mut Cx, p: Parts, reduce: Option<ReduceOp>) -> Result {
    let reduce = reduce.map(|r| match (cx.dtype(p.x), r) {
        (DType::Bool, ReduceOp::Sum) => ReduceOp::Max,
        (DType::Bool, ReduceOp::Prod) => ReduceOp::Min,
        _ => r,
    });
    let y = scatter::elements(cx, [p.x, p.at, p.updates], p.axis, reduce)?;
    let want = cx.result(0)?.shape;
    if want.is_empty() { Ok(cx.reshape(y, vec![])?) } else { Ok(y) }
}

fn scattered(cx: &mut Cx) -> Lowered {
    let source = if cx.declares("src") { "src" } else { "value" };
    let reduce = match cx.declares("reduce") {
        true => match cx.text("reduce")?.as_deref() {
            Some("add") => Some(ReduceOp::Sum),
            Some("multiply") => Some(ReduceOp::Prod),
            Some(r) => return Err(OpError::model(format!("unknown reduction `{r}`")).param("reduce")),
            None => return Err(OpError::model("the reduction is missing").param("reduce")),
        },
        false => None,
    };
    let parts = elements_of(cx, source)?;
    Ok(vec![combined(cx, parts, reduce)?])
}
