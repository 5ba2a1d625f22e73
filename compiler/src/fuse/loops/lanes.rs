//! Loops whose steps are independent along some axes, with a lane for each position along them.
//!
//! [`map`] looks for axes along which every carried value depends only on carried values at the same position. That needs no separate
//! analysis: the body is pulled for one lane, and reading another lane's carried value fails. All else that an element depends on within
//! its lane is expanded (`expand`).

use crate::device::DeviceProfile;
use crate::fuse::loops::expand::{self, MOST, MOST_INSTRUCTIONS};
use crate::fuse::loops::order;
use crate::fuse::loops::price::{self, Work};
use crate::fuse::points::Point;
use crate::fuse::pulling::{Puller, Resolver, Source};
use crate::kernel::{Body, Carry, Expr, ExprId, TensorId};
use crate::options::{Options, Technique};
use crate::schedule::cost::Expected;
use rustc_hash::FxHashMap;
use wgfc_ir::computed::Bounds;
use wgfc_ir::{DType, Dim, Graph, Node, NodeId, Op, Poly, Scalar, TensorType, Value};

/// The most values that a lane may carry: more would not fit the registers of any GPU.
const CARRIED: usize = 256;

/// Elements of a vector, and the most vectors of elements that a lane may hold instead of separate lanes.
const VECTOR: i64 = 4;
const MOST_VECTORS: i64 = 4;

/// The loops of a graph that become kernels.
pub type Loops = FxHashMap<NodeId, Mapping>;

/// The assignment of a loop's elements to lanes.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The body, in primitive operators.
    body: Graph,
    /// Extents of the lanes' axes.
    pub lanes: Vec<Dim>,
    /// Iterations.
    pub steps: Dim,
    /// The most steps of one dispatch, if the loop may have more.
    pub part: Option<u32>,
    /// For every output of the body, carried ones first: the lane axis that each of its axes is, if any.
    axes: Vec<Vec<Option<usize>>>,
    /// The executor of a lane.
    pub executor: Executor,
    /// The reason why the executor is not the simpler one.
    pub why: String,
    /// The device that the mapping is for.
    pub profile: DeviceProfile,
    /// Expected values of symbols.
    pub expect: Expected,
}

/// The executor of a loop's lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// An invocation: what the lane carries is in its registers.
    Invocation,
    /// A workgroup: what the lane carries is in workgroup memory (`stages`).
    Workgroup,
}

/// The work of a lane.
pub struct Steps {
    /// The carried values, the elements of each one after another.
    pub carries: Vec<Carry>,
    /// For each output that is stacked, its elements: position and value.
    pub stacked: Vec<Vec<(Vec<Poly>, ExprId)>>,
}

/// Finds the lanes of a `scan` and the best executor for them. The error gives the reason why each attempt failed.
pub fn map(graph: &Graph, node: NodeId, options: &Options) -> Result<Mapping, Vec<String>> {
    let n = graph.node(node);
    let Op::Scan { body, carried, .. } = &n.op else { return Err(vec!["not a scan".into()]) };
    let steps = n.inputs.get(*carried).and_then(|v| graph.ty(*v).shape.first()).cloned();
    let Some(steps) = steps else { return Err(vec!["nothing to scan".into()]) };
    let mut body = body.as_ref().clone();
    wgfc_ir::lower::lower_raised(&mut body);
    let shapes: Vec<Vec<Dim>> = body.outputs.iter().map(|o| body.ty(o.value).shape.clone()).collect();
    let executors = [
        (Executor::Invocation, Technique::LoopsInInvocations),
        (Executor::Workgroup, Technique::LoopsInWorkgroups),
    ];
    let executors = executors.into_iter().filter(|(_, t)| options.fuses(*t)).map(|(e, _)| e);
    let mut why = vec![];
    let mut found: Vec<(f64, Mapping)> = vec![];
    for executor in executors {
        let mut body = body.clone();
        if let Err(e) = order::lower(&mut body, executor) {
            why.push(e);
            continue;
        }
        for lanes in candidates(&shapes, options) {
            let axes = shapes.iter().map(|s| matched(s, &lanes)).collect();
            let (body, steps) = (body.clone(), steps.clone());
            let (profile, expect) = (options.profile.clone(), options.expect.clone());
            let none = String::new();
            let mut mapping =
                Mapping { body, lanes, steps, part: None, axes, executor, why: none, profile, expect };
            match mapping.work(graph, node) {
                Ok(work) => {
                    let seconds = price::fused(&work, &mapping);
                    mapping.part = part(graph, &mapping, &work, seconds);
                    found.push((seconds, mapping));
                    break;
                }
                Err(e) if executor == Executor::Invocation => {
                    why.push(format!("along {}: {e}", named(&mapping.lanes)))
                }
                Err(e) => why.push(format!("a workgroup for each lane along {}: {e}", named(&mapping.lanes))),
            }
        }
    }
    let split = price::split(&body, options);
    price::choose(found, split, why)
}

