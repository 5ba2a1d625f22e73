//! Lists the files of the playground, where it was built, for the command line to hold: `web/playground/build.mjs` builds it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let dist = root.join("web/playground/dist");
    println!("cargo::rerun-if-changed=build.rs");
    // A folder that is not there would count as changed each time.
    println!(
        "cargo::rerun-if-changed={}",
        if dist.is_dir() { "web/playground/dist" } else { "web/playground" }
    );
    let mut files = vec![];
    if std::env::var_os("CARGO_FEATURE_CLI").is_some() {
        list(&dist, "", &mut files);
    }
    files.sort();
    let mut text = String::from("&[\n");
    for name in files {
        let path = dist.join(&name);
        let _ = writeln!(text, "({name:?}, include_bytes!({:?}).as_slice()),", path.display().to_string());
    }
    text.push(']');
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    if let Err(e) = std::fs::write(out.join("playground.rs"), text) {
        println!("cargo::error=the list of the playground's files cannot be written: {e}");
    }
}

/// The files in a folder and below it, by their names relative to it.
fn list(folder: &Path, prefix: &str, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        match entry.path() {
            path if path.is_dir() => list(&path, &format!("{prefix}{name}/"), into),
            path if path.is_file() => into.push(format!("{prefix}{name}")),
            _ => {}
        }
    }
}
