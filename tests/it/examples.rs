//! The programs of `examples/`: each runs, and the engine that knows only plans computes the models' expected
//! outputs.

use crate::data::Folder;
use std::path::Path;
use wgfc::runtime::bind::bind_symbols;
use wgfc_ir::Tensor;
use wgfc_selftest::relative_error;

#[path = "../../examples/device_buffers.rs"]
mod device_buffers;
#[expect(dead_code, reason = "its `main` reads the arguments of the process")]
#[path = "../../examples/engine/main.rs"]
pub mod engine;
#[path = "../../examples/run.rs"]
mod run;
#[path = "../../examples/taps.rs"]
mod taps;
#[path = "../../examples/texture.rs"]
mod texture;
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
fn a_picture_shows_what_the_model_computes() {
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    texture::main().unwrap();
    let frames = 25;
    let picture = texture::draw(frames).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/simulations/nbody/model.onnx");
    let values = [("steps".to_owned(), Tensor::from_i64(vec![], &[frames as i64]))].into();
    let options = wgfc::Options { values, ..wgfc::Options::default() };
    let mut model = wgfc::Model::load(&path, &options, wgfc::Place::Cpu).unwrap();
    let (position, velocity, mass) = texture::bodies();
    let n = mass.len();
    let inputs = [
        ("position", Tensor::from_f32(vec![n, 3], &position)),
        ("velocity", Tensor::from_f32(vec![n, 3], &velocity)),
        ("mass", Tensor::from_f32(vec![n], &mass)),
    ];
    let outputs = model.run(&inputs.map(|(name, t)| (name.to_owned(), t)).into()).unwrap();
    let last = outputs["last"].to_f32s().unwrap();
    let lit = |x: i64, y: i64| {
        let side = i64::from(texture::SIDE);
        (0..side).contains(&x) && (0..side).contains(&y) && picture[(y * side + x) as usize] == 255
    };
    // Rows are counted from the top. Rasterizers round positions to a sixteenth of a pixel or less, so a
    // point near a pixel's edge may fall on either side.
    let pixel = |v: f32| (v / 2.0 + 1.0) / 2.0 * texture::SIDE as f32;
    for p in last.chunks(3) {
        let (x, y) = (pixel(p[0]), texture::SIDE as f32 - pixel(p[1]));
        let near = [-1.0f32 / 16.0, 1.0 / 16.0].map(|d| ((x + d).floor() as i64, (y + d).floor() as i64));
        let near = [near[0], near[1], (near[0].0, near[1].1), (near[1].0, near[0].1)];
        assert!(near.iter().any(|(x, y)| lit(*x, *y)), "no body at {x} {y}");
    }
    assert_eq!(picture.iter().filter(|p| **p > 0).count(), n);
    // The points have moved.
    assert!(last.iter().zip(&position).any(|(a, b)| (a - b).abs() > 0.1));
}

#[test]
fn another_engine_runs_compiled_folders() {
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    // One of the models has an omitted input.
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
