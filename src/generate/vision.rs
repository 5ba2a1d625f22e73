//! Pictures in the prompts of vision-language models.
//!
//! An [`ImageEncoder`] runs the model's vision encoder once for each picture. The rows of its [`ImageFeatures`] take the place of the
//! embeddings of tokens. In a prompt each row has a number below −1, which tells it from the rows of all other pictures, so that what
//! stays in the cache is compared as for words. The program for prompts looks a row up by its place in the features of the
//! request ([`Pictures`]).

mod encoder;
#[cfg_attr(not(feature = "image"), path = "vision/without.rs")]
mod pixels;
#[cfg_attr(
    not(any(feature = "image", test)),
    expect(dead_code, reason = "without the feature `image` pictures are not read")
)]
mod processor;
mod prompt;
#[cfg(all(test, feature = "chat", feature = "image", feature = "tokenizers"))]
mod tests;

pub use encoder::ImageEncoder;

use super::UNKNOWN;
use super::roles::Input;
use super::tokens::{Ids, given};
use crate::model::device_error;
use crate::{Error, Problem, Program, Tensor};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wgfc_compiler::decoding::joined::FEATURES;
use wgfc_runtime::session::Value;
use wgfc_runtime::{DeviceTensor, Gpu};

/// The bits of a number that say which row of a picture it is; those above say which picture.
const ROW: u32 = 20;
/// The hexadecimal digits of a hash that make the number of a picture.
const DIGITS: usize = 10;

/// The features that a vision encoder makes of a picture: vectors that take the places of embeddings of tokens.
///
/// ```
/// use wgfc::Tensor;
/// use wgfc::generate::ImageFeatures;
/// # fn main() -> Result<(), wgfc::Error> {
/// // Features that another program has computed: one picture, 2 rows, 4 numbers each.
/// let features = ImageFeatures::new(&Tensor::from_f32(vec![1, 2, 4], &[0.5; 8]))?;
/// assert_eq!((features.len(), features.tokens().count()), (2, 2));
/// assert!(features.tokens().all(|t| t < -1));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ImageFeatures {
    /// f32 `[rows, width]`.
    rows: Arc<Tensor>,
    /// The number of the picture, which depends on its features alone.
    number: i64,
}

impl ImageFeatures {
    /// The rows of a float tensor `[…, rows, width]`.
    ///
    /// # Errors
    /// A tensor of another type or rank, or without elements.
    pub fn new(features: &Tensor) -> Result<ImageFeatures, Error> {
        let wrong = || {
            Error::usage(
                format!("{}{:?} are no features of a picture", features.dtype, features.shape),
                "give floats [rows, width]",
            )
        };
        let width = features.shape.last().copied().filter(|w| *w > 0 && features.shape.len() > 1);
        let values = features.to_f32s().filter(|v| features.dtype.is_float() && !v.is_empty());
        let (width, values) = width.zip(values).ok_or_else(wrong)?;
        let rows = Tensor::from_f32(vec![values.len() / width, width], &values);
        if rows.shape[0] > 1 << ROW {
            return Err(wrong());
        }
        let hash = crate::artefact::sha256(|hash| {
            hash(&width.to_le_bytes());
            hash(rows.bytes().unwrap_or_default());
        });
        let number = hash.get(..DIGITS).and_then(|h| i64::from_str_radix(h, 16).ok());
        let number = number.ok_or_else(|| Error::Internal("a hash without digits".into()))?;
        Ok(ImageFeatures { rows: Arc::new(rows), number })
    }

    /// The number of rows, which is the number of positions that the picture takes in a prompt.
    pub fn len(&self) -> usize {
        self.rows.shape[0]
    }
    /// Whether there are no rows; there is at least one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The features, f32 `[rows, width]`.
    pub fn tensor(&self) -> &Tensor {
        &self.rows
    }
    /// The numbers that stand for the rows in a prompt.
    pub fn tokens(&self) -> impl Iterator<Item = i64> + use<> {
        let first = UNKNOWN - 1 - (self.number << ROW);
        (0..self.len() as i64).map(move |row| first - row)
    }
}

/// Whether a token of a prompt stands for a row of features.
pub(super) fn stands_for_feature(token: i64) -> bool {
    token < UNKNOWN
}

/// The number of the picture, and the row in it, for which a token stands.
fn place(token: i64) -> Option<(i64, usize)> {
    let at = UNKNOWN.checked_sub(1)?.checked_sub(token).filter(|at| *at >= 0)?;
    Some((at >> ROW, usize::try_from(at & ((1 << ROW) - 1)).ok()?))
}

/// The faults of the pictures of a prompt, where rows of features have so many elements.
pub(super) fn problems(width: Option<usize>, prompt: &[i64], images: &[ImageFeatures]) -> Vec<Problem> {
    let mut problems = vec![];
    let places: BTreeSet<(i64, usize)> = prompt.iter().filter_map(|t| place(*t)).collect();
    let known = |(number, row): &(i64, usize)| images.iter().any(|i| i.number == *number && *row < i.len());
    match width {
        _ if places.is_empty() => {}
        None => problems.push(Problem::with_help(
            "the prompt has a picture, and the model has no program for prompts that takes one",
            "take a vision-language model: a folder with onnx/decoder_model_merged.onnx, onnx/embed_tokens.onnx and onnx/vision_encoder.onnx, which is not compiled yet, and prompts of more than one token a run",
        )),
        Some(width) => {
            for other in images.iter().map(|i| i.tensor().shape[1]).filter(|w| *w != width) {
                problems.push(Problem::with_help(
                    format!("a row of the picture's features has {other} numbers, and an embedding of the model {width}"),
                    "take the vision encoder of the same model",
                ));
            }
        }
    }
    if !places.iter().all(known) {
        problems.push(Problem::with_help(
            "the prompt has a picture that is not among the pictures of the request",
            "give Request::images the pictures with which the prompt was made",
        ));
    }
    problems
}

