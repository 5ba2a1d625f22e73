//! Reductions over groups of elements, and distances between rows.

use super::super::prelude::*;
use crate::lower::segment::{self, Combined};
use crate::lower::{distance, scan};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{Body, Op, Poly, ReduceOp, Scalar, Tensor};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._cdist_forward.default", between),
    OpDef::new("aten._embedding_bag.default", bags),
    OpDef::new("aten._embedding_bag_forward_only.default", bags),
    OpDef::new("aten._euclidean_dist.default", |cx| {
        let (a, b) = (cx.tensor("x1")?, cx.tensor("x2")?);
        Ok(vec![distance::between(cx, a, b, 2.0)?])
    }),
    OpDef::new("aten._pdist_forward.default", within),
    OpDef::new("aten.cdist.default", between),
    OpDef::new("aten.cross.default", cross),
    OpDef::new("aten.dist.default", |cx| {
        let [a, b] = cx.promoted(["self", "other"])?;
        let p = cx.float("p")?;
        let d = cx.binary(BinaryOp::Sub, a, b)?;
        let axes: Vec<usize> = (0..cx.rank(d)).collect();
        let y = distance::norm(cx, d, p, &axes)?;
        Ok(vec![cx.squeeze(y, &axes)?])
    }),
    OpDef::new("aten.embedding_bag.default|padding_idx", bags),
    OpDef::new("aten.embedding_renorm.default", renormed),
    OpDef::new("aten.index_reduce.default", |cx| scattered(cx, "source")),
    OpDef::new("aten.linalg_cross.default", cross),
    OpDef::new("aten.pdist.default", within),
    OpDef::new("aten.renorm.default", |cx| {
        let (x, p, most) = (cx.tensor("self")?, cx.float("p")?, cx.float("maxnorm")?);
        let axis = cx.axis("dim", cx.rank(x))?;
        Ok(vec![distance::renorm(cx, x, p, axis, most)?])
    }),
    OpDef::new("aten.scatter_reduce.two", |cx| scattered(cx, "src")),
    OpDef::new("aten.segment_reduce.default", segments),
];

fn between(cx: &mut Cx) -> Lowered {
    let (a, b, p) = (cx.tensor("x1")?, cx.tensor("x2")?, cx.float("p")?);
    Ok(vec![distance::between(cx, a, b, p)?])
}

/// The distances between each row and the rows after it.
fn within(cx: &mut Cx) -> Lowered {
    let (x, p) = (cx.tensor("self")?, cx.float("p")?);
    let dims = cx.shape(cx.require_rank(x, 2)?);
    let Some(n) = dims[0].as_const() else {
        return Err(OpError::symbolic(format!("the number of rows, `{}`, must be a constant", dims[0])).operand(x));
    };
    let all = distance::between(cx, x, x, p)?;
    if n < 2 {
        let zero = Scalar::from_f64(cx.dtype(x), 0.0);
        return Ok(vec![cx.full(&[Dim::ZERO], zero)?]);
    }
    let mut at = vec![];
    for i in 0..n {
        at.extend((i + 1..n).map(|j| i * n + j));
    }
    let at = cx.constant(Tensor::from_i64(vec![at.len()], &at));
    let flat = cx.reshape(all, vec![(n * n).into()])?;
    Ok(vec![cx.take(flat, at, 0)?])
}

/// The cross product; without `dim` along the first axis of extent 3.
fn cross(cx: &mut Cx) -> Lowered {
    let [a, b] = cx.promoted(["self", "other"])?;
    let dims = cx.broadcast_shape(&[a, b])?;
    let axis = match cx.has("dim") {
        true => cx.axis("dim", dims.len())?,
        false => dims.iter().position(|d| d.is(3)).ok_or_else(|| OpError::model("no axis has 3 elements"))?,
    };
    Ok(vec![distance::cross(cx, a, b, axis)?])
}

fn combined(how: Option<String>) -> Result<Combined> {
    Ok(match how.as_deref() {
        Some("sum") => Combined::By(ReduceOp::Sum),
        Some("prod") => Combined::By(ReduceOp::Prod),
        Some("max" | "amax") => Combined::By(ReduceOp::Max),
        Some("min" | "amin") => Combined::By(ReduceOp::Min),
        Some("mean") => Combined::Mean,
        Some(how) => return Err(OpError::model(format!("unknown reduction `{how}`")).param("reduce")),
        None => return Err(OpError::model("the reduction is missing").param("reduce")),
    })
}

