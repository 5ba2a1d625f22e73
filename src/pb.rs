//! Tensors as ONNX `TensorProto` files, as in `test_data_set_0/input_0.pb` of ONNX's own test data.

use crate::Error;
use crate::files::map_file;
use std::path::Path;
use wgfc_compiler::budget::Budget;
use wgfc_compiler::import::NoExternalData;
use wgfc_compiler::import::onnx::decode_tensor;
use wgfc_compiler::import::onnx::weights::Weights;
use wgfc_ir::Tensor;

const HELP: &str = "give a file as in ONNX's test data (onnx.save_tensor writes one), or a .npy";

/// Reads a `TensorProto` file.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// let x = wgfc::pb::read(&path.with_file_name("test_data_set_0").join("input_0.pb"))?;
/// assert_eq!(x.shape[1], 13);
/// # Ok(()) }
/// ```
pub fn read(path: &Path) -> Result<Tensor, Error> {
    read_within(path, &Budget::of_data(None))
}

/// [`read`] within a budget, to which the size of the file is added.
/// See the example of [`npy::read_within`](crate::npy::read_within).
pub fn read_within(path: &Path, budget: &Budget) -> Result<Tensor, Error> {
    let bytes = map_file(path)?;
    let bytes = (*bytes).as_ref();
    budget.add_file(bytes.len() as u64);
    let proto = decode_tensor(bytes, budget)
        .map_err(|d| Error::file_help(path, d.message, d.help.unwrap_or_else(|| HELP.to_owned())))?;
    Weights::new(&NoExternalData, false).tensor(&proto).map_err(|e| Error::file_help(path, e.message, HELP))
}
