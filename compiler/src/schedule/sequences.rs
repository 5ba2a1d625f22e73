//! Sequences: kernels that one workgroup runs one after another, in one dispatch.
//!
//! A dispatch costs some microseconds, in which one workgroup does much: a narrow model, whose kernels have little work, is faster as one
//! workgroup that goes from kernel to kernel past a barrier than as dispatches that each keep more of the device busy. [`find`] chooses
//! ranges of kernels by estimated times. Each kernel of a sequence has a schedule of its own: that which takes one workgroup least time.

use super::{Context, Schedule, ScheduledGraph, attention, maps, products, rows};
use crate::cost::{Expected, Launch};
use crate::device::{DeviceProfile, Speeds};
use crate::kernel::{Capacity, Family, Kernel, KernelGraph, KernelTensor, TensorId, TensorKind};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;
use std::sync::Arc;
use wgfc_ir::Dim;

/// Kernels in one dispatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// The kernels.
    pub kernels: Range<usize>,
    /// The schedule of each.
    pub schedules: Vec<Schedule>,
}

impl Sequence {
    /// The first and the second half of its kernels.
    pub fn halves(&self) -> [Sequence; 2] {
        let Sequence { kernels, schedules } = self;
        let (first, second) = schedules.split_at(schedules.len() / 2);
        let middle = kernels.start + first.len();
        let half = |kernels, schedules: &[Schedule]| Sequence { kernels, schedules: schedules.to_vec() };
        [half(kernels.start..middle, first), half(middle..kernels.end, second)]
    }
}

/// The numbers of invocations of a workgroup that are tried.
const THREADS: [u32; 5] = [64, 128, 256, 512, 1024];
/// Durations of a dispatch in which one workgroup must have done the work of a kernel.
const SHORT: f64 = 4.0;
/// The most kernels of a sequence: its text, and the time that the driver takes for it, grow with them.
const MOST_KERNELS: usize = 128;
/// The most kernels past which one goes to be behind another one of a sequence.
const MOST_PASSED: usize = 16;
/// The barriers between two kernels.
const BARRIERS: f64 = 2.0;

/// The times of a kernel, in seconds.
#[derive(Clone)]
struct Times {
    /// In a dispatch of its own, without what the dispatch costs.
    apart: f64,
    /// By one workgroup of each size, with the schedule.
    alone: Vec<Option<(f64, Schedule)>>,
}

/// The sequences of a graph.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The sequences that are estimated to be faster than their kernels apart.
    pub sequences: Vec<Sequence>,
    /// The estimated time of all kernels in seconds.
    pub seconds: f64,
}

/// Whether plans for a device may have sequences.
///
/// A plan for any device has none, nor one for a device whose cores run one invocation after another: there several cores with a part of a
/// kernel each are faster.
pub fn suits_device(device: &DeviceProfile) -> bool {
    device.speeds.overlaps() && !device.speeds.are_of_no_device()
}

/// Whether a device may run several kernels of a graph as a sequence: one workgroup reads its constants in some time.
pub fn suits(graph: &KernelGraph, device: &DeviceProfile) -> bool {
    let speeds = &device.speeds;
    let constant = |t: &KernelTensor| match &t.kind {
        TensorKind::Const(data) => data.dtype.bytes_for(data.numel()) as f64,
        _ => 0.0,
    };
    let bytes: f64 = graph.tensors.iter().map(constant).sum();
    let count = graph.kernels.len();
    count > 1
        && suits_device(device)
        && bytes / speeds.workgroup_bandwidth < count as f64 * SHORT * speeds.dispatch_cost
}

/// Chooses the sequences of a graph.
pub fn find(schedules: &[Schedule], cx: &Context) -> Found {
    if suits(cx.graph, cx.device) { found(&times(schedules, cx), cx) } else { Found::default() }
}

/// Chooses the sequences of a graph, whose kernels may go in another order for them.
pub fn choose(all: &mut ScheduledGraph, device: &DeviceProfile, expect: &Expected) {
    if !suits(&all.graph, device) {
        return;
    }
    let cx = Context { graph: &all.graph, device, expect };
    let times = times(&all.schedules, &cx);
    let Found { sequences, seconds } = found(&times, &cx);
    all.sequences = sequences;
    // A kernel may need a size that another one computes without reading what that one writes.
    let order = if all.graph.computed.is_empty() { gathered(&times, &all.graph) } else { vec![] };
    if order.iter().copied().eq(0..order.len()) {
        return;
    }
    let kernels = order.iter().map(|i| all.graph.kernels[*i].clone()).collect();
    let graph = KernelGraph { kernels, ..all.graph.clone() };
    let times: Vec<Times> = order.iter().map(|i| times[*i].clone()).collect();
    let other = found(&times, &Context { graph: &graph, device, expect });
    if other.seconds < seconds {
        all.schedules = order.iter().map(|i| all.schedules[*i].clone()).collect();
        (all.graph, all.sequences) = (graph, other.sequences);
    }
}

