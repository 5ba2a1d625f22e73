//! The figures of a program at given dimensions.

use crate::{Error, Problem, Program};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_compiler::device::Speeds;
use wgfc_ir::program::BufferKind;
use wgfc_ir::wgsl::{CHROMIUM_MATRICES, WGPU_MATRICES};
use wgfc_ir::{Dim, memory};

/// The peak rates of the roofline model. GB is 2^30 bytes.
///
/// ```
/// use wgfc::compiler::device::Speeds;
/// use wgfc::inspect::Roof;
/// let roof = Roof::of(&Speeds::DISCRETE, Some(1000.0), Some(40.0));
/// // A kernel that moves much and computes little waits for memory.
/// assert_eq!(roof.bound(1 << 30, 1 << 20), "memory");
/// assert_eq!(roof.bound(1 << 20, 1 << 50), "arithmetic");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Roof {
    /// Memory bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Floating-point operations per second.
    pub peak: f64,
    /// Floating-point operations per second of kernels that use matrix units.
    pub matrix_peak: f64,
}

impl Roof {
    /// The peaks of a device. `gb_per_s` and `tflops` replace them if given.
    pub fn of(speeds: &Speeds, gb_per_s: Option<f64>, tflops: Option<f64>) -> Roof {
        let peak = tflops.map(|t| t * 1e12);
        Roof {
            bandwidth: gb_per_s.map_or(speeds.bandwidth, |g| g * (1u64 << 30) as f64),
            peak: peak.unwrap_or(speeds.flops_f32),
            matrix_peak: peak.unwrap_or(speeds.flops_matrix),
        }
    }
    /// The peaks that apply to a kernel: a kernel with matrix units has another peak of arithmetic.
    pub fn above(self, program: &Program, kernel: usize) -> Roof {
        let matrix = |f: &String| f == WGPU_MATRICES || f == CHROMIUM_MATRICES;
        let on_units = program.kernels.get(kernel).is_some_and(|k| k.features.iter().any(matrix));
        Roof { peak: if on_units { self.matrix_peak } else { self.peak }, ..self }
    }
    /// The lower bound of the time for this traffic and arithmetic, in seconds.
    pub fn seconds(&self, bytes: u64, flops: u64) -> f64 {
        (bytes as f64 / self.bandwidth).max(flops as f64 / self.peak)
    }
    /// The resource that limits a kernel: `memory` or `arithmetic`.
    pub fn bound(&self, bytes: u64, flops: u64) -> &'static str {
        if bytes as f64 / self.bandwidth >= flops as f64 / self.peak { "memory" } else { "arithmetic" }
    }
}

/// The figures of one dispatch, summed over its repetitions.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let program = wgfc::compile_file(&path, &Default::default())?;
/// # let roof = wgfc::inspect::Roof::of(&wgfc::compiler::device::Speeds::PORTABLE, None, None);
/// use wgfc::inspect::{Figures, Summary};
/// let summary = Summary::new(&program, &[], roof)?;
/// let busiest: Option<&Figures> = summary.dispatches.iter().max_by_key(|f| f.bytes);
/// println!("{:?} bytes in one dispatch", busiest.map(|f| f.bytes));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Figures {
    /// The number of times that it runs.
    pub times: u64,
    /// The least bytes that it reads and writes.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
    /// The lower bound of its time, in seconds.
    pub seconds: f64,
    /// The resource that limits it: `memory` or `arithmetic`.
    pub bound: &'static str,
}

/// The figures of a program.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let program = wgfc::compile_file(&path, &Default::default())?;
/// use wgfc::compiler::device::Speeds;
/// use wgfc::inspect::{Roof, Summary};
/// let roof = Roof::of(&Speeds::PORTABLE, None, None);
/// let summary = Summary::new(&program, &[("batch".to_owned(), 32)], roof)?;
/// assert_eq!(summary.at(), " at batch = 32");
/// assert_eq!(summary.runs(), program.dispatches.len() as u64);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Summary {
    /// The values of the symbols.
    pub dims: BTreeMap<String, i64>,
    /// Symbols without a given value, which have the value 1.
    pub assumed: Vec<String>,
    /// One entry for each dispatch.
    pub dispatches: Vec<Figures>,
    /// The bytes of all dispatches.
    pub bytes: u64,
    /// The bytes that would be moved if every node were a dispatch of its own.
    pub bytes_unfused: u64,
    /// The floating-point operations of all dispatches.
    pub flops: u64,
    /// The sum of the lower bounds of all dispatches, in seconds.
    pub seconds: f64,
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the arenas.
    pub activations: u64,
    /// The largest number of bytes that are live at the same time: no layout can need less.
    pub live: u64,
}

