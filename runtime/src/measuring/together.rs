//! Measures how many workgroups run concurrently, so that they can wait for each other, and how long an exchange of values
//! between them takes.

use crate::error::RunError;
use crate::gpu::Gpu;
use crate::kernel::{Checks, Pipeline, compile_all};
use crate::measure::{group, kernel, once};
use crate::measuring::slope::{Slope, slope};
use wgfc_program::program::Access;

/// The measurements. See the example of [`together`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ConcurrentWorkgroups {
    /// The number of workgroups of the largest size, each with all workgroup memory, that can be relied on to run concurrently:
    /// half of the number that did in the measurement, as other kernels may need more registers. 1 if no two did.
    pub workgroups: u32,
    /// The nanoseconds from the moment at which each of several workgroups writes a word until each has read the words of all
    /// others.
    pub exchange_ns: f64,
}

/// In each turn every workgroup writes the turn's number into its own word and polls the words of all others until the number is
/// there, or until it has polled too often and gives up.
const MEET: &str = "
@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> words: array<atomic<u32>>;
var<workgroup> room: array<u32, ROOM>;
@compute @workgroup_size(SIZE)
fn main(
    @builtin(local_invocation_index) id: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let n = turns[0];
    var patience = turns[1];
    let first = turns[2];
    room[id] = id;
    for (var i = 1u; i <= n; i++) {
        workgroupBarrier();
        if (id == 0u) {
            atomicStore(&words[1u + group.x], first + i);
        }
        workgroupBarrier();
        for (var j = id; j < groups.x; j += SIZEu) {
            var left = patience;
            while (atomicLoad(&words[1u + j]) < first + i && left > 0u) {
                left -= 1u;
            }
            if (left == 0u) {
                patience = 0u;
            }
        }
    }
    workgroupBarrier();
    if (patience == 0u || room[id ^ 1u] == 0xffffffffu) {
        atomicStore(&words[0], first + n);
    }
}
";

/// The largest number of workgroups that is tried.
const MOST: u32 = 1 << 10;
/// The number of polls after which a workgroup gives up.
const MAX_POLLS: u32 = 1 << 14;
/// The least and the largest number of timed turns.
const TURNS: u32 = 256;
const MOST_TURNS: u32 = 8192;
/// The nanoseconds that the timed turns take, if the largest number suffices.
const LONG: f64 = 3e6;

struct ExchangeTest<'g> {
    gpu: &'g Gpu,
    pipeline: &'g Pipeline,
    group: wgpu::BindGroup,
    turns: wgpu::Buffer,
    words: wgpu::Buffer,
    read: wgpu::Buffer,
    /// The number of turns so far.
    first: u32,
}

impl ExchangeTest<'_> {
    /// The nanoseconds of `n` turns of `workgroups` workgroups; `None` if one of them gave up.
    async fn time(&mut self, n: u32, workgroups: u32) -> Result<Option<f64>, RunError> {
        let values = [n, MAX_POLLS, self.first, 0].map(u32::to_le_bytes).concat();
        self.gpu.queue().write_buffer(&self.turns, 0, &values);
        self.first += n;
        let fetch = |e: &mut wgpu::CommandEncoder| e.copy_buffer_to_buffer(&self.words, 0, &self.read, 0, 4);
        let ns = once(self.gpu, (self.pipeline, &self.group), workgroups, 1, fetch).await?;
        let word = |b: &[u8]| b.first_chunk().map_or(u32::MAX, |b| u32::from_le_bytes(*b));
        let missed = self.gpu.map_read(&self.read, 4, None, word).await?;
        Ok((missed < self.first).then_some(ns))
    }
}

/// Measures the device, which takes some milliseconds.
///
/// # Errors
/// An error of the device.
///
/// ```no_run
/// use wgfc_runtime::{AdapterChoice, Gpu, together::together_blocking};
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// let gpu = Gpu::request_blocking(&AdapterChoice::Best)?;
/// println!("{} workgroups run at once", together_blocking(&gpu)?.workgroups);
/// # Ok(()) }
/// ```
pub async fn together(gpu: &Gpu) -> Result<ConcurrentWorkgroups, RunError> {
    let limits = gpu.profile();
    let size = 1 << limits.invocations.clamp(2, 1024).ilog2();
    let text = MEET
        .replace("SIZE", &size.to_string())
        .replace("ROOM", &(limits.workgroup_bytes / 4).max(size).to_string());
    let kernels = [kernel("meet", &text, size, vec![Access::Read, Access::ReadWrite])];
    let pipelines =
        compile_all(gpu, kernels.iter().map(|k| (k, false)), Checks::Trusted, [].into_iter()).await?;
    let [pipeline] = pipelines.as_slice() else {
        let message = "the kernel is missing".to_owned();
        return Err(RunError::Gpu { what: "measuring".to_owned(), message });
    };
    let turns = gpu.storage("number of turns", 256).await?;
    let words = gpu.storage("words of workgroups", u64::from(MOST + 1) * 4).await?;
    let read = gpu
        .buffer("whether they met", 4, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST)
        .await?;
    let group = gpu.scoped("measuring", || group(gpu, pipeline, &[&turns, &words])).await?;
    let mut all = ExchangeTest { gpu, pipeline, group, turns, words, read, first: 0 };
    let mut most = 1;
    while most < MOST {
        // Three attempts, as one success could be chance.
        let mut met = true;
        for _ in 0..3 {
            met = met && all.time(8, most * 2).await?.is_some();
        }
        if !met {
            break;
        }
        most *= 2;
    }
    let few = most.min(32);
    let mut n = TURNS;
    while n < MOST_TURNS && all.time(n, few).await?.is_some_and(|ns| ns < LONG) {
        n *= 2;
    }
    let turns = [n / 4, n / 2, n];
    let mut rounds = vec![];
    for _ in 0..8 {
        let mut round = [0.0; 3];
        let mut met = true;
        for (ns, n) in round.iter_mut().zip(turns) {
            match all.time(n, few).await? {
                Some(time) => *ns = time,
                None => met = false,
            }
        }
        if met {
            rounds.push(round);
        }
    }
    let Some(Slope { each: exchange_ns, .. }) = slope(turns.map(f64::from), &rounds) else {
        return Ok(ConcurrentWorkgroups { workgroups: 1, exchange_ns: 1e4 });
    };
    Ok(ConcurrentWorkgroups { workgroups: (most / 2).max(1), exchange_ns })
}

/// [`together`] for callers without an executor.
///
/// # Errors
/// As [`together`].
pub fn together_blocking(gpu: &Gpu) -> Result<ConcurrentWorkgroups, RunError> {
    pollster::block_on(together(gpu))
}
