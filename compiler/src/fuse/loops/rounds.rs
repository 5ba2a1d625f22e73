//! Loops whose number of steps is known only by running them: they run in rounds of a few steps, until a word written by the device says
//! that nothing changes any more.

use crate::error::{Diagnostic, Errors};
use crate::fuse::Steps;
use crate::fuse::loops::lanes;
use crate::fuse::loops::split::Block;
use crate::fuse::tensors::Tensors;
use crate::kernel::{Kernel, KernelGraph, KernelTensor, Repeat, TensorId, TensorKind, Until};
use crate::options::Options;
use wgfc_ir::build::Builder;
use wgfc_ir::computed::Bounds;
use wgfc_ir::{
    BinaryOp, Border, DType, Dim, Graph, NodeId, Op, ReduceOp, Scalar, ScalarFn, ScalarNode, Tensor,
    TensorType, Value,
};

/// The most iterations of a loop.
pub(in crate::fuse) const MOST_STEPS: i64 = 1 << 30;
/// The length of a loop that only its condition ends: rounds of at most 2^28 steps never reach it.
pub(in crate::fuse) const ENDLESS: i64 = MOST_STEPS + (1 << 29);
/// The most steps of a loop with a condition that are dispatched without checking it. A check waits for the device, and takes as long as
/// tens of dispatches on any device.
const BLINDLY: i64 = 1024;
/// The number of dispatches of a round whose dispatches take several steps each.
pub(in crate::fuse) const PARTS: i64 = 16;
/// The approximate number of dispatches of a round.
const DISPATCHES: usize = 128;

/// The condition that ends a loop before all its dispatched steps have run.
pub(in crate::fuse) struct Ending {
    /// The carried bools of which one must be true for anything to change.
    mask: Option<usize>,
    /// The number of steps, if the rounds may exceed it.
    pub count: Option<Dim>,
    /// The largest possible number of steps.
    most: i64,
}

impl Ending {
    /// The ending of loop `node` if it must be dispatched in rounds; `None` otherwise. `parts` is the number of steps per dispatch of a
    /// loop of lanes.
    pub fn of(graph: &Graph, node: NodeId, parts: Option<u32>, options: &Options) -> Option<Ending> {
        let n = graph.node(node);
        let Op::Scan { carried, .. } = n.op else { return None };
        let steps = graph.ty(*n.inputs.get(carried)?).shape.first()?;
        let bounds = Bounds::of(&graph.computed);
        let most = bounds.most(steps).as_const();
        let computed = bounds.concern(steps);
        // Kernels of lanes never run a step beyond the last.
        let plain = match (parts, most) {
            (Some(part), Some(most)) => most <= MOST_STEPS.min(PARTS * i64::from(part)),
            (Some(_), None) => true,
            (None, most) => !computed && most.is_some_and(|m| m <= BLINDLY),
        };
        if plain {
            return None;
        }
        let mask = ends_with(graph, node, carried, options);
        let endless = most.is_some_and(|m| m > MOST_STEPS) && !computed;
        let count = (!endless).then(|| steps.clone());
        let most = most.unwrap_or(MOST_STEPS).min(MOST_STEPS);
        (computed || mask.is_some()).then_some(Ending { mask, count, most })
    }

    /// The number of steps in a round if a step takes `kernels` dispatches; always even.
    pub fn steps(kernels: usize) -> i64 {
        ((DISPATCHES / kernels.max(1)).clamp(4, 64) & !1) as i64
    }

    /// Makes the `steps` steps of a block one round. `kept` are the tensors of the carried values, `number` that of the number of steps
    /// done.
    pub fn rounds(
        &self,
        block: Block,
        steps: i64,
        kept: &[TensorId],
        number: Option<TensorId>,
        loop_steps: Steps<'_>,
        tensors: &mut Tensors<'_>,
    ) -> Result<Block, Errors> {
        let mask = self.mask.and_then(|i| kept.get(i)).copied();
        let (last, word) = self.word(mask, number, &block.kernels, loop_steps, tensors)?;
        let kernels: Vec<Kernel> = block.kernels.into_iter().chain(last).collect();
        let keeps = block.repeats.iter().flat_map(|r| &r.keeps).chain(kept).chain([&word]).copied().collect();
        let rounds = (self.most.max(1) as u64).div_ceil(steps.max(1) as u64);
        let why = match (self.mask, &self.count) {
            (Some(_), None) => "it goes on until its condition is false".to_owned(),
            (Some(_), Some(count)) => {
                format!("it goes on until its condition is false or {count} steps are done")
            }
            (None, _) => "it takes as many steps as the run computes".to_owned(),
        };
        let why = format!("{why}; {steps} are a round");
        let until = Some(Until { word, rounds });
        let mut repeats = vec![Repeat { kernels: 0..kernels.len(), times: Dim::ONE, keeps, why, until }];
        repeats.extend(block.repeats);
        Ok(Block { kernels, repeats })
    }

