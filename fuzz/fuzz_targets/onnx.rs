//! The input is an ONNX model. It is compiled, or refused without an internal error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wgfc::compiler::import::NoExternalData;
use wgfc::compiler::{Kind, Options, compile};

fuzz_target!(|model: &[u8]| {
    if let Err(e) = compile(model, &NoExternalData, &Options::default()) {
        assert!(e.0.iter().all(|d| d.kind != Kind::Internal), "{e}");
    }
});
