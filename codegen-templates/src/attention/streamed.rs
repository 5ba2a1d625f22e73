//! Attention of few queries: keys and values are streamed through registers.

use super::{Problem, Window};
use crate::{Local, RenderError, Template, render};
use serde::Serialize;

/// How the template that streams keys is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// Invocations of a workgroup, a multiple of `subgroup`.
    pub threads: u32,
    /// Threads that share a key, a power of two, at most `subgroup`.
    pub lanes: u32,
    /// Keys that they take at a time.
    pub unroll: u32,
    /// Heads of a workgroup, which share keys and values; no more than `lanes`, as each thread has the scores of one.
    pub heads: u32,
    /// Elements of a load of keys and values: 4, 8 of f16, or 16 of 8 bits.
    pub run: u32,
    /// Invocations of a subgroup.
    pub subgroup: u32,
}

/// Parameters of the template that streams keys.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// Extents, mask and scale of the attention.
    pub problem: Problem,
    /// The sizes of its parts.
    pub stream: Stream,
    /// The width of queries and keys.
    pub depth: u32,
    /// Whether queries are loaded by fours; keys and values are loaded by runs.
    pub query_fours: bool,
    /// The number of parts of the keys, as in [`Decode::parts`](super::Decode::parts); `None` for whole results.
    pub parts: Option<String>,
    /// The keys that query `s` sees, if the mask is 0 for them and hides all others.
    pub window: Option<Window>,
}

/// Four elements of a line that a thread has.
#[derive(Serialize)]
struct Quad {
    number: u32,
    /// The load that brings it, and which of its quads it is.
    run: u32,
    quad: u32,
    half: &'static str,
}

#[derive(Serialize)]
struct StreamedSlots<'a> {
    #[serde(flatten)]
    problem: &'a Problem,
    threads: u32,
    lanes: u32,
    slots: u32,
    step: u32,
    heads: Vec<u32>,
    unroll: Vec<u32>,
    key_runs: Vec<u32>,
    value_runs: Vec<u32>,
    key_quads: Vec<Quad>,
    own_quads: Vec<Quad>,
    run_quads: u32,
    value_quads: u32,
    query_fours: bool,
    parts: &'a str,
    parted: bool,
    window: Option<String>,
    subgroups: u32,
    /// The heads, up to a power of two.
    turned: u32,
    turns: Vec<Turn>,
    /// A thread's part of its head's score of each key behind the turns, to be added up over `lane_shuffles`.
    whole: Vec<String>,
    lane_shuffles: Vec<u32>,
    slot_shuffles: Vec<u32>,
    local: Local,
}

/// Threads exchange parts of scores, so that each has half of the heads as before, of twice as many threads.
#[derive(Serialize)]
struct Turn {
    /// The bit in which the numbers of those threads differ.
    mask: u32,
    parts: Vec<Part>,
}

/// The part that a thread keeps: `low` where its bit is 0, else `high`.
#[derive(Serialize)]
struct Part {
    name: String,
    low: String,
    high: String,
}

/// All exchanges between `lanes` threads, and what each has then of its head's scores, for each key.
fn turns(heads: u32, lanes: u32, unroll: u32) -> (Vec<Turn>, Vec<String>) {
    let score = |u: u32, h: u32| if h < heads { format!("score{h}_{u}") } else { "0.0".into() };
    let padded = heads.next_power_of_two();
    let mut of_keys: Vec<Vec<String>> =
        (0..unroll).map(|u| (0..padded).map(|h| score(u, h)).collect()).collect();
    let mut turns = vec![];
    for level in 1..=padded.trailing_zeros() {
        let mut parts = vec![];
        for (u, own) in of_keys.iter_mut().enumerate() {
            let (low, high) = own.split_at(own.len() / 2);
            let part = |(i, (low, high)): (usize, (&String, &String))| Part {
                name: format!("turned{level}_{i}_{u}"),
                low: low.clone(),
                high: high.clone(),
            };
            let new: Vec<Part> = low.iter().zip(high).enumerate().map(part).collect();
            *own = new.iter().map(|p| p.name.clone()).collect();
            parts.extend(new);
        }
        turns.push(Turn { mask: lanes >> level, parts });
    }
    (turns, of_keys.into_iter().flatten().collect())
}

impl Template for StreamedSlots<'_> {
    const NAME: &'static str = "attention_streamed.wgsl";
}

impl Streamed {
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let Stream { threads, lanes, unroll, heads, run, subgroup } = self.stream;
        let runs = |width: u32| width / run / lanes;
        let quads = |width: u32| -> Vec<Quad> {
            let per = run / 4;
            let half = |i: u32| match (per, i % per) {
                (1, _) => "",
                (2, 0) => ".low",
                (2, _) => ".high",
                (_, 0) => ".first",
                (_, 1) => ".second",
                (_, 2) => ".third",
                _ => ".fourth",
            };
            (0..runs(width) * per)
                .map(|i| Quad { number: i, run: i / per, quad: i % per, half: half(i) })
                .collect()
        };
        let masks =
            |from: u32, to: u32| (from.trailing_zeros()..to.trailing_zeros()).map(|i| 1 << i).collect();
        let slots = threads / lanes;
        let turned = heads.next_power_of_two();
        let (turns, whole) = turns(heads, lanes, unroll);
        render(&StreamedSlots {
            problem: &self.problem,
            threads,
            lanes,
            slots,
            step: slots * unroll,
            heads: (0..heads).collect(),
            unroll: (0..unroll).collect(),
            key_runs: (0..runs(self.depth)).collect(),
            value_runs: (0..runs(self.problem.e)).collect(),
            key_quads: quads(self.depth),
            own_quads: quads(self.problem.e),
            run_quads: run / 4,
            value_quads: self.problem.e / 4,
            query_fours: self.query_fours,
            parts: self.parts.as_deref().unwrap_or("1"),
            parted: self.parts.is_some(),
            window: self.window.as_ref().map(Window::text),
            subgroups: threads / subgroup,
            turned,
            turns,
            whole,
            lane_shuffles: masks(1, lanes / turned),
            slot_shuffles: masks(lanes, subgroup),
            local: Local::new(subgroup),
        })
    }
}
