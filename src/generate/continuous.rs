//! Generation of sequences that begin and end at any time, in the rows of one batch.
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

use super::batch::{BatchGenerator, Feed, Pick};
use super::choose::{self, Choice, Limits};
use super::{Decoder, GeneratorOptions, LogProbs, Request, head, logprobs, no_output, problems_of, stepwise};
use crate::model::device_error;
use crate::{Error, Problem};
use prefix::Remembered;
use wgfc_runtime::session::{DeviceMemory, Started};
use wgfc_runtime::{DeviceTensor, Gpu, Session};

/// The name of a sequence in a [`ContinuousGenerator`], which no other sequence of it has.
/// See the example of [`ContinuousGenerator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

/// Why a sequence ended. See the example of [`ContinuousGenerator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The last token is one of `stop` in its [`Request`].
    Stop,
    /// It has `max_new_tokens` new tokens.
    Length,
    /// Its constraint allows no further token.
    Complete,
}

/// A token of one sequence, which [`ContinuousGenerator::step`] returns. See the example of [`ContinuousGenerator`].
#[derive(Debug)]
pub struct Generated {
    /// The sequence that the token continues.
    pub sequence: SequenceId,
    /// The token, or the reason why there is none: the logits are not finite. The sequence has ended then.
    pub token: Result<i64, Error>,
    /// The token's log-probabilities, if the request asks for them.
    pub logprobs: Option<LogProbs>,
    /// Whether this is the sequence's last token, and why.
    pub end: Option<End>,
}

/// The prompts that a [`ContinuousGenerator`] accepts.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder-batch/model.onnx");
/// # if wgfc::runtime::testing::gpus().is_empty() { return Ok(()) }
/// use wgfc::generate::ContinuousGenerator;
/// use wgfc::{Decoder, GeneratorOptions, Request};
/// let options = GeneratorOptions { capacity: 16, ..Default::default() };
/// let bounds = ContinuousGenerator::new(&Decoder::open(&path)?, 2, &options)?.bounds();
/// let request = Request { max_new_tokens: 10, ..Default::default() };
/// assert!(bounds.check(&[3, 1, 36], &request).is_ok());
/// assert!(bounds.check(&[0; 10], &request).is_err(), "20 positions");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The number of tokens in the vocabulary. Token ids are less than it.
    pub vocabulary: usize,
    /// The most tokens of a sequence, prompt and generated ones together.
    pub capacity: usize,
}

impl Bounds {
    /// Checks that a sequence can be generated.
    ///
    /// # Errors
    /// An empty prompt, ids outside the vocabulary, no new tokens, more tokens than the cache has room for, or invalid
    /// sampling parameters.
    pub fn check(&self, prompt: &[i64], request: &Request) -> Result<(), Error> {
        let mut problems = problems_of(self.vocabulary, prompt, false, "");
        let total = prompt.len().saturating_add(request.max_new_tokens);
        if total > self.capacity {
            problems.push(Problem::with_help(
                format!(
                    "{} tokens of the prompt and {} new ones are {total}, and the cache may grow to {}",
                    prompt.len(),
                    request.max_new_tokens,
                    self.capacity
                ),
                format!("ask for fewer, or give the cache a capacity of {total} (--capacity)"),
            ));
        }
        if request.max_new_tokens == 0 {
            problems.push(Problem::with_help("there are no tokens to generate", "ask for at least one"));
        }
        problems.extend(request.problems(self.vocabulary));
        if problems.is_empty() { Ok(()) } else { Err(Error::Usage(problems)) }
    }
}

/// A sequence in a row.
struct Sequence {
    id: SequenceId,
    /// All tokens that are known on the host, prompt and generated ones.
    tokens: Vec<i64>,
    /// The number of tokens that runs process which have been started. It may exceed `tokens` by one, the token that the
    /// run before the last one chose.
    fed: usize,
    /// The number of positions that the other rows append before this one's first token.
    delay: usize,
    /// The number of tokens that may still be generated.
    left: usize,
    stop: Vec<i64>,
    choice: Choice,
    /// The number of tokens whose log-probabilities are reported.
    logprobs: Option<usize>,
}

impl Sequence {
    /// The tokens that no run has been given yet.
    fn pending(&self) -> &[i64] {
        self.tokens.get(self.fed..).unwrap_or_default()
    }
}

/// A run that has been started, and the sequence of each row whose next token it chooses.
struct Flight {
    started: Started,
    rows: Vec<Option<SequenceId>>,
    /// The log-probabilities, if a sequence needs them.
    logprobs: Option<Started>,
}

