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

use super::sequence::{self, Flight};
use super::{Bounds, Generated, SequenceId};
use crate::Error;
use crate::generate::Request;
use crate::generate::choose::Choice;
use crate::generate::chooser::Chooser;
use crate::model::device_error;
use pages::{Held, Page, Pages, UNUSED};
use std::collections::VecDeque;
use wgfc_runtime::Session;
use wgfc_runtime::session::{DeviceMemory, Place};

/// The positions of a page.
const PAGE: usize = 16;

/// The program that takes one token of up to `rows` sequences.
struct Width {
    rows: usize,
    session: Session,
    chooser: Chooser,
}

type Sequence = sequence::Sequence<Held>;

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
    /// In the order in which they joined, which is that of their names.
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
        let mut choice = Choice::of(request, self.vocabulary)?;
        choice.follow(prompt);
        // The last token of a prompt is always processed, as the next one depends on its logits.
        let held = self.pages.prefix(prompt, prompt.len().saturating_sub(1));
        let fed = held.pages.len() * PAGE;
        self.reused += fed as u64;
        let id = SequenceId(self.next);
        self.next += 1;
        self.sequences.push(Sequence::new(id, prompt, request, choice, fed, held));
        Ok(id)
    }

    /// Ends a sequence.
    pub fn leave(&mut self, sequence: SequenceId) {
        if let Some(mut s) = self.remove(sequence) {
            let processed = s.processed();
            self.pages.keep(&mut s.place, &s.tokens[..processed]);
            self.pages.release(&mut s.place);
        }
    }

    /// Ends a sequence whose pages may hold what is no number: keys and values that a mask hides are multiplied, too.
    fn spoil(&mut self, sequence: SequenceId) -> Result<(), Error> {
        let Some(mut s) = self.remove(sequence) else { return Ok(()) };
        self.all_in_use()?;
        for page in self.pages.forget_all(&mut s.place) {
            let at = |page: Page| Place { row: 0, position: page as usize };
            let session = &mut self.widths[0].session;
            session.copy_positions_blocking(1, at(UNUSED), at(page), 1).map_err(device_error)?;
            self.pages.put_back(page);
        }
        Ok(())
    }

    fn find(&self, id: SequenceId) -> Option<usize> {
        self.sequences.binary_search_by_key(&id, |s| s.id).ok()
    }

    fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        self.find(id).map(|i| self.sequences.remove(i))
    }

    /// Ends all sequences and empties the pool.
    ///
    /// # Errors
    /// An error of the device.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.sequences.clear();
        self.flights.clear();
        self.pages.clear();
        self.widths[0].session.reset_blocking().map_err(device_error)
    }

    /// See [`ContinuousGenerator::step`](super::ContinuousGenerator::step).
    pub fn step(&mut self) -> Result<Vec<Generated>, Error> {
        let done = self.advance();
        if done.is_err() {
            // An error here comes again with the next run.
            let _ = self.reset();
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
        let (rows, chosen) = flight.read(self.vocabulary)?;
        let mut all = vec![];
        for (row, id) in rows.iter().enumerate() {
            let Some(i) = id.and_then(|id| self.find(id)) else { continue };
            let generated = self.sequences[i].add(&chosen, row)?;
            match &generated {
                g if g.token.is_err() => self.spoil(g.sequence)?,
                g if g.is_last() => self.leave(g.sequence),
                _ => {}
            }
            all.push(generated);
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

    /// A generator of one sequence, and one of several in pages, whose prompts are processed in parts of so many tokens.
    fn generators(batch: usize, prompt_chunk: usize) -> Option<(Generator, Paged)> {
        let gpus = wgfc_runtime::testing::gpus();
        let gpu = gpus.first()?;
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/decoders/llama/model.gguf");
        let decoder = Decoder::open(&path).unwrap();
        let options = GeneratorOptions {
            capacity: 64,
            prompt_chunk: Some(prompt_chunk),
            ..GeneratorOptions::default()
        };
        let one = Generator::on_device(gpu.clone(), &decoder, &options).unwrap();
        Some((one, Paged::on_device(gpu.clone(), &decoder, batch, &options).unwrap()))
    }

    /// Where pages are too few for all sequences, those that joined last wait and are processed again, and have the tokens that they have
    /// alone.
    #[test]
    fn sequences_wait_for_pages() {
        let Some((mut one, mut all)) = generators(3, 8) else { return };
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
        assert_eq!((all.running(), all.pages.held()), (0, 0));
        let id = all.join(&prompts[0], &Request { max_new_tokens: 3, ..Request::default() }).unwrap();
        let mut tokens = vec![];
        while all.running() > 0 {
            tokens.extend(all.step().unwrap().into_iter().map(|g| (g.sequence, g.token.unwrap())));
        }
        let want = got[&ids[0]][..3].iter().map(|t| (id, *t));
        assert_eq!(tokens, want.collect::<Vec<_>>());
    }

    /// A sequence whose keys and values are no numbers ends alone, and its pages serve others.
    #[test]
    fn what_is_no_number_stays_with_its_sequence() {
        let Some((mut one, mut all)) = generators(2, 128) else { return };
        let request = Request { max_new_tokens: 20, ..Request::default() };
        let prompt = |n: i64| -> Vec<i64> { (0..20).map(|t| (t * n + 3) % 90).collect() };
        let bad = all.join(&prompt(7), &request).unwrap();
        let good = all.join(&prompt(11), &request).unwrap();
        let mut tokens: BTreeMap<SequenceId, Vec<Result<i64, Error>>> = BTreeMap::new();
        let mut step = |all: &mut Paged| {
            for g in all.step().unwrap() {
                tokens.entry(g.sequence).or_default().push(g.token);
            }
        };
        (0..6).for_each(|_| step(&mut all));
        let pages = all.sequences[all.find(bad).unwrap()].place.pages.clone();
        all.all_in_use().unwrap();
        let mut states = all.session().states_blocking().unwrap();
        for state in states.values_mut() {
            let size = state.numel() / state.shape[0];
            let mut values = state.to_f32s().unwrap();
            for page in &pages {
                values[*page as usize * size..(*page as usize + 1) * size].fill(f32::NAN);
            }
            *state = wgfc_ir::Tensor::from_f32(state.shape.clone(), &values);
        }
        all.widths[0].session.update_states_blocking(&states).unwrap();
        while all.find(bad).is_some() {
            step(&mut all);
        }
        let next = all.join(&prompt(13), &request).unwrap();
        step(&mut all);
        let taken = &all.sequences[all.find(next).unwrap()].place.pages;
        assert!(taken.iter().any(|page| pages.contains(page)), "pages that have been given back are taken");
        while all.running() > 0 {
            step(&mut all);
        }
        assert!(tokens[&bad].last().unwrap().is_err());
        for (id, n) in [(good, 11), (next, 13)] {
            one.reset().unwrap();
            let want: Vec<i64> = one.generate(&prompt(n), &request).unwrap().map(Result::unwrap).collect();
            let got: Vec<i64> = tokens.remove(&id).unwrap().into_iter().map(Result::unwrap).collect();
            assert_eq!(got, want, "{n}");
        }
        assert_eq!(all.pages.held(), 0);
    }
}
