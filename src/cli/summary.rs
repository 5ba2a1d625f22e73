//! The figures of a program at given dimensions, and how they are written for people.

use super::terminal::clean;
use std::collections::{BTreeMap, BTreeSet};
use wgfc::compiler::device::Speeds;
use wgfc::ir::memory;
use wgfc::ir::program::BufferKind;
use wgfc::ir::{Dim, Program};
use wgfc::{Error, Problem};

/// What a roof is made of. GB is 2^30 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Roof {
    /// Memory bandwidth, bytes a second.
    pub bandwidth: f64,
    /// Floating-point operations a second.
    pub peak: f64,
    /// The same of kernels on matrix units.
    pub matrix_peak: f64,
}

impl Roof {
    /// A device's; GB/s and TFLOP/s come before them.
    pub fn of(speeds: &Speeds, gb_per_s: Option<f64>, tflops: Option<f64>) -> Roof {
        let peak = tflops.map(|t| t * 1e12);
        Roof {
            bandwidth: gb_per_s.map_or(speeds.bandwidth, |g| g * (1u64 << 30) as f64),
            peak: peak.unwrap_or(speeds.flops_f32),
            matrix_peak: peak.unwrap_or(speeds.flops_matrix),
        }
    }
    /// The roof above a dispatch.
    pub fn above(self, program: &Program, kernel: usize) -> Roof {
        let matrix = |f: &String| f == "wgpu-cooperative-matrix";
        let on_units = program.kernels.get(kernel).is_some_and(|k| k.features.iter().any(matrix));
        Roof { peak: if on_units { self.matrix_peak } else { self.peak }, ..self }
    }
    /// The shortest time for this traffic and arithmetic, in seconds.
    pub fn seconds(&self, bytes: u64, flops: u64) -> f64 {
        (bytes as f64 / self.bandwidth).max(flops as f64 / self.peak)
    }
    /// Whether memory or arithmetic limits a kernel, in a word.
    pub fn bound(&self, bytes: u64, flops: u64) -> &'static str {
        if bytes as f64 / self.bandwidth >= flops as f64 / self.peak { "memory" } else { "arithmetic" }
    }
}

/// One dispatch in numbers; of one that repeats, all its times together.
#[derive(Clone, Debug)]
pub struct Figures {
    /// How often it runs.
    pub times: u64,
    /// Bytes it reads and writes at least.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
    /// The shortest time under the roof, in seconds.
    pub seconds: f64,
    /// What limits it: `memory` or `arithmetic`.
    pub bound: &'static str,
}

/// A program in numbers.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The values of the symbols.
    pub dims: BTreeMap<String, i64>,
    /// Symbols without a given value, which are taken as 1.
    pub assumed: Vec<String>,
    /// One entry a dispatch.
    pub dispatches: Vec<Figures>,
    /// Sum over the dispatches.
    pub bytes: u64,
    /// The same, were every node a dispatch of its own.
    pub bytes_unfused: u64,
    /// Sum over the dispatches.
    pub flops: u64,
    /// Sum of the time bounds, in seconds.
    pub seconds: f64,
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the arenas.
    pub activations: u64,
    /// Bytes alive together at the most: no layout can do with less.
    pub live: u64,
}

impl Summary {
    /// Evaluates every size of `program` where its symbols have the values `given`, else 1.
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
            dims: dims.clone(),
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
    /// At which dimensions: ` at batch = 1 (not given), seq = 128`. Empty where there are none.
    pub fn at(&self) -> String {
        let one = |(name, v): (&String, &i64)| {
            let assumed = if self.assumed.contains(name) { " (not given)" } else { "" };
            format!("{name} = {v}{assumed}")
        };
        let all: Vec<String> = self.dims.iter().map(one).collect();
        if all.is_empty() { String::new() } else { format!(" at {}", all.join(", ")) }
    }
    /// Dispatches of a run.
    pub fn runs(&self) -> u64 {
        self.dispatches.iter().map(|d| d.times).fold(0, u64::saturating_add)
    }
}

fn eval(d: &Dim, dims: &BTreeMap<String, i64>) -> Option<u64> {
    u64::try_from(d.eval_syms(&|s| dims.get(s).copied())?).ok()
}

/// `batch = 1, seq = 128`.
pub fn list_dims(dims: &BTreeMap<String, i64>) -> String {
    let v: Vec<String> = dims.iter().map(|(k, v)| format!("{k} = {v}")).collect();
    if v.is_empty() { "these dimensions".into() } else { v.join(", ") }
}

