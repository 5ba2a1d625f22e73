//! Speculation: several tokens in one run of the model.
//!
//! A decode step reads all weights for one token. A run of a few tokens reads them once, too, so it takes about as long. A
//! [`Proposer`] guesses the tokens that come next, and one run processes the last token and the guesses: it chooses the token
//! behind each of them. Guesses are accepted up to the first that differs from the token that was chosen before it, and
//! that token takes its place. Positions of rejected guesses are removed from the cache.
//!
//! The chosen tokens are those of single steps: the run computes the same logits, as far as rounding allows, and the choice
//! of the i-th token uses the random numbers of the i-th step. So sampling has the same distribution, and with the same seed
//! the same tokens. This is speculative sampling (Leviathan, Kalman and Matias, *Fast Inference from Transformers via
//! Speculative Decoding*, 2023) for proposals that are certain of one token.

mod draft;
mod lookup;
#[cfg(test)]
mod tests;

pub use draft::Draft;
pub use lookup::Lookup;

use super::choose::{self, Choice, Limits, Words, word};
use super::chooser::Chooser;
use super::tokens::{Ids, given};
use super::{Generator, head, no_output};
use crate::Error;
use crate::model::device_error;
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};
use wgfc_ir::Poly;
use wgfc_runtime::session::Value;
use wgfc_runtime::{Profile, Session};

/// The most single steps between two attempts after proposals have been rejected again and again.
const LONGEST_PAUSE: usize = 32;
/// The number of runs after which their time is taken as known.
const TIMED: usize = 3;

/// A source of proposals for [`Generator::set_proposer`].
///
/// ```
/// use wgfc::Error;
/// use wgfc::generate::{Lookup, Proposer};
/// /// Proposes that the last token comes again.
/// struct Again;
/// impl Proposer for Again {
///     fn propose(&mut self, tokens: &[i64], most: usize) -> Result<Vec<i64>, Error> {
///         Ok(tokens.last().map(|t| vec![*t; most]).unwrap_or_default())
///     }
/// }
/// assert_eq!(Again.propose(&[3, 1], 2)?, [1, 1]);
/// assert_eq!(Lookup::default().propose(&[5, 6, 7, 8, 9, 5, 6, 7], 2)?, [8, 9]);
/// # Ok::<(), Error>(())
/// ```
pub trait Proposer: Send + Sync {
    /// Proposes up to `most` tokens to follow `tokens`, which are all tokens so far. Negative ones are unknown. There may be
    /// fewer or none.
    ///
    /// # Errors
    /// The source fails. Generation ends with the error.
    fn propose(&mut self, tokens: &[i64], most: usize) -> Result<Vec<i64>, Error>;

    /// Whether there may be a proposal once one more token than `tokens` is known. If not, the next step starts before that
    /// token has been read.
    fn expects(&self, tokens: &[i64]) -> bool {
        let _ = tokens;
        true
    }
}

/// Counts of a generator's runs since it was created. See the example of [`Generator::speculated`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Speculated {
    /// Runs that verified a proposal.
    pub runs: u64,
    /// Tokens that were proposed.
    pub proposed: u64,
    /// Proposed tokens that were accepted. Each run chooses one token more than it accepts.
    pub accepted: u64,
    /// Runs of one token, and the last runs of prompts, which choose one token each.
    pub steps: u64,
}

impl Speculated {
    /// The number of generated tokens per run that chose any; 1 without speculation and before any run.
    pub fn tokens_per_run(&self) -> f64 {
        let runs = self.runs + self.steps;
        if runs == 0 { 1.0 } else { (runs + self.accepted) as f64 / runs as f64 }
    }

    /// The counts since `earlier`.
    pub fn since(&self, earlier: &Speculated) -> Speculated {
        Speculated {
            runs: self.runs - earlier.runs,
            proposed: self.proposed - earlier.proposed,
            accepted: self.accepted - earlier.accepted,
            steps: self.steps - earlier.steps,
        }
    }
}

