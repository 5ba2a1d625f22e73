//! The vision encoder of a model on a device.

use super::processor::Processor;
use super::{ImageFeatures, pixels};
use crate::generate::{Decoder, GeneratorOptions, described, programs};
use crate::model::device_error;
use crate::value_info::{ValueInfo, program_values};
use crate::{Error, ModelFile, Options, Tensor};
use std::path::Path;
use wgfc_compiler::import::declared_inputs;
use wgfc_compiler::{Activations, CacheType, WeightBits};
use wgfc_ir::{DType, Dim, Scalar};
use wgfc_runtime::kernel::Checks;
use wgfc_runtime::session::SessionOptions;
use wgfc_runtime::{Gpu, Session};

/// The vision encoder of a vision-language model: `vision_encoder.onnx` beside the decoder. It is compiled for the first picture, and
/// again for one of another size. Its weights keep the type that they have in the file.
///
/// See the example of [`Decoder::encode_with_images`].
pub struct ImageEncoder {
    gpu: Gpu,
    file: ModelFile,
    /// Why a picture cannot be read, if the model does not say how.
    processor: Result<Processor, Error>,
    options: Options,
    /// The session, and the shape of the picture that it takes.
    session: Option<(Vec<usize>, Session)>,
    memory_limit: Option<u64>,
}

impl ImageEncoder {
    /// The encoder that lies beside a decoder, on the adapter of the options. Of these, the precision and what concerns the
    /// device apply.
    ///
    /// # Errors
    /// A decoder without a vision encoder, or one that was compiled.
    pub fn new(decoder: &Decoder, options: &GeneratorOptions) -> Result<ImageEncoder, Error> {
        let gpu = Gpu::request_blocking(&options.adapter).map_err(device_error)?;
        ImageEncoder::on_device(gpu, decoder, options)
    }

    /// [`ImageEncoder::new`] on a device that is already open.
    ///
    /// # Errors
    /// As for [`ImageEncoder::new`].
    pub fn on_device(gpu: Gpu, decoder: &Decoder, options: &GeneratorOptions) -> Result<ImageEncoder, Error> {
        let path = crate::files::part_beside(decoder.source()?.path(), crate::files::VISION);
        let path = path.ok_or_else(|| {
            Error::file_help(
                decoder.path(),
                "has no vision encoder, which makes features of pictures",
                "take a vision-language model: a folder with onnx/vision_encoder.onnx beside decoder_model_merged.onnx and embed_tokens.onnx",
            )
        })?;
        let common = programs::common(&gpu, decoder, options)?;
        let options = Options {
            keep_f32: vec![],
            weights: WeightBits::Own,
            activations: Activations::Own,
            cache: CacheType::Own,
            expect: Default::default(),
            ..common
        };
        Ok(ImageEncoder {
            gpu,
            file: ModelFile::open(&path)?,
            processor: Processor::of(decoder),
            options,
            session: None,
            memory_limit: decoder.memory_limit(),
        })
    }

    /// The features of a picture in a file, PNG or JPEG. It is resized and normalised as `preprocessor_config.json` says, as one tile.
    ///
    /// # Errors
    /// A file that cannot be read or is no such picture; a model that does not say how a picture becomes numbers, or in a way that is not
    /// supported; otherwise as for [`ImageEncoder::encode_pixels`].
    pub fn encode_file(&mut self, path: &Path) -> Result<ImageFeatures, Error> {
        let bytes = crate::files::map_file(path)?;
        let pixels = self.pixels((*bytes).as_ref(), path)?;
        self.encode_pixels(&pixels)
    }

    /// [`ImageEncoder::encode_file`] for the bytes of such a file.
    ///
    /// # Errors
    /// As for [`ImageEncoder::encode_file`].
    pub fn encode(&mut self, picture: &[u8]) -> Result<ImageFeatures, Error> {
        let pixels = self.pixels(picture, Path::new(""))?;
        self.encode_pixels(&pixels)
    }

    fn pixels(&self, picture: &[u8], path: &Path) -> Result<Tensor, Error> {
        pixels::of(picture, path, self.processor.as_ref().map_err(Clone::clone)?, self.memory_limit)
    }

    /// The numbers f32 `[3, height, width]` that the encoder is given of a picture.
    ///
    /// # Errors
    /// As for [`ImageEncoder::encode_file`].
    pub fn read_pixels(&self, picture: &[u8]) -> Result<Tensor, Error> {
        self.pixels(picture, Path::new(""))
    }

