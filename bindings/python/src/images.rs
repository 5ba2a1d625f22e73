//! Pictures in the prompts of vision-language models.

use crate::input;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::path::PathBuf;
use wgfc::generate::{ImageEncoder, ImageFeatures};
use wgfc::runtime::Gpu;
use wgfc::{Decoder, Error, GeneratorOptions, Tensor};

/// A picture as it is given.
pub enum Picture {
    /// A file, PNG or JPEG.
    File(PathBuf),
    /// The bytes of one.
    Bytes(Vec<u8>),
    /// The pixel values that a processor made: floats `[3, height, width]`.
    Pixels(Tensor),
}

impl Picture {
    /// The pictures of a list.
    pub fn read(given: &Bound<'_, PyAny>) -> PyResult<Vec<Picture>> {
        if given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>() {
            return Err(PyTypeError::new_err("images: give a list of pictures, not one"));
        }
        let one = |picture: Bound<'_, PyAny>| {
            if let Ok(bytes) = picture.cast::<PyBytes>() {
                return Ok(Picture::Bytes(bytes.as_bytes().to_vec()));
            }
            match picture.extract::<PathBuf>() {
                Ok(path) => Ok(Picture::File(path)),
                Err(_) => input::tensor("a picture", &picture, None).map(Picture::Pixels),
            }
        };
        given.try_iter()?.map(|picture| one(picture?)).collect()
    }
}

/// The vision encoder of a generator, which is made for the first picture.
pub struct Encoder {
    options: GeneratorOptions,
    encoder: Option<ImageEncoder>,
}

impl Encoder {
    /// No picture yet, for a generator with these options.
    pub fn new(options: GeneratorOptions) -> Encoder {
        Encoder { options, encoder: None }
    }

    /// The features of pictures.
    pub fn features(
        &mut self,
        gpu: &Gpu,
        decoder: &Decoder,
        pictures: &[Picture],
    ) -> Result<Vec<ImageFeatures>, Error> {
        if pictures.is_empty() {
            return Ok(vec![]);
        }
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => none.insert(ImageEncoder::on_device(gpu.clone(), decoder, &self.options)?),
        };
        let one = |picture: &Picture| match picture {
            Picture::File(path) => encoder.encode_file(path),
            Picture::Bytes(bytes) => encoder.encode(bytes),
            Picture::Pixels(pixels) => encoder.encode_pixels(pixels),
        };
        pictures.iter().map(one).collect()
    }
}
