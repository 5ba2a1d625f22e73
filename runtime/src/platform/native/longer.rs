//! Kernels whose loops have more iterations than the driver allows are compiled again with unrolled loops.

use super::loops::{Loops, Refusal};
use crate::bind::{self, Bound};
use crate::error::RunError;
use crate::gpu::Gpu;
use crate::kernel::{self, Checks, Pipeline};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use wgfc_program::Program;
use wgfc_program::program::Kernel;

/// The parsed loops of kernels, and the pipelines with unrolled loops.
#[derive(Clone, Debug, Default)]
pub(crate) struct Longer {
    loops: HashMap<usize, Arc<Loops>>,
    /// The pipelines by the kernel's index and its WGSL text.
    pipelines: HashMap<(usize, String), Pipeline>,
}

impl Longer {
    /// Compiles pipelines for the kernels whose loops exceed the driver's limit at these sizes; the map is by the kernel's index.
    ///
    /// # Errors
    /// [`RunError::Loops`] if unrolling cannot bring the iterations below the limit.
    pub(crate) async fn pipelines(
        &mut self,
        gpu: &Gpu,
        program: &Program,
        checks: Checks,
        bound: &Bound,
    ) -> Result<BTreeMap<usize, Pipeline>, RunError> {
        let mut out = BTreeMap::new();
        let Some(most) = gpu.profile().loop_iterations else { return Ok(out) };
        let dims = bind::ranges(program, &bound.values);
        for i in 0..program.dispatches.len() {
            let d = &program.dispatches[i];
            if bound.workgroups[i].contains(&0) || out.contains_key(&d.kernel) {
                continue;
            }
            let k = &program.kernels[d.kernel];
            if !["for", "while", "loop"].iter().any(|w| k.wgsl.contains(w)) {
                continue;
            }
            let fail = |why: Refusal| RunError::Loops {
                kernel: k.name.clone(),
                nodes: bind::origin(&d.nodes),
                most,
                why: match why {
                    Refusal::Needs(n) => format!("{n} of them"),
                    Refusal::Unknown(at) => format!("an unknown number of them in `{}`", at.trim()),
                },
            };
            let loops = match self.loops.get(&d.kernel) {
                Some(l) => l.clone(),
                None => Arc::new(Loops::new(&kernel::text(k)).map_err(fail)?),
            };
            self.loops.insert(d.kernel, loops.clone());
            // The upper bound of a loop's iterations counts even if it may end earlier, because a driver that cuts a loop off
            // reports no error.
            let Some(wgsl) = loops.within(&dims, u64::from(most)).map_err(fail)? else { continue };
            let key = (d.kernel, wgsl);
            if let Some(made) = self.pipelines.get(&key) {
                out.insert(d.kernel, made.clone());
                continue;
            }
            tracing::debug!(kernel = k.name, most, "loops do several iterations in one");
            let longer = Kernel { wgsl: key.1.clone(), ..k.clone() };
            let guard = checks.of(program.proof.is_in_bounds(d.kernel));
            let made = kernel::compile(gpu, &longer, guard).await?;
            out.insert(d.kernel, made.clone());
            self.pipelines.insert(key, made);
        }
        Ok(out)
    }
}
