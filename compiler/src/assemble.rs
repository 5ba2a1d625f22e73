//! Assembly of a [`Program`] from emitted kernels: buffers, arenas, dispatches, weights.

mod units;

use crate::cost::Expected;
use crate::emit::{EmitContext, EmittedKernel, Target};
use crate::error::{Diagnostic, Errors, Location};
use crate::fuse::grouping::TILE;
use crate::kernel::bounds::{Facts, Proof, prove_all};
use crate::kernel::{
    Attention, Expr, Family, Kernel, KernelGraph, Loop, Map, Matmul, PrefixScan, Row, Sort, Stage,
    StagedLoop, TensorId, TensorKind,
};
use crate::options::Options;
use crate::schedule::{ScheduledGraph, spread};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use units::{Emitter, Unit, Units};
use wgfc_ir::computed::Bounds;
use wgfc_ir::memory::{Item, Touch, assign_arenas};
use wgfc_ir::program::{self, Buffer, BufferKind, DimConstraint, Dispatch, Port, Program, Stats};
use wgfc_ir::{Dim, Graph, Poly};

/// Emits every kernel and assembles the program. `graph` is the graph from which the kernels were fused.
pub fn assemble(
    graph: &Graph,
    scheduled: &ScheduledGraph,
    options: &Options,
    stats: Stats,
) -> Result<Program, Errors> {
    let scheduled = &*spread::expand(scheduled)?;
    let kernels = &scheduled.graph;
    let symbols = symbols(graph, kernels);
    let bounds = &kernels.bounds;
    let cx = EmitContext::new(kernels, &symbols, Target::from(&options.profile));
    let mut errors = vec![];
    let units = Emitter::new(&cx, &options.profile).units(scheduled).unwrap_or_else(|all| {
        errors = all;
        Units::default()
    });
    for r in kernels.repeats.iter().filter(|r| bounds.concern(&r.times)) {
        let node = kernels.kernels.get(r.kernels.start).and_then(|k| k.nodes.first().cloned());
        let why = format!("a loop of `{}` steps, which a run computes, that is no single kernel", r.times);
        let d = Diagnostic::unsupported(why).at(Location { node, ..Location::default() });
        errors.push(d.help("choose smaller dimensions with --dim, or run the model with --cpu"));
    }
    if !errors.is_empty() {
        return Err(Errors(errors));
    }

    let extended = (!units.tensors.is_empty()).then(|| {
        let tensors = kernels.tensors.iter().chain(&units.tensors).cloned().collect();
        KernelGraph { tensors, ..kernels.clone() }
    });
    let kernels = extended.as_ref().unwrap_or(kernels);
    let mut weights = BTreeMap::new();
    let mut buffer_of: FxHashMap<TensorId, usize> = FxHashMap::default();
    let mut buffers = vec![];
    let bound = units.list.iter().flat_map(|u| u.emitted.bindings.iter().map(|b| b.0));
    let used: BTreeSet<TensorId> = bound.chain(kernels.computed.iter().map(|c| c.1)).collect();
    let mut stats = stats;
    let address = |data: &Arc<wgfc_ir::Tensor>| Arc::as_ptr(data) as usize;
    let mut by_data: FxHashMap<usize, usize> = FxHashMap::default();
    let mut named: FxHashMap<usize, String> = FxHashMap::default();
    for (id, t) in kernels.tensors.iter().enumerate() {
        let kind = match &t.kind {
            TensorKind::Input(index) => BufferKind::Input { index: *index },
            TensorKind::Output(index) => BufferKind::Output { index: *index },
            _ if !used.contains(&id) && !matches!(t.kind, TensorKind::State { .. }) => continue,
            TensorKind::Const(data) => {
                if let Some(b) = by_data.get(&address(data)) {
                    buffer_of.insert(id, *b);
                    continue;
                }
                by_data.insert(address(data), buffers.len());
                stats.weights_absent |= !data.is_present();
                let name = unused_name(&weights, t.name.as_deref());
                named.insert(address(data), name.clone());
                weights.insert(name.clone(), data.as_ref().clone());
                BufferKind::Weight { name }
            }
            TensorKind::Withheld(_) => {
                return Err(Diagnostic::internal("a kernel graph read from a text lacks constants").into());
            }
            // Resolved below, once the tensor whose memory it shares has a buffer.
            TensorKind::Under(_) => continue,
            TensorKind::State { state, .. } => {
                let name = &graph.states[*state].name;
                if let Some(b) = state_buffer(&buffers, name) {
                    buffer_of.insert(id, b);
                    continue;
                }
                BufferKind::State { name: name.to_string() }
            }
            // Placed below, once live ranges are known.
            TensorKind::Intermediate => BufferKind::Arena { arena: 0, first: 0, last: 0 },
        };
        buffer_of.insert(id, buffers.len());
        buffers.push(Buffer { kind, dtype: t.ty.dtype, elements: bounds.most(&t.ty.numel()) });
    }

    for (id, t) in kernels.tensors.iter().enumerate() {
        if let TensorKind::Under(over) = &t.kind
            && let Some(b) = buffer_of.get(over).copied()
        {
            buffer_of.insert(id, b);
        }
    }

    let states: Vec<program::State> = graph
        .states
        .iter()
        .map(|s| {
            let ty = graph.ty(s.before);
            let growth = s.growth.as_ref().map(|g| program::Growth {
                axis: g.axis,
                length: g.length.to_string(),
                by: g.by.clone(),
            });
            let initial = s.initial.as_ref().map(|data| {
                let name = named.entry(address(data)).or_insert_with(|| {
                    stats.weights_absent |= !data.is_present();
                    let name = unused_name(&weights, Some(&s.name));
                    weights.insert(name.clone(), data.as_ref().clone());
                    name
                });
                name.clone()
            });
            let shape = ty.shape.clone();
            let buffer = state_buffer(&buffers, &s.name).unwrap_or_default();
            // A cache may be stored in another type than it has in the graph.
            let dtype = buffers.get(buffer).map_or(ty.dtype, |b| b.dtype);
            program::State { name: s.name.to_string(), dtype, shape, buffer, growth, initial }
        })
        .collect();

    let written = |(id, _): &(TensorId, program::Access)| {
        let ty = &kernels.tensors[*id].ty;
        let shape: Vec<String> = ty.shape.iter().map(ToString::to_string).collect();
        format!("{}[{}]", ty.dtype, shape.join(", "))
    };
    tracing::trace!(stage = "prove", "begins");
    let (proofs, counted, count) = prove_all(graph, kernels);
    tracing::debug!(
        stage = "prove",
        accesses = count.all,
        proven = count.proven,
        steps = count.steps,
        "done"
    );
    let mut unproven: Vec<Vec<String>> = vec![];
    let mut kernel_of: FxHashMap<&str, usize> = FxHashMap::default();
    let mut program_kernels: Vec<program::Kernel> = vec![];
    let mut dispatches = vec![];
    for Unit { kernels: own, emitted: e } in &units.list {
        let made = &kernels.kernels[own.clone()];
        let kernel = *kernel_of.entry(e.wgsl.as_str()).or_insert_with(|| {
            program_kernels.push(program_kernel(program_kernels.len(), &made[0], e));
            unproven.push(vec![]);
            program_kernels.len() - 1
        });
        for proof in &proofs[own.clone()] {
            if let Proof::Unproven(all) = proof {
                let new: Vec<String> =
                    all.iter().filter(|a| !unproven[kernel].contains(*a)).cloned().collect();
                unproven[kernel].extend(new);
            }
        }
        let mut nodes: Vec<String> = vec![];
        for n in made.iter().flat_map(|k| &k.nodes).map(ToString::to_string) {
            if made.len() == 1 || !nodes.contains(&n) {
                nodes.push(n);
            }
        }
        dispatches.push(Dispatch {
            kernel,
            bindings: e.bindings.iter().map(|(t, _)| buffer_of[t]).collect(),
            workgroups: e.workgroups.clone().map(|w| bounds.most(&w)),
            nodes,
            writes: e.bindings.iter().filter(|b| b.1 == program::Access::ReadWrite).map(written).collect(),
            bytes: figure(bounds.most(&made.iter().map(|k| bytes(kernels, k, &options.expect)).sum())),
            flops: figure(bounds.most(&made.iter().map(flops).sum())),
        });
    }
    let computing: BTreeSet<&String> = dispatches.iter().flat_map(|d: &Dispatch| &d.nodes).collect();
    stats.operators.retain(|n, _| computing.contains(n));
    let computed = computed(kernels, bounds, &buffer_of, &units);
    let kept = kernels.repeats.iter().map(|r| {
        let keeps = r.keeps.iter().filter_map(|t| buffer_of.get(t).copied());
        (units.of(&r.kernels), keeps.collect())
    });
    place(&mut buffers, &dispatches, &program_kernels, &kept.collect::<Vec<_>>(), &options.expect);

    let repeats = kernels.repeats.iter().map(|r| program::Repeat {
        first: units.of(&r.kernels).start,
        count: units.of(&r.kernels).len(),
        times: r.times.clone(),
        why: r.why.clone(),
        until: r.until.and_then(|u| {
            let buffer = buffer_of.get(&u.word).copied()?;
            Some(program::Until { buffer, rounds: u.rounds })
        }),
    });
    let repeats: Vec<program::Repeat> = repeats.collect();
    let sizes = buffers.iter().map(|b| &b.elements).chain(dispatches.iter().flat_map(|d| &d.workgroups));
    let pairs = graph.constraints.iter().flat_map(|c| [&c.a, &c.b]);
    if sizes.chain(repeats.iter().map(|r| &r.times)).chain(pairs).any(Dim::is_too_large) {
        return Err(Diagnostic::unsupported("a size of the program is an expression with too many terms")
            .help("fix dimensions with --dim NAME=VALUE")
            .into());
    }
    let port = |b: &wgfc_ir::Border, want: fn(&BufferKind) -> Option<usize>, i: usize| {
        let ty = graph.ty(b.value);
        let buffer = buffers.iter().position(|x| want(&x.kind) == Some(i)).unwrap_or_default();
        let broadcast = graph.optional.get(&b.name).cloned();
        Port { name: b.name.to_string(), dtype: ty.dtype, shape: ty.shape.clone(), buffer, broadcast }
    };
    let input = |k: &BufferKind| match k {
        BufferKind::Input { index } => Some(*index),
        _ => None,
    };
    let output = |k: &BufferKind| match k {
        BufferKind::Output { index } => Some(*index),
        _ => None,
    };
    let inputs = graph.inputs.iter().enumerate().map(|(i, b)| port(b, input, i)).collect();
    let outputs = graph.outputs.iter().enumerate().map(|(i, b)| port(b, output, i)).collect();
    Ok(Program {
        inputs,
        outputs,
        states,
        symbols: symbols.iter().map(|s| s.to_string()).collect(),
        computed,
        constraints: graph
            .constraints
            .iter()
            .map(|c| DimConstraint { a: c.a.clone(), b: c.b.clone(), node: c.origin.to_string() })
            .collect(),
        buffers,
        kernels: program_kernels,
        dispatches,
        repeats,
        stats,
        weights,
        proof: program::Proof::new(unproven, Facts::checked(kernels), counted.into_iter().collect()),
    })
}

