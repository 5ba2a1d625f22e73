//! The figures of a program: its kernels, memory traffic, lower bounds of its time, and memory.
//!
//! ```
//! use wgfc::inspect::{Report, Roof, Summary};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
//! let program = wgfc::compile_file(&path, &wgfc::Options::default())?;
//! let roof = Roof::of(&wgfc::cache::read_profile("portable")?.speeds, None, None);
//! let summary = Summary::new(&program, &[("batch".to_owned(), 32)], roof)?;
//! let report = Report::new("mlp", &program, &summary, roof, "portable");
//! assert_eq!(report.json()["dims"]["batch"], 32);
//! assert!(report.text().starts_with("mlp at batch = 32\n"));
//! # Ok(()) }
//! ```

mod figures;
mod fused;
mod words;

pub use figures::{Figures, Roof, Summary, family, operators};
pub use fused::{FamilyOperators, fused, fused_text};
pub use words::{bytes_text, clean, flops_text, is_control, known_bytes_text, nodes_of, table, time_text};

use crate::Program;
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::program::{Kept, Quantised, State};
use wgfc_ir::{Dim, TensorType};

/// The report on a program.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The name of the program.
    pub name: &'a str,
    /// The program.
    pub program: &'a Program,
    /// Its figures.
    pub summary: &'a Summary,
    /// The peaks from which time bounds are computed.
    pub roof: Roof,
    /// The name of the device profile from which the peaks are taken.
    pub profile: &'a str,
    /// The options that replace parts of these peaks.
    pub instead: &'a [&'a str],
    /// Whether the program was compiled for this profile too.
    pub chosen: bool,
    /// Whether the text lists every dispatch.
    pub dispatches: bool,
}

