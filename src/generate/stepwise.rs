//! Tokens whose choice depends on the tokens before them.
//!
//! A run of the model starts as soon as its token has been chosen, on the device. While it runs, the host reads that token and
//! finds out what the choice of the next one depends on, such as penalties; then the choice from the run's logits starts.

use super::choose::{Choice, Limits};
use super::tokens::{Ids, given, session};
use super::{Generator, Tokens, choose, head, no_output, penalties};
use crate::model::device_error;
use crate::{Error, Tensor};
use wgfc_runtime::DeviceTensor;
use wgfc_runtime::session::{Started, Value};

/// Logits from which no token has been chosen yet.
pub(super) struct Logits {
    pub logits: DeviceTensor,
    /// The number of positions in the states after the run.
    pub after: usize,
}

/// How the tokens of several rows are chosen from given logits.
pub(super) struct Pick {
    pub limits: Limits,
    pub given: Vec<(&'static str, Tensor)>,
}

impl Pick {
    /// The choices of all rows; `None` is for a row whose token is not needed. `limits` include those of each choice.
    pub fn of(choices: &mut [Option<&mut Choice>], limits: Limits) -> Result<Pick, Error> {
        let words = choices.iter_mut().map(|c| c.as_mut().map(|c| c.row()).unwrap_or_default());
        let mut given = vec![(head::CHOICE, choose::rows(&words.collect::<Vec<_>>()))];
        if limits.list {
            let lists: Vec<_> = choices.iter().map(|c| c.as_ref().map_or(&[][..], |c| c.list())).collect();
            given.push((head::LIST, penalties::tensor(&lists)?));
        }
        Ok(Pick { limits, given })
    }
}

impl Generator {
    /// Starts the choice of tokens from logits.
    pub(super) fn pick(
        &mut self,
        logits: DeviceTensor,
        pick: Pick,
        outputs: &[&str],
    ) -> Result<Started, Error> {
        self.prepare(pick.limits)?;
        let session = self.limited.get_mut(&pick.limits).ok_or_else(no_output)?;
        let mut given: Vec<(&str, Value)> = pick.given.into_iter().map(|(n, t)| (n, t.into())).collect();
        given.push((head::LOGITS, logits.into()));
        session.start_blocking(&given, Some(outputs)).map_err(device_error)
    }

    /// Starts the run that processes these tokens.
    fn forward(&mut self, ids: &Ids<'_>) -> Result<Logits, Error> {
        let past = self.decode.state_len();
        self.reserve(past + ids.count())?;
        let given = given(&self.inputs, ids, past, choose::greedy());
        let session = session(&mut self.prefill, &mut self.decode, ids.count());
        let made = session.run_on_device_blocking(&given).map_err(device_error)?;
        let logits = made.into_iter().find(|(n, _)| n == head::LOGITS).ok_or_else(no_output)?.1;
        Ok(Logits { logits, after: self.decode.state_len() })
    }
}

impl Tokens<'_> {
    /// The next token, if its choice depends on those before it.
    pub(super) fn advance_stepwise(&mut self) -> Result<i64, Error> {
        let (ahead, first) = match self.ahead.take() {
            Some(ahead) => (ahead?, false),
            None => {
                let last = self.generator.start_all_but_last(&self.feed)?;
                (self.generator.forward(&Ids::Host(&self.feed[last..]))?, true)
            }
        };
        let after = ahead.after;
        let limits = self.choice.limits();
        let pick = Pick::of(&mut [Some(&mut self.choice)], limits)?;
        let started = self.generator.pick(ahead.logits, pick, &[head::TOKEN])?;
        if self.left > 0 {
            let token = started.output(head::TOKEN).ok_or_else(no_output)?.clone();
            self.ahead = Some(self.generator.forward(&Ids::Device(token)));
        }
        let read = started.read_blocking().map_err(device_error)?;
        let token = self.generator.token(&read)?;
        self.keep(token, after, first);
        self.choice.add(token);
        Ok(token)
    }
}
