//! Native programs: threads and a clock exist, wgpu translates kernels with naga, and callbacks are called by polling.

mod blocking;
mod longer;
mod loops;
mod readback;
mod staging;
mod text;

use crate::error::RunError;
use crate::gpu::{Gpu, instance};
use crate::kernel::{Guard, Pipeline, compile};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use wgfc_program::program::Kernel;

pub(crate) use longer::Longer;
pub(crate) use readback::copied;
pub(crate) use staging::{PIECE, Pool, upload};
pub(crate) use text::check_text;
pub(crate) use wgfc_program::wgsl::for_naga as wgsl;

/// All adapters. OpenGL is opened only if no primary backend has an adapter.
///
/// The instances live as long as the process: dropping the last instance of a driver unloads the driver's library, which hangs
/// with NVIDIA's driver 580.
pub(crate) async fn adapters() -> Vec<wgpu::Adapter> {
    static FIRST: OnceLock<wgpu::Instance> = OnceLock::new();
    static SECOND: OnceLock<wgpu::Instance> = OnceLock::new();
    for (of, backends) in [(&FIRST, wgpu::Backends::PRIMARY), (&SECOND, wgpu::Backends::SECONDARY)] {
        let found = of.get_or_init(|| instance(backends)).enumerate_adapters(wgpu::Backends::all()).await;
        let found: Vec<_> =
            found.into_iter().filter(|a| a.limits().max_storage_buffers_per_shader_stage > 0).collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// Tries to map a new buffer: memory of a lost device cannot be mapped.
pub(crate) fn is_lost(device: &wgpu::Device) -> bool {
    let d = wgpu::BufferDescriptor {
        label: Some("whether the device is there"),
        size: 4,
        usage: wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: true,
    };
    // Other errors, such as exhausted memory, do not mean that the device is lost; the call that needs the device reports them.
    let scopes = [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::Internal]
        .map(|f| device.push_error_scope(f));
    let buffer = device.create_buffer(&d);
    let errors =
        scopes.into_iter().rev().map(|s| pollster::block_on(s.pop())).filter(Option::is_some).count();
    errors == 0 && buffer.get_mapped_range(..).is_err()
}

/// The largest heap of a Vulkan device's own memory.
#[cfg(not(any(target_os = "macos", target_os = "ios")))]
pub(crate) fn memory(device: &wgpu::Device) -> Option<u64> {
    /// `VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`.
    const OWN: u32 = 1;
    // SAFETY: the device is not changed or destroyed, only asked for the properties of its adapter.
    let device = unsafe { device.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = device.shared_instance().raw_instance();
    // SAFETY: the adapter is one of this instance.
    let all = unsafe { instance.get_physical_device_memory_properties(device.raw_physical_device()) };
    let heaps = all.memory_heaps_as_slice().iter();
    heaps.filter(|h| h.flags.as_raw() & OWN != 0).map(|h| h.size).max()
}

/// Unknown: Metal's devices mostly share the host's memory.
#[cfg(any(target_os = "macos", target_os = "ios"))]
pub(crate) fn memory(_: &wgpu::Device) -> Option<u64> {
    None
}

/// Callbacks are called only while the device is polled.
pub(crate) fn poll(
    device: &wgpu::Device,
    up_to: Option<wgpu::SubmissionIndex>,
) -> Result<(), wgpu::PollError> {
    device.poll(wgpu::PollType::Wait { submission_index: up_to, timeout: None }).map(drop)
}

pub(crate) fn now() -> Option<Instant> {
    Some(Instant::now())
}

/// Compiles kernels on a second thread.
pub(crate) async fn both<A: Send, B>(
    compile: impl AsyncFnOnce() -> Result<A, RunError> + Send,
    other: impl AsyncFnOnce() -> B,
) -> (Result<A, RunError>, B) {
    std::thread::scope(|s| {
        let compiling = s.spawn(|| pollster::block_on(compile()));
        let other = pollster::block_on(other());
        (compiling.join().unwrap_or_else(|_| Err(panicked())), other)
    })
}

pub(crate) async fn compile_each(gpu: &Gpu, kernels: &[(&Kernel, Guard)]) -> Result<Vec<Pipeline>, RunError> {
    let made = each(cores(), kernels, |(k, guard)| pollster::block_on(compile(gpu, k, *guard)));
    // The error is that of the first failing kernel in the plan's order, whichever thread failed first.
    made.ok_or_else(panicked)?.into_iter().collect()
}

/// The results of `f` for each item, computed on at most `threads` threads; `None` if one of them panicked.
fn each<I: Sync, T: Send>(threads: usize, items: &[I], f: impl Fn(&I) -> T + Sync) -> Option<Vec<T>> {
    let threads = threads.min(items.len());
    if threads < 2 {
        return Some(items.iter().map(f).collect());
    }
    let next = AtomicUsize::new(0);
    let worker = || {
        let number = || next.fetch_add(1, Ordering::Relaxed);
        let mine = std::iter::repeat_with(number).map_while(|i| Some((i, f(items.get(i)?))));
        mine.collect::<Vec<_>>()
    };
    let mut results: Vec<_> = std::thread::scope(|s| {
        let handles: Vec<_> = (0..threads).map(|_| s.spawn(worker)).collect();
        handles.into_iter().filter_map(|h| h.join().ok()).flatten().collect()
    });
    results.sort_by_key(|(i, _)| *i);
    (results.len() == items.len()).then(|| results.into_iter().map(|(_, r)| r).collect())
}

fn panicked() -> RunError {
    let message = "a thread that compiles kernels panicked".to_owned();
    RunError::Gpu { what: "compiling".to_owned(), message }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The number of threads for copying this many bytes: one per 2 MiB, at most `most`.
fn threads(bytes: usize, most: usize) -> usize {
    cores().min(most).min(bytes / (2 << 20)).max(1)
}
