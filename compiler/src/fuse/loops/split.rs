//! Loops that are not a single kernel: the kernels of one step, dispatched repeatedly.
//!
//! A step is a graph of its own. Its states are the carried values, the stacked results and the number of the step, so that they stay on
//! the device as a KV cache does.

use crate::error::Errors;
use crate::fuse::build::{copy_kernel, copy_of, fill_kernel};
use crate::fuse::loops::kernels::{lane_loop, workgroup_loop};
use crate::fuse::loops::lanes::{Executor, Mapping};
use crate::fuse::loops::rounds::{self, Ending, PARTS};
use crate::fuse::pulling::{Puller, flat_offset};
use crate::fuse::tensors::{InMemory, Tensors};
use crate::fuse::unit::Unit;
use crate::fuse::{Steps, count_bindings, pack};
use crate::kernel::{
    Body, Expr, Family, Kernel, KernelGraph, KernelTensor, Map, Repeat, Store, TensorId, TensorKind, Until,
};
use crate::options::Options;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use wgfc_ir::build::Builder;
use wgfc_ir::computed::Bounds;
use wgfc_ir::{
    BinaryOp, Border, DType, Dim, GatherAxis, Graph, Node, NodeId, Op, Poly, Scalar, ScalarFn, ScalarNode,
    State, TensorType, Value,
};

/// The most steps of a loop of lanes that take no more than milliseconds on any device.
const BRIEF: i64 = 1 << 20;

/// The kernels of a whole loop.
pub(in crate::fuse) struct Block {
    /// The kernels that set the initial values, then those of a step.
    pub kernels: Vec<Kernel>,
    /// The ranges of kernels that are repeated.
    pub repeats: Vec<Repeat>,
}

impl Block {
    /// Puts `others` before these kernels.
    fn behind(mut self, mut others: Vec<Kernel>) -> Block {
        let at = others.len();
        for r in &mut self.repeats {
            r.kernels = r.kernels.start + at..r.kernels.end + at;
        }
        others.append(&mut self.kernels);
        Block { kernels: others, repeats: self.repeats }
    }
    /// The block with no kernel that binds more buffers than the device allows, small tensors being packed where necessary. The error is
    /// the first kernel for which that is impossible.
    pub fn narrow(mut self, options: &Options, tensors: &mut Tensors<'_>) -> Result<Block, Box<Kernel>> {
        let most = options.profile.max_storage_buffers as usize;
        let words: BTreeSet<TensorId> = self.repeats.iter().filter_map(|r| Some(r.until?.word)).collect();
        let (mut before, mut after) = (vec![], vec![]);
        for i in 0..self.kernels.len() {
            if count_bindings(&self.kernels[i]) <= most {
                continue;
            }
            if let Some(packed) = pack::pack(&self.kernels[i], tensors) {
                self.kernels[i] = packed;
            }
            let little = options.profile.speeds.little_bytes();
            let fixed = |t: TensorId| words.contains(&t);
            let Some(gathered) = pack::gather(&mut self.kernels, i, tensors, (most, little), &fixed) else {
                return Err(Box::new(self.kernels[i].clone()));
            };
            for t in self.repeats.iter_mut().flat_map(|r| &mut r.keeps) {
                *t = gathered.places.get(t).map_or(*t, |place| place.0);
            }
            before.extend(gathered.before);
            after.extend(gathered.after);
        }
        self.repeats.iter_mut().for_each(|r| {
            let mut seen = BTreeSet::new();
            r.keeps.retain(|t| seen.insert(*t));
        });
        self.kernels.extend(after);
        Ok(self.behind(before))
    }
    /// The tensors that the block reads.
    pub fn reads(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.kernels.iter().flat_map(Kernel::reads)
    }
    /// The symbols that the block uses.
    pub fn symbols(&self) -> BTreeSet<Arc<str>> {
        let times = self.repeats.iter().flat_map(|r| r.times.symbols());
        self.kernels.iter().flat_map(Kernel::symbols).chain(times).collect()
    }
    /// The tensors that the block writes.
    pub fn writes(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.kernels.iter().flat_map(Kernel::writes)
    }
}