impl<'a> Report<'a> {
    /// The report on a program, with the peaks of a device profile.
    pub fn new(
        name: &'a str,
        program: &'a Program,
        summary: &'a Summary,
        roof: Roof,
        profile: &'a str,
    ) -> Report<'a> {
        Report { name, program, summary, roof, profile, instead: &[], chosen: false, dispatches: false }
    }

    /// The report as text: a table of kernel families, and totals.
    pub fn text(&self) -> String {
        let Report { name, program, summary: s, roof, .. } = *self;
        let bandwidth = roof.bandwidth;
        let time = |bytes: u64| time_text(bytes as f64 / bandwidth);
        let mut out = format!("{name}{}\n\n", s.at());
        let heading = ["family", "kernels", "dispatches", "nodes", "bytes", "flops", "at least", "bound by"];
        let mut rows = vec![heading.map(String::from).to_vec()];
        for (name, f) in families(program, s) {
            rows.push(vec![
                name,
                f.kernels.len().to_string(),
                f.dispatches.to_string(),
                f.nodes.to_string(),
                bytes_text(f.bytes),
                flops_text(f.flops),
                time_text(f.seconds),
                bound_text(&f),
            ]);
        }
        out += &table(&rows, &[false, true, true, true, true, true, true, false]);
        if self.dispatches {
            out.push('\n');
            let heading = [
                "dispatch",
                "kernel",
                "family",
                "bytes",
                "flops",
                "at least",
                "bound by",
                "writes",
                "operators",
                "nodes",
            ];
            let mut rows = vec![heading.map(String::from).to_vec()];
            for (i, (d, f)) in program.dispatches.iter().zip(&s.dispatches).enumerate() {
                let k = program.kernels.get(d.kernel);
                rows.push(vec![
                    i.to_string(),
                    k.map(|k| k.name.clone()).unwrap_or_default(),
                    family(program, i).to_owned(),
                    bytes_text(f.bytes),
                    flops_text(f.flops),
                    time_text(f.seconds),
                    f.bound.into(),
                    nodes_of(&d.writes, 2),
                    operators(program, i).join(", "),
                    nodes_of(&d.nodes, 4),
                ]);
            }
            out += &table(&rows, &[true, false, false, true, true, true, false, false, false, false]);
        }
        out += &format!(
            "\n  {} nodes in {} dispatches of {} kernels\n",
            program.stats.model_nodes,
            grouped(s.runs()),
            program.kernels.len()
        );
        let computed: BTreeSet<&String> = program.dispatches.iter().flat_map(|d| &d.nodes).collect();
        if let Some(rest) = program.stats.model_nodes.checked_sub(computed.len()).filter(|n| *n > 0) {
            out += &format!(
                "  {rest} of the nodes need no dispatch: constants, shapes, what is read in place\n"
            );
        }
        let mut said = "";
        for r in &program.repeats {
            let of = program.dispatches.get(r.first).map(|d| nodes_of(&d.nodes, 1)).unwrap_or_default();
            let why = if r.why == said { "as before" } else { &r.why };
            let times = match &r.until {
                Some(u) => format!("rounds, up to {}, of", grouped(u.rounds)),
                None => format!("{} ×", r.times),
            };
            out += &format!("  {times} {} of them are the loop of {of}: {why}\n", r.count);
            said = &r.why;
        }
        if program.repeats.iter().any(|r| r.until.is_some()) {
            out += "  of loops in rounds one round counts\n";
        }
        out += &format!(
            "  bytes moved: {} fused, {} unfused ({} and {} bytes)\n",
            bytes_text(s.bytes),
            bytes_text(s.bytes_unfused),
            grouped(s.bytes),
            grouped(s.bytes_unfused)
        );
        out += &format!(
            "  time bound by memory at {} GB/s: {} fused, {} unfused; with arithmetic at {} TFLOP/s: {} fused\n",
            number(roof.bandwidth / (1u64 << 30) as f64),
            time(s.bytes),
            time(s.bytes_unfused),
            number(roof.peak / 1e12),
            time_text(s.seconds)
        );
        let chosen = if self.chosen { "time bounds and choices" } else { "time bounds" };
        out += &format!("  {chosen} by the device profile: {}\n", profile_text(self.profile, self.instead));
        out += &format!(
            "  peak activation memory: {}, {} × the largest live set ({})\n",
            bytes_text(s.activations),
            ratio(s.activations as f64, s.live as f64),
            bytes_text(s.live)
        );
        if !program.computed.is_empty() {
            let sizes: Vec<String> =
                program.computed.iter().map(|c| format!("{} up to {}", c.symbol, c.bound)).collect();
            out += &format!("  sizes that a run computes, counted at their most: {}\n", sizes.join(", "));
        }
        out += &proofs(program);
        let absent =
            if program.stats.weights_absent { ", absent: this can be inspected, not run" } else { "" };
        out += &format!("  weights: {}{absent}\n", bytes_text(s.weights));
        out += &halved(program);
        out += &program.stats.quantised.map(|q| format!("  {}\n", quantised_text(&q))).unwrap_or_default();
        out += &states(program);
        out += "  (MB is 2^20, GB 2^30 bytes; every operand of a dispatch counts once)\n";
        out
    }

    /// The report as a JSON object, with further figures, in whole numbers and seconds.
    pub fn json(&self) -> serde_json::Value {
        let Report { program, summary: s, roof, .. } = *self;
        let bandwidth = roof.bandwidth;
        let families: Vec<serde_json::Value> = families(program, s)
            .iter()
            .map(|(name, f)| {
                serde_json::json!({
                    "family": name, "kernels": f.kernels.len(), "dispatches": f.dispatches, "nodes": f.nodes,
                    "bytes": f.bytes, "flops": f.flops, "seconds": f.seconds, "bound": bound_text(f),
                })
            })
            .collect();
        let dispatches: Vec<serde_json::Value> = program
            .dispatches
            .iter()
            .zip(&s.dispatches)
            .enumerate()
            .map(|(i, (d, f))| {
                let k = program.kernels.get(d.kernel);
                serde_json::json!({
                    "kernel": k.map(|k| &k.name), "family": family(program, i), "nodes": d.nodes,
                    "operators": operators(program, i), "writes": d.writes,
                    "bytes": f.bytes, "flops": f.flops, "seconds": f.seconds, "bound": f.bound,
                })
            })
            .collect();
        let unproven: Option<BTreeMap<&String, &[String]>> = program
            .kernels
            .iter()
            .enumerate()
            .map(|(i, k)| Some((&k.name, program.proof.unproven(i)?)))
            .filter(|of| of.is_none_or(|(_, accesses)| !accesses.is_empty()))
            .collect();
        serde_json::json!({
            "nodes": program.stats.model_nodes,
            "kernels": program.kernels.len(),
            "kernels_proven_in_bounds": program.proof.count(),
            "accesses_not_proven_in_bounds": unproven,
            "dispatches": s.runs(),
            "repeats": program.repeats,
            "dims": s.dims,
            "dims_not_given": s.assumed,
            "bytes_moved": s.bytes,
            "bytes_moved_unfused": s.bytes_unfused,
            "flops": s.flops,
            "device_profile": self.profile,
            "bandwidth_bytes_per_second": bandwidth,
            "flops_per_second": roof.peak,
            "seconds_memory_bound": s.bytes as f64 / bandwidth,
            "seconds_memory_bound_unfused": s.bytes_unfused as f64 / bandwidth,
            "seconds_bound": s.seconds,
            "peak_activation_bytes": s.activations,
            "largest_live_bytes": s.live,
            "weight_bytes": s.weights,
            "weights_absent": program.stats.weights_absent,
            "states": program.states,
            "computed": program.computed.iter().map(|c| (c.symbol.clone(), c.bound.to_string())).collect::<BTreeMap<_, _>>(),
            "warnings": program.stats.warnings,
            "f16_in_memory": program.stats.halved,
            "quantised_weights": program.stats.quantised,
            "families": families,
            "dispatch_list": dispatches,
        })
    }
}

