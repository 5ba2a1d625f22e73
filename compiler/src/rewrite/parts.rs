//! Few long rows are cut into parts, because one workgroup per row would leave most of a device idle.
//!
//! - A `Reduce` reduces each part, then the partial results.
//! - A `PrefixScan` reduces each part, scans the partial results, and then scans each part from the result before it.
//! - A `Softmax` computes the maximum and the sum of each part, then those of the row.
//!
//! Sums of 16-bit floats are computed in f32. A row that is not a multiple of the part length is padded with the
//! identity.

use super::canonical::topo;
use crate::device::Speeds;
use wgfc_ir::build::{Builder, Built};
use wgfc_ir::{
    BinaryOp as B, Body, DType, Dim, Graph, NodeId, Op, Poly, ReduceOp, Scalar, UnaryOp as U, Value,
};

/// The number of workgroups that keep a core busy.
const BUSY: f64 = 8.0;
/// The number of adjacent rows that one workgroup processes, if rows are adjacent element by element.
const BESIDE: i64 = 128;
/// The length of a part of a prefix scan, if rows are contiguous.
const SCANNED: i64 = 4096;
/// The minimum number of elements that a lane reduces, if rows are adjacent element by element.
const ALONG: i64 = 32;

/// Cuts the rows of Reduces, PrefixScans and Softmaxes; returns their number.
pub fn cut(graph: &mut Graph, speeds: &Speeds) -> Result<usize, String> {
    let mut count = 0;
    for n in topo(graph)? {
        let node = graph.node(n);
        let new = match &node.op {
            Op::Reduce { op, axes } => {
                let (op, axes) = (*op, axes.clone());
                reduce(graph, n, op, &axes, speeds)?
            }
            Op::PrefixScan { op, axis, exclusive, reverse } => {
                let (op, axis, how) = (*op, *axis, (*exclusive, *reverse));
                prefix_scan(graph, n, op, axis, how, speeds)?
            }
            Op::Softmax { axis, log } => {
                let (axis, log) = (*axis, *log);
                softmax(graph, n, axis, log, speeds)?
            }
            _ => None,
        };
        if let Some(new) = new {
            let names = graph.node(n).names.clone();
            graph.node_mut(new.node).names = names;
            graph.replace_uses(n.into(), new);
            count += 1;
        }
    }
    graph.remove_dead();
    Ok(count)
}

/// The layout of rows in memory.
#[derive(Clone, Copy, Debug)]
struct Rows {
    /// The number of rows.
    count: i64,
    /// The length of each row.
    len: i64,
    /// Whether rows are adjacent element by element (the innermost axis runs across the rows) rather than contiguous.
    across: bool,
    /// The bytes of an element.
    bytes: i64,
}

impl Rows {
    fn of(graph: &Graph, x: Value, axes: &[usize]) -> Option<Rows> {
        let ty = graph.ty(x);
        let shape = ty.static_shape()?;
        let len: i64 = axes.iter().map(|a| shape[*a] as i64).product();
        let count: i64 = (0..shape.len()).filter(|d| !axes.contains(d)).map(|d| shape[d] as i64).product();
        let last = (0..shape.len()).rev().find(|d| shape[*d] > 1)?;
        let across = !axes.contains(&last) && shape[last] >= 8;
        let bytes = (ty.dtype.bits() as i64 / 8).max(1);
        (count > 0 && len > 0).then_some(Rows { count, len, across, bytes })
    }

    /// The number of workgroups without cutting.
    fn workgroups(&self) -> i64 {
        if self.across { (self.count as u64).div_ceil(BESIDE as u64) as i64 } else { self.count }
    }

    /// The number of parts of each row, if cutting pays, where each of `passes` reads the whole rows: with parts, all
    /// workgroups share the memory bandwidth; without, only as many as the rows occupy.
    fn parts(&self, speeds: &Speeds, passes: f64, dispatches: f64) -> Option<i64> {
        let groups = self.workgroups() as f64;
        let all = (self.count * self.len * self.bytes) as f64 * passes;
        let whole = all / speeds.bandwidth;
        let few = all / groups / (speeds.bandwidth / speeds.cores);
        let cut = whole + dispatches * speeds.dispatch();
        let beside = if self.across { self.count.min(BESIDE) } else { 1 };
        let long = self.len * self.bytes * beside >= speeds.little_bytes() / 4;
        let parts = (BUSY * speeds.cores / groups) as i64;
        (long && parts > 1 && whole.max(few) > 1.3 * cut).then_some(parts)
    }
}

