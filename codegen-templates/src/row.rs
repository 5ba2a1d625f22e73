//! Parameters of `row.wgsl`.

use crate::{Local, Template};
use serde::Serialize;

/// A kernel that reduces rows, one pass after another, and stores results.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub extents: String,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Invocations that share a row: a power of two that divides `threads`.
    pub lanes: u32,
    /// Whether neighbouring invocations take neighbouring rows rather than the lanes of one.
    pub rows_first: bool,
    /// Consecutive lanes that combine by shuffles within a subgroup: a power of two, at most `lanes`; 1 for none.
    pub joined: u32,
    /// Number of an invocation.
    pub local: Local,
    /// Number of rows, an `i32` expression.
    pub rows: String,
    /// Whether there may be none.
    pub open: bool,
    /// Steps of a row, an `i32` expression.
    pub len: String,
    /// Neighbouring positions of a step.
    pub width: u32,
    /// Steps of one invocation, where that is a small number known in advance, else 0.
    pub steps: u32,
    /// Whether one of them may reach beyond the end of the row, or the row be beyond the last.
    pub ragged: bool,
    /// The arrays in workgroup memory through which invocations of a row combine.
    pub scratch: Vec<Scratch>,
    /// Statements over the row `v0` alone, private arrays included, indented by 4.
    pub setup: String,
    /// Loops over the row.
    pub passes: Vec<Pass>,
}

/// An array in workgroup memory, one element an invocation.
#[derive(Clone, Debug, Serialize)]
pub struct Scratch {
    /// The variable's name in the text.
    pub name: String,
    /// Type of an element; not `bool`, which drivers get wrong in workgroup memory.
    pub ty: String,
}

/// One loop over the row and what follows it.
#[derive(Clone, Debug, Serialize)]
pub struct Pass {
    /// Statements before the loop (accumulators, what does not depend on the position), indented by 4.
    pub before: String,
    /// Statements for step `v1`, indented by 8; no loop where empty.
    pub body: String,
    /// Statements behind the loop, before invocations combine, indented by 4.
    pub settle: String,
    /// Variables that the invocations of a row combine afterwards.
    pub shared: Vec<Shared>,
    /// Combines the variables `a_…` with `b_…` into the `a_…`, indented by 12.
    pub combine: String,
    /// Statements after the reduction, indented by 4.
    pub after: String,
    /// Statements done by one invocation of the row, indented by 8.
    pub once: String,
}

/// A variable that invocations combine.
#[derive(Clone, Debug, Serialize)]
pub struct Shared {
    /// The variable's name in the text.
    pub name: String,
    /// The name of its array in workgroup memory.
    pub scratch: String,
    /// Its value as an element of the array.
    pub word: String,
    /// `a_…`, the combined value, as an element of the array.
    pub joined_word: String,
    /// The function that makes a value of an element that it follows.
    pub of_word: String,
}

impl Shared {
    /// The variable `name` in the array `scratch`, where a bool is a `u32`.
    pub fn new(name: String, scratch: String, bool: bool) -> Shared {
        let word = |v: &str| if bool { format!("select(0u, 1u, {v})") } else { v.to_owned() };
        let (own, joined) = (word(&name), word(&format!("a_{name}")));
        let of_word = if bool { " != 0u".to_owned() } else { String::new() };
        Shared { name, scratch, word: own, joined_word: joined, of_word }
    }
}

impl Template for Row {
    const NAME: &'static str = "row.wgsl";
}
