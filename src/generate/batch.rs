//! Generation of several sequences at once, each with its own length.
//!
//! All sequences append at the same position of the cache, after the longest. Shorter prompts are padded at their end. After
//! the run, the attention mask hides the padding, so that later tokens do not attend to it; earlier ones could not, as
//! attention is causal. Position ids are counted for each sequence separately. Caches in which each sequence has its own end
//! (GroupQueryAttention) derive it from the same mask.

use super::build::Built;
use super::choose::{self, Choice, Limits};
use super::roles::Step;
use super::{Decoder, Generator, GeneratorOptions, Request, head, no_output, tokens, vision};
use crate::model::device_error;
use crate::{Error, Problem, Tensor};
use wgfc_compiler::decoding::joined::FEATURES;
use wgfc_runtime::session::{DeviceMemory, Started, Value};
use wgfc_runtime::{DeviceTensor, Gpu, Profile, Session};

/// A decoder on a device for several sequences at once.
///
/// ```
/// use wgfc::{BatchGenerator, Decoder, GeneratorOptions, Request};
/// # fn main() -> Result<(), wgfc::Error> {
/// # if wgfc::runtime::testing::gpus().is_empty() { return Ok(()) }
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder-batch/model.onnx");
/// let decoder = Decoder::open(&path)?;
/// let mut generator = BatchGenerator::new(&decoder, 2, &GeneratorOptions::default())?;
/// let request = Request { max_new_tokens: 5, ..Default::default() };
/// let steps: Vec<Vec<Option<i64>>> =
///     generator.generate(&[&[3, 1, 36], &[7]], &request)?.collect::<Result<_, _>>()?;
/// assert_eq!((steps.len(), generator.lengths()), (5, vec![8, 6]));
/// # Ok(()) }
/// ```
pub struct BatchGenerator {
    pub(super) generator: Generator,
    rows: Vec<Row>,
    /// Whether sequences may differ in length.
    ragged: bool,
    /// Whether each sequence has its own end in the cache.
    pub(super) own_ends: bool,
    /// Whether the first axis of the cache is that of the sequences.
    pub(super) rows_lead: bool,
}

/// One sequence of the batch.
#[derive(Clone, Debug, Default)]
struct Row {
    /// The attention mask: for each position of the cache, 1 if it holds a token of this sequence, else 0. A run that was
    /// started ahead of need may have added one.
    real: Vec<i64>,
    /// The number of ones in `real`: the tokens that the model has processed.
    seen: usize,
    /// The token that was generated last. The model has not processed it yet.
    pending: Option<i64>,
}

impl Row {
    /// A sequence of this many tokens without padding.
    fn full(tokens: usize) -> Row {
        Row { real: vec![1; tokens], seen: tokens, pending: None }
    }

    /// Appends `positions` positions, of which the first `tokens` hold a token each and the others padding.
    fn extend(&mut self, tokens: usize, positions: usize) {
        self.real.extend((0..positions).map(|i| i64::from(i < tokens)));
        self.seen += tokens.min(positions);
    }

    /// Removes the positions from `len` on.
    fn truncate(&mut self, len: usize) {
        let dropped = self.real.iter().skip(len);
        self.seen -= dropped.filter(|r| **r == 1).count();
        self.real.truncate(len);
    }

    /// Marks the positions from `from` on as padding.
    fn hide(&mut self, from: usize) {
        let positions = self.real.len();
        self.truncate(from);
        self.real.resize(positions, 0);
    }
}

impl BatchGenerator {
    /// Compiles the decoder for `batch` sequences and uploads it.
    ///
    /// # Errors
    /// As for [`Generator::new`]; also a model that takes one sequence at a time.
    pub fn new(decoder: &Decoder, batch: usize, options: &GeneratorOptions) -> Result<BatchGenerator, Error> {
        let gpu = Gpu::request_blocking(&options.adapter).map_err(device_error)?;
        BatchGenerator::on_device(gpu, decoder, batch, options)
    }

