//! A [`Program`] as a folder: `plan.json`, `kernels/*.wgsl`, `weights.safetensors`.
//!
//! The schema is documented in `docs/plan-format.md`. The bytes depend on the program alone.

use crate::Error;
use crate::files::{in_words, read};
use crate::output::Beside;
use crate::tensors::{self, TrueTypes, Unread};
use std::fs;
use std::path::Path;
use wgfc_ir::program::BufferKind;
use wgfc_ir::{Program, Tensor};

/// The plan's file name.
pub const PLAN: &str = "plan.json";
/// The folder of the kernels.
pub const KERNELS: &str = "kernels";
/// The weights' file name.
pub const WEIGHTS: &str = "weights.safetensors";
/// Options of [`save`].
#[derive(Default)]
pub struct SaveOptions<'a> {
    /// Replace a folder even when it holds more than an earlier program.
    pub force: bool,
    /// Called with (bytes written, bytes in all) while the weights are written.
    pub progress: Option<&'a dyn Fn(u64, u64)>,
}

/// Writes `program` as the folder `dir`.
///
/// Everything goes to a temporary folder beside `dir`, which takes its place at the end in one step, so that `dir`
/// is never half written, nor absent where a program was. An earlier program in `dir` is replaced; any other content
/// is refused unless [`SaveOptions::force`]. Absent weights are left out; such a program can be inspected, not run.
pub fn save(program: &Program, dir: &Path, options: &SaveOptions<'_>) -> Result<(), Error> {
    let dir = &std::path::absolute(dir).map_err(|e| crate::files::unreadable(dir, in_words(&e)))?;
    check_replaceable(dir, options.force)?;
    let parent = dir.parent().ok_or_else(|| {
        Error::file_help(dir, "is not a folder that can be written", "choose another output")
    })?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |e: std::io::Error| Error::unwritable(&path, &e)
    };
    let beside = Beside::new(parent).map_err(failed(parent))?;
    let new = beside.join("new");
    fs::create_dir(&new).map_err(failed(&new))?;

    let mut plan = serde_json::to_vec_pretty(program)
        .map_err(|e| Error::Internal(format!("the plan cannot be written as JSON: {e}")))?;
    plan.push(b'\n');
    fs::write(new.join(PLAN), plan).map_err(failed(&dir.join(PLAN)))?;

    let kernels = new.join(KERNELS);
    fs::create_dir(&kernels).map_err(failed(&dir.join(KERNELS)))?;
    for k in &program.kernels {
        if !is_plain_name(&k.name) {
            return Err(Error::Internal(format!("kernel name `{}` cannot be a file's name", k.name)));
        }
        let file = format!("{}.wgsl", k.name);
        fs::write(kernels.join(&file), &k.wgsl).map_err(failed(&dir.join(KERNELS).join(&file)))?;
    }
    write_weights(program, &new.join(WEIGHTS), &dir.join(WEIGHTS), options)?;

    beside.put_folder("new", dir).map_err(|e| match e.kept {
        None => failed(dir)(e.cause),
        Some(kept) => Error::file_help(
            dir,
            format!("cannot be replaced: {}", in_words(&e.cause)),
            format!("its former content is in {}", kept.display()),
        ),
    })
}