/// The features for which tokens of a generator's prompt stand.
#[derive(Clone)]
pub(super) struct Pictures {
    /// The number of elements of a row; `None` if the program for prompts takes none.
    width: Option<usize>,
    /// The row of all features with which each picture's begin.
    places: BTreeMap<i64, usize>,
    /// All features.
    rows: Option<DeviceTensor>,
}

impl Pictures {
    /// No pictures yet, for a generator with this program for prompts.
    pub fn new(prompts: Option<&Program>) -> Pictures {
        let features = prompts.and_then(|p| p.inputs.iter().find(|i| i.name == FEATURES));
        let width = features.and_then(|f| usize::try_from(f.shape.last()?.as_const()?).ok());
        Pictures { width, places: BTreeMap::new(), rows: None }
    }

    /// The number of elements of a row of features; `None` if prompts can have no pictures.
    pub fn width(&self) -> Option<usize> {
        self.width
    }

    /// Copies the features of the pictures that occur in the prompt to the device.
    pub fn take(&mut self, gpu: &Gpu, prompt: &[i64], images: &[ImageFeatures]) -> Result<(), Error> {
        let asked: BTreeSet<i64> = prompt.iter().filter_map(|t| Some(place(*t)?.0)).collect();
        let Some(width) = self.width.filter(|_| !asked.is_empty()) else { return Ok(()) };
        self.places.clear();
        let (mut all, mut rows) = (vec![], 0);
        for image in images.iter().filter(|i| asked.contains(&i.number)) {
            if let Entry::Vacant(place) = self.places.entry(image.number) {
                place.insert(rows);
                all.extend(image.tensor().to_f32s().unwrap_or_default());
                rows += image.len();
            }
        }
        let all = Tensor::from_f32(vec![rows, width], &all);
        self.rows = Some(gpu.upload_blocking(&all).map_err(device_error)?);
        Ok(())
    }

    /// The inputs of a run of these tokens after `past` others, which chooses as the words say, and the number of tokens that says
    /// which program runs.
    pub fn given<'i>(
        &self,
        inputs: &'i [Input],
        ids: &Ids<'_>,
        past: usize,
        words: Tensor,
    ) -> (Vec<(&'i str, Value)>, usize) {
        let mut placed = vec![];
        if let Ids::Host(ids) = ids {
            placed.extend_from_slice(ids);
        }
        let (features, n) = self.place(&mut placed, ids.count());
        let mut given = match ids {
            Ids::Host(_) => given(inputs, &Ids::Host(&placed), past, words),
            Ids::Device(_) => given(inputs, ids, past, words),
        };
        given.extend(features.map(|f| (FEATURES, f)));
        (given, n)
    }

    /// Places the tokens of a run of `n` positions that stand for features: they become those that the program for prompts takes. Returns
    /// its input of features if it is to run, and the number of positions that says which program runs.
    pub fn place(&self, ids: &mut [i64], n: usize) -> (Option<Value>, usize) {
        let Some(width) = self.width else { return (None, n) };
        let pictured = ids.iter().any(|t| stands_for_feature(*t));
        ids.iter_mut().for_each(|t| *t = self.row(*t));
        match (&self.rows, pictured) {
            (Some(rows), true) => (Some(rows.clone().into()), n.max(2)),
            _ if n > 1 => (Some(Tensor::from_f32(vec![1, width], &vec![0.0; width]).into()), n),
            _ => (None, n),
        }
    }

    /// The token that the program takes for one of a prompt.
    fn row(&self, token: i64) -> i64 {
        let of = |(number, row): (i64, usize)| Some((self.places.get(&number)? + row) as i64);
        place(token).and_then(of).map_or(token, |row| -1 - row)
    }
}

#[cfg(test)]
mod numbers {
    use super::*;
    use wgfc_ir::DType;

    #[test]
    fn numbers_tell_rows_of_pictures_apart() {
        let features = |x: f32| ImageFeatures::new(&Tensor::from_f32(vec![1, 3, 2], &[x; 6])).unwrap();
        let (a, b) = (features(1.0), features(2.0));
        let all: BTreeSet<i64> = a.tokens().chain(b.tokens()).collect();
        assert_eq!((all.len(), a.len(), a.clone() == features(1.0)), (6, 3, true));
        assert!(all.iter().all(|t| stands_for_feature(*t)));
        let places: Vec<_> = a.tokens().filter_map(place).collect();
        assert_eq!(places, [(a.number, 0), (a.number, 1), (a.number, 2)]);
        assert_eq!((place(UNKNOWN), place(0), place(7)), (None, None, None));
        assert_eq!(place(-2), Some((0, 0)));
        assert!(place(i64::MIN).is_some());
        for (shape, dtype) in [(vec![6], DType::F32), (vec![0, 2], DType::F32), (vec![3, 2], DType::I64)] {
            let n: usize = shape.iter().product();
            let t = Tensor::from_f32(shape.clone(), &vec![1.0; n]);
            let t = if dtype == DType::I64 { Tensor::from_i64(shape, &vec![1; n]) } else { t };
            assert!(ImageFeatures::new(&t).is_err(), "{t:?}");
        }
    }
}
