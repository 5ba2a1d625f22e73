//! How many tokens of a prompt a run takes.
//!
//! More tokens in a run use the device better, but need more memory, and a run cannot be interrupted. Programs for prompts are compiled for
//! runs of [`USUAL`] tokens. Where the options say no number, a run takes up to [`MOST`]: as many as the memory for intermediate results
//! allows, and as the device computes within [`LONGEST`] by what the run before took.

use super::{GeneratorOptions, programs};
use std::time::Duration;
use wgfc_ir::memory;
use wgfc_ir::program::Program;
use wgfc_runtime::Gpu;

/// The tokens of a run, where the options say nothing and nothing is known about the device.
pub(super) const USUAL: usize = 512;
/// The most tokens of a run: with more, products gain little.
const MOST: usize = 4096;
/// The longest time of a run of more than [`USUAL`] tokens. Systems reset a device that computes for two seconds.
const LONGEST: Duration = Duration::from_millis(400);
/// Runs of more than [`USUAL`] tokens take a multiple of this number, so that tiles of rows are full.
const STEP: usize = 128;
/// The part of the device's memory that intermediate results may take.
const SHARE: u64 = 8;
/// Bytes that they may take where the device's memory is unknown.
const UNKNOWN: u64 = 1 << 30;

/// The numbers of tokens that runs for prompts take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    usual: usize,
    most: usize,
    next: usize,
}

impl Chunks {
    /// All runs take one token.
    pub fn single() -> Chunks {
        Chunks { usual: 1, most: 1, next: 1 }
    }

    /// The numbers for a program for prompts. Its weights and its cache leave `room` bytes of the device's memory, if that is known.
    pub fn of(program: &Program, options: &GeneratorOptions, gpu: &Gpu, room: Option<u64>) -> Chunks {
        let usual = programs::chunk(program, options.chunk());
        let room = room.map_or(UNKNOWN, |r| r / 2).min(gpu.memory().map_or(UNKNOWN, |m| m / SHARE));
        let most = match options.prompt_chunk {
            None if usual == USUAL => {
                let fits = |n: &usize| {
                    let binding = gpu.profile().binding_bytes;
                    programs::chunk(program, *n) == *n
                        && needs(program, *n, options.capacity, binding) <= room
                };
                let more = std::iter::successors(Some(MOST), |n| Some(n / 2));
                more.take_while(|n| *n > usual).find(fits).unwrap_or(usual)
            }
            _ => usual,
        };
        Chunks { usual, most, next: usual }
    }

    /// The tokens of a run that nothing waits for long.
    pub fn usual(self) -> usize {
        self.usual
    }

    /// The most tokens of the next run.
    pub fn next(self) -> usize {
        self.next
    }

    /// Whether the time of a run changes the number of tokens of the next one.
    pub fn varies(self) -> bool {
        self.most > self.usual
    }

    /// Learns how long a run of so many tokens took.
    pub fn took(&mut self, tokens: usize, time: Duration) {
        let within = tokens as f64 * LONGEST.as_secs_f64() / time.as_secs_f64().max(1e-9);
        self.next = ((within as usize) / STEP * STEP).clamp(self.usual, self.most);
    }
}

/// The bytes of a program's intermediate results in a run of `tokens`, where all other sizes are `others`. A result that is larger than a
/// binding has no room.
fn needs(program: &Program, tokens: usize, others: usize, binding: u64) -> u64 {
    let symbol = programs::tokens_symbol(program);
    let value = |s: &str| i64::try_from(if symbol.as_deref() == Some(s) { tokens } else { others }).ok();
    let Ok(plan) = memory::plan(program, &value) else { return u64::MAX };
    let results = plan.bytes.iter().zip(&plan.slots).filter(|(_, slot)| slot.is_some());
    let largest = results.map(|(bytes, _)| *bytes).max().unwrap_or(0);
    if largest > binding { u64::MAX } else { plan.packed() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::program::{Buffer, BufferKind};
    use wgfc_ir::{DType, Dim};

    #[test]
    fn runs_grow_with_the_speed_of_the_device() {
        let mut c = Chunks { usual: 512, most: 4096, next: 512 };
        assert!(c.varies() && !Chunks::single().varies());
        for (tokens, milliseconds, next) in [
            (512, 6, 4096),
            (4096, 1600, 1024),
            (1024, 300, 1280),
            (512, 500, 512),
            (512, 0, 4096),
            (512, 60_000, 512),
        ] {
            c.took(tokens, Duration::from_millis(milliseconds));
            assert_eq!(c.next(), next, "{tokens} tokens in {milliseconds} ms");
        }
    }

    #[test]
    fn results_that_are_larger_than_a_binding_have_no_room() {
        let kind = BufferKind::Arena { arena: 0, first: 0, last: 0 };
        let buffers = vec![Buffer { kind, dtype: DType::F32, elements: Dim::sym("past") * 100 }];
        let program = Program { symbols: vec!["past".to_owned()], buffers, ..Program::default() };
        assert_eq!(needs(&program, 512, 64, 1 << 20), 25_600);
        assert_eq!(needs(&program, 512, 64, 25_599), u64::MAX);
    }
}