/// An estimate, or 0 if the expression is too large.
fn figure(d: Dim) -> Dim {
    if d.is_too_large() { Dim::ZERO } else { d }
}

/// The buffers that hold the values of computed symbols, and the dispatches after which they are complete.
fn computed(
    kernels: &KernelGraph,
    bounds: &Bounds,
    buffer_of: &FxHashMap<TensorId, usize>,
    units: &Units,
) -> Vec<program::Computed> {
    let mut out = vec![];
    for (symbol, tensor) in &kernels.computed {
        let writer = kernels.kernels.iter().position(|k| k.writes().contains(tensor));
        out.push(program::Computed {
            symbol: symbol.to_string(),
            bound: bounds.get(symbol).cloned().unwrap_or_default(),
            buffer: buffer_of.get(tensor).copied().unwrap_or_default(),
            after: writer.map_or(0, |w| units.of(&(w..w + 1)).end),
        });
    }
    out.sort_by_key(|c| c.after);
    out
}

pub(crate) fn program_kernel(index: usize, k: &Kernel, e: &EmittedKernel) -> program::Kernel {
    let node = k.nodes.first().map(|n| n.as_ref()).unwrap_or("copy");
    let slug: String = node
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .take(40)
        .collect();
    e.named(format!("{index:03}_{}_{}", e.family, slug.trim_matches('_')))
}

