//! Loops that are no single kernel: the kernels of one step, dispatched again and again.
//!
//! A step is a graph of its own whose states are what the loop carries, the results that it stacks and
//! the number of the step: what keeps a KV cache on the device keeps a loop's values there.

use super::Tensors;
use super::kernels::{copy_kernel, fill_kernel};
use super::pull::Memory;
use crate::error::Errors;
use crate::kernel::{Kernel, KernelGraph, Repeat, TensorId, TensorKind};
use crate::options::Options;
use std::collections::BTreeSet;
use std::sync::Arc;
use wgfc_ir::build::Builder;
use wgfc_ir::{
    BinaryOp, Border, DType, GatherAxis, Graph, NodeId, Op, Poly, Scalar, ScalarFn, ScalarNode, State,
    TensorType, Value,
};

/// The kernels of a whole loop.
pub(super) struct Block {
    /// What sets the first values, then those of a step.
    pub kernels: Vec<Kernel>,
    /// Which of them are repeated.
    pub repeats: Vec<Repeat>,
}

impl Block {
    /// The tensors it reads.
    pub fn reads(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.kernels.iter().flat_map(Kernel::reads)
    }
    /// The symbols it uses.
    pub fn symbols(&self) -> BTreeSet<Arc<str>> {
        let times = self.repeats.iter().flat_map(|r| r.times.symbols());
        self.kernels.iter().flat_map(Kernel::symbols).chain(times).collect()
    }
    /// The tensors it writes.
    pub fn writes(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.kernels.iter().flat_map(Kernel::writes)
    }
}

/// One step of a `scan` as a graph. Its inputs are the scanned values, whole, and the captured ones; its
/// states are those carried, then those stacked, then the number of the step, where it is used.
pub(super) fn step(graph: &Graph, node: NodeId) -> Result<Graph, String> {
    let n = graph.node(node);
    let Op::Scan { body, carried, scanned, reverse_inputs, reverse_outputs } = &n.op else {
        return Err("not a scan".into());
    };
    let mut g = body.as_ref().clone();
    let inputs = std::mem::take(&mut g.inputs);
    let name = |kind: &str, i: usize| format!("{kind} {i}");
    let length = n.inputs.get(*carried).and_then(|v| graph.ty(*v).shape.first()).ok_or("nothing to scan")?;
    let number = g.add_input("step", TensorType::new(DType::I32, vec![]));
    let mut b = Builder { graph: &mut g, origin: n.origin.clone() };
    let one = b.constant(wgfc_ir::Tensor::scalar(Scalar::from_i64(DType::I32, 1)));
    let next = b.binary(BinaryOp::Add, number, one)?;
    let last = length - &Poly::ONE;
    let backwards = ScalarFn {
        nodes: vec![ScalarNode::Index(last), ScalarNode::Arg(0), ScalarNode::Binary(BinaryOp::Sub, 0, 1)],
    };
    let back = b.map(backwards, &[number])?;
    let mut borders = vec![];
    for (j, input) in inputs.iter().enumerate().skip(*carried) {
        if j >= carried + scanned {
            borders.push(input.clone());
            continue;
        }
        let whole = g.add_input(&name("scanned", j), graph.ty(n.inputs[j]).clone());
        borders.push(Border { name: input.name.clone(), value: whole });
        let at = if reverse_inputs.get(j - carried) == Some(&true) { back } else { number };
        let shape = g.ty(input.value).shape.clone();
        let index = std::iter::once(GatherAxis::Data { input: 1, at: vec![] })
            .chain((0..shape.len()).map(|i| GatherAxis::Affine(Poly::var(i))))
            .collect();
        let slice = g.push(Op::Gather { shape, index }, &[whole, at], &n.origin)?;
        g.replace_uses(input.value, slice.into());
    }
    let outputs = std::mem::take(&mut g.outputs);
    let mut states = vec![];
    for (i, o) in outputs.iter().enumerate() {
        let mut after = o.value;
        if i < *carried {
            let before = inputs[i].value;
            // What another value was is copied before that value changes.
            if after != before && matches!(g.node(after.node).op, Op::Input | Op::Const(_)) {
                let same = ScalarFn { nodes: vec![ScalarNode::Arg(0)] };
                after = Builder { graph: &mut g, origin: n.origin.clone() }.map(same, &[after])?;
            }
            states.push(State { name: name("carried", i).into(), before, after, growth: None });
            continue;
        }
        let ty = g.ty(after).clone();
        let mut shape = ty.shape.clone();
        shape.insert(0, length.clone());
        let whole = g.add_input(&name("stacked", i), TensorType::new(ty.dtype, shape));
        let row = Builder { graph: &mut g, origin: n.origin.clone() }.unsqueeze(after, &[0])?;
        let at = if reverse_outputs.get(i - carried) == Some(&true) { back } else { number };
        let index = std::iter::once(GatherAxis::Data { input: 2, at: vec![] })
            .chain((1..=ty.rank()).map(|i| GatherAxis::Affine(Poly::var(i))))
            .collect();
        let after = g.push(Op::Scatter { reduce: None, index }, &[whole, row, at], &n.origin)?.into();
        states.push(State { name: name("stacked", i).into(), before: whole, after, growth: None });
    }
    states.push(State { name: "step".into(), before: number, after: next, growth: None });
    g.inputs = borders;
    g.states = states;
    g.remove_dead();
    if g.uses(number).iter().all(|(n, _)| *n == next.node) {
        g.states.pop();
        g.remove_dead();
    }
    Ok(g)
}