/// The time of runs of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Timing {
    runs: usize,
    /// The least time in seconds. It grows with each run, as runs take longer the more positions there are.
    least: f64,
}

impl Timing {
    fn add(&mut self, time: Duration) {
        let time = time.as_secs_f64();
        self.least = if self.runs == 0 { time } else { time.min(self.least * 1.1) };
        self.runs += 1;
    }

    /// The least time, once there are enough runs.
    fn known(&self) -> Option<f64> {
        (self.runs >= TIMED).then_some(self.least)
    }
}

/// When proposals are asked for. Where they are rejected, or so few accepted that single steps are faster, attempts become rare,
/// so that text that cannot be guessed costs hardly more than without speculation.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// The number of single steps before the next attempt.
    wait: usize,
    /// The length of the last pause.
    pause: usize,
    /// The moving average of accepted tokens.
    mean: Option<f64>,
    single: Timing,
    verifying: Timing,
}

impl Pace {
    fn stepped(&mut self) {
        self.wait = self.wait.saturating_sub(1);
    }

    /// Records the outcome of an attempt.
    fn verified(&mut self, accepted: usize) {
        let now = accepted as f64;
        self.mean = Some(self.mean.map_or(now, |mean| 0.75 * mean + 0.25 * now));
        let pays = accepted > 0 && self.pays();
        self.pause = if pays { 0 } else { (2 * self.pause + 1).min(LONGEST_PAUSE) };
        self.wait = self.pause;
    }

    /// Whether verifying runs generate tokens faster than single steps, as far as the times of both are known.
    fn pays(&self) -> bool {
        match (self.single.known(), self.verifying.known()) {
            (Some(single), Some(verifying)) => (1.0 + self.mean.unwrap_or(0.0)) * single >= verifying,
            _ => true,
        }
    }
}

/// The part of a generator that speculates.
pub(super) struct Speculation {
    /// The session that takes `positions` tokens and chooses the token behind each.
    session: Session,
    positions: usize,
    /// The choice from the logits of all positions.
    chooser: Chooser,
    /// See [`programs::Verifier`].
    turns: Vec<Poly>,
    proposer: Box<dyn Proposer>,
    /// The limits of runs so far: the first run within some limits takes longer and is not timed.
    warm: HashSet<Limits>,
    pace: Pace,
    counts: Speculated,
}

impl Speculation {
    /// Speculation by [`Lookup`].
    ///
    /// # Errors
    /// States from which positions cannot be removed.
    pub fn new(
        session: Session,
        chooser: Chooser,
        positions: usize,
        turns: Vec<Poly>,
    ) -> Result<Speculation, Error> {
        let fixed = |s: &&wgfc_ir::program::State| s.growth.is_none() || s.is_window();
        if let Some(s) = session.program().states.iter().find(fixed) {
            let message = format!("rejected tokens cannot be removed from state \"{}\" of the model", s.name);
            return Err(Error::usage(message, "generate without speculation"));
        }
        Ok(Speculation {
            session,
            positions,
            chooser,
            turns,
            proposer: Box::new(Lookup::default()),
            warm: HashSet::new(),
            pace: Pace::default(),
            counts: Speculated::default(),
        })
    }

    /// A copy that works on the states of another session, with proposals of [`Lookup`].
    pub fn fork(&self, states: &Session) -> Result<Speculation, Error> {
        let session = self.session.on_states_of_blocking(states).map_err(device_error)?;
        Speculation::new(session, self.chooser.fork()?, self.positions, self.turns.clone())
    }

    /// The sessions, for their memory.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        std::iter::once(&self.session).chain(self.chooser.sessions())
    }

    /// Whether values that depend on the number of tokens so far, such as the factors of a rotary embedding for long contexts,
    /// change within a run after `past` tokens. Single steps would then compute with both.
    fn turns_after(&self, past: usize) -> bool {
        let at = |p: &Poly, past: i64| p.eval_syms(&|_| Some(past)).is_none_or(|v| v > 0);
        let (last, first) = (past as i64, past as i64 + 1 - self.positions as i64);
        self.turns.iter().any(|p| at(p, last) != at(p, first))
    }
}

