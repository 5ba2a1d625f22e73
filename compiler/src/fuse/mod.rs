//! Fusion: from the graph of operators to the graph of kernels.
//!
//! [`fuse`] takes the graph that the [passes](crate::passes) made.
//! [`grouping`] decides which values get memory; each unit then becomes a [`Kernel`]. The anchor's operands are *pulled* through the
//! inlined values ([`pulling`]). The anchor's results are *pushed* through the members to the stores: they are followed point by point
//! ([`points`]), through inverted views ([`points::invert`]). If a kernel binds more buffers than the device allows, one of its inlined
//! values gets memory and the grouping is repeated.

mod build;
pub(crate) mod few_channels;
pub mod grouping;
mod in_place;
mod join;
mod kept;
mod kernels;
pub(crate) mod key_parts;
pub mod loops;
mod pack;
pub mod points;
pub mod pulling;
pub(crate) mod scatter;
mod tensors;
pub mod unit;

use crate::error::{Diagnostic, Errors, Location};
use crate::kernel::{Kernel, KernelGraph, KernelTensor, Repeat, TensorId, TensorKind};
use crate::options::{Fusion as Extent, Options};
use crate::rewrite::empty::is_empty;
use kept::Kept;
use loops::lanes::Loops;
use loops::{prepare, split};
use petgraph::graph::DiGraph;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tensors::Tensors;
use unit::{Bans, Grouping};
use wgfc_ir::order::topological_by_id;
use wgfc_ir::{Dim, Graph, NodeId, Op, Poly, TensorType, Value};

/// Findings of the passes before fusion that fusion uses.
#[derive(Debug, Default)]
pub struct Findings {
    /// Values that must be in memory, and other decisions that are excluded.
    pub bans: Bans,
    /// The loops that are one kernel.
    pub loops: Loops,
    /// The loops that are split into steps, each with the reason.
    pub split: FxHashMap<NodeId, String>,
    /// Whether the values that steps read have been added to the bans.
    settled: bool,
}

impl Findings {
    /// Requires that the values that the steps of loops read are in memory. The loops must be final.
    pub fn settle(&mut self, graph: &Graph) {
        if !std::mem::replace(&mut self.settled, true) {
            let read = self.split.keys().flat_map(|n| split::read_in_steps(graph, *n));
            self.bans.materialise.extend(read);
        }
    }
}

/// A graph of which kernels can be made.
#[derive(Debug)]
pub struct Lowered {
    /// The graph.
    pub graph: Graph,
    /// The types of the model's outputs, of which the graph may have others with as many elements.
    pub outputs: Vec<TensorType>,
    /// Results of the passes.
    pub findings: Findings,
}

/// The passes that make the graph of a loop's step one that kernels can be made of.
pub type Lower = fn(&Graph, &Options) -> Result<Lowered, Errors>;

/// Makes kernels of the graphs of loops' steps.
#[derive(Clone, Copy)]
pub(crate) struct Steps<'o> {
    pub options: &'o Options,
    lower: Lower,
}

impl Steps<'_> {
    /// The kernels of the graph of a step.
    fn fuse(&self, step: &Graph) -> Result<KernelGraph, Errors> {
        Ok(fuse((self.lower)(step, self.options)?, self.options, self.lower)?.kernels)
    }
}

/// A graph and its kernels.
#[derive(Clone, Debug, Default)]
pub struct Fusion {
    /// The kernels.
    pub kernels: KernelGraph,
    /// The graph that they compute.
    pub graph: Graph,
    /// The values of the graph that tensors hold.
    pub values: BTreeMap<TensorId, Value>,
}

