//! Scatters: each update is written to its element, in time proportional to their number; with few updates, each element looks for its
//! own instead.
//!
//! Updates that combine are applied in arbitrary order. Their combination is therefore an integer operation, whose result does not depend
//! on the order ([`combines`]); [`lower`] converts all others to such operations:
//!
//! - The maximum of floats is that of integers in the same order. The maximum of 64-bit integers is that of their high words, followed by
//!   that of the low words with this high word.
//! - A sum of floats is a sum of multiples of a power of two, the smallest that 64 bits allow for the greatest exponent among an
//!   element's terms: the result is rounded once, and is more accurate than a sequential sum of floats.
//! - A product is a sum of logarithms ([`product`]).
//!
//! Where indices select whole rows it can be faster to sort the updates first: [`ordered`].

pub mod ordered;
mod product;

use crate::fuse::build::{Built, acc, epilogue, finish, greatest, least, tensor_of};
use crate::fuse::pulling::{Puller, unflatten};
use crate::fuse::tensors::{InMemory, Tensors};
use crate::fuse::unit::{Unit, fixed, is_large, searched};
use crate::kernel::{Expr, Family, Map, ReduceKind, Reduction, Row, Store, combines};
use product::Parts;
use wgfc_ir::build::{Builder, Built as Made};
use wgfc_ir::{
    BinaryOp as B, Body, Class, DType, Dim, GatherAxis, Graph, Op, Poly, ReduceOp, Scalar, UnaryOp, Value,
};

/// Every element of the result looks through the updates for its own.
pub fn scan<'a>(
    graph: &'a Graph,
    unit: &Unit,
    how: Option<ReduceOp>,
    index: &[GatherAxis],
    tensors: &mut Tensors<'a>,
) -> Built {
    let node = graph.node(unit.anchor);
    let (data, updates) = (node.inputs[0], node.inputs[1]);
    let (td, tu) = (graph.ty(data).clone(), graph.ty(updates).clone());
    let fixed = fixed(index, tu.rank());
    let others: Vec<Dim> =
        tu.shape.iter().zip(&fixed).filter(|(_, f)| f.is_none()).map(|(d, _)| d.clone()).collect();
    let (rows, len) = (td.numel(), others.iter().product::<Dim>());
    let mut p = Puller::new(graph, InMemory::new(tensors), vec![rows.clone(), len.clone()]);
    let at = unflatten(&Poly::var(0), &td.shape, &p.domain);
    let mut other = unflatten(&Poly::var(1), &others, &p.domain).into_iter();
    let (mut from, mut inside) = (vec![], None);
    for (f, d) in fixed.iter().zip(&tu.shape) {
        let here = match f {
            Some(axis) => at[*axis].clone(),
            None => other.next().unwrap_or_default(),
        };
        let ok = p.inside(&here, d);
        inside = p.and(inside, ok);
        from.push(here);
    }
    let mut hit = inside;
    for (axis, ax) in index.iter().enumerate() {
        let to = match ax {
            GatherAxis::Affine(q) => {
                let q = q.subst_vars(&from, &p.domain);
                if q == at[axis] {
                    continue;
                }
                p.index(q)
            }
            GatherAxis::Data { input, at } => {
                let e = p.index_element(node.inputs[*input], at, &from, inside)?;
                p.wrap(e, &td.shape[axis])
            }
        };
        let here = p.index(at[axis].clone());
        let same = p.binary(B::Eq, to, here);
        hit = p.and(hit, Some(same));
    }
    let hit = match hit {
        Some(h) => h,
        None => p.constant(Scalar::bool(true)),
    };
    let old = p.pull(data, &at, None)?;
    let new = p.pull(updates, &from, inside)?;
    let dtype = td.dtype;
    let (kind, value, result) = match how {
        None => {
            let r = acc(&mut p, 0, dtype);
            (ReduceKind::Last { when: hit, init: old }, new, r)
        }
        Some(op) => {
            let (kind, combine, identity) = match op {
                ReduceOp::Sum => (ReduceKind::Sum, B::Add, Scalar::from_i64(dtype, 0)),
                ReduceOp::Prod => (ReduceKind::Prod, B::Mul, Scalar::from_i64(dtype, 1)),
                ReduceOp::Max => (ReduceKind::Max, B::Max, least(dtype)),
                ReduceOp::Min => (ReduceKind::Min, B::Min, greatest(dtype)),
            };
            let id = p.constant(identity);
            let value = p.push(Expr::Select(hit, new, id), dtype);
            let r = acc(&mut p, 0, dtype);
            let r = p.binary(combine, old, r);
            (kind, value, r)
        }
    };
    let row_stores = epilogue(graph, unit, &mut p, &[result], &[at])?;
    let reductions = vec![Reduction { kind, value, dtype }];
    finish(graph, unit, p, Family::Row(Row { rows, len, reductions, row_stores }), vec![])
}