    /// [`BatchGenerator::new`] on a device that is already open; `options.adapter` is ignored.
    pub fn on_device(
        gpu: Gpu,
        decoder: &Decoder,
        batch: usize,
        options: &GeneratorOptions,
    ) -> Result<BatchGenerator, Error> {
        let (generator, Built { own_ends, rows_lead }) = Generator::build(gpu, decoder, options, batch)?;
        let ragged = generator.inputs.iter().any(|i| i.hides())
            && (own_ends || generator.inputs.iter().any(|i| i.places_each()));
        Ok(BatchGenerator { generator, rows: vec![Row::default(); batch], ragged, own_ends, rows_lead })
    }

    /// The number of sequences.
    pub fn batch(&self) -> usize {
        self.rows.len()
    }
    /// The number of tokens of each sequence so far, prompts and generated ones.
    pub fn lengths(&self) -> Vec<usize> {
        self.rows.iter().map(|r| r.seen + usize::from(r.pending.is_some())).collect()
    }
    /// The number of tokens in the vocabulary. Token ids are less than it.
    pub fn vocabulary(&self) -> usize {
        self.generator.vocabulary
    }
    /// The most positions that the cache may grow to.
    pub fn capacity(&self) -> usize {
        self.generator.capacity
    }
    /// The compiler's warnings.
    pub fn warnings(&self) -> &[String] {
        self.generator.warnings()
    }
    /// The session that runs a single token of each sequence.
    pub fn session(&self) -> &Session {
        self.generator.session()
    }

    /// Whether sequences may differ in length.
    pub fn ragged(&self) -> bool {
        self.ragged
    }

    /// The memory that the generator holds on the device.
    pub fn device_memory(&self) -> DeviceMemory {
        self.generator.device_memory()
    }

    /// The estimated cost of one more token of each sequence after `past` others; see [`Generator::cost`].
    pub fn cost(&self, past: usize) -> (usize, u64) {
        self.generator.cost(past)
    }

    /// Makes the generator behave as if each sequence held this many tokens; the cache contents are undefined. This serves
    /// to time one more token.
    ///
    /// # Errors
    /// More tokens than the cache has room for.
    pub fn pretend(&mut self, tokens: usize) -> Result<(), Error> {
        self.generator.pretend(tokens)?;
        self.rows.fill(Row::full(tokens));
        Ok(())
    }

    /// Times runs that take one more token of each sequence. They do not change the sequences. The tokens are chosen
    /// greedily.
    pub fn profile(&mut self, runs: usize) -> Result<Profile, Error> {
        self.settle()?;
        self.generator.reserve(self.generator.kept + 1)?;
        let step = self.inputs_of(&vec![[0].as_slice(); self.rows.len()], 1);
        let inputs = self.generator.inputs.iter();
        let mut given: Vec<(&str, Tensor)> = inputs.map(|i| (i.name.as_str(), i.of(&step))).collect();
        given.push((head::CHOICE, choose::greedy()));
        self.generator.decode.profile_blocking(&given, runs).map_err(device_error)
    }

    /// Appends tokens to each sequence. Returns the logits of the next tokens, `[batch, …, vocabulary]`, and the most likely
    /// tokens, which are not appended.
    ///
    /// # Errors
    /// As for [`BatchGenerator::generate`] and its iterator.
    pub fn logits(&mut self, tokens: &[&[i64]]) -> Result<(Tensor, Vec<i64>), Error> {
        let mut all = self.generate(tokens, &Request::default())?;
        let feeds = std::mem::take(&mut all.feeds);
        drop(all);
        let done = self.start(&feeds, &mut Choice::new(None, 0), &[head::LOGITS, head::TOKEN]);
        let read = done.and_then(|started| started.read_blocking().map_err(device_error));
        let read = read.and_then(|read| Ok((self.tokens_of(&read, &vec![false; feeds.len()])?, read)));
        let (tokens, read) = match read {
            Ok(read) => read,
            Err(e) => {
                self.settle()?;
                return Err(e);
            }
        };
        self.generator.kept = self.generator.positions();
        self.rows.iter_mut().for_each(|r| r.pending = None);
        let logits = read.into_iter().find(|(n, _)| n == head::LOGITS).ok_or_else(no_output)?;
        Ok((logits.1, tokens.into_iter().flatten().collect()))
    }