/// Fuses a graph into kernels. The graphs of the steps of loops are prepared by `lower`.
pub fn fuse(lowered: Lowered, options: &Options, lower: Lower) -> Result<Fusion, Errors> {
    let Lowered { graph, outputs, mut findings } = lowered;
    findings.settle(&graph);
    let Findings { mut bans, mut loops, mut split, .. } = findings;
    let order = graph.topo().map_err(|n| internal(&graph, n, "the graph has a cycle"))?;
    let mut kept = Kept::default();
    loop {
        let grouping = grouping::group(&graph, &order, &loops, options, &bans);
        let before = bans.count();
        let steps = Steps { options, lower };
        match build(&graph, &outputs, &grouping, (&loops, &split), steps, (&mut bans, &mut kept))? {
            Some((kernels, values)) => {
                drop(kept);
                return Ok(Fusion { kernels, graph, values });
            }
            None if bans.count() == before => {
                let why = "kernels do not fit the device's binding limit however they are split";
                return Err(Diagnostic::internal(why).into());
            }
            None => {
                for n in bans.one_kernel.iter().filter(|n| loops.remove(*n).is_some()) {
                    bans.materialise.extend(split::read_in_steps(&graph, *n));
                    split.insert(*n, "one kernel would bind more buffers than the device does".into());
                }
            }
        }
    }
}

pub(crate) fn refused(graph: &Graph, r: &prepare::Refused) -> Diagnostic {
    let node = graph.node(r.node);
    Diagnostic::unsupported(format!("`{}` without a kernel: {}", node.op.name(), r.why))
        .at(Location { node: Some(node.label().into()), ..Location::default() })
        .help("run the model on the CPU reference evaluator: wgfc run --cpu")
}

pub(crate) fn internal(graph: &Graph, n: NodeId, why: &str) -> Diagnostic {
    Diagnostic::internal(why).at(Location { node: Some(graph.node(n).label().into()), ..Location::default() })
}

fn too_large(graph: &Graph, n: NodeId, why: &str) -> Diagnostic {
    Diagnostic::unsupported(why)
        .at(Location { node: Some(graph.node(n).label().into()), ..Location::default() })
        .help("fix dimensions with --dim NAME=VALUE, which makes what is computed of them simpler")
}

/// Whether a view has the elements of its operand in their order.
pub(crate) fn is_reshape(graph: &Graph, n: NodeId) -> bool {
    let node = graph.node(n);
    let Op::View { shape, index, fill: None } = &node.op else { return false };
    let from = &graph.ty(node.inputs[0]).shape;
    let place = |(i, d): (usize, &Dim)| if d.is(1) { Poly::ZERO } else { Poly::var(i) };
    let here: Vec<Poly> = shape.iter().enumerate().map(place).collect();
    let index: Vec<Poly> = index.iter().map(|p| p.subst_vars(&here, shape)).collect();
    let same_order = pulling::flat_offset(from, &index, shape) == pulling::flat_offset(shape, &here, shape);
    same_order && from.iter().product::<Dim>() == shape.iter().product::<Dim>()
}

/// The kernels of a graph, and the values that tensors hold.
type Built = (KernelGraph, BTreeMap<TensorId, Value>);