fn scattered(cx: &mut Cx, source: &str) -> Lowered {
    let (x, index, source) = (cx.tensor("self")?, cx.tensor("index")?, cx.tensor(source)?);
    let (how, with_old) = (combined(cx.text("reduce")?)?, cx.flag("include_self")?);
    let dims = cx.shape(x);
    let axis = cx.axis("dim", dims.len())?;
    let mut all = [x, index, source];
    if dims.is_empty() {
        for v in &mut all {
            *v = cx.reshape(*v, vec![Dim::ONE])?;
        }
    }
    if cx.rank(all[1]) == 0 {
        all[1] = cx.unsqueeze(all[1], &[0])?;
    }
    let y = segment::scatter(cx, all, axis, how, with_old)?;
    Ok(vec![cx.reshape(y, dims)?])
}

fn segments(cx: &mut Cx) -> Lowered {
    let (x, how) = (cx.tensor("data")?, cx.text("reduce")?);
    let axis = cx.axis("axis", cx.rank(x))?;
    let how = combined(how)?;
    let initial = cx.opt_float("initial")?;
    let bounds = match (cx.opt_tensor("lengths")?, cx.opt_tensor("offsets")?) {
        (Some(lengths), _) => {
            let ends = scan::running(cx, lengths, axis, ReduceOp::Sum)?;
            [cx.binary(BinaryOp::Sub, ends, lengths)?, ends]
        }
        (None, Some(offsets)) => {
            let n = &cx.shape(offsets)[axis] - 1;
            [cx.slice(offsets, axis, &Poly::ZERO, 1, &n)?, cx.slice(offsets, axis, &Poly::ONE, 1, &n)?]
        }
        (None, None) => return Err(OpError::model("it has neither lengths nor offsets")),
    };
    Ok(vec![segment::reduce(cx, x, axis, bounds, (how, initial))?])
}

/// Reduces table rows per bag to a sum, mean or maximum; also returns the bag of each index and the size of each bag.
fn bags(cx: &mut Cx) -> Lowered {
    let (table, indices) = (cx.tensor("weight")?, cx.tensor("indices")?);
    let (offsets, weights) = (cx.tensor("offsets")?, cx.opt_tensor("per_sample_weights")?);
    let (mode, with_end, skipped) = (cx.int("mode")?, cx.flag("include_last_offset")?, cx.opt_int("padding_idx")?);
    cx.require_rank(table, 2)?;
    let n = cx.shape(cx.require_rank(indices, 1)?)[0].clone();
    let count = &cx.shape(cx.require_rank(offsets, 1)?)[0] - i64::from(with_end);
    let dtype = cx.dtype(table);
    // A bag ends where the next one begins; the last bag ends with the indices or at the last offset.
    let begins = cx.slice(offsets, 0, &Poly::ZERO, 1, &count)?;
    let begins = cx.nearest_i32(begins)?;
    let (index, fill) = (vec![&Poly::var(0) + 1], Some(Scalar::from_i64(DType::I32, 0)));
    let ends = if with_end {
        let ends = cx.slice(offsets, 0, &Poly::ONE, 1, &count)?;
        cx.nearest_i32(ends)?
    } else {
        let next = cx.push(Op::View { shape: vec![count.clone()], index, fill }, &[begins])?;
        let mut f = Body::default();
        let (next0, here, last, all) =
            (f.arg(0), f.index(Poly::var(0)), f.index(&count - 1), f.index(n.clone()));
        let is_last = f.binary(BinaryOp::Eq, here, last);
        f.select(is_last, all, next0);
        cx.map(f.0, &[next])?
    };
    let bag = segment::numbers(cx, ends, &n)?;
    let mut counted = bag;
    let rows = cx.require_indices(indices)?;
    if let Some(skipped) = skipped.filter(|p| *p >= 0) {
        let to = cx.dtype(rows);
        let mut f = Body::default();
        let (row, bag0, which, none) = (f.arg(0), f.arg(1), f.int(to, skipped), f.index(count.clone()));
        let skip = f.binary(BinaryOp::Eq, row, which);
        f.select(skip, none, bag0);
        counted = cx.map(f.0, &[rows, bag])?;
    }
    let mut x = cx.take(table, rows, 0)?;
    if let Some(w) = weights {
        let w = cx.converted(w, dtype)?;
        let w = cx.unsqueeze(w, &[1])?;
        x = cx.binary(BinaryOp::Mul, x, w)?;
    }
    let sizes = if counted == bag {
        cx.binary(BinaryOp::Sub, ends, begins)?
    } else {
        let ones = cx.full(&[n], Scalar::from_i64(DType::I32, 1))?;
        segment::combine(cx, ones, counted, 0, &count, (ReduceOp::Sum, None))?
    };
    let op = if mode == 2 { ReduceOp::Max } else { ReduceOp::Sum };
    let y = segment::combine(cx, x, counted, 0, &count, (op, None))?;
    let mut f = Body::default();
    let (y0, size, zero, one) = (f.arg(0), f.arg(1), f.number(dtype, 0.0), f.i32(1));
    let y = match mode {
        0 => y,
        1 => {
            let size = f.binary(BinaryOp::Max, size, one);
            let size = f.cast(dtype, size);
            f.binary(BinaryOp::Div, y0, size);
            let sizes = cx.unsqueeze(sizes, &[1])?;
            cx.map(f.0, &[y, sizes])?
        }
        2 => {
            let none = f.binary(BinaryOp::Lt, size, one);
            f.select(none, zero, y0);
            let sizes = cx.unsqueeze(sizes, &[1])?;
            cx.map(f.0, &[y, sizes])?
        }
        m => return Err(OpError::model(format!("unknown mode {m}")).param("mode")),
    };
    let mut out = vec![y];
    // Results that only the gradient reads get the declared shape.
    for i in 1..cx.result_count() {
        let ty = cx.result(i)?;
        let v = match i {
            1 if ty.shape == cx.shape(bag) => bag,
            2 if ty.shape == cx.shape(sizes) => sizes,
            3 if mode == 2 => largest(cx, x, y, [counted, rows], &count)?,
            _ => cx.full(&ty.shape, Scalar::from_i64(ty.dtype, 0))?,
        };
        out.push(cx.converted(v, ty.dtype)?);
    }
    Ok(out)
}

