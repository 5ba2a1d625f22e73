//! The reference evaluator, which defines the meaning of a graph and computes it on the host.
//!
//! [`evaluate`] is the oracle with which generated kernels are compared, and it runs models without a GPU. Its
//! arithmetic:
//!
//! - f32 and narrower floats compute in f32, element by element; f64 in f64. A narrow float is
//!   rounded when a node's result is stored and by a cast, not between the scalar operators of a body.
//! - Integers wrap at the width of their own type after every scalar operator.
//! - Sums, products and the raised operators accumulate in f64 and round once; `Contract`
//!   accumulates in f32 (f64 in f64).
//! - `Max` and `Min`, binary or reducing, give NaN when an operand is NaN; `ArgReduce` finds the
//!   first NaN (the last, if `last`); `TopK` counts NaN as the greatest.
//! - Integer division by zero and shifts by the width or more give 0.

mod array;
mod contract;
mod control;
#[cfg(feature = "products")]
mod fast;
mod index;
mod indices;
mod map;
mod par;
mod prepared;
#[cfg(feature = "products")]
mod quick;
mod raised;
mod reduce;
mod scalar;
#[cfg(feature = "products")]
mod smooth;
mod view;

use crate::graph::{Computed, Graph, Node, NodeId, TensorType, Value};
use crate::op::{Op, show};
use crate::optional;
use crate::poly::Dim;
use crate::symbols::{self, Solution};
use crate::tensor::Tensor;
pub(crate) use index::Index;
pub use indices::{Found, OutOfRange, OutOfRanges};
pub use prepared::Prepared;

pub use scalar::{binary_scalar, bitcast_scalar, cast_scalar, unary_scalar};

use array::Array;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The maximum number of elements of a tensor.
pub const MAX_ELEMENTS: usize = 1 << 31;
/// The maximum number of iterations of one while or scan.
pub const MAX_ITERATIONS: usize = 1 << 24;
/// The maximum number of loop iterations in constant folding, where the user cannot raise the limit.
const CONSTANT_ITERATIONS: u64 = 1 << 20;
/// The work that each node counts for in addition to its elements.
const NODE: u64 = 32;
/// The average work that one iteration of a loop may take, in elements computed or products summed.
const ITERATION_WORK: u64 = 1 << 16;

/// The limits of an evaluation.
///
/// ```
/// use wgfc_ir::eval::{Limits, evaluate_within};
/// # let graph = wgfc_ir::text::parse("graph () -> () {}").unwrap();
/// # let inputs = Default::default();
/// let limits = Limits { bytes: 1 << 30, ..Limits::default() };
/// let outputs = evaluate_within(&graph, &inputs, limits);
/// # assert_eq!(outputs.map(|o| o.len()).ok(), Some(0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The bytes of the tensors that are alive at one time, with 8 bytes for each element of a tensor that is being
    /// computed.
    pub bytes: u64,
    /// The total work: the number of elements computed and products summed, plus a constant for each node.
    pub work: u64,
    /// The total number of loop iterations, where those of an inner loop count each time that it runs; on average each
    /// may take 65,536 elements of work. A loop of known length that would exceed the limit is refused before it
    /// begins or, if its work exceeds it, after its first iteration.
    pub iterations: u64,
}

/// The progress of an evaluation, which another thread may read.
///
/// ```
/// use std::sync::Arc;
/// use wgfc_ir::eval::{Limits, Progress, StateValues, evaluate_watched};
/// # let graph = wgfc_ir::text::parse("graph () -> () {}").unwrap();
/// # let inputs = Default::default();
/// let progress = Arc::new(Progress::default());
/// // Another thread may read `progress` meanwhile.
/// let mut states = StateValues::default();
/// evaluate_watched(&graph, &inputs, &mut states, Limits::default(), &progress).unwrap();
/// assert_eq!(progress.done(), progress.nodes());
/// ```
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    nodes: AtomicU64,
    iterations: Arc<AtomicU64>,
}

impl Progress {
    /// The number of nodes of the graph that have been evaluated.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
    /// The number of nodes of the graph, without those of loop bodies and branches.
    pub fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed)
    }
    /// The number of loop iterations that have begun.
    pub fn iterations(&self) -> u64 {
        self.iterations.load(Ordering::Relaxed)
    }
}