impl Summary {
    /// Evaluates all sizes of `program` for the values `given` of its symbols; missing ones are 1. Optional inputs are left
    /// out.
    pub fn new(program: &Program, given: &[(String, i64)], roof: Roof) -> Result<Summary, Error> {
        let (dims, assumed) = &bind_dims(program, given);
        let size = |d: &Dim, what: &str| -> Result<u64, Error> {
            eval(d, dims).ok_or_else(|| {
                let m = format!("{what} is {d}, which has no valid value at {}", list_dims(dims));
                Error::Usage(vec![Problem::with_help(m, "give other values with --dim")])
            })
        };
        let mut dispatches = Vec::with_capacity(program.dispatches.len());
        for (i, d) in program.dispatches.iter().enumerate() {
            let times = size(&program.times(i), &format!("how often dispatch {i} runs"))?;
            let all = |n: u64| n.saturating_mul(times);
            let bytes = all(size(&d.bytes, &format!("the traffic of dispatch {i}"))?);
            let flops = all(size(&d.flops, &format!("the arithmetic of dispatch {i}"))?);
            let roof = roof.above(program, d.kernel);
            let (seconds, bound) = (roof.seconds(bytes, flops), roof.bound(bytes, flops));
            dispatches.push(Figures { times, bytes, flops, seconds, bound });
        }
        let mut weights = 0u64;
        let mut seen = BTreeSet::new();
        for (i, b) in program.buffers.iter().enumerate() {
            let n = size(&b.elements, &format!("the length of buffer {i}"))?;
            if let BufferKind::Weight { name } = &b.kind
                && seen.insert(name)
            {
                weights = weights
                    .saturating_add(b.dtype.bytes_for(usize::try_from(n).unwrap_or(usize::MAX)) as u64);
            }
        }
        let plan = memory::plan(program, &|s: &str| dims.get(s).copied()).map_err(|m| {
            Error::usage(
                format!("the activations cannot be laid out: {m}"),
                "give other dimensions with --dim",
            )
        })?;
        let total = |f: &dyn Fn(&Figures) -> u64| dispatches.iter().map(f).fold(0u64, u64::saturating_add);
        Ok(Summary {
            dims: dims.iter().filter(|d| !optional(program, d.0)).map(|(n, v)| (n.clone(), *v)).collect(),
            assumed: assumed.clone(),
            bytes: total(&|d| d.bytes),
            flops: total(&|d| d.flops),
            seconds: dispatches.iter().map(|d| d.seconds).sum(),
            bytes_unfused: size(&program.stats.bytes_unfused, "the unfused traffic")?,
            weights,
            activations: plan.packed(),
            live: plan.live,
            dispatches,
        })
    }
}

impl Summary {
    /// The values of the symbols as text: ` at batch = 1 (not given), seq = 128`. Empty if there are no symbols.
    pub fn at(&self) -> String {
        let one = |(name, v): (&String, &i64)| {
            let assumed = if self.assumed.contains(name) { " (not given)" } else { "" };
            format!("{name} = {v}{assumed}")
        };
        let all: Vec<String> = self.dims.iter().map(one).collect();
        if all.is_empty() { String::new() } else { format!(" at {}", all.join(", ")) }
    }
    /// The number of dispatches in a run.
    pub fn runs(&self) -> u64 {
        self.dispatches.iter().map(|d| d.times).fold(0, u64::saturating_add)
    }
}

fn eval(d: &Dim, dims: &BTreeMap<String, i64>) -> Option<u64> {
    u64::try_from(d.eval_syms(&|s| dims.get(s).copied())?).ok()
}

/// Dimensions as text: `batch = 1, seq = 128`.
pub fn list_dims(dims: &BTreeMap<String, i64>) -> String {
    let v: Vec<String> = dims.iter().map(|(k, v)| format!("{k} = {v}")).collect();
    if v.is_empty() { "these dimensions".into() } else { v.join(", ") }
}

/// The value of each symbol, 1 if it is not given, and the symbols that are not given.
fn bind_dims(program: &Program, given: &[(String, i64)]) -> (BTreeMap<String, i64>, Vec<String>) {
    let mut dims: BTreeMap<String, i64> = BTreeMap::new();
    let mut defaulted = Vec::new();
    for s in program.symbols.iter().filter(|s| !program.computed.iter().any(|c| c.symbol == **s)) {
        match given.iter().rev().find(|(n, _)| n == s) {
            Some((_, v)) => dims.insert(s.clone(), *v),
            None if optional(program, s) => dims.insert(s.clone(), 0),
            None => {
                defaulted.push(s.clone());
                dims.insert(s.clone(), 1)
            }
        };
    }
    (dims, defaulted)
}

/// Whether a symbol is an extent of an input that a run may leave out.
fn optional(program: &Program, symbol: &str) -> bool {
    let ports = program.inputs.iter().filter(|p| p.broadcast.is_some());
    ports.flat_map(|p| &p.shape).any(|d| *d == Dim::sym(symbol))
}

/// The kernel family of a dispatch. The family of a matrix product that computes a convolution is `conv`.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let program = wgfc::compile_file(&path, &Default::default())?;
/// use wgfc::inspect::{family, operators};
/// for d in 0..program.dispatches.len() {
///     println!("{}: {}", family(&program, d), operators(&program, d).join(", "));
/// }
/// # Ok(()) }
/// ```
pub fn family(program: &Program, dispatch: usize) -> &str {
    let Some(d) = program.dispatches.get(dispatch) else { return "" };
    let family = program.kernels.get(d.kernel).map_or("", |k| k.family.as_str());
    let convolves = |o: &&String| o.rsplit('.').next().is_some_and(|o| o.contains("Conv"));
    let conv = d.nodes.iter().filter_map(|n| program.stats.operators.get(n)).any(|o| convolves(&o));
    if conv && family == "matmul" { "conv" } else { family }
}

/// The operators of a dispatch's nodes, in order and without repetitions: `Conv, Relu`.
pub fn operators(program: &Program, dispatch: usize) -> Vec<&str> {
    let nodes = program.dispatches.get(dispatch).map_or(&[][..], |d| &d.nodes);
    let mut all: Vec<&str> = Vec::new();
    for o in nodes.iter().filter_map(|n| program.stats.operators.get(n)) {
        if !all.contains(&o.as_str()) {
            all.push(o);
        }
    }
    all
}
