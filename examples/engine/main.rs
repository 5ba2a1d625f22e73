//! An engine of one's own: runs a compiled folder or file with plain wgpu, serde and the safetensors crate. No part of wgfc
//! is used but to compile the folder where none is given, and `docs/plan-format.md` is all one needs to write it.
//!
//!     cargo run --example engine [FOLDER|FILE.wgfc [SYMBOL=VALUE ...]]
//!
//! Inputs are zeros here, of the sizes given. Left out are computed symbols and repetitions that end by
//! a condition, which few models have; a plan that needs them is refused. Of several plans it runs the first.

mod files;
mod gpu;
mod plan;

use files::Files;
use plan::{Plan, Symbols};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};

/// Tensors by name, packed as in `docs/plan-format.md`.
pub type Tensors = BTreeMap<String, Vec<u8>>;

/// Reads a folder or file and runs it. The shapes of inputs, evaluated with `symbols`, give their sizes.
pub fn run(path: &Path, symbols: &Symbols, inputs: &Tensors) -> Result<Tensors, Box<dyn Error>> {
    let files = Files::at(path);
    let (plan, recipes) = Plan::read(&files)?;
    let device = pollster::block_on(gpu::Device::open())?;
    device.run(&plan, &|name| files.weight(&recipes, name), symbols, inputs)
}

fn main() -> Result<(), Box<dyn Error>> {
    show(std::env::args().skip(1))
}

/// Runs a folder or file on zeros and prints the outputs.
pub fn show(mut arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let (folder, _temporary) = match arguments.next() {
        Some(folder) => (PathBuf::from(folder), None),
        None => {
            let temporary = tempfile::tempdir()?;
            let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
            let program = wgfc::compile_file(&model, &wgfc::Options::default())?;
            let folder = temporary.path().join("mlp");
            wgfc::save(&program, &folder, &wgfc::SaveOptions::default())?;
            (folder, Some(temporary))
        }
    };
    let (plan, _) = Plan::read(&Files::at(&folder))?;
    let mut symbols: Symbols = plan.symbols.iter().map(|s| (s.clone(), 1)).collect();
    plan.leave_out(&mut symbols);
    for a in arguments {
        let (name, value) = a.split_once('=').ok_or("a symbol is given as NAME=VALUE")?;
        symbols.insert(name.to_owned(), value.parse()?);
    }
    let zeros = |p: &plan::Port| Ok((p.name.clone(), vec![0; plan.bytes(p.buffer, &symbols)?]));
    let inputs = plan.inputs.iter().map(zeros).collect::<Result<Tensors, Box<dyn Error>>>()?;
    for (name, bytes) in run(&folder, &symbols, &inputs)? {
        let floats: Vec<f32> =
            bytes.chunks_exact(4).take(8).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        println!("`{name}`: {} bytes, as f32 {floats:.4?}", bytes.len());
    }
    Ok(())
}