/// A decoder on a device whose sequences begin and end at any time.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # if wgfc::runtime::testing::gpus().is_empty() { return Ok(()) }
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder-batch/model.onnx");
/// use wgfc::generate::ContinuousGenerator;
/// use wgfc::{Decoder, GeneratorOptions, Request};
/// let mut generator = ContinuousGenerator::new(&Decoder::open(&path)?, 2, &GeneratorOptions::default())?;
/// let request = Request { max_new_tokens: 5, ..Default::default() };
/// let first = generator.join(&[3, 1, 36], &request)?;
/// generator.step()?;
/// // Another sequence begins while the first one is generated.
/// let second = generator.join(&[7], &request)?;
/// let mut tokens = vec![];
/// while generator.running() > 0 {
///     tokens.extend(generator.step()?.into_iter().map(|g| g.sequence));
/// }
/// assert_eq!(tokens.iter().filter(|s| **s == first).count(), 5);
/// assert_eq!(tokens.iter().filter(|s| **s == second).count(), 5);
/// # Ok(()) }
/// ```
pub struct ContinuousGenerator {
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

impl ContinuousGenerator {
    /// Compiles the decoder for `batch` sequences at a time and uploads it.
    ///
    /// # Errors
    /// As for [`BatchGenerator::new`]; also, with a `batch` of more than 1, a model whose sequences cannot differ in length.
    pub fn new(
        decoder: &Decoder,
        batch: usize,
        options: &GeneratorOptions,
    ) -> Result<ContinuousGenerator, Error> {
        let gpu = Gpu::request_blocking(&options.adapter).map_err(device_error)?;
        ContinuousGenerator::on_device(gpu, decoder, batch, options)
    }

