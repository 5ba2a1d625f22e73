//! Programs as files: a folder with `plan.json`, `kernels/*.wgsl` and `weights.safetensors`, or all of that in one file.
//!
//! `docs/plan-format.md` describes both. The bytes depend on the program and the options alone.

mod read;
mod recipe;
mod write;

use crate::Error;
use crate::files::{in_words, read};
use crate::output::Beside;
use crate::source::ModelFile;
use std::fs;
use std::path::Path;
use wgfc_ir::Bundle;
use wgfc_ir::program::Program;

pub use read::{ReadOptions, is_program, load, load_bundle, load_bundle_with, load_with, sources};
pub(crate) use recipe::{Originals, sha256};

/// The plan's file name.
pub const PLAN: &str = "plan.json";
/// The folder of the kernels.
pub const KERNELS: &str = "kernels";
/// The weights' file name.
pub const WEIGHTS: &str = "weights.safetensors";
/// The extension of a bundle in one file.
pub const BUNDLE: &str = "wgfc";

/// Options of [`save`] and [`save_bundle`].
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let folder = tempfile::tempdir().unwrap();
/// # let out = folder.path().join("out");
/// use wgfc::{ModelFile, Options, SaveOptions};
/// let file = ModelFile::open(&path)?;
/// let program = file.compile(&Options::default())?;
/// // Weights stay in the model's file, to which the plan refers.
/// wgfc::save(&program, &out, &SaveOptions { model: Some(&file), ..SaveOptions::default() })?;
/// assert_eq!(wgfc::load(&out)?.outputs, program.outputs);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Default)]
pub struct SaveOptions<'a> {
    /// Replace a folder even when it holds more than an earlier program.
    pub force: bool,
    /// Called with (bytes written, total bytes) while the weights are written.
    pub progress: Option<&'a dyn Fn(u64, u64)>,
    /// In a folder, split the weights into files of at most about this many bytes.
    pub shard_size: Option<u64>,
    /// The model that was compiled. Weights whose bytes are in its files are not copied; the plan refers to these files
    /// instead.
    pub model: Option<&'a ModelFile>,
    /// Further files to write into a folder, as (name, bytes). Only the names in [`BESIDE`] are written; the others are
    /// ignored.
    pub beside: &'a [(String, Vec<u8>)],
}

/// The names of a decoder's files that may lie in the folder of its plan: its tokenizer, its configuration and its chat
/// template.
pub const BESIDE: [&str; 4] = [
    crate::generate::TOKENIZER,
    crate::generate::CONFIG,
    crate::generate::TOKENIZER_CONFIG,
    crate::generate::ADDED_TEMPLATE,
];

/// Writes `program` as the folder `path`, or as one file if `path` ends in `.wgfc`.
///
/// Everything is written to a temporary folder beside `path` and moved to `path` in one step at the end. `path` is therefore
/// never half written, and an earlier program there is never missing. An earlier program in `path` is replaced; any other
/// content is refused unless [`SaveOptions::force`]. Absent weights are left out; such a program can be inspected, not run.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path();
/// use wgfc::{Options, SaveOptions};
/// let program = wgfc::compile_file(&path, &Options::default())?;
/// wgfc::save(&program, &folder.join("mlp"), &SaveOptions::default())?;
/// wgfc::save(&program, &folder.join("mlp.wgfc"), &SaveOptions::default())?;
/// assert!(folder.join("mlp/plan.json").is_file() && folder.join("mlp.wgfc").is_file());
/// # Ok(()) }
/// ```
pub fn save(program: &Program, path: &Path, options: &SaveOptions<'_>) -> Result<(), Error> {
    save_bundle(&Bundle::new(vec![(String::new(), program.clone())]), path, options)
}

