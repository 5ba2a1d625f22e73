//! Kernels to be timed on the page's device: each with its schedules, from which the fastest are kept for later compilations.
//!
//! `web/src/tune.ts` times them, as `wgfc tune` does natively.

use crate::options::Options;
use crate::pipeline::Fused;
use crate::tuning::{Single, Tunable, Values, complete, tunable};
use crate::{Diagnostic, Errors};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use wgfc_ir::Dim;
use wgfc_ir::program::{Access, BufferKind, Program};

/// Schedules are compared by their estimates up to this multiple of the best one.
const FACTOR: f64 = 1.0;

/// The kernels that are asked for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrialsRequest {
    /// The number of schedules of a kernel, if it has that many; two of each form are tried in any case.
    pub most: usize,
    /// The values of symbols during measurements. Missing ones are the expected values, else 64.
    pub values: Values,
    /// The keys of kernels that need no measurement.
    pub known: BTreeSet<String>,
}

/// A kernel with several schedules.
#[derive(Debug, Serialize)]
pub(super) struct Trial {
    /// The key in a tuning table.
    key: String,
    /// A description of the computation.
    title: String,
    /// The number of its dispatches in a run of the model.
    dispatches: usize,
    /// The words of the uniform with the sizes.
    dims: Vec<i64>,
    /// The tensors that it reads and writes.
    buffers: Vec<Memory>,
    /// First the schedule that is chosen without measuring.
    candidates: Vec<Candidate>,
}

/// The memory of a tensor.
#[derive(Debug, Serialize)]
struct Memory {
    dtype: &'static str,
    bytes: u64,
    /// Whether a kernel writes it.
    output: bool,
    /// Whether it is typically in no cache when the kernel reads it, as weights are.
    cold: bool,
}

#[derive(Debug, Serialize)]
struct Candidate {
    /// The schedule, as a tuning table has it.
    schedule: String,
    /// The bytes of buffers of its own, which are numbered after the kernel's.
    inside: Vec<u64>,
    steps: Vec<Step>,
}

/// A dispatch.
#[derive(Debug, Serialize)]
struct Step {
    wgsl: String,
    /// The number of each binding's buffer, and whether it is written.
    bindings: Vec<(usize, bool)>,
    uses_dims: bool,
    workgroups: [u64; 3],
}

/// Adds the kernels of a model that are not known yet.
///
/// # Errors
/// Like [`tunable`].
pub(super) fn add(
    out: &mut Vec<Trial>,
    fused: &Fused,
    options: &Options,
    request: &TrialsRequest,
) -> Result<(), Errors> {
    let values = complete(fused, &request.values, &options.expect)?;
    for t in tunable(fused, options, &values, request.most, FACTOR)? {
        if request.known.contains(&t.key) || out.iter().any(|o| o.key == t.key) {
            continue;
        }
        out.push(trial(fused, options, t, &values)?);
    }
    Ok(())
}

fn trial(fused: &Fused, options: &Options, t: Tunable, values: &Values) -> Result<Trial, Errors> {
    let mut made = Trial {
        key: t.key,
        title: t.title,
        dispatches: t.dispatches,
        dims: vec![],
        buffers: vec![],
        candidates: vec![],
    };
    for c in t.candidates {
        let single = Single::new(fused, options, t.kernel, c.choice.clone(), values)?;
        let of = |s: &String| single.values.get(s).copied().unwrap_or(0);
        let number = |d: &Dim| {
            let value = d.eval_syms(&|s| single.values.get(s).copied());
            value.and_then(|n| u64::try_from(n).ok()).ok_or_else(|| Diagnostic::internal("an unknown extent"))
        };
        let Program { symbols, buffers, dispatches, kernels, .. } = &single.program;
        made.dims = symbols.iter().map(of).collect();
        let (mut inside, mut shared) = (vec![], vec![]);
        for b in buffers {
            let bytes = b.dtype.bytes_of(number(&b.elements)?);
            let (output, cold) = match b.kind {
                BufferKind::Input { index } => (false, single.cold.get(index).copied().unwrap_or(false)),
                BufferKind::Output { .. } => (true, false),
                _ => {
                    inside.push(bytes);
                    continue;
                }
            };
            shared.push(Memory { dtype: b.dtype.name(), bytes, output, cold });
        }
        made.buffers = shared;
        let mut steps = vec![];
        for d in dispatches {
            let kernel =
                kernels.get(d.kernel).ok_or_else(|| Diagnostic::internal("there is no such kernel"))?;
            let [x, y, z] = d.workgroups.each_ref().map(number);
            let access = kernel.bindings.iter().map(|a| *a == Access::ReadWrite);
            steps.push(Step {
                wgsl: kernel.wgsl.clone(),
                bindings: d.bindings.iter().copied().zip(access).collect(),
                uses_dims: kernel.uses_dims,
                workgroups: [x?, y?, z?],
            });
        }
        made.candidates.push(Candidate { schedule: c.choice.to_string(), inside, steps });
    }
    Ok(made)
}