/// One step of a `scan` as a graph. Its inputs are the whole scanned values and the captured values. Its states are the carried values,
/// the stacked results, and the number of the step if it is used. Steps from `count` on change only that number.
pub(in crate::fuse) fn step(graph: &Graph, node: NodeId, count: Option<&Dim>) -> Result<Graph, String> {
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
    let inside = count.map(|c| rounds::before(&mut b, number, c)).transpose()?;
    let mut borders = vec![];
    for (j, input) in inputs.iter().enumerate().skip(*carried) {
        if j >= carried + scanned {
            borders.push(input.clone());
            continue;
        }
        let backwards = reverse_inputs.get(j - carried) == Some(&true);
        if is_number(graph, n, j) {
            let dtype = g.ty(input.value).dtype;
            let i = Builder { graph: &mut g, origin: n.origin.clone() }.cast(number, dtype)?;
            g.replace_uses(input.value, i);
            continue;
        }
        let whole = g.add_input(&name("scanned", j), graph.ty(n.inputs[j]).clone());
        borders.push(Border { name: input.name.clone(), value: whole });
        let at = if backwards { back } else { number };
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
            if let Some(inside) = inside.filter(|_| after != before) {
                after = Builder { graph: &mut g, origin: n.origin.clone() }.select(inside, after, before)?;
            }
            // The old value of another state is copied before that state changes.
            if after != before && matches!(g.node(after.node).op, Op::Input | Op::Const(_)) {
                let same = ScalarFn { nodes: vec![ScalarNode::Arg(0)] };
                after = Builder { graph: &mut g, origin: n.origin.clone() }.map(same, &[after])?;
            }
            states.push(State {
                name: name("carried", i).into(),
                before,
                after,
                growth: None,
                initial: None,
            });
            continue;
        }
        let ty = g.ty(after).clone();
        let mut shape = ty.shape.clone();
        shape.insert(0, length.clone());
        let whole = g.add_input(&name("stacked", i), TensorType::new(ty.dtype, shape));
        let row = Builder { graph: &mut g, origin: n.origin.clone() }.unsqueeze(after, &[0])?;
        let mut at = if reverse_outputs.get(i - carried) == Some(&true) { back } else { number };
        if let Some(inside) = inside {
            let mut b = Builder { graph: &mut g, origin: n.origin.clone() };
            // Out-of-bounds elements are not written.
            let nowhere = b.int(DType::I32, i64::from(i32::MAX));
            at = b.select(inside, at, nowhere)?;
        }
        let index = std::iter::once(GatherAxis::Data { input: 2, at: vec![] })
            .chain((1..=ty.rank()).map(|i| GatherAxis::Affine(Poly::var(i))))
            .collect();
        let after = g.push(Op::Scatter { reduce: None, index }, &[whole, row, at], &n.origin)?.into();
        states.push(State {
            name: name("stacked", i).into(),
            before: whole,
            after,
            growth: None,
            initial: None,
        });
    }
    states.push(State { name: "step".into(), before: number, after: next, growth: None, initial: None });
    g.inputs = borders;
    g.states = states;
    g.remove_dead();
    if g.uses(number).iter().all(|(n, _)| *n == next.node) {
        g.states.pop();
        g.remove_dead();
    }
    Ok(g)
}

/// Whether a value is 0, 1, 2, …, which is the step's own number in each step.
fn numbers(graph: &Graph, v: Value) -> bool {
    let n = graph.node(v.node);
    let Op::Map { body, shape } = &n.op else { return false };
    let counts = |f: &ScalarFn| match &f.nodes[..] {
        [ScalarNode::Index(p)] => *p == Poly::var(0),
        [ScalarNode::Index(p), ScalarNode::Cast(DType::I64, 0)] => *p == Poly::var(0),
        _ => false,
    };
    n.inputs.is_empty() && shape.len() == 1 && counts(body)
}