/// Every update is written to its element, or combined with it; other elements are unchanged. Of several updates that replace the same
/// element, an arbitrary one remains.
pub fn place<'a>(
    graph: &'a Graph,
    unit: &Unit,
    from: Value,
    combine: Option<ReduceOp>,
    index: &[GatherAxis],
    tensors: &mut Tensors<'a>,
) -> Built {
    let node = graph.node(unit.anchor);
    let shape = &node.outputs[0].shape;
    let (operand, updates) = (from, graph.ty(from).clone());
    let elements = updates.numel();
    let tensor = tensor_of(tensors, unit.anchor.into())?;
    let mut p = Puller::new(graph, InMemory::new(tensors), vec![elements.clone()]);
    let from = unflatten(&Poly::var(0), &updates.shape, &p.domain);
    let (offset, guard) = p.target(&node.inputs, index, shape, &from, &|_| None)?;
    let value = p.pull(operand, &from, None)?;
    finish(
        graph,
        unit,
        p,
        Family::Map(Map { elements }),
        vec![Store { tensor, offset, value, guard, combine }],
    )
}

/// Converts scatters of many combining updates to a form in which the order of the updates is arbitrary.
pub fn lower(graph: &mut Graph) -> Result<(), String> {
    for n in graph.node_ids().collect::<Vec<_>>() {
        let node = graph.node(n).clone();
        let Op::Scatter { reduce: Some(how), index } = &node.op else { continue };
        let dtype = node.outputs[0].dtype;
        // An index operand that is also the data or the updates occurs in no model.
        let plain = |a: &GatherAxis| !matches!(a, GatherAxis::Data { input: 0..2, .. });
        if combines(*how, dtype) || !index.iter().all(plain) || !is_large(graph, n, index) {
            continue;
        }
        let most = searched(graph, n, index);
        let b = Builder { graph: &mut *graph, origin: node.origin.clone() };
        let mut l = Lowering { b, inputs: node.inputs.clone(), index, how: *how };
        let new = match (how, dtype.class()) {
            (ReduceOp::Prod, Class::Float) => {
                let (data, updates) = l.operands(DType::F32)?;
                l.product(Parts::of_floats(&most), data, updates)?
            }
            (ReduceOp::Prod, Class::Int | Class::Uint) => {
                let (data, updates) = l.operands(if dtype.bits() == 64 { DType::U64 } else { DType::U32 })?;
                l.product(Parts::of_integers(l.b.dtype(data)), data, updates)?
            }
            (ReduceOp::Prod, Class::Bool) => {
                l.how = ReduceOp::Min;
                l.as_type(DType::U32)?
            }
            (ReduceOp::Sum, Class::Float) => l.float_sum(&most)?,
            (_, Class::Float) => l.float_extreme()?,
            (_, Class::Int | Class::Uint) if dtype.bits() == 64 => l.wide_extreme()?,
            (_, Class::Int) => l.as_type(DType::I32)?,
            (_, Class::Uint | Class::Bool) => l.as_type(DType::U32)?,
        };
        let new = l.b.cast(new, dtype)?;
        crate::fuse::loops::prepare::replace(graph, n, &[new]);
    }
    graph.remove_dead();
    Ok(())
}

/// The lowering of one scatter.
struct Lowering<'g> {
    b: Builder<'g>,
    inputs: Vec<Value>,
    index: &'g [GatherAxis],
    how: ReduceOp,
}

