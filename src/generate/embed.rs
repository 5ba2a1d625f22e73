//! Embeddings: one vector for each text, pooled from the hidden states of its tokens.
//!
//! The program ends at the hidden states, so it has no product with the vocabulary, and no cache: a run takes whole sequences.
//! Shorter sequences are padded at their end. The weights of the pooling are an input of the program, `[batch, positions]`, with zeros for
//! padding: each kind of pooling is a sum with other weights.

mod hidden;

use super::programs;
use super::roles::{self, Input, Step};
use super::{Decoder, GeneratorOptions, no_output, problems_of};
use crate::model::device_error;
use crate::value_info::{ValueInfo, program_values};
use crate::{Error, Problem, Tensor};
use hidden::{EMBEDDING, POOL};
use std::collections::BTreeMap;
use std::ops::Range;
use wgfc_compiler::{Diagnostic, Errors};
use wgfc_runtime::kernel::Checks;
use wgfc_runtime::session::{DeviceMemory, SessionOptions, Value};
use wgfc_runtime::{Gpu, Session};

/// How the hidden states of a sequence become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// The one of the last token.
    Last,
    /// The one of the first token.
    Cls,
}

impl Pooling {
    /// The pooling that a file of sentence-transformers names; `None` if it is one that is not supported.
    ///
    /// # Errors
    /// The fault of the file, as a predicate.
    pub(super) fn parse(json: &[u8]) -> Result<Option<Pooling>, String> {
        let v: serde_json::Value = serde_json::from_slice(json).map_err(|e| format!("is not JSON: {e}"))?;
        let modes = v.as_object().ok_or("is no JSON object")?;
        let has = |name: &str| modes.get(name).and_then(serde_json::Value::as_bool) == Some(true);
        let chosen = modes.keys().filter(|k| k.starts_with("pooling_mode") && has(k)).count();
        let known = [
            ("pooling_mode_mean_tokens", Pooling::Mean),
            ("pooling_mode_lasttoken", Pooling::Last),
            ("pooling_mode_cls_token", Pooling::Cls),
        ];
        // Several modes make one vector after the other.
        Ok(known.into_iter().find(|(name, _)| has(name) && chosen == 1).map(|(_, pooling)| pooling))
    }

    /// The weights of the hidden states of a sequence of this many tokens.
    fn weights(self, tokens: usize) -> Vec<f32> {
        let one = |at: usize| (0..tokens).map(|i| if i == at { 1.0 } else { 0.0 }).collect();
        match self {
            Pooling::Mean => vec![1.0 / tokens as f32; tokens],
            Pooling::Last => one(tokens.saturating_sub(1)),
            Pooling::Cls => one(0),
        }
    }
}

/// A model on a device that turns sequences of tokens into vectors of length 1.
///
/// The model is a decoder, or an encoder with an output `last_hidden_state`.
///
/// ```
/// use wgfc::generate::{Accepts, Embedder, Pooling};
/// use wgfc::{Decoder, GeneratorOptions};
/// # fn main() -> Result<(), wgfc::Error> {
/// # if wgfc::runtime::testing::gpus().is_empty() { return Ok(()) }
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder-batch/model.onnx");
/// let decoder = Decoder::open(&path)?;
/// let mut embedder = Embedder::new(&decoder, Pooling::Mean, &GeneratorOptions::default())?;
/// let accepts: Accepts = embedder.accepts();
/// assert!(accepts.check(&[3, 1, 36]).is_ok() && accepts.check(&[]).is_err());
/// let vectors = embedder.embed(&[vec![3, 1, 36], vec![5]])?;
/// let squares: f32 = vectors[0].iter().map(|x| x * x).sum();
/// assert!(vectors[1].len() == embedder.width() && (squares - 1.0).abs() < 1e-5);
/// # Ok(()) }
/// ```
pub struct Embedder {
    session: Session,
    inputs: Vec<Input>,
    /// Inputs for past keys and values, which have no positions.
    empty: Vec<ValueInfo>,
    pooling: Pooling,
    /// The number of tokens that the model knows, if it is known.
    vocabulary: Option<usize>,
    width: usize,
    /// The most tokens of a sequence.
    capacity: usize,
    /// The tokens of a run, padding included, unless one sequence has more.
    chunk: usize,
    /// The most sequences of a run.
    rows: usize,
    /// The symbol for the number of sequences of a run.
    batch: Option<String>,
    /// Whether hidden states depend on later tokens, so that padding must be hidden.
    looks_ahead: bool,
    warnings: Vec<String>,
}