/// The device profile of the time bounds, and the options that replace parts of it.
///
/// ```
/// let text = wgfc::inspect::profile_text("discrete", &["--gb-per-s 900"]);
/// assert_eq!(text, "discrete, but --gb-per-s 900");
/// ```
pub fn profile_text(profile: &str, instead: &[&str]) -> String {
    if instead.is_empty() { profile.to_owned() } else { format!("{profile}, but {}", instead.join(" and ")) }
}

/// `v` rounded to four significant digits.
fn number(v: f64) -> f64 {
    format!("{v:.3e}").parse().unwrap_or(v)
}

/// The totals of the dispatches of one kernel family.
#[derive(Default)]
struct Family {
    kernels: BTreeSet<usize>,
    dispatches: usize,
    nodes: usize,
    bytes: u64,
    flops: u64,
    seconds: f64,
    memory_bound: f64,
}

fn families(program: &Program, summary: &Summary) -> Vec<(String, Family)> {
    let mut all: BTreeMap<&str, Family> = BTreeMap::new();
    // A node that several dispatches compute is counted for the first of them.
    let mut seen = BTreeSet::new();
    for (i, (d, f)) in program.dispatches.iter().zip(&summary.dispatches).enumerate() {
        let family = all.entry(family(program, i)).or_default();
        family.kernels.insert(d.kernel);
        family.dispatches += f.times as usize;
        family.nodes += d.nodes.iter().filter(|n| seen.insert(*n)).count();
        family.bytes = family.bytes.saturating_add(f.bytes);
        family.flops = family.flops.saturating_add(f.flops);
        family.seconds += f.seconds;
        if f.bound == "memory" {
            family.memory_bound += f.seconds;
        }
    }
    let mut all: Vec<(String, Family)> = all.into_iter().map(|(n, f)| (n.to_owned(), f)).collect();
    all.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    all
}

fn bound_text(f: &Family) -> String {
    let share = if f.seconds > 0.0 { f.memory_bound / f.seconds } else { 1.0 };
    match share {
        s if s > 0.99 => "memory".into(),
        s if s < 0.01 => "arithmetic".into(),
        s => format!("{:.0}% memory", 100.0 * s),
    }
}

fn ratio(a: f64, b: f64) -> String {
    if b > 0.0 { format!("{:.2}", a / b) } else { "1.00".into() }
}

/// A description of what quantising the weights saves and how large its error is.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// use wgfc::compiler::WeightBits;
/// use wgfc::{Options, inspect::quantised_text};
/// let options = Options { weights: WeightBits::Q8, ..Options::default() };
/// if let Some(q) = &wgfc::compile_file(&path, &options)?.stats.quantised {
///     println!("{}", quantised_text(q));
/// }
/// # Ok(()) }
/// ```
pub fn quantised_text(q: &Quantised) -> String {
    let (before, now) = (bytes_text(q.bytes_before), bytes_text(q.bytes));
    let error = match q.worst {
        // Absent weights have no error.
        0.0 => String::new(),
        worst => format!(", relative error {:.1e} ({worst:.1e} of the worst)", q.relative_error),
    };
    format!("{} weights in {} bits: {now} instead of {before}{error}", q.weights, q.bits)
}

/// The most f32 tensors that are listed for each reason.
const KEPT: usize = 4;