/// The table row that each element of the bag maxima `y` comes from, the first one in the bag; 0 for an empty bag.
fn largest(cx: &mut Cx, x: Value, y: Value, [bag, rows]: [Value; 2], count: &Dim) -> Result {
    let shape = cx.shape(x);
    let of = cx.take(y, bag, 0)?;
    let same = cx.binary(BinaryOp::Eq, x, of)?;
    let (at, none) = (cx.iota(&shape, Poly::var(0), DType::I32)?, cx.dim_scalar(&shape[0], DType::I32)?);
    let at = cx.select(same, at, none)?;
    let first = segment::combine(cx, at, bag, 0, count, (ReduceOp::Min, None))?;
    let mut f = Body::default();
    let (row, end, zero) = (f.arg(0), f.arg(1), f.i32(0));
    let inside = f.binary(BinaryOp::Lt, row, end);
    f.select(inside, row, zero);
    let found = cx.map(f.0, &[first, none])?;
    let mut rows = cx.take(rows, found, 0)?;
    let inside = cx.binary(BinaryOp::Lt, first, none)?;
    let zero = cx.int_const(cx.dtype(rows), 0);
    rows = cx.select(inside, rows, zero)?;
    Ok(rows)
}

/// Scales the table rows that the indices name down to the maximum norm if theirs is larger.
fn renormed(cx: &mut Cx) -> Lowered {
    let (table, indices) = (cx.tensor("self")?, cx.tensor("indices")?);
    let (most, p) = (cx.float("max_norm")?, cx.float("norm_type")?);
    let rows = cx.shape(cx.require_rank(table, 2)?)[0].clone();
    let indices = cx.require_indices(indices)?;
    let n: Dim = cx.shape(indices).iter().product();
    let indices = cx.reshape(indices, vec![n.clone()])?;
    let (no, yes) = (Scalar::from_i64(DType::I32, 0), Scalar::from_i64(DType::I32, 1));
    let (none, ones) = (cx.full(std::slice::from_ref(&rows), no)?, cx.full(&[n], yes)?);
    let index = vec![GatherAxis::Data { input: 2, at: vec![Poly::var(0)] }];
    let named = cx.push(Op::Scatter { reduce: Some(ReduceOp::Max), index }, &[none, ones, indices])?;
    let named = cx.reshape(named, vec![rows, Dim::ONE])?;
    let named = cx.binary_scalar(BinaryOp::Gt, named, 0.0)?;
    let scaled = distance::renorm(cx, table, p, 0, most)?;
    Ok(vec![cx.select(named, scaled, table)?])
}