    /// Removes all tokens of all sequences.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.rows = vec![Row::default(); self.rows.len()];
        self.generator.reset()
    }

    /// The tokens that follow the prompts. There is one prompt for each sequence, and it is appended to that sequence. Each
    /// step returns one token for each sequence, or `None` for a sequence that has reached a token in `request.stop`. The
    /// step in which the last sequence does so is the last one. Each sequence has its own random numbers. After an error the
    /// state is as it was before the step that failed.
    ///
    /// # Errors
    /// As for [`Generator::generate`], with the faults of all prompts; a number of prompts other than that of sequences;
    /// sequences of different lengths if the model has no inputs that distinguish them.
    ///
    /// ```no_run
    /// # fn generate(generator: &mut wgfc::BatchGenerator) -> Result<(), wgfc::Error> {
    /// let request = wgfc::Request { max_new_tokens: 20, ..Default::default() };
    /// for step in generator.generate(&[&[3, 1, 36], &[7]], &request)? {
    ///     // One token for each sequence; none for those that have ended.
    ///     println!("{:?}", step?);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn generate(&mut self, prompts: &[&[i64]], request: &Request) -> Result<BatchTokens<'_>, Error> {
        self.settle()?;
        let mut problems = vec![];
        if prompts.len() != self.rows.len() {
            problems.push(Problem::with_help(
                format!("there are {} prompts for {} sequences", prompts.len(), self.rows.len()),
                "give one for each sequence",
            ));
        }
        for (i, (prompt, row)) in prompts.iter().zip(&self.rows).enumerate() {
            let at = format!("prompt {i}: ");
            problems.extend(super::problems_of(self.vocabulary(), prompt, row.pending.is_some(), &at));
            problems.extend(vision::problems(self.generator.pictures.width(), prompt, &request.images));
        }
        let feeds: Vec<Vec<i64>> = prompts
            .iter()
            .zip(&self.rows)
            .map(|(p, row)| row.pending.iter().chain(*p).copied().collect())
            .collect();
        let longest = feeds.iter().map(Vec::len).max().unwrap_or(0);
        let past = self.generator.positions();
        let total = past.saturating_add(longest).saturating_add(request.max_new_tokens);
        if total > self.capacity() {
            problems.push(Problem::with_help(
                format!(
                    "{past} positions so far, {longest} of the longest prompt and {} new ones are {total} positions, and the cache may grow to {}",
                    request.max_new_tokens,
                    self.capacity()
                ),
                self.generator.more_room(total),
            ));
        }
        let even = self.rows.iter().zip(&feeds).all(|(r, f)| r.seen == past && f.len() == longest);
        if !even && !self.ragged {
            problems.push(Problem::with_help(
                "the sequences differ in length, and the model does not take what would tell it: an attention mask, and position ids for each sequence",
                "give prompts of the same length to a new generator, or export the model with both inputs",
            ));
        }
        problems.extend(request.problems(self.vocabulary()));
        let adjusts = request.sampling.as_ref().is_some_and(|s| s.adjusts());
        if adjusts || request.constraint.is_some() || request.logprobs.is_some() {
            problems.push(Problem::with_help(
                "sequences that are generated in step take no penalties, logit biases and constraints, and have no log-probabilities",
                "leave them out, or use ContinuousGenerator, whose sequences have their own",
            ));
        }
        if !problems.is_empty() {
            return Err(Error::Usage(problems));
        }
        let choice = Choice::new(request.sampling.as_ref(), self.vocabulary());
        self.generator.chooser.prepare(choice.limits())?;
        let g = &mut self.generator;
        g.pictures.take(g.decode.gpu(), &prompts.concat(), &request.images)?;
        Ok(BatchTokens {
            choice,
            left: request.max_new_tokens,
            stop: request.stop.clone(),
            done: vec![false; feeds.len()],
            feeds,
            next: None,
            batch: self,
        })
    }

    /// Removes the tokens of one sequence: no later token attends to them.
    pub(super) fn forget(&mut self, row: usize) {
        if let Some(row) = self.rows.get_mut(row) {
            row.pending = None;
            row.hide(0);
        }
    }

    /// The position of a sequence's first token, and the number of its tokens in consecutive positions from there; `None` if it has none.
    pub(super) fn stretch(&self, row: usize) -> Option<(usize, usize)> {
        let real = &self.rows.get(row)?.real;
        let start = real.iter().position(|r| *r == 1)?;
        Some((start, real[start..].iter().take_while(|r| **r == 1).count()))
    }

    /// Makes a sequence that of `tokens` tokens, whose values lie in consecutive positions of its row from `start` on.
    pub(super) fn place(&mut self, row: usize, start: usize, tokens: usize) {
        let end = self.generator.decode.state_len();
        if let Some(row) = self.rows.get_mut(row) {
            let real = (0..end).map(|i| i64::from((start..start + tokens).contains(&i))).collect();
            *row = Row { real, seen: tokens, pending: None };
        }
    }

    /// Removes the positions after the first `positions`.
    pub(super) fn rewind(&mut self, positions: usize) -> Result<(), Error> {
        self.generator.decode.rewind(positions).map_err(device_error)?;
        self.rows.iter_mut().for_each(|r| r.truncate(positions));
        Ok(())
    }

    /// Undoes runs beyond the valid positions.
    fn settle(&mut self) -> Result<(), Error> {
        let kept = self.generator.kept;
        self.rows.iter_mut().for_each(|r| r.truncate(kept));
        self.generator.settle()
    }

    /// Starts the runs that process the feeds, and choose the next tokens. Only the last run is left to be read.
    fn start(&mut self, feeds: &[Vec<i64>], choice: &mut Choice, outputs: &[&str]) -> Result<Started, Error> {
        let longest = feeds.iter().map(Vec::len).max().unwrap_or(0);
        let even = feeds.iter().all(|f| f.len() == longest);
        // If lengths differ, the last token of each sequence goes into a separate run, so that all sequences end in the same
        // run.
        let body = |f: &'_ Vec<i64>| if even { f.len() } else { f.len().saturating_sub(1) };
        let together = if even { longest } else { longest.saturating_sub(1) };
        let mut started = None;
        let mut at = 0;
        while at < together {
            let n = self.generator.chunks.usual().min(together - at);
            let columns: Vec<&[i64]> =
                feeds.iter().map(|f| &f[at.min(body(f))..(at + n).min(body(f))]).collect();
            at += n;
            let last = (even && at == together).then(|| Pick::of(choice, outputs));
            started = self.run(&Feed::Host(&columns, n), last)?;
        }
        if !even {
            let columns: Vec<&[i64]> = feeds.iter().map(|f| &f[body(f)..]).collect();
            started = self.run(&Feed::Host(&columns, 1), Some(Pick::of(choice, outputs)))?;
        }
        started.ok_or_else(no_output)
    }

    /// Starts the run that processes the tokens chosen by `run`, except for sequences that are done.
    fn follow(&mut self, run: &Started, done: &[bool], choice: &mut Choice) -> Result<Started, Error> {
        let token = run.output(head::TOKEN).ok_or_else(no_output)?.clone();
        self.run(&Feed::Device(token, done), Some(Pick::of(choice, &[head::TOKEN])))?.ok_or_else(no_output)
    }

    /// The inputs of a run of `n` tokens of each sequence; shorter sequences are padded at the end.
    fn inputs_of(&self, columns: &[&[i64]], n: usize) -> Step {
        let mut step = Step { rows: columns.len(), ..Step::default() };
        step.mask.reserve(self.rows.iter().map(|r| r.real.len() + n).sum());
        for (tokens, row) in columns.iter().zip(&self.rows) {
            step.ids.extend(tokens.iter().copied().chain(std::iter::repeat(0)).take(n));
            step.positions.extend((row.seen..row.seen + n).map(|p| p as i64));
            step.mask.extend(&row.real);
            step.mask.extend(std::iter::repeat_n(1, n));
        }
        step
    }

    /// Starts a run. With `pick`, it also chooses the next tokens, and its outputs are read later.
    pub(super) fn run(&mut self, feed: &Feed<'_>, pick: Option<Pick<'_>>) -> Result<Option<Started>, Error> {
        Ok(self.run_any(feed, pick)?.0)
    }

    /// Starts a run. Returns the run if it chooses the next tokens, otherwise its logits.
    fn run_any(
        &mut self,
        feed: &Feed<'_>,
        pick: Option<Pick<'_>>,
    ) -> Result<(Option<Started>, Option<DeviceTensor>), Error> {
        let empty = vec![[].as_slice(); self.rows.len()];
        let (columns, n) = match feed {
            Feed::Host(columns, n) => (*columns, *n),
            Feed::Device(..) => (&empty[..], 1),
        };
        let mut step = self.inputs_of(columns, n);
        let g = &mut self.generator;
        let (features, long) = g.pictures.place(&mut step.ids, n);
        g.reserve(g.positions() + n)?;
        let (words, limits, wanted) = match pick {
            None => (choose::greedy(), Limits::default(), None),
            Some(p) => (p.words, p.limits, Some(p.outputs)),
        };
        let value = |i: &super::roles::Input| match feed {
            Feed::Device(token, _) if i.is_ids() => token.clone().into(),
            _ => i.value(&step),
        };
        let mut given: Vec<(&str, Value)> = g.inputs.iter().map(|i| (i.name.as_str(), value(i))).collect();
        let own = if limits == Limits::default() { words.clone() } else { choose::greedy() };
        given.push((head::CHOICE, own.into()));
        given.extend(features.map(|f| (FEATURES, f)));
        let session = tokens::session(&mut g.prefill, &mut g.decode, long);
        let mut logits = None;
        let started = match wanted {
            None => {
                let made = session.run_on_device_blocking(&given).map_err(device_error)?;
                logits = made.into_iter().find(|(n, _)| n == head::LOGITS).map(|(_, logits)| logits);
                None
            }
            Some(outputs) => Some(g.chooser.chosen(session, limits, &given, words, outputs)?),
        };
        g.wrote(n);
        for (i, row) in self.rows.iter_mut().enumerate() {
            match feed {
                Feed::Host(columns, n) => row.extend(columns[i].len(), *n),
                Feed::Device(_, done) => row.extend(usize::from(!done[i]), 1),
            }
        }
        Ok((started, logits))
    }

    /// Starts the run that processes the tokens of all sequences, and returns its logits.
    pub(super) fn forward(&mut self, feed: &Feed<'_>) -> Result<DeviceTensor, Error> {
        let logits = self.run_any(feed, None)?.1;
        logits.ok_or_else(no_output)
    }

    /// The tokens in the outputs of a run; `None` for sequences that are done.
    fn tokens_of(&self, outputs: &[(String, Tensor)], done: &[bool]) -> Result<Vec<Option<i64>>, Error> {
        let out = outputs.iter().find(|(n, _)| n == head::TOKEN);
        let out = out.and_then(|(_, t)| t.scalars()).unwrap_or_default();
        let token = |(i, done): (usize, &bool)| {
            let token = out.get(i).map(|t| t.as_i64()).ok_or_else(no_output)?;
            match token {
                _ if *done => Ok(None),
                choose::NONE => Err(choose::nothing_to_choose()),
                t if (0..self.vocabulary() as i64).contains(&t) => Ok(Some(t)),
                t => Err(Error::Internal(format!("the device chose token {t}"))),
            }
        };
        done.iter().enumerate().map(token).collect()
    }
}