/// The values that the steps of a split loop read, which must be in memory, in the order of a step's inputs.
pub(in crate::fuse) fn read_in_steps(graph: &Graph, node: NodeId) -> Vec<Value> {
    let n = graph.node(node);
    let Op::Scan { carried, .. } = n.op else { return vec![] };
    (carried..n.inputs.len()).filter(|j| !is_number(graph, n, *j)).map(|j| n.inputs[j]).collect()
}

/// Whether operand `j` of a scan is the number of the step in each step.
fn is_number(graph: &Graph, scan: &Node, j: usize) -> bool {
    let Op::Scan { carried, scanned, reverse_inputs, .. } = &scan.op else { return false };
    let forwards =
        (*carried..carried + scanned).contains(&j) && reverse_inputs.get(j - carried) != Some(&true);
    forwards && numbers(graph, scan.inputs[j])
}

/// Fuses a step of a loop that is split because of `why`, and adds its tensors to those of `graph`.
pub(in crate::fuse) fn block<'a>(
    graph: &'a Graph,
    node: NodeId,
    why: &str,
    steps: Steps<'_>,
    tensors: &mut Tensors<'a>,
) -> Result<Block, Errors> {
    let broken = |e: String| Errors::from(crate::fuse::internal(graph, node, &e));
    let n = graph.node(node);
    let Op::Scan { carried, .. } = n.op else { return Err(broken("not a scan".into())) };
    let ending = Ending::of(graph, node, None, steps.options);
    let count = ending.as_ref().and_then(|e| e.count.as_ref());
    let step = step(graph, node, count).map_err(broken)?;
    let KernelGraph { tensors: inner, kernels, repeats, .. } = steps.fuse(&step)?;

    let outputs = n.outputs.len();
    let mut kept = results(graph, node, tensors);
    let counted = step.states.len() > outputs;
    if counted {
        let number = TensorType::new(DType::I32, vec![]);
        kept.push(tensors.add(None, number, TensorKind::Intermediate));
    }
    let mut outer = vec![];
    for v in read_in_steps(graph, node) {
        let memory = tensors.tensor(v);
        outer.push(memory.ok_or_else(|| broken(format!("what a loop reads has no memory: {v:?}")))?);
    }
    let of = rounds::adopt(inner, tensors, |kind| match kind {
        TensorKind::Input(i) => outer.get(*i).copied(),
        TensorKind::State { state, .. } => kept.get(*state).copied(),
        _ => None,
    });
    let mut start = vec![];
    for (first, carry) in n.inputs[..carried].iter().zip(&kept) {
        start.push(copy_kernel(graph, *first, *carry, tensors).map_err(broken)?);
    }
    let number = counted.then(|| kept[outputs]);
    if let Some(number) = number {
        start.push(fill_kernel(number, Scalar::from_i64(DType::I32, 0), n.origin.clone()));
    }
    let kernels: Vec<Kernel> = kernels.iter().map(|k| k.renumbered(&|t| of[t])).collect();
    if kernels.is_empty() {
        // No step changes anything.
        return Ok(Block { kernels: start, repeats: vec![] });
    }
    let all = graph.ty(n.inputs[carried]).shape.first().cloned().unwrap_or_default();
    let many = Ending::steps(kernels.len());
    let times = if ending.is_some() { Dim::from(many) } else { all };
    let mut block = if repeats.is_empty() {
        in_turns(kernels, &times, &kept, &tensors.list)
    } else {
        let range = 0..kernels.len();
        let why = String::new();
        let mut all = vec![Repeat { kernels: range, times, keeps: kept.clone(), why, until: None }];
        all.extend(repeats.into_iter().map(|r| Repeat {
            keeps: r.keeps.iter().map(|t| of[*t]).collect(),
            until: r.until.map(|u| Until { word: of[u.word], ..u }),
            ..r
        }));
        Block { kernels, repeats: all }
    };
    for r in block.repeats.iter_mut().filter(|r| r.why.is_empty()) {
        r.why = why.to_owned();
    }
    if let Some(ending) = ending {
        block = ending.rounds(block, many, &kept, number, steps, tensors)?;
    }
    Ok(block.behind(start))
}

