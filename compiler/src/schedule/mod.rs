//! Scheduling: *how* each kernel is computed, chosen for a device.
//!
//! Fusion decides what a kernel computes. [`schedule`] gives each kernel a [`Schedule`], plain data that prints and
//! parses ([`text`]), that tables of measured choices hold ([`table`]), and from which [`emit`](crate::emit) writes the
//! kernel without choosing anything. All that a device can run on a kernel are its [`candidates`]; what is chosen is the
//! first of them unless a table knows better.

pub mod attention;
mod loop_forms;
pub mod loops;
pub mod maps;
mod nested;
pub mod prefix_scans;
pub mod products;
pub mod rows;
pub mod sequences;
pub mod sorts;
pub mod spread;
pub mod steps;
pub mod table;
pub mod text;

pub use crate::cost;
use crate::device::DeviceProfile;
use crate::kernel::{Capacity, Family, Kernel, KernelGraph};
use crate::{Diagnostic, Errors, Location};
use cost::{Expected, Launch};
use rustc_hash::FxHashMap;
use sequences::Sequence;
use table::Tuning;

/// How a kernel is computed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// Elements.
    Map(maps::Map),
    /// Reductions over rows.
    Row(rows::Row),
    /// Prefix scans of rows.
    PrefixScan(prefix_scans::PrefixScan),
    /// Parts of rows in order.
    Sort(sorts::Sort),
    /// Loops of invocations.
    Loop(loops::Loop),
    /// Loops of workgroups.
    StagedLoop(loops::Loop),
    /// A loop in stages whose invocations keep blocks of the combined terms.
    BlockedLoop(loops::Blocked),
    /// Loops of several workgroups a lane.
    SpreadLoop(loops::Spread),
    /// Products of matrices.
    Product(products::Product),
    /// Attention.
    Attention(attention::Attention),
    /// Steps on the loop nest of a kernel of any family.
    Steps(steps::Steps),
}

/// The facts on which a choice depends beside the kernel.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Where the kernel's tensors are described.
    pub graph: &'a KernelGraph,
    /// The target.
    pub device: &'a DeviceProfile,
    /// Expected values of symbols.
    pub expect: &'a Expected,
}

/// Kernels, each with its schedule.
#[derive(Clone, Debug)]
pub struct ScheduledGraph {
    /// The kernels.
    pub graph: KernelGraph,
    /// The schedule of each.
    pub schedules: Vec<Schedule>,
    /// Kernels that are in one dispatch, with other schedules.
    pub sequences: Vec<Sequence>,
}

/// Chooses for all kernels: what was `given`, else what was measured, else what is preferred for the device.
///
/// # Errors
/// As [`choose`] and [`table::replace`], of all kernels.
pub fn schedule(
    graph: KernelGraph,
    device: &DeviceProfile,
    expect: &Expected,
    measured: &Tuning,
    given: &Tuning,
) -> Result<ScheduledGraph, Errors> {
    let cx = Context { graph: &graph, device, expect };
    let (mut schedules, mut errors) = (vec![], vec![]);
    // Layers repeat.
    let mut known: FxHashMap<u128, Schedule> = FxHashMap::default();
    for k in &graph.kernels {
        let hash = k.structural_hash(&graph.tensors, Capacity::Counts);
        match known.get(&hash).map_or_else(|| choose(k, &cx, measured), |s| Ok(s.clone())) {
            Ok(s) => {
                known.insert(hash, s.clone());
                schedules.push(s);
            }
            Err(d) => errors.push(locate(d, k)),
        }
    }
    if !errors.is_empty() {
        return Err(Errors(errors));
    }
    let mut all = ScheduledGraph { graph, schedules, sequences: vec![] };
    table::replace(&mut all, given, device, expect)?;
    verify(&all, device).map_err(|all| Errors(all.into_iter().map(Diagnostic::internal).collect()))?;
    Ok(all)
}