    /// [`ContinuousGenerator::new`] on a device that is already open; `options.adapter` is ignored.
    ///
    /// # Errors
    /// As for [`ContinuousGenerator::new`].
    pub fn on_device(
        gpu: Gpu,
        decoder: &Decoder,
        batch: usize,
        options: &GeneratorOptions,
    ) -> Result<ContinuousGenerator, Error> {
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
        Ok(ContinuousGenerator {
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
        Bounds { vocabulary: self.batch.vocabulary(), capacity: self.batch.capacity() }
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

    /// Begins a sequence. Nothing runs before the next [`ContinuousGenerator::step`]. The tokens of a sequence are those that
    /// it has alone in a [`Generator`](super::Generator), as far as rounding allows, whatever the other sequences are. Tokens at the
    /// beginning of the prompt that a row of the cache holds, of a sequence that runs or has ended, are not processed again.
    ///
    /// # Errors
    /// As many sequences as [`ContinuousGenerator::batch`] are running; otherwise as for [`Bounds::check`].
    pub fn join(&mut self, prompt: &[i64], request: &Request) -> Result<SequenceId, Error> {
        self.bounds().check(prompt, request)?;
        let Some(free) = self.free_row() else {
            let message = format!("{} sequences are running, and there is room for no more", self.rows.len());
            return Err(Error::usage(message, "wait until one has ended"));
        };
        let mut choice = Choice::of(request, self.batch.vocabulary())?;
        choice.follow(prompt);
        if let Some(limits) = limits_of([&choice]) {
            self.batch.generator.prepare(limits)?;
        }
        let chunk = self.batch.generator.chunk;
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
        self.rows[row] = Some(Sequence {
            id,
            tokens: prompt.to_vec(),
            fed,
            delay: 0,
            left: request.max_new_tokens,
            stop: request.stop.clone(),
            choice,
            logprobs: request.logprobs,
        });
        Ok(id)
    }

    /// Ends a sequence, of which [`ContinuousGenerator::step`] then returns no more tokens. A sequence that has ended already is
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
        let chunk = self.batch.generator.chunk;
        let running = || self.rows.iter().flatten();
        let n = if self.batch.own_ends {
            let waiting = self.after_prompts && running().any(|s| s.pending().len() == 1);
            let longest = running().map(|s| s.pending().len()).max().unwrap_or(0);
            if waiting { 1 } else { longest.saturating_sub(1) }
        } else {
            let some = |s: &Sequence| if s.delay > 0 { s.delay } else { s.pending().len().saturating_sub(1) };
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
        self.rows.iter_mut().flatten().for_each(|s| s.delay = longest - s.tokens.len());
    }

    /// Empties the cache, so that all running sequences are processed again.
    fn restart(&mut self) -> Result<(), Error> {
        self.empty()?;
        self.rows.iter_mut().flatten().for_each(|s| (s.fed, s.delay) = (0, 0));
        (self.realign, self.fresh) = (false, true);
        self.recomputed += 1;
        Ok(())
    }

    /// Starts a run of `n` positions, with all but the last of the pending tokens if it is one of prompts; otherwise with one
    /// token, of which the sequences that have no other choose the next.
    fn run_known(&mut self, n: usize, prompts: bool) -> Result<Vec<Generated>, Error> {
        let taken = |s: &Option<Sequence>| -> Vec<i64> {
            let ready = s.as_ref().filter(|s| s.delay == 0);
            let pending = ready.map_or(&[][..], Sequence::pending);
            let most = if prompts { pending.len().saturating_sub(1) } else { pending.len() };
            pending[..n.min(most)].to_vec()
        };
        let columns: Vec<Vec<i64>> = self.rows.iter().map(taken).collect();
        let columns: Vec<&[i64]> = columns.iter().map(Vec::as_slice).collect();
        self.after_prompts = prompts;
        let is_last = |s: &Sequence| !prompts && s.delay == 0 && s.pending().len() == 1;
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
        self.rows.iter_mut().flatten().for_each(|s| s.delay = s.delay.saturating_sub(n));
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
        let started = self.batch.generator.pick(logits.clone().into(), pick, &[head::TOKEN])?;
        let mut rows = self.rows.iter().zip(live).filter(|(_, live)| **live);
        let likely = match rows.any(|(s, _)| s.as_ref().is_some_and(|s| s.logprobs.is_some())) {
            true => {
                let token = started.output(head::TOKEN).ok_or_else(no_output)?.clone();
                Some(self.batch.generator.start_logprobs(logits, token)?)
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
        let read = flight.started.read_blocking().map_err(device_error)?;
        let likely = flight.logprobs.map(logprobs::read).transpose()?.unwrap_or_default();
        let out = read.iter().find(|(n, _)| n == head::TOKEN);
        let out = out.and_then(|(_, t)| t.scalars()).unwrap_or_default();
        let known = 0..self.batch.vocabulary() as i64;
        let mut all = vec![];
        for (row, id) in flight.rows.iter().enumerate() {
            let Some(s) = self.rows[row].as_mut().filter(|s| Some(s.id) == *id) else { continue };
            let token = match out.get(row).map(|t| t.as_i64()).ok_or_else(no_output)? {
                choose::NONE => Err(choose::nothing_to_choose()),
                t if known.contains(&t) => Ok(t),
                t => Err(Error::Internal(format!("the device chose token {t}"))),
            };
            let token = token.and_then(|t| Ok((t, s.choice.add(t)?)));
            s.left -= 1;
            self.fresh = false;
            let end = match &token {
                Ok((t, _)) if s.stop.contains(t) => Some(End::Stop),
                Ok((_, true)) => Some(End::Complete),
                Ok(_) if s.left == 0 => Some(End::Length),
                _ => None,
            };
            let token = token.map(|(t, _)| t);
            s.tokens.extend(token.as_ref().ok());
            let (ended, sound) = (end.is_some() || token.is_err(), token.is_ok());
            let logprobs = s.logprobs.and_then(|n| Some(likely.get(row)?.clone().most(n)));
            all.push(Generated { sequence: s.id, token, logprobs, end });
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

/// The limits of a run that makes these choices; `None` if all are greedy.
fn limits_of<'c>(choices: impl IntoIterator<Item = &'c Choice>) -> Option<Limits> {
    let sampled = choices.into_iter().filter(|c| !c.is_greedy()).map(Choice::limits);
    sampled.fold(None, |all, one| Some(all.unwrap_or_else(Limits::rows).with(one)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Generator, Sampling};
    use std::collections::BTreeMap;
    use std::path::Path;

    fn decoder(name: &str) -> Decoder {
        let file = if name.ends_with(".gguf") {
            format!("decoders/{name}")
        } else {
            format!("small/{name}/model.onnx")
        };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(file);
        Decoder::open(&path).unwrap()
    }

    /// Requests of several lengths, drawn in several ways.
    fn requests() -> Vec<(Vec<i64>, Request)> {
        let base = Sampling { temperature: 0.9, ..Sampling::default() };
        let sampled = |top_k, top_p, seed| Some(Sampling { top_k, top_p, seed, ..base.clone() });
        let adjusted = |top_k, seed| {
            let logit_bias = vec![(5, 2.0), (9, -100.0)];
            let base = Sampling { top_k, seed, logit_bias, min_p: Some(0.1), ..base.clone() };
            Some(Sampling { repetition_penalty: 1.3, presence_penalty: 0.5, frequency_penalty: 0.2, ..base })
        };
        let ways = [
            None,
            sampled(None, None, 5),
            adjusted(Some(1), 0),
            sampled(Some(4), None, 6),
            sampled(None, Some(0.7), 7),
            adjusted(None, 8),
        ];
        let prompt = |i: i64| (0..1 + (i * 5) % 12).map(|j| (i * 11 + j * 7) % 37).collect();
        let request = |i: usize| Request {
            max_new_tokens: 1 + (i * 4) % 11,
            sampling: ways[i % ways.len()].clone(),
            stop: if i.is_multiple_of(3) { vec![] } else { vec![2, 9, 30] },
            logprobs: (i % 4 == 3).then_some(i % 3),
            ..Request::default()
        };
        (0..10).map(|i| (prompt(i as i64), request(i))).collect()
    }

    /// Sequences that join and leave at any time have the tokens that each has alone, also when the cache is full again and
    /// again.
    #[test]
    fn sequences_equal_single_runs() {
        if wgfc_runtime::testing::gpus().is_empty() {
            return;
        }
        for (model, batch, capacity, prompt_chunk) in [
            ("decoder-batch", 3, 26, 4),
            ("decoder-ragged", 2, 26, 4),
            ("decoder-batch", 1, 26, 1),
            // Attention within windows of a few positions.
            ("phi3/model.gguf", 3, 26, 4),
            ("gemma3/model.gguf", 2, 60, 4),
        ] {
            let options = GeneratorOptions { capacity, prompt_chunk, ..GeneratorOptions::default() };
            let decoder = decoder(model);
            let mut one = Generator::new(&decoder, &options).unwrap();
            let mut all = ContinuousGenerator::new(&decoder, batch, &options).unwrap();
            let requests = requests();
            let mut waiting: std::collections::VecDeque<usize> = (0..requests.len()).collect();
            let mut running = BTreeMap::new();
            let mut got: Vec<Vec<i64>> = vec![vec![]; requests.len()];
            let mut ends = vec![None; requests.len()];
            for step in 0.. {
                // Sequences join now and then.
                if step % 2 == 0 && all.running() < batch {
                    if let Some(i) = waiting.pop_front() {
                        running.insert(all.join(&requests[i].0, &requests[i].1).unwrap(), i);
                    } else if all.running() == 0 {
                        break;
                    }
                }
                for g in all.step().unwrap() {
                    let i = running[&g.sequence];
                    got[i].push(g.token.unwrap());
                    ends[i] = g.end;
                    // One sequence is given up in the middle.
                    if i == 4 && got[i].len() == 2 {
                        all.leave(g.sequence);
                    }
                }
                assert!(step < 1000);
            }
            for (i, (prompt, request)) in requests.iter().enumerate() {
                one.reset().unwrap();
                let mut want: Vec<i64> =
                    one.generate(prompt, request).unwrap().collect::<Result<_, _>>().unwrap();
                if i == 4 {
                    want.truncate(2);
                } else {
                    let stopped = want.last().is_some_and(|t| request.stop.contains(t));
                    assert_eq!(ends[i], Some(if stopped { End::Stop } else { End::Length }), "{model} {i}");
                }
                assert_eq!(got[i], want, "{model} {i}: {request:?}");
            }
            assert!(batch == 1 || all.recomputed() > 0, "{model}");
        }
    }

    #[test]
    fn requests_that_cannot_be_met_are_refused() {
        if wgfc_runtime::testing::gpus().is_empty() {
            return;
        }
        let options = GeneratorOptions { capacity: 16, ..GeneratorOptions::default() };
        let mut all = ContinuousGenerator::new(&decoder("decoder-batch"), 2, &options).unwrap();
        let request = Request { max_new_tokens: 4, ..Request::default() };
        let longer = Request { max_new_tokens: 14, ..Request::default() };
        for (prompt, request) in [
            (&[][..], &request),
            (&[37], &request),
            (&[-1], &request),
            (&[1, 2, 3], &longer),
            (&[1], &Request::default()),
        ] {
            assert!(matches!(all.join(prompt, request), Err(Error::Usage(_))), "{prompt:?}");
        }
        let first = all.join(&[1], &request).unwrap();
        all.join(&[2], &request).unwrap();
        assert!(all.join(&[3], &request).is_err());
        all.leave(first);
        all.leave(first);
        all.join(&[3], &request).unwrap();
        assert_eq!(all.running(), 2);
        all.reset().unwrap();
        assert_eq!((all.running(), all.positions()), (0, 0));
        assert!(all.step().unwrap().is_empty());
    }
}