impl Embedder {
    /// Compiles a model for a device and uploads it. A run takes sequences of `options.prompt_chunk` tokens together, and no sequence has
    /// more than `options.capacity`.
    ///
    /// # Errors
    /// A model without hidden states that can be found; otherwise as for [`Generator::new`](super::Generator::new).
    pub fn new(decoder: &Decoder, pooling: Pooling, options: &GeneratorOptions) -> Result<Embedder, Error> {
        let gpu = Gpu::request_blocking(&options.adapter).map_err(device_error)?;
        Embedder::on_device(&gpu, decoder, pooling, options)
    }

    /// [`Embedder::new`] on a device that is already open; `options.adapter` is ignored.
    ///
    /// # Errors
    /// As for [`Embedder::new`].
    pub fn on_device(
        gpu: &Gpu,
        decoder: &Decoder,
        pooling: Pooling,
        options: &GeneratorOptions,
    ) -> Result<Embedder, Error> {
        let file = decoder.source()?;
        let mut common = programs::common(gpu, decoder, options)?;
        let symbols = roles::symbols(file, common.memory_limit)?;
        let Some(seq) = symbols.seq else {
            let d = Diagnostic::unsupported("the model takes one token at a time");
            let help = "export it with a symbolic sequence length: embeddings are made of whole sequences";
            let errors = Errors(vec![d.help(help)]);
            return Err(Error::Compile { path: Some(file.path().to_owned()), errors });
        };
        let past = roles::past(file, common.memory_limit)?;
        let own = |s: &String| *s == seq || Some(s) == symbols.batch.as_ref();
        let pasts: Vec<String> = roles::symbols_of(&past, &seq).into_iter().filter(|s| !own(s)).collect();
        common.dims = pasts.into_iter().map(|s| (s, 0)).collect();
        let tokens = i64::try_from(options.chunk()).unwrap_or(i64::MAX);
        common.expect.0.entry(seq).or_insert(tokens);

        let mut found = None;
        let program = file.compile_amended(&common, &mut |graph| {
            found = Some(hidden::replace_outputs(graph)?);
            Ok(())
        })?;
        let found = found.ok_or_else(|| Error::Internal("a graph without hidden states".into()))?;
        let mut ports = program_values(&program.inputs);
        ports.retain(|p| p.name != POOL);
        let (empty, ports): (Vec<_>, Vec<_>) =
            ports.into_iter().partition(|p| p.shape.iter().any(|d| d.is(0)));
        let inputs = roles::inputs(&ports, None, &options.context);
        let mut inputs = inputs.map_err(|problems| Error::from(Errors(problems)))?;
        inputs.iter_mut().try_for_each(|i| i.upload(gpu)).map_err(device_error)?;
        let how = SessionOptions {
            checks: Checks::Trusted,
            memory: options.device_memory,
            ..SessionOptions::default()
        };
        let session = Session::with_options_blocking(gpu, &program, how).map_err(device_error)?;
        Ok(Embedder {
            rows: if symbols.batch.is_some() { usize::from(u16::MAX) } else { 1 },
            session,
            inputs,
            looks_ahead: past.is_empty() && !found.by_head,
            empty,
            pooling,
            vocabulary: found.vocabulary,
            width: found.width,
            capacity: programs::chunk(&program, options.capacity),
            chunk: options.chunk(),
            batch: symbols.batch,
            warnings: program.stats.warnings.clone(),
        })
    }

