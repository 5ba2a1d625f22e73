//! Reuse of cached prefixes.
//!
//! When a sequence ends, its tokens stay in the positions of its row until another sequence takes the row or the cache is
//! emptied. A prompt that begins like the tokens of any row, of a sequence that runs or has ended, is not processed from its
//! beginning: its row gets the cached positions of the common prefix, copied on the device. Keys are turned by the position of
//! their token in its sequence, so they mean the same wherever they lie. They are copied to the positions just before the next
//! run's, as the tokens of a sequence must be consecutive. In caches in which each sequence has its own end they begin at
//! position 0.
//!
//! If nothing runs and the room behind the positions in use is too small, or there is a single row, the prefix moves to the
//! beginning of the cache, and positions behind it are free again.

use super::Rows;
use crate::Error;
use crate::model::device_error;
use wgfc_runtime::RunError;
use wgfc_runtime::session::Place;

/// The fewest tokens for which copying pays.
const LEAST: usize = 8;

/// Tokens of an ended sequence that are still in the positions of its row.
pub(super) struct Remembered {
    tokens: Vec<i64>,
    /// The position of the first one.
    start: usize,
    /// When the sequence ended, as a number of sequences begun.
    at: u64,
}

/// A row whose positions hold the first tokens of a prompt.
#[derive(Clone, Copy)]
struct Source {
    row: usize,
    start: usize,
    tokens: usize,
    /// The number of tokens of the row's sequence.
    of: usize,
}

impl Rows {
    /// The number of tokens of prompts that were not processed, because a row of the cache held them.
    pub fn reused(&self) -> u64 {
        self.reused
    }

    /// Frees a row. Its tokens are remembered if they are `sound`.
    pub(super) fn free(&mut self, row: usize, sound: bool) {
        let held = if sound { self.held(row) } else { None };
        let held = held.map(|(tokens, start)| (tokens.to_vec(), start));
        self.remembered[row] = held.map(|(tokens, start)| Remembered { tokens, start, at: self.next });
        self.rows[row] = None;
        if !(self.batch.own_ends && sound) {
            self.batch.forget(row);
        }
    }

    /// A free row: one that remembers nothing, or the sequence that ended first.
    pub(super) fn free_row(&self) -> Option<usize> {
        let free = (0..self.rows.len()).filter(|r| self.rows[*r].is_none());
        free.min_by_key(|r| self.remembered[*r].as_ref().map(|m| m.at + 1))
    }

    /// The tokens in the positions of a row, from the given one on.
    fn held(&self, row: usize) -> Option<(&[i64], usize)> {
        if let Some(m) = &self.remembered[row] {
            return Some((&m.tokens, m.start));
        }
        let s = self.rows[row].as_ref()?;
        let (start, length) = if self.batch.own_ends { (0, s.fed) } else { self.batch.stretch(row)? };
        Some((&s.tokens[..s.fed.min(s.tokens.len()).min(length)], start))
    }

    /// The row that holds the longest prefix of the prompt. Its last token is always processed, as the next one depends on its logits.
    fn source(&self, prompt: &[i64]) -> Option<Source> {
        let most = prompt.len().saturating_sub(1);
        let of_row = |row: usize| {
            let (held, start) = self.held(row)?;
            let tokens = held.iter().zip(&prompt[..most]).take_while(|(a, b)| a == b).count();
            (tokens >= LEAST).then_some(Source { row, start, tokens, of: held.len() })
        };
        // Among equally long ones, a row that is free may need no copy.
        (0..self.rows.len()).filter_map(of_row).max_by_key(|s| (s.tokens, self.rows[s.row].is_none()))
    }

    /// Gives a free row the cached positions of a prefix of the prompt, to which up to `new` tokens will be added: the row, and
    /// the number of tokens. `None` if no row holds enough of it.
    pub(super) fn reuse(&mut self, prompt: &[i64], new: usize) -> Result<Option<(usize, usize)>, Error> {
        let Some(source) = self.source(prompt).filter(|_| self.reuses) else { return Ok(None) };
        let idle = self.running() == 0;
        let is_free = self.rows[source.row].is_none();
        // A conversation goes on in its row; one that shares only its beginning with another leaves it the row.
        let row = match is_free && 2 * source.tokens >= source.of {
            true => Some(source.row),
            false => self.free_row(),
        };
        let Some(row) = row else { return Ok(None) };
        let (count, end) = (source.tokens, self.positions());
        let need = (prompt.len() - count).saturating_add(new);
        let full = end.saturating_add(need) > self.batch.capacity();
        let to_beginning = idle && (full || self.rows.len() == 1);
        let from = Place { row: source.row, position: source.start };
        let start = if self.batch.own_ends || to_beginning { 0 } else { end.saturating_sub(count) };
        let to = Place { row, position: start };
        let rows = self.rows.len();
        let copied = self.batch.generator.decode.copy_positions_blocking(rows, from, to, count);
        match copied {
            Ok(()) => {}
            Err(RunError::State { .. }) => {
                // The states do not have a row for each sequence, or positions of whole words.
                self.reuses = false;
                return Ok(None);
            }
            Err(e) => return Err(device_error(e)),
        }
        self.remembered[row] = None;
        self.batch.place(row, start, count);
        if to_beginning {
            self.compact(row, count, need)?;
        }
        if idle {
            self.flight = None;
            (self.realign, self.after_prompts) = (false, false);
        }
        self.reused += count as u64;
        Ok(Some((row, count)))
    }

    /// Frees the positions behind the first `count` tokens of a row, which begin at 0. Nothing runs. What the other rows remember there is
    /// lost; where each sequence has its own end, it stays if there is room for `need` more positions.
    fn compact(&mut self, row: usize, count: usize, need: usize) -> Result<(), Error> {
        let all = self.remembered.iter().flatten().map(|m| m.tokens.len());
        let longest = all.max().unwrap_or(0).max(count);
        let keep = self.batch.own_ends && longest.saturating_add(need) <= self.batch.capacity();
        let end = if keep { longest } else { count };
        for r in (0..self.rows.len()).filter(|r| *r != row) {
            let Some(m) = &mut self.remembered[r] else {
                self.batch.forget(r);
                continue;
            };
            m.tokens.truncate(end.saturating_sub(m.start));
            if self.batch.own_ends {
                let (start, tokens) = (m.start, m.tokens.len());
                self.batch.place(r, start, tokens);
            }
        }
        self.batch.rewind(end)
    }
}
