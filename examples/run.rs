//! Compiles a model and runs it: on the GPU where there is one, in the CPU's evaluator otherwise.
//!
//!     cargo run --example run

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use wgfc::{Model, Options, Place, Tensor};

/// Compiles, prints the inputs, runs two batches.
pub fn main() -> Result<(), Box<dyn Error>> {
    // A classifier from f32[batch, 13] to the probabilities of five classes.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    let mut model = Model::load(&path, &Options::default(), Place::default())?;
    for port in model.inputs() {
        println!("input `{}` is {}", port.name, port.type_text());
    }
    // The compiled program serves every batch size.
    for batch in [1, 3] {
        let x: Vec<f32> = (0..batch * 13).map(|i| (i as f32 * 0.37).sin()).collect();
        let inputs = BTreeMap::from([("x".to_owned(), Tensor::from_f32(vec![batch, 13], &x))]);
        for (name, tensor) in model.run(&inputs)? {
            println!("`{name}` {:?}: {:.3?}", tensor.shape, tensor.to_f32s().unwrap_or_default());
        }
    }
    Ok(())
}