/// Refuses to replace what is not ours.
fn check_replaceable(dir: &Path, force: bool) -> Result<(), Error> {
    let Ok(meta) = dir.symlink_metadata() else { return Ok(()) };
    if !meta.is_dir() {
        return Err(Error::file_help(dir, "is there already and is not a folder", "choose another output"));
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

/// Whether `dir` is empty, or holds a program of ours and nothing else.
fn is_program_dir(dir: &Path) -> Result<bool, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| crate::files::unreadable(dir, in_words(&e)))? {
        let entry = entry.map_err(|e| crate::files::unreadable(dir, in_words(&e)))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    if names.is_empty() {
        return Ok(true);
    }
    let ours = names.iter().all(|n| [PLAN, KERNELS, WEIGHTS].contains(&n.as_str()));
    #[derive(serde::Deserialize)]
    struct Producer {
        producer: String,
    }
    let plan = read(&dir.join(PLAN)).ok();
    let made = plan.and_then(|b| serde_json::from_slice::<Producer>(&b).ok());
    Ok(ours && made.is_some_and(|p| p.producer.starts_with("wgfc ")))
}

fn write_weights(
    program: &Program,
    path: &Path,
    shown: &Path,
    options: &SaveOptions<'_>,
) -> Result<(), Error> {
    // Tensors that are safetensors' own need no metadata.
    let metadata = |types: &TrueTypes| match types.is_empty() {
        true => Ok(None),
        false => serde_json::to_string(types).map(Some),
    };
    tensors::write((path, shown), &program.weights, &metadata, options.progress)
}

/// Reads a folder written by [`save`], whoever edited it since, and checks it
/// ([`check`](wgfc_runtime::check::check)). Weights are memory-mapped, see [`map_file`](crate::files::map_file). A folder that is replaced
/// meanwhile is read again.
pub fn load(dir: &Path) -> Result<Program, Error> {
    for _ in 0..REREADS {
        let before = identity(dir);
        let read = read_program(dir);
        if before.is_none() || identity(dir) == before {
            return read;
        }
    }
    read_program(dir)
}

/// How often a folder is read again that others keep replacing.
const REREADS: usize = 100;

/// What tells a folder from another one in its place.
fn identity(dir: &Path) -> Option<(u64, u64, std::time::SystemTime)> {
    let meta = fs::metadata(dir).ok()?;
    #[cfg(unix)]
    let (device, number) =
        (std::os::unix::fs::MetadataExt::dev(&meta), std::os::unix::fs::MetadataExt::ino(&meta));
    #[cfg(not(unix))]
    let (device, number) = (0, 0);
    Some((device, number, meta.modified().ok()?))
}

fn read_program(dir: &Path) -> Result<Program, Error> {
    let path = dir.join(PLAN);
    let text = read(&path).map_err(|m| {
        Error::file_help(&path, m, "give the folder that `wgfc compile` wrote, or a model's file")
    })?;
    #[derive(serde::Deserialize)]
    struct Version {
        version: u64,
    }
    use wgfc_ir::program::{FORMAT_VERSION, OLDEST_VERSION};
    if let Ok(Version { version }) = serde_json::from_slice(&text)
        && !(u64::from(OLDEST_VERSION)..=u64::from(FORMAT_VERSION)).contains(&version)
    {
        return Err(Error::file_help(
            &path,
            format!(
                "is of format version {version}; this wgfc reads versions {OLDEST_VERSION} to {FORMAT_VERSION}"
            ),
            "compile the model again with this wgfc",
        ));
    }
    let mut program: Program =
        serde_json::from_slice(&text).map_err(|e| damaged(&path, vec![format!("is not a plan: {e}")]))?;

    let mut problems = Vec::new();
    for (i, k) in program.kernels.iter_mut().enumerate() {
        if !is_plain_name(&k.name) {
            problems.push(format!("kernels[{i}]: `{}` cannot be a file's name", k.name.escape_debug()));
            continue;
        }
        let file = dir.join(KERNELS).join(format!("{}.wgsl", k.name));
        match read(&file).and_then(|b| String::from_utf8(b).map_err(|_| "is not text".to_owned())) {
            Ok(s) => k.wgsl = s,
            Err(m) => problems.push(format!("kernels[{i}]: {}: {m}", file.display())),
        }
    }
    if !problems.is_empty() {
        return Err(damaged(&path, problems));
    }
    read_weights(&mut program, &dir.join(WEIGHTS))?;
    let problems = wgfc_runtime::check::check(&program);
    if problems.is_empty() { Ok(program) } else { Err(damaged(&path, problems)) }
}

/// Whether `name` can be a file's name anywhere: ASCII letters, digits, `_`, `-`, `.`, not starting with a dot.
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

fn read_weights(program: &mut Program, path: &Path) -> Result<(), Error> {
    let types = |text: &str| serde_json::from_str::<TrueTypes>(text).map_err(|e| e.to_string());
    let read = tensors::read(path, &types).map_err(|e| match e {
        Unread::File(e) => e,
        Unread::Damaged(problems) => damaged(path, problems),
    })?;
    program.weights.extend(read.tensors);
    if program.stats.weights_absent {
        for b in &program.buffers {
            if let (BufferKind::Weight { name }, Some(n)) = (&b.kind, b.elements.as_const())
                && !program.weights.contains_key(name)
            {
                let absent = Tensor::absent(b.dtype, vec![usize::try_from(n).unwrap_or(0)]);
                program.weights.insert(name.clone(), absent);
            }
        }
        for s in &program.states {
            let extents = s.shape.iter().map(|d| usize::try_from(d.as_const()?).ok());
            if let (Some(name), Some(shape)) = (&s.initial, extents.collect())
                && !program.weights.contains_key(name)
            {
                program.weights.insert(name.clone(), Tensor::absent(s.dtype, shape));
            }
        }
    }
    Ok(())
}
