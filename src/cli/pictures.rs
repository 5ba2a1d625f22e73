//! Pictures for `wgfc generate` and `wgfc chat`.

use super::args::DecoderArgs;
use super::device_cache::DeviceCache;
use super::shown;
use super::terminal::Terminal;
use std::path::Path;
use wgfc::generate::{ImageEncoder, ImageFeatures};
use wgfc::runtime::Gpu;
use wgfc::{Decoder, Error};

/// The vision encoder of a decoder, which is compiled for the first picture.
pub struct Pictures<'a> {
    gpu: &'a Gpu,
    args: &'a DecoderArgs,
    encoder: Option<ImageEncoder>,
}

impl<'a> Pictures<'a> {
    /// No picture yet.
    pub fn new(gpu: &'a Gpu, args: &'a DecoderArgs) -> Pictures<'a> {
        Pictures { gpu, args, encoder: None }
    }

    /// The features of a picture in a file.
    pub fn read(&mut self, path: &Path, decoder: &Decoder, t: &Terminal) -> Result<ImageFeatures, Error> {
        let mut cache = None;
        if self.encoder.is_none() {
            let own = cache.insert(DeviceCache::open(&self.args.cache, self.gpu, t));
            let options = super::generate::options(self.args, own, 1);
            self.encoder = Some(ImageEncoder::on_device(self.gpu.clone(), decoder, &options)?);
        }
        let no_encoder = || Error::Internal("a vision encoder that was not made".into());
        let encoder = self.encoder.as_mut().ok_or_else(no_encoder)?;
        let what = format!("making features of {}", shown(path));
        let _progress = super::load::compiling_as(self.gpu, what, t);
        let features = encoder.encode_file(path);
        if let Some(cache) = cache {
            cache.save(t);
        }
        features
    }
}