/// A length near `len / parts`; a divisor of `len` if there is one.
fn part_len(len: i64, parts: i64) -> i64 {
    let wanted = (len / parts.max(1)).max(1);
    let divides = |p: &i64| *p > 1 && len % *p == 0;
    let near = (0..wanted).flat_map(|by| [wanted + by, wanted - by]).take(4096);
    let best = near.filter(|p| *p >= wanted / 2 && *p <= wanted * 2).find(divides);
    best.unwrap_or(wanted)
}

/// `x` with the axis split into parts and the positions of a part; a last part that is too short is padded with
/// `fill`.
fn in_parts(b: &mut Builder, x: Value, axis: usize, part: i64, fill: Scalar) -> Built {
    let mut shape = b.shape(x);
    let len = shape[axis].clone();
    let whole = len.as_const().is_some_and(|n| n % part == 0);
    shape.splice(axis..=axis, [len.ceil_div(part), part.into()]);
    let position = |i: usize| match i.cmp(&axis) {
        std::cmp::Ordering::Less => Poly::var(i),
        std::cmp::Ordering::Equal => &(&Poly::var(axis) * part) + &Poly::var(axis + 1),
        std::cmp::Ordering::Greater => Poly::var(i + 1),
    };
    let index = (0..shape.len() - 1).map(position).collect();
    b.push(Op::View { shape, index, fill: (!whole).then_some(fill) }, &[x])
}

/// The type in which elements are combined.
fn wide(t: DType) -> DType {
    if matches!(t, DType::F16 | DType::BF16) { DType::F32 } else { t }
}

fn takes(t: DType) -> bool {
    matches!(t, DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::U32 | DType::I64 | DType::U64)
}

fn origin(graph: &Graph, n: NodeId) -> String {
    graph.node(n).origin.first().map(|o| o.to_string()).unwrap_or_default()
}

fn reduce(
    graph: &mut Graph,
    n: NodeId,
    op: ReduceOp,
    axes: &[usize],
    speeds: &Speeds,
) -> Result<Option<Value>, String> {
    let x = graph.node(n).inputs[0];
    let t = graph.ty(x).dtype;
    let Some(rows) = Rows::of(graph, x, axes).filter(|_| takes(t)) else { return Ok(None) };
    let Some(parts) = rows.parts(speeds, 1.0, 1.0) else { return Ok(None) };
    let shape = graph.ty(x).static_shape().unwrap_or_default();
    // The outermost axis that is long enough to divide.
    let Some(axis) = axes.iter().copied().find(|a| shape[*a] >= 8) else { return Ok(None) };
    let (extent, origin) = (shape[axis] as i64, origin(graph, n));
    let out = graph.ty(n.into()).shape.clone();
    let mut b = Builder::new(graph, &origin);
    let x = b.cast(x, wide(t))?;
    let y = if axes.len() > 1 && extent <= 2 * parts {
        // Each position of that axis is a part.
        let others: Vec<usize> = axes.iter().copied().filter(|a| *a != axis).collect();
        let each = b.reduce(op, x, &others, true)?;
        b.reduce(op, each, &[axis], true)?
    } else {
        let least = if rows.across { ALONG } else { 1024 };
        let most = (rows.len / least).max(2).min(extent / 2);
        let part = part_len(extent, parts.min(most));
        let cut = in_parts(&mut b, x, axis, part, op.identity(wide(t)))?;
        let mut inner: Vec<usize> =
            axes.iter().filter(|a| **a != axis).map(|a| if *a > axis { a + 1 } else { *a }).collect();
        inner.push(axis + 1);
        inner.sort_unstable();
        let each = b.reduce(op, cut, &inner, true)?;
        let all = b.reduce(op, each, &[axis], true)?;
        b.reshape(all, out)?
    };
    b.cast(y, t).map(Some)
}

