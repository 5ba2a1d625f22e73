//! The substitute for pictures in a build without the feature `image`.

use super::processor::Processor;
use crate::{Error, Tensor};
use std::path::Path;

/// Always fails.
pub fn of(_: &[u8], _: &Path, _: &Processor, _: Option<u64>) -> Result<Tensor, Error> {
    let help = "give the vision encoder the picture as numbers, or build wgfc with the feature";
    Err(Error::usage("pictures cannot be read: wgfc was built without the feature `image`", help))
}
