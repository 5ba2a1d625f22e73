//! Large uploads: several threads copy the bytes into mapped staging buffers, from which the device copies them. The buffers are
//! reused, because writing to freshly allocated memory takes five times as long.

use super::{each, threads};
use crate::error::RunError;
use crate::gpu::Gpu;
use crate::upload::{PIECE, Piece, through_queue};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Uploads of fewer bytes go through the queue's own staging memory.
const SMALL: usize = 256 << 10;
/// The number of loads in one submission. At most two submissions are in flight.
const BATCH: usize = 4;
/// The largest number of copying threads; memory bandwidth limits the use of more.
const THREADS: usize = 8;

/// Buffers of [`PIECE`] bytes that are mapped for writing: at most twice [`BATCH`] of them, 64 MiB, until they are cleared.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Vec<wgpu::Buffer>>>);

impl Pool {
    fn take(&self, gpu: &Gpu) -> wgpu::Buffer {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| {
            gpu.device().create_buffer(&wgpu::BufferDescriptor {
                label: Some("upload"),
                size: PIECE as u64,
                usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: true,
            })
        })
    }

    /// Frees the buffers that no upload is using.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Maps the buffer again once the device has read it, and then returns it to the pool.
    fn give(&self, buffer: wgpu::Buffer) {
        let (pool, kept) = (self.clone(), buffer.clone());
        buffer.map_async(wgpu::MapMode::Write, .., move |mapped| {
            let mut all = pool.0.lock().unwrap_or_else(PoisonError::into_inner);
            if mapped.is_ok() && all.len() < 2 * BATCH {
                all.push(kept);
            }
        });
    }
}

/// Pieces that share a staging buffer, each with its byte offset in it.
type Load<'p> = Vec<(Piece<'p>, usize)>;

fn loads(pieces: Vec<Piece<'_>>) -> Vec<Load<'_>> {
    let (mut loads, mut end): (Vec<Load<'_>>, usize) = (vec![], PIECE);
    for p in pieces {
        let len = p.padded();
        if end + len > PIECE {
            loads.push(vec![]);
            end = 0;
        }
        if let Some(load) = loads.last_mut() {
            load.push((p, end));
        }
        // Mapped ranges and copies begin at multiples of eight.
        end += len.next_multiple_of(8);
    }
    loads
}

pub(crate) async fn upload(gpu: &Gpu, pieces: Vec<Piece<'_>>) -> Result<(), RunError> {
    if pieces.iter().map(|p| p.range.len()).sum::<usize>() < SMALL {
        return through_queue(gpu, pieces).await;
    }
    let loads = loads(pieces);
    let mut sent = VecDeque::new();
    for batch in loads.chunks(BATCH) {
        if sent.len() > 1 {
            gpu.drive(sent.pop_front())?;
        }
        let pool = gpu.staging();
        let filled = gpu.scoped("uploading", || fill_all(gpu, pool, batch)).await??;
        let index = gpu
            .scoped("uploading", || {
                let mut encoder = gpu.device().create_command_encoder(&Default::default());
                for (load, from) in batch.iter().zip(&filled) {
                    from.unmap();
                    for (p, at) in load {
                        let (to, start) = (p.source.buffer, p.range.start as u64);
                        encoder.copy_buffer_to_buffer(from, *at as u64, to, start, p.padded() as u64);
                    }
                }
                gpu.queue().submit([encoder.finish()])
            })
            .await?;
        filled.into_iter().for_each(|b| pool.give(b));
        sent.push_back(index);
    }
    gpu.health()
}

fn fill_all(gpu: &Gpu, pool: &Pool, batch: &[Load<'_>]) -> Result<Vec<wgpu::Buffer>, RunError> {
    let buffers: Vec<wgpu::Buffer> = batch.iter().map(|_| pool.take(gpu)).collect();
    let bytes = batch.iter().flatten().map(|(p, _)| p.range.len()).sum();
    let loads: Vec<_> = batch.iter().zip(&buffers).collect();
    let filled = each(threads(bytes, THREADS), &loads, |(load, buffer)| fill(load, buffer));
    let panicked = || failed("a thread that copies panicked".to_owned());
    filled.ok_or_else(panicked)?.into_iter().collect::<Result<(), _>>()?;
    Ok(buffers)
}

fn failed(message: String) -> RunError {
    RunError::Gpu { what: "uploading".to_owned(), message }
}

fn fill(load: &Load<'_>, buffer: &wgpu::Buffer) -> Result<(), RunError> {
    for (p, at) in load {
        let range = *at as u64..(*at + p.padded()) as u64;
        let mut view = buffer.get_mapped_range_mut(range).map_err(|e| failed(e.to_string()))?;
        if !p.put(view.slice(..)) {
            return Err(p.absent());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::copied;
    use super::*;
    use crate::testing::gpus;
    use crate::upload::{Bytes, Source, pieces};

    #[test]
    fn sources_of_all_lengths_arrive() {
        for gpu in gpus() {
            // Twice: buffers are used again.
            for round in 0..2u8 {
                let lens = [0, 1, 4, 7, 4093, SMALL, PIECE - 1, PIECE + 3, 5 * PIECE + 6];
                let all: Vec<Vec<u8>> =
                    lens.iter().map(|n| (0..*n).map(|i| (i * 7 + i / 251) as u8 ^ round).collect()).collect();
                pollster::block_on(async {
                    let mut buffers = vec![];
                    for b in &all {
                        let size = b.len().next_multiple_of(4).max(16) as u64;
                        buffers.push(gpu.storage("test", size).await.unwrap());
                    }
                    let sources: Vec<Source<'_>> = all
                        .iter()
                        .zip(&buffers)
                        .map(|(b, buffer)| Source { name: "x", bytes: Bytes::Slice(b), buffer })
                        .collect();
                    upload(gpu, pieces(&sources)).await.unwrap();
                    for (b, buffer) in all.iter().zip(&buffers) {
                        use wgpu::BufferUsages as U;
                        let size = buffer.size();
                        let mapped = gpu.buffer("back", size, U::MAP_READ | U::COPY_DST).await.unwrap();
                        let mut e = gpu.device().create_command_encoder(&Default::default());
                        e.copy_buffer_to_buffer(buffer, 0, &mapped, 0, size);
                        let sent = gpu.queue().submit([e.finish()]);
                        let got = gpu.map_read(&mapped, size, Some(sent), copied);
                        let got = got.await.unwrap();
                        assert!((*got).as_ref()[..b.len()] == b[..], "{} bytes", b.len());
                    }
                });
            }
            let kept = |pool: &Pool| pool.0.lock().unwrap().len();
            assert!((1..=2 * BATCH).contains(&kept(gpu.staging())));
            gpu.staging().clear();
            assert_eq!(kept(gpu.staging()), 0);
        }
    }
}
