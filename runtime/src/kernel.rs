//! Compilation of a program's kernels into pipelines.

use crate::error::RunError;
use crate::gpu::Gpu;
use crate::platform;
use std::borrow::Cow;
use std::collections::HashMap;
use wgfc_program::program::{Access, Kernel};
use wgfc_program::wgsl::{CHROMIUM_MATRICES, WGPU_MATRICES};

/// A compiled kernel.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// The run-time checks of kernels.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let program = wgfc_runtime::testing::doubling();
/// use wgfc_runtime::{Session, kernel::Checks, session::SessionOptions};
/// // The program comes from a file that somebody else wrote.
/// let options = SessionOptions { checks: Checks::All, ..Default::default() };
/// let session = Session::with_options_blocking(gpu, &program, options)?;
/// # drop(session);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// All checks for kernels that are not proven by the compiler, in this process, to stay inside their buffers
    /// ([`Proof`](wgfc_program::program::Proof)). For proven kernels only integer division is checked.
    #[default]
    Unproven,
    /// All checks for all kernels, as in a browser: indices are clamped, loops bounded, workgroup memory zeroed.
    All,
    /// No checks, for programs that this process compiled or whose author is trusted. A kernel that accesses memory out of
    /// bounds, reads workgroup memory before writing it, or never ends has undefined behaviour.
    Trusted,
}

/// The run-time checks of one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Guard {
    /// All checks.
    All,
    /// Checks of integer division only.
    Arithmetic,
    /// No checks.
    Nothing,
}

impl Checks {
    /// The checks of a kernel; `proven` says whether it is proven to stay inside its buffers.
    pub(crate) fn of(self, proven: bool) -> Guard {
        match self {
            Checks::Trusted => Guard::Nothing,
            Checks::Unproven if proven => Guard::Arithmetic,
            Checks::Unproven | Checks::All => Guard::All,
        }
    }
}

/// The kernels of a program, each with whether it is proven to stay inside its buffers.
pub(crate) fn kernels(p: &wgfc_program::Program) -> impl Iterator<Item = (&Kernel, bool)> {
    p.kernels.iter().enumerate().map(|(i, k)| (k, p.proof.is_in_bounds(i)))
}

fn fits(gpu: &Gpu, k: &Kernel) -> Result<(), RunError> {
    let l = gpu.profile();
    for f in &k.features {
        let there = match f.as_str() {
            "shader-f16" => l.f16,
            "subgroups" => l.subgroup.is_some(),
            WGPU_MATRICES | CHROMIUM_MATRICES => l.cooperative_matrix,
            _ => false,
        };
        if !there {
            return Err(RunError::Feature { kernel: k.name.clone(), feature: f.clone() });
        }
    }
    if let Some(size) = k.subgroup_size.filter(|s| l.subgroup != Some((*s, *s))) {
        let feature = format!("subgroups of {size}");
        return Err(RunError::Feature { kernel: k.name.clone(), feature });
    }
    let invocations = k.workgroup_size.iter().fold(1u64, |n, s| n.saturating_mul(u64::from(*s)));
    let mut needs = vec![
        ("storage buffers", k.bindings.len() as u64, u64::from(l.storage_buffers)),
        ("bytes of workgroup memory", u64::from(k.workgroup_bytes), u64::from(l.workgroup_bytes)),
        ("invocations in a workgroup", invocations, u64::from(l.invocations)),
    ];
    for (size, limit) in k.workgroup_size.iter().zip(l.workgroup_size) {
        needs.push(("invocations in one dimension of a workgroup", u64::from(*size), u64::from(limit)));
    }
    for (what, need, have) in needs {
        if need > have {
            let what = format!("kernel `{}` ({what})", k.name);
            return Err(RunError::Limits { what, need, have });
        }
    }
    Ok(())
}

/// The WGSL text in the form that this platform's shader compiler accepts.
pub(crate) fn text(k: &Kernel) -> Cow<'_, str> {
    platform::wgsl(&k.wgsl)
}

