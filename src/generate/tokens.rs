//! Runs, and the tokens that they choose.

use super::choose::{self, Choice};
use super::roles::Input;
use super::stepwise::{Hook, Logits};
use super::{Generator, LogProbs, Request, head, no_output, token};
use crate::model::device_error;
use crate::{Error, Tensor};
use std::collections::VecDeque;
use std::time::Instant;
use wgfc_runtime::session::{Started, Value};
use wgfc_runtime::{DeviceTensor, Session};

impl Generator {
    /// Starts the runs that append `ids` to the states, of which the last one chooses a token.
    pub(super) fn start(&mut self, ids: &[i64], choice: &mut Choice, outputs: &[&str]) -> Result<Run, Error> {
        let last = self.start_all_but_last(ids)?;
        self.run(&Ids::Host(&ids[last..]), choice, outputs)
    }

    /// Starts the runs that append `ids` to the states but for the last of them. Returns where its tokens begin.
    pub(super) fn start_all_but_last(&mut self, ids: &[i64]) -> Result<usize, Error> {
        let mut last = 0;
        while ids.len() - last > self.chunks.next() {
            let ids = &ids[last..last + self.chunks.next()];
            let past = self.positions();
            self.reserve(past + ids.len())?;
            let (given, n) = self.pictures.given(&self.inputs, &Ids::Host(ids), past, choose::greedy());
            let session = session(&mut self.prefill, &mut self.decode, n);
            let start = Instant::now();
            session.run_on_device_blocking(&given).map_err(device_error)?;
            if self.chunks.varies() {
                session.gpu().wait_blocking().map_err(device_error)?;
                self.chunks.took(ids.len(), start.elapsed());
            }
            self.wrote(ids.len());
            last += ids.len();
        }
        Ok(last)
    }

    /// Starts the run that processes the token chosen by `run`, and chooses the one after it.
    fn follow(&mut self, run: &Run, choice: &mut Choice) -> Result<Run, Error> {
        let token = run.started.output(head::TOKEN).ok_or_else(no_output)?.clone();
        self.run(&Ids::Device(token), choice, &[head::TOKEN])
    }

    fn run(&mut self, ids: &Ids<'_>, choice: &mut Choice, outputs: &[&str]) -> Result<Run, Error> {
        let words = choice.words();
        let past = self.positions();
        self.reserve(past + ids.count())?;
        let limits = choice.limits();
        let limited = self.chooser.limited(limits).is_some();
        let own = if limited { choose::greedy() } else { words.clone() };
        let (given, n) = self.pictures.given(&self.inputs, ids, past, own);
        let session = session(&mut self.prefill, &mut self.decode, n);
        let started = self.chooser.chosen(session, limits, &given, words, outputs)?;
        self.wrote(ids.count());
        Ok(Run { started, after: self.positions() })
    }

    /// Records a generated token, behind which this many positions are valid.
    fn generated(&mut self, token: i64, after: usize) -> i64 {
        self.history.push(token);
        (self.kept, self.pending) = (after, Some(token));
        token
    }

    /// The token in the outputs of a run.
    pub(super) fn token(&self, outputs: &[(String, Tensor)]) -> Result<i64, Error> {
        token(outputs, self.vocabulary)
    }
}

/// The session for a run of `n` tokens of each sequence.
pub(super) fn session<'s>(
    prefill: &'s mut Option<Session>,
    decode: &'s mut Session,
    n: usize,
) -> &'s mut Session {
    match prefill {
        Some(s) if n > 1 => s,
        _ => decode,
    }
}

/// The token ids that a run processes.
pub(super) enum Ids<'a> {
    Host(&'a [i64]),
    /// One token id, on the device.
    Device(DeviceTensor),
}

impl Ids<'_> {
    pub fn count(&self) -> usize {
        match self {
            Ids::Host(ids) => ids.len(),
            Ids::Device(_) => 1,
        }
    }
}

/// The inputs of a run that processes `ids` after `past` others and chooses a token as the words specify.
pub(super) fn given<'i>(
    inputs: &'i [Input],
    ids: &Ids<'_>,
    past: usize,
    words: Tensor,
) -> Vec<(&'i str, Value)> {
    let value = |i: &Input| match ids {
        Ids::Device(token) if i.is_ids() => token.clone().into(),
        Ids::Device(_) => i.value_after(&[0], past),
        Ids::Host(ids) => i.value_after(ids, past),
    };
    let choice = (head::CHOICE, words.into());
    inputs.iter().map(|i| (i.name.as_str(), value(i))).chain([choice]).collect()
}

/// A run that chooses a token.
pub(super) struct Run {
    pub started: Started,
    /// The number of positions in the states after the run.
    pub after: usize,
}