/// Repeats the kernels of a step `times` times. A carried value that cannot be updated in place gets two tensors, which steps read and
/// write alternately, instead of a copy after each step; only after an odd number of steps a copy is needed.
fn in_turns(kernels: Vec<Kernel>, times: &Dim, kept: &[TensorId], tensors: &[KernelTensor]) -> Block {
    let mut swapped: FxHashMap<TensorId, TensorId> = FxHashMap::default();
    let (mut step, mut copies) = (vec![], vec![]);
    for k in &kernels {
        match copied(k).filter(|(from, to)| {
            let intermediate = matches!(tensors[*from].kind, TensorKind::Intermediate);
            let under = |t: &KernelTensor| matches!(t.kind, TensorKind::Under(over) if over == *from);
            let once = kernels.iter().filter(|k| k.writes().contains(from)).count() == 1;
            // A part of a tensor has less room than the tensor.
            let [size, room] = [from, to].map(|t| tensors[*t].ty.shape.iter().product::<Dim>());
            let fresh = size == room
                && !swapped.contains_key(from)
                && !kept.contains(from)
                && !swapped.contains_key(to);
            intermediate && once && fresh && kept.contains(to) && !tensors.iter().any(under)
        }) {
            Some((from, to)) => {
                swapped.extend([(from, to), (to, from)]);
                copies.push(k.clone());
            }
            None => step.push(k.clone()),
        }
    }
    let repeat = |kernels: std::ops::Range<usize>, times: Dim, keeps: Vec<TensorId>| Repeat {
        kernels,
        times,
        keeps,
        why: String::new(),
        until: None,
    };
    if copies.is_empty() || times.is(1) {
        return Block { repeats: vec![repeat(0..kernels.len(), times.clone(), kept.to_vec())], kernels };
    }
    let two = Poly::constant(2);
    let mut all = step.clone();
    all.extend(step.iter().map(|k| k.renumbered(&|t| swapped.get(&t).copied().unwrap_or(t))));
    let both = kept.iter().copied().chain(swapped.keys().copied().filter(|t| !kept.contains(t)));
    let mut keeps: Vec<TensorId> = both.collect();
    keeps.sort_unstable();
    let mut repeats = vec![repeat(0..all.len(), times.div(&two, &[]), keeps)];
    let odd = times.modulo(&two, &[]);
    if !odd.is(0) {
        let from = all.len();
        all.extend(step.into_iter().chain(copies));
        repeats.push(repeat(from..all.len(), odd, kept.to_vec()));
    }
    Block { kernels: all, repeats }
}

/// The source and destination of a kernel that does nothing but copy a whole tensor.
fn copied(k: &Kernel) -> Option<(TensorId, TensorId)> {
    let ([store], Family::Map(_)) = (&k.stores[..], &k.family) else { return None };
    let Expr::Load { tensor, offset, guard: None } = k.body.expr(store.value) else { return None };
    let same = *offset == store.offset && store.offset == Poly::var(0) && store.guard.is_none();
    same.then_some((*tensor, store.tensor))
}

/// The tensors of a loop's results.
fn results(graph: &Graph, node: NodeId, tensors: &mut Tensors<'_>) -> Vec<TensorId> {
    let mut all = vec![];
    for port in 0..graph.node(node).outputs.len() as u32 {
        let v = Value { node, port };
        let known = tensors.of.get(&v).copied();
        all.push(
            known.unwrap_or_else(|| tensors.add(Some(v), graph.ty(v).clone(), TensorKind::Intermediate)),
        );
    }
    all
}