/// Compiles one kernel. Binding `i` of group 0 is `k.bindings[i]`, and the binding after them is the `Dims` uniform if the kernel
/// uses it.
pub(crate) async fn compile(gpu: &Gpu, k: &Kernel, guard: Guard) -> Result<Pipeline, RunError> {
    let device = gpu.device();
    let entry = |binding: usize, ty| wgpu::BindGroupLayoutEntry {
        binding: binding as u32,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    };
    let mut entries: Vec<_> = k
        .bindings
        .iter()
        .enumerate()
        .map(|(i, a)| entry(i, wgpu::BufferBindingType::Storage { read_only: *a == Access::Read }))
        .collect();
    if k.uses_dims {
        entries.push(entry(entries.len(), wgpu::BufferBindingType::Uniform));
    }
    let label = Some(k.name.as_str());
    let made = gpu.scoped("compiling", || {
        let source = wgpu::ShaderModuleDescriptor { label, source: wgpu::ShaderSource::Wgsl(text(k)) };
        let module = match guard {
            Guard::All => device.create_shader_module(source),
            // SAFETY: the compiler has proven that the kernel stays inside its buffers, and all loops of templates have a known
            // bound.
            Guard::Arithmetic => unsafe {
                let mut checks = wgpu::ShaderRuntimeChecks::checked();
                (checks.bounds_checks, checks.force_loop_bounding) = (false, false);
                device.create_shader_module_trusted(source, checks)
            },
            // SAFETY: the caller vouches for the program: its kernels stay in bounds and end.
            Guard::Nothing => unsafe {
                device.create_shader_module_trusted(source, wgpu::ShaderRuntimeChecks::unchecked())
            },
        };
        let layout =
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: guard == Guard::All,
                ..Default::default()
            },
            cache: gpu.pipeline_cache(),
        });
        Pipeline { pipeline, layout }
    });
    let made = made.await;
    gpu.compiles(1, 0);
    made.map_err(|e| match e {
        RunError::Gpu { message, .. } => RunError::Shader { kernel: k.name.clone(), message },
        e => e,
    })
}

/// Everything that determines a pipeline; the kernel's name does not.
type Source<'k> = (&'k str, &'k [Access], bool, &'k [String], Guard);

fn source(k: &Kernel, guard: Guard) -> Source<'_> {
    (&k.wgsl, &k.bindings, k.uses_dims, &k.features, guard)
}

/// Compiles kernels, each given with whether it is proven to stay inside its buffers; natively on all cores. Equal kernels are
/// compiled once, and kernels whose equal is in `known` reuse its pipeline.
pub(crate) async fn compile_all<'k>(
    gpu: &Gpu,
    kernels: impl Iterator<Item = (&'k Kernel, bool)>,
    checks: Checks,
    known: impl Iterator<Item = ((&'k Kernel, bool), &Pipeline)>,
) -> Result<Vec<Pipeline>, RunError> {
    let of = |(k, proven): (&'k Kernel, bool)| source(k, checks.of(proven));
    let known: HashMap<Source<'_>, &Pipeline> = known.map(|(k, p)| (of(k), p)).collect();
    let kernels: Vec<(&Kernel, bool)> = kernels.collect();
    let mut new: Vec<(&Kernel, Guard)> = vec![];
    let mut index: HashMap<Source<'_>, usize> = HashMap::new();
    for (k, proven) in &kernels {
        fits(gpu, k)?;
        if !known.contains_key(&of((k, *proven))) {
            index.entry(of((k, *proven))).or_insert_with(|| {
                new.push((k, checks.of(*proven)));
                new.len() - 1
            });
        }
    }
    gpu.compiles(0, new.len());
    tracing::debug!(kernels = kernels.len(), new = new.len(), "compiling on the device");
    let made = platform::compile_each(gpu, &new).await?;
    tracing::debug!(new = new.len(), "compiled on the device");
    let find = |k| known.get(&of(k)).copied().or_else(|| made.get(*index.get(&of(k))?));
    Ok(kernels.into_iter().filter_map(find).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::kernel;

    #[test]
    fn equal_kernels_are_compiled_once() {
        let text = |by: u32| {
            format!(
                "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
                @compute @workgroup_size(1) fn main() {{ x[0] += {by}u; }}"
            )
        };
        let make = |name: &str, by| kernel(name, &text(by), 1, vec![Access::ReadWrite]);
        let kernels = [make("a", 1), make("b", 2), make("c", 1), make("d", 2)];
        for gpu in crate::testing::gpus() {
            let compile = |kernels: &[Kernel], known: &[(Kernel, Pipeline)]| {
                let known = known.iter().map(|(k, p)| ((k, false), p));
                let kernels = kernels.iter().map(|k| (k, false));
                pollster::block_on(compile_all(gpu, kernels, Checks::All, known)).unwrap()
            };
            let made = compile(&kernels, &[]);
            let same = |i: &Pipeline, j: &Pipeline| i.pipeline == j.pipeline && i.layout == j.layout;
            assert_eq!(made.len(), 4);
            assert!(same(&made[0], &made[2]) && same(&made[1], &made[3]) && !same(&made[0], &made[1]));
            let known = [(make("e", 2), made[1].clone())];
            let again = compile(&kernels[..2], &known);
            assert!(same(&again[1], &made[1]) && !same(&again[0], &made[0]));
        }
    }
}