/// Tokens that follow a prompt, without a borrow of the generator, for callers that keep both. [`Generator::begin`] makes it.
///
/// ```no_run
/// # fn begin(generator: &mut wgfc::Generator) -> Result<(), wgfc::Error> {
/// let request = wgfc::Request { max_new_tokens: 20, ..Default::default() };
/// let mut continuation = generator.begin(&[3, 1, 36], &request)?;
/// while let Some(token) = continuation.next(generator) {
///     println!("{}", token?);
/// }
/// # Ok(()) }
/// ```
pub struct Continuation {
    /// The number of the use of a generator that this is.
    number: u64,
    /// The tokens that the model has not processed yet, until the first token has been generated.
    pub(super) feed: Vec<i64>,
    /// Tokens that have been verified, each with the number of valid positions after it.
    ready: VecDeque<(i64, usize)>,
    pub(super) left: usize,
    stop: Vec<i64>,
    pub(super) choice: Choice,
    /// The run for the next token, already started.
    next: Option<Result<Run, Error>>,
    /// The run for the next token if its choice is to be started when the one before is known.
    pub(super) ahead: Option<Result<Logits, Error>>,
    /// The number of tokens whose log-probabilities are reported, and those of the last token.
    pub(super) logprobs: Option<usize>,
    pub(super) last: Option<LogProbs>,
}

impl Continuation {
    pub(super) fn new(number: u64, feed: Vec<i64>, request: &Request, choice: Choice) -> Continuation {
        Continuation {
            number,
            feed,
            ready: VecDeque::new(),
            left: request.max_new_tokens,
            stop: request.stop.clone(),
            choice,
            next: None,
            ahead: None,
            logprobs: request.logprobs,
            last: None,
        }
    }

    /// The tokens that have not been processed yet.
    pub(super) fn into_feed(self) -> Vec<i64> {
        self.feed
    }

    /// The next token of the generator that began this; `None` behind the last. See [`Generator::generate`].
    ///
    /// # Errors
    /// Errors of the device; logits that are not finite; another use of the generator since, or another generator. All of them are the
    /// end.
    pub fn next(&mut self, generator: &mut Generator) -> Option<Result<i64, Error>> {
        self.next_with(generator, None)
    }

    /// The log-probabilities of the token that was returned last, if the request asks for them.
    pub fn logprobs(&self) -> Option<&LogProbs> {
        self.last.as_ref()
    }

    /// [`Continuation::next`] from the logits that a hook may change.
    pub(super) fn next_with(
        &mut self,
        generator: &mut Generator,
        hook: Option<&mut Hook<'_>>,
    ) -> Option<Result<i64, Error>> {
        self.left = self.left.checked_sub(1)?;
        if generator.number != self.number {
            self.end();
            return Some(Err(Error::usage(
                "the generator has gone on otherwise since these tokens began",
                "take all tokens of a prompt before the next one is given, or begin it again",
            )));
        }
        let token = self.advance(generator, hook);
        if token.as_ref().map_or(true, |t| self.stop.contains(t)) {
            self.end();
            if let Err(e) = generator.settle() {
                return Some(token.and(Err(e)));
            }
        }
        Some(token)
    }

    fn end(&mut self) {
        self.left = 0;
        (self.next, self.ahead) = (None, None);
        self.ready.clear();
    }

    fn advance(&mut self, generator: &mut Generator, hook: Option<&mut Hook<'_>>) -> Result<i64, Error> {
        if self.choice.needs_tokens() {
            return self.advance_stepwise(generator, hook);
        }
        let first = !self.feed.is_empty();
        if self.ready.is_empty() && self.next.is_none() && !first {
            generator.settle()?;
            let most = self.left.saturating_add(1);
            self.ready = generator.speculate(&mut self.choice, most)?.unwrap_or_default();
        }
        if let Some((token, after)) = self.ready.pop_front() {
            return Ok(generator.generated(token, after));
        }
        let ahead = self.next.take();
        let (start, alone) = (Instant::now(), ahead.is_none() && !first);
        let run = match ahead {
            Some(run) => run?,
            None => {
                generator.settle()?;
                let pending = generator.pending.filter(|_| !first);
                let feed = pending.map_or(self.feed.clone(), |t| vec![t]);
                generator.start(&feed, &mut self.choice, &[head::TOKEN])?
            }
        };
        generator.count_step();
        let after = run.after;
        if self.left > 0 && !generator.awaits_proposal(first) {
            self.next = Some(generator.follow(&run, &mut self.choice));
        }
        let read = run.started.read_blocking().map_err(device_error)?;
        let token = generator.token(&read)?;
        if alone && self.next.is_none() {
            generator.time_step(start.elapsed());
        }
        self.keep(generator, token, after, first);
        Ok(token)
    }

    /// Makes a token part of the sequence, of which `after` positions are in the cache.
    pub(super) fn keep(&mut self, generator: &mut Generator, token: i64, after: usize, first: bool) {
        if first {
            // The feed begins with the token that was generated last, if there is one.
            generator.history.truncate(generator.kept);
            generator.history.extend(&self.feed);
            self.feed.clear();
        }
        generator.generated(token, after);
    }
}

/// An iterator over generated tokens. See [`Generator::generate`]. See the example of [`Generator`].
pub struct Tokens<'g> {
    pub(super) generator: &'g mut Generator,
    pub(super) continuation: Continuation,
    pub(super) hook: Option<Hook<'g>>,
}

impl Iterator for Tokens<'_> {
    type Item = Result<i64, Error>;

    fn next(&mut self) -> Option<Result<i64, Error>> {
        self.continuation.next_with(self.generator, self.hook.as_mut())
    }
}

impl Drop for Tokens<'_> {
    fn drop(&mut self) {
        // An error here recurs at the next use and is reported then.
        let _ = self.generator.settle();
    }
}
