//! What the folder must not know.

use std::path::{Path, PathBuf};

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("lower/tests.rs") {
            out.push(path);
        }
    }
}

/// Another format adds decoding only: nothing here reads a message, an attribute or a version of an operator.
#[test]
fn lowering_knows_no_format() {
    let mut files = vec![];
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lower"), &mut files);
    assert!(files.len() > 30, "{} files", files.len());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for (i, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            for word in ["onnx", "prost", "proto", "import::", "opset", "attribute"] {
                assert!(!lower.contains(word), "{}:{}: `{word}` in: {line}", file.display(), i + 1);
            }
        }
    }
}