    /// The number of elements of a vector.
    pub fn width(&self) -> usize {
        self.width
    }
    /// The most tokens of a sequence.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
    /// The compiler's warnings.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
    /// The session that runs the model.
    pub fn session(&self) -> &Session {
        &self.session
    }
    /// The memory that the embedder holds on the device.
    pub fn device_memory(&self) -> DeviceMemory {
        DeviceMemory::of([&self.session])
    }
    /// The sequences that are accepted.
    pub fn accepts(&self) -> Accepts {
        Accepts { vocabulary: self.vocabulary, capacity: self.capacity, width: self.width }
    }

    /// The vectors of these sequences, in their order. Sequences run together where that needs little padding.
    ///
    /// # Errors
    /// A sequence that is not [accepted](Accepts::check); nothing has been run then. Errors of the device, and hidden states without a
    /// direction: NaN, infinities, or zeros only.
    pub fn embed(&mut self, sequences: &[Vec<i64>]) -> Result<Vec<Vec<f32>>, Error> {
        sequences.iter().try_for_each(|s| self.accepts().check(s))?;
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        order.sort_by_key(|i| sequences[*i].len());
        let lengths: Vec<usize> = order.iter().map(|i| sequences[*i].len()).collect();
        // Without a mask, tokens that look ahead would see padding.
        let equal = self.looks_ahead && !self.inputs.iter().any(Input::hides);
        let mut vectors = vec![vec![]; sequences.len()];
        for rows in runs(&lengths, self.chunk, self.rows, equal) {
            let together: Vec<&[i64]> =
                order[rows.clone()].iter().map(|i| sequences[*i].as_slice()).collect();
            for (i, v) in order[rows].iter().zip(self.run(&together)?) {
                vectors[*i] = v;
            }
        }
        Ok(vectors)
    }

    /// The vectors of sequences that run together.
    fn run(&mut self, sequences: &[&[i64]]) -> Result<Vec<Vec<f32>>, Error> {
        let rows = sequences.len();
        let longest = sequences.iter().map(|s| s.len()).max().unwrap_or_default();
        let mut step = Step { rows, ..Step::default() };
        let mut pool = vec![];
        for s in sequences {
            let padding = longest - s.len();
            step.ids.extend(s.iter().copied().chain(std::iter::repeat_n(0, padding)));
            step.positions.extend(0..longest as i64);
            // Tokens never see padding behind them if they do not look ahead, and padding sees at least itself.
            let hidden = i64::from(!self.looks_ahead);
            step.mask.extend(std::iter::repeat_n(1, s.len()).chain(std::iter::repeat_n(hidden, padding)));
            pool.extend(self.pooling.weights(s.len()).into_iter().chain(std::iter::repeat_n(0.0, padding)));
        }
        let dims: BTreeMap<String, i64> = self.batch.iter().map(|b| (b.clone(), rows as i64)).collect();
        let mut given: Vec<(&str, Value)> =
            self.inputs.iter().map(|i| (i.name.as_str(), i.value(&step))).collect();
        for p in &self.empty {
            let shape = p.shape_at(&dims).map_err(|free| {
                Error::Internal(format!("the extents {} of `{}` are not known", free.join(", "), p.name))
            })?;
            given.push((&p.name, Tensor::from_scalars(p.dtype, shape, &[]).into()));
        }
        given.push((POOL, Tensor::from_f32(vec![rows, longest], &pool).into()));
        let made = self.session.run_values_blocking(&given, Some(&[EMBEDDING])).map_err(device_error)?;
        let all = made.into_iter().find(|(n, _)| n == EMBEDDING).and_then(|(_, t)| t.to_f32s());
        let all = all.filter(|a| a.len() == rows * self.width).ok_or_else(no_output)?;
        all.chunks(self.width).map(|v| normalised(v).ok_or_else(no_direction)).collect()
    }
}