/// Builds all kernels; `None` if a kernel had to be split, with `bans` extended accordingly.
fn build(
    graph: &Graph,
    outputs: &[TensorType],
    grouping: &Grouping,
    (loops, split_loops): (&Loops, &FxHashMap<NodeId, String>),
    steps: Steps<'_>,
    (bans, kept): (&mut Bans, &mut Kept),
) -> Result<Option<Built>, Errors> {
    let options = steps.options;
    let most = usize::try_from(options.profile.max_binding_bytes).unwrap_or(usize::MAX);
    let mut tensors = Tensors::new(graph, most);
    for (i, b) in graph.inputs.iter().enumerate() {
        tensors.add(Some(b.value), graph.ty(b.value).clone(), TensorKind::Input(i));
    }
    for (state, s) in graph.states.iter().enumerate() {
        let kind = TensorKind::State { state, grows: s.growth.is_some(), after: false };
        tensors.add(Some(s.before), graph.ty(s.before).clone(), kind);
    }
    // A value that is several outputs, or an input or a constant, is copied.
    let mut copies: Vec<(Value, TensorId)> = vec![];
    let made: rustc_hash::FxHashSet<Value> =
        grouping.units.iter().flat_map(|u| u.outputs.iter().copied()).collect();
    let in_state = |v: Value| v.port == 0 && graph.written_in_place(v.node).is_some();
    for (i, (b, ty)) in graph.outputs.iter().zip(outputs).enumerate() {
        let ty = ty.clone();
        if made.contains(&b.value) && !tensors.of.contains_key(&b.value) && !in_state(b.value) {
            tensors.add(Some(b.value), ty, TensorKind::Output(i));
        } else {
            let t = tensors.add(None, ty, TensorKind::Output(i));
            copies.push((b.value, t));
        }
    }
    // The new contents of a state are written to it directly where possible, else copied at the end.
    for (state, s) in graph.states.iter().enumerate() {
        let ty = graph.ty(s.after).clone();
        let kind = TensorKind::State { state, grows: s.growth.is_some(), after: true };
        let writes = graph.written_in_place(s.after.node).is_some_and(|own| own.before == s.before);
        if writes {
            tensors.add(Some(s.after), ty, kind);
        } else if s.after != s.before {
            let t = tensors.add(None, ty, kind);
            copies.push((s.after, t));
        }
    }
    for u in &grouping.units {
        if u.parts.most > 1 {
            tensors.add_parts(u.anchor.into(), u.parts);
            continue;
        }
        for v in &u.outputs {
            if !tensors.of.contains_key(v) {
                tensors.add(Some(*v), graph.ty(*v).clone(), TensorKind::Intermediate);
            }
        }
    }
    let mut kernels = vec![];
    // The unit of each of the first kernels, the values whose source it asked for, and the inlined values.
    let mut made = vec![];
    let mut blocks = vec![];
    // Kernels that copy tensors which others read or write.
    let mut beside = vec![];
    let mut errors = vec![];
    let mut again = false;
    // Values without elements are not computed.
    let wanted = |u: &&unit::Unit| !u.outputs.iter().all(|v| is_empty(graph.ty(*v))) || u.outputs.is_empty();
    for u in grouping.units.iter().filter(wanted) {
        if let Some(why) = split_loops.get(&u.anchor) {
            match split::block(graph, u.anchor, why, steps, &mut tensors) {
                Ok(b) => blocks.push(b),
                Err(Errors(e)) => errors.extend(e),
            }
            continue;
        }
        if let Some(mapping) = loops.get(&u.anchor).filter(|p| p.part.is_some()) {
            match split::parts(graph, u, mapping, steps, &mut tensors)
                .map(|b| b.narrow(options, &mut tensors))
            {
                Ok(Ok(b)) => blocks.push(b),
                // The parts of a loop hand on the carried values in buffers, which can be more than one kernel binds.
                Ok(Err(wide)) => {
                    split(graph, u, &wide, &[], bans, options);
                    again = true;
                }
                Err(Errors(e)) => errors.extend(e),
            }
            continue;
        }
        // Sources that were asked for earlier belong to no kernel.
        tensors.take_asked();
        let built = match kept.again(u, &mut tensors) {
            Some(built) => Ok(built),
            None => kernels::unit_kernel(graph, u, loops, &mut tensors),
        };
        match built {
            Ok((kernel, inlined)) => {
                let asked = tensors.take_asked();
                let most = options.profile.max_storage_buffers as usize;
                let kernel = match count_bindings(&kernel) > most {
                    true => pack::pack(&kernel, &mut tensors).unwrap_or(kernel),
                    false => kernel,
                };
                let is_loop = matches!(graph.node(u.anchor).op, Op::Scan { .. });
                let little = options.profile.speeds.little_bytes();
                let mut kernel = [kernel];
                if is_loop
                    && count_bindings(&kernel[0]) > most
                    && let Some(g) = pack::gather(&mut kernel, 0, &mut tensors, (most, little), &|_| false)
                {
                    beside.extend(g.before.into_iter().chain(g.after));
                }
                let [kernel] = kernel;
                let bound = count_bindings(&kernel);
                if bound > most {
                    if !split(graph, u, &kernel, &inlined, bans, options) {
                        errors.push(
                            Diagnostic::unsupported(format!(
                                "a kernel needs {bound} storage buffers, the device binds {}",
                                options.profile.max_storage_buffers
                            ))
                            .at(Location {
                                node: Some(graph.node(u.anchor).label().into()),
                                ..Location::default()
                            })
                            .help("compile with --fusion none, or for an adapter that binds more (--for-device)"),
                        );
                    }
                    again = true;
                } else {
                    kernels.push(kernel);
                    made.push((u, asked, inlined));
                }
            }
            Err(e) => match tensors.wanted.take() {
                Some(v) if bans.materialise.insert(v) => again = true,
                _ if tensors.too_large => errors.push(too_large(graph, u.anchor, &e)),
                _ => errors.push(internal(graph, u.anchor, &e)),
            },
        }
    }
    kernels.append(&mut beside);
    let held = |c: &wgfc_ir::Computed| Some((c.symbol.clone(), tensors.tensor(c.value)?));
    let computed: Option<Vec<(Arc<str>, TensorId)>> = graph.computed.iter().map(held).collect();
    let computed = computed.ok_or_else(|| Diagnostic::internal("a computed symbol has no memory"))?;
    for u in grouping.units.iter().filter(|u| unit::is_linear(graph, u.anchor)) {
        let v = Value::from(u.anchor);
        let Some(over) = tensors.of.get(&v).copied() else { continue };
        let under = tensors.add(None, graph.ty(v).clone(), TensorKind::Under(over));
        copies.push((graph.node(u.anchor).inputs[0], under));
    }
    copies.retain(|(v, _)| !is_empty(graph.ty(*v)));
    for (v, t, written) in in_place::ordered(copies, &tensors) {
        if let TensorKind::State { state, .. } = tensors.list[t].kind
            && written
            && options.fusion == Extent::Full
            && blocks.is_empty()
            && !again
            && in_place::write(&mut kernels, &tensors, v, (state, t), &computed)
        {
            continue;
        }
        match build::copy_kernel(graph, v, t, &mut tensors) {
            Ok(k) => {
                let wide = count_bindings(&k) > options.profile.max_storage_buffers as usize;
                again |= wide && bans.materialise.insert(v);
                if in_place::needs_intermediate(&k, &kernels, &blocks, &tensors, &computed) {
                    let kept = tensors.add(None, graph.ty(v).clone(), TensorKind::Intermediate);
                    let nodes = k.nodes.clone();
                    kernels.push(k.renumbered(&|to| if to == t { kept } else { to }));
                    kernels.push(build::copy_of(kept, t, &tensors.list, nodes));
                } else {
                    kernels.push(k);
                }
            }
            Err(e) => match tensors.wanted.take() {
                Some(v) if bans.materialise.insert(v) => again = true,
                _ if tensors.too_large => errors.push(too_large(graph, v.node, &e)),
                _ => errors.push(internal(graph, v.node, &e)),
            },
        }
    }
    if !errors.is_empty() {
        return Err(Errors(errors));
    }
    if again {
        for (kernel, (unit, asked, inlined)) in kernels.into_iter().zip(made) {
            kept.keep(unit, asked, (kernel, inlined));
        }
        return Ok(None);
    }
    if options.fusion == Extent::Full {
        let read = in_place::read_before(&kernels, &blocks, &tensors.list);
        let most = options.profile.max_storage_buffers as usize;
        let little = options.profile.speeds.little_bytes() / 4;
        let joiner = join::Joiner::new(&tensors.list, &read, &computed, most);
        kernels = join::elementwise(&joiner, kernels, little);
        kernels = join::products::join(&joiner, kernels);
        kernels = join::stack::stack(&joiner, kernels, little);
    }
    let values = tensors.of.into_iter().map(|(v, t)| (t, v)).collect();
    let tensors = tensors.list;
    let parts = kernels.into_iter().map(|k| split::Block { kernels: vec![k], repeats: vec![] });
    let (kernels, repeats) = sort(parts.chain(blocks).collect(), &tensors, &computed)?;
    let bounds = wgfc_ir::computed::Bounds::of(&graph.computed);
    Ok(Some((KernelGraph { tensors, kernels, repeats, computed, bounds }, values)))
}