/// How a run chooses tokens, and the outputs of it that are read.
pub(super) struct Pick<'a> {
    pub words: Tensor,
    /// A session for them exists: see [`Generator::prepare`].
    pub limits: Limits,
    pub outputs: &'a [&'a str],
}

impl<'a> Pick<'a> {
    fn of(choice: &mut Choice, outputs: &'a [&'a str]) -> Pick<'a> {
        Pick { limits: choice.limits(), words: choice.words(), outputs }
    }
}

/// The input of a run.
pub(super) enum Feed<'a> {
    /// Tokens of each sequence, and the number of positions that the run appends.
    Host(&'a [&'a [i64]], usize),
    /// One token of each sequence, on the device, and which sequences are done: their positions become padding.
    Device(DeviceTensor, &'a [bool]),
}

/// An iterator over the tokens of several sequences. See [`BatchGenerator::generate`].
/// See the example of [`BatchGenerator`].
pub struct BatchTokens<'g> {
    batch: &'g mut BatchGenerator,
    /// The tokens that the model has not processed yet.
    feeds: Vec<Vec<i64>>,
    /// Whether each sequence has ended.
    done: Vec<bool>,
    left: usize,
    stop: Vec<i64>,
    choice: Choice,
    /// The run for the next tokens, already started.
    next: Option<Result<Started, Error>>,
}