/// The sequences that an [`Embedder`] accepts. They can be checked while it is in use elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepts {
    /// Token ids are less than this number, if it is known.
    pub vocabulary: Option<usize>,
    /// The most tokens of a sequence.
    pub capacity: usize,
    /// The number of elements of a vector.
    pub width: usize,
}

impl Accepts {
    /// Whether a sequence is accepted.
    ///
    /// # Errors
    /// No tokens, more than the capacity, or ids outside the vocabulary.
    pub fn check(&self, sequence: &[i64]) -> Result<(), Error> {
        let vocabulary = self.vocabulary.unwrap_or(i32::MAX as usize);
        let mut problems = problems_of(vocabulary, sequence, false, "");
        if sequence.len() > self.capacity {
            problems.push(Problem::with_help(
                format!("there are {} tokens, and at most {} are possible", sequence.len(), self.capacity),
                "give a shorter text, or a larger capacity if the model has positions for it",
            ));
        }
        if problems.is_empty() { Ok(()) } else { Err(Error::Usage(problems)) }
    }
}

/// The sequences of each run, by their lengths in ascending order: at most `tokens` tokens with padding and `rows` sequences, of `equal`
/// lengths if that is needed, and at least one.
fn runs(lengths: &[usize], tokens: usize, rows: usize, equal: bool) -> Vec<Range<usize>> {
    let mut all = vec![];
    let mut begin = 0;
    for end in 1..=lengths.len() {
        let joins = lengths.get(end).is_some_and(|n| {
            let count = end + 1 - begin;
            count <= rows && n.saturating_mul(count) <= tokens && (!equal || *n == lengths[begin])
        });
        if !joins {
            all.push(begin..end);
            begin = end;
        }
    }
    all
}

/// A vector of the same direction and of length 1; `None` if it has no direction.
///
/// ```
/// use wgfc::generate::normalised;
/// assert_eq!(normalised(&[3.0, 4.0]), Some(vec![0.6, 0.8]));
/// assert_eq!(normalised(&[0.0]), None);
/// ```
pub fn normalised(v: &[f32]) -> Option<Vec<f32>> {
    let length = v.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    let has = length.is_finite() && length > 0.0;
    has.then(|| v.iter().map(|x| (f64::from(*x) / length) as f32).collect())
}

fn no_direction() -> Error {
    let help = "with --precision f16 some models leave the range of the type: use f32";
    Error::Device(Problem::with_help("the hidden states are zeros, infinite or not numbers", help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_hold_as_many_sequences_as_fit() {
        assert_eq!(runs(&[1, 2, 3, 3, 9, 20], 9, 8, false), [0..3, 3..4, 4..5, 5..6]);
        assert_eq!(runs(&[1, 2, 3, 3], 100, 8, true), [0..1, 1..2, 2..4]);
        assert_eq!(runs(&[1, 1, 1], 100, 2, false), [0..2, 2..3]);
        assert!(runs(&[], 9, 8, false).is_empty());
    }

    #[test]
    fn publishers_name_the_pooling() {
        let parse = |json: &str| Pooling::parse(json.as_bytes());
        let json = r#"{"word_embedding_dimension": 8, "pooling_mode_cls_token": false, "pooling_mode_lasttoken": true}"#;
        assert_eq!(parse(json), Ok(Some(Pooling::Last)));
        assert_eq!(parse(r#"{"pooling_mode_max_tokens": true, "pooling_mode_mean_tokens": true}"#), Ok(None));
        assert!(parse("[]").is_err() && parse("{").is_err());
    }

    #[test]
    fn vectors_without_a_direction_are_refused() {
        assert_eq!(normalised(&[3.0, 4.0]), Some(vec![0.6, 0.8]));
        assert_eq!(normalised(&[f32::MAX, 0.0]), Some(vec![1.0, 0.0]));
        for bad in [[0.0, 0.0], [f32::NAN, 1.0], [f32::INFINITY, 1.0]] {
            assert_eq!(normalised(&bad), None);
        }
    }
}
