//! Sorting of short rows in the body of a loop by counting: an element's rank is the number of elements before it.
//!
//! `top_k(x)` → `rank[i] = Σⱼ before(x[j], x[i])`, `position[p] = Σᵢ (rank[i] = p) · i`, and the elements at these positions.
//! All ranks differ, as the first of equal elements counts as before the others, so that each sum has exactly one non-zero term. The bit
//! patterns of elements are summed as integers, which preserves them exactly.
//!
//! Prefix sums for a workgroup are lowered to reductions in the same way: `y[i] = Σⱼ (j ≤ i ? x[j] : 0)`.

use crate::fuse::loops::lanes::Executor;
use crate::rewrite::sorts::SHORT_IN_LOOPS;
use wgfc_ir::build::{Builder, Built};
use wgfc_ir::{BinaryOp as B, Body, DType, Dim, GatherAxis, Graph, NodeId, Op, Poly, ReduceOp, Reg, Value};

/// The longest row that a single invocation sorts: it expands as many comparisons as there are pairs.
const WRITTEN_OUT: i64 = 16;
/// The longest row that a workgroup sorts, with an invocation for each element.
const SHARED: i64 = SHORT_IN_LOOPS;

/// Replaces sorts, and for a workgroup also prefix sums, of rows that are short enough for the executor; others stay.
pub(in crate::fuse) fn lower(body: &mut Graph, executor: Executor) -> Result<(), String> {
    count(body, executor)?;
    if executor == Executor::Workgroup {
        sum_up(body)?;
    }
    body.remove_dead();
    Ok(())
}

fn count(body: &mut Graph, executor: Executor) -> Result<(), String> {
    let most = match executor {
        Executor::Invocation => WRITTEN_OUT,
        Executor::Workgroup => SHARED,
    };
    let orders: Vec<NodeId> =
        body.node_ids().filter(|n| matches!(body.node(*n).op, Op::TopK { .. })).collect();
    for n in orders {
        let node = body.node(n).clone();
        let Op::TopK { axis, k, largest } = &node.op else { continue };
        let x = node.inputs[0];
        if body.ty(x).shape[*axis].as_const().is_none_or(|len| len > most) {
            continue;
        }
        let mut b = Builder { graph: body, origin: node.origin.clone() };
        let order = Order { axis: *axis, k, largest: *largest };
        for (port, new) in order.counted(&mut b, x, executor)?.into_iter().enumerate() {
            body.replace_uses(Value { node: n, port: port as u32 }, new);
        }
    }
    Ok(())
}

fn sum_up(body: &mut Graph) -> Result<(), String> {
    let scans: Vec<NodeId> =
        body.node_ids().filter(|n| matches!(body.node(*n).op, Op::PrefixScan { .. })).collect();
    for n in scans {
        let node = body.node(n).clone();
        let Op::PrefixScan { op, axis, exclusive, reverse } = node.op else { continue };
        let x = node.inputs[0];
        let len = body.ty(x).shape[axis].clone();
        if len.as_const().is_none_or(|n| n > SHARED) {
            continue;
        }
        let mut b = Builder { graph: body, origin: node.origin.clone() };
        let pairs = with_axis(&b.shape(x), axis, &len, &len);
        let others = along(&mut b, x, axis, &pairs, axis + 1)?;
        let mut f = Body::default();
        let x = f.arg(0);
        let (i, j) = (f.index(Poly::var(axis)), f.index(Poly::var(axis + 1)));
        let compare = match (reverse, exclusive) {
            (false, false) => B::Le,
            (false, true) => B::Lt,
            (true, false) => B::Ge,
            (true, true) => B::Gt,
        };
        let counts = f.binary(compare, j, i);
        let none = f.constant(op.identity(b.dtype(others)));
        f.select(counts, x, none);
        let terms = b.map(f.0, &[others])?;
        let sum = b.reduce(op, terms, &[axis + 1], false)?;
        body.replace_uses(n.into(), sum);
    }
    Ok(())
}

/// A shape with axis `axis` replaced by two axes of extents `first` and `second`.
fn with_axis(shape: &[Dim], axis: usize, first: &Dim, second: &Dim) -> Vec<Dim> {
    let (outer, inner) = (&shape[..axis], &shape[axis + 1..]);
    outer.iter().chain([first, second]).chain(inner).cloned().collect()
}

/// `x` broadcast to a shape made by [`with_axis`], with its axis at position `of`.
fn along(b: &mut Builder<'_>, x: Value, axis: usize, shape: &[Dim], of: usize) -> Built {
    let place = |i: usize| match i.cmp(&axis) {
        std::cmp::Ordering::Less => i,
        std::cmp::Ordering::Equal => of,
        std::cmp::Ordering::Greater => i + 1,
    };
    let index = (0..b.rank(x)).map(|i| Poly::var(place(i))).collect();
    b.view(x, shape.to_vec(), index)
}

