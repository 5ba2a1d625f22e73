//! Reads tensors inside a model and changes one of them: a tap is an additional output, and an added tensor
//! is an additional, optional input.
//!
//!     cargo run --example taps

use std::error::Error;
use std::path::Path;
use wgfc::{Model, Options, Place, Tensor};

/// Prints two tensors from inside the model and its output, first unchanged, then with something added.
pub fn main() -> Result<(), Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    // Names of values as in the ONNX file (Netron shows them at the edges).
    let taps = vec!["a".to_owned(), "logits".to_owned()];
    let options = Options { taps, added: vec!["a".to_owned()], ..Options::default() };
    let mut model = Model::load(&path, &options, Place::default())?;

    let x = Tensor::from_f32(vec![1, 13], &[0.5; 13]);
    // The added tensor broadcasts: it may be one number, a row, or of the full shape.
    let direction = Tensor::from_f32(vec![1], &[0.25]);
    let plain = [("x".to_owned(), x)];
    let steered = [plain[0].clone(), ("a.add".to_owned(), direction)];
    for inputs in [plain.to_vec(), steered.to_vec()] {
        let outputs = model.run(&inputs.into_iter().collect())?;
        for name in ["a", "logits", "probabilities"] {
            let t = outputs.get(name).ok_or("the model has this output or tap")?;
            println!("`{name}` {:?}: {:.3?}", t.shape, t.to_f32s().unwrap_or_default());
        }
    }
    Ok(())
}