impl BatchTokens<'_> {
    fn advance(&mut self) -> Result<Vec<Option<i64>>, Error> {
        let run = match self.next.take() {
            Some(run) => run?,
            None => self.batch.start(&self.feeds, &mut self.choice, &[head::TOKEN])?,
        };
        let after = self.batch.generator.positions();
        if self.left > 0 {
            self.next = Some(self.batch.follow(&run, &self.done, &mut self.choice));
        }
        let read = run.read_blocking().map_err(device_error)?;
        let tokens = self.batch.tokens_of(&read, &self.done)?;
        self.batch.generator.kept = after;
        for ((row, done), token) in self.batch.rows.iter_mut().zip(&mut self.done).zip(&tokens) {
            row.pending = token.or(row.pending);
            if !*done && token.is_some_and(|t| self.stop.contains(&t)) {
                *done = true;
                // The stop token stays pending until the sequence is continued; the run that was started ahead has processed
                // it, so its position is hidden.
                row.hide(after);
            }
        }
        Ok(tokens)
    }
}

impl Iterator for BatchTokens<'_> {
    type Item = Result<Vec<Option<i64>>, Error>;

    fn next(&mut self) -> Option<Result<Vec<Option<i64>>, Error>> {
        self.left = self.left.checked_sub(1)?;
        let tokens = self.advance();
        if tokens.is_err() || self.done.iter().all(|d| *d) {
            self.left = 0;
            self.next = None;
            if let Err(e) = self.batch.settle() {
                return Some(tokens.and(Err(e)));
            }
        }
        Some(tokens)
    }
}