/// An order of kernels in which each that one workgroup could run comes right behind another such one, where nothing between them keeps it from
/// that.
fn gathered(times: &[Times], graph: &KernelGraph) -> Vec<usize> {
    let buffers = Buffers::new(graph);
    let keys = |all: Vec<TensorId>| all.into_iter().map(|t| buffers.key(t)).collect::<FxHashSet<Key>>();
    let uses: Vec<(FxHashSet<Key>, FxHashSet<Key>)> =
        graph.kernels.iter().map(|k| (keys(k.tensors()), keys(k.writes()))).collect();
    let apart = |a: usize, b: usize| uses[a].1.is_disjoint(&uses[b].0) && uses[b].1.is_disjoint(&uses[a].0);
    let ends = |at: usize| graph.repeats.iter().any(|r| r.kernels.start == at || r.kernels.end == at);
    let goes = |i: usize| times[i].alone.iter().any(Option::is_some);
    let mut order: Vec<usize> = vec![];
    for i in 0..times.len() {
        let mut at = order.len();
        while goes(i)
            && order.len() - at < MOST_PASSED
            && at > 0
            && !ends(at)
            && !goes(order[at - 1])
            && apart(order[at - 1], i)
        {
            at -= 1;
        }
        let behind = at > 0 && !ends(at) && goes(order[at - 1]);
        order.insert(if behind { at } else { order.len() }, i);
    }
    order
}

/// The times of all kernels.
fn times(schedules: &[Schedule], cx: &Context) -> Vec<Times> {
    let mut known: FxHashMap<u128, Times> = FxHashMap::default();
    let timed = |(k, s): (&Kernel, &Schedule)| {
        let hash = k.structural_hash(&cx.graph.tensors, Capacity::Counts);
        known.entry(hash).or_insert_with(|| Times::of(k, s, cx)).clone()
    };
    cx.graph.kernels.iter().zip(schedules).map(timed).collect()
}

/// The sequences of least estimated time for kernels in this order.
fn found(times: &[Times], cx: &Context) -> Found {
    let graph = cx.graph;
    let dispatch = cx.device.speeds.dispatch_cost;
    let buffers = Buffers::new(graph);
    // The least time of the kernels before each, and the sequence that ends there: its first kernel, and the size of the workgroup.
    let mut best: Vec<(f64, Option<(usize, usize)>)> = vec![(0.0, None)];
    for end in 1..=graph.kernels.len() {
        let mut least = (best[end - 1].0 + times[end - 1].apart + dispatch, None);
        let mut bound: FxHashSet<Key> = FxHashSet::default();
        let mut alone = [dispatch; THREADS.len()];
        for start in (end.saturating_sub(MOST_KERNELS)..end).rev() {
            let range = start..end;
            bound.extend(graph.kernels[start].tensors().into_iter().map(|t| buffers.key(t)));
            // Tensors that only these kernels use lie in one or two buffers.
            let bindings = bound.iter().filter(|k| !buffers.is_within(**k, &range)).count() + 2;
            for (sum, own) in alone.iter_mut().zip(&times[start].alone) {
                *sum += own.as_ref().map_or(f64::INFINITY, |o| o.0);
            }
            let fits = bindings <= cx.device.max_storage_buffers as usize && !splits_a_repeat(&range, graph);
            if !fits || alone.iter().all(|a| a.is_infinite()) {
                break;
            }
            for (size, sum) in alone.iter().enumerate().filter(|_| range.len() > 1) {
                if best[start].0 + sum < least.0 {
                    least = (best[start].0 + sum, Some((start, size)));
                }
            }
        }
        best.push(least);
    }
    let mut sequences = vec![];
    let mut end = graph.kernels.len();
    while end > 0 {
        let Some((start, size)) = best[end].1 else {
            end -= 1;
            continue;
        };
        let own = times[start..end].iter().filter_map(|t| Some(t.alone[size].clone()?.1));
        sequences.push(Sequence { kernels: start..end, schedules: own.collect() });
        end = start;
    }
    sequences.reverse();
    Found { sequences, seconds: best.last().map_or(0.0, |b| b.0) }
}

/// The buffer that holds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The buffer of an input, an output or an intermediate tensor.
    Tensor(TensorId),
    /// The buffer of a state.
    State(usize),
    /// The buffer of a constant, by the address of its data.
    Constant(usize),
}

