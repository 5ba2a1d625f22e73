//! The terms that a value combines for each of its elements: their number, their values, and the reduction.

use crate::device::DeviceProfile;
use crate::fuse::loops::expand::{accumulator, extent};
use crate::fuse::loops::price::summed;
use crate::fuse::pulling::{Puller, Resolver, unflatten};
use crate::kernel::{ExprId, ReduceKind};
use crate::schedule::loops::{keeps_blocks, stage_threads};
use petgraph::visit::{Dfs, Walker};
use wgfc_ir::{BinaryOp, Contract, Dim, Graph, NodeId, Op, Poly, ReduceOp, Value};

/// The most terms of one element: a bound on the time of a step, beyond which a split loop is no slower.
const MOST: i64 = 1 << 16;
/// The most terms that are unrolled; the elements that they read from memory then stay in registers from step to step.
const TERMS: i64 = 64;

/// The number of terms that a stage of `n` elements unrolls, within the registers of a workgroup.
pub(super) fn written_out(n: i64, terms: i64, device: &DeviceProfile) -> i64 {
    let many = n > i64::from(device.loop_invocations());
    if many { 0 } else { (device.kept_words() / n.max(1)).min(TERMS).min(terms) }
}

/// Whether all terms of a product in a body are unrolled, as far as that is known before the lanes are: with lanes a product has fewer
/// elements.
pub(in crate::fuse) fn is_written_out(graph: &Graph, n: NodeId, device: &DeviceProfile) -> bool {
    let Op::Contract(c) = &graph.node(n).op else { return false };
    matrix(graph, n, c).is_some_and(|(n, k)| written_out(n, k, device) == k)
}

/// Whether a step's products read so much that one workgroup cannot keep most of it. If several workgroups share a lane, each computing
/// some elements, their schedule decides how many terms are unrolled.
pub(in crate::fuse) fn reads_much(body: &Graph, device: &DeviceProfile) -> bool {
    let operands = |n: NodeId| match &body.node(n).op {
        Op::Contract(_) => body.node(n).inputs.clone(),
        _ => vec![],
    };
    let words = |n: NodeId| {
        let size = |v: &Value| body.ty(*v).numel().as_const().unwrap_or(0);
        operands(n).iter().map(size).max().unwrap_or(0)
    };
    body.node_ids().map(words).fold(0, i64::saturating_add) > device.kept_words().saturating_mul(3) / 2
}

/// The least number of operand words of products for which a workgroup's invocations share blocks of them: with fewer, each invocation
/// reads its own terms as fast.
const IN_BLOCKS: i64 = 8 << 10;

/// Whether a workgroup can keep all operands of a step's products, except the body's first `changing` inputs, in blocks that its
/// invocations share. The schedule decides on the blocks, and needs few terms of a product at a time.
pub(in crate::fuse) fn in_blocks(body: &Graph, changing: usize, device: &DeviceProfile) -> bool {
    let sizes = |n: NodeId| match &body.node(n).op {
        Op::Contract(c) => {
            Some(matrix(body, n, c).filter(|_| is_fixed(body, changing, body.node(n).inputs[1])))
        }
        _ => None,
    };
    let all: Option<Vec<(i64, i64)>> = body.node_ids().filter_map(sizes).collect();
    let Some(all) = all.filter(|all| !all.is_empty() && device.subgroup.is_some_and(|s| s >= 4)) else {
        return false;
    };
    let widest = all.iter().map(|p| p.0).max().unwrap_or(0);
    let words = all.iter().fold(0i64, |sum, p| sum.saturating_add(p.1));
    let bounded = |n: i64| u32::try_from(n).ok().filter(|n| *n <= 1 << 16);
    let (Some(widest), Some(terms)) = (bounded(widest), bounded(words)) else { return false };
    let total = all.iter().fold(0i64, |sum, p| sum.saturating_add(p.0.saturating_mul(p.1)));
    // The number of terms in the smallest possible block.
    let terms = terms.next_multiple_of(8);
    total >= IN_BLOCKS && keeps_blocks(stage_threads(widest, u32::MAX), terms, device)
}

/// Whether a value is the same in each step.
fn is_fixed(body: &Graph, changing: usize, v: Value) -> bool {
    let changes = |n: NodeId| body.inputs.iter().take(changing).any(|b| b.value.node == n);
    !Dfs::new(body.operands(), v.node).iter(body.operands()).any(changes)
}