impl Lowering<'_> {
    fn scatter(&mut self, how: ReduceOp, data: Value, updates: Value) -> Made {
        let mut inputs = self.inputs.clone();
        (inputs[0], inputs[1]) = (data, updates);
        self.b.push(Op::Scatter { reduce: Some(how), index: self.index.to_vec() }, &inputs)
    }

    /// For each update, the element of `x`, which has the data's shape, at its position; arbitrary where that is out of bounds.
    fn at_places(&mut self, x: Value) -> Made {
        let shape = self.b.shape(self.inputs[1]);
        let mut inputs = self.inputs[1..].to_vec();
        inputs[0] = x;
        let less = |a: &GatherAxis| match a {
            GatherAxis::Affine(p) => GatherAxis::Affine(p.clone()),
            GatherAxis::Data { input, at } => GatherAxis::Data { input: input - 1, at: at.clone() },
        };
        let index = self.index.iter().map(less).collect();
        self.b.push(Op::Gather { shape, index }, &inputs)
    }

    fn operands(&mut self, dtype: DType) -> Made<(Value, Value)> {
        let (data, updates) = (self.inputs[0], self.inputs[1]);
        Ok((self.b.cast(data, dtype)?, self.b.cast(updates, dtype)?))
    }

    /// The scatter computed in another type.
    fn as_type(&mut self, dtype: DType) -> Made {
        let (data, updates) = self.operands(dtype)?;
        self.scatter(self.how, data, updates)
    }

    /// The maximum or minimum of floats.
    fn float_extreme(&mut self) -> Made {
        let (data, updates) = self.operands(DType::F32)?;
        let mut key = Body::default();
        let x = key.arg(0);
        let bits = key.bitcast(DType::I32, x);
        let number = ordered(&mut key, bits);
        // NaN gets the last of all keys, whose bits as a float are also NaN.
        let last = if self.how == ReduceOp::Max { i32::MAX } else { i32::MIN };
        let (none, last) = (key.unary(UnaryOp::IsNan, x), key.i32(i64::from(last)));
        key.select(none, last, number);
        let key = key.0;
        let (data, updates) = (self.b.map(key.clone(), &[data])?, self.b.map(key, &[updates])?);
        let keys = self.scatter(self.how, data, updates)?;
        let mut back = Body::default();
        let key = back.arg(0);
        let bits = ordered(&mut back, key);
        back.bitcast(DType::F32, bits);
        self.b.map(back.0, &[keys])
    }

    /// The maximum or minimum of 64-bit integers: the high words, then the low words with that high word.
    fn wide_extreme(&mut self) -> Made {
        let (data, updates) = (self.inputs[0], self.inputs[1]);
        let dtype = self.b.dtype(data);
        let half = if dtype == DType::I64 { DType::I32 } else { DType::U32 };
        let mut f = Body::default();
        let (x, by) = (f.arg(0), f.int(dtype, 32));
        let high = f.binary(B::Shr, x, by);
        f.cast(half, high);
        let (dh, uh) = (self.b.map(f.0.clone(), &[data])?, self.b.map(f.0, &[updates])?);
        let high = self.scatter(self.how, dh, uh)?;
        let beside = self.at_places(high)?;
        let mut f = Body::default();
        let (x, own, high_arg) = (f.arg(0), f.arg(1), f.arg(2));
        let low = f.cast(DType::U32, x);
        let last = f.u32(if self.how == ReduceOp::Max { 0 } else { i64::from(u32::MAX) });
        let same = f.binary(B::Eq, own, high_arg);
        f.select(same, low, last);
        let dl = self.b.map(f.0.clone(), &[data, dh, high])?;
        let ul = self.b.map(f.0, &[updates, uh, beside])?;
        let low = self.scatter(self.how, dl, ul)?;
        let mut f = Body::default();
        let (high_arg, low_arg, by) = (f.arg(0), f.arg(1), f.int(dtype, 32));
        let wide = f.cast(dtype, high_arg);
        let wide = f.binary(B::Shl, wide, by);
        let rest = f.cast(dtype, low_arg);
        f.binary(B::Or, wide, rest);
        self.b.map(f.0, &[high, low])
    }

    /// Each element times the product of its updates, computed by adding their `parts`.
    fn product(&mut self, parts: Parts, data: Value, updates: Value) -> Made {
        let shape = self.b.shape(data);
        let mut sums = vec![];
        for of in parts.of {
            let part = self.b.map(of, &[updates])?;
            let zero = self.b.int(self.b.dtype(part), 0);
            let none = self.b.expand(zero, &shape)?;
            sums.push(self.scatter(ReduceOp::Sum, none, part)?);
        }
        let product = self.b.map(parts.product, &sums)?;
        self.b.binary(B::Mul, data, product)
    }

    /// A sum of floats; at most `most` updates go to one element.
    fn float_sum(&mut self, most: &Dim) -> Made {
        let (data, updates) = self.operands(DType::F32)?;
        let mut f = Body::default();
        exponent(&mut f);
        let (de, ue) = (self.b.map(f.0.clone(), &[data])?, self.b.map(f.0, &[updates])?);
        let greatest = self.scatter(ReduceOp::Max, de, ue)?;
        let beside = self.at_places(greatest)?;
        let fixed = fixed_point(most);
        let data = self.b.map(fixed.clone(), &[data, greatest])?;
        let updates = self.b.map(fixed, &[updates, beside])?;
        let sum = self.scatter(ReduceOp::Sum, data, updates)?;
        self.b.map(floating(most), &[sum, greatest])
    }
}