impl Default for Limits {
    /// 8 GiB, with unlimited work and iterations.
    fn default() -> Limits {
        Limits { bytes: 8 << 30, work: u64::MAX, iterations: u64::MAX }
    }
}

/// The reason for which a graph cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct EvalError {
    /// The name of the model's node that the error is about, or of the graph's node if that has none; `None` if it is
    /// not about a node.
    pub node: Option<String>,
    /// The reason, meant to follow the node's name.
    pub message: String,
}

impl EvalError {
    /// An error that is not about a node.
    pub fn new(message: String) -> EvalError {
        EvalError { node: None, message }
    }
    fn at(message: String) -> EvalError {
        EvalError { node: None, message }
    }
    fn in_node(self, n: &Node) -> EvalError {
        let node = format!("{} ({})", n.label(), n.op.name());
        EvalError {
            // For an error in a subgraph, `node` is the inner node.
            message: match &self.node {
                Some(inner) => format!("in node \"{inner}\": {}", self.message),
                None => self.message,
            },
            node: Some(node),
        }
    }
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            Some(n) => write!(f, "node \"{n}\": {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// The values of symbols, and the remaining budget.
#[derive(Clone, Debug, Default)]
pub(crate) struct Env {
    symbols: BTreeMap<Arc<str>, i64>,
    /// The indices out of range, if they are to be recorded.
    found: Option<Arc<Mutex<Found>>>,
    limits: Limits,
    /// Whether products are summed in order, as they always are without threads and vector units.
    #[cfg_attr(not(feature = "products"), expect(dead_code, reason = "as said"))]
    in_order: bool,
    /// The constants of the graph that is evaluated, if they were converted before.
    constants: Option<Arc<HashMap<NodeId, Array>>>,
    /// Whether speed counts more than the last bits: products are evaluated with their views, and functions of f32 are polynomials.
    quick: bool,
    /// The bytes of the tensors that are alive.
    held: u64,
    worked: Arc<AtomicU64>,
    iterated: Arc<AtomicU64>,
    /// The work done in loops, if this is the environment of a loop body.
    looped: Option<Arc<AtomicU64>>,
    /// Receives the progress, if this is the environment of the whole graph.
    progress: Option<Arc<Progress>>,
    /// The number of times that this body is evaluated in the enclosing loops of known length.
    times: Option<u64>,
}

impl Env {
    /// Gives a symbol its value.
    pub(crate) fn set(&mut self, name: &str, value: i64) {
        self.symbols.insert(name.into(), value);
    }
    fn symbol(&self, name: &str) -> Option<i64> {
        self.symbols.get(name).copied()
    }
    fn value(&self, d: &Dim) -> Option<i64> {
        d.eval_syms(&|s| self.symbol(s))
    }
    pub(crate) fn dim(&self, d: &Dim) -> Result<usize, EvalError> {
        match self.value(d) {
            Some(v) => usize::try_from(v).map_err(|_| EvalError::at(format!("dimension `{d}` is {v}"))),
            None => {
                let unknown: Vec<String> = d
                    .symbols()
                    .iter()
                    .filter(|s| self.symbol(s).is_none())
                    .map(|s| format!("`{s}`"))
                    .collect();
                Err(EvalError::at(if unknown.is_empty() {
                    format!("dimension `{d}` overflows or divides by zero")
                } else {
                    format!("dimension `{d}` depends on {}, which no input determines", unknown.join(", "))
                }))
            }
        }
    }
    fn shape(&self, s: &[Dim]) -> Result<Vec<usize>, EvalError> {
        s.iter().map(|d| self.dim(d)).collect()
    }
    fn numel(&self, shape: &[usize]) -> Result<usize, EvalError> {
        let n = crate::tensor::checked_numel(shape).filter(|n| *n <= MAX_ELEMENTS).ok_or_else(|| {
            EvalError::at(format!("a tensor of shape {shape:?} has more than {MAX_ELEMENTS} elements"))
        })?;
        self.room(n).map_err(|e| EvalError::at(format!("a tensor of shape {shape:?}: {}", e.message)))?;
        self.spend(n as u64)?;
        Ok(n)
    }
    /// Fails unless there is memory for `n` more elements.
    fn room(&self, n: usize) -> Result<(), EvalError> {
        let bytes = 8 * n as u64;
        let limit = self.limits.bytes;
        if self.held.saturating_add(bytes) > limit {
            let mb = |b: u64| b >> 20;
            return Err(EvalError::at(format!(
                "needs up to {} MB beside the {} MB that are in use; the evaluator may use {} MB",
                mb(bytes),
                mb(self.held),
                mb(limit)
            )));
        }
        // Reserves the memory without touching it and releases it again, so that a failure is reported here.
        if n > 1 << 20 && Vec::<u64>::new().try_reserve_exact(n).is_err() {
            return Err(EvalError::at(format!("there is no memory for {} MB", bytes >> 20)));
        }
        Ok(())
    }
    /// Counts work against the limit.
    fn spend(&self, work: u64) -> Result<(), EvalError> {
        let before = self.worked.fetch_add(work, Ordering::Relaxed);
        if before.saturating_add(work) > self.limits.work {
            return Err(EvalError::at("the evaluation takes longer than it may".into()));
        }
        if let Some(looped) = &self.looped {
            let before = looped.fetch_add(work, Ordering::Relaxed);
            if before.saturating_add(work) > self.loop_work() {
                return Err(self.too_much("more elements in loops"));
            }
        }
        Ok(())
    }
    /// The environment of the body of a loop of `length` iterations, `None` if that is unknown. Fails if the loop
    /// exceeds the limit.
    fn of_loop(&self, length: Option<usize>) -> Result<Env, EvalError> {
        let times = self.times.unwrap_or(1).saturating_mul(length.unwrap_or(1) as u64);
        if times > self.limits.iterations {
            return Err(self.too_many(&format!("{times} iterations of nested loops")));
        }
        let looped = Some(self.looped.clone().unwrap_or_default());
        Ok(Env { times: Some(times), looped, ..self.clone() })
    }
    /// The work done in loops so far.
    fn looped(&self) -> u64 {
        self.looped.as_ref().map_or(0, |l| l.load(Ordering::Relaxed))
    }
    /// Fails unless each iteration of the loop of known length with this environment may do this much work.
    fn foresee(&self, work: u64) -> Result<(), EvalError> {
        match self.times.unwrap_or(1).saturating_mul(work) <= self.loop_work() {
            true => Ok(()),
            false => Err(self.too_much(&format!(
                "{} iterations of loops that make {work} elements each",
                self.times.unwrap_or(1)
            ))),
        }
    }
    fn loop_work(&self) -> u64 {
        self.limits.iterations.saturating_mul(ITERATION_WORK)
    }
    fn too_much(&self, what: &str) -> EvalError {
        EvalError::at(format!(
            "{what} are asked for; the evaluator runs at most {} of {ITERATION_WORK} elements",
            self.limits.iterations
        ))
    }
    fn too_many(&self, what: &str) -> EvalError {
        EvalError::at(format!("{what} are asked for; the evaluator runs at most {}", self.limits.iterations))
    }
    fn iteration(&self, i: usize) -> Result<(), EvalError> {
        self.spend(1)?;
        if self.iterated.fetch_add(1, Ordering::Relaxed) >= self.limits.iterations {
            return Err(self.too_many("more iterations of loops"));
        }
        if i < MAX_ITERATIONS {
            return Ok(());
        }
        Err(EvalError::at(format!("more than {MAX_ITERATIONS} iterations")))
    }

    /// Determines the one unknown symbol in which `d = actual` is linear. `Ok(true)` if the equation holds then,
    /// `Ok(false)` if too many symbols are unknown.
    fn solve(&mut self, d: &Dim, actual: i64) -> Result<bool, EvalError> {
        match (self.value(d), symbols::solve(d, actual, &|s| self.symbol(s))) {
            (Some(v), _) if v != actual => Err(EvalError::at(format!("`{d}` is {v} and must be {actual}"))),
            (Some(_), _) => Ok(true),
            (None, Solution::Open) => Ok(false),
            (None, Solution::Never(name)) => {
                Err(EvalError::at(format!("no `{name}` makes `{d}` equal to {actual}")))
            }
            (None, Solution::Is(name, value)) => {
                self.symbols.insert(name, value);
                Ok(true)
            }
        }
    }

    /// Binds and checks the symbols of `ty` against an actual shape.
    fn unify(&mut self, ty: &TensorType, shape: &[usize]) -> Result<(), EvalError> {
        if ty.rank() != shape.len() {
            return Err(EvalError::at(format!("expected shape {}, got {shape:?}", show(&ty.shape))));
        }
        for (d, n) in ty.shape.iter().zip(shape) {
            let n = i64::try_from(*n).unwrap_or(i64::MAX);
            self.solve(d, n).map_err(|e| {
                EvalError::at(format!("expected shape {}, got {shape:?}: {e}", show(&ty.shape)))
            })?;
        }
        Ok(())
    }
}

/// Evaluates `graph` on named inputs and returns its outputs in order. States have their initial contents.
///
/// Input shapes bind the symbols: an extent that is linear in one unknown symbol determines it.
///
/// ```
/// use wgfc_ir::{Border, Builder, DType, Dim, Graph, ReduceOp, Tensor, TensorType, eval::evaluate};
/// let mut graph = Graph::new();
/// let x = graph.add_input("x", TensorType::new(DType::F32, [Dim::sym("n")]));
/// let value = Builder::new(&mut graph, "sum").reduce(ReduceOp::Sum, x, &[0], false)?;
/// graph.outputs.push(Border { name: "y".into(), value });
/// // The input's shape gives the symbol its value.
/// let x = Tensor::from_f32(vec![3], &[1.0, 2.0, 4.0]);
/// let outputs = evaluate(&graph, &[("x".to_owned(), x)].into()).map_err(|e| e.to_string())?;
/// assert_eq!(outputs[0].to_f32s(), Some(vec![7.0]));
/// # Ok::<(), String>(())
/// ```
pub fn evaluate(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Result<Vec<Tensor>, EvalError> {
    evaluate_from(graph, inputs, &mut StateValues::default())
}

/// [`evaluate`], which fails if it exceeds `limits`.
pub fn evaluate_within(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    limits: Limits,
) -> Result<Vec<Tensor>, EvalError> {
    evaluate_from_within(graph, inputs, &mut StateValues::default(), limits)
}

/// [`evaluate`] for constant folding: the result has the same bits on every machine, because products are summed in
/// order, which is slower.
pub fn evaluate_in_order(graph: &Graph) -> Result<Vec<Tensor>, EvalError> {
    let limits = Limits { iterations: CONSTANT_ITERATIONS, ..Limits::default() };
    let env = Env { in_order: true, limits, ..Env::default() };
    evaluate_in(graph, &BTreeMap::new(), &mut StateValues::default(), env)
}

/// The contents of the states of a graph between two runs.
#[derive(Clone, Debug, Default)]
pub struct StateValues {
    /// The tensors by name, with the capacity's shape; a missing one has its initial contents.
    pub tensors: BTreeMap<String, Tensor>,
    /// The symbolic capacities by symbol. All must be present.
    pub capacities: BTreeMap<String, i64>,
    /// The number of positions in use, by symbol; a missing one is 0.
    pub lengths: BTreeMap<String, i64>,
}

/// [`evaluate`] with states, which are updated for the next run if it succeeds and left unchanged if it fails.
pub fn evaluate_from(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    states: &mut StateValues,
) -> Result<Vec<Tensor>, EvalError> {
    evaluate_in(graph, inputs, states, Env::default())
}

/// [`evaluate_from`], which fails if it exceeds `limits`.
pub fn evaluate_from_within(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    states: &mut StateValues,
    limits: Limits,
) -> Result<Vec<Tensor>, EvalError> {
    evaluate_in(graph, inputs, states, Env { limits, ..Env::default() })
}

/// [`evaluate_from_within`] with progress reports for another thread. `progress` is reset first.
pub fn evaluate_watched(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    states: &mut StateValues,
    limits: Limits,
    progress: &Arc<Progress>,
) -> Result<Vec<Tensor>, EvalError> {
    for n in [&progress.done, &progress.nodes, &progress.iterations] {
        n.store(0, Ordering::Relaxed);
    }
    let iterated = progress.iterations.clone();
    let env = Env { limits, iterated, progress: Some(progress.clone()), ..Env::default() };
    evaluate_in(graph, inputs, states, env)
}

/// [`evaluate`] that also returns the indices of gathers and scatters that are out of range, by node.
pub fn evaluate_checked(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<(Vec<Tensor>, Found), EvalError> {
    let found = Arc::new(Mutex::new(Found::new()));
    let env = Env { found: Some(found.clone()), ..Env::default() };
    let outputs = evaluate_in(graph, inputs, &mut StateValues::default(), env)?;
    let found = found.lock().map(|mut f| std::mem::take(&mut *f)).unwrap_or_default();
    Ok((outputs, found))
}

fn evaluate_in(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    states: &mut StateValues,
    mut env: Env,
) -> Result<Vec<Tensor>, EvalError> {
    let mut args = vec![];
    for b in &graph.inputs {
        let ty = graph.ty(b.value);
        let t = match (inputs.get(&*b.name), graph.optional.contains_key(&b.name)) {
            (Some(t), false) => Cow::Borrowed(t),
            (None, false) => {
                return Err(EvalError::at(format!("input \"{}\" of type {ty} is not given", b.name)));
            }
            (t, true) => Cow::Owned(optional_input(&b.name, ty, t)?),
        };
        env.numel(&t.shape)?;
        let a = Array::from_tensor(&t)
            .ok_or_else(|| EvalError::at(format!("the values of input \"{}\" are not known", b.name)))?;
        args.push(a);
    }
    if let Some(name) = inputs.keys().find(|n| !graph.inputs.iter().any(|b| *b.name == ***n)) {
        let known: Vec<String> = graph.inputs.iter().map(|b| format!("\"{}\"", b.name)).collect();
        return Err(EvalError::at(format!(
            "there is no input \"{name}\"; the inputs are {}",
            known.join(", ")
        )));
    }
    let mut before = vec![];
    for (symbol, capacity) in &states.capacities {
        env.set(symbol, *capacity);
    }
    for s in &graph.states {
        let ty = graph.ty(s.before);
        let shape = env.shape(&ty.shape)?;
        env.numel(&shape)?;
        let array = match states.tensors.get(&*s.name).or(s.initial.as_deref()) {
            None => Array::from_tensor(&Tensor::zeros(ty.dtype, shape)),
            Some(t) if t.dtype == ty.dtype && t.shape == shape => Array::from_tensor(t),
            Some(t) => {
                return Err(EvalError::at(format!("state \"{}\" must be {ty}, not {t:?}", s.name)));
            }
        };
        before.push(array.ok_or_else(|| {
            EvalError::at(format!(
                "the values of state \"{}\" are not known: the model was read without its weights",
                s.name
            ))
        })?);
        if let Some(grow) = &s.growth {
            env.set(&grow.length, states.lengths.get(&*grow.length).copied().unwrap_or(0));
        }
    }
    bind(graph, &args, &mut env)?;
    for (b, a) in graph.inputs.iter().zip(&args) {
        let Some(full) = graph.optional.get(&b.name) else { continue };
        let full = full.iter().map(|d| env.value(d).unwrap_or(0)).collect::<Vec<_>>();
        if let Some(axis) = optional::misfit(&a.shape, &full) {
            let message = format!("input \"{}\" of shape {:?} is not broadcast to {full:?}", b.name, a.shape);
            return Err(EvalError::at(format!("{message}: axis {axis} differs")));
        }
    }
    let mut lengths = states.lengths.clone();
    for s in &graph.states {
        let Some(grow) = &s.growth else { continue };
        let length = states.lengths.get(&*grow.length).copied().unwrap_or(0);
        let length = length.saturating_add(env.value(&grow.by).unwrap_or(i64::MAX));
        let capacity = env.value(&graph.ty(s.before).shape[grow.axis]).unwrap_or(0);
        if length > capacity {
            return Err(EvalError::at(format!(
                "state \"{}\" would hold {length} positions and has room for {capacity}",
                s.name
            )));
        }
        lengths.insert(grow.length.to_string(), length);
    }
    let out = evaluate_all(graph, args, before, &mut env)?;
    let mut tensors = out.iter().map(|a| a.to_tensor().map_err(EvalError::at));
    let outputs = tensors.by_ref().take(graph.outputs.len()).collect::<Result<Vec<_>, _>>()?;
    let after = tensors.collect::<Result<Vec<_>, _>>()?;
    states.tensors = graph.states.iter().map(|s| s.name.to_string()).zip(after).collect();
    states.lengths = lengths;
    Ok(outputs)
}

/// The tensor with which an optional input is evaluated: see [`optional`].
fn optional_input(name: &str, ty: &TensorType, given: Option<&Tensor>) -> Result<Tensor, EvalError> {
    let shape = optional::shape(given.map(|t| t.shape.as_slice()), ty.rank());
    let shape =
        shape.ok_or_else(|| EvalError::at(format!("input \"{name}\" has more than {} axes", ty.rank())))?;
    Ok(match given {
        Some(t) if t.numel() > 0 => Tensor { shape, ..t.clone() },
        _ => Tensor::zeros(ty.dtype, shape),
    })
}

/// Evaluates a graph without states on its inputs, in order.
fn evaluate_arrays(graph: &Graph, args: Vec<Array>, outer: &Env) -> Result<Vec<Array>, EvalError> {
    evaluate_all(graph, args, vec![], &mut Env { progress: None, constants: None, ..outer.clone() })
}

/// Evaluates a graph on its inputs and states, in order, and returns its [`Graph::results`].
fn evaluate_all(
    graph: &Graph,
    args: Vec<Array>,
    states: Vec<Array>,
    env: &mut Env,
) -> Result<Vec<Array>, EvalError> {
    if args.len() != graph.inputs.len() {
        return Err(EvalError::at(format!("{} inputs expected, got {}", graph.inputs.len(), args.len())));
    }
    if states.len() != graph.states.len() {
        return Err(EvalError::at("a graph with states is no subgraph".into()));
    }
    bind(graph, &args, env)?;
    let order = graph.topo().map_err(|n| EvalError::at("is on a cycle".into()).in_node(graph.node(n)))?;
    let mut reads: HashMap<Value, usize> = HashMap::new();
    let read = order.iter().flat_map(|n| graph.node(*n).inputs.iter()).copied();
    for v in read.chain(graph.results()) {
        *reads.entry(v).or_insert(0) += 1;
    }
    let given = graph.inputs.iter().map(|b| b.value).zip(args);
    let kept = graph.states.iter().map(|s| s.before).zip(states);
    let mut values: HashMap<Value, Array> = given.chain(kept).collect();
    env.held = values.values().fold(env.held, |n, a| n.saturating_add(a.bytes()));
    for c in &graph.computed {
        if let Some(a) = values.get(&c.value) {
            compute(c, Some(a), env)?;
        }
    }
    if let Some(p) = &env.progress {
        p.nodes.store(order.len() as u64, Ordering::Relaxed);
    }
    let deferred = deferred(graph, &order, &reads, env);
    for id in order {
        if let Some(p) = &env.progress {
            p.done.fetch_add(1, Ordering::Relaxed);
        }
        let node = graph.node(id);
        if matches!(node.op, Op::Input) || (0..node.outputs.len()).all(|p| !reads.contains_key(&port(id, p)))
        {
            continue;
        }
        if deferred.contains(&id) {
            continue;
        }
        let outputs = env
            .spend(NODE)
            .and_then(|()| outputs(graph, id, &deferred, &mut values, env))
            .map_err(|e| e.in_node(node))?;
        for c in graph.computed.iter().filter(|c| c.value.node == id) {
            compute(c, outputs.get(c.value.port as usize), env).map_err(|e| e.in_node(node))?;
        }
        for (p, a) in outputs.into_iter().enumerate() {
            if reads.contains_key(&port(id, p)) {
                env.held = env.held.saturating_add(a.bytes());
                values.insert(port(id, p), a);
            }
        }
        let through = node.inputs.iter().filter(|v| deferred.contains(&v.node));
        for v in node.inputs.iter().chain(through.flat_map(|v| &graph.node(v.node).inputs)) {
            if let Some(n) = reads.get_mut(v) {
                *n -= 1;
                if *n == 0 {
                    let gone = values.remove(v).map_or(0, |a| a.bytes());
                    env.held = env.held.saturating_sub(gone);
                }
            }
        }
    }
    for c in &graph.constraints {
        check_constraint(c, env)?;
    }
    let missing = || EvalError::at("a result has no value".into());
    graph.results().map(|v| values.get(&v).cloned().ok_or_else(missing)).collect()
}

/// The views that products evaluate.
fn deferred(graph: &Graph, order: &[NodeId], reads: &HashMap<Value, usize>, env: &Env) -> HashSet<NodeId> {
    #[cfg(feature = "products")]
    if env.quick {
        return quick::deferred(graph, order, reads);
    }
    let _ = (graph, order, reads, env);
    HashSet::new()
}

/// The results of a node.
fn outputs(
    graph: &Graph,
    id: NodeId,
    deferred: &HashSet<NodeId>,
    values: &mut HashMap<Value, Array>,
    env: &mut Env,
) -> Result<Vec<Array>, EvalError> {
    let node = graph.node(id);
    if let Some(constant) = env.constants.as_ref().and_then(|c| c.get(&id)) {
        return Ok(vec![constant.clone()]);
    }
    #[cfg(feature = "products")]
    if env.quick
        && let Some(product) = quick::product(graph, node, deferred, values, env)?
    {
        env.unify(&node.outputs[0], &product.shape)?;
        return Ok(vec![product]);
    }
    for v in node.inputs.iter().filter(|v| deferred.contains(&v.node)) {
        let view = step(graph.node(v.node), values, env)?;
        values.extend(view.into_iter().map(|a| (*v, a)));
    }
    step(node, values, env)
}

fn port(node: NodeId, port: usize) -> Value {
    Value { node, port: port as u32 }
}

/// Assigns a computed symbol its value.
fn compute(c: &Computed, value: Option<&Array>, env: &mut Env) -> Result<(), EvalError> {
    let value = value.and_then(Array::ints).and_then(|v| v.first().copied());
    let value = value.ok_or_else(|| EvalError::at(format!("`{}` is not computed", c.symbol)))?;
    let bound = env.value(&c.bound);
    if value < 0 || bound.is_none_or(|b| value > b) {
        let most = match (c.bound.as_const(), bound) {
            (None, Some(most)) => format!("{} (here {most})", c.bound),
            _ => c.bound.to_string(),
        };
        let why =
            format!("`{}` is computed to be {value}, and must be at least 0 and at most {most}", c.symbol);
        return Err(EvalError::at(why));
    }
    env.set(&c.symbol, value);
    Ok(())
}

fn check_constraint(c: &crate::graph::Constraint, env: &Env) -> Result<(), EvalError> {
    if let (Some(a), Some(b)) = (env.value(&c.a), env.value(&c.b))
        && a != b
    {
        let (relation, left, right) = crate::suggest::relation(&c.a, &c.b);
        let value = |d: &Dim| env.value(d).unwrap_or(-1);
        let (a, b) = (left.to_string(), right.to_string());
        let needs = crate::suggest::needed(relation, (&a, value(left)), (&b, value(right)));
        return Err(match c.origin.is_empty() {
            true => EvalError { node: None, message: format!("it {needs}") },
            false => EvalError { node: Some(c.origin.to_string()), message: needs },
        });
    }
    Ok(())
}

/// Binds the symbols that input shapes and constraints determine.
fn bind(graph: &Graph, args: &[Array], env: &mut Env) -> Result<(), EvalError> {
    let constraints: Vec<Dim> =
        graph.constraints.iter().filter(|c| !graph.is_late(c)).map(|c| &c.a - &c.b).collect();
    let mut extents: Vec<(&Dim, i64)> = vec![];
    for (b, a) in graph.inputs.iter().zip(args) {
        let ty = graph.ty(b.value);
        if a.dtype != ty.dtype || a.shape.len() != ty.rank() {
            let message = format!("input \"{}\": expected type {ty}, got {}{:?}", b.name, a.dtype, a.shape);
            return Err(EvalError::at(message));
        }
        let sizes = a.shape.iter().map(|n| i64::try_from(*n).unwrap_or(i64::MAX));
        extents.extend(ty.shape.iter().zip(sizes));
    }
    extents.extend(constraints.iter().map(|d| (d, 0)));
    for found in symbols::bind(&extents, &|s| env.symbol(s)) {
        env.symbols.insert(found.symbol, found.value);
    }
    for (b, a) in graph.inputs.iter().zip(args) {
        let unified = env.unify(graph.ty(b.value), &a.shape);
        unified.map_err(|e| EvalError::at(format!("input \"{}\": {e}", b.name)))?;
    }
    graph.constraints.iter().try_for_each(|c| check_constraint(c, env))
}

/// Evaluates one node and checks its results against their declared types.
fn step(node: &Node, values: &HashMap<Value, Array>, env: &mut Env) -> Result<Vec<Array>, EvalError> {
    let args = node
        .inputs
        .iter()
        .map(|v| values.get(v).ok_or_else(|| EvalError::at("an operand has no value".into())))
        .collect::<Result<Vec<&Array>, _>>()?;
    precheck(node, &args)?;
    if let Some(mut found) = env.found.as_ref().and_then(|f| f.lock().ok()) {
        indices::look(node, &args, env, &mut found);
    }
    // Checks the memory for results whose shapes are known in advance.
    for ty in &node.outputs {
        if let Ok(shape) = env.shape(&ty.shape) {
            env.numel(&shape)?;
        }
    }
    let outputs = apply(&node.op, &args, env)?;
    if outputs.len() < node.outputs.len() {
        return Err(EvalError::at(format!("{} results, expected {}", outputs.len(), node.outputs.len())));
    }
    for (a, ty) in outputs.iter().zip(&node.outputs) {
        if a.dtype != ty.dtype {
            return Err(EvalError::at(format!("a result of type {}, expected {ty}", a.dtype)));
        }
        env.unify(ty, &a.shape)?;
    }
    Ok(outputs)
}

/// Checks the number and ranks of operands, on which the evaluation of operators relies.
fn precheck(node: &Node, args: &[&Array]) -> Result<(), EvalError> {
    let types: Vec<TensorType> = args
        .iter()
        .map(|a| TensorType::new(a.dtype, a.shape.iter().map(|d| Dim::from(*d)).collect::<Vec<_>>()))
        .collect();
    let refs: Vec<&TensorType> = types.iter().collect();
    match &node.op {
        // Only the environment has the values of these operators' symbols.
        Op::Input | Op::Const(_) | Op::Map { .. } | Op::If { .. } | Op::While { .. } | Op::Scan { .. } => {
            Ok(())
        }
        op => op.infer(&refs).map(|_| ()).map_err(EvalError::at),
    }
}

fn apply(op: &Op, args: &[&Array], env: &Env) -> Result<Vec<Array>, EvalError> {
    let one = |a: Array| Ok(vec![a]);
    match op {
        Op::Input => Err(EvalError::at("is an input without a value".into())),
        Op::Const(t) => {
            let a = Array::from_tensor(t).ok_or_else(|| {
                EvalError::at("its values are not known: the model was read without its weights".into())
            })?;
            one(a)
        }
        Op::Map { body, shape } => one(map::map(body, env.shape(shape)?, args, env)?),
        Op::View { shape, index, fill } => one(view::view(args[0], env.shape(shape)?, index, *fill, env)?),
        Op::Reduce { op, axes } => one(reduce::reduce(args[0], *op, axes, env)?),
        Op::ArgReduce { op, axis, last } => one(reduce::arg_reduce(args[0], *op, *axis, *last)?),
        Op::PrefixScan { op, axis, exclusive, reverse } => {
            one(reduce::prefix_scan(args[0], *op, *axis, *exclusive, *reverse))
        }
        Op::Contract(c) => one(contract::contract(c, args[0], args[1], env)?),
        Op::Gather { shape, index } => one(view::gather(args, env.shape(shape)?, index, env)?),
        Op::Scatter { reduce, index } => one(view::scatter(args, *reduce, index, env)?),
        Op::Place { shape, index } => one(view::place(args, env.shape(shape)?, index, env)?),
        Op::Concat { axis } => one(view::concat(args, *axis, env)?),
        Op::TopK { axis, k, largest } => reduce::top_k(args[0], *axis, env.dim(k)?, *largest, env),
        Op::Sort { axis, part, keep, .. } => one(reduce::sort(args[0], *axis, (*part, *keep), env)?),
        Op::Softmax { axis, log } => one(raised::softmax(args[0], *axis, *log, env)),
        Op::Norm { kind, axes, epsilon } => {
            one(raised::norm(args[0], *kind, axes, f32::from_bits(*epsilon), env))
        }
        Op::Attention { scale, empty_is_zero } => {
            one(raised::attention(args, f32::from_bits(*scale), *empty_is_zero, env)?)
        }
        Op::If { then_branch, else_branch } => control::branch(args, then_branch, else_branch, env),
        Op::While { body, carried } => control::repeat(args, body, *carried, env),
        Op::Scan { body, carried, scanned, reverse_inputs, reverse_outputs } => {
            control::scan(args, body, (*carried, *scanned), reverse_inputs, reverse_outputs, env)
        }
    }
}

#[cfg(test)]
mod tests;
