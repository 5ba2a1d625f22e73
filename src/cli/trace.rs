//! Timelines of runs as files in the trace-event format, which Perfetto (ui.perfetto.dev) and chrome://tracing show.
//!
//! The format is described in "Trace Event Format" (Google, 2016): complete events (`ph` X) with times in microseconds.

use serde_json::{Value, json};
use wgfc::runtime::timeline::{Lane, Span, Timeline};

/// The file's text.
pub fn events(t: &Timeline, model: &str, device: &str) -> String {
    let thread = |lane| match lane {
        Lane::Processor => 1,
        Lane::Device => 2,
    };
    let named = |kind: &str, thread: u32, name: &str| json!({"ph": "M", "pid": 1, "tid": thread, "name": kind, "args": {"name": name}});
    let mut all: Vec<Value> = vec![
        named("process_name", 1, model),
        named("thread_name", 1, "processor"),
        named("thread_name", 2, device),
    ];
    all.extend(t.spans.iter().map(|s| {
        json!({
            "ph": "X", "pid": 1, "tid": thread(s.lane), "name": s.name,
            "ts": s.begin_ns / 1e3, "dur": (s.end_ns - s.begin_ns).max(0.0) / 1e3,
            "args": {"run": s.run, "nodes": s.nodes.join(", ")},
        })
    }));
    json!({
        "traceEvents": all,
        "displayTimeUnit": "ns",
        "otherData": {"device_uncertainty_us": t.uncertainty_ns / 1e3},
    })
    .to_string()
}

/// How much of the time the processor and the device are at work, and both at once.
pub struct Shares {
    /// From the beginning of the first span to the end of the last.
    pub ns: f64,
    pub processor: f64,
    pub device: f64,
    pub both: f64,
}

impl Shares {
    /// The shares of a timeline.
    pub fn of(t: &Timeline) -> Shares {
        let of = |lane| merged(t.spans.iter().filter(move |s| s.lane == lane));
        let (processor, device) = (of(Lane::Processor), of(Lane::Device));
        let all = merged(t.spans.iter());
        let ns = match (all.first(), all.last()) {
            (Some(first), Some(last)) => (last.1 - first.0).max(1.0),
            _ => 1.0,
        };
        let length = |spans: &[(f64, f64)]| spans.iter().map(|s| s.1 - s.0).sum::<f64>();
        // Both cover what their lengths have more than that of the time in which at least one is at work.
        let both = length(&processor) + length(&device) - length(&all);
        Shares { ns, processor: length(&processor) / ns, device: length(&device) / ns, both: both / ns }
    }
}

/// The spans as intervals that do not overlap, in order.
fn merged<'a>(spans: impl Iterator<Item = &'a Span>) -> Vec<(f64, f64)> {
    let mut all: Vec<(f64, f64)> = spans.map(|s| (s.begin_ns, s.end_ns.max(s.begin_ns))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut out: Vec<(f64, f64)> = vec![];
    for (begin, end) in all {
        match out.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(end),
            _ => out.push((begin, end)),
        }
    }
    out
}