/// Maps the bits of a float to an integer of the same order, and back.
fn ordered(f: &mut Body, x: u32) -> u32 {
    let (by, mask) = (f.i32(31), f.i32(i64::from(i32::MAX)));
    let sign = f.binary(B::Shr, x, by);
    let flips = f.binary(B::And, sign, mask);
    f.binary(B::Xor, x, flips)
}

/// The biased exponent of infinities and NaN.
const SPECIAL: i64 = 255;
/// The fraction bits of a float's significand.
const FRACTION: i64 = 23;

/// The biased exponent of operand 0 as an `i32`, the last node; 1 for subnormal numbers.
fn exponent(f: &mut Body) -> u32 {
    let x = f.arg(0);
    let bits = f.bitcast(DType::U32, x);
    let (by, mask) = (f.u32(FRACTION), f.u32(SPECIAL));
    let e = f.binary(B::Shr, bits, by);
    let e = f.binary(B::And, e, mask);
    let e = f.cast(DType::I32, e);
    let one = f.i32(1);
    f.binary(B::Max, e, one)
}

/// The fraction bits of a number with the greatest exponent, such that a sum of it and `most` others fits 64 bits.
fn places(f: &mut Body, most: &Dim) -> u32 {
    let all = f.i32(61);
    let count = f.index(most.clone());
    let one = f.i32(1);
    let count = f.binary(B::Max, count, one);
    // The exponent of the count, plus one, is enough bits for the carry.
    let count = f.cast(DType::F32, count);
    let bits = f.bitcast(DType::I32, count);
    let by = f.i32(FRACTION);
    let e = f.binary(B::Shr, bits, by);
    let bias = f.i32(127 - 2);
    let taken = f.binary(B::Sub, e, bias);
    f.binary(B::Sub, all, taken)
}

