//! Tokens whose choice depends on the tokens before them.
//!
//! A run of the model starts as soon as its token has been chosen, on the device. While it runs, the host reads that token and
//! finds out what the choice of the next one depends on, such as penalties; then the choice from the run's logits starts.

use super::choose::{Choice, Limits};
use super::tokens::{Continuation, Ids, session};
use super::{Generator, LogProbs, Tokens, choose, head, logprobs, no_output, penalties};
use crate::model::device_error;
use crate::{Error, Tensor};
use wgfc_ir::{DType, Scalar};
use wgfc_runtime::DeviceTensor;
use wgfc_runtime::session::Value;

/// Logits from which no token has been chosen yet.
pub(super) struct Logits {
    pub logits: DeviceTensor,
    /// The number of positions in the states after the run.
    pub after: usize,
}

/// A function of the tokens so far and the logits of the next one.
pub(super) type Hook<'g> = Box<dyn FnMut(&[i64], &mut [f32]) + 'g>;

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
        if limits.mask {
            let len = choices.iter().flatten().find_map(|c| c.mask()).map_or(0, <[u32]>::len);
            let all = vec![u32::MAX; len];
            let words = choices.iter().flat_map(|c| c.as_ref().and_then(|c| c.mask()).unwrap_or(&all));
            let bytes = words.flat_map(|w| w.to_le_bytes()).collect();
            let mask = Tensor::new(DType::I32, vec![choices.len(), len], bytes);
            given.push((head::MASK, mask.map_err(Error::Internal)?));
        }
        Ok(Pick { limits, given })
    }
}

impl Generator {
    /// Starts the run that processes these tokens.
    fn forward(&mut self, ids: &Ids<'_>) -> Result<Logits, Error> {
        let past = self.positions();
        self.reserve(past + ids.count())?;
        let (given, n) = self.pictures.given(&self.inputs, ids, past, choose::greedy());
        let session = session(&mut self.prefill, &mut self.decode, n);
        let made = session.run_on_device_blocking(&given).map_err(device_error)?;
        let logits = made.into_iter().find(|(n, _)| n == head::LOGITS).ok_or_else(no_output)?.1;
        self.wrote(ids.count());
        Ok(Logits { logits, after: self.positions() })
    }
}

impl Continuation {
    /// The next token, if its choice depends on those before it.
    pub(super) fn advance_stepwise(
        &mut self,
        generator: &mut Generator,
        hook: Option<&mut Hook<'_>>,
    ) -> Result<i64, Error> {
        let (ahead, first) = match self.ahead.take() {
            Some(ahead) => (ahead?, false),
            None => {
                let last = generator.start_all_but_last(&self.feed)?;
                (generator.forward(&Ids::Host(&self.feed[last..]))?, true)
            }
        };
        let after = ahead.after;
        self.choice.prepare()?;
        let logits = match hook {
            Some(hook) => self.seen_by(hook, generator, &ahead.logits, first)?,
            None => ahead.logits.clone().into(),
        };
        let limits = self.choice.limits();
        let pick = Pick::of(&mut [Some(&mut self.choice)], limits)?;
        let started = generator.chooser.pick(logits, pick, &[head::TOKEN])?;
        let token = started.output(head::TOKEN).ok_or_else(no_output)?.clone();
        let likely = match self.logprobs {
            Some(_) => Some(generator.chooser.start_logprobs(ahead.logits, token.clone())?),
            None => None,
        };
        if self.left > 0 {
            self.ahead = Some(generator.forward(&Ids::Device(token)));
        }
        let read = started.read_blocking().map_err(device_error)?;
        let token = generator.token(&read)?;
        self.last = match (likely, self.logprobs) {
            (Some(likely), Some(count)) => logprobs::read(likely)?.pop().map(|all| all.most(count)),
            _ => None,
        };
        let complete = self.choice.add(token)?;
        self.keep(generator, token, after, first);
        if complete {
            self.left = 0;
        }
        Ok(token)
    }

    /// The logits from which a token is chosen: what the hook makes of those of the run.
    fn seen_by(
        &self,
        hook: &mut Hook<'_>,
        g: &Generator,
        logits: &DeviceTensor,
        first: bool,
    ) -> Result<Value, Error> {
        let read = logits.read_blocking().map_err(device_error)?;
        let mut values = read.to_f32s().ok_or_else(no_output)?;
        if first {
            let kept = g.history.get(..g.kept).unwrap_or_default();
            hook(&[kept, &self.feed].concat(), &mut values);
        } else {
            hook(&g.history, &mut values);
        }
        let scalars: Vec<Scalar> =
            values.iter().map(|x| Scalar::from_f64(read.dtype, f64::from(*x))).collect();
        Ok(Tensor::from_scalars(read.dtype, read.shape, &scalars).into())
    }
}

impl<'g> Tokens<'g> {
    /// Gives `hook` the tokens so far (a negative number where one is not known or stands for a part of a picture) and the logits of the next one, one for each token of the vocabulary, which it
    /// may change; sampling parameters and a constraint apply to what it leaves. The logits are read from the device and copied back at each
    /// step, so that this is slower than what [`Sampling`](super::Sampling) does. [`LogProbs`] are those of the model's own logits.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # if wgfc::runtime::testing::gpus().is_empty() { return Ok(()) }
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx");
    /// use wgfc::{Decoder, Generator, GeneratorOptions, Request};
    /// let mut generator = Generator::new(&Decoder::open(&path)?, &GeneratorOptions::default())?;
    /// let request = Request { max_new_tokens: 8, ..Request::default() };
    /// // No token is followed by itself.
    /// let tokens = generator.generate(&[3, 1, 36], &request)?.with_logits(|tokens, logits| {
    ///     if let Some(last) = tokens.last() {
    ///         logits[*last as usize] = f32::NEG_INFINITY;
    ///     }
    /// });
    /// let tokens: Vec<i64> = tokens.collect::<Result<_, _>>()?;
    /// assert!(tokens.windows(2).all(|pair| pair[0] != pair[1]));
    /// # Ok(()) }
    /// ```
    pub fn with_logits(mut self, hook: impl FnMut(&[i64], &mut [f32]) + 'g) -> Tokens<'g> {
        self.hook = Some(Box::new(hook));
        self.continuation.choice.make_stepwise();
        self
    }

    /// The log-probabilities of the token that was returned last, if the request asks for them.
    pub fn logprobs(&self) -> Option<&LogProbs> {
        self.continuation.logprobs()
    }
}
