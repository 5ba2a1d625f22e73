//! Several sequences at once, each with a length of its own.
//!
//! All sequences append at one place of the cache, behind the longest. A prompt that is shorter is filled up
//! behind its end, and what fills it is hidden by the attention mask once it has been run: tokens that come
//! later do not see it, and those that came before could not. Positions are counted for each sequence on its
//! own. Caches in which each sequence has an end of its own (GroupQueryAttention) find it from the same mask.

use super::choose::{self, Choice};
use super::roles::Step;
use super::{Decoder, Generator, GeneratorOptions, Request, head, tokens};
use crate::model::device_error;
use crate::{Error, Problem, Tensor};
use wgfc_runtime::session::Value;
use wgfc_runtime::{Gpu, Session};

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
    generator: Generator,
    rows: Vec<Row>,
    /// Whether sequences may differ in length.
    ragged: bool,
}

/// One sequence of the batch.
#[derive(Clone, Debug, Default)]
struct Row {
    /// For each position of the cache, whether it holds a token of this sequence.
    real: Vec<bool>,
    /// The token that was generated last: the model has not seen it yet.
    pending: Option<i64>,
}

impl Row {
    /// Tokens that the model has seen.
    fn seen(&self) -> usize {
        self.real.iter().filter(|r| **r).count()
    }
}

impl BatchGenerator {
    /// Compiles the decoder for `batch` sequences and uploads it.
    ///
    /// # Errors
    /// As [`Generator::new`]; a model for one sequence at a time.
    pub fn new(decoder: &Decoder, batch: usize, options: &GeneratorOptions) -> Result<BatchGenerator, Error> {
        let gpu = Gpu::request_blocking(&options.adapter).map_err(device_error)?;
        let (generator, own_ends) = Generator::build(gpu, decoder, options, batch)?;
        let ragged = generator.inputs.iter().any(|i| i.hides())
            && (own_ends || generator.inputs.iter().any(|i| i.places_each()));
        Ok(BatchGenerator { generator, rows: vec![Row::default(); batch], ragged })
    }

    /// How many sequences there are.
    pub fn batch(&self) -> usize {
        self.rows.len()
    }
    /// Tokens of each sequence so far, prompts and generated ones.
    pub fn lengths(&self) -> Vec<usize> {
        self.rows.iter().map(|r| r.seen() + usize::from(r.pending.is_some())).collect()
    }
    /// How many tokens there are: ids are below.
    pub fn vocabulary(&self) -> usize {
        self.generator.vocabulary
    }
    /// Positions that the cache may grow to.
    pub fn capacity(&self) -> usize {
        self.generator.capacity
    }
    /// What the compiler wants the user to know.
    pub fn warnings(&self) -> &[String] {
        self.generator.warnings()
    }
    /// The session that runs a single token of each sequence.
    pub fn session(&self) -> &Session {
        self.generator.session()
    }

