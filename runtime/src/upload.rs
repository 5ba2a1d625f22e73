//! Uploads of weights, inputs and contents of states.

use crate::error::RunError;
use crate::gpu::Gpu;
use crate::platform::{self, PIECE};
use std::ops::Range;
use std::time::Duration;
use wgfc_program::Tensor;

/// Copies tensors, all of whose bytes must be present, into buffers. Work that is submitted afterwards sees the bytes. Tensors are read
/// in the order of their places in files.
pub(crate) async fn tensors(gpu: &Gpu, all: &[(&str, &Tensor, wgpu::Buffer)]) -> Result<(), RunError> {
    let mut all: Vec<_> = all.iter().collect();
    all.sort_by_key(|(_, t, _)| t.place());
    let sources: Vec<Source<'_>> =
        all.iter().map(|(name, t, buffer)| Source { name, bytes: Bytes::Tensor(t), buffer }).collect();
    let bytes: usize = sources.iter().map(|s| s.bytes.len()).sum();
    let start = platform::now();
    gpu.count_uploads(|u| u.wanted += bytes as u64);
    let done = platform::upload(gpu, pieces(&sources)).await;
    gpu.count_uploads(|u| u.time += start.map_or(Duration::ZERO, |s| s.elapsed()));
    done
}

/// Copies bytes into a buffer. Work that is submitted afterwards sees them.
pub(crate) async fn bytes(
    gpu: &Gpu,
    name: &str,
    bytes: &[u8],
    buffer: &wgpu::Buffer,
) -> Result<(), RunError> {
    let source = [Source { name, bytes: Bytes::Slice(bytes), buffer }];
    platform::upload(gpu, pieces(&source)).await
}

/// Bytes for a buffer, starting at offset 0.
pub(crate) struct Source<'s> {
    /// The name of the bytes in messages.
    pub(crate) name: &'s str,
    pub(crate) bytes: Bytes<'s>,
    pub(crate) buffer: &'s wgpu::Buffer,
}

#[derive(Clone, Copy)]
pub(crate) enum Bytes<'s> {
    Tensor(&'s Tensor),
    Slice(&'s [u8]),
}

impl Bytes<'_> {
    fn len(self) -> usize {
        match self {
            Bytes::Tensor(t) => t.byte_len().unwrap_or(0),
            Bytes::Slice(b) => b.len(),
        }
    }

    /// Calls `put` with consecutive pieces of a range, each with its offset in the range. Returns the number of bytes present.
    fn each(self, range: Range<usize>, put: &mut dyn FnMut(usize, &[u8])) -> usize {
        match self {
            Bytes::Slice(b) => {
                let b = b.get(range).unwrap_or_default();
                put(0, b);
                b.len()
            }
            Bytes::Tensor(t) => {
                let mut at = 0;
                let whole = t.read(range, &mut |piece| {
                    put(at, piece);
                    at += piece.len();
                });
                if whole { at } else { 0 }
            }
        }
    }
}

/// A byte range of a source.
pub(crate) struct Piece<'s> {
    pub(crate) source: &'s Source<'s>,
    pub(crate) range: Range<usize>,
}

impl Piece<'_> {
    /// The length in bytes with the last word padded with zeros.
    pub(crate) fn padded(&self) -> usize {
        self.range.len().next_multiple_of(4)
    }
    /// Says that the bytes have been read, and counts those of tensors.
    pub(crate) fn done(&self, gpu: &Gpu) {
        if let Bytes::Tensor(t) = self.source.bytes {
            t.release(self.range.clone());
            gpu.count_uploads(|u| u.bytes += self.range.len() as u64);
        }
    }
    pub(crate) fn absent(&self) -> RunError {
        RunError::WeightAbsent { name: self.source.name.to_owned() }
    }

    /// Copies the bytes to memory of the padded size; `false` if some are not present.
    pub(crate) fn put(&self, mut to: wgpu::WriteOnly<'_, [u8]>) -> bool {
        let n = self.source.bytes.each(self.range.clone(), &mut |at, b| {
            to.slice(at..at + b.len()).copy_from_slice(b);
        });
        let whole = n == self.range.len();
        if let Some(rest) = [0; 3].get(..self.padded() - self.range.len()).filter(|_| whole) {
            to.slice(n..).copy_from_slice(rest);
        }
        whole
    }

    /// Uploads the piece through the queue's own staging memory.
    async fn queue(&self, gpu: &Gpu) -> Result<(), RunError> {
        let what = format!("uploading \"{}\"", self.source.name);
        let Some(size) = wgpu::BufferSize::new(self.padded() as u64) else { return Ok(()) };
        let copied = gpu.scoped(&what, || {
            let view = gpu.queue().write_buffer_with(self.source.buffer, self.range.start as u64, size);
            // If there is no view, the error scope has the error.
            view.is_none_or(|mut view| self.put(view.slice(..)))
        });
        if copied.await? {
            self.done(gpu);
            Ok(())
        } else {
            Err(self.absent())
        }
    }
}

pub(crate) fn pieces<'s>(sources: &'s [Source<'s>]) -> Vec<Piece<'s>> {
    let of = |source: &'s Source<'s>| {
        let len = source.bytes.len();
        (0..len).step_by(PIECE).map(move |start| Piece { source, range: start..(start + PIECE).min(len) })
    };
    sources.iter().flat_map(of).collect()
}

/// Uploads pieces through the queue's own staging memory.
pub(crate) async fn through_queue(gpu: &Gpu, pieces: Vec<Piece<'_>>) -> Result<(), RunError> {
    for p in &pieces {
        p.queue(gpu).await?;
    }
    Ok(())
}
