//! Archives of torch.export: every command that takes an ONNX model also takes an archive.

use super::{fixture, folder, wgfc};
use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use wgfc::Tensor;
use zip::read::{ArchiveOffset, Config};

fn residual() -> String {
    fixture("torch/residual.pt2")
}

/// The records of an archive.
pub fn records(path: &Path) -> Vec<(String, Vec<u8>)> {
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    let mut zip = zip::ZipArchive::with_config(config, std::fs::File::open(path).unwrap()).unwrap();
    let mut out = vec![];
    for i in 0..zip.len() {
        let mut r = zip.by_index(i).unwrap();
        let mut bytes = vec![];
        r.read_to_end(&mut bytes).unwrap();
        out.push((r.name().unwrap().into_owned(), bytes));
    }
    out
}

pub fn archive(path: &Path, records: &[(String, Vec<u8>)]) {
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, bytes) in records {
        zip.start_file(name.as_str(), zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

fn mean(v: &Value) -> f64 {
    v["outputs"][0]["mean"].as_f64().unwrap()
}

#[test]
fn archives_are_checked_inspected_compiled_and_run() {
    let d = folder();
    let model = residual();
    wgfc(d.path(), &format!("check|{model}"))
        .exits(0)
        .prints("program of torch.export, schema 8.")
        .prints("by torch 2.")
        .prints("aten.mul.Tensor")
        .prints("input  x: f32")
        .prints("everything in it is supported");
    let v = wgfc(d.path(), &format!("check|{model}|--json")).exits(0).json();
    assert!(v["schema_version"].as_str().unwrap().starts_with("8."), "{v}");
    assert_eq!(v["inputs"][0]["name"], "x");
    wgfc(d.path(), &format!("inspect|{model}")).exits(0);
    wgfc(d.path(), &format!("inspect|{model}|--schedule")).exits(0);
    wgfc(d.path(), &format!("inspect|{model}|--graph|g.svg")).exits(0);
    wgfc(d.path(), &format!("compile|{model}|-o|out")).exits(0);
    wgfc(d.path(), "inspect|out").exits(0);
    let ran = format!("run|{model}|--cpu|--json|--random-inputs|--dim|s77=2|--dim|s27=3|--check-indices");
    assert!(mean(&wgfc(d.path(), &ran).exits(0).json()).is_finite());
    wgfc(d.path(), &format!("generate|{model}|--tokens|1"))
        .exits(2)
        .says("not a decoder that wgfc understands");
}

#[test]
fn sizes_and_values_of_archives_come_from_files() {
    let d = folder();
    let model = residual();
    let file = d.path().join("x.npy");
    wgfc::npy::write(&Tensor::from_f32(vec![2, 3, 6], &[0.5; 36]), &file).unwrap();
    wgfc(d.path(), &format!("check|{model}|--like|x=x.npy")).exits(0).prints("x: f32[2, 3, 6]");
    wgfc(d.path(), &format!("run|{model}|--cpu|--input|x=x.npy")).exits(0);
    wgfc(d.path(), &format!("check|{model}|--like|y={}", file.display())).exits(1).says("no input");
    wgfc(d.path(), &format!("compile|{model}|-o|fixed|--fix|y=1"))
        .exits(1)
        .says("not an input of the program");
}

#[test]
fn weights_that_an_archive_lacks_are_made_up() {
    let d = folder();
    let mut all = records(residual().as_ref());
    all.retain(|(name, _)| !name.contains("/weight_"));
    archive(&d.path().join("bare.pt2"), &all);
    wgfc(d.path(), "run|bare.pt2|--cpu|--random-inputs|--dim|s77=2|--dim|s27=3")
        .exits(1)
        .says("has no record")
        .says("--random-weights");
    let checked = wgfc(d.path(), "check|bare.pt2").exits(0).prints("everything in it is supported");
    checked.says("the weights of 11 tensors are missing");
    wgfc(d.path(), "compile|bare.pt2|-o|planned|--graph-only").exits(0);
    wgfc(d.path(), "inspect|bare.pt2").exits(0).says("absent");
    wgfc(d.path(), "compile|bare.pt2|-o|made|--random-weights").exits(0).says("11 weights");
    let run = "run|bare.pt2|--cpu|--json|--random-inputs|--dim|s77=2|--dim|s27=3|--random-weights";
    let once = wgfc(d.path(), run).exits(0).json();
    assert_eq!(mean(&once), mean(&wgfc(d.path(), run).exits(0).json()));
    let whole = format!("run|{}|--cpu|--json|--random-inputs|--dim|s77=2|--dim|s27=3", residual());
    let real = mean(&wgfc(d.path(), &whole).exits(0).json());
    let kept = wgfc(d.path(), &format!("{whole}|--random-weights")).exits(0).json();
    assert_eq!(mean(&kept), real, "what an archive has is not made up");
}

#[test]
fn an_unpacked_archive_is_read_by_its_program() {
    let d = folder();
    for (name, bytes) in records(residual().as_ref()) {
        let path = d.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let args = "--cpu|--json|--random-inputs|--dim|s77=2|--dim|s27=3";
    let packed = wgfc(d.path(), &format!("run|{}|{args}", residual())).exits(0).json();
    let open = wgfc(d.path(), &format!("run|residual/models/model.json|{args}")).exits(0).json();
    assert_eq!(mean(&packed), mean(&open));
    std::fs::remove_file(d.path().join("residual/data/weights/weight_3")).unwrap();
    wgfc(d.path(), &format!("run|residual/models/model.json|{args}")).exits(1).prints("weight_3");
    wgfc(d.path(), &format!("run|residual/models/model.json|{args}|--random-weights")).exits(0);
    #[cfg(unix)]
    {
        std::fs::write(d.path().join("secret"), [0u8; 24]).unwrap();
        let link = d.path().join("residual/data/weights/weight_3");
        std::os::unix::fs::symlink("../../../secret", link).unwrap();
        wgfc(d.path(), &format!("run|residual/models/model.json|{args}"))
            .exits(1)
            .prints("leaves the model's folder");
    }
}

#[test]
fn all_operators_that_are_not_supported_are_listed_at_once() {
    let d = folder();
    let mut all = records(residual().as_ref());
    for (name, bytes) in &mut all {
        if name.ends_with("models/model.json") {
            let text = String::from_utf8(std::mem::take(bytes)).unwrap();
            let text = text.replace("aten.tanh.default", "aten.linalg_ldl_factor.default");
            *bytes = text.replace("aten.clone.default", "mine.clone.default").into_bytes();
        }
    }
    archive(&d.path().join("m.pt2"), &all);
    wgfc(d.path(), "check|m.pt2")
        .exits(2)
        .prints("2 not supported, 0 wrong")
        .says("aten.linalg_ldl_factor.default is not supported (3 nodes): its pivots")
        .says("mine.clone.default is not supported");
    let v = wgfc(d.path(), "check|m.pt2|--json").exits(2).json();
    assert_eq!(v["unsupported"][0]["nodes"].as_array().unwrap().len(), 3, "{v}");
    assert_eq!(v["operators"]["aten.linalg_ldl_factor.default"], 3);
}