/// The buffers of a graph's tensors.
pub struct Buffers {
    of: Vec<Key>,
    /// The first and the last kernel that use each.
    users: FxHashMap<Key, (usize, usize)>,
    /// Buffers that share none with others: of inputs and outputs, of sizes that are no constants, and those that are kept between repetitions or that
    /// the host reads.
    apart: FxHashSet<Key>,
}

impl Buffers {
    /// The buffers of these tensors.
    pub fn new(graph: &KernelGraph) -> Buffers {
        let kind = |t: TensorId| graph.tensors.get(t).map(|t| &t.kind);
        let key = |mut t: TensorId| {
            while let Some(TensorKind::Under(over)) = kind(t) {
                t = *over;
            }
            match kind(t) {
                Some(TensorKind::State { state, .. }) => Key::State(*state),
                Some(TensorKind::Const(data)) => Key::Constant(Arc::as_ptr(data) as usize),
                _ => Key::Tensor(t),
            }
        };
        let of: Vec<Key> = (0..graph.tensors.len()).map(key).collect();
        let mut users: FxHashMap<Key, (usize, usize)> = FxHashMap::default();
        for (i, k) in graph.kernels.iter().enumerate() {
            for t in k.tensors() {
                users.entry(of[t]).or_insert((i, i)).1 = i;
            }
        }
        let kept = graph.repeats.iter().flat_map(|r| r.keeps.iter().copied().chain(r.until.map(|u| u.word)));
        let mut apart: FxHashSet<Key> =
            kept.chain(graph.computed.iter().map(|c| c.1)).map(|t| of[t]).collect();
        let fixed = |t: &KernelTensor| {
            matches!(t.kind, TensorKind::Intermediate) && t.ty.numel().as_const().is_some()
        };
        let others = graph.tensors.iter().zip(&of).filter(|(t, k)| !fixed(t) && matches!(k, Key::Tensor(_)));
        apart.extend(others.filter(|(t, _)| !matches!(t.kind, TensorKind::Under(_))).map(|(_, k)| *k));
        Buffers { of, users, apart }
    }

    /// The buffer of a tensor.
    pub fn key(&self, tensor: TensorId) -> Key {
        self.of.get(tensor).copied().unwrap_or(Key::Tensor(tensor))
    }

    /// Whether only these kernels use a buffer.
    pub fn is_within(&self, key: Key, kernels: &Range<usize>) -> bool {
        matches!(key, Key::Tensor(_))
            && !self.apart.contains(&key)
            && self
                .users
                .get(&key)
                .is_some_and(|(first, last)| kernels.contains(first) && kernels.contains(last))
    }
}

/// Whether a repetition begins or ends inside of the range.
fn splits_a_repeat(kernels: &Range<usize>, graph: &KernelGraph) -> bool {
    let inside = |at: usize| kernels.start < at && at < kernels.end;
    graph.repeats.iter().any(|r| inside(r.kernels.start) || inside(r.kernels.end))
}

impl Times {
    fn of(kernel: &Kernel, schedule: &Schedule, cx: &Context) -> Times {
        let device = cx.device;
        let seconds = device.speeds.cycle();
        let short = SHORT * device.speeds.dispatch_cost / seconds;
        let apart = launch(kernel, schedule, cx).map_or(0.0, |l| l.cycles(device));
        let computes_a_size = kernel.tensors().iter().any(|t| cx.graph.computed.iter().any(|c| c.1 == *t));
        if apart > short || computes_a_size || open_ended(kernel) {
            return Times { apart: apart * seconds, alone: vec![None; THREADS.len()] };
        }
        let one = alone(device);
        let cx = &Context { device: &one, ..*cx };
        let mut alone = vec![None; THREADS.len()];
        for (schedule, launch) in launches(kernel, &THREADS, cx) {
            let threads = schedule.threads(kernel, cx.graph);
            let Some(size) = THREADS.iter().position(|t| threads == Some(*t)) else { continue };
            let meets = launch.workgroups * BARRIERS * device.speeds.barrier_alone(launch.threads);
            let time = (launch.in_turn(&one) + meets) * seconds;
            if time <= short * seconds && alone[size].as_ref().is_none_or(|(least, _)| time < *least) {
                alone[size] = Some((time, schedule));
            }
        }
        Times { apart: apart * seconds, alone }
    }
}

