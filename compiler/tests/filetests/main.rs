//! Stages of the compiler on text: each file of `tests/filetests/<stage>/` holds the input of a stage and its
//! expected output. The output is executed and compared with the evaluator before the texts are compared.
//! `README.md` beside this file says how to add a file.

mod kernels;
mod passes;
mod run;
mod witness;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn list(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

fn update() -> bool {
    std::env::var_os("UPDATE_EXPECT").is_some()
}

/// Checks one file, or rewrites it with the new output.
fn check(stage: &str, file: &Path) -> Result<(), String> {
    let differs = match stage {
        "fuse" | "precision" | "schedule" | "emit" | "loops" => kernels::check(stage, file, update())?,
        pass => passes::check(pass, file)?,
    };
    let Some(new) = differs else { return Ok(()) };
    if update() {
        return std::fs::write(file, new).map_err(|e| e.to_string());
    }
    let old = std::fs::read_to_string(file).map_err(|e| e.to_string())?;
    Err(format!("{}UPDATE_EXPECT=1 accepts this", difference(&old, &new)))
}

/// The lines in which two texts differ, with some context around the first one.
fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) =
        (old.trim_end().lines().collect(), new.trim_end().lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - same;
    let behind = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let mut out = format!("line {}:\n", same + 1);
    let all = |out: &mut String, mark: char, lines: &[&str]| {
        for l in lines.iter().take(40) {
            *out += &format!("{mark} {l}\n");
        }
        if lines.len() > 40 {
            *out += &format!("{mark} and {} more\n", lines.len() - 40);
        }
    };
    all(&mut out, ' ', &old[same.saturating_sub(2)..same]);
    all(&mut out, '-', &old[same..old.len() - behind]);
    all(&mut out, '+', &new[same..new.len() - behind]);
    out
}

#[test]
fn stages_do_what_their_files_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let only = std::env::var("WGFC_FILES").unwrap_or_default();
    let folders = list(&root).into_iter().filter(|p| p.is_dir());
    let files: Vec<PathBuf> =
        folders.flat_map(|d| list(&d)).filter(|f| f.to_string_lossy().contains(&only)).collect();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let stage = file.parent().unwrap().file_name().unwrap().to_string_lossy();
                    let start = std::time::Instant::now();
                    if let Err(e) = check(&stage, file) {
                        failures.lock().unwrap().push(format!("{}: {e}", file.display()));
                    }
                    println!("{:.2} s {}", start.elapsed().as_secs_f64(), file.display());
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(files.len() >= 15 || !only.is_empty(), "{} files", files.len());
}
