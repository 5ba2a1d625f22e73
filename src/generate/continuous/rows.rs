//! Sequences that begin and end at any time, in the rows of one batch.
//!
//! All rows append at the same position of the cache ([`BatchGenerator`]). A sequence that joins takes a free row, whose
//! earlier positions are hidden by the attention mask. Its tokens lie in consecutive positions, as attention within a window
//! counts positions of the cache: every run appends as many tokens of each running sequence as it has positions. So
//! sequences that generate take part in runs of one token, and a short prompt is processed one token a run beside them. For a
//! long prompt the cache is emptied and all sequences are processed again. Sequences that begin in an empty cache, again or
//! for the first time, are aligned at their ends: the shorter ones wait until the longest has as many tokens left.
//!
//! In caches in which each sequence has its own end, padding of a run takes no positions. There the prompt is processed in
//! runs in which the other rows append padding, and between two such runs the other sequences generate one token each.
//!
//! Positions are used up by padding and by sequences that have ended. When the cache has no room left, it is emptied and the
//! tokens of all running sequences are processed again, in as many positions as the longest has tokens.
//!
//! A prompt that begins like the tokens of a row is not processed from its beginning: see [`prefix`].

mod prefix;

use super::sequence::{self, Flight};
use super::{Bounds, Generated, SequenceId, limits_of};
use crate::Error;
use crate::generate::batch::{BatchGenerator, Feed, Pick};
use crate::generate::choose::{self, Choice, Limits};
use crate::generate::{Decoder, GeneratorOptions, ImageFeatures, Request, head, no_output, stepwise};
use prefix::Remembered;
use wgfc_runtime::session::{DeviceMemory, Started};
use wgfc_runtime::{DeviceTensor, Gpu, Session};

/// The part of a sequence that its row needs.
struct InRow {
    /// The number of positions that the other rows append before this one's first token.
    delay: usize,
    /// The pictures of the prompt.
    images: Vec<ImageFeatures>,
}

type Sequence = sequence::Sequence<InRow>;

/// Sequences in the rows of one batch.
pub(super) struct Rows {
    batch: BatchGenerator,
    rows: Vec<Option<Sequence>>,
    flight: Option<Flight>,
    /// Whether the last run was one of several tokens of prompts.
    after_prompts: bool,
    /// Whether the running sequences are to be processed again together with one that has joined.
    realign: bool,
    /// Whether no token has been chosen since the running sequences were processed again.
    fresh: bool,
    next: u64,
    recomputed: u64,
    /// The tokens that each free row still holds.
    remembered: Vec<Option<Remembered>>,
    /// Whether cached prefixes are reused, which needs states with a row for each sequence.
    reuses: bool,
    reused: u64,
}

impl Rows {
    /// See [`ContinuousGenerator::on_device`](super::ContinuousGenerator::on_device).
    pub fn on_device(
        gpu: Gpu,
        decoder: &Decoder,
        batch: usize,
        options: &GeneratorOptions,
    ) -> Result<Rows, Error> {
        let batch = BatchGenerator::on_device(gpu, decoder, batch, options)?;
        if batch.batch() > 1 && !batch.ragged() {
            return Err(Error::usage(
                "the sequences of a batch differ in length, and the model does not take what would tell it: an attention mask, and position ids for each sequence",
                "generate one sequence at a time (--batch 1), or export the model with both inputs",
            ));
        }
        let rows = (0..batch.batch()).map(|_| None).collect();
        let remembered = (0..batch.batch()).map(|_| None).collect();
        let reuses = batch.rows_lead;
        Ok(Rows {
            batch,
            rows,
            flight: None,
            after_prompts: false,
            realign: false,
            fresh: false,
            next: 0,
            recomputed: 0,
            remembered,
            reuses,
            reused: 0,
        })
    }