/// Whether the number of a kernel's workgroups is known only when the program runs.
fn open_ended(kernel: &Kernel) -> bool {
    let counted: Vec<&Dim> = match &kernel.family {
        Family::Map(k) => vec![&k.elements],
        Family::Row(k) => vec![&k.rows],
        Family::Matmul(k) => vec![&k.batch, &k.m, &k.n],
        Family::Attention(k) => vec![&k.batch, &k.s, &k.parts],
        _ => return true,
    };
    counted.iter().any(|d| d.as_const().is_none())
}

/// A device of which one core works on one workgroup at a time.
fn alone(device: &DeviceProfile) -> DeviceProfile {
    let s = device.speeds;
    let cores = s.cores;
    let speeds = Speeds {
        cores: 1.0,
        resident: s.resident / cores,
        flops_f32: s.flops_f32 / cores,
        flops_f16: s.flops_f16 / cores,
        flops_matrix: s.flops_matrix / cores,
        cache_bandwidth: s.cache_bandwidth / cores,
        ..s
    };
    DeviceProfile { speeds, ..device.clone() }
}

/// The counts of a kernel with a schedule.
fn launch(kernel: &Kernel, schedule: &Schedule, cx: &Context) -> Option<Launch> {
    if let Schedule::Product(g) = schedule {
        return products::cost::launch(g, &products::problem::problem(kernel)?, cx.device, cx.expect);
    }
    let threads = schedule.threads(kernel, cx.graph)?;
    launches(kernel, &[threads], cx).into_iter().find_map(|(s, l)| (s == *schedule).then_some(l))
}

