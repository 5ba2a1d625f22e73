//! Trains a sparse autoencoder: a step that PyTorch exported, with its gradients and Adam, runs on batches of rows. Parameters and moments
//! stay on the device. Writes a checkpoint, goes on from it, and draws the losses.
//!
//!     cargo run --example train

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use wgfc::runtime::{AdapterChoice, Gpu};
use wgfc::{ModelFile, Options, Tensor, Trainer, Training, npy};

fn main() -> Result<(), Box<dyn Error>> {
    train(Path::new("target/example-train"))
}

/// Trains for 400 steps in two parts, with a checkpoint between them, and puts files into a folder.
pub fn train(folder: &Path) -> Result<(), Box<dyn Error>> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/torch");
    // A step takes the rows `x`, f32[batch, 6], and the learning rate, and returns the loss.
    // fixtures/torch/train_step.py exports steps of any size.
    let file = ModelFile::open(&fixtures.join("train_step.pt2"))?;
    let gpu = Gpu::request_blocking(&AdapterChoice::from_env())?;
    let training = || -> Result<Training, wgfc::Error> {
        Ok(Training {
            // The rows are mapped from the file, which may be larger than the memory.
            data: [("x".to_owned(), npy::map(&fixtures.join("train_step.x.npy"))?)].into(),
            inputs: [("rate".to_owned(), Tensor::from_f32(vec![], &[0.01]))].into(),
            batch: Some(8),
            seed: Some(1),
            ..Training::default()
        })
    };

    let checkpoint = folder.join("trained.safetensors");
    let mut losses = vec![];
    let mut each = |step: wgfc::train::Step| {
        losses.push(step.loss);
        if step.number.is_multiple_of(50) {
            println!("step {:3}: loss {:.4}", step.number, step.loss);
        }
        ControlFlow::Continue(())
    };
    let mut trainer = Trainer::compile(&gpu, &file, training()?, &Options::default())?;
    trainer.run(200, &mut each)?;
    trainer.save(&checkpoint)?;

    // This part could as well run later, in another process.
    let mut trainer = Trainer::compile(&gpu, &file, training()?, &Options::default())?;
    trainer.resume(&checkpoint)?;
    println!("goes on after step {}", trainer.step());
    trainer.run(200, &mut each)?;

    let encoder = trainer.session().states_named_blocking(&["encoder"])?;
    println!("the encoder is now {:.2?}", encoder["encoder"].to_f32s().unwrap_or_default());
    let plot = folder.join("loss.svg");
    std::fs::write(&plot, svg(&losses))?;
    println!("{} shows how the loss fell", plot.display());
    Ok(())
}

/// A line chart of the losses.
fn svg(losses: &[f64]) -> String {
    let (width, height) = (600.0, 300.0);
    let most = losses.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let point = |(i, l): (usize, &f64)| {
        format!("{:.1},{:.1}", i as f64 / losses.len() as f64 * width, height * (1.0 - l / most))
    };
    let points: Vec<String> = losses.iter().enumerate().map(point).collect();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\"><polyline points=\"{}\" fill=\"none\" \
         stroke=\"#2f6fb5\"/></svg>\n",
        points.join(" ")
    )
}
