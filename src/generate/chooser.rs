//! The sessions that choose tokens from the logits of a program.

use super::choose::Limits;
use super::programs::limited;
use super::{head, logprobs, no_output, stepwise};
use crate::model::device_error;
use crate::{Error, Options, Program, Tensor};
use std::collections::HashMap;
use wgfc_ir::{DType, TensorType};
use wgfc_runtime::kernel::Checks;
use wgfc_runtime::session::{SessionOptions, Started, Value};
use wgfc_runtime::{DeviceTensor, Gpu, Session};

/// The sessions that choose tokens from the logits of one program, each made when it is first needed.
pub(super) struct Chooser {
    gpu: Gpu,
    /// The type of the logits.
    logits: TensorType,
    /// The type of token ids.
    ids: DType,
    /// The options with which the programs are compiled.
    options: Options,
    /// The sessions that choose a token within limits.
    limited: HashMap<Limits, Session>,
    /// The session that computes log-probabilities.
    logprobs: Option<Session>,
}

impl Chooser {
    /// The choice from the logits of a session's program.
    pub fn new(session: &Session, ids: DType, options: Options) -> Result<Chooser, Error> {
        let outputs = &session.program().outputs;
        let logits = outputs.iter().find(|p| p.name == head::LOGITS).ok_or_else(no_output)?;
        let logits = TensorType::new(logits.dtype, logits.shape.clone());
        let gpu = session.gpu().clone();
        Ok(Chooser { gpu, logits, ids, options, limited: HashMap::new(), logprobs: None })
    }

    /// Creates the session that chooses within these limits, if it does not exist.
    pub fn prepare(&mut self, limits: Limits) -> Result<(), Error> {
        if limits == Limits::default() || self.limited.contains_key(&limits) {
            return Ok(());
        }
        let program = limited(self.logits.clone(), limits, self.ids, &self.options)?;
        let session = self.session(&program)?;
        self.limited.insert(limits, session);
        Ok(())
    }

    /// The session that chooses within these limits; `None` if it was not prepared.
    pub fn limited(&mut self, limits: Limits) -> Option<&mut Session> {
        self.limited.get_mut(&limits)
    }

    /// Starts the choice of tokens from logits.
    pub fn pick(&mut self, logits: Value, pick: stepwise::Pick, outputs: &[&str]) -> Result<Started, Error> {
        self.prepare(pick.limits)?;
        let session = self.limited(pick.limits).ok_or_else(no_output)?;
        let mut given: Vec<(&str, Value)> = pick.given.into_iter().map(|(n, t)| (n, t.into())).collect();
        given.push((head::LOGITS, logits));
        session.start_blocking(&given, Some(outputs)).map_err(device_error)
    }

    /// Starts a run of `session`, and a run of the session within `limits` that chooses tokens from its logits.
    pub fn chosen(
        &mut self,
        session: &mut Session,
        limits: Limits,
        given: &[(&str, Value)],
        words: Tensor,
        outputs: &[&str],
    ) -> Result<Started, Error> {
        let Some(limited) = self.limited(limits) else {
            return session.start_blocking(given, Some(outputs)).map_err(device_error);
        };
        let made = session.run_on_device_blocking(given).map_err(device_error)?;
        let logits = made.into_iter().find(|(n, _)| n == head::LOGITS).ok_or_else(no_output)?.1;
        let given = [(head::LOGITS, logits.into()), (head::CHOICE, words.into())];
        limited.start_blocking(&given, Some(outputs)).map_err(device_error)
    }

    /// Starts the computation of the log-probabilities of each row's token.
    pub fn start_logprobs(&mut self, logits: DeviceTensor, token: DeviceTensor) -> Result<Started, Error> {
        if self.logprobs.is_none() {
            let program = logprobs::program(self.logits.clone(), token.dtype(), &self.options)?;
            self.logprobs = Some(self.session(&program)?);
        }
        let session = self.logprobs.as_mut().ok_or_else(no_output)?;
        let given = [(head::LOGITS, logits.into()), (head::TOKEN, token.into())];
        session.start_blocking(&given, None).map_err(device_error)
    }

    /// The session of a program that was compiled in this process.
    fn session(&self, program: &Program) -> Result<Session, Error> {
        let options = SessionOptions { checks: Checks::Trusted, ..SessionOptions::default() };
        Session::with_options_blocking(&self.gpu, program, options).map_err(device_error)
    }

    /// The options with which its programs are compiled.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The sessions, for their memory.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.limited.values().chain(&self.logprobs)
    }

    /// A copy with sessions of its own.
    pub fn fork(&self) -> Result<Chooser, Error> {
        // They have no states.
        let fork = |s: &Session| s.fork_blocking().map_err(device_error);
        let limited = self.limited.iter().map(|(l, s)| Ok((*l, fork(s)?)));
        Ok(Chooser {
            gpu: self.gpu.clone(),
            logits: self.logits.clone(),
            ids: self.ids,
            options: self.options.clone(),
            limited: limited.collect::<Result<_, Error>>()?,
            logprobs: self.logprobs.as_ref().map(fork).transpose()?,
        })
    }
}
