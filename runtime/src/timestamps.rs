//! GPU timestamps.

use crate::error::RunError;
use crate::gpu::Gpu;

const PER_SET: u32 = wgpu::QUERY_SET_MAX_QUERIES;

/// Timestamp queries and the buffers for reading their results.
#[derive(Debug)]
pub(crate) struct Timestamps {
    sets: Vec<wgpu::QuerySet>,
    resolved: wgpu::Buffer,
    mapped: wgpu::Buffer,
    count: u32,
}

impl Timestamps {
    /// `count` queries. The device must support timestamps.
    pub(crate) async fn new(gpu: &Gpu, count: u32) -> Result<Timestamps, RunError> {
        let sets = gpu
            .scoped("making timestamps", || {
                (0..count.div_ceil(PER_SET))
                    .map(|i| {
                        gpu.device().create_query_set(&wgpu::QuerySetDescriptor {
                            label: None,
                            ty: wgpu::QueryType::Timestamp,
                            count: PER_SET.min(count - i * PER_SET),
                        })
                    })
                    .collect()
            })
            .await?;
        let bytes = u64::from(count) * 8;
        use wgpu::BufferUsages as U;
        let resolved = gpu.buffer("timestamps", bytes, U::QUERY_RESOLVE | U::COPY_SRC).await?;
        let mapped = gpu.buffer("timestamps", bytes, U::MAP_READ | U::COPY_DST).await?;
        Ok(Timestamps { sets, resolved, mapped, count })
    }

    /// The query set and the index in it of query `i`.
    pub(crate) fn at(&self, i: u32) -> (&wgpu::QuerySet, u32) {
        (&self.sets[(i / PER_SET) as usize], i % PER_SET)
    }

    /// The queries `2·pass` and `2·pass + 1` for the beginning and the end of a pass. PER_SET is even, so both are in one set.
    pub(crate) fn around(&self, pass: u32) -> wgpu::ComputePassTimestampWrites<'_> {
        let (query_set, index) = self.at(2 * pass);
        wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(index),
            end_of_pass_write_index: Some(index + 1),
        }
    }

    /// Records the commands that fetch the results.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        for (i, set) in self.sets.iter().enumerate() {
            encoder.resolve_query_set(set, 0..set.count(), &self.resolved, i as u64 * u64::from(PER_SET) * 8);
        }
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.mapped, 0, u64::from(self.count) * 8);
    }

    /// The results of the last [`resolve`](Timestamps::resolve), in ticks of the GPU.
    pub(crate) async fn read(&self, gpu: &Gpu) -> Result<Vec<u64>, RunError> {
        gpu.map_read(&self.mapped, u64::from(self.count) * 8, None, |b| {
            b.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap_or_default())).collect()
        })
        .await
    }
}

/// Nanoseconds from the first of two ticks to the second.
pub(crate) fn between(gpu: &Gpu, ticks: &[u64]) -> f64 {
    match ticks {
        [from, to] => to.saturating_sub(*from) as f64 * f64::from(gpu.queue().get_timestamp_period()),
        _ => 0.0,
    }
}