fn count_bindings(k: &Kernel) -> usize {
    let mut t = k.reads();
    t.extend(k.writes());
    t.sort_unstable();
    t.dedup();
    t.len()
}

/// Bans decisions of a kernel that binds too many buffers: the inlined values that load the most tensors get memory until the rest fits;
/// without any, the last absorbed member is banned. Values that are much larger than the kernel's result, such as weights that are
/// dequantised where they are read, get memory only if nothing else is left.
fn split(
    graph: &Graph,
    unit: &unit::Unit,
    kernel: &Kernel,
    inlined: &[(Value, u32)],
    bans: &mut Bans,
    options: &Options,
) -> bool {
    let most = options.profile.max_storage_buffers as usize;
    let bytes = |v: Value| {
        let ty = graph.ty(v);
        options.expect.estimate(&ty.numel()).saturating_mul(ty.dtype.bits() as i64) / 8
    };
    let little = options.profile.speeds.little_bytes().max(bytes(unit.anchor.into()).saturating_mul(4));
    let op = |v: &Value| &graph.node(v.node).op;
    let candidates: Vec<(Value, u32)> = inlined
        .iter()
        .filter(|(v, _)| {
            v.node != unit.anchor
                && matches!(op(v), Op::Map { .. } | Op::Gather { .. } | Op::Concat { .. })
                && !bans.materialise.contains(v)
        })
        .copied()
        .collect();
    let of = loaded(&kernel.body, &candidates, |_, _| false);
    let best = candidates
        .iter()
        .map(|(v, e)| (of.get(e).map_or(0, Vec::len), *v, *e))
        .filter(|(n, ..)| *n > 1)
        .max_by_key(|(n, v, _)| (bytes(*v) <= little, *n, std::cmp::Reverse(v.node)));
    if let (Some((_, v, _)), Some(m)) = (best, unit.members.last())
        && bytes(v) > little
    {
        return bans.absorb.insert(*m);
    }
    if let Some((n, v, first)) = best {
        bans.materialise.insert(v);
        // If that is not enough, further values that load at least as many are banned at the same time.
        let mut bound = count_bindings(kernel).saturating_sub(n - 1);
        let values: FxHashMap<u32, Value> = candidates.iter().map(|(v, e)| (*e, *v)).collect();
        loaded(&kernel.body, &candidates, |e, n| {
            let small = values.get(&e).is_some_and(|v| bytes(*v) <= little);
            let more = e != first && n == MANY && bound > most && small;
            if more && let Some(v) = values.get(&e) {
                bound = bound.saturating_sub(n - 1);
                bans.materialise.insert(*v);
            }
            e == first || more && values.contains_key(&e)
        });
        return true;
    }
    match unit.members.last() {
        Some(m) => bans.absorb.insert(*m),
        None => matches!(graph.node(unit.anchor).op, Op::Scan { .. }) && bans.one_kernel.insert(unit.anchor),
    }
}

