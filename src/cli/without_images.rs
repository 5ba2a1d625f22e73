//! The substitute for pictures in a build without the feature `image`.

use super::args::ImageNorm;
use std::collections::BTreeMap;
use std::path::Path;
use wgfc::compiler::budget::Budget;
use wgfc::ir::Dim;
use wgfc::{DType, Error, Tensor};

/// Always fails.
pub fn read(
    path: &Path,
    _: DType,
    _: &[Dim],
    _: &BTreeMap<String, i64>,
    _: ImageNorm,
    _: &Budget,
) -> Result<Tensor, Error> {
    let help = "give a .npy or .pb file, or build wgfc with the feature";
    Err(Error::file_help(path, "is a picture, and wgfc was built without the feature `image`", help))
}