impl Generator {
    /// Takes proposals from `proposer` from now on; [`Lookup`] is the source before.
    ///
    /// # Errors
    /// The generator was created without [`GeneratorOptions::speculate`](super::GeneratorOptions::speculate).
    ///
    /// ```no_run
    /// # fn set(generator: &mut wgfc::Generator) -> Result<(), wgfc::Error> {
    /// use wgfc::generate::Lookup;
    /// // Proposals after two equal tokens instead of three.
    /// generator.set_proposer(Box::new(Lookup { least: 2 }))
    /// # }
    /// ```
    pub fn set_proposer(&mut self, proposer: Box<dyn Proposer>) -> Result<(), Error> {
        let s = self.speculation.as_mut().ok_or_else(no_speculation)?;
        (s.proposer, s.pace) = (proposer, Pace::default());
        Ok(())
    }

    /// The counts of runs and of proposed tokens; zeros without speculation.
    ///
    /// ```no_run
    /// # fn count(generator: &mut wgfc::Generator) -> Result<(), wgfc::Error> {
    /// let request = wgfc::Request { max_new_tokens: 100, ..Default::default() };
    /// let before = generator.speculated();
    /// generator.generate(&[3, 1, 36], &request)?.for_each(drop);
    /// let counts = generator.speculated().since(&before);
    /// println!("{} of {} accepted", counts.accepted, counts.proposed);
    /// println!("{:.2} tokens a run", counts.tokens_per_run());
    /// # Ok(()) }
    /// ```
    pub fn speculated(&self) -> Speculated {
        self.speculation.as_ref().map(|s| s.counts).unwrap_or_default()
    }

    /// Times runs that verify a proposal, as [`Generator::profile`] times single steps. They do not change the sequence.
    ///
    /// # Errors
    /// As for [`Generator::set_proposer`]; a cache without room for the proposal; an error of the device.
    pub fn profile_verification(&mut self, runs: usize) -> Result<Profile, Error> {
        self.settle()?;
        let positions = self.speculation.as_ref().ok_or_else(no_speculation)?.positions;
        let past = self.kept;
        if past + positions > self.capacity {
            let message = format!(
                "{past} tokens and the {positions} of a run are more than the {} positions of the cache",
                self.capacity
            );
            return Err(Error::usage(message, "give the cache more room (--capacity)"));
        }
        self.reserve(past + positions)?;
        let words = choose::rows(&vec![[0; word::ALL]; positions]);
        let given = given(&self.inputs, &Ids::Host(&vec![0; positions]), past, words);
        let host = |(n, v)| match v {
            Value::Host(t) => Some((n, t)),
            Value::Device(_) => None,
        };
        let given: Vec<_> = given.into_iter().filter_map(host).collect();
        let s = self.speculation.as_mut().ok_or_else(no_speculation)?;
        s.session.profile_blocking(&given, runs).map_err(device_error)
    }

    /// Whether the next token must be known before the run after it starts, as a proposal may follow it. `first`: the tokens
    /// of the prompt are not in the history yet.
    pub(super) fn awaits_proposal(&self, first: bool) -> bool {
        let due = |s: &Speculation| s.pace.wait == 0 && (first || s.proposer.expects(&self.history));
        self.speculation.as_ref().is_some_and(due)
    }

    /// Counts a run that chooses one token.
    pub(super) fn count_step(&mut self) {
        if let Some(s) = &mut self.speculation {
            s.counts.steps += 1;
            s.pace.stepped();
        }
    }

    /// Records the time of a run of one token, from its start until the token was known.
    pub(super) fn time_step(&mut self, time: Duration) {
        if let Some(s) = &mut self.speculation {
            s.pace.single.add(time);
        }
    }

