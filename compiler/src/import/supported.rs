//! `SUPPORTED_OPS.md`, generated from the tables of both formats.

use super::{fx, onnx};
use std::path::Path;

fn markdown() -> String {
    let lists = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/conformance");
    // Names of cases in torch's own dialect, before its decomposition to core operators, begin with `own-`.
    let cases = |file: &str| {
        let text = std::fs::read_to_string(lists.join(file)).unwrap();
        text.lines().filter(|l| !l.is_empty() && !l.starts_with("own-")).count()
    };
    let (passing, failing) = (cases("aten_passing.txt"), cases("aten_failing.tsv"));
    format!(
        "# Supported operators\n\n\
         Generated from `compiler/src/import`; `UPDATE_EXPECT=1 cargo test --workspace --lib supported_ops` rewrites it. \
         There are those of [ONNX](#onnx) and those of [PyTorch](#pytorch).\n\n{}\n{}",
        onnx::ops::supported::markdown(),
        fx::ops::supported::markdown(passing, passing + failing)
    )
}

#[test]
fn supported_ops() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../SUPPORTED_OPS.md");
    let want = markdown();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &want).unwrap();
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(have == want, "SUPPORTED_OPS.md is stale; UPDATE_EXPECT=1 rewrites it");
}