/// Writes a bundle in the same way as [`save`] writes a program.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let folder = tempfile::tempdir().unwrap();
/// # let out = folder.path().join("mlp.wgfc");
/// use wgfc::{Bundle, Options, SaveOptions};
/// let compile = |batch| {
///     let dims = [("batch".to_owned(), batch)].into();
///     wgfc::compile_file(&path, &Options { dims, ..Options::default() })
/// };
/// // A run takes the first plan that fits its inputs.
/// let bundle = Bundle::new(vec![("one".to_owned(), compile(1)?), ("eight".to_owned(), compile(8)?)]);
/// wgfc::save_bundle(&bundle, &out, &SaveOptions::default())?;
/// assert_eq!(wgfc::load_bundle(&out)?.plans.len(), 2);
/// # Ok(()) }
/// ```
pub fn save_bundle(bundle: &Bundle, path: &Path, options: &SaveOptions<'_>) -> Result<(), Error> {
    if !is_file_name(path) {
        return put_folder(bundle, path, options);
    }
    if options.shard_size.is_some() {
        return Err(Error::usage(
            format!("{} is one file, whose weights cannot be shared out to several", path.display()),
            "name a folder, or leave out the size of shards",
        ));
    }
    let path = &absolute(path)?;
    check_replaceable_file(path, options)?;
    let parent = parent(path)?;
    let beside = Beside::new(parent).map_err(|e| Error::unwritable(parent, &e))?;
    write::file(bundle, &beside.join("file"), parent, path, options)?;
    beside.put_file("file", path).map_err(|e| Error::unwritable(path, &e))
}

/// Fails if [`save_bundle`] would refuse to replace the content of `path`, so that a caller can check before it compiles.
///
/// # Errors
/// `path` holds something other than a compiled program, and [`SaveOptions::force`] is not set.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path();
/// use wgfc::SaveOptions;
/// use wgfc::artefact::check_output;
/// check_output(&folder.join("new"), &SaveOptions::default())?;
/// std::fs::write(folder.join("notes.txt"), "mine").unwrap();
/// // The folder holds something else.
/// assert!(check_output(folder, &SaveOptions::default()).is_err());
/// assert!(check_output(folder, &SaveOptions { force: true, ..SaveOptions::default() }).is_ok());
/// # Ok(()) }
/// ```
pub fn check_output(path: &Path, options: &SaveOptions<'_>) -> Result<(), Error> {
    let path = &absolute(path)?;
    match is_file_name(path) {
        true => check_replaceable_file(path, options),
        false => check_replaceable(path, options.force),
    }
}

/// Whether a path names a bundle in one file: it has the extension `.wgfc` and is no folder.
fn is_file_name(path: &Path) -> bool {
    !path.is_dir() && path.extension().is_some_and(|e| e == BUNDLE)
}

fn absolute(path: &Path) -> Result<std::path::PathBuf, Error> {
    std::path::absolute(path).map_err(|e| crate::files::unreadable(path, in_words(&e)))
}

fn parent(path: &Path) -> Result<&Path, Error> {
    path.parent()
        .ok_or_else(|| Error::file_help(path, "is not a place that can be written", "choose another output"))
}

/// Writes a bundle as the folder `dir`.
fn put_folder(bundle: &Bundle, dir: &Path, options: &SaveOptions<'_>) -> Result<(), Error> {
    let dir = &absolute(dir)?;
    check_replaceable(dir, options.force)?;
    check_originals(dir, options)?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |e: std::io::Error| Error::unwritable(&path, &e)
    };
    let parent = parent(dir)?;
    let beside = Beside::new(parent).map_err(failed(parent))?;
    let new = beside.join("new");
    fs::create_dir(&new).map_err(failed(&new))?;
    write::folder(bundle, &new, dir, options)?;
    for (name, bytes) in options.beside.iter().filter(|(n, _)| BESIDE.contains(&n.as_str())) {
        fs::write(new.join(name), bytes).map_err(failed(&dir.join(name)))?;
    }
    beside.put_folder("new", dir).map_err(|e| match e.kept {
        None => failed(dir)(e.cause),
        Some(kept) => Error::file_help(
            dir,
            format!("cannot be replaced: {}", in_words(&e.cause)),
            format!("its former content is in {}", kept.display()),
        ),
    })
}

