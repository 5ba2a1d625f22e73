//! Sequences whose positions lie in pages of a pool.
//!
//! Each sequence begins at position 0, and a table names the page of each part of it ([`Pages`]). So sequences of any length run
//! together: a run takes one token of each that generates, or a part of one prompt. Between two parts of prompts all others generate a token.
//! There are programs for a few numbers of sequences ([`widths`]), of which a run takes the smallest that has room.
//!
//! A run starts before the one before it is read: it takes the tokens that unread runs choose on the device. Only a choice that depends on
//! the tokens before it waits for them.
//!
//! Whole pages of a prompt that another sequence has processed are shared. When no page is left, the sequence that joined last is
//! processed again later.

mod build;
mod pages;
mod run;

use super::{Bounds, End, Generated, SequenceId};
use crate::Error;
use crate::generate::choose::{self, Choice};
use crate::generate::chooser::Chooser;
use crate::generate::{LogProbs, Request, head, logprobs, no_output};
use crate::model::device_error;
use pages::{Held, Pages};
use std::collections::VecDeque;
use wgfc_runtime::Session;
use wgfc_runtime::session::{DeviceMemory, Started};

/// The positions of a page.
const PAGE: usize = 16;

/// The program that takes one token of up to `rows` sequences.
struct Width {
    rows: usize,
    session: Session,
    chooser: Chooser,
}

/// A sequence.
struct Sequence {
    id: SequenceId,
    /// All tokens that are known on the host, prompt and generated ones.
    tokens: Vec<i64>,
    /// The number of tokens that runs process which have been started. It exceeds `tokens` by one if the token that a run chooses
    /// has been fed to the next one before it was read.
    fed: usize,
    held: Held,
    /// The number of tokens that may still be generated.
    left: usize,
    stop: Vec<i64>,
    choice: Choice,
    /// The number of tokens whose log-probabilities are reported.
    logprobs: Option<usize>,
}

impl Sequence {
    /// The known tokens that no run has been given yet.
    fn pending(&self) -> &[i64] {
        self.tokens.get(self.fed..).unwrap_or_default()
    }
}

/// The sequences of the rows of a run.
type Layout = Vec<Option<SequenceId>>;

/// A run that has been started, and the sequence of each row whose next token it chooses.
struct Flight {
    started: Started,
    rows: Layout,
    /// The log-probabilities, if a sequence needs them.
    logprobs: Option<Started>,
}

/// Sequences whose positions lie in pages.
pub(super) struct Paged {
    /// The program for parts of prompts; `None` if they are processed token by token.
    prompts: Option<Session>,
    /// By their number of rows; the first has one.
    widths: Vec<Width>,
    /// The most tokens of a prompt in a run.
    chunk: usize,
    vocabulary: usize,
    /// The most tokens of a sequence.
    capacity: usize,
    batch: usize,
    warnings: Vec<String>,
    pages: Pages,
    /// The most pages.
    limit: usize,
    /// In the order in which they joined.
    sequences: Vec<Sequence>,
    /// Runs that have been started and not been read, in order.
    flights: VecDeque<Flight>,
    /// Whether the last run was one of a prompt.
    after_prompt: bool,
    next: u64,
    recomputed: u64,
    reused: u64,
}

impl Paged {
    /// See [`ContinuousGenerator::bounds`](super::ContinuousGenerator::bounds).
    pub fn bounds(&self) -> Bounds {
        Bounds { vocabulary: self.vocabulary, capacity: self.capacity, features: None }
    }
    /// The most sequences at a time.
    pub fn batch(&self) -> usize {
        self.batch
    }
    /// The number of sequences that have not ended.
    pub fn running(&self) -> usize {
        self.sequences.len()
    }
    /// The number of positions of the pages that sequences hold.
    pub fn positions(&self) -> usize {
        self.pages.held() * PAGE
    }
    /// How often a sequence was processed again because there was no page.
    pub fn recomputed(&self) -> u64 {
        self.recomputed
    }
    /// The number of tokens of prompts that lay in pages already.
    pub fn reused(&self) -> u64 {
        self.reused
    }
    /// The compiler's warnings.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
    /// The session that runs a single token of each sequence.
    pub fn session(&self) -> &Session {
        &self.widest().session
    }
    /// The memory on the device.
    pub fn device_memory(&self) -> DeviceMemory {
        let each = self.widths.iter().flat_map(|w| std::iter::once(&w.session).chain(w.chooser.sessions()));
        DeviceMemory::of(each.chain(&self.prompts))
    }

