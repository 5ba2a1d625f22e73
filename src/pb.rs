//! Tensors as ONNX `TensorProto` files, as in `test_data_set_0/input_0.pb` of ONNX's own test data.

use crate::Error;
use crate::files::map_file;
use std::path::Path;
use wgfc_compiler::import::NoExternalData;
use wgfc_compiler::import::onnx::TensorProto;
use wgfc_compiler::import::onnx::weights::Weights;
use wgfc_ir::Tensor;

const HELP: &str = "give a file as in ONNX's test data (onnx.save_tensor writes one), or a .npy";

/// Reads a `TensorProto` file.
pub fn read(path: &Path) -> Result<Tensor, Error> {
    let bytes = map_file(path)?;
    let proto: TensorProto = prost::Message::decode((*bytes).as_ref())
        .map_err(|e| Error::file_help(path, format!("is not an ONNX TensorProto: {e}"), HELP))?;
    Weights::new(&NoExternalData, false).tensor(&proto).map_err(|e| Error::file_help(path, e.message, HELP))
}