/// The most iterations of a loop that every known driver allows.
const PORTABLE_ITERATIONS: u32 = 65_535;

/// The most steps of one dispatch, each taking `seconds`, such that the driver does not end it; `None` if all steps fit. The driver's
/// iteration limit and the chain of dependent operations are checked for the most steps that a run can have. The time of all lanes
/// together depends on the device, and is estimated for the expected number of steps.
fn part(graph: &Graph, mapping: &Mapping, work: &Work, seconds: f64) -> Option<u32> {
    // So that the number of a part's last step fits an i32.
    const STEPS: u32 = 1 << 28;
    let profile = &mapping.profile;
    let within = |most: u32, each: f64| (f64::from(most) / each.max(1.0)) as u32;
    let steps = Bounds::of(&graph.computed).most(&mapping.steps);
    let known = steps.as_const();
    let longest = known.or_else(|| longest(graph, &steps, profile));
    // Where the device is unknown, a loop that is known to be long or may be endless keeps to the limit of all drivers.
    let portable = (profile.is_of_any_device() && longest == known).then_some(PORTABLE_ITERATIONS);
    let allowed =
        profile.loop_iterations.or(portable).map_or(STEPS, |n| within(n, work.iterations)).min(STEPS);
    let chain = within(profile.speeds.longest_chain(profile.longest_dispatch), work.chain);
    let together = (profile.longest_dispatch / seconds.max(f64::MIN_POSITIVE)) as u32;
    let expected = known.unwrap_or_else(|| mapping.expect.estimate(&steps));
    let most = allowed.min(chain);
    let fits = longest.is_some_and(|s| s <= i64::from(most)) && expected <= i64::from(together);
    (!fits).then_some(most.min(together).max(1))
}

/// The most steps there can be if an input or output with one element per step must fit one binding.
fn longest(graph: &Graph, steps: &Dim, profile: &DeviceProfile) -> Option<i64> {
    let bits = i64::try_from(profile.max_binding_bytes.saturating_mul(8)).unwrap_or(i64::MAX);
    let borders = graph.inputs.iter().chain(&graph.outputs).map(|b| graph.ty(b.value));
    let most = borders.filter_map(|ty| {
        let axis = ty.shape.iter().position(|d| d == steps)?;
        let others = ty.shape.iter().enumerate().filter(|(i, _)| *i != axis);
        let row: i64 = others.filter_map(|(_, d)| d.as_const()).fold(1, |n, d| n.saturating_mul(d.max(1)));
        Some(bits / row.saturating_mul(ty.dtype.bits() as i64))
    });
    most.min()
}