    /// Creates the session that verifies within these limits, if it does not exist.
    pub(super) fn prepare_verification(&mut self, limits: Limits) -> Result<(), Error> {
        let Some(s) = &mut self.speculation else { return Ok(()) };
        // A choice that depends on the tokens before is made token by token.
        let stepwise = limits.list || limits.mask;
        let limits = Limits { each: true, ..limits };
        if stepwise || !limits.are_some() { Ok(()) } else { s.chooser.prepare(limits) }
    }

    /// Asks for a proposal and verifies it: the tokens that follow the last one, at most `most` of them, each with the number of
    /// positions that are in the cache when it has been generated. `None` if there is no proposal. The cache has room for all
    /// positions of the run afterwards, and holds more than are valid.
    pub(super) fn speculate(
        &mut self,
        choice: &mut Choice,
        most: usize,
    ) -> Result<Option<VecDeque<(i64, usize)>>, Error> {
        let (past, vocabulary) = (self.kept, self.vocabulary);
        let (Some(s), Some(last)) = (&mut self.speculation, self.pending) else { return Ok(None) };
        let positions = s.positions;
        if s.pace.wait > 0 || most < 2 || past + positions > self.capacity || s.turns_after(past) {
            return Ok(None);
        }
        let start = Instant::now();
        let mut proposal = s.proposer.propose(&self.history, (positions - 1).min(most - 1))?;
        proposal.truncate((positions - 1).min(most - 1));
        let known = |t: &i64| (0..vocabulary as i64).contains(t);
        proposal.truncate(proposal.iter().take_while(|t| known(t)).count());
        if proposal.is_empty() {
            return Ok(None);
        }
        let mut ids = vec![last];
        ids.extend(&proposal);
        // The words of the tokens that will not be chosen stay with the choice.
        let mut words: Vec<Words> = {
            let mut ahead = choice.ahead();
            ids.iter().map(|_| ahead.row()).collect()
        };
        ids.resize(positions, 0);
        words.resize(positions, [0; word::ALL]);
        let words = choose::rows(&words);
        self.reserve(past + positions)?;
        let given = given(&self.inputs, &Ids::Host(&ids), past, words.clone());
        let Some(s) = &mut self.speculation else { return Ok(None) };
        let limits = Limits { each: true, ..choice.limits() };
        let started = s.chooser.chosen(&mut s.session, limits, &given, words, &[head::TOKEN])?;
        let read = started.read_blocking().map_err(device_error)?;
        let tokens = read.iter().find(|(n, _)| n == head::TOKEN).and_then(|(_, t)| t.scalars());
        let tokens = tokens.filter(|t| t.len() == positions).ok_or_else(no_output)?;
        let mut out = VecDeque::new();
        for (i, token) in tokens.iter().map(|t| t.as_i64()).enumerate().take(1 + proposal.len()) {
            match token {
                // A single step tells whether it is the proposal that has no logits.
                choose::NONE => break,
                t if !known(&t) => return Err(Error::Internal(format!("the device chose token {t}"))),
                _ => {}
            }
            choice.row();
            out.push_back((token, past + i + 1));
            if proposal.get(i) != Some(&token) {
                break;
            }
        }
        if !s.warm.insert(limits) {
            s.pace.verifying.add(start.elapsed());
        }
        let accepted = out.len().saturating_sub(1);
        s.counts.runs += 1;
        s.counts.proposed += proposal.len() as u64;
        s.counts.accepted += accepted as u64;
        s.pace.verified(accepted);
        Ok(Some(out).filter(|out| !out.is_empty()))
    }

    /// The sessions of speculation, for [`Generator::device_memory`].
    pub(super) fn speculation_sessions(&self) -> impl Iterator<Item = &Session> {
        self.speculation.iter().flat_map(Speculation::sessions)
    }
}

fn no_speculation() -> Error {
    Error::usage(
        "the generator has no program that verifies proposed tokens",
        "create it with GeneratorOptions::speculate",
    )
}