    /// The prompts that are accepted.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            vocabulary: self.batch.vocabulary(),
            capacity: self.batch.capacity(),
            features: self.batch.generator.pictures.width(),
        }
    }
    /// The most sequences at a time.
    pub fn batch(&self) -> usize {
        self.rows.len()
    }
    /// The number of sequences that have not ended.
    pub fn running(&self) -> usize {
        self.rows.iter().flatten().count()
    }
    /// The number of positions of the cache in use, which padding and ended sequences take too.
    pub fn positions(&self) -> usize {
        self.batch.generator.positions()
    }
    /// How often the running sequences were processed again, because the cache was full or a long prompt joined.
    pub fn recomputed(&self) -> u64 {
        self.recomputed
    }
    /// The compiler's warnings.
    pub fn warnings(&self) -> &[String] {
        self.batch.warnings()
    }
    /// The session that runs a single token of each sequence.
    pub fn session(&self) -> &Session {
        self.batch.session()
    }
    /// The memory that the generator holds on the device.
    pub fn device_memory(&self) -> DeviceMemory {
        self.batch.device_memory()
    }

    /// Begins a sequence. Nothing runs before the next [`Rows::step`]. The tokens of a sequence are those that
    /// it has alone in a [`Generator`](super::Generator), as far as rounding allows, whatever the other sequences are. Tokens at the
    /// beginning of the prompt that a row of the cache holds, of a sequence that runs or has ended, are not processed again.
    ///
    /// # Errors
    /// As many sequences as [`Rows::batch`] are running; otherwise as for [`Bounds::check`].
    pub fn join(&mut self, prompt: &[i64], request: &Request) -> Result<SequenceId, Error> {
        self.bounds().check(prompt, request)?;
        let Some(free) = self.free_row() else {
            let message = format!("{} sequences are running, and there is room for no more", self.rows.len());
            return Err(Error::usage(message, "wait until one has ended"));
        };
        let mut choice = Choice::of(request, self.batch.vocabulary())?;
        choice.follow(prompt);
        if let Some(limits) = limits_of([&choice]) {
            self.batch.generator.chooser.prepare(limits)?;
        }
        let chunk = self.batch.generator.chunks.usual();
        let is_idle = self.running() == 0;
        let (row, fed) = match self.reuse(prompt, request.max_new_tokens)? {
            Some(reused) => reused,
            None => {
                if is_idle {
                    self.empty()?;
                }
                self.batch.forget(free);
                self.remembered[free] = None;
                (free, 0)
            }
        };
        let long = chunk > 1 && prompt.len() - fed > chunk && self.positions() > 0;
        if !is_idle && !self.batch.own_ends && long {
            self.realign = true;
        }
        let id = SequenceId(self.next);
        self.next += 1;
        let place = InRow { delay: 0, images: request.images.clone() };
        self.rows[row] = Some(Sequence::new(id, prompt, request, choice, fed, place));
        self.take_pictures()?;
        Ok(id)
    }

    /// Copies the pictures of the sequences that run to the device.
    fn take_pictures(&mut self) -> Result<(), Error> {
        let running = || self.rows.iter().flatten();
        if running().all(|s| s.place.images.is_empty()) {
            return Ok(());
        }
        let tokens: Vec<i64> = running().flat_map(|s| s.tokens.iter().copied()).collect();
        let images: Vec<ImageFeatures> = running().flat_map(|s| s.place.images.iter().cloned()).collect();
        let g = &mut self.batch.generator;
        g.pictures.take(g.decode.gpu(), &tokens, &images)
    }

    /// Ends a sequence, of which [`Rows::step`] then returns no more tokens. A sequence that has ended already is
    /// ignored.
    pub fn leave(&mut self, sequence: SequenceId) {
        let row = self.rows.iter().position(|s| s.as_ref().is_some_and(|s| s.id == sequence));
        if let Some(row) = row {
            self.free(row, true);
        }
    }

    /// Ends all sequences and empties the cache.
    ///
    /// # Errors
    /// An error of the device.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.rows.iter_mut().for_each(|s| *s = None);
        self.empty()
    }

    /// Starts the next run, and returns the tokens that the one before it chose: one for each sequence whose prompt has been
    /// processed, in any order, or none.
    ///
    /// # Errors
    /// An error of the device. All sequences have ended then.
    pub fn step(&mut self) -> Result<Vec<Generated>, Error> {
        let done = self.advance();
        if done.is_err() {
            self.flight = None;
            (0..self.rows.len()).for_each(|row| self.free(row, false));
        }
        done
    }

    fn advance(&mut self) -> Result<Vec<Generated>, Error> {
        if self.running() == 0 {
            self.flight = None;
            return Ok(vec![]);
        }
        match self.flight.take() {
            Some(flight) => {
                // The next run may start before this one is read if it needs nothing but the tokens that this one chooses.
                let chosen = |(s, id): (&Option<Sequence>, &Option<SequenceId>)| {
                    s.as_ref().is_none_or(|s| Some(s.id) == *id)
                };
                let live: Vec<bool> =
                    self.rows.iter().map(|s| s.as_ref().is_some_and(|s| s.left > 1)).collect();
                let alone = self.rows.iter().zip(&flight.rows).all(chosen);
                if alone && live.contains(&true) && self.room(1) {
                    let token = flight.started.output(head::TOKEN).ok_or_else(no_output)?.clone();
                    let done: Vec<bool> = live.iter().map(|l| !l).collect();
                    let feed = Feed::Device(token, &done);
                    if !self.needs_tokens(&live) {
                        self.choose(&feed, &live)?;
                        return self.read(flight);
                    }
                    let logits = self.batch.forward(&feed)?;
                    self.mark_fed(&feed);
                    let mut all = self.read(flight)?;
                    all.extend(self.pick(logits, &live)?);
                    return Ok(all);
                }
                self.read(flight)
            }
            None => self.feed(),
        }
    }

    /// Starts the next run from tokens that are known. No other run is in flight.
    fn feed(&mut self) -> Result<Vec<Generated>, Error> {
        if self.realign && !self.fresh {
            self.restart()?;
        }
        self.align();
        let (mut n, mut prompts) = self.next_run();
        if !self.room(n) {
            self.restart()?;
            self.align();
            (n, prompts) = self.next_run();
        }
        self.run_known(n, prompts)
    }

    /// The number of positions of the next run, and whether it is one of prompts, which chooses no tokens.
    fn next_run(&self) -> (usize, bool) {
        let chunk = self.batch.generator.chunks.usual();
        let running = || self.rows.iter().flatten();
        let n = if self.batch.own_ends {
            let waiting = self.after_prompts && running().any(|s| s.pending().len() == 1);
            let longest = running().map(|s| s.pending().len()).max().unwrap_or(0);
            if waiting { 1 } else { longest.saturating_sub(1) }
        } else {
            let some = |s: &Sequence| {
                if s.place.delay > 0 { s.place.delay } else { s.pending().len().saturating_sub(1) }
            };
            running().map(some).min().unwrap_or(0)
        };
        let n = n.min(chunk);
        // A program for several tokens takes single ones as well, but the other one is faster and can choose.
        let prompts = n > 1 || (n == 1 && self.batch.own_ends && !self.after_prompts && chunk > 1);
        (n.max(1), prompts)
    }

    /// Aligns sequences that begin in an empty cache at their ends.
    fn align(&mut self) {
        if self.positions() > 0 || self.batch.own_ends {
            return;
        }
        let longest = self.rows.iter().flatten().map(|s| s.tokens.len()).max().unwrap_or(0);
        self.rows.iter_mut().flatten().for_each(|s| s.place.delay = longest - s.tokens.len());
    }

    /// Empties the cache, so that all running sequences are processed again.
    fn restart(&mut self) -> Result<(), Error> {
        self.empty()?;
        self.rows.iter_mut().flatten().for_each(|s| (s.fed, s.place.delay) = (0, 0));
        (self.realign, self.fresh) = (false, true);
        self.recomputed += 1;
        Ok(())
    }

    /// Starts a run of `n` positions, with all but the last of the pending tokens if it is one of prompts; otherwise with one
    /// token, of which the sequences that have no other choose the next.
    fn run_known(&mut self, n: usize, prompts: bool) -> Result<Vec<Generated>, Error> {
        let taken = |s: &Option<Sequence>| -> Vec<i64> {
            let ready = s.as_ref().filter(|s| s.place.delay == 0);
            let pending = ready.map_or(&[][..], Sequence::pending);
            let most = if prompts { pending.len().saturating_sub(1) } else { pending.len() };
            pending[..n.min(most)].to_vec()
        };
        let columns: Vec<Vec<i64>> = self.rows.iter().map(taken).collect();
        let columns: Vec<&[i64]> = columns.iter().map(Vec::as_slice).collect();
        self.after_prompts = prompts;
        let is_last = |s: &Sequence| !prompts && s.place.delay == 0 && s.pending().len() == 1;
        let live: Vec<bool> = self.rows.iter().map(|s| s.as_ref().is_some_and(is_last)).collect();
        let feed = Feed::Host(&columns, n);
        let mut failed = vec![];
        if self.needs_tokens(&live) {
            let logits = self.batch.forward(&feed)?;
            self.mark_fed(&feed);
            failed = self.pick(logits, &live)?;
        } else if live.contains(&true) {
            self.choose(&feed, &live)?;
        } else {
            self.batch.run(&feed, None)?;
            self.mark_fed(&feed);
        }
        self.rows.iter_mut().flatten().for_each(|s| s.place.delay = s.place.delay.saturating_sub(n));
        Ok(failed)
    }

    /// Starts a run of one token of each row that chooses the next tokens of the sequences in `live` rows.
    fn choose(&mut self, feed: &Feed<'_>, live: &[bool]) -> Result<(), Error> {
        let mut words = vec![];
        for (s, live) in self.rows.iter_mut().zip(live) {
            words.push(s.as_mut().filter(|_| *live).map(|s| s.choice.row()).unwrap_or_default());
        }
        let chosen = self.rows.iter().zip(live).filter(|(_, live)| **live);
        let limits = limits_of(chosen.filter_map(|(s, _)| Some(&s.as_ref()?.choice)));
        let outputs: &[&str] = &[head::TOKEN];
        let pick = match limits {
            None => Pick { words: choose::greedy(), limits: Limits::default(), outputs },
            Some(limits) => Pick { words: choose::rows(&words), limits, outputs },
        };
        let started = self.batch.run(feed, Some(pick))?.ok_or_else(no_output)?;
        self.mark_fed(feed);
        self.launch(started, live, None);
        Ok(())
    }

    /// Counts the tokens that a run processes.
    fn mark_fed(&mut self, feed: &Feed<'_>) {
        for (i, s) in self.rows.iter_mut().enumerate() {
            let fed = match feed {
                Feed::Host(columns, _) => columns[i].len(),
                Feed::Device(_, done) => usize::from(!done[i]),
            };
            s.iter_mut().for_each(|s| s.fed += fed);
        }
    }

    /// Whether what the `live` rows choose depends on the tokens before.
    fn needs_tokens(&self, live: &[bool]) -> bool {
        let mut chosen = self.rows.iter().zip(live).filter(|(_, live)| **live);
        chosen.any(|(s, _)| s.as_ref().is_some_and(|s| s.choice.needs_tokens()))
    }

    /// Starts the choice of the next tokens of the sequences in `live` rows, all of whose tokens so far are known. Returns those
    /// sequences that end because there is no next token.
    fn pick(&mut self, logits: DeviceTensor, live: &[bool]) -> Result<Vec<Generated>, Error> {
        let mut failed = vec![];
        for (row, live) in live.iter().enumerate() {
            let Some(s) = self.rows[row].as_mut().filter(|_| *live) else { continue };
            if let Err(e) = s.choice.prepare() {
                failed.push(Generated { sequence: s.id, token: Err(e), logprobs: None, end: None });
                self.free(row, false);
            }
        }
        let chosen = self.rows.iter().zip(live).filter(|(_, live)| **live);
        let limits = limits_of(chosen.filter_map(|(s, _)| Some(&s.as_ref()?.choice)));
        // All sequences may have ended by the tokens that have just been read.
        let Some(limits) = limits.or_else(|| self.running().gt(&0).then(Limits::rows)) else {
            return Ok(failed);
        };
        let rows = self.rows.iter_mut().zip(live);
        let mut choices: Vec<_> =
            rows.map(|(s, live)| s.as_mut().filter(|_| *live).map(|s| &mut s.choice)).collect();
        let pick = stepwise::Pick::of(&mut choices, limits)?;
        let started = self.batch.generator.chooser.pick(logits.clone().into(), pick, &[head::TOKEN])?;
        let mut rows = self.rows.iter().zip(live).filter(|(_, live)| **live);
        let likely = match rows.any(|(s, _)| s.as_ref().is_some_and(|s| s.logprobs.is_some())) {
            true => {
                let token = started.output(head::TOKEN).ok_or_else(no_output)?.clone();
                Some(self.batch.generator.chooser.start_logprobs(logits, token)?)
            }
            false => None,
        };
        self.launch(started, live, likely);
        Ok(failed)
    }

    /// Makes a run that chooses tokens of the sequences in `live` rows the next one to be read.
    fn launch(&mut self, started: Started, live: &[bool], logprobs: Option<Started>) {
        let id = |(s, live): (&Option<Sequence>, &bool)| s.as_ref().filter(|_| *live).map(|s| s.id);
        let rows = self.rows.iter().zip(live).map(id).collect();
        self.flight = Some(Flight { started, rows, logprobs });
    }

    /// The tokens that a run has chosen. Sequences that have left since are passed over.
    fn read(&mut self, flight: Flight) -> Result<Vec<Generated>, Error> {
        let (rows, chosen) = flight.read(self.batch.vocabulary())?;
        let mut all = vec![];
        for (row, id) in rows.iter().enumerate() {
            let Some(s) = self.rows[row].as_mut().filter(|s| Some(s.id) == *id) else { continue };
            let generated = s.add(&chosen, row)?;
            self.fresh = false;
            let (ended, sound) = (generated.is_last(), generated.token.is_ok());
            all.push(generated);
            if ended {
                self.free(row, sound);
            }
        }
        Ok(all)
    }

    /// Whether the cache has room for this many positions more.
    fn room(&self, positions: usize) -> bool {
        self.positions().saturating_add(positions) <= self.batch.capacity()
    }

    /// Empties the cache.
    fn empty(&mut self) -> Result<(), Error> {
        self.flight = None;
        (self.realign, self.after_prompts) = (false, false);
        self.remembered.iter_mut().for_each(|m| *m = None);
        self.batch.reset()
    }
}
