//! The input is a compiled program in one file (`.wgfc`). It is read and its sizes are bound without a device, or it is refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::Write;
use wgfc::artefact::{ReadOptions, load_bundle_with};
use wgfc::runtime::bind;

fuzz_target!(|input: &[u8]| {
    let mut file = tempfile::Builder::new().suffix(".wgfc").tempfile().expect("a temporary file");
    file.write_all(input).expect("the temporary file can be written to");
    // Hashes are not compared, because a mutation almost never has the right ones.
    let options = ReadOptions { verify: false, ..ReadOptions::default() };
    for plan in load_bundle_with(file.path(), &options).into_iter().flat_map(|b| b.plans) {
        let p = &plan.program;
        for t in p.weights.values().filter(|t| t.is_present()) {
            assert_eq!(t.byte_len(), Some(t.dtype.bytes_for(t.numel())), "{t:?}");
        }
        let _ = bind::check_sizes(p, &vec![3; p.symbols.len()]);
    }
});