    fn widest(&self) -> &Width {
        // There is a width of one row at least.
        &self.widths[self.widths.len() - 1]
    }

    /// See [`ContinuousGenerator::join`](super::ContinuousGenerator::join).
    pub fn join(&mut self, prompt: &[i64], request: &Request) -> Result<SequenceId, Error> {
        self.bounds().check(prompt, request)?;
        if self.running() == self.batch {
            let message = format!("{} sequences are running, and there is room for no more", self.batch);
            return Err(Error::usage(message, "wait until one has ended"));
        }
        if self.sequences.is_empty() && self.pages.are_spoiled() {
            self.reset()?;
        }
        let mut choice = Choice::of(request, self.vocabulary)?;
        choice.follow(prompt);
        // The last token of a prompt is always processed, as the next one depends on its logits.
        let held = self.pages.prefix(prompt, prompt.len().saturating_sub(1));
        let fed = held.pages.len() * PAGE;
        self.reused += fed as u64;
        let id = SequenceId(self.next);
        self.next += 1;
        self.sequences.push(Sequence {
            id,
            tokens: prompt.to_vec(),
            fed,
            held,
            left: request.max_new_tokens,
            stop: request.stop.clone(),
            choice,
            logprobs: request.logprobs,
        });
        Ok(id)
    }

    /// Ends a sequence.
    pub fn leave(&mut self, sequence: SequenceId) {
        self.end(sequence, true);
    }

    /// Ends a sequence, whose pages hold numbers if it is `sound`.
    fn end(&mut self, sequence: SequenceId, sound: bool) {
        let Some(i) = self.sequences.iter().position(|s| s.id == sequence) else { return };
        let mut s = self.sequences.remove(i);
        if sound {
            self.pages.keep(&mut s.held, &s.tokens[..s.fed.min(s.tokens.len())]);
            self.pages.release(&mut s.held);
        } else {
            self.pages.spoil(&mut s.held);
        }
    }