impl Drop for BatchTokens<'_> {
    fn drop(&mut self) {
        // An error here recurs at the next use and is reported then.
        let _ = self.batch.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The logits of each sequence's last position equal those of the same sequence alone.
    #[test]
    fn sequences_do_not_see_each_other() {
        let feeds: [&[i64]; 4] = [&[3, 1, 36, 0, 8, 5, 22], &[7], &[30, 30, 2], &[9, 4, 11, 6, 1, 2]];
        let options = GeneratorOptions { prompt_chunk: Some(4), ..GeneratorOptions::default() };
        if wgfc_runtime::testing::gpus().is_empty() {
            return;
        }
        for model in ["decoder-batch", "decoder-ragged"] {
            let path = format!("{}/fixtures/small/{model}/model.onnx", env!("CARGO_MANIFEST_DIR"));
            let decoder = Decoder::open(Path::new(&path)).unwrap();
            let mut all = BatchGenerator::new(&decoder, feeds.len(), &options).unwrap();
            let mut one = Generator::new(&decoder, &options).unwrap();
            // All tokens but the last in chunks, then the last ones.
            let bodies = feeds.map(|f| &f[..f.len() - 1]);
            for at in [0, 4] {
                let columns: Vec<&[i64]> =
                    bodies.iter().map(|b| &b[at.min(b.len())..(at + 4).min(b.len())]).collect();
                all.run(&Feed::Host(&columns, if at == 0 { 4 } else { 2 }), None).unwrap();
            }
            let last: Vec<&[i64]> = feeds.iter().map(|f| &f[f.len() - 1..]).collect();
            for next in [last, vec![&[1], &[2], &[3], &[4]], vec![&[5], &[5], &[5], &[5]]] {
                let mut greedy = Choice::new(None, 37);
                let run = all.run(&Feed::Host(&next, 1), Some(Pick::of(&mut greedy, &[head::LOGITS])));
                let got = run.unwrap().unwrap().read_blocking().unwrap().remove(0).1;
                assert_eq!(got.shape, [4, 1, 37]);
                let got = got.to_f32s().unwrap();
                for (i, feed) in feeds.iter().enumerate() {
                    one.reset().unwrap();
                    let seen = all.rows[i].seen;
                    let ids: Vec<i64> = feed.iter().copied().chain([i as i64 + 1, 5]).take(seen).collect();
                    let want = one.logits(&ids).unwrap().0.to_f32s().unwrap();
                    for (g, w) in got[i * 37..].iter().zip(&want) {
                        assert!((g - w).abs() <= 1e-4 * (1.0 + w.abs()), "{model} {i}: {g} for {w}");
                    }
                }
            }
        }
    }
}