    /// The features of a picture that is given as numbers, floats `[3, height, width]` or with axes of extent 1 before these.
    ///
    /// # Errors
    /// A shape that the encoder does not take; inputs of the encoder whose purpose is not known; otherwise as for
    /// [`ModelFile::compile`](crate::ModelFile::compile), or an error of the device.
    pub fn encode_pixels(&mut self, pixels: &Tensor) -> Result<ImageFeatures, Error> {
        let wrong = |shape: &[usize]| {
            let message = format!("{}{shape:?} are not the numbers of a picture", pixels.dtype);
            Error::usage(message, "give floats [3, height, width]")
        };
        let lead = pixels.shape.len().saturating_sub(3);
        let shape = pixels.shape[lead..].to_vec();
        let values = pixels.to_f32s().filter(|_| pixels.dtype.is_float());
        let one = pixels.shape[..lead].iter().all(|n| *n == 1);
        let values = values.filter(|_| shape.len() == 3 && one).ok_or_else(|| wrong(&pixels.shape))?;
        if self.session.as_ref().is_none_or(|(s, _)| *s != shape) {
            self.session = Some((shape.clone(), self.compile(&shape)?));
        }
        let (_, session) = self.session.as_mut().ok_or_else(|| wrong(&shape))?;
        let inputs: Vec<(String, Tensor)> = program_values(&session.program().inputs)
            .into_iter()
            .map(|p| {
                let extent = |d: &Dim| d.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
                let shape: Vec<usize> = p.shape.iter().map(extent).collect();
                let n: usize = shape.iter().product();
                let scalars: Vec<Scalar> = match is_mask(&p) {
                    true => vec![Scalar::from_i64(p.dtype, 1); n],
                    false => values.iter().map(|x| Scalar::from_f64(p.dtype, f64::from(*x))).collect(),
                };
                (p.name, Tensor::from_scalars(p.dtype, shape, &scalars))
            })
            .collect();
        let given: Vec<(&str, Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        let outputs = session.run_blocking(&given).map_err(device_error)?;
        let features = outputs.into_iter().find(|(_, t)| t.dtype.is_float() && t.shape.len() > 1);
        let none = || strange(&self.file, "has no output of floats [rows, width]".to_owned());
        ImageFeatures::new(&features.ok_or_else(none)?.1)
    }

    /// The session for pictures of this shape.
    fn compile(&self, shape: &[usize]) -> Result<Session, Error> {
        let open = Options { memory_limit: self.memory_limit, ..Options::default() };
        let inputs = declared_inputs(self.file.bytes(), &self.file, &open).map_err(Error::from)?;
        let mut dims = std::collections::BTreeMap::new();
        for (name, ty) in inputs {
            let port = ValueInfo { name, dtype: ty.dtype, shape: ty.shape, broadcast: None };
            let named = described(&port);
            let own = match (is_pixels(&port), is_mask(&port)) {
                (true, _) => shape,
                (_, true) => &shape[1..],
                _ => return Err(strange(&self.file, format!("has the {named}, whose purpose is not known"))),
            };
            let lead = port.shape.len().checked_sub(own.len());
            let lead =
                lead.ok_or_else(|| strange(&self.file, format!("has the {named}, of too few axes")))?;
            let extents = std::iter::repeat_n(&1, lead).chain(own);
            for (d, n) in port.shape.iter().zip(extents) {
                let n = i64::try_from(*n).unwrap_or(i64::MAX);
                match (d.as_const(), d.symbols().into_iter().next()) {
                    (Some(c), _) if c == n => {}
                    (None, Some(s)) if *d == Dim::sym(&s) && *dims.entry(s.to_string()).or_insert(n) == n => {
                    }
                    _ => {
                        return Err(strange(
                            &self.file,
                            format!("has the {named}, and the picture is {shape:?}"),
                        ));
                    }
                }
            }
        }
        let program = self.file.compile(&Options { dims, ..self.options.clone() })?;
        let how = SessionOptions { checks: Checks::Trusted, ..SessionOptions::default() };
        Session::with_options_blocking(&self.gpu, &program, how).map_err(device_error)
    }
}

fn is_pixels(p: &ValueInfo) -> bool {
    p.dtype.is_float() && p.shape.len() >= 3 && !p.name.contains("mask")
}

fn is_mask(p: &ValueInfo) -> bool {
    p.name.contains("mask") && p.shape.len() >= 2 && matches!(p.dtype, DType::Bool | DType::I64 | DType::I32)
}

fn strange(file: &ModelFile, what: String) -> Error {
    Error::file_help(
        file.path(),
        format!("is not a vision encoder that wgfc understands: it {what}"),
        "vision encoders take `pixel_values` [batch, 3, height, width] or [batch, images, 3, height, width], and may have `pixel_attention_mask`; run others with `wgfc run`, and give their features in Rust (ImageFeatures::new)",
    )
}