/// A name that no weight has, derived from the name in the model.
fn unused_name(weights: &BTreeMap<String, wgfc_ir::Tensor>, wanted: Option<&str>) -> String {
    let base = wanted.unwrap_or("const");
    let mut name = base.to_owned();
    let mut n = 1;
    while weights.contains_key(&name) || wanted.is_none() && n == 1 {
        name = format!("{base}.{n}");
        n += 1;
    }
    name
}

fn state_buffer(buffers: &[Buffer], state: &str) -> Option<usize> {
    buffers.iter().position(|b| matches!(&b.kind, BufferKind::State { name } if name == state))
}

/// The free dimensions in the order in which the inputs use them, then the lengths of states, their capacities, and
/// computed symbols.
pub(crate) fn symbols(graph: &Graph, kernels: &KernelGraph) -> Vec<Arc<str>> {
    let mut out: Vec<Arc<str>> = vec![];
    let of_inputs = graph.inputs.iter().flat_map(|b| &graph.ty(b.value).shape).flat_map(Dim::symbols);
    let lengths = graph.states.iter().filter_map(|s| Some(s.growth.as_ref()?.length.clone()));
    let capacities = graph.states.iter().flat_map(|s| &graph.ty(s.before).shape).flat_map(Dim::symbols);
    let computed = kernels.computed.iter().map(|c| c.0.clone());
    for s in of_inputs.chain(lengths).chain(capacities).chain(computed) {
        if !out.contains(&s) {
            out.push(s);
        }
    }
    out
}

