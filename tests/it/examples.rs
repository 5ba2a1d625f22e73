//! `examples/`: each runs, and the engine that knows plans only computes what the models should.

use crate::data::Folder;
use std::path::Path;
use wgfc::runtime::bind::bind_symbols;
use wgfc::selftest::relative_error;
use wgfc_ir::Tensor;

#[path = "../../examples/device_buffers.rs"]
mod device_buffers;
#[expect(dead_code, reason = "its `main` reads the arguments of the process")]
#[path = "../../examples/engine/main.rs"]
pub mod engine;
#[path = "../../examples/run.rs"]
mod run;
#[path = "../../examples/taps.rs"]
mod taps;
#[expect(dead_code, reason = "its `main` writes into the folder in which it is started")]
#[path = "../../examples/train.rs"]
mod train;

#[test]
fn examples_run() {
    run::main().unwrap();
    taps::main().unwrap();
    if !wgfc_runtime::testing::gpus().is_empty() {
        device_buffers::main().unwrap();
        let folder = tempfile::tempdir().unwrap();
        train::train(folder.path()).unwrap();
        let names = ["trained.safetensors", "loss.svg"];
        assert!(names.iter().all(|n| folder.path().join(n).exists()));
        engine::show(std::iter::empty()).unwrap();
    }
}

#[test]
fn another_engine_runs_compiled_folders() {
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    // One of them with an input that is left out.
    for (name, added) in [("mlp", ""), ("attention", "residual"), ("integers", ""), ("recurrent", "")] {
        let model = Folder::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small"), name);
        let added = Some(added.to_owned()).filter(|a| !a.is_empty()).into_iter().collect();
        let options = wgfc::Options { added, ..wgfc::Options::default() };
        let program = wgfc::compile_file(&model.model_path(), &options).unwrap();
        let folder = temporary.path().join(name);
        wgfc::save(&program, &folder, &wgfc::SaveOptions::default()).unwrap();
        let data = model.data_set(0).unwrap();
        let given = data.inputs.iter().map(|t| t.shape.as_slice());
        let left_out = program.inputs.iter().filter(|p| p.broadcast.is_some()).map(|_| &[0; 3][..]);
        let shapes: Vec<&[usize]> = given.chain(left_out).collect();
        let values = bind_symbols(&program, &shapes, &Default::default()).unwrap();
        let symbols = program.symbols.iter().cloned().zip(values).collect();
        let bytes = |t: &Tensor| t.bytes().unwrap_or_default().to_vec();
        let inputs =
            program.inputs.iter().map(|p| p.name.clone()).zip(data.inputs.iter().map(bytes)).collect();
        let outputs = engine::run(&folder, &symbols, &inputs).unwrap();
        for (port, want) in program.outputs.iter().zip(&data.outputs) {
            let got = Tensor::new(want.dtype, want.shape.clone(), outputs[&port.name].clone()).unwrap();
            let error = relative_error(&got, want).unwrap();
            assert!(error <= 1e-4, "{name}: `{}` differs by {error:e}", port.name);
        }
    }
}
