//! Small models that could take unbounded time or memory to compile are compiled within the limits that are
//! counted, or refused with a reason.

use std::path::Path;
use wgfc_compiler::import::NoExternalData;
use wgfc_compiler::{Fusion, Kind, Options, compile};

#[test]
fn small_models_make_programs_of_bounded_size() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/repro");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let models = files.into_iter().filter(|f| f.extension().is_some_and(|e| e == "onnx"));
    for file in models {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&file).unwrap();
        for fusion in [Fusion::Full, Fusion::Elementwise] {
            match compile(&bytes, &NoExternalData, &Options { fusion, ..Options::default() }) {
                Ok(p) => {
                    let text: usize = p.kernels.iter().map(|k| k.wgsl.len()).sum();
                    assert!(text < 4 << 20, "{name}: {text} bytes of kernels");
                    assert!(p.dispatches.len() < 5000, "{name}: {} dispatches", p.dispatches.len());
                }
                Err(errors) => {
                    let internal = errors.0.iter().find(|e| e.kind == Kind::Internal);
                    assert!(internal.is_none(), "{name}: {internal:?}");
                }
            }
        }
    }
}