/// A range of repeated dispatches, and the buffers that keep their contents between repetitions.
type Kept = (Range<usize>, Vec<usize>);

/// Determines the live ranges and arenas of intermediates.
fn place(
    buffers: &mut [Buffer],
    dispatches: &[Dispatch],
    kernels: &[program::Kernel],
    kept: &[Kept],
    expect: &Expected,
) {
    let mut slot = vec![None; buffers.len()];
    let mut items: Vec<Item> = vec![];
    let mut touches = vec![];
    for (i, d) in dispatches.iter().enumerate() {
        let mut touch = Touch::default();
        for (b, access) in d.bindings.iter().zip(&kernels[d.kernel].bindings) {
            let buffer = &buffers[*b];
            if !matches!(buffer.kind, BufferKind::Arena { .. }) {
                continue;
            }
            let item = *slot[*b].get_or_insert_with(|| {
                let n = usize::try_from(expect.estimate(&buffer.elements)).unwrap_or(0);
                items.push(Item { size: Buffer::byte_size(buffer.dtype, n), first: i, last: i });
                items.len() - 1
            });
            items[item].last = i;
            match access {
                program::Access::Read => touch.reads.push(item),
                program::Access::ReadWrite => touch.writes.push(item),
            }
        }
        touches.push(touch);
    }
    for (range, keeps) in kept {
        for item in keeps.iter().filter_map(|b| slot[*b]) {
            let life: &mut Item = &mut items[item];
            life.first = life.first.min(range.start);
            life.last = life.last.max(range.end.saturating_sub(1));
        }
        // Tensors written before the repeated range and read in it are read by every repetition.
        for life in items.iter_mut().filter(|i| i.first < range.start && i.last >= range.start) {
            life.last = life.last.max(range.end.saturating_sub(1));
        }
    }
    let arenas = assign_arenas(&items, &touches);
    for (b, s) in buffers.iter_mut().zip(slot) {
        if let (BufferKind::Arena { arena, first, last }, Some(s)) = (&mut b.kind, s) {
            (*arena, *first, *last) = (arenas.arena[s], items[s].first, items[s].last);
        }
    }
}

/// The minimum number of bytes that a kernel reads and writes: the elements of each tensor that its accesses reach,
/// counted once.
pub fn bytes(graph: &KernelGraph, k: &Kernel, expect: &Expected) -> Dim {
    let extents = k.domain();
    let mut reached: BTreeMap<TensorId, Dim> = BTreeMap::new();
    for id in k.body.reachable(&k.roots()) {
        let Expr::Load { tensor, offset, .. } = k.body.expr(id) else { continue };
        let n = reach(offset, k, &extents);
        let sum = reached.entry(*tensor).or_default();
        *sum = &*sum + &n;
    }
    let mut total = Dim::ZERO;
    for (t, n) in reached {
        let ty = &graph.tensors[t].ty;
        let all = ty.numel();
        let n = if expect.estimate(&n) < expect.estimate(&all) { n } else { all };
        total = &total + &packed(ty.dtype, &n);
    }
    for t in k.writes() {
        let ty = &graph.tensors[t].ty;
        let places = match graph.tensors[t].kind {
            // Only the elements of a state that the kernel's stores reach are written.
            TensorKind::State { .. } => k
                .all_stores()
                .filter(|s| s.tensor == t)
                .map(|s| reach(&s.offset, k, &extents))
                .fold(Dim::ZERO, |n, d| &n + &d),
            _ => ty.numel(),
        };
        total = &total + &packed(ty.dtype, &places);
    }
    total
}