    /// Forgets all tokens of all sequences.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.rows = vec![Row::default(); self.rows.len()];
        self.generator.reset()
    }

    /// The tokens that follow the prompts, one for each sequence, which follow all that was there before. Each
    /// step gives one token for each sequence, `None` for those that have come to a token in `request.stop`;
    /// it is the last step when all have. Each sequence draws with random numbers of its own.
    /// After an error all is as it was before the step that failed.
    ///
    /// # Errors
    /// As [`Generator::generate`], for all prompts at once; another number of prompts than of sequences;
    /// sequences of different lengths where the model has nothing that tells them apart.
    pub fn generate(&mut self, prompts: &[&[i64]], request: &Request) -> Result<BatchTokens<'_>, Error> {
        let mut problems = vec![];
        if prompts.len() != self.rows.len() {
            problems.push(Problem::with_help(
                format!("there are {} prompts for {} sequences", prompts.len(), self.rows.len()),
                "give one for each sequence",
            ));
        }
        for (i, (prompt, row)) in prompts.iter().zip(&self.rows).enumerate() {
            let at = format!("prompt {i}: ");
            problems.extend(self.generator.problems_of(prompt, row.pending.is_some(), &at));
        }
        let feeds: Vec<Vec<i64>> = prompts
            .iter()
            .zip(&self.rows)
            .map(|(p, row)| row.pending.iter().chain(*p).copied().collect())
            .collect();
        let longest = feeds.iter().map(Vec::len).max().unwrap_or(0);
        let past = self.generator.decode.state_len();
        let total = past.saturating_add(longest).saturating_add(request.max_new_tokens);
        if total > self.capacity() {
            problems.push(Problem::with_help(
                format!(
                    "{past} positions so far, {longest} of the longest prompt and {} new ones are {total} positions, and the cache may grow to {}",
                    request.max_new_tokens,
                    self.capacity()
                ),
                format!("ask for fewer, or give the cache a capacity of {total}"),
            ));
        }
        let even = self.rows.iter().zip(&feeds).all(|(r, f)| r.seen() == past && f.len() == longest);
        if !even && !self.ragged {
            problems.push(Problem::with_help(
                "the sequences differ in length, and the model does not take what would tell it: an attention mask, and position ids for each sequence",
                "give prompts of the same length to a new generator, or export the model with both inputs",
            ));
        }
        if let Some(s) = &request.sampling {
            problems.extend(s.problems());
        }
        if !problems.is_empty() {
            return Err(Error::Usage(problems));
        }
        let choice = Choice::new(request.sampling.as_ref(), self.vocabulary());
        self.generator.prepare(choice.limits())?;
        Ok(BatchTokens {
            choice,
            left: request.max_new_tokens,
            stop: request.stop.clone(),
            done: vec![false; feeds.len()],
            feeds,
            batch: self,
        })
    }

    /// Runs the feeds and chooses the tokens after them. An error leaves all as it was.
    fn advance(
        &mut self,
        feeds: &[Vec<i64>],
        done: &[bool],
        choice: &mut Choice,
    ) -> Result<Vec<Option<i64>>, Error> {
        let before = self.generator.decode.state_len();
        let next = self.next_tokens(feeds, done, choice);
        match &next {
            Ok(tokens) => {
                for (row, t) in self.rows.iter_mut().zip(tokens) {
                    row.pending = t.or(row.pending);
                }
            }
            Err(_) => {
                for row in &mut self.rows {
                    row.real.truncate(before);
                }
                if self.generator.decode.state_len() != before {
                    self.generator.decode.rewind(before).map_err(device_error)?;
                }
            }
        }
        next
    }

    fn next_tokens(
        &mut self,
        feeds: &[Vec<i64>],
        done: &[bool],
        choice: &mut Choice,
    ) -> Result<Vec<Option<i64>>, Error> {
        let longest = feeds.iter().map(Vec::len).max().unwrap_or(0);
        let even = feeds.iter().all(|f| f.len() == longest);
        // The last token of each goes alone where they are not below each other, so that one run ends with all.
        let together = if even { longest } else { longest.saturating_sub(1) };
        let body = |f: &'_ Vec<i64>| if even { f.len() } else { f.len().saturating_sub(1) };
        let mut out = None;
        let mut at = 0;
        while at < together {
            let n = self.generator.chunk.min(together - at);
            let columns: Vec<&[i64]> =
                feeds.iter().map(|f| &f[at.min(body(f))..(at + n).min(body(f))]).collect();
            at += n;
            let last = even && at == together;
            out = self.run(&columns, n, last.then_some((&mut *choice, head::TOKEN)))?;
        }
        if !even {
            let columns: Vec<&[i64]> = feeds.iter().map(|f| &f[body(f)..]).collect();
            out = self.run(&columns, 1, Some((choice, head::TOKEN)))?;
        }
        let out = out.and_then(|t| t.scalars()).unwrap_or_default();
        let mut tokens = vec![];
        for (i, done) in done.iter().enumerate() {
            let token = out.get(i).map(|t| t.as_i64()).ok_or_else(super::no_output)?;
            tokens.push(match token {
                _ if *done => None,
                choose::NONE => return Err(choose::nothing_to_choose()),
                t if (0..self.vocabulary() as i64).contains(&t) => Some(t),
                t => return Err(Error::Internal(format!("the device chose token {t}"))),
            });
        }
        Ok(tokens)
    }

    /// Runs `n` tokens of each sequence, those that have fewer filled up behind; chooses the next ones and
    /// reads an output back, if that is asked for.
    fn run(
        &mut self,
        columns: &[&[i64]],
        n: usize,
        output: Option<(&mut Choice, &str)>,
    ) -> Result<Option<Tensor>, Error> {
        let g = &mut self.generator;
        let past = g.decode.state_len();
        let mut step = Step { rows: columns.len(), ..Step::default() };
        for (tokens, row) in columns.iter().zip(&self.rows) {
            let seen = row.seen();
            step.ids.extend(tokens.iter().copied().chain(std::iter::repeat(0)).take(n));
            step.positions.extend((seen..seen + n).map(|p| p as i64));
            step.mask.extend(row.real.iter().map(|r| i64::from(*r)));
            step.mask.extend(std::iter::repeat_n(1, n));
        }
        g.reserve(past + n)?;
        let (words, limits, wanted) = match output {
            None => (choose::greedy(), Default::default(), None),
            Some((choice, name)) => (choice.words(), choice.limits(), Some(name)),
        };
        let mut given: Vec<(&str, Value)> =
            g.inputs.iter().map(|i| (i.name.as_str(), i.of(&step).into())).collect();
        given.push((head::CHOICE, words.clone().into()));
        let session = tokens::session(&mut g.prefill, &mut g.decode, n);
        let started = match (wanted, g.limited.get_mut(&limits)) {
            (None, _) => {
                session.run_on_device_blocking(&given).map_err(device_error)?;
                None
            }
            (Some(name), Some(limited)) if name == head::TOKEN => {
                Some(tokens::chosen(session, limited, &given, words, &[name])?)
            }
            (Some(name), _) => Some(session.start_blocking(&given, Some(&[name])).map_err(device_error)?),
        };
        let read = started.map(|s| s.read_blocking()).transpose().map_err(device_error)?;
        for (tokens, row) in columns.iter().zip(&mut self.rows) {
            row.real.extend((0..n).map(|j| j < tokens.len()));
        }
        Ok(read.and_then(|r| r.into_iter().next()).map(|(_, t)| t))
    }
}