    /// Ends all sequences and empties the pool.
    ///
    /// # Errors
    /// An error of the device.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.sequences.clear();
        self.flights.clear();
        self.pages.clear();
        self.widths[0].session.reset_blocking().map_err(device_error)?;
        Ok(())
    }

    /// See [`ContinuousGenerator::step`](super::ContinuousGenerator::step).
    pub fn step(&mut self) -> Result<Vec<Generated>, Error> {
        let done = self.advance();
        if done.is_err() {
            self.flights.clear();
            let ids: Vec<SequenceId> = self.sequences.iter().map(|s| s.id).collect();
            ids.into_iter().for_each(|id| self.end(id, false));
        }
        done
    }

    fn advance(&mut self) -> Result<Vec<Generated>, Error> {
        if self.sequences.is_empty() {
            self.flights.clear();
            return Ok(vec![]);
        }
        let mut all = vec![];
        let started = self.flights.len() < 2 && self.start(&mut all)?;
        // A run that does not choose is followed by another one before a token is awaited.
        if (!started || self.flights.len() == 2)
            && let Some(flight) = self.flights.pop_front()
        {
            all.extend(self.read(flight)?);
        }
        Ok(all)
    }

    /// The tokens that a run has chosen. Sequences that have ended since are passed over.
    fn read(&mut self, flight: Flight) -> Result<Vec<Generated>, Error> {
        let read = flight.started.read_blocking().map_err(device_error)?;
        let likely = flight.logprobs.map(logprobs::read).transpose()?.unwrap_or_default();
        let out = read.iter().find(|(n, _)| n == head::TOKEN);
        let out = out.and_then(|(_, t)| t.scalars()).unwrap_or_default();
        let known = 0..self.vocabulary as i64;
        let mut all = vec![];
        for (row, id) in flight.rows.iter().enumerate() {
            let Some(s) = self.sequences.iter_mut().find(|s| Some(s.id) == *id) else { continue };
            let token = match out.get(row).map(|t| t.as_i64()).ok_or_else(no_output)? {
                choose::NONE => Err(choose::nothing_to_choose()),
                t if known.contains(&t) => Ok(t),
                t => Err(Error::Internal(format!("the device chose token {t}"))),
            };
            let token = token.and_then(|t| Ok((t, s.choice.add(t)?)));
            s.left -= 1;
            let end = match &token {
                Ok((t, _)) if s.stop.contains(t) => Some(End::Stop),
                Ok((_, true)) => Some(End::Complete),
                Ok(_) if s.left == 0 => Some(End::Length),
                _ => None,
            };
            let logprobs: Option<LogProbs> = s.logprobs.and_then(|n| Some(likely.get(row)?.clone().most(n)));
            s.tokens.extend(token.as_ref().ok().map(|t| t.0));
            let (sequence, ends, sound) = (s.id, end.is_some() || token.is_err(), token.is_ok());
            all.push(Generated { sequence, token: token.map(|t| t.0), logprobs, end });
            if ends {
                self.end(sequence, sound);
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Decoder, Generator, GeneratorOptions};
    use std::collections::BTreeMap;
    use std::path::Path;

    /// Where pages are too few for all sequences, those that joined last wait and are processed again, and have the tokens that they have
    /// alone.
    #[test]
    fn sequences_wait_for_pages() {
        let gpus = wgfc_runtime::testing::gpus();
        let Some(gpu) = gpus.first() else { return };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/decoders/llama/model.gguf");
        let decoder = Decoder::open(&path).unwrap();
        let options = GeneratorOptions { capacity: 64, prompt_chunk: 8, ..GeneratorOptions::default() };
        let mut one = Generator::on_device(gpu.clone(), &decoder, &options).unwrap();
        let mut all = Paged::on_device(gpu.clone(), &decoder, 3, &options).unwrap();
        all.pages = Pages::new(PAGE);
        all.pages.grow(6);
        all.limit = 6;
        let request = Request { max_new_tokens: 20, ..Request::default() };
        let prompts: Vec<Vec<i64>> =
            (0..3).map(|i| (0..14 + 9 * i).map(|t| (t * (7 + i) + 3) % 90).collect()).collect();
        let ids: Vec<SequenceId> = prompts.iter().map(|p| all.join(p, &request).unwrap()).collect();
        let mut got: BTreeMap<SequenceId, Vec<i64>> = BTreeMap::new();
        for step in 0.. {
            assert!(step < 1000);
            for g in all.step().unwrap() {
                got.entry(g.sequence).or_default().push(g.token.unwrap());
            }
            if all.running() == 0 {
                break;
            }
        }
        assert!(all.recomputed() > 0);
        for (id, prompt) in ids.iter().zip(&prompts) {
            one.reset().unwrap();
            let want: Vec<i64> = one.generate(prompt, &request).unwrap().map(Result::unwrap).collect();
            assert_eq!(got[id], want);
        }
        // A sequence that no number of others makes room for is an error, after which the pool can be used.
        let longer = Request { max_new_tokens: 40, ..Request::default() };
        all.limit = 3;
        all.pages = Pages::new(PAGE);
        all.pages.grow(3);
        all.join(&prompts[1], &longer).unwrap();
        let failed = (0..100).find_map(|_| all.step().err()).unwrap();
        assert!(failed.to_string().contains("more than 48 positions"), "{failed}");
        assert_eq!((all.running(), all.pages.held()), (0, 2));
        let id = all.join(&prompts[0], &Request { max_new_tokens: 3, ..Request::default() }).unwrap();
        let mut tokens = vec![];
        while all.running() > 0 {
            tokens.extend(all.step().unwrap().into_iter().map(|g| (g.sequence, g.token.unwrap())));
        }
        let want = got[&ids[0]][..3].iter().map(|t| (id, *t));
        assert_eq!(tokens, want.collect::<Vec<_>>());
    }
}