/// A loop of lanes in several dispatches, each of which continues from the values that the previous one left.
pub(in crate::fuse) fn parts<'a>(
    graph: &'a Graph,
    unit: &Unit,
    mapping: &Mapping,
    steps: Steps<'_>,
    tensors: &mut Tensors<'a>,
) -> Result<Block, Errors> {
    let options = steps.options;
    let broken = |e: String| Errors::from(crate::fuse::internal(graph, unit.anchor, &e));
    let node = graph.node(unit.anchor);
    let (Op::Scan { carried, .. }, Some(most)) = (&node.op, mapping.part) else {
        return Err(broken("not a scan in parts".into()));
    };
    let carried = *carried;
    let mut kept = results(graph, unit.anchor, tensors);
    let number = tensors.add(None, TensorType::new(DType::I32, vec![]), TensorKind::Intermediate);
    let mut start = vec![fill_kernel(number, Scalar::from_i64(DType::I32, 0), node.origin.clone())];
    for (first, carry) in node.inputs[..carried].iter().zip(&kept) {
        start.push(copy_kernel(graph, *first, *carry, tensors).map_err(broken)?);
    }
    let mut kernels = vec![];
    // Values that several lanes share must not be written before all lanes have read them.
    let mut copies = vec![];
    let mut to = kept.clone();
    for (i, t) in to.iter_mut().enumerate().take(carried).filter(|(i, _)| !mapping.apart(*i)) {
        let ty = tensors.list[*t].ty.clone();
        let next = tensors.add(None, ty, TensorKind::Intermediate);
        copies.push((next, kept[i]));
        *t = next;
    }
    let mut p = Puller::new(graph, InMemory::new(tensors), mapping.domain());
    let part = Some((&kept[..carried], number));
    let (family, ends) = match mapping.executor {
        Executor::Invocation => lane_loop(graph, unit, mapping, carried, part, &mut p).map_err(broken)?,
        Executor::Workgroup => {
            let to: Vec<Option<TensorId>> = to[..carried].iter().copied().map(Some).collect();
            let family = workgroup_loop(graph, unit, mapping, part, &to, &mut p).map_err(broken)?;
            (family, vec![])
        }
    };
    let mut stores = vec![];
    for ((v, points, values), tensor) in ends.iter().zip(&to) {
        for (point, value) in points.iter().zip(values) {
            let mut guard = None;
            for (i, d) in &point.when {
                let inside = p.inside(i, d);
                guard = p.and(guard, inside);
            }
            let offset = flat_offset(&graph.ty(*v).shape, &point.at, &p.domain);
            stores.push(Store { tensor: *tensor, offset, value: *value, guard, combine: None });
        }
    }
    kernels.push(Kernel { family, body: p.resolver.body, stores, nodes: node.origin.clone() });
    for (from, to) in copies {
        kernels.push(copy_of(from, to, &tensors.list, node.origin.clone()));
    }
    let mut body = Body::default();
    let before = body.push(Expr::Load { tensor: number, offset: Poly::var(0), guard: None }, DType::I32);
    let count = body.push(Expr::Const(Scalar::from_i64(DType::I32, i64::from(most))), DType::I32);
    let value = body.push(Expr::Binary(BinaryOp::Add, before, count), DType::I32);
    let stores = vec![Store { tensor: number, offset: Poly::var(0), value, guard: None, combine: None }];
    let family = Family::Map(Map { elements: Dim::ONE });
    kernels.push(Kernel { family, body, stores, nodes: node.origin.clone() });
    kept.push(number);
    let why = format!("a dispatch takes {most} steps at most");
    let ending = Ending::of(graph, unit.anchor, mapping.part, options);
    // Short dispatches are not worth a check each.
    let many = (BRIEF / i64::from(most)).clamp(1, PARTS);
    let times = match ending {
        Some(_) => Dim::from(many),
        None => Bounds::of(&graph.computed).most(&mapping.steps).ceil_div(i64::from(most)),
    };
    let repeat = Repeat { kernels: 0..kernels.len(), times, keeps: kept.clone(), why, until: None };
    let mut block = Block { kernels, repeats: vec![repeat] };
    if let Some(ending) = ending {
        block = ending.rounds(block, many * i64::from(most), &kept, Some(number), steps, tensors)?;
    }
    Ok(block.behind(start))
}
