//! The input is an archive of torch.export, or the JSON of a program, which then replaces the program in
//! `fixtures/torch/residual.pt2`: a mutated archive rarely has the checksums that a zip file needs. It is
//! compiled, or refused without an internal error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::{Cursor, Read, Write};
use wgfc::compiler::import::NoExternalData;
use wgfc::compiler::{Kind, Options, compile};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

const ARCHIVE: &[u8] = include_bytes!("../../fixtures/torch/residual.pt2");

/// The fixture with its program replaced.
fn archive(program: &[u8]) -> Vec<u8> {
    let mut from = ZipArchive::new(Cursor::new(ARCHIVE)).expect("the fixture is a zip file");
    let mut to = ZipWriter::new(Cursor::new(vec![]));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for i in 0..from.len() {
        let mut record = from.by_index(i).expect("the fixture's records can be read");
        let name = record.name().expect("the fixture's names are UTF-8").into_owned();
        let mut data = vec![];
        record.read_to_end(&mut data).expect("the fixture's records are whole");
        let data = if name.ends_with("models/model.json") { program } else { &data };
        to.start_file(name, stored).expect("names in the fixture differ");
        to.write_all(data).expect("memory can be written to");
    }
    to.finish().expect("memory can be written to").into_inner()
}

fuzz_target!(|input: &[u8]| {
    let packed;
    let model = if input.starts_with(b"PK") {
        input
    } else {
        packed = archive(input);
        &packed
    };
    if let Err(e) = compile(model, &NoExternalData, &Options::default()) {
        assert!(e.0.iter().all(|d| d.kind != Kind::Internal), "{e}");
    }
});
