//! Attention of few queries: a workgroup each.

use super::{Problem, Window};
use crate::{Local, RenderError, Template, render};
use serde::Serialize;

/// Parameters of the template with a workgroup a query.
#[derive(Clone, Debug)]
pub struct Decode {
    /// Extents, mask and scale of the attention.
    pub problem: Problem,
    /// Invocations of a workgroup: a power of two, at least 16 and `e`.
    pub threads: u32,
    /// An upper bound of `d`, the size of the array that holds a query.
    pub depth_max: u32,
    /// The number of parts of the keys, a workgroup each, as WGSL. Their sums are stored undivided, with the part's highest score and
    /// the sum of its exponentials; readers combine them. `None` for whole results.
    pub parts: Option<String>,
    /// Threads of a subgroup, a power of two; 1 where there are none.
    pub subgroup: u32,
    /// The keys that query `s` sees, if the mask is 0 for them and hides all others.
    pub window: Option<Window>,
}

/// A value of all threads made of one of each.
#[derive(Serialize)]
struct Fold {
    name: &'static str,
    subgroup: &'static str,
    of: &'static str,
    all: &'static str,
}

/// Threads that share a score.
const LANES: u32 = 4;
/// Loads that a thread has under way.
const UNROLL: u32 = 16;

#[derive(Serialize)]
struct DecodeSlots<'a> {
    #[serde(flatten)]
    problem: &'a Problem,
    threads: u32,
    lanes: u32,
    columns: u32,
    slices: u32,
    depth_max: u32,
    parts: &'a str,
    parted: bool,
    window: Option<String>,
    unroll: u32,
    unroll_list: Vec<u32>,
    local: Local,
    subgroup: u32,
    folded: u32,
    folds: [Fold; 2],
}

impl Template for DecodeSlots<'_> {
    const NAME: &'static str = "attention_decode.wgsl";
}

impl Decode {
    fn slices(&self) -> u32 {
        self.threads / self.problem.e.next_power_of_two()
    }
    /// Values left when each subgroup, or each of 16 threads, has made one of its own.
    fn folded(&self) -> u32 {
        if self.subgroup > 1 { self.threads / self.subgroup } else { 16 }
    }
    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> u32 {
        (self.depth_max + self.threads * LANES + self.threads + self.slices() * UNROLL + self.folded()) * 4
    }
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        render(&DecodeSlots {
            problem: &self.problem,
            threads: self.threads,
            lanes: LANES,
            columns: self.problem.e.next_power_of_two(),
            slices: self.slices(),
            depth_max: self.depth_max,
            parts: self.parts.as_deref().unwrap_or("1"),
            parted: self.parts.is_some(),
            window: self.window.as_ref().map(Window::text),
            unroll: UNROLL,
            unroll_list: (0..UNROLL).collect(),
            local: Local::new(self.subgroup),
            subgroup: self.subgroup,
            folded: self.folded(),
            folds: [
                Fold {
                    name: "largest",
                    subgroup: "subgroupMax",
                    of: "max(r, shares[i])",
                    all: "max(r, folded[i])",
                },
                Fold { name: "sum_of", subgroup: "subgroupAdd", of: "r + shares[i]", all: "r + folded[i]" },
            ],
        })
    }
}