/// Checks that each kernel has a schedule of its family that the device has the threads for; `Err` lists those that do not.
pub fn verify(all: &ScheduledGraph, device: &DeviceProfile) -> Result<(), Vec<String>> {
    let (kernels, schedules) = (&all.graph.kernels, &all.schedules);
    if kernels.len() != schedules.len() {
        return Err(vec![format!("{} kernels have {} schedules", kernels.len(), schedules.len())]);
    }
    let wrong = |(i, (k, s)): (usize, (&Kernel, &Schedule))| {
        let node = k.nodes.first().map_or(String::new(), |n| format!(" (node \"{n}\")"));
        let of = format!("kernel {i}{node}, {}, has the schedule `{s}`", k.family);
        match s.threads(k, &all.graph) {
            None => Some(format!("{of}, which is of another family")),
            Some(n) if n == 0 || n > device.max_invocations => {
                let most = device.max_invocations;
                Some(format!("{of} of {n} threads, of which the device has 1 to {most}"))
            }
            Some(_) => None,
        }
    };
    let wrong: Vec<String> = kernels.iter().zip(schedules).enumerate().filter_map(wrong).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

impl Schedule {
    /// Threads of a workgroup, where it is a schedule for kernels of this family.
    fn threads(&self, kernel: &Kernel, graph: &KernelGraph) -> Option<u32> {
        Some(match (self, &kernel.family) {
            (Schedule::Steps(s), _) => s.threads(kernel, graph),
            (Schedule::Map(maps::Map::Flat(s)), Family::Map(_)) => s.threads,
            (Schedule::Map(maps::Map::Tiled(s)), Family::Map(_)) => s.threads,
            (Schedule::Row(s), Family::Row(_)) => s.threads,
            (Schedule::PrefixScan(s), Family::PrefixScan(_)) => s.threads,
            (Schedule::Sort(sorts::Sort::Block(s) | sorts::Sort::Select(s)), Family::Sort(k))
                if k.sorted == 1 =>
            {
                s.threads
            }
            (Schedule::Sort(sorts::Sort::Path(s)), Family::Sort(k)) if k.sorted > 1 => s.threads,
            (Schedule::Sort(sorts::Sort::Merge(s)), Family::Sort(k)) if k.sorted > 1 => s.threads,
            (Schedule::Loop(s), Family::Loop(_)) => s.threads,
            (Schedule::StagedLoop(s), Family::StagedLoop(_)) => s.threads,
            (Schedule::BlockedLoop(s), Family::StagedLoop(_)) => s.threads,
            (Schedule::SpreadLoop(s), Family::StagedLoop(_)) => s.threads,
            (Schedule::Product(products::Product::Tiled(s)), Family::Matmul(_)) => s.shape.threads(),
            (Schedule::Product(products::Product::TiledIntegers(s)), Family::Matmul(_)) => s.shape.threads(),
            (Schedule::Product(products::Product::Cooperative(s)), Family::Matmul(_)) => {
                s.shape.subgroups() * s.subgroup
            }
            (Schedule::Product(products::Product::Thin(s)), Family::Matmul(_)) => s.shape.threads(),
            (Schedule::Product(products::Product::Window(s)), Family::Matmul(_)) => s.threads,
            (Schedule::Product(products::Product::Block(s)), Family::Matmul(_)) => s.threads,
            (Schedule::Product(products::Product::Serial(s)), Family::Matmul(_)) => s.threads,
            (Schedule::Attention(attention::Attention::Tiled(s)), Family::Attention(_)) => {
                s.tiles.is_sound().then(|| s.tiles.threads())?
            }
            (Schedule::Attention(attention::Attention::Decode(s)), Family::Attention(_)) => s.threads,
            (Schedule::Attention(attention::Attention::Streamed(s)), Family::Attention(_)) => s.threads,
            (Schedule::Attention(attention::Attention::Cooperative(s)), Family::Attention(_)) => {
                s.queries.checked_div(s.sub_queries)?.checked_mul(s.subgroup)?
            }
            _ => return None,
        })
    }
}

/// Says which nodes a kernel computes.
pub(crate) fn locate(d: Diagnostic, kernel: &Kernel) -> Diagnostic {
    if d.location != Location::default() {
        return d;
    }
    let node = kernel.nodes.first().cloned();
    d.at(Location { node, ..Location::default() })
}

/// The schedule of a kernel: the table's, if it has one that the device can run, else the preferred one.
///
/// # Errors
/// `Unsupported` where a tensor has more elements than 31 bits number; `Internal` where the kernel contradicts itself.
pub fn choose(kernel: &Kernel, cx: &Context, tuning: &Tuning) -> Result<Schedule, Diagnostic> {
    if let Some(s) = table::find(kernel, cx, tuning) {
        return Ok(s);
    }
    Ok(match &kernel.family {
        // Without listing all the others.
        Family::Matmul(_) => {
            let p = problem(kernel)?;
            let chosen = products::choose(&p, cx.device, cx.expect);
            let cycles = || products::cost::cycles(&chosen, &p, cx.device, cx.expect);
            let nodes = kernel.nodes.first().map_or("", |n| n);
            tracing::debug!(nodes, problem = %p, cycles = cycles(), "product");
            Schedule::Product(chosen)
        }
        Family::Row(_) => Schedule::Row(rows::choose(kernel, cx)?),
        Family::Map(_) => Schedule::Map(maps::choose(kernel, cx)?),
        _ => {
            let first = candidates(kernel, cx)?.into_iter().next();
            first.ok_or_else(|| Diagnostic::internal("a kernel without a schedule"))?
        }
    })
}

fn problem(kernel: &Kernel) -> Result<products::problem::Problem, Diagnostic> {
    products::problem::problem(kernel).ok_or_else(|| Diagnostic::internal("not a product of matrices"))
}

/// All schedules that a device can run on a kernel, the preferred ones first.
///
/// # Errors
/// As [`choose`].
pub fn candidates(kernel: &Kernel, cx: &Context) -> Result<Vec<Schedule>, Diagnostic> {
    Ok(match &kernel.family {
        Family::Map(_) => maps::candidates(kernel, cx)?.into_iter().map(Schedule::Map).collect(),
        Family::Row(_) => rows::candidates(kernel, cx)?.into_iter().map(Schedule::Row).collect(),
        Family::PrefixScan(k) => {
            prefix_scans::candidates(kernel, k, cx).into_iter().map(Schedule::PrefixScan).collect()
        }
        Family::Sort(k) => sorts::candidates(k, cx).into_iter().map(Schedule::Sort).collect(),
        Family::Loop(k) => loops::candidates(k, cx).into_iter().map(Schedule::Loop).collect(),
        Family::StagedLoop(k) => loops::staged_candidates(kernel, k, cx),
        Family::Matmul(_) => {
            let p = problem(kernel)?;
            let cycles = |g: &products::Product| products::cost::cycles(g, &p, cx.device, cx.expect);
            let mut all = products::candidates(&p, cx.device, cx.expect);
            all.sort_by(|a, b| cycles(a).total_cmp(&cycles(b)));
            all.into_iter().map(Schedule::Product).collect()
        }
        Family::Attention(k) => {
            attention::candidates(kernel, k, cx).into_iter().map(Schedule::Attention).collect()
        }
    })
}

/// Schedules by their estimated times; those that take equally long stay in order.
fn by_time<T>(all: Vec<(T, Launch)>, device: &DeviceProfile) -> Vec<T> {
    let mut timed: Vec<(f64, T)> = all.into_iter().map(|(s, l)| (l.cycles(device), s)).collect();
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    timed.into_iter().map(|(_, s)| s).collect()
}

/// The reason for which a device cannot run a kernel with a schedule, if there is one.
///
/// # Errors
/// As [`choose`].
pub fn misfit(schedule: &Schedule, kernel: &Kernel, cx: &Context) -> Result<Option<String>, Diagnostic> {
    match schedule {
        Schedule::Steps(steps) => Ok(steps.misfit(kernel, cx)),
        _ => Ok(text::misfit(schedule, &candidates(kernel, cx)?)),
    }
}

impl std::fmt::Display for ScheduledGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (k, s)) in self.graph.kernels.iter().zip(&self.schedules).enumerate() {
            writeln!(f, "kernel {i} {}: {s}", k.family)?;
        }
        Ok(())
    }
}