/// The tokens of several sequences as they are generated. See [`BatchGenerator::generate`].
pub struct BatchTokens<'g> {
    batch: &'g mut BatchGenerator,
    /// What the model has not seen yet.
    feeds: Vec<Vec<i64>>,
    /// Which have come to their end.
    done: Vec<bool>,
    left: usize,
    stop: Vec<i64>,
    choice: Choice,
}

impl Iterator for BatchTokens<'_> {
    type Item = Result<Vec<Option<i64>>, Error>;

    fn next(&mut self) -> Option<Result<Vec<Option<i64>>, Error>> {
        if self.done.iter().all(|d| *d) {
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        let tokens = self.batch.advance(&self.feeds, &self.done, &mut self.choice);
        match &tokens {
            Ok(tokens) => {
                for ((feed, done), t) in self.feeds.iter_mut().zip(&mut self.done).zip(tokens) {
                    feed.clear();
                    feed.extend(t);
                    *done |= t.is_none_or(|t| self.stop.contains(&t));
                    if *done {
                        // The model need not see it before the sequence is continued.
                        feed.clear();
                    }
                }
            }
            Err(_) => self.left = 0,
        }
        Some(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The logits of the last position of each sequence are those that it has alone.
    #[test]
    fn sequences_do_not_see_each_other() {
        let feeds: [&[i64]; 4] = [&[3, 1, 36, 0, 8, 5, 22], &[7], &[30, 30, 2], &[9, 4, 11, 6, 1, 2]];
        let options = GeneratorOptions { prompt_chunk: 4, ..GeneratorOptions::default() };
        if wgfc_runtime::testing::gpus().is_empty() {
            return;
        }
        for model in ["decoder-batch", "decoder-ragged"] {
            let path = format!("{}/fixtures/small/{model}/model.onnx", env!("CARGO_MANIFEST_DIR"));
            let decoder = Decoder::open(Path::new(&path)).unwrap();
            let mut all = BatchGenerator::new(&decoder, feeds.len(), &options).unwrap();
            let mut one = Generator::new(&decoder, &options).unwrap();
            // All but the last tokens as chunks, then the last ones.
            let bodies = feeds.map(|f| &f[..f.len() - 1]);
            for at in [0, 4] {
                let columns: Vec<&[i64]> =
                    bodies.iter().map(|b| &b[at.min(b.len())..(at + 4).min(b.len())]).collect();
                all.run(&columns, if at == 0 { 4 } else { 2 }, None).unwrap();
            }
            let last: Vec<&[i64]> = feeds.iter().map(|f| &f[f.len() - 1..]).collect();
            for next in [last, vec![&[1], &[2], &[3], &[4]], vec![&[5], &[5], &[5], &[5]]] {
                let mut greedy = Choice::new(None, 37);
                let got = all.run(&next, 1, Some((&mut greedy, head::LOGITS))).unwrap().unwrap();
                assert_eq!(got.shape, [4, 1, 37]);
                let got = got.to_f32s().unwrap();
                for (i, feed) in feeds.iter().enumerate() {
                    one.reset().unwrap();
                    let seen = all.rows[i].seen();
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