/// Values that load at least this many tensors count as equal in the search for the one that loads the most.
const MANY: usize = 6;

/// The loads of an expression: tensors, and expressions that become some.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loaded {
    Tensor(TensorId),
    Value(u32),
}

/// The loads of the expressions of values, at most [`MANY`] of each. `kept` decides, given the number of an expression's loads,
/// whether it gets memory; it is then one load of its readers.
fn loaded(
    body: &crate::kernel::Body,
    values: &[(Value, u32)],
    mut kept: impl FnMut(u32, usize) -> bool,
) -> FxHashMap<u32, Vec<Loaded>> {
    let roots: Vec<u32> = values.iter().map(|(_, e)| *e).collect();
    let mut of: FxHashMap<u32, Vec<Loaded>> = FxHashMap::default();
    for e in body.reachable(&roots) {
        let mut all = match body.expr(e) {
            crate::kernel::Expr::Load { tensor, .. } => vec![Loaded::Tensor(*tensor)],
            _ => vec![],
        };
        for x in body.operands(e).iter().filter_map(|o| of.get(o)).flatten() {
            if all.len() < MANY && !all.contains(x) {
                all.push(*x);
            }
        }
        let all = if kept(e, all.len()) { vec![Loaded::Value(e)] } else { all };
        of.insert(e, all);
    }
    of
}

