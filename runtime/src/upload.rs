//! Weights, and what states hold, on their way to the device.

use crate::error::RunError;
use crate::gpu::Gpu;
use std::ops::Range;
use wgfc_program::Tensor;

/// Weights go up in pieces of this many bytes, a multiple of 4.
const CHUNK: usize = 16 << 20;
/// So many of them are sent together; no more than twice as many are under way.
const BATCH: usize = 8;
/// Threads that copy them, which is a matter of memory.
#[cfg(not(target_arch = "wasm32"))]
const THREADS: usize = 4;

/// A stretch of a weight.
struct Chunk<'w> {
    name: &'w str,
    tensor: &'w Tensor,
    buffer: &'w wgpu::Buffer,
    range: Range<usize>,
}

impl Chunk<'_> {
    /// Copies it to where the driver fetches it from.
    async fn write(&self, gpu: &Gpu) -> Result<(), RunError> {
        let Range { start, end } = self.range;
        let what = format!("uploading \"{}\"", self.name);
        // The last word is padded with zeros.
        let padded = (end - start).next_multiple_of(4) as u64;
        let Some(size) = wgpu::BufferSize::new(padded) else { return Ok(()) };
        let copied = gpu.scoped(&what, || {
            // Without a view an error was raised.
            let Some(mut view) = gpu.queue().write_buffer_with(self.buffer, start as u64, size) else {
                return end - start;
            };
            let mut at = 0;
            for piece in self.tensor.pieces(self.range.clone()) {
                view.slice(at..at + piece.len()).copy_from_slice(piece);
                at += piece.len();
            }
            if let Some(rest) = [0; 3].get(..padded as usize - at) {
                view.slice(at..).copy_from_slice(rest);
            }
            at
        });
        match copied.await? {
            n if n == end - start => Ok(()),
            _ => Err(RunError::WeightAbsent { name: self.name.to_owned() }),
        }
    }
}

/// Copies weights, of which all bytes are there, into their buffers.
pub(crate) async fn upload(gpu: &Gpu, weights: &[(&str, &Tensor, wgpu::Buffer)]) -> Result<(), RunError> {
    let chunks: Vec<Chunk<'_>> = weights
        .iter()
        .flat_map(|(name, tensor, buffer)| {
            let len = tensor.byte_len().unwrap_or(0);
            let starts = (0..len).step_by(CHUNK);
            starts.map(move |start| Chunk { name, tensor, buffer, range: start..(start + CHUNK).min(len) })
        })
        .collect();
    let mut sent = None;
    // Small weights make small chunks: what counts is the bytes.
    let mut rest = chunks.as_slice();
    while !rest.is_empty() {
        let mut bytes = 0;
        let full = rest.iter().position(|c| {
            bytes += c.range.len();
            bytes > BATCH * CHUNK
        });
        let (batch, others) = rest.split_at(full.unwrap_or(rest.len()));
        rest = others;
        write_all(gpu, batch).await?;
        let index = gpu.scoped("uploading the weights", || gpu.queue().submit([])).await?;
        if let Some(before) = sent.replace(index) {
            gpu.drive(Some(before))?;
        }
    }
    gpu.health()
}

async fn write_all(gpu: &Gpu, chunks: &[Chunk<'_>]) -> Result<(), RunError> {
    #[cfg(not(target_arch = "wasm32"))]
    {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        if threads > 1 && chunks.len() > 1 {
            return in_parallel(gpu, chunks, threads);
        }
    }
    for c in chunks {
        c.write(gpu).await?;
    }
    Ok(())
}

#[cfg(not(target_arch = "wasm32"))]
fn in_parallel(gpu: &Gpu, chunks: &[Chunk<'_>], threads: usize) -> Result<(), RunError> {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some(c) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            pollster::block_on(c.write(gpu))?;
        }
        Ok(())
    };
    let panicked = || {
        let message = "a thread that copies weights panicked".to_owned();
        Err(RunError::Gpu { what: "uploading the weights".to_owned(), message })
    };
    std::thread::scope(|s| {
        let handles: Vec<_> = (0..threads).map(|_| s.spawn(worker)).collect();
        let done: Vec<_> = handles.into_iter().map(|h| h.join().unwrap_or_else(|_| panicked())).collect();
        done.into_iter().collect()
    })
}