/// The number of elements of a vector-matrix product, and of terms of each, if both are constant.
fn matrix(graph: &Graph, n: NodeId, c: &Contract) -> Option<(i64, i64)> {
    let operand = graph.ty(graph.node(n).inputs[1]);
    let extent = |l: &u8| c.b.iter().position(|x| x == l).and_then(|i| operand.shape[i].as_const());
    let size = |all: Vec<u8>| all.iter().try_fold(1i64, |n, l| Some(n.saturating_mul(extent(l)?)));
    Some((size(c.n())?, size(c.k())?))
}

/// The reduction by which a value combines terms, if their order is arbitrary.
pub(super) fn reduced(graph: &Graph, v: Value) -> Option<ReduceOp> {
    match &graph.node(v.node).op {
        Op::Reduce { op, .. } => Some(*op),
        Op::Contract(_) => Some(ReduceOp::Sum),
        _ => None,
    }
}

/// The kernel's reduction for an operator.
pub(super) fn kind_of(op: ReduceOp) -> ReduceKind {
    match op {
        ReduceOp::Sum => ReduceKind::Sum,
        ReduceOp::Prod => ReduceKind::Prod,
        ReduceOp::Max => ReduceKind::Max,
        ReduceOp::Min => ReduceKind::Min,
    }
}

/// The number of terms that a value combines for each of its elements; `None` if it combines none.
pub(super) fn terms(graph: &Graph, v: Value) -> Result<Option<i64>, String> {
    let node = graph.node(v.node);
    let along = |x: Value, axes: &[usize]| {
        let shape = &graph.ty(x).shape;
        axes.iter().try_fold(1i64, |n, a| Ok::<i64, String>(n.saturating_mul(extent(&shape[*a])?)))
    };
    let n = match &node.op {
        Op::Reduce { axes, .. } => along(node.inputs[0], axes)?,
        Op::ArgReduce { axis, .. } => along(node.inputs[0], &[*axis])?,
        Op::Contract(c) => along(node.inputs[0], &summed(c))?,
        _ => return Ok(None),
    };
    if !(1..=MOST).contains(&n) {
        return Err(format!("a step combines {n} elements, which is not in 1..={MOST}"));
    }
    Ok(Some(n))
}

/// Term `term` of the element of `v` at `at`, and the reduction.
pub(super) fn term_of<R: Resolver>(
    p: &mut Puller<'_, R>,
    v: Value,
    at: &[Poly],
    term: &Poly,
) -> Result<(ExprId, ReduceKind), String> {
    let graph = p.graph;
    let node = graph.node(v.node);
    let wide = accumulator(node.outputs[0].dtype);
    let along = |x: Value, axes: &[usize], domain: &[Dim]| {
        let shape: Vec<Dim> = axes.iter().map(|a| graph.ty(x).shape[*a].clone()).collect();
        unflatten(term, &shape, domain)
    };
    match &node.op {
        Op::Reduce { op, axes } => {
            let x = node.inputs[0];
            let mut from = at.to_vec();
            axes.iter().zip(along(x, axes, &p.domain)).for_each(|(a, t)| from[*a] = t);
            let e = p.pull(x, &from, None)?;
            Ok((p.cast(e, wide), kind_of(*op)))
        }
        Op::ArgReduce { op, axis, last } => {
            let mut from = at.to_vec();
            from[*axis] = term.clone();
            let e = p.pull(node.inputs[0], &from, None)?;
            Ok((e, ReduceKind::Arg { largest: *op == ReduceOp::Max, last: *last }))
        }
        Op::Contract(c) => {
            let (a, b) = (node.inputs[0], node.inputs[1]);
            let summed = along(a, &summed(c), &p.domain);
            let place = |labels: &[u8]| -> Option<Vec<Poly>> {
                let of = |l: &u8| match c.out.iter().position(|x| x == l) {
                    Some(i) => at.get(i).cloned(),
                    None => c.k().iter().position(|x| x == l).and_then(|i| summed.get(i).cloned()),
                };
                labels.iter().map(of).collect()
            };
            let (Some(at_a), Some(at_b)) = (place(&c.a), place(&c.b)) else {
                return Err("a product whose labels do not fit".into());
            };
            let (x, y) = (p.pull(a, &at_a, None)?, p.pull(b, &at_b, None)?);
            let (x, y) = (p.cast(x, wide), p.cast(y, wide));
            Ok((p.binary(BinaryOp::Mul, x, y), ReduceKind::Sum))
        }
        op => Err(format!("`{}` is not a reduction", op.name())),
    }
}
