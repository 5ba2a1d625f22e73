//! Measures the speeds in a compiler's device profile.

use crate::error::RunError;
use crate::gpu::Gpu;
use crate::kernel::{Checks, Pipeline, compile_all};
use crate::overhead::{self, Mode};
use std::time::Instant;
use wgfc_program::program::{Access, Kernel};

/// Measured speeds, by wall-clock time. Times are medians, in nanoseconds. See the example of [`measure`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Measured {
    /// Bytes read plus bytes written per second by a streaming copy in WGSL.
    pub copy_bytes_per_second: f64,
    /// The size in bytes of the buffer that was copied.
    pub copy_bytes: u64,
    /// The time per tiny dispatch of many in one compute pass, each of which depends on the one before it.
    pub dispatch_ns: f64,
    /// The time per tiny dispatch if each has its own compute pass.
    pub dispatch_pass_each_ns: f64,
    /// The time of one tiny dispatch that is submitted alone and waited for.
    pub round_trip_ns: f64,
}

const COPY: &str = include_str!("kernels/copy.wgsl");

pub(crate) fn kernel(name: &str, wgsl: &str, size: u32, bindings: Vec<Access>) -> Kernel {
    Kernel {
        name: name.to_owned(),
        family: "measure".to_owned(),
        wgsl: wgsl.to_owned(),
        workgroup_size: [size, 1, 1],
        bindings,
        uses_dims: false,
        workgroup_bytes: 0,
        features: vec![],
        subgroup_size: None,
    }
}

pub(crate) fn group(gpu: &Gpu, p: &Pipeline, buffers: &[&wgpu::Buffer]) -> wgpu::BindGroup {
    let entries: Vec<_> = buffers
        .iter()
        .enumerate()
        .map(|(i, b)| wgpu::BindGroupEntry { binding: i as u32, resource: b.as_entire_binding() })
        .collect();
    let layout = &p.layout;
    gpu.device().create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
}

/// The nanoseconds to record, submit and wait for `count` dispatches in one pass and the commands that `then` records behind
/// them.
pub(crate) async fn once(
    gpu: &Gpu,
    (p, group): (&Pipeline, &wgpu::BindGroup),
    workgroups: u32,
    count: usize,
    then: impl FnOnce(&mut wgpu::CommandEncoder),
) -> Result<f64, RunError> {
    let start = Instant::now();
    gpu.scoped("measuring", || {
        let mut encoder = gpu.device().create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&p.pipeline);
        pass.set_bind_group(0, group, &[]);
        for _ in 0..count {
            pass.dispatch_workgroups(workgroups, 1, 1);
        }
        drop(pass);
        then(&mut encoder);
        gpu.queue().submit([encoder.finish()]);
    })
    .await?;
    gpu.wait().await?;
    Ok(start.elapsed().as_nanos() as f64)
}

/// The smallest of several such times, as other work on the machine only increases them.
async fn time(
    gpu: &Gpu,
    p: &Pipeline,
    group: &wgpu::BindGroup,
    workgroups: u32,
    count: usize,
) -> Result<f64, RunError> {
    let mut least = f64::INFINITY;
    for _ in 0..8 {
        least = least.min(once(gpu, (p, group), workgroups, count, |_| ()).await?);
    }
    Ok(least)
}

/// Measures the device: under a second on hardware, a few on a software adapter.
///
/// ```no_run
/// use wgfc_runtime::{AdapterChoice, Gpu, measure::measure_blocking};
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// let gpu = Gpu::request_blocking(&AdapterChoice::Best)?;
/// let speeds = measure_blocking(&gpu)?;
/// println!("{:.0} GB/s, {:.0} ns a dispatch", speeds.copy_bytes_per_second / 1e9, speeds.dispatch_ns);
/// # Ok(()) }
/// ```
pub async fn measure(gpu: &Gpu) -> Result<Measured, RunError> {
    let software = gpu.summary().is_software;
    let limits = gpu.profile();
    let kernels = [kernel("copy", COPY, 256, vec![Access::Read, Access::ReadWrite])];
    // Trusted, as the kernel stays inside its buffers.
    let pipelines =
        compile_all(gpu, kernels.iter().map(|k| (k, false)), Checks::Trusted, [].into_iter()).await?;
    let [copy] = pipelines.as_slice() else {
        return Err(RunError::Gpu {
            what: "measuring".to_owned(),
            message: "the kernel is missing".to_owned(),
        });
    };

    let most = limits.binding_bytes.min(limits.buffer_bytes) & !0xFFFF;
    let copy_bytes = most.min(if software { 16 << 20 } else { 256 << 20 });
    let from = gpu.storage("source of the copy", copy_bytes).await?;
    let to = gpu.storage("target of the copy", copy_bytes).await?;
    let bound = gpu.scoped("measuring", || group(gpu, copy, &[&from, &to])).await?;
    let per_group = if software { 256 * 64 } else { 256 * 8 };
    let workgroups = (copy_bytes / 16).div_ceil(per_group).min(u64::from(limits.workgroups)) as u32;
    let copies = if software { 1 } else { 40 };
    let ns = time(gpu, copy, &bound, workgroups, copies).await?;
    let copy_bytes_per_second = 2.0 * copy_bytes as f64 * copies as f64 / (ns * 1e-9);

    let cost = overhead::measure(gpu, if software { 10 } else { 30 }).await?;
    let wall = |mode| cost.of(mode).map_or(0.0, |c| c.wall_ns.median);
    Ok(Measured {
        copy_bytes_per_second,
        copy_bytes,
        dispatch_ns: wall(Mode::OnePass),
        dispatch_pass_each_ns: wall(Mode::PassEach),
        round_trip_ns: wall(Mode::SingleOp),
    })
}

/// [`measure`] for callers without an executor.
pub fn measure_blocking(gpu: &Gpu) -> Result<Measured, RunError> {
    pollster::block_on(measure(gpu))
}