struct Order<'a> {
    axis: usize,
    k: &'a Dim,
    largest: bool,
}

impl Order<'_> {
    /// The sorted values and their positions.
    fn counted(&self, b: &mut Builder<'_>, x: Value, executor: Executor) -> Result<[Value; 2], String> {
        let len = b.shape(x)[self.axis].clone();
        // Each element, with a new axis behind its own for the elements it is compared with.
        let pairs = with_axis(&b.shape(x), self.axis, &len, &len);
        let [mine, other] = [self.axis, self.axis + 1].map(|of| along(b, x, self.axis, &pairs, of));
        let before = self.before(b, mine?, other?)?;
        let rank = b.reduce(ReduceOp::Sum, before, &[self.axis + 1], false)?;
        // Each place, with a new axis for the elements that may be there.
        let places = with_axis(&b.shape(x), self.axis, self.k, &len);
        let rank = along(b, rank, self.axis, &places, self.axis + 1)?;
        let mut f = Body::default();
        let (rank_of, place) = (f.arg(0), f.index(Poly::var(self.axis)));
        f.binary(B::Eq, rank_of, place);
        let here = b.map(f.0, &[rank])?;
        let number = b.iota(&places, Poly::var(self.axis + 1), DType::I32)?;
        let position = self.chosen(b, here, number)?;
        let values = match executor {
            Executor::Invocation => {
                let elements = along(b, x, self.axis, &places, self.axis + 1)?;
                self.chosen(b, here, elements)?
            }
            Executor::Workgroup => self.at(b, x, position)?,
        };
        Ok([values, b.cast(position, DType::I64)?])
    }

    /// 1 where `other` comes before `mine`. NaN counts as the greatest; of equal elements, the first comes first.
    fn before(&self, b: &mut Builder<'_>, mine: Value, other: Value) -> Built {
        let float = b.dtype(mine).is_float();
        let compare = if self.largest { B::Gt } else { B::Lt };
        let mut f = Body::default();
        let (mine_, other_) = (f.arg(0), f.arg(1));
        let mut before = f.binary(compare, other_, mine_);
        let mut equal = f.binary(B::Eq, other_, mine_);
        if float {
            let [m, o] = [mine_, other_].map(|x| f.unary(wgfc_ir::UnaryOp::IsNan, x));
            let (first, second) = if self.largest { (o, m) } else { (m, o) };
            let not = f.unary(wgfc_ir::UnaryOp::Not, second);
            let greater = f.binary(B::And, first, not);
            before = f.binary(B::Or, before, greater);
            let both = f.binary(B::And, m, o);
            equal = f.binary(B::Or, equal, both);
        }
        let (i, j) = (f.index(Poly::var(self.axis)), f.index(Poly::var(self.axis + 1)));
        let earlier = f.binary(B::Lt, j, i);
        let tie = f.binary(B::And, equal, earlier);
        let counts = f.binary(B::Or, before, tie);
        f.cast(DType::I32, counts);
        b.map(f.0, &[mine, other])
    }

    /// For each place, the element for which `here` is 1, combined through its bits.
    fn chosen(&self, b: &mut Builder<'_>, here: Value, elements: Value) -> Built {
        let dtype = b.dtype(elements);
        let wide = match dtype.reg() {
            Reg::F32 => DType::F32,
            Reg::I64 | Reg::U64 => dtype,
            Reg::U32 => DType::U32,
            Reg::I32 | Reg::Bool => DType::I32,
        };
        let bits = if wide == DType::F32 { DType::I32 } else { wide };
        let elements = b.cast(elements, wide)?;
        let mut f = Body::default();
        let (here_, element) = (f.arg(0), f.arg(1));
        let element = if wide == bits { element } else { f.bitcast(bits, element) };
        let none = f.constant(wgfc_ir::Scalar::from_i64(bits, 0));
        f.select(here_, element, none);
        let terms = b.map(f.0, &[here, elements])?;
        let sum = b.reduce(ReduceOp::Sum, terms, &[self.axis + 1], false)?;
        let mut f = Body::default();
        let sum_ = f.arg(0);
        if wide != bits {
            f.bitcast(wide, sum_);
        }
        let sum = if wide == bits { sum } else { b.map(f.0, &[sum])? };
        b.cast(sum, dtype)
    }

    /// The elements at positions along the axis.
    fn at(&self, b: &mut Builder<'_>, x: Value, positions: Value) -> Built {
        let shape = b.shape(positions);
        let own: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
        let axis = |i: usize| match i == self.axis {
            true => GatherAxis::Data { input: 1, at: own.clone() },
            false => GatherAxis::Affine(Poly::var(i)),
        };
        let index = (0..shape.len()).map(axis).collect();
        b.push(Op::Gather { shape, index }, &[x, positions])
    }
}