/// The numbers of tensors that are f16 in memory, and the tensors that stay f32, by reason.
fn halved(program: &Program) -> String {
    let Some(h) = &program.stats.halved else { return String::new() };
    let mut out = format!(
        "  f16 in memory: {} weights, {} tensors between kernels, {} caches; f32: {} small ones",
        h.weights, h.between, h.states, h.small
    );
    let mut reasons: Vec<(&str, Vec<&Kept>)> = vec![];
    for k in &h.kept {
        match reasons.iter_mut().find(|(why, _)| *why == k.why) {
            Some((_, all)) => all.push(k),
            None => reasons.push((&k.why, vec![k])),
        }
    }
    out += if reasons.is_empty() { "\n" } else { ", and\n" };
    for (why, all) in reasons {
        let one = |k: &&Kept| format!("{} of {}", k.tensor, nodes_of(&k.nodes, 2));
        let mut names: Vec<String> = all.iter().take(KEPT).map(one).collect();
        if let Some(more) = all.len().checked_sub(KEPT).filter(|n| *n > 0) {
            names.push(format!("and {more} more"));
        }
        out += &format!("    {why}: {}\n", names.join("; "));
    }
    out
}

/// The most states that are listed one by one.
const STATES: usize = 12;

/// The states that stay on the device from run to run, and their initial values.
fn states(program: &Program) -> String {
    let bytes = |s: &State| {
        let n = s.shape.iter().product::<Dim>().as_const().and_then(|n| usize::try_from(n).ok());
        n.map_or(0, |n| s.dtype.bytes_for(n) as u64)
    };
    let all = &program.states;
    if all.is_empty() {
        return String::new();
    }
    let begun: Vec<&State> = all.iter().filter(|s| s.initial.is_some()).collect();
    let sum = |of: &mut dyn Iterator<Item = &State>| of.map(bytes).fold(0, u64::saturating_add);
    let mut out = format!("  states: {} ({} of fixed size)", all.len(), bytes_text(sum(&mut all.iter())));
    if !begun.is_empty() {
        let of = bytes_text(sum(&mut begun.iter().copied()));
        out += &format!("; {} begin with contents ({of} of weights.safetensors)", begun.len());
    }
    out.push('\n');
    for s in all.iter().take(STATES) {
        let grows = s.growth.as_ref().map(|g| format!(", grows along axis {} by {} a run", g.axis, g.by));
        let initial = s.initial.as_ref().map(|w| format!(", initial: weight \"{}\"", w));
        let ty = TensorType::new(s.dtype, s.shape.clone());
        let rest = grows.or(initial).unwrap_or_default();
        out += &format!("    \"{}\": {ty}{rest}\n", s.name);
    }
    if all.len() > STATES {
        out += &format!("    and {} others\n", all.len() - STATES);
    }
    out
}

/// The number of kernels that are proven to stay inside their buffers, and the accesses of the others that are not proven.
fn proofs(program: &Program) -> String {
    let all = program.kernels.len();
    if (0..all).any(|k| program.proof.unproven(k).is_none()) {
        return "  a compiled folder carries no proofs: its kernels run with checks of bounds (run --trust: without)\n"
            .into();
    }
    let mut out =
        format!("  {} of {all} kernels are proven to stay inside their buffers\n", program.proof.count());
    for (i, k) in program.kernels.iter().enumerate() {
        for access in program.proof.unproven(i).unwrap_or_default() {
            out += &format!("    not {}, which runs with checks: {access}\n", k.name);
        }
    }
    out
}

/// A number with separators between thousands, as in `536,870,912`.
fn grouped(v: u64) -> String {
    let digits = v.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_say_what_they_are_at_first() {
        let state = |name: &str, initial: Option<&str>| State {
            name: name.into(),
            dtype: wgfc_ir::DType::F16,
            shape: vec![Dim::from(3i64), Dim::from(4i64)],
            buffer: 0,
            growth: None,
            initial: initial.map(str::to_owned),
        };
        assert_eq!(states(&Program::default()), "");
        let program =
            Program { states: vec![state("m", None), state("w", Some("w.2"))], ..Program::default() };
        let text = states(&program);
        assert!(text.contains("states: 2 (48 B of fixed size); 1 begin with contents (24 B of"), "{text}");
        assert!(text.contains("\"m\": f16[3, 4]\n"), "{text}");
        assert!(text.contains("\"w\": f16[3, 4], initial: weight \"w.2\""), "{text}");
        let many = Program { states: vec![state("m", None); STATES + 3], ..Program::default() };
        assert!(states(&many).contains("and 3 others"));
    }

    #[test]
    fn digits_are_grouped() {
        for (v, s) in [(0, "0"), (999, "999"), (1000, "1,000"), (536_870_912, "536,870,912")] {
            assert_eq!(grouped(v), s);
        }
    }
}
