//! Looks at tensors inside of a model: taps are further outputs, at which fusion stops.
//!
//!     cargo run --example taps

use std::error::Error;
use std::path::Path;
use wgfc::{Model, Options, Place, Tensor};

/// Prints two tensors from inside of the model, and its output.
pub fn main() -> Result<(), Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    // Names of values, as ONNX files have them (Netron shows them at the edges).
    let taps = vec!["a".to_owned(), "logits".to_owned()];
    let options = Options { taps, ..Options::default() };
    let mut model = Model::load(&path, &options, Place::default())?;

    let x = Tensor::from_f32(vec![1, 13], &[0.5; 13]);
    let outputs = model.run(&[("x".to_owned(), x)].into())?;
    for name in ["a", "logits", "probabilities"] {
        let t = outputs.get(name).ok_or("the model has this output or tap")?;
        println!("`{name}` {:?}: {:.3?}", t.shape, t.to_f32s().unwrap_or_default());
    }
    Ok(())
}
