//! Caches of fixed size, whose positions are counted on the host.
//!
//! An export with transformers' static cache has a state of as many positions as the export says, and an input with the positions at
//! which a run writes (`cache_position`). Nothing in the program tells how many there are. Later positions are hidden from a query
//! by the mask, which compares positions, and are written anew before they are seen: a run is undone by forgetting it.

use super::Generator;
use super::roles::Input;
use crate::Error;
use crate::model::device_error;
use wgfc_compiler::{Diagnostic, Errors};
use wgfc_ir::graph::{State, Value};
use wgfc_ir::{Dim, GatherAxis, Graph, Op};

impl Generator {
    /// The number of positions in the cache, those of runs that were started ahead of need among them.
    pub(super) fn positions(&self) -> usize {
        self.written.unwrap_or_else(|| self.decode.state_len())
    }

    /// Counts the positions that a run has written.
    pub(super) fn wrote(&mut self, positions: usize) {
        self.written = self.written.map(|w| w.saturating_add(positions));
    }

    /// Undoes runs beyond the first `positions`.
    pub(super) fn undo(&mut self, positions: usize) -> Result<(), Error> {
        match &mut self.written {
            Some(written) => *written = positions.min(*written),
            None if self.decode.state_len() > positions => {
                self.decode.rewind(positions).map_err(device_error)?;
            }
            None => {}
        }
        Ok(())
    }

    /// The advice where a cache with room for `total` positions is needed.
    pub(super) fn more_room(&self, total: usize) -> String {
        match self.written {
            Some(_) => format!(
                "ask for fewer, or export the model with a static cache of {total} positions (max_cache_len)"
            ),
            None => format!("ask for fewer, or give the cache a capacity of {total} (--capacity)"),
        }
    }
}

/// The number of positions of the states, if their size is fixed and each is written at positions that are an input; `None` if all
/// states grow.
///
/// # Errors
/// A state that neither grows nor is written so.
pub(super) fn positions(graph: &Graph, inputs: &[Input]) -> Result<Option<usize>, Errors> {
    let window = |s: &State| s.growth.as_ref().is_some_and(|g| g.by.symbols().contains(&g.length));
    let fixed: Vec<&State> = graph.states.iter().filter(|s| s.growth.is_none() || window(s)).collect();
    if fixed.is_empty() {
        return Ok(None);
    }
    let given =
        graph.inputs.iter().filter(|b| inputs.iter().any(|i| i.is_shared_positions() && *i.name == *b.name));
    let given: Vec<Value> = given.map(|b| b.value).collect();
    let (mut least, mut errors) = (i64::MAX, vec![]);
    for s in &fixed {
        match extent(graph, s, &given) {
            _ if fixed.len() < graph.states.len() => errors.push(strange(s)),
            Some(Extent::Positions(n)) => least = least.min(n),
            Some(Extent::Unread) => {}
            None => errors.push(strange(s)),
        }
    }
    match usize::try_from(least) {
        Ok(n) if errors.is_empty() && least != i64::MAX => Ok(Some(n)),
        _ if errors.is_empty() => Err(Errors(fixed.into_iter().map(strange).collect())),
        _ => Err(Errors(errors)),
    }
}

/// How a state of fixed size is used.
enum Extent {
    /// It is written at positions along an axis of this extent.
    Positions(i64),
    /// Its contents before a run are not read.
    Unread,
}

fn extent(graph: &Graph, s: &State, positions: &[Value]) -> Option<Extent> {
    if graph.uses(s.before).is_empty() {
        return Some(Extent::Unread);
    }
    let node = graph.node(s.after.node);
    let Op::Scatter { reduce: None, index } = &node.op else { return None };
    if node.inputs.first() != Some(&s.before) || s.growth.is_some() {
        return None;
    }
    let mut data = index.iter().enumerate().filter_map(|(d, at)| match at {
        GatherAxis::Data { input, .. } => Some((d, *node.inputs.get(*input)?)),
        GatherAxis::Affine(_) => None,
    });
    let (axis, at) = data.next()?;
    if data.next().is_some() || !comes_from(graph, at, positions) {
        return None;
    }
    graph.ty(s.before).shape.get(axis).and_then(Dim::as_const).map(Extent::Positions)
}

/// Whether a value is computed from one of `from` and constants alone.
fn comes_from(graph: &Graph, value: Value, from: &[Value]) -> bool {
    let (mut found, mut next, mut seen) = (false, vec![value], std::collections::BTreeSet::new());
    while let Some(v) = next.pop() {
        if !seen.insert(v) {
            continue;
        }
        let node = graph.node(v.node);
        match node.op {
            Op::Input if from.contains(&v) => found = true,
            Op::Input => return false,
            _ => next.extend(&node.inputs),
        }
    }
    found
}

fn strange(s: &State) -> Diagnostic {
    let how = if s.growth.is_some() { "keeps a window of positions" } else { "is replaced from run to run" };
    Diagnostic::unsupported(format!(
        "state \"{}\" {how} instead of growing, and so does not tell how many tokens there were",
        s.name
    ))
    .help("a cache of fixed size must be written at the positions that an input `cache_position` gives, as transformers' static cache is; Session runs other states")
}