/// Refuses to replace a file of the model that the new plan would refer to, or a folder that holds one.
fn check_originals(place: &Path, options: &SaveOptions<'_>) -> Result<(), Error> {
    let Ok(place) = place.canonicalize() else { return Ok(()) };
    let files = options.model.map(ModelFile::originals).unwrap_or(Originals(vec![]));
    let inside = |p: &Path| p.canonicalize().is_ok_and(|p| p.starts_with(&place));
    match files.0.iter().find(|(p, _)| inside(p)) {
        Some((p, _)) => Err(Error::file_help(
            &place,
            format!("holds {}, which the plan would refer to", p.display()),
            "choose another output",
        )),
        None => Ok(()),
    }
}

/// Refuses to replace a file that is not a bundle, unless `force` is set.
fn check_replaceable_file(path: &Path, options: &SaveOptions<'_>) -> Result<(), Error> {
    check_originals(path, options)?;
    let Ok(meta) = path.symlink_metadata() else { return Ok(()) };
    if options.force && !meta.is_dir() || meta.is_file() && read::begins_as_bundle(path) {
        return Ok(());
    }
    Err(Error::file_help(
        path,
        "exists already and is not a compiled program",
        "choose another output, or replace it with --force",
    ))
}

/// Refuses to replace a folder that holds anything but a compiled program, unless `force` is set.
fn check_replaceable(dir: &Path, force: bool) -> Result<(), Error> {
    let Ok(meta) = dir.symlink_metadata() else { return Ok(()) };
    if !meta.is_dir() {
        return Err(Error::file_help(dir, "exists already and is not a folder", "choose another output"));
    }
    let inside =
        |p: &Path| p.canonicalize().ok().zip(dir.canonicalize().ok()).is_some_and(|(p, d)| p.starts_with(d));
    if std::env::current_dir().is_ok_and(|c| inside(&c)) {
        return Err(Error::file_help(
            dir,
            "holds the current folder and cannot be replaced",
            "choose another output",
        ));
    }
    if force || is_program_dir(dir)? {
        return Ok(());
    }
    Err(Error::file_help(
        dir,
        "is there already and holds more than a compiled program",
        "choose another output, or replace the whole folder with --force",
    ))
}

/// Whether `dir` is empty, or holds nothing but a program that wgfc wrote.
fn is_program_dir(dir: &Path) -> Result<bool, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| crate::files::unreadable(dir, in_words(&e)))? {
        let entry = entry.map_err(|e| crate::files::unreadable(dir, in_words(&e)))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    if names.is_empty() {
        return Ok(true);
    }
    let ours = names
        .iter()
        .map(String::as_str)
        .all(|n| [PLAN, KERNELS, WEIGHTS].contains(&n) || BESIDE.contains(&n) || write::is_shard(n));
    #[derive(serde::Deserialize)]
    struct Producer {
        producer: String,
    }
    let plan = read(&dir.join(PLAN)).ok();
    let made = plan.and_then(|b| serde_json::from_slice::<Producer>(&b).ok());
    Ok(ours && made.is_some_and(|p| p.producer.starts_with("wgfc ")))
}

/// Whether a file is part of a program that is a folder; `name` is the file's path below that folder.
///
/// ```
/// use wgfc::artefact::is_part;
/// assert!(is_part("plan.json") && is_part("kernels/gemm_1.wgsl"));
/// assert!(!is_part("notes.txt"));
/// ```
pub fn is_part(name: &str) -> bool {
    let kernel = || {
        let name = name.strip_prefix(KERNELS)?.strip_prefix('/')?;
        Some(is_plain_name(name) && name.ends_with(".wgsl"))
    };
    [PLAN, WEIGHTS].contains(&name)
        || BESIDE.contains(&name)
        || write::is_shard(name)
        || kernel().unwrap_or(false)
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
}

fn damaged(path: &Path, problems: Vec<String>) -> Error {
    let help = "it was edited or damaged after it was written; compile the model again";
    Error::File { path: path.to_owned(), problems, help: Some(help.into()) }
}