/// A float as a multiple of `2^(greatest exponent − places)`, rounded to nearest. Operands: the float, and the greatest exponent among
/// the terms of its element. If that exponent is that of infinities and NaN, the result is 1 for +∞, 2³² for −∞, both added for NaN, and
/// 0 for finite numbers.
fn fixed_point(most: &Dim) -> wgfc_ir::ScalarFn {
    let mut f = Body::default();
    let own = exponent(&mut f);
    let (x, greatest) = (f.arg(0), f.arg(1));
    let places = places(&mut f, most);
    let bits = f.bitcast(DType::U32, x);
    let mask = f.u32((1 << FRACTION) - 1);
    let fraction = f.binary(B::And, bits, mask);
    let (by, hidden, zero) = (f.u32(FRACTION), f.u32(1 << FRACTION), f.u32(0));
    let above = f.binary(B::Shr, bits, by);
    let all_ones = f.u32(SPECIAL);
    let biased = f.binary(B::And, above, all_ones);
    let subnormal = f.binary(B::Eq, biased, zero);
    let first = f.select(subnormal, zero, hidden);
    let significand = f.binary(B::Or, fraction, first);
    // The left shift, or for a small number the right shift with rounding: a shift by 31 leaves nothing of it.
    let by = f.i32(FRACTION);
    let up = f.binary(B::Sub, places, by);
    let down = f.binary(B::Sub, greatest, own);
    let (left, right) = (f.binary(B::Sub, up, down), f.binary(B::Sub, down, up));
    let (none, most) = (f.i32(0), f.i32(31));
    let (left, right) = (f.binary(B::Max, left, none), f.binary(B::Max, right, none));
    let right = f.binary(B::Min, right, most);
    let (left, right) = (f.cast(DType::U32, left), f.cast(DType::U32, right));
    let one = f.u32(1);
    let half = f.binary(B::Shl, one, right);
    let half = f.binary(B::Shr, half, one);
    let number = f.binary(B::Add, significand, half);
    let number = f.binary(B::Shr, number, right);
    let number = f.cast(DType::I32, number);
    let sign = f.u32(1 << 31);
    let sign = f.binary(B::And, bits, sign);
    let positive = f.binary(B::Eq, sign, zero);
    let none = f.i32(0);
    let negated = f.binary(B::Sub, none, number);
    let number = f.select(positive, number, negated);
    let (number, left) = (f.cast(DType::I64, number), f.cast(DType::I64, left));
    let number = f.binary(B::Shl, number, left);
    // The keys of infinities and NaN.
    let is_number = f.binary(B::Ne, biased, all_ones);
    let infinite = f.binary(B::Eq, fraction, zero);
    let wide = |f: &mut Body, v| f.int(DType::I64, v);
    let (none, plus, minus, both) =
        (wide(&mut f, 0), wide(&mut f, 1), wide(&mut f, 1 << 32), wide(&mut f, (1 << 32) + 1));
    let sided = f.select(positive, plus, minus);
    let flag = f.select(infinite, sided, both);
    let flag = f.select(is_number, none, flag);
    let special = f.i32(SPECIAL);
    let flags = f.binary(B::Eq, greatest, special);
    f.select(flags, flag, number);
    f.0
}

/// The float represented by a sum of [`fixed_point`] numbers. Operands: the sum and the greatest exponent.
fn floating(most: &Dim) -> wgfc_ir::ScalarFn {
    let mut f = Body::default();
    let (sum, greatest) = (f.arg(0), f.arg(1));
    let places = places(&mut f, most);
    let value = f.cast(DType::F32, sum);
    let bias = f.i32(127);
    let scale = f.binary(B::Sub, greatest, bias);
    let scale = f.binary(B::Sub, scale, places);
    // The power of two may be outside the range of floats; it is applied as two factors within the range.
    let (one, by) = (f.i32(1), f.i32(FRACTION));
    let first = f.binary(B::Shr, scale, one);
    let second = f.binary(B::Sub, scale, first);
    let mut number = value;
    for e in [first, second] {
        let e = f.binary(B::Add, e, bias);
        let bits = f.binary(B::Shl, e, by);
        let power = f.bitcast(DType::F32, bits);
        number = f.binary(B::Mul, number, power);
    }
    let sum = f.cast(DType::U64, sum);
    let (wide, zero) = (f.u64(32), f.u32(0));
    let minus = f.binary(B::Shr, sum, wide);
    let minus = f.cast(DType::U32, minus);
    let plus = f.cast(DType::U32, sum);
    let (no_minus, no_plus) = (f.binary(B::Eq, minus, zero), f.binary(B::Eq, plus, zero));
    let bits = |f: &mut Body, v: f32| {
        let bits = f.u32(i64::from(v.to_bits()));
        f.bitcast(DType::F32, bits)
    };
    let (inf, below, nan) =
        (bits(&mut f, f32::INFINITY), bits(&mut f, f32::NEG_INFINITY), bits(&mut f, f32::NAN));
    let special = f.select(no_plus, below, nan);
    let special = f.select(no_minus, inf, special);
    let limit = f.i32(SPECIAL);
    let is_special = f.binary(B::Eq, greatest, limit);
    f.select(is_special, special, number);
    f.0
}