/// The maximum number of positions that an offset takes over the kernel's variables.
fn reach(offset: &Poly, k: &Kernel, extents: &[Dim]) -> Dim {
    let mut vars = offset.vars();
    let data: Vec<u32> = offset.data().into_iter().collect();
    for e in k.body.reachable(&data) {
        match k.body.expr(e) {
            Expr::Index(p) => vars.extend(p.vars()),
            Expr::Load { offset, .. } => vars.extend(offset.vars()),
            _ => {}
        }
    }
    vars.iter().filter_map(|v| extents.get(*v)).product()
}

/// The number of bytes of `n` packed elements.
pub fn packed(dtype: wgfc_ir::DType, n: &Dim) -> Dim {
    if dtype.bits() >= 8 { n * (dtype.bits() / 8) as i64 } else { (n * dtype.bits() as i64).ceil_div(8) }
}

/// The number of arithmetic operations on elements that a kernel executes; index arithmetic is not counted.
pub fn flops(k: &Kernel) -> Dim {
    let ops = |roots: &[u32]| {
        let n = k
            .body
            .reachable(roots)
            .into_iter()
            .filter(|e| {
                matches!(k.body.expr(*e), Expr::Unary(..) | Expr::Binary(..)) && k.body.dtype(*e).is_float()
            })
            .count();
        Dim::from(n)
    };
    let stores: Vec<u32> = k.stores.iter().map(|s| s.value).collect();
    match &k.family {
        Family::Map(Map { elements }) => elements * &ops(&stores),
        Family::Row(Row { rows, len, reductions, row_stores }) => {
            let r: Vec<u32> = reductions.iter().map(|r| r.value).collect();
            let per = &(&ops(&r) + &Dim::from(reductions.len())) + &ops(&stores);
            let once: Vec<u32> = row_stores.iter().map(|s| s.value).collect();
            &(&(rows * len) * &per) + &(rows * &ops(&once))
        }
        Family::PrefixScan(PrefixScan { rows, len, .. }) => rows * len,
        Family::Sort(Sort { rows, places, .. }) => &(rows * places) * &ops(&stores),
        Family::Loop(Loop { lanes, steps, part, carries, step_stores, .. }) => {
            let lanes: Dim = lanes.iter().product();
            let here = part.as_ref().map(|p| steps.min_of(&Dim::from(i64::from(p.most)), &[]));
            let steps = here.as_ref().unwrap_or(steps);
            let step: Vec<u32> =
                carries.iter().map(|c| c.next).chain(step_stores.iter().map(|s| s.value)).collect();
            &lanes * &(&(steps * &ops(&step)) + &ops(&stores))
        }
        Family::StagedLoop(StagedLoop { lanes, steps, each, .. }) => {
            let lanes: Dim = lanes.iter().product();
            let work = |s: &Stage| {
                let one: Vec<u32> =
                    s.writes.iter().map(|w| w.value).chain(s.stores.iter().map(|s| s.value)).collect();
                let combined = s
                    .combined
                    .as_ref()
                    .map_or(Dim::ZERO, |c| &(&ops(&[c.reduction.value]) + &Dim::ONE) * i64::from(c.terms));
                &(&combined + &ops(&one)) * i64::from(s.elements)
            };
            let step = each.iter().map(work).fold(Dim::ZERO, |n, d| &n + &d);
            &(&lanes * steps) * &step
        }
        Family::Matmul(Matmul { batch, m, n, k: depth, a, b, sums, rounded: _ }) => {
            let mn = &(batch * m) * n;
            let products = &(&(&mn * depth) * (2 * b.len() as i64)) + &(&mn * &ops(&stores));
            // The elements of an operand that are computed in the kernel are recomputed for each tile of the other
            // operand.
            let made = |own: &Dim, others: &Dim, roots: &[u32]| match ops(roots) {
                none if none.is(0) => none,
                each => &(&(&(batch * own) * depth) * &others.ceil_div(TILE)) * &each,
            };
            let firsts: Vec<u32> = sums.iter().copied().chain([*a]).collect();
            &(&products + &made(m, n, &firsts)) + &made(n, m, b)
        }
        Family::Attention(Attention { batch, s, t, d, e, .. }) => &(&(&(batch * s) * t) * &(d + e)) * 2,
    }
}