fn prefix_scan(
    graph: &mut Graph,
    n: NodeId,
    op: ReduceOp,
    axis: usize,
    (exclusive, reverse): (bool, bool),
    speeds: &Speeds,
) -> Result<Option<Value>, String> {
    let x = graph.node(n).inputs[0];
    let t = graph.ty(x).dtype;
    let Some(rows) = Rows::of(graph, x, &[axis]).filter(|_| takes(t)) else { return Ok(None) };
    let groups = rows.workgroups();
    let beside = (speeds.resident / 64.0) as i64;
    // If rows are adjacent element by element, one invocation per row must leave the device mostly idle.
    let few = if rows.across { groups * BESIDE < beside * 16 } else { true };
    let Some(parts) = rows.parts(speeds, 3.0, 2.0).filter(|_| few) else { return Ok(None) };
    let wanted = if rows.across {
        let parts = (speeds.resident / rows.count as f64) as i64;
        part_len(rows.len, parts.clamp(2, (rows.len / ALONG).max(2)))
    } else {
        part_len(rows.len, parts.max(rows.len / SCANNED).min((rows.len / 1024).max(2)))
    };
    let origin = origin(graph, n);
    let shape = graph.ty(x).shape.clone();
    let mut b = Builder::new(graph, &origin);
    let x = b.cast(x, wide(t))?;
    let t_wide = wide(t);
    let cut = in_parts(&mut b, x, axis, wanted, op.identity(t_wide))?;
    let each = b.reduce(op, cut, &[axis + 1], true)?;
    let before = b.push(Op::PrefixScan { op, axis, exclusive: true, reverse }, &[each])?;
    let inside = b.push(Op::PrefixScan { op, axis: axis + 1, exclusive, reverse }, &[cut])?;
    let y = b.binary(op.operator(), before, inside)?;
    let y = b.cast(y, t)?;
    // Merges the two axes again.
    let back = |d: usize| match d.cmp(&axis) {
        std::cmp::Ordering::Less => vec![Poly::var(d)],
        std::cmp::Ordering::Equal => {
            let (at, part) = (Poly::var(axis), Poly::constant(wanted));
            vec![at.div(&part, &shape), at.modulo(&part, &shape)]
        }
        std::cmp::Ordering::Greater => vec![Poly::var(d)],
    };
    let index = (0..shape.len()).flat_map(back).collect();
    b.push(Op::View { shape: shape.clone(), index, fill: None }, &[y]).map(Some)
}

fn softmax(
    graph: &mut Graph,
    n: NodeId,
    axis: usize,
    log: bool,
    speeds: &Speeds,
) -> Result<Option<Value>, String> {
    let x = graph.node(n).inputs[0];
    let t = graph.ty(x).dtype;
    let Some(rows) = Rows::of(graph, x, &[axis]).filter(|_| takes(t)) else { return Ok(None) };
    let Some(parts) = rows.parts(speeds, 4.0, 4.0) else { return Ok(None) };
    let least = if rows.across { ALONG } else { 1024 };
    let part = part_len(rows.len, parts.min((rows.len / least).max(2)));
    let origin = origin(graph, n);
    let mut b = Builder::new(graph, &origin);
    let f = DType::F32;
    let x = b.cast(x, f)?;
    let none = Scalar::from_f64(f, f64::NEG_INFINITY);
    let cut = in_parts(&mut b, x, axis, part, none)?;
    let tops = b.reduce(ReduceOp::Max, cut, &[axis + 1], true)?;
    // The sum of a part in which all elements are -∞ is 0.
    let mut body = Body::default();
    let (x0, top) = (body.arg(0), body.arg(1));
    let (least, zero) = (body.f32(f64::NEG_INFINITY), body.f32(0.0));
    let empty = body.binary(B::Eq, top, least);
    let shift = body.select(empty, zero, top);
    let apart = body.binary(B::Sub, x0, shift);
    body.unary(U::Exp, apart);
    let shape = b.shape(cut);
    let each = b.map_to(body.0, &[cut, tops], shape)?;
    let sums = b.reduce(ReduceOp::Sum, each, &[axis + 1], true)?;
    let top = b.reduce(ReduceOp::Max, tops, &[axis], true)?;
    let mut body = Body::default();
    let (sum, of_part, top_0) = (body.arg(0), body.arg(1), body.arg(2));
    let (least, zero) = (body.f32(f64::NEG_INFINITY), body.f32(0.0));
    let empty = body.binary(B::Eq, of_part, least);
    let shift = body.select(empty, zero, of_part);
    let apart = body.binary(B::Sub, shift, top_0);
    let by = body.unary(U::Exp, apart);
    let scaled = body.binary(B::Mul, sum, by);
    // A part of -∞ only keeps its sum: the factor may be infinite.
    body.select(empty, sum, scaled);
    let shape = b.shape(sums);
    let scaled = b.map_to(body.0, &[sums, tops, top], shape)?;
    let sum = b.reduce(ReduceOp::Sum, scaled, &[axis], true)?;
    let mut one = b.shape(x);
    one[axis] = Dim::ONE;
    let (top, sum) = (b.reshape(top, one.clone())?, b.reshape(sum, one)?);
    let mut body = Body::default();
    let (x0, top_0, sum_0) = (body.arg(0), body.arg(1), body.arg(2));
    let apart = body.binary(B::Sub, x0, top_0);
    let y = if log {
        let l = body.unary(U::Log, sum_0);
        body.binary(B::Sub, apart, l)
    } else {
        let e = body.unary(U::Exp, apart);
        body.binary(B::Div, e, sum_0)
    };
    if t != f {
        body.cast(t, y);
    }
    let shape = b.shape(x);
    b.map_to(body.0, &[x, top, sum], shape).map(Some)
}

#[cfg(test)]
mod tests;
