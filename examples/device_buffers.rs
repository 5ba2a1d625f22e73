//! Tensors that stay on the device: the outputs of one run are the inputs of the next, and only the last
//! result is read.
//!
//!     cargo run --example device_buffers

use std::error::Error;
use std::path::Path;
use wgfc::runtime::session::Value;
use wgfc::runtime::{AdapterChoice, Gpu, Session};
use wgfc::{Options, Tensor};

/// Applies a layer four times on the device.
pub fn main() -> Result<(), Box<dyn Error>> {
    // Attention from f32[batch, seq, 12] to the same type, with a mask bool[batch, seq].
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/attention/model.onnx");
    let gpu = Gpu::request_blocking(&AdapterChoice::from_env())?;
    let profile = Options::default().profile.with_limits(gpu.profile());
    let program = wgfc::compile_file(&path, &Options { profile, ..Options::default() })?;
    let mut layer = Session::new_blocking(&gpu, &program)?;

    let (batch, seq) = (2, 5);
    let x: Vec<f32> = (0..batch * seq * 12).map(|i| (i as f32 * 0.11).cos()).collect();
    let mut x = gpu.upload_blocking(&Tensor::from_f32(vec![batch, seq, 12], &x))?;
    // The mask is uploaded once and used by every run. A bool takes one byte.
    let mask = Tensor::new(wgfc::DType::Bool, vec![batch, seq], vec![1; batch * seq])?;
    let mask = gpu.upload_blocking(&mask)?;
    for _ in 0..4 {
        let inputs = [("x", Value::from(x.clone())), ("mask", Value::from(mask.clone()))];
        let outputs = layer.run_on_device_blocking(&inputs)?;
        // The call does not wait for the run: the next run is queued after it.
        x = outputs.into_iter().next().ok_or("the model has an output")?.1;
    }
    // Your own wgpu code can bind `x.buffer()` as well: it is a storage buffer of `gpu.device()`.
    let y = x.read_blocking()?;
    println!("after 4 layers {:?}: {:.3?} …", y.shape, &y.to_f32s().unwrap_or_default()[..6]);
    Ok(())
}
