//! Loops over the columns of matrices. Each step selects rows and columns with masks, so that all matrices of a batch
//! are computed by the same kernel.

use crate::lower::{Lowered, Lowering, OpError, Result};
use wgfc_ir::{
    BinaryOp as B, Body, Border, DType, Dim, Graph, Op, Poly, ReduceOp, Scalar, TensorType, Value,
};

/// The number of batch axes, and the extents of the last two axes. The type must be a float.
pub(super) fn matrix(cx: &Lowering, x: Value) -> Result<(usize, Dim, Dim)> {
    let shape = cx.shape(x);
    match shape.len().checked_sub(2).filter(|_| cx.dtype(x).is_float()) {
        Some(batch) => Ok((batch, shape[batch].clone(), shape[batch + 1].clone())),
        None => Err(OpError::model(format!("needs matrices, got {}", cx.ty(x))).operand(x)),
    }
}

/// The number of batch axes and the extent of square matrices.
pub(super) fn square(cx: &mut Lowering, x: Value) -> Result<(usize, Dim)> {
    let (batch, m, n) = matrix(cx, x)?;
    if let (Some(a), Some(b)) = (m.as_const(), n.as_const())
        && a != b
    {
        return Err(OpError::model(format!("needs square matrices, got {}", cx.ty(x))).operand(x));
    }
    cx.require_equal(&m, &n);
    Ok((batch, if n.as_const().is_some() { n } else { m }))
}

/// Converts types narrower than f32 to f32.
pub(super) fn wide(cx: &mut Lowering, x: Value) -> Result {
    if cx.dtype(x).bits() < 32 { Ok(cx.cast(x, DType::F32)?) } else { Ok(x) }
}

/// The transpose of matrices.
pub(super) fn transposed(cx: &mut Lowering, x: Value) -> Result {
    let rank = matrix(cx, x)?.0 + 2;
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    Ok(cx.transpose(x, &order)?)
}

/// Identity matrices of this shape.
pub(super) fn identity(cx: &mut Lowering, shape: &[Dim], dtype: DType) -> Result {
    let rank = shape.len();
    let mut f = Body::default();
    let (i, j) = (f.index(Poly::var(rank - 2)), f.index(Poly::var(rank - 1)));
    let (one, zero) = (f.number(dtype, 1.0), f.number(dtype, 0.0));
    let same = f.binary(B::Eq, i, j);
    f.select(same, one, zero);
    Ok(cx.map_to(f.0, &[], shape.to_vec())?)
}

/// Broadcasts the batch axes: missing axes are put in front, and the second operand is repeated.
pub(super) fn together(cx: &mut Lowering, a: Value, b: Value) -> Result<(Value, Value)> {
    let mut one = |x: Value| -> Result {
        let (batch, ..) = matrix(cx, x)?;
        let mut shape = cx.shape(x);
        (shape[batch], shape[batch + 1]) = (Dim::ONE, Dim::ONE);
        Ok(cx.full(&shape, Scalar::bool(true))?)
    };
    let ones = [one(a)?, one(b)?];
    let batch = cx.broadcast_shape(&ones)?;
    let mut to = |x: Value| -> Result {
        let rank = cx.rank(x);
        let own = cx.shape(x);
        let shape: Vec<Dim> = batch[..batch.len() - 2].iter().chain(&own[rank - 2..]).cloned().collect();
        Ok(cx.expand(x, &shape)?)
    };
    Ok((to(a)?, to(b)?))
}

/// The arguments of a step: its number (i32), the carried values, and the slices.
pub(super) struct Step<'a> {
    pub number: Value,
    pub carried: &'a [Value],
    pub slices: &'a [Value],
}

/// A loop of `count` steps, from the last to the first if `reversed`. Each value of `sliced` has an axis of extent
/// `count`, and each step gets its slice without that axis. The body returns the carried values, and results that are
/// stacked along a new first axis in the order of the step numbers.
pub(super) struct Steps<'a> {
    pub count: Dim,
    pub reversed: bool,
    pub carried: &'a [Value],
    pub sliced: &'a [(Value, usize)],
}

impl Steps<'_> {
    pub(super) fn lower(
        self,
        cx: &mut Lowering,
        body: impl FnOnce(&mut Lowering, Step<'_>) -> Result<(Vec<Value>, Vec<Value>)>,
    ) -> Lowered {
        let numbers = cx.iota(std::slice::from_ref(&self.count), Poly::var(0), DType::I32)?;
        let mut scanned = vec![numbers];
        for (x, axis) in self.sliced {
            let mut order: Vec<usize> = (0..cx.rank(*x)).filter(|d| d != axis).collect();
            order.insert(0, *axis);
            scanned.push(cx.transpose(*x, &order)?);
        }
        let mut g = Graph::new();
        let given = |g: &mut Graph, name: &str, v: &[Value], skip: usize| -> Vec<Value> {
            let each = v.iter().enumerate().map(|(i, v)| {
                let shape = cx.shape(*v)[skip..].to_vec();
                g.add_input(&format!("{name} {i}"), TensorType::new(cx.dtype(*v), shape))
            });
            each.collect()
        };
        let carried = given(&mut g, "carried", self.carried, 0);
        let slices = given(&mut g, "slice", &scanned, 1);
        let mut inner = Lowering::body(&mut g);
        inner.at(cx.place());
        let step = Step { number: slices[0], carried: &carried, slices: &slices[1..] };
        let (next, results) = body(&mut inner, step)?;
        inner.finish();
        for (i, value) in next.iter().chain(&results).enumerate() {
            g.outputs.push(Border { name: format!("result {i}").into(), value: *value });
        }
        let op = Op::Scan {
            body: Box::new(g),
            carried: carried.len(),
            scanned: scanned.len(),
            reverse_inputs: vec![self.reversed; scanned.len()],
            reverse_outputs: vec![self.reversed; results.len()],
        };
        let inputs: Vec<Value> = self.carried.iter().chain(&scanned).copied().collect();
        let node = cx.push(op, &inputs)?.node;
        Ok((0..next.len() + results.len()).map(|port| Value { node, port: port as u32 }).collect())
    }
}

/// The slice at position `at` (an i32 that broadcasts) along an axis, which is kept with extent 1. It is computed as a
/// masked sum.
pub(super) fn pick(cx: &mut Lowering, x: Value, axis: usize, at: Value) -> Result {
    let mut f = Body::default();
    let (v, at_, i) = (f.arg(0), f.arg(1), f.index(Poly::var(axis)));
    let zero = f.number(cx.dtype(x), 0.0);
    let here = f.binary(B::Eq, i, at_);
    f.select(here, v, zero);
    let shape = cx.shape(x);
    let one = cx.map_to(f.0, &[x, at], shape)?;
    Ok(cx.reduce(ReduceOp::Sum, one, &[axis], true)?)
}

/// The number (from 1 on) of the first failed step so far: `before` unless that is 0.
pub(super) fn first_failure(cx: &mut Lowering, before: Value, failed: Value, number: Value) -> Result {
    let mut f = Body::default();
    let (before_, failed_, number_) = (f.arg(0), f.arg(1), f.arg(2));
    let (zero, one) = (f.i32(0), f.i32(1));
    let here = f.binary(B::Add, number_, one);
    let now = f.select(failed_, here, zero);
    let none = f.binary(B::Eq, before_, zero);
    f.select(none, now, before_);
    Ok(cx.map(f.0, &[before, failed, number])?)
}
