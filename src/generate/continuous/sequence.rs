//! A sequence, and the runs that choose its tokens.

use super::{End, Generated, SequenceId};
use crate::Error;
use crate::generate::choose::{self, Choice};
use crate::generate::{LogProbs, Request, head, logprobs, no_output};
use crate::model::device_error;
use wgfc_ir::Scalar;
use wgfc_runtime::session::Started;

/// A sequence; `place` is what its layout of the cache keeps for it.
pub(super) struct Sequence<P> {
    pub id: SequenceId,
    /// All tokens that are known on the host, prompt and generated ones.
    pub tokens: Vec<i64>,
    /// The number of tokens that runs process which have been started. It exceeds `tokens` by one if the token that a run chooses
    /// has been fed to the next one before it was read.
    pub fed: usize,
    /// The number of tokens that may still be generated.
    pub left: usize,
    stop: Vec<i64>,
    pub choice: Choice,
    /// The number of tokens whose log-probabilities are reported.
    pub logprobs: Option<usize>,
    pub place: P,
}

impl<P> Sequence<P> {
    /// The sequence of a request, of whose prompt the first `fed` tokens are in the cache.
    pub fn new(
        id: SequenceId,
        prompt: &[i64],
        request: &Request,
        choice: Choice,
        fed: usize,
        place: P,
    ) -> Sequence<P> {
        Sequence {
            id,
            tokens: prompt.to_vec(),
            fed,
            left: request.max_new_tokens,
            stop: request.stop.clone(),
            choice,
            logprobs: request.logprobs,
            place,
        }
    }

    /// The known tokens that no run has been given yet.
    pub fn pending(&self) -> &[i64] {
        self.tokens.get(self.fed..).unwrap_or_default()
    }

    /// The number of known tokens that runs process which have been started.
    pub fn processed(&self) -> usize {
        self.fed.min(self.tokens.len())
    }

    /// Adds the token that a run has chosen for a row.
    pub fn add(&mut self, chosen: &Chosen, row: usize) -> Result<Generated, Error> {
        let token = match chosen.tokens.get(row).map(|t| t.as_i64()).ok_or_else(no_output)? {
            choose::NONE => Err(choose::nothing_to_choose()),
            t if (0..chosen.vocabulary as i64).contains(&t) => Ok(t),
            t => Err(Error::Internal(format!("the device chose token {t}"))),
        };
        let token = token.and_then(|t| Ok((t, self.choice.add(t)?)));
        self.left -= 1;
        let end = match &token {
            Ok((t, _)) if self.stop.contains(t) => Some(End::Stop),
            Ok((_, true)) => Some(End::Complete),
            Ok(_) if self.left == 0 => Some(End::Length),
            _ => None,
        };
        let token = token.map(|(t, _)| t);
        self.tokens.extend(token.as_ref().ok());
        let logprobs = self.logprobs.and_then(|n| Some(chosen.likely.get(row)?.clone().most(n)));
        Ok(Generated { sequence: self.id, token, logprobs, end })
    }
}

impl Generated {
    /// Whether the sequence has ended.
    pub(super) fn is_last(&self) -> bool {
        self.end.is_some() || self.token.is_err()
    }
}

/// The sequences of the rows of a run.
pub(super) type Layout = Vec<Option<SequenceId>>;

/// A run that has been started, and the sequence of each row whose next token it chooses.
pub(super) struct Flight {
    pub started: Started,
    pub rows: Layout,
    /// The log-probabilities, if a sequence needs them.
    pub logprobs: Option<Started>,
}

/// The tokens that a run has chosen, one for each row.
pub(super) struct Chosen {
    /// The number of tokens in the vocabulary.
    vocabulary: usize,
    tokens: Vec<Scalar>,
    likely: Vec<LogProbs>,
}

impl Flight {
    /// Waits for the tokens, of a vocabulary of this size.
    pub fn read(self, vocabulary: usize) -> Result<(Layout, Chosen), Error> {
        let read = self.started.read_blocking().map_err(device_error)?;
        let likely = self.logprobs.map(logprobs::read).transpose()?.unwrap_or_default();
        let tokens = read.iter().find(|(n, _)| n == head::TOKEN);
        let tokens = tokens.and_then(|(_, t)| t.scalars()).unwrap_or_default();
        Ok((self.rows, Chosen { vocabulary, tokens, likely }))
    }
}