/// The accesses of a kernel or block that determine its order.
struct Touched {
    reads: Vec<TensorId>,
    writes: Vec<TensorId>,
    symbols: BTreeSet<Arc<str>>,
}

/// The computed symbols, each with the tensor that holds it.
type Computed = [(Arc<str>, TensorId)];

/// The order in which kernels and blocks must run: writers before readers, readers before overwriters, and the kernels that compute
/// symbols before those that use them.
fn constraints(parts: &[Touched], tensors: &[KernelTensor], computed: &Computed) -> DiGraph<usize, ()> {
    let mut g = DiGraph::<usize, ()>::new();
    let ids: Vec<_> = (0..parts.len()).map(|i| g.add_node(i)).collect();
    let mut writer: FxHashMap<TensorId, usize> = FxHashMap::default();
    let mut overwriter: FxHashMap<usize, usize> = FxHashMap::default();
    for (i, part) in parts.iter().enumerate() {
        for t in &part.writes {
            writer.insert(*t, i);
            if let TensorKind::State { state, .. } = tensors[*t].kind {
                overwriter.insert(state, i);
            }
        }
    }
    for (t, w) in &writer {
        if let TensorKind::Under(over) = tensors[*t].kind
            && let Some(o) = writer.get(&over).filter(|o| *o != w)
        {
            g.add_edge(ids[*w], ids[*o], ());
        }
    }
    for (i, part) in parts.iter().enumerate() {
        let symbols = computed.iter().filter(|c| part.symbols.contains(&c.0)).map(|c| &c.1);
        for w in part.reads.iter().chain(symbols).filter_map(|t| writer.get(t)).filter(|w| **w != i) {
            g.add_edge(ids[*w], ids[i], ());
        }
        for t in &part.reads {
            if let TensorKind::State { state, after: false, .. } = tensors[*t].kind
                && let Some(w) = overwriter.get(&state).filter(|w| **w != i)
            {
                g.add_edge(ids[i], ids[*w], ());
            }
        }
    }
    g
}

/// Orders kernels so that each runs after the writers of what it reads and before it is overwritten, and after the kernels that compute
/// its symbols; the kernels of a block stay together. Among kernels that could run next, the one of the model's earliest nodes is chosen.
fn sort(
    kernels: Vec<split::Block>,
    tensors: &[KernelTensor],
    computed: &Computed,
) -> Result<(Vec<Kernel>, Vec<Repeat>), Errors> {
    let touched = |b: &split::Block| Touched {
        reads: b.reads().collect(),
        writes: b.writes().collect(),
        symbols: if computed.is_empty() { BTreeSet::new() } else { b.symbols() },
    };
    let parts: Vec<Touched> = kernels.iter().map(touched).collect();
    let g = constraints(&parts, tensors, computed);
    let order = topological_by_id(&g);
    if order.len() != kernels.len() {
        return Err(Diagnostic::internal("fusion made a cycle of kernels").into());
    }
    let mut slots: Vec<Option<split::Block>> = kernels.into_iter().map(Some).collect();
    let (mut all, mut repeats) = (vec![], vec![]);
    for block in order.into_iter().filter_map(|i| slots[i.index()].take()) {
        let at = all.len();
        repeats.extend(
            block
                .repeats
                .into_iter()
                .map(|r| Repeat { kernels: r.kernels.start + at..r.kernels.end + at, ..r }),
        );
        all.extend(block.kernels);
    }
    Ok((all, repeats))
}

/// The names of the model's nodes that these nodes came from, each once.
pub(crate) fn origins(graph: &Graph, nodes: impl Iterator<Item = NodeId>) -> Vec<Arc<str>> {
    let mut out: Vec<Arc<str>> = vec![];
    for n in nodes {
        for o in &graph.node(n).origin {
            if !out.contains(o) {
                out.push(o.clone());
            }
        }
    }
    out
}