/// What a loop that is split reads in its steps, which must be in memory.
pub(super) fn read_in_steps(graph: &Graph, node: NodeId) -> Vec<Value> {
    let n = graph.node(node);
    let Op::Scan { carried, .. } = n.op else { return vec![] };
    n.inputs[carried.min(n.inputs.len())..].to_vec()
}

/// Fuses a step of a loop that is split because of `why`, and puts its kernels among those of `graph`.
pub(super) fn block<'a>(
    graph: &'a Graph,
    node: NodeId,
    why: &str,
    options: &Options,
    tensors: &mut Tensors<'a>,
) -> Result<Block, Errors> {
    let broken = |e: String| Errors::from(super::internal(graph, node, &e));
    let n = graph.node(node);
    let Op::Scan { carried, .. } = n.op else { return Err(broken("not a scan".into())) };
    let step = step(graph, node).map_err(broken)?;
    let KernelGraph { tensors: inner, kernels, repeats, .. } = super::fuse(&step, options)?;

    let outputs = n.outputs.len();
    let mut kept: Vec<TensorId> = vec![];
    for port in 0..outputs as u32 {
        let v = Value { node, port };
        let known = tensors.of.get(&v).copied();
        kept.push(
            known.unwrap_or_else(|| tensors.add(Some(v), graph.ty(v).clone(), TensorKind::Intermediate)),
        );
    }
    let counted = step.states.len() > outputs;
    if counted {
        let number = TensorType::new(DType::I32, vec![]);
        kept.push(tensors.add(None, number, TensorKind::Intermediate));
    }
    let mut of = vec![];
    for t in inner {
        of.push(match t.kind {
            TensorKind::Input(i) => {
                let v = *n.inputs.get(carried + i).ok_or_else(|| broken("an input too many".into()))?;
                let memory = tensors.tensor(v);
                memory.ok_or_else(|| broken(format!("what a loop reads has no memory: {v:?}")))?
            }
            TensorKind::State { state, .. } => kept[state],
            // What lies over it comes before it in the list.
            TensorKind::Under(over) => {
                tensors.list.push(crate::kernel::KernelTensor { kind: TensorKind::Under(of[over]), ..t });
                tensors.list.len() - 1
            }
            kind => {
                tensors.list.push(crate::kernel::KernelTensor { kind, ..t });
                tensors.list.len() - 1
            }
        });
    }
    let mut all = vec![];
    for (first, carry) in n.inputs[..carried].iter().zip(&kept) {
        all.push(copy_kernel(graph, *first, *carry, tensors).map_err(broken)?);
    }
    if counted {
        all.push(fill_kernel(kept[outputs], Scalar::from_i64(DType::I32, 0), n.origin.clone()));
    }
    let first = all.len();
    let steps = graph.ty(n.inputs[carried]).shape.first().cloned().unwrap_or_default();
    let range = first..first + kernels.len();
    let mut all_repeats = vec![Repeat { kernels: range, times: steps, keeps: kept, why: why.to_owned() }];
    for r in repeats {
        all_repeats.push(Repeat {
            kernels: r.kernels.start + first..r.kernels.end + first,
            times: r.times,
            why: r.why,
            keeps: r.keeps.iter().map(|t| of[*t]).collect(),
        });
    }
    all.extend(kernels.iter().map(|k| k.renumbered(&|t| of[t])));
    Ok(Block { kernels: all, repeats: all_repeats })
}
