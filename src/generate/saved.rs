//! Copies of a generator's cache: forks on the device, and files.
//!
//! A file is in the format safetensors: a tensor for each state, with the positions in use, and [`TOKENS`]. Its metadata name
//! the layout of the states and the model, so that a cache is not continued by a program that would read it differently.

use super::{Generator, next_number};
use crate::artefact::sha256;
use crate::model::device_error;
use crate::tensors::{self, TrueTypes, Unread};
use crate::{Error, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use wgfc_compiler::budget::Budget;
use wgfc_ir::{DType, Program, TensorType};

/// The tensor with the token ids, i64 `[tokens]`; negative ones are unknown or stand for pictures.
const TOKENS: &str = "tokens";
/// The version of the format.
const VERSION: u32 = 1;
/// A model's file is compared by this many pieces of this many bytes, at equal distances, of which the last one ends the file.
const PIECES: (usize, usize) = (64, 4096);

const HELP: &str = "load it with the model and the options (--precision, --cache) with which it was saved, or compute it again";

/// The metadata of a file.
#[derive(Serialize, Deserialize)]
struct Saved {
    cache_version: u32,
    /// The hash of the names, types and shapes of the states.
    layout: String,
    /// See [`fingerprint`].
    model: String,
    /// Whether the last token is not in the states yet.
    pending: bool,
    #[serde(default)]
    types: TrueTypes,
}

/// A hash of pieces of a model's file.
pub(super) fn fingerprint(model: &[u8]) -> String {
    let (pieces, size) = PIECES;
    sha256(|hash| {
        hash(&model.len().to_le_bytes());
        if model.len() <= pieces * size {
            return hash(model);
        }
        let last = model.len() - size;
        (0..pieces)
            .for_each(|i| hash(&model[(last as u128 * i as u128 / (pieces as u128 - 1)) as usize..][..size]));
    })
}

/// The hash of what the bytes of the states mean.
fn layout(program: &Program) -> String {
    let states = program.states.iter();
    let all: Vec<_> =
        states.map(|s| (&s.name, s.dtype, &s.shape, s.growth.as_ref().map(|g| g.axis))).collect();
    let text = serde_json::to_string(&all).unwrap_or_default();
    sha256(|hash| hash(text.as_bytes()))
}

/// The metadata and the tensors of a file.
fn open(path: &Path) -> Result<(Saved, BTreeMap<String, Tensor>), Error> {
    let types = |text: &str| {
        let saved: Saved = serde_json::from_str(text).map_err(|e| e.to_string())?;
        Ok(saved.types)
    };
    let unread = |e| match e {
        Unread::File(e) => e,
        Unread::Damaged(problems) => {
            Error::File { path: path.to_owned(), problems, help: Some(HELP.to_owned()) }
        }
    };
    let read = tensors::read(path, &Budget::of_data(None), &types).map_err(unread)?;
    let saved = read.metadata.as_deref().and_then(|text| serde_json::from_str::<Saved>(text).ok());
    let saved =
        saved.ok_or_else(|| Error::file_help(path, "is no cache that wgfc has saved", HELP.to_owned()))?;
    if saved.cache_version != VERSION {
        let message = format!("has the format {} of caches, not {VERSION}", saved.cache_version);
        return Err(Error::file_help(path, message, "save it again with this version of wgfc"));
    }
    Ok((saved, read.tensors))
}

/// The tokens of a cache that [`Generator::save_cache`] wrote; negative ones are unknown or stand for parts of pictures.
///
/// # Errors
/// A file that cannot be read or is no cache.
///
/// ```no_run
/// # fn main() -> Result<(), wgfc::Error> {
/// let tokens = wgfc::generate::cached_tokens("prompt.safetensors".as_ref())?;
/// println!("{} tokens are saved", tokens.len());
/// # Ok(()) }
/// ```
pub fn cached_tokens(path: &Path) -> Result<Vec<i64>, Error> {
    tokens_of(path, &open(path)?.1)
}

fn tokens_of(path: &Path, tensors: &BTreeMap<String, Tensor>) -> Result<Vec<i64>, Error> {
    let tokens = tensors.get(TOKENS).filter(|t| t.dtype == DType::I64 && t.shape.len() == 1);
    let tokens = tokens.and_then(Tensor::to_i64s);
    tokens.ok_or_else(|| Error::file_help(path, format!("has no tensor `{TOKENS}` i64[tokens]"), HELP))
}

impl Generator {
    /// A second generator that continues from the same tokens, independently. Programs and weights are shared. The cache is copied on
    /// the device, with all positions that it has room for. The copy of a generator that speculates takes proposals from
    /// [`Lookup`](super::Lookup).
    ///
    /// # Errors
    /// Too little memory, or another error of the device.
    ///
    /// ```no_run
    /// # fn fork(generator: &mut wgfc::Generator) -> Result<(), wgfc::Error> {
    /// let request = wgfc::Request { max_new_tokens: 20, ..Default::default() };
    /// generator.generate(&[3, 1, 36], &request)?.for_each(drop);
    /// // Two continuations of the same text.
    /// let mut other = generator.fork()?;
    /// generator.generate(&[7], &request)?.for_each(drop);
    /// other.generate(&[9], &request)?.for_each(drop);
    /// # Ok(()) }
    /// ```
    pub fn fork(&mut self) -> Result<Generator, Error> {
        self.settle()?;
        let decode = self.decode.fork_blocking().map_err(device_error)?;
        let prefill = self.prefill.as_ref().map(|s| s.on_states_of_blocking(&decode)).transpose();
        Ok(Generator {
            prefill: prefill.map_err(device_error)?,
            chooser: self.chooser.fork()?,
            speculation: self.speculation.as_ref().map(|s| s.fork(&decode)).transpose()?,
            inputs: self.inputs.clone(),
            history: self.history.clone(),
            pictures: self.pictures.clone(),
            warnings: self.warnings.clone(),
            model: self.model.clone(),
            decode,
            number: next_number(),
            ..*self
        })
    }

    /// Writes the tokens so far and their cache to a file, from which [`Generator::load_cache`] continues, also in another process. It
    /// has as many bytes as the positions in use, which are copied through the host's memory.
    ///
    /// # Errors
    /// A file that cannot be written; an error of the device.
    ///
    /// ```no_run
    /// # fn save(generator: &mut wgfc::Generator) -> Result<(), wgfc::Error> {
    /// generator.logits(&[3, 1, 36])?;
    /// generator.save_cache("prompt.safetensors".as_ref())?;
    /// generator.reset()?;
    /// // Nothing of the prompt is processed again.
    /// generator.load_cache("prompt.safetensors".as_ref())?;
    /// assert_eq!(generator.len(), 3);
    /// # Ok(()) }
    /// ```
    pub fn save_cache(&mut self, path: &Path) -> Result<(), Error> {
        self.settle()?;
        let mut all = self.decode.states_blocking().map_err(device_error)?;
        all.insert(TOKENS.to_owned(), Tensor::from_i64(vec![self.history.len()], &self.history));
        let metadata = |types: &TrueTypes| {
            let types = types.iter().map(|(n, t)| {
                let t = tensors::TrueType { dtype: t.dtype, shape: t.shape.clone() };
                (n.clone(), t)
            });
            serde_json::to_string(&Saved {
                cache_version: VERSION,
                layout: layout(self.decode.program()),
                model: self.model.clone(),
                pending: self.pending.is_some(),
                types: types.collect(),
            })
        };
        crate::output::write_through(path, |new| tensors::write((new, path), &all, &metadata))
    }

    /// Takes the tokens and the cache of a file that [`Generator::save_cache`] wrote in place of those so far. The file must be of the same
    /// model, compiled with a cache of the same types and shapes. The model's own file is compared by a sample of its bytes; weights in other
    /// files are not.
    ///
    /// # Errors
    /// A file that cannot be read, is no cache, or is damaged; one of another model or layout; more tokens than the cache may grow to; an
    /// error of the device. Nothing has changed then.
    pub fn load_cache(&mut self, path: &Path) -> Result<(), Error> {
        let (saved, mut states) = open(path)?;
        let wrong = |message: String| Error::file_help(path, message, HELP);
        let tokens = tokens_of(path, &states)?;
        states.remove(TOKENS);
        let kept = tokens.len().checked_sub(usize::from(saved.pending));
        let kept = kept.ok_or_else(|| wrong("has no tokens, and one that is pending".into()))?;
        // Negative ones are unknown or stand for pictures.
        let end = self.vocabulary as i64;
        if let Some(t) = tokens.iter().find(|t| **t >= end).or(tokens[kept..].iter().find(|t| **t < 0)) {
            return Err(wrong(format!("holds token {t}, which is outside the model's vocabulary")));
        }
        if tokens.len() > self.capacity {
            let message = format!(
                "holds {} tokens, and the cache may grow to {} positions",
                tokens.len(),
                self.capacity
            );
            return Err(Error::file_help(path, message, "give the cache more room (--capacity)"));
        }
        for s in &self.decode.program().states {
            let axis = s.growth.as_ref().map(|g| g.axis);
            let own = TensorType::new(s.dtype, s.shape.clone());
            let Some(t) = states.get(&s.name) else {
                return Err(wrong(format!("has no state `{}`, which is {own} in the model", s.name)));
            };
            let extent = |(d, n): (usize, &usize)| match axis {
                Some(a) if a == d => *n == kept,
                _ => s.shape[d].as_const() == Some(*n as i64),
            };
            if t.dtype != s.dtype || t.shape.len() != s.shape.len() || !t.shape.iter().enumerate().all(extent)
            {
                return Err(wrong(format!(
                    "state `{}` is {}{:?}, and {own} in the model, of which {kept} positions are in use",
                    s.name, t.dtype, t.shape
                )));
            }
        }
        let strange = states.keys().find(|n| !self.decode.program().states.iter().any(|s| s.name == **n));
        if let Some(name) = strange {
            return Err(wrong(format!("has a state `{name}`, which the model has not")));
        }
        if saved.layout != layout(self.decode.program()) {
            return Err(wrong("was saved by a program whose cache has another layout".into()));
        }
        if saved.model != self.model {
            return Err(wrong("was saved with another model, whose cache has the same layout".into()));
        }
        self.reserve(kept.max(1))?;
        self.decode.set_states_blocking(&states).map_err(device_error)?;
        self.pending = tokens.last().copied().filter(|_| saved.pending);
        self.kept = kept;
        self.written = self.written.map(|_| kept);
        self.history = tokens;
        self.number = next_number();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Decoder, GeneratorOptions, Request};

    fn generator(name: &str, speculate: usize) -> Generator {
        let path = format!("{}/fixtures/decoders/{name}/model.gguf", env!("CARGO_MANIFEST_DIR"));
        let options =
            GeneratorOptions { capacity: 160, prompt_chunk: Some(4), speculate, ..Default::default() };
        Generator::new(&Decoder::open(Path::new(&path)).unwrap(), &options).unwrap()
    }

    fn tokens(g: &mut Generator, prompt: &[i64], n: usize) -> Vec<i64> {
        let request = Request { max_new_tokens: n, ..Request::default() };
        g.generate(prompt, &request).unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn forks_continue_independently() {
        if wgfc_runtime::testing::gpus().is_empty() {
            return;
        }
        for (name, speculate) in [("gemma3", 0), ("llama", 3)] {
            let mut g = generator(name, speculate);
            let first = tokens(&mut g, &[3, 1, 36], 6);
            let mut other = g.fork().unwrap();
            let (a, b) = (tokens(&mut g, &[7], 80), tokens(&mut other, &[9, 4], 20));
            assert_eq!((g.len(), other.len()), (90, 31));
            for (next, want) in [(&[7][..], a), (&[9, 4], b)] {
                g.reset().unwrap();
                let all = [&[3, 1, 36], &first[..], next].concat();
                assert_eq!(tokens(&mut g, &all, want.len()), want, "{name}");
            }
        }
    }

    #[test]
    fn a_saved_cache_is_continued() {
        if wgfc_runtime::testing::gpus().is_empty() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cache.safetensors");
        let mut g = generator("gemma3", 0);
        // Empty, behind logits, behind generated tokens, and with more positions than there is room for at first.
        for n in [0, 1, 70] {
            g.reset().unwrap();
            if n > 0 {
                tokens(&mut g, &[3, 1, 36], n);
            }
            g.save_cache(&file).unwrap();
            assert_eq!(cached_tokens(&file).unwrap().len(), g.len());
            let want = tokens(&mut g, &[7], 10);
            let mut other = generator("gemma3", 0);
            tokens(&mut other, &[1, 2], 3);
            other.load_cache(&file).unwrap();
            assert_eq!(other.len(), g.len() - 11);
            assert_eq!(tokens(&mut other, &[7], 10), want);
        }
        g.reset().unwrap();
        g.logits(&[3, 1, 36]).unwrap();
        g.save_cache(&file).unwrap();
        let want = tokens(&mut g, &[7], 10);
        g.load_cache(&file).unwrap();
        assert_eq!(g.len(), 3);
        assert_eq!(tokens(&mut g, &[7], 10), want);
    }

    #[test]
    fn files_that_do_not_fit_are_refused_and_change_nothing() {
        if wgfc_runtime::testing::gpus().is_empty() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cache.safetensors");
        let mut g = generator("llama", 0);
        tokens(&mut g, &[3, 1, 36], 4);
        g.save_cache(&file).unwrap();
        let whole = std::fs::read(&file).unwrap();
        let mut refused = |bytes: &[u8], say: &str| {
            let bad = dir.path().join("bad.safetensors");
            std::fs::write(&bad, bytes).unwrap();
            let e = g.load_cache(&bad).unwrap_err().to_string();
            assert!(e.contains(say), "`{say}` is not in: {e}");
            assert_eq!(g.len(), 7);
        };
        for n in [0, 7, 8, 100, whole.len() - 1] {
            refused(&whole[..n], "safetensors");
        }
        // A character of the header is replaced by another one.
        let edited = |from: &str, to: &str| {
            let at = whole.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
            let mut bytes = whole.clone();
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            bytes
        };
        refused(&edited(r#"\"cache_version\":1"#, r#"\"cache_version\":2"#), "format 2");
        refused(&edited(r#"\"cache_version"#, r#"\"cache_varsion"#), "cache_version");
        refused(&edited(r#"\"layout\":\""#, r#"\"layout\":\"."#), "another layout");
        refused(&edited(r#"\"model\":\""#, r#"\"model\":\"."#), "another model");
        refused(&edited(r#"\"pending\":true"#, r#"\"pending\":null"#), "null");
        refused(&edited(r#""tokens""#, r#""tokenz""#), "no tensor `tokens`");
        refused(&edited("past_key_values", "last_key_values"), "no state `past_key_values");
        // The widest elements come first: those of the ids.
        let mut strange = whole.clone();
        strange[8 + u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize] = 200;
        refused(&strange, "token 200");
        // Any bytes of the header.
        let mut rng = crate::random::Rng::new(5, "headers");
        let (bad, end) = (dir.path().join("bad.safetensors"), whole.len().min(1500));
        for _ in 0..300 {
            let mut bytes = whole.clone();
            for _ in 0..1 + rng.bits() % 3 {
                bytes[rng.bits() as usize % end] = (rng.bits() >> 56) as u8;
            }
            std::fs::write(&bad, bytes).unwrap();
            match g.load_cache(&bad) {
                Ok(()) => assert_eq!(cached_tokens(&bad).unwrap().len(), g.len()),
                Err(e) => assert!(!matches!(e, Error::Internal(_)), "{e}"),
            }
        }
        let mut other = generator("mistral", 0);
        assert!(other.load_cache(&file).is_err());
        assert!(g.load_cache(&dir.path().join("absent")).is_err());
        g.load_cache(&file).unwrap();
    }

    #[test]
    fn fingerprints_tell_files_apart() {
        let long: Vec<u8> = (0..1 << 20).map(|i: u32| (i / 7) as u8).collect();
        let mut other = long.clone();
        *other.last_mut().unwrap() ^= 1;
        assert_ne!(fingerprint(&long), fingerprint(&other));
        assert_ne!(fingerprint(&long), fingerprint(&long[1..]));
        assert_ne!(fingerprint(b""), fingerprint(b"x"));
    }
}