/// The value of each symbol: as given, else 1; and which are not given.
fn bind_dims(program: &Program, given: &[(String, i64)]) -> (BTreeMap<String, i64>, Vec<String>) {
    let mut dims: BTreeMap<String, i64> = BTreeMap::new();
    let mut defaulted = Vec::new();
    for s in program.symbols.iter().filter(|s| !program.computed.iter().any(|c| c.symbol == **s)) {
        match given.iter().rev().find(|(n, _)| n == s) {
            Some((_, v)) => dims.insert(s.clone(), *v),
            None => {
                defaulted.push(s.clone());
                dims.insert(s.clone(), 1)
            }
        };
    }
    (dims, defaulted)
}

/// What kind of kernel a dispatch runs. Products that compute a convolution are called so.
pub fn family(program: &Program, dispatch: usize) -> &str {
    let Some(d) = program.dispatches.get(dispatch) else { return "" };
    let family = program.kernels.get(d.kernel).map_or("", |k| k.family.as_str());
    let convolves = |o: &&String| o.rsplit('.').next().is_some_and(|o| o.contains("Conv"));
    let conv = d.nodes.iter().filter_map(|n| program.stats.operators.get(n)).any(|o| convolves(&o));
    if conv && family == "matmul" { "conv" } else { family }
}

/// The operators of a dispatch, each once, in order of its nodes: `Conv, Relu`.
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

/// The names of nodes, at most `most` of them.
pub fn nodes_of(nodes: &[String], most: usize) -> String {
    let shown: Vec<&str> = nodes.iter().take(most).map(String::as_str).collect();
    let more = nodes.len() - shown.len();
    let list = shown.join(" + ");
    if more > 0 { format!("{list} + {more} more") } else { list }
}

/// `512 MB`, `12.5 kB`: three digits, MB being 2^20 bytes.
pub fn bytes_text(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "kB", "MB", "GB", "TB"])
}

/// The most memory that this process has held, in bytes, the pages of mapped files included; Linux says so.
pub fn peak_host_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// [`bytes_text`], or a dash.
pub fn known_bytes_text(bytes: Option<u64>) -> String {
    bytes.map_or("-".into(), bytes_text)
}

/// A number of operations for people: `8.18 GFLOP`.
pub fn flops_text(flops: u64) -> String {
    scaled(flops as f64, 1000.0, &["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"])
}

/// `1.6 ms`: two digits.
pub fn time_text(seconds: f64) -> String {
    let (v, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 || s == 0.0 => (s * 1e6, "µs"),
        s => (s * 1e9, "ns"),
    };
    match v {
        // 0.39 ms reads better than 390 µs beside a time of milliseconds.
        v if unit == "µs" && v >= 299.5 => format!("{:.1} ms", v / 1e3),
        v if v >= 99.5 => format!("{v:.0} {unit}"),
        v => format!("{v:.1} {unit}"),
    }
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut v, mut i) = (value, 0);
    while v >= step * 0.9995 && i + 1 < units.len() {
        v /= step;
        i += 1;
    }
    let unit = units[i];
    match v {
        v if i == 0 => format!("{v:.0} {unit}"),
        v if v >= 99.95 => format!("{v:.0} {unit}"),
        v if v >= 9.995 => format!("{v:.1} {unit}"),
        v => format!("{v:.2} {unit}"),
    }
}

/// Rows in aligned columns; `right` says which columns are numbers. The first row is the heading.
pub fn table(rows: &[Vec<String>], right: &[bool]) -> String {
    // Names may hold control characters, which take more room once they are shown.
    let one_line = |cell: &String| clean(&cell.replace('\n', "\\n").replace('\t', "\\t")).into_owned();
    let rows: Vec<Vec<String>> = rows.iter().map(|r| r.iter().map(one_line).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let mut line = String::from(" ");
        for (c, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[c] - cell.chars().count());
            line.push(' ');
            if right.get(c).copied().unwrap_or(false) {
                line += &pad;
                line += cell;
            } else {
                line += cell;
                line += &pad;
            }
            line.push(' ');
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(bytes_text(512 << 20), "512 MB");
        assert_eq!(bytes_text((128 << 20) + 12_288), "128 MB");
        assert_eq!(bytes_text(0), "0 B");
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(1 << 20), "1.00 MB");
        assert_eq!(bytes_text(97 << 20 | 1 << 19), "97.5 MB");
        assert_eq!(known_bytes_text(None), "-");
        assert!(peak_host_bytes().is_none_or(|b| b > 1 << 20));
        assert_eq!(flops_text(8_178_000_000), "8.18 GFLOP");
        let roof = Roof::of(&Speeds::PORTABLE, Some(320.0), Some(1.0));
        assert_eq!(time_text(roof.seconds(512 << 20, 0)), "1.6 ms");
        assert_eq!(time_text(roof.seconds(128 << 20, 0)), "0.4 ms");
        assert_eq!(time_text(12.3e-6), "12.3 µs");
    }
}