    /// The kernels that compute whether another round is needed, and the tensor that they write it to.
    fn word(
        &self,
        mask: Option<TensorId>,
        number: Option<TensorId>,
        of: &[Kernel],
        loop_steps: Steps<'_>,
        tensors: &mut Tensors<'_>,
    ) -> Result<(Vec<Kernel>, TensorId), Errors> {
        let mut graph = Graph::new();
        let mut outer = vec![];
        let mut input = |graph: &mut Graph, t: TensorId, ty: TensorType| {
            outer.push(t);
            graph.add_input(&format!("{t}"), ty)
        };
        let (mut flags, origin) = (vec![], of.first().map(|k| k.nodes.clone()).unwrap_or_default());
        let broken = |e: String| Errors::from(Diagnostic::internal(e));
        if let Some(t) = mask {
            let any = input(&mut graph, t, tensors.list[t].ty.clone());
            let mut b = Builder { graph: &mut graph, origin: origin.clone() };
            flags.push(any_of(&mut b, any).map_err(broken)?);
        }
        if let (Some(t), Some(count)) = (number, &self.count) {
            let number = input(&mut graph, t, TensorType::new(DType::I32, vec![]));
            let mut b = Builder { graph: &mut graph, origin: origin.clone() };
            let before = before(&mut b, number, count).map_err(broken)?;
            flags.push(b.cast(before, DType::I32).map_err(broken)?);
        }
        let mut b = Builder { graph: &mut graph, origin };
        let mut flags = flags.into_iter();
        let mut goes_on = flags.next().ok_or_else(|| broken("nothing ends a loop".into()))?;
        for f in flags {
            goes_on = b.binary(BinaryOp::Mul, goes_on, f).map_err(broken)?;
        }
        graph.outputs.push(Border { name: "goes on".into(), value: goes_on });
        let KernelGraph { tensors: inner, kernels, .. } = loop_steps.fuse(&graph)?;
        let word = tensors.add(None, TensorType::new(DType::I32, vec![]), TensorKind::Intermediate);
        let place = |kind: &TensorKind| match kind {
            TensorKind::Input(i) => outer.get(*i).copied(),
            TensorKind::Output(_) => Some(word),
            _ => None,
        };
        let of = adopt(inner, tensors, place);
        Ok((kernels.iter().map(|k| k.renumbered(&|t| of[t])).collect(), word))
    }
}

/// Adds the tensors of a kernel graph to those of another, except those for which `place` gives an existing tensor. Returns the new
/// number of each.
pub(in crate::fuse) fn adopt(
    inner: Vec<KernelTensor>,
    tensors: &mut Tensors<'_>,
    place: impl Fn(&TensorKind) -> Option<TensorId>,
) -> Vec<TensorId> {
    let mut of: Vec<TensorId> = vec![];
    for t in inner {
        let known = place(&t.kind);
        of.push(known.unwrap_or_else(|| {
            // A tensor that another one lies under precedes it in the list.
            let kind = match t.kind {
                TensorKind::Under(over) => TensorKind::Under(of[over]),
                kind => kind,
            };
            tensors.list.push(KernelTensor { kind, ..t });
            tensors.list.len() - 1
        }));
    }
    of
}

/// Whether step `number`, an i32, is below `count`.
pub(in crate::fuse) fn before(b: &mut Builder<'_>, number: Value, count: &Dim) -> Result<Value, String> {
    let nodes =
        vec![ScalarNode::Arg(0), ScalarNode::Index(count.clone()), ScalarNode::Binary(BinaryOp::Lt, 0, 1)];
    b.map(ScalarFn { nodes }, &[number])
}

/// 1 if any of the bools is true, else 0, also if there are none.
fn any_of(b: &mut Builder<'_>, mask: Value) -> Result<Value, String> {
    let ints = b.cast(mask, DType::I32)?;
    let axes: Vec<usize> = (0..b.rank(ints)).collect();
    let most = b.reduce(ReduceOp::Max, ints, &axes, false)?;
    let none = b.constant(Tensor::scalar(Scalar::from_i64(DType::I32, 0)));
    b.binary(BinaryOp::Max, most, none)
}

/// The carried bools without which no carried value changes; `None` if the loop stacks results.
fn ends_with(graph: &Graph, node: NodeId, carried: usize, options: &Options) -> Option<usize> {
    let n = graph.node(node);
    let Op::Scan { body, .. } = &n.op else { return None };
    if body.outputs.len() != carried {
        return None;
    }
    (0..carried).find(|c| freezes(body, carried, *c)).or_else(|| {
        let mapping = lanes::map(graph, node, options).ok()?;
        mapping.stops_with(graph, node)
    })
}

/// Whether a body leaves all carried values unchanged while carried bool `flag` is false, as far as its last operators show.
fn freezes(body: &Graph, carried: usize, flag: usize) -> bool {
    let go = body.inputs[flag].value;
    let ty = body.ty(go);
    if ty.dtype != DType::Bool || !ty.numel().is(1) {
        return false;
    }
    (0..carried).all(|i| {
        let (own, after) = (body.inputs[i].value, body.outputs[i].value);
        let last = body.node(after.node);
        let Op::Map { body: f, .. } = &last.op else { return own == after };
        match i == flag {
            true => *f == ScalarFn::binary(BinaryOp::And) && last.inputs.contains(&go),
            false => *f == ScalarFn::select() && last.inputs[0] == go && last.inputs[2] == own,
        }
    })
}