fn named(lanes: &[Dim]) -> String {
    match lanes {
        [] => "no axis".into(),
        _ => format!("[{}]", lanes.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// The sets of extents to try as lanes: the axes of the largest output, then subsets of them.
fn candidates(shapes: &[Vec<Dim>], options: &Options) -> Vec<Vec<Dim>> {
    let size = |s: &[Dim]| options.expect.estimate(&s.iter().product());
    let Some(largest) = shapes.iter().max_by_key(|s| (size(s), s.len())) else { return vec![] };
    let axes: Vec<Dim> = largest.iter().filter(|d| !d.is(1)).cloned().collect();
    // A kernel distinguishes at most eight variables.
    let mut out: Vec<Vec<Dim>> = (0..=axes.len().min(6)).rev().map(|n| axes[..n].to_vec()).collect();
    for d in axes.iter().skip(1) {
        let at = out.len() - 1;
        out.insert(at, vec![d.clone()]);
    }
    // If there are enough lanes without it, an axis of a few vectors is one lane's.
    if let Some([all, others]) = out.first_chunk()
        && all.last().and_then(Dim::as_const).is_some_and(|d| d % VECTOR == 0 && d <= MOST_VECTORS * VECTOR)
        && others.len() + 1 == all.len()
        && size(others) >= options.profile.speeds.share_of_resident(1.0)
    {
        out.swap(0, 1);
    }
    let mut seen: Vec<Vec<Dim>> = vec![];
    out.retain(|c| {
        !seen.contains(c) && {
            seen.push(c.clone());
            true
        }
    });
    out
}

/// The lane axis of each axis of a shape: matched in order, by equal extents.
fn matched(shape: &[Dim], lanes: &[Dim]) -> Vec<Option<usize>> {
    let mut next = 0;
    shape
        .iter()
        .map(|d| {
            let found = (next..lanes.len()).find(|i| lanes[*i] == *d)?;
            next = found + 1;
            Some(found)
        })
        .collect()
}

impl Mapping {
    /// The work of one step of a lane.
    fn work(&self, graph: &Graph, node: NodeId) -> Result<Work, String> {
        let mut p = Puller::new(graph, AllInMemory::default(), self.domain());
        let work = match self.executor {
            Executor::Invocation => {
                let steps = self.pull(graph, node, None, &mut p)?;
                // The kernel has more expressions than counted here, since its operands' loads are resolved.
                if p.body().len() > MOST / 4 * 3 {
                    return Err(format!("a step of a lane takes more than {MOST} operations"));
                }
                Work::of_invocation(p.body(), &steps)
            }
            Executor::Workgroup => {
                let staged = self.stage(graph, node, None, &mut p)?;
                Work::of_workgroup(self, &staged, p.body())
            }
        };
        if work.instructions > MOST_INSTRUCTIONS {
            return Err(format!("a step takes more than {MOST_INSTRUCTIONS} instructions"));
        }
        Ok(work)
    }

    /// The number of workgroups that can run at the same time for each lane.
    pub(in crate::fuse) fn room(&self) -> f64 {
        let lanes = self.expect.extent(&self.lanes.iter().product());
        self.profile.speeds.resident_workgroups / lanes
    }

    /// The body, in primitive operators.
    pub(in crate::fuse) fn body(&self) -> &Graph {
        &self.body
    }
    /// The type of output `i` of the body.
    pub(in crate::fuse) fn output(&self, i: usize) -> &TensorType {
        self.body.ty(self.body.outputs[i].value)
    }
    /// The lane axis that each axis of output `i` is, if any.
    pub(in crate::fuse) fn axes_of(&self, i: usize) -> &[Option<usize>] {
        &self.axes[i]
    }

    /// Extents of the kernel's variables: the lanes' axes, then the step.
    pub fn domain(&self) -> Vec<Dim> {
        self.lanes.iter().chain([&self.steps]).cloned().collect()
    }

    /// The positions of a lane's elements of output `i`.
    fn elements(&self, i: usize) -> Result<Vec<Vec<Poly>>, String> {
        let shape = &self.body.ty(self.body.outputs[i].value).shape;
        let mut all: Vec<Vec<Poly>> = vec![vec![]];
        for (d, lane) in shape.iter().zip(&self.axes[i]) {
            let here: Vec<Poly> = match lane {
                Some(l) => vec![Poly::var(*l)],
                None => (0..expand::extent(d)?).map(Poly::constant).collect(),
            };
            if all.len() * here.len() > CARRIED {
                return Err(format!("a lane has more than {CARRIED} elements of a value"));
            }
            let longer = |at: &Vec<Poly>| {
                here.iter()
                    .map(|p| at.iter().cloned().chain([p.clone()]).collect())
                    .collect::<Vec<Vec<Poly>>>()
            };
            all = all.iter().flat_map(longer).collect();
        }
        Ok(all)
    }

    /// The lane axes along which an output has only one element, which all lanes there share.
    pub(in crate::fuse) fn missing(&self, i: usize) -> Vec<usize> {
        (0..self.lanes.len()).filter(|l| !self.axes[i].contains(&Some(*l))).collect()
    }

    /// The points of each carried result, for the epilogue.
    pub fn points(&self, anchor: NodeId, carried: usize) -> Vec<(Value, Vec<Point>)> {
        let mut out = vec![];
        for i in 0..carried {
            let Ok(elements) = self.elements(i) else { continue };
            // A carried value of which a workgroup's lane has many elements is stored by many invocations.
            if self.executor == Executor::Workgroup && elements.len() > 1 {
                continue;
            }
            let when = self.when(i);
            let points =
                elements.into_iter().map(|at| Point { at, when: when.clone(), from: vec![] }).collect();
            out.push((Value { node: anchor, port: i as u32 }, points));
        }
        out
    }

    /// Whether each lane has its own elements of output `i`.
    pub fn apart(&self, i: usize) -> bool {
        self.missing(i).is_empty()
    }

    /// The number of the step; counted from the last one where it runs `backwards`.
    pub fn step(&self, backwards: bool) -> Poly {
        let t = Poly::var(self.lanes.len());
        if backwards { &(&self.steps - &Poly::ONE) - &t } else { t }
    }

    /// The condition under which a lane writes output `i`: of the lanes that share it, the first one does.
    pub fn when(&self, i: usize) -> Vec<(Poly, Dim)> {
        self.missing(i).into_iter().map(|l| (Poly::var(l), Dim::ONE)).collect()
    }

    /// Pulls a lane's loop into the body of `outer`. The initial carried values are read from the tensors `resumed` if given, else they
    /// are the loop's operands.
    pub fn pull<R: Resolver>(
        &self,
        graph: &Graph,
        node: NodeId,
        resumed: Option<&[TensorId]>,
        outer: &mut Puller<'_, R>,
    ) -> Result<Steps, String> {
        let node = graph.node(node);
        let Op::Scan { carried, reverse_outputs, .. } = &node.op else {
            return Err("not a scan".into());
        };
        outer.unroll = true;
        let (mut inits, mut first) = (vec![], vec![]);
        for i in 0..*carried {
            first.push(inits.len());
            for at in self.elements(i)? {
                inits.push(match resumed.and_then(|r| r.get(i)) {
                    Some(tensor) => {
                        let ty = graph.ty(node.inputs[i]);
                        let offset = outer.offset(ty, &at);
                        outer.push(Expr::Load { tensor: *tensor, offset, guard: None }, ty.dtype)
                    }
                    None => outer.pull(node.inputs[i], &at, None)?,
                });
            }
        }
        if inits.len() > CARRIED {
            return Err(format!("a lane carries {} values, more than {CARRIED}", inits.len()));
        }
        let domain = outer.domain.clone();
        let frame = Frame { mapping: self, outside: Outside::of(node), first: &first, outer };
        let mut inner = Puller::new(&self.body, frame, domain);
        inner.unroll = true;
        let (mut carries, mut stacked) = (vec![], vec![]);
        for (i, o) in self.body.outputs.iter().enumerate() {
            let mut elements = vec![];
            for at in self.elements(i)? {
                let e = inner.pull(o.value, &at, None)?;
                elements.push((at, e));
            }
            if i < *carried {
                let next = elements.into_iter().map(|(_, e)| e);
                carries.extend(
                    inits[first[i]..].iter().zip(next).map(|(init, next)| Carry { init: *init, next }),
                );
            } else {
                let t = self.step(reverse_outputs.get(i - carried) == Some(&true));
                let placed =
                    |(at, e): (Vec<Poly>, ExprId)| (std::iter::once(t.clone()).chain(at).collect(), e);
                stacked.push(elements.into_iter().map(placed).collect());
            }
        }
        self.check_shared(outer.body(), *carried, &first, &carries, &stacked)?;
        Ok(Steps { carries, stacked })
    }

    /// The carried flag at which a lane may stop, if there is one.
    pub fn stops_with(&self, graph: &Graph, node: NodeId) -> Option<usize> {
        if self.executor == Executor::Workgroup {
            return None;
        }
        let mut p = Puller::new(graph, AllInMemory::default(), self.domain());
        let steps = self.pull(graph, node, None, &mut p).ok()?;
        let mut acc = alive(p.body(), &steps.carries)?;
        (0..self.axes.len()).find(|i| {
            let n = self.elements(*i).map_or(0, |e| e.len());
            let here = acc < n;
            acc = acc.saturating_sub(n);
            here
        })
    }

    /// Checks that values which several lanes share are equal in all of them.
    fn check_shared(
        &self,
        body: &Body,
        carried: usize,
        first: &[usize],
        carries: &[Carry],
        stacked: &[Vec<(Vec<Poly>, ExprId)>],
    ) -> Result<(), String> {
        let owner = |acc: usize| first.iter().rposition(|f| *f <= acc).unwrap_or(0);
        let depends = |roots: &[ExprId], lane: usize| {
            body.reachable(roots).into_iter().any(|e| match body.expr(e) {
                Expr::Index(p) => p.vars().contains(&lane),
                Expr::Load { offset, .. } => offset.vars().contains(&lane),
                Expr::Acc(a) => self.axes[owner(*a as usize)].contains(&Some(lane)),
                _ => false,
            })
        };
        for i in 0..self.axes.len() {
            let roots: Vec<ExprId> = match i.checked_sub(carried) {
                Some(j) => stacked[j].iter().map(|(_, e)| *e).collect(),
                None => {
                    let end = first.get(i + 1).copied().unwrap_or(carries.len());
                    carries[first[i]..end].iter().map(|c| c.next).collect()
                }
            };
            if let Some(l) = self.missing(i).into_iter().find(|l| depends(&roots, *l)) {
                let name = &self.body.outputs[i].name;
                return Err(format!(
                    "`{name}` depends on values that other lanes along `{}` carry",
                    self.lanes[l]
                ));
            }
        }
        Ok(())
    }
}

/// The operands of a loop.
pub struct Outside<'f> {
    inputs: &'f [Value],
    /// The number of operands carried from step to step.
    pub carried: usize,
    scanned: usize,
    reverse: &'f [bool],
}

impl<'f> Outside<'f> {
    /// The number of the body's first inputs that differ from step to step.
    pub fn changing(&self) -> usize {
        self.carried + self.scanned
    }
    /// The outside of an [`Op::Scan`].
    pub fn of(node: &'f Node) -> Outside<'f> {
        let (carried, scanned, reverse): (usize, usize, &[bool]) = match &node.op {
            Op::Scan { carried, scanned, reverse_inputs, .. } => (*carried, *scanned, reverse_inputs),
            _ => (0, 0, &[]),
        };
        Outside { inputs: &node.inputs, carried, scanned, reverse }
    }

    /// The operand and position of element `index` of the body's input `i`, which is not carried. For a scanned input it is the slice of
    /// the step.
    pub fn place(&self, mapping: &Mapping, i: usize, index: &[Poly]) -> (Value, Vec<Poly>) {
        let scanned = i - self.carried;
        let step = (scanned < self.scanned).then(|| mapping.step(self.reverse.get(scanned) == Some(&true)));
        (self.inputs[i], step.into_iter().chain(index.iter().cloned()).collect())
    }
}

/// Resolves the inputs of a loop's body.
struct Frame<'f, 'a, R: Resolver> {
    mapping: &'f Mapping,
    outside: Outside<'f>,
    /// The number of each carried value's first element.
    first: &'f [usize],
    outer: &'f mut Puller<'a, R>,
}

impl<R: Resolver> Resolver for Frame<'_, '_, R> {
    fn body(&self) -> &Body {
        self.outer.body()
    }

    fn body_mut(&mut self) -> &mut Body {
        self.outer.body_mut()
    }

    fn resolve(&mut self, v: Value, index: &[Poly], guard: Option<ExprId>) -> Result<Source, String> {
        let Some(i) = self.mapping.body.inputs.iter().position(|b| b.value == v) else {
            return Ok(Source::Computed);
        };
        if i < self.outside.carried {
            return self.carry(i, index).map(Source::Expr);
        }
        let (v, at) = self.outside.place(self.mapping, i, index);
        self.outer.pull(v, &at, guard).map(Source::Expr)
    }
}

impl<R: Resolver> Frame<'_, '_, R> {
    /// An element of carried value `i` before the step.
    fn carry(&mut self, i: usize, index: &[Poly]) -> Result<ExprId, String> {
        let input = &self.mapping.body.inputs[i];
        let ty: &TensorType = self.mapping.body.ty(input.value);
        // The number of the element within the lane, and if one axis is indexed by data, that axis with its stride.
        let (mut number, mut stride) = (0i64, 1i64);
        let mut open: Option<(Poly, i64, i64)> = None;
        for ((p, d), lane) in index.iter().zip(&ty.shape).zip(&self.mapping.axes[i]).rev() {
            if let Some(l) = lane {
                if *p != Poly::var(*l) {
                    return Err(format!(
                        "a step reads `{}` at `{p}` along `{d}`, where another lane carries it",
                        input.name
                    ));
                }
                continue;
            }
            let n = expand::extent(d)?;
            match p.as_const() {
                // Reads outside are arbitrary: the caller does not use them.
                Some(c) => number += c.clamp(0, (n - 1).max(0)) * stride,
                None if open.is_none() => open = Some((p.clone(), n, stride)),
                None => {
                    return Err(format!(
                        "a step reads `{}` at two positions that depend on data",
                        input.name
                    ));
                }
            }
            stride *= n;
        }
        let element = |p: &mut Puller<'_, R>, n: i64| {
            let acc = self.first[i] as i64 + n;
            p.push(Expr::Acc(acc as u32), ty.dtype)
        };
        let Some((place, n, stride)) = open else { return Ok(element(self.outer, number)) };
        let choices: Vec<ExprId> = (0..n).map(|j| element(self.outer, number + j * stride)).collect();
        self.outer.choose(&place, &choices).ok_or_else(|| "a step reads an element of an empty value".into())
    }
}

/// A resolver for a kernel whose operands are all in memory.
#[derive(Default)]
struct AllInMemory {
    tensors: FxHashMap<Value, TensorId>,
    body: Body,
}

impl Resolver for AllInMemory {
    fn body(&self) -> &Body {
        &self.body
    }

    fn body_mut(&mut self) -> &mut Body {
        &mut self.body
    }

    fn resolve(&mut self, v: Value, _: &[Poly], _: Option<ExprId>) -> Result<Source, String> {
        let next = self.tensors.len();
        Ok(Source::Tensor(*self.tensors.entry(v).or_insert(next)))
    }
}

/// The number of the carried bool at which a lane may stop: once false it stays false, and all other carried values stay as they are.
pub fn alive(body: &Body, carries: &[Carry]) -> Option<usize> {
    let held = |e: &Expr| match e {
        Expr::Acc(a) => Some(*a),
        _ => None,
    };
    let next: Vec<ExprId> = carries.iter().map(|c| c.next).collect();
    let mut flags = (0..carries.len()).filter(|i| body.dtype(carries[*i].init) == DType::Bool);
    flags.find(|f| ends_with(body, &next, *f, &held))
}

/// Whether no carried value changes once carried bool `flag` is false. `next` are the values after a step; `held` recognises an
/// expression that is a value before it.
pub(in crate::fuse) fn ends_with(
    body: &Body,
    next: &[ExprId],
    flag: usize,
    held: &dyn Fn(&Expr) -> Option<u32>,
) -> bool {
    let mut memo = FxHashMap::default();
    next.iter().enumerate().all(|(i, next)| match frozen(body, *next, flag, held, &mut memo) {
        Still::Acc(a) => a as usize == i,
        Still::Known(s) => i == flag && s.bits == 0,
        Still::Unknown => false,
    })
}

/// The value of an expression while the carried flag is false.
#[derive(Clone, Copy)]
enum Still {
    Acc(u32),
    Known(Scalar),
    Unknown,
}

fn frozen(
    body: &Body,
    e: ExprId,
    flag: usize,
    held: &dyn Fn(&Expr) -> Option<u32>,
    memo: &mut FxHashMap<ExprId, Still>,
) -> Still {
    use wgfc_ir::BinaryOp::{Add, And, Mul, Or, Sub};
    if let Some(s) = memo.get(&e) {
        return *s;
    }
    let mut of = |e: ExprId| frozen(body, e, flag, held, memo);
    let zero = |s: &Still| matches!(s, Still::Known(s) if s.as_f64() == 0.0);
    let still = match body.expr(e) {
        Expr::Const(s) => Still::Known(*s),
        e if held(e) == Some(flag as u32) => Still::Known(Scalar::bool(false)),
        e if held(e).is_some() => held(e).map_or(Still::Unknown, Still::Acc),
        Expr::Select(c, a, b) => match of(*c) {
            Still::Known(c) => of(if c.bits != 0 { *a } else { *b }),
            _ => Still::Unknown,
        },
        Expr::Cast(t, a) => match of(*a) {
            Still::Known(s) if s.dtype == DType::Bool => Still::Known(Scalar::from_i64(*t, s.as_i64())),
            s @ Still::Acc(_) if body.dtype(*a) == *t => s,
            _ => Still::Unknown,
        },
        Expr::Unary(wgfc_ir::UnaryOp::Not, a) => match of(*a) {
            Still::Known(s) if s.dtype == DType::Bool => Still::Known(Scalar::bool(s.bits == 0)),
            _ => Still::Unknown,
        },
        Expr::Binary(op, a, b) => {
            let (x, y) = (of(*a), of(*b));
            match op {
                And if zero(&x) => x,
                And if zero(&y) => y,
                Or | Add if zero(&x) => y,
                Or | Add | Sub if zero(&y) => x,
                Mul if !body.dtype(e).is_float() && zero(&x) => x,
                Mul if !body.dtype(e).is_float() && zero(&y) => y,
                _ => Still::Unknown,
            }
        }
        _ => Still::Unknown,
    };
    memo.insert(e, still);
    still
}
