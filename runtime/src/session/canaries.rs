//! Canaries: words behind every buffer, with which tests detect out-of-bounds writes of kernels.

use super::Session;
use super::prepared::Prepared;
use crate::bind;
use crate::error::RunError;
use wgfc_program::memory::{ALIGNMENT, MemoryPlan};
use wgfc_program::program::{Access, BufferKind};

/// The number of bytes behind each buffer.
const SLACK: u64 = 256;
/// A canary is NaN as f32, its halves are NaN as f16 and as bf16, and it is outside the range of any index.
const WORD: u32 = 0x7fed_7fed;

/// Lays out the buffers of arenas without overlap, with room for canaries behind each.
pub(super) fn spread(memory: &mut MemoryPlan) {
    memory.arenas.iter_mut().for_each(|a| *a = 0);
    for (slot, bytes) in memory.slots.iter_mut().zip(&memory.bytes) {
        let Some((arena, offset)) = slot else { continue };
        *offset = memory.arenas[*arena];
        memory.arenas[*arena] = (*offset + bytes + SLACK).next_multiple_of(ALIGNMENT);
    }
}

fn words(bytes: u64) -> Vec<u8> {
    WORD.to_le_bytes().repeat(usize::try_from(bytes / 4).unwrap_or(0))
}

impl Session {
    /// The number of bytes that are bound behind each buffer.
    pub(crate) fn slack(&self) -> u64 {
        if self.canaries { SLACK } else { 0 }
    }

    /// Writes canaries behind all buffers, and over arenas and outputs.
    pub(super) async fn lay_canaries(&self, prepared: &Prepared) -> Result<(), RunError> {
        let fill = |buffer: &wgpu::Buffer, from: u64, to: u64| {
            self.gpu.queue().write_buffer(buffer, from, &words(to - from))
        };
        self.gpu
            .scoped("writing canaries", || {
                for arena in &self.arenas {
                    fill(arena, 0, arena.size());
                }
                for (b, buffer) in self.program.buffers.iter().enumerate() {
                    let Some(p) = self.piece(&prepared.bound, &prepared.ports, b) else { continue };
                    let written = matches!(buffer.kind, BufferKind::Output { .. });
                    let from = if written { 0 } else { prepared.bound.memory.bytes[b] };
                    fill(&p.buffer, p.offset + from, p.offset + p.size);
                }
            })
            .await
    }

    /// Waits for a run and checks that the canaries are unchanged.
    pub(super) async fn check_canaries(&self, prepared: &Prepared) -> Result<(), RunError> {
        let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
        let of = |b: usize| {
            let (p, bytes) =
                (self.piece(&prepared.bound, &prepared.ports, b)?, prepared.bound.memory.bytes[b]);
            (p.size > bytes).then(|| (b, p.buffer, p.offset + bytes, p.size - bytes))
        };
        let pieces: Vec<_> = (0..self.program.buffers.len()).filter_map(of).collect();
        let all = SLACK * pieces.len().max(1) as u64;
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = self.gpu.buffer("canaries", all, usage).await?;
        for ((_, buffer, from, len), to) in pieces.iter().zip((0..).step_by(SLACK as usize)) {
            encoder.copy_buffer_to_buffer(buffer, *from, &staging, to, *len);
        }
        let submit = || self.gpu.queue().submit([encoder.finish()]);
        let sent = self.gpu.scoped("reading canaries", submit).await?;
        let hit = self.gpu.map_read(&staging, all, Some(sent), |read| {
            let mut each = pieces.iter().zip(read.chunks_exact(SLACK as usize));
            each.find_map(|((b, _, _, len), got)| {
                let at = got.chunks_exact(4).take(*len as usize / 4).position(|w| w != WORD.to_le_bytes())?;
                Some((*b, 4 * at as u64))
            })
        });
        let Some((b, past)) = hit.await? else { return Ok(()) };
        let kind = match &self.program.buffers[b].kind {
            BufferKind::Input { index } => format!("input \"{}\"", self.program.inputs[*index].name),
            BufferKind::Output { index } => format!("output \"{}\"", self.program.outputs[*index].name),
            BufferKind::Weight { name } => format!("weight \"{name}\""),
            BufferKind::State { name } => format!("state \"{name}\""),
            BufferKind::Arena { .. } => "an intermediate tensor".to_owned(),
        };
        let writes = |d: &&wgfc_program::program::Dispatch| {
            let bindings = self.program.kernels.get(d.kernel).map_or(&[][..], |k| &k.bindings);
            d.bindings.iter().zip(bindings).any(|(at, a)| *at == b && *a == Access::ReadWrite)
        };
        let mut writers: Vec<String> =
            self.program.dispatches.iter().filter(writes).map(|d| bind::origin(&d.nodes)).collect();
        writers.dedup();
        writers.truncate(4);
        Err(RunError::OutOfBounds {
            buffer: format!("buffer {b}, {kind}"),
            past,
            writers: writers.join("; "),
        })
    }
}