/// Schedules of a kernel with their counts, those in workgroups of so many invocations among them.
fn launches(kernel: &Kernel, threads: &[u32], cx: &Context) -> Vec<(Schedule, Launch)> {
    let most = cx.device.max_invocations;
    match &kernel.family {
        Family::Map(_) => {
            let sizes = threads.iter().filter(|t| **t <= most);
            let all = sizes.flat_map(|t| maps::launches(kernel, *t, cx).unwrap_or_default());
            all.map(|(s, l)| (Schedule::Map(maps::Map::Flat(s)), l)).collect()
        }
        Family::Row(_) => {
            let all = rows::launches(kernel, cx).unwrap_or_default();
            all.into_iter().map(|(s, l)| (Schedule::Row(s), l)).collect()
        }
        Family::Matmul(_) => {
            let Some(p) = products::problem::problem(kernel) else { return vec![] };
            let all = products::candidates(&p, cx.device, cx.expect).into_iter();
            let timed = |g: products::Product| {
                let launch = products::cost::launch(&g, &p, cx.device, cx.expect)?;
                Some((Schedule::Product(g), launch))
            };
            all.filter_map(timed).collect()
        }
        Family::Attention(k) => {
            let all = attention::launches(kernel, k, cx).into_iter();
            all.map(|(s, l)| (Schedule::Attention(s), l)).collect()
        }
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse;
    use crate::schedule::choose as chosen;
    use crate::schedule::table::Tuning;

    /// Three maps over `n` elements, each of the one before, and what follows their text.
    fn chain(n: &str, more: &str) -> KernelGraph {
        maps_behind_each_other(3, n, more)
    }

    fn maps_behind_each_other(count: usize, n: &str, more: &str) -> KernelGraph {
        let mut text = format!("t0: f32[{n}] input 0\n");
        text += &(1..count).map(|i| format!("t{i}: f32[{n}] intermediate\n")).collect::<String>();
        text += &format!("t{count}: f32[{n}] output 0\n\n");
        for i in 0..count {
            let to = i + 1;
            text += &format!(
                "kernel {i} map [{n}]\n  e0: f32 = t{i}[%0]\n  e1: f32 = exp(e0)\n  t{to}[%0] = e1\n\n"
            );
        }
        parse(&(text + more)).unwrap()
    }

    /// The first kernel of each sequence, and the one behind its last.
    fn ranges(graph: &KernelGraph, device: &DeviceProfile) -> Vec<(usize, usize)> {
        let expect = Expected::default();
        let cx = Context { graph, device, expect: &expect };
        let schedules: Vec<Schedule> =
            graph.kernels.iter().map(|k| chosen(k, &cx, &Tuning::default()).unwrap()).collect();
        let all = find(&schedules, &cx).sequences;
        for s in &all {
            let sizes: Vec<_> = s
                .kernels
                .clone()
                .zip(&s.schedules)
                .map(|(k, s)| s.threads(&graph.kernels[k], graph))
                .collect();
            assert!(sizes.windows(2).all(|w| w[0] == w[1] && w[0].is_some()), "{sizes:?}");
        }
        all.into_iter().map(|s| (s.kernels.start, s.kernels.end)).collect()
    }

    fn named(name: &str) -> DeviceProfile {
        DeviceProfile::named(name).unwrap()
    }

    #[test]
    fn small_kernels_are_one_dispatch_and_large_ones_are_not() {
        let on = |n| ranges(&chain(n, ""), &named("discrete"));
        assert_eq!(on("700"), [(0, 3)]);
        assert!(on("7000000").is_empty());
        // How many workgroups there are is known only when the program runs.
        assert!(on("n").is_empty());
    }

    #[test]
    fn a_sequence_has_no_more_kernels_than_a_driver_takes_in_some_time() {
        let all = ranges(&maps_behind_each_other(300, "700", ""), &named("discrete"));
        assert!(all.len() == 3 && all.iter().all(|(start, end)| end - start <= MOST_KERNELS), "{all:?}");
    }

    #[test]
    fn plans_for_any_device_and_for_processors_have_none() {
        for name in ["portable", "software", "swiftshader"] {
            assert!(ranges(&chain("700", ""), &named(name)).is_empty(), "{name}");
        }
    }

    #[test]
    fn a_sequence_is_whole_inside_of_a_repetition_or_outside() {
        let repeat = |range| format!("repeat {range} times [n] keeps [t1] as \"a loop\"\n");
        let on = |range| ranges(&chain("700", &repeat(range)), &named("discrete"));
        assert_eq!(on("0..3"), [(0, 3)]);
        assert_eq!(on("1..3"), [(1, 3)]);
        assert_eq!(on("0..2"), [(0, 2)]);
    }

    #[test]
    fn a_sequence_binds_no_more_buffers_than_the_device_can() {
        let few = DeviceProfile { max_storage_buffers: 3, ..named("discrete") };
        assert!(ranges(&chain("700", ""), &few).is_empty());
        let more = DeviceProfile { max_storage_buffers: 4, ..few };
        assert_eq!(ranges(&chain("700", ""), &more), [(0, 3)]);
    }

    #[test]
    fn tensors_that_nothing_else_uses_are_within() {
        let graph = chain("700", "repeat 0..3 times [n] keeps [t1] as \"a loop\"\n");
        let buffers = Buffers::new(&graph);
        let within = |t, range: Range<usize>| buffers.is_within(buffers.key(t), &range);
        // t0 is an input, t1 is kept between repetitions, t3 is an output.
        assert_eq!([0, 1, 2, 3].map(|t| within(t, 0..3)), [false, false, true, false]);
        assert!(!within(2, 0..2));
    }

    /// A short kernel, a long one that needs it, and a short one that needs neither the long one nor what it writes, or does.
    fn apart(third: &str) -> KernelGraph {
        parse(&format!(
            "t0: f32[700] input 0\nt1: f32[9000000] input 1\nt2: f32[700] intermediate\nt3: f32[9000000] output 0\nt4: f32[700] output 1\n\n\
             kernel 0 map [700]\n  e0: f32 = t0[%0]\n  e1: f32 = exp(e0)\n  t2[%0] = e1\n\n\
             kernel 1 map [9000000]\n  e0: f32 = t1[%0]\n  e1: f32 = t2[3]\n  e2: f32 = mul(e0, e1)\n  t3[%0] = e2\n\n\
             kernel 2 map [700]\n  e0: f32 = {third}[%0]\n  e1: f32 = exp(e0)\n  t4[%0] = e1\n"
        ))
        .unwrap()
    }

    #[test]
    fn kernels_go_in_another_order_where_nothing_depends_on_it() {
        let (device, expect) = (named("discrete"), Expected::default());
        let on = |graph: KernelGraph| {
            let cx = Context { graph: &graph, device: &device, expect: &expect };
            let schedules =
                graph.kernels.iter().map(|k| chosen(k, &cx, &Tuning::default()).unwrap()).collect();
            let mut all = ScheduledGraph { graph: graph.clone(), schedules, sequences: vec![] };
            choose(&mut all, &device, &expect);
            let writes: Vec<TensorId> = all.graph.kernels.iter().flat_map(Kernel::writes).collect();
            (writes, all.sequences.iter().map(|s| (s.kernels.start, s.kernels.end)).collect::<Vec<_>>())
        };
        assert_eq!(on(apart("t2")), (vec![2, 4, 3], vec![(0, 2)]));
        assert_eq!(on(apart("t3")), (vec![2, 3, 4], vec![]));
        let looped = KernelGraph {
            repeats: parse(&format!("{}repeat 1..3 times [n] keeps [] as \"a loop\"\n", apart("t2")))
                .unwrap()
                .repeats,
            ..apart("t2")
        };
        assert_eq!(on(looped).0, [2, 3, 4]);
    }
}
