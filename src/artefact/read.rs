//! Reads programs from files. The files may have been edited since they were written and are not trusted.

use super::recipe::{on_all_cores, path_of, sha256};
use super::{BUNDLE, KERNELS, PLAN, WEIGHTS, damaged, is_plain_name};
use crate::Error;
use crate::files::{map_file, read};
use crate::tensors::{self, Opened, TrueTypes, Unread};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use wgfc_compiler::budget::Budget;
use wgfc_ir::bundle::used;
use wgfc_ir::program::{FORMAT_VERSION, Program};
use wgfc_ir::recipe::{Part, Recipe, Recipes, SourceFile};
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{Bundle, DType, Tensor};

/// Options of [`load_bundle_with`].
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let folder = tempfile::tempdir().unwrap();
/// # let out = folder.path().join("mlp.wgfc");
/// # wgfc::save(&wgfc::compile_file(&path, &Default::default())?, &out, &Default::default())?;
/// use wgfc::artefact::{ReadOptions, load_with};
/// // The program's file comes from elsewhere, and reading it is to take little memory.
/// let options = ReadOptions { memory_limit: Some(64 << 20), ..ReadOptions::default() };
/// let program = load_with(&out, &options)?;
/// assert_eq!(program.inputs[0].name, "x");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Compare the weights with the hashes in the plan. Weights in files outside of the plan's folder are always compared.
    pub verify: bool,
    /// Bytes of memory that reading may take beyond the files themselves; `None` allows an amount that grows with the size
    /// of the files, see [`Budget`].
    pub memory_limit: Option<u64>,
}

impl Default for ReadOptions {
    /// All weights are compared, and memory is bounded by the size of the files.
    fn default() -> ReadOptions {
        ReadOptions { verify: true, memory_limit: None }
    }
}

/// Whether `path` is to be read as a compiled program: it is a folder, a file with the extension of a bundle, or a file that
/// begins as a bundle does.
///
/// ```
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// use wgfc::artefact::is_program;
/// assert!(is_program("model.wgfc".as_ref()));
/// assert!(!is_program(&path), "a model in ONNX");
/// ```
pub fn is_program(path: &Path) -> bool {
    path.is_dir() || path.extension().is_some_and(|e| e == BUNDLE) || begins_as_bundle(path)
}

/// Whether a file begins as a bundle does: with the length of a JSON header that fits the file, followed by `{`.
pub(super) fn begins_as_bundle(path: &Path) -> bool {
    let Ok(meta) = fs::metadata(path) else { return false };
    let mut first = [0; 9];
    let begins = meta.is_file() && fs::File::open(path).is_ok_and(|mut f| f.read_exact(&mut first).is_ok());
    let [length @ .., brace] = first;
    begins && brace == b'{' && u64::from_le_bytes(length) < meta.len()
}

/// Reads a program that [`save`](super::save) or [`save_bundle`](super::save_bundle) wrote and checks it
/// ([`check`](wgfc_runtime::check::check)), as the files may have been edited since. Weights are memory-mapped, see
/// [`map_file`]. A folder that is replaced while it is read is read again. Of a bundle with several plans, the first is
/// returned.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let folder = tempfile::tempdir().unwrap();
/// # let out = folder.path().join("mlp.wgfc");
/// # wgfc::save(&wgfc::compile_file(&path, &Default::default())?, &out, &Default::default())?;
/// let program = wgfc::load(&out)?;
/// assert_eq!(program.outputs[0].name, "probabilities");
/// # Ok(()) }
/// ```
pub fn load(path: &Path) -> Result<Program, Error> {
    load_with(path, &ReadOptions::default())
}

/// [`load`] with options.
pub fn load_with(path: &Path, options: &ReadOptions) -> Result<Program, Error> {
    let first = load_bundle_with(path, options)?.plans.into_iter().next();
    first.map(|p| p.program).ok_or_else(|| damaged(path, vec!["has no plan".to_owned()]))
}

/// Reads a bundle with all of its plans, otherwise as [`load`].
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let folder = tempfile::tempdir().unwrap();
/// # let out = folder.path().join("mlp.wgfc");
/// # wgfc::save(&wgfc::compile_file(&path, &Default::default())?, &out, &Default::default())?;
/// for plan in wgfc::load_bundle(&out)?.plans {
///     println!("{} needs {:?}", plan.name, plan.needs.features);
/// }
/// # Ok(()) }
/// ```
pub fn load_bundle(path: &Path) -> Result<Bundle, Error> {
    load_bundle_with(path, &ReadOptions::default())
}

/// [`load_bundle`] with options. See the example of [`load_with`].
pub fn load_bundle_with(path: &Path, options: &ReadOptions) -> Result<Bundle, Error> {
    if !path.is_dir() && is_program(path) {
        return Source::file(path, options)?.bundle(options);
    }
    for _ in 0..REREADS {
        let before = identity(path);
        let read = Source::folder(path, options).bundle(options);
        if before.is_none() || identity(path) == before {
            return read;
        }
    }
    Source::folder(path, options).bundle(options)
}

/// The files beside a compiled program that hold its weights, as paths relative to the folder of the plan.
///
/// # Errors
/// `path` is no compiled program, or it gives a file a name that is not a relative path.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path();
/// # let program = wgfc::compile_file(&path, &Default::default())?;
/// use wgfc::artefact::sources;
/// let out = folder.join("mlp");
/// wgfc::save(&program, &out, &Default::default())?;
/// println!("{:?}", sources(&out)?);
/// // All weights of a bundle in one file are inside of it.
/// wgfc::save(&program, &folder.join("mlp.wgfc"), &Default::default())?;
/// assert!(sources(&folder.join("mlp.wgfc"))?.is_empty());
/// # Ok(()) }
/// ```
pub fn sources(path: &Path) -> Result<Vec<PathBuf>, Error> {
    #[derive(serde::Deserialize)]
    struct Of {
        weights: Option<Files>,
    }
    #[derive(serde::Deserialize)]
    struct Files {
        files: Vec<SourceFile>,
    }
    let options = ReadOptions::default();
    let source = if path.is_dir() { Source::folder(path, &options) } else { Source::file(path, &options)? };
    let of: Of = source.json(&source.plan_text()?)?;
    let files = of.weights.map(|w| w.files).unwrap_or_default();
    let named = files.iter().filter(|f| !f.name.is_empty());
    let path = |f: &SourceFile| {
        path_of(&f.name).map_err(|m| source.damaged(format!("weights: file `{}` {m}", f.name.escape_debug())))
    };
    named.map(path).collect()
}

/// How often a folder is read again if other processes keep replacing it.
const REREADS: usize = 100;

/// Device, inode and modification time of a folder, by which a replaced folder is recognised.
fn identity(dir: &Path) -> Option<(u64, u64, std::time::SystemTime)> {
    let meta = fs::metadata(dir).ok()?;
    #[cfg(unix)]
    let (device, number) =
        (std::os::unix::fs::MetadataExt::dev(&meta), std::os::unix::fs::MetadataExt::ino(&meta));
    #[cfg(not(unix))]
    let (device, number) = (0, 0);
    Some((device, number, meta.modified().ok()?))
}

/// The place from which a plan, its kernels and its weights are read.
struct Source {
    /// The path of the plan, for messages.
    plan: PathBuf,
    /// The folder to which names of files are relative.
    folder: PathBuf,
    /// The opened bundle, if the program is one file.
    file: Option<Opened>,
    budget: Budget,
}

/// The version field of a plan, which is read before the rest of it.
#[derive(serde::Deserialize)]
struct Version {
    version: u64,
}

impl Source {
    fn folder(dir: &Path, options: &ReadOptions) -> Source {
        let plan = dir.join(PLAN);
        let bytes = fs::metadata(&plan).map_or(0, |m| m.len());
        let budget = Budget::new(bytes, options.memory_limit);
        Source { plan, folder: dir.to_owned(), file: None, budget }
    }

    fn file(path: &Path, options: &ReadOptions) -> Result<Source, Error> {
        let budget = Budget::new(0, options.memory_limit);
        let file = tensors::open(path, &budget).map_err(|e| match e {
            Unread::File(e) => e,
            Unread::Damaged(problems) => Error::File {
                path: path.to_owned(),
                problems,
                help: Some(
                    "it is cut short or damaged; copy or download it again, or compile the model again"
                        .into(),
                ),
            },
        })?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Source { plan: path.to_owned(), folder: parent.to_owned(), file: Some(file), budget })
    }

    /// Takes memory from the budget.
    fn take(&self, bytes: u64, what: impl std::fmt::Display) -> Result<(), Error> {
        self.budget.take(bytes, what).map_err(|d| over(&self.plan, d))
    }

    /// Parses JSON, within the budget.
    fn json<T: serde::de::DeserializeOwned>(&self, text: &str) -> Result<T, Error> {
        self.budget.take_json(text.as_bytes()).map_err(|d| over(&self.plan, d))?;
        serde_json::from_str(text)
            .map_err(|e| self.damaged(format!("is not a plan: {}", wgfc_compiler::json_in_words(&e))))
    }

    /// The text of a file of the program: a file in the folder, or a metadata entry of the bundle.
    fn text(&self, name: &str) -> Result<String, String> {
        match &self.file {
            Some(f) => f.text(name).map(str::to_owned).ok_or_else(|| format!("has no entry `{name}`")),
            None => {
                let path = self.folder.join(name);
                let bytes = read(&path)?;
                String::from_utf8(bytes).map_err(|_| "is not text".to_owned())
            }
        }
    }

    fn damaged(&self, problem: impl Into<String>) -> Error {
        damaged(&self.plan, vec![problem.into()])
    }

    fn plan_text(&self) -> Result<String, Error> {
        self.text(PLAN).map_err(|m| match &self.file {
            Some(_) => Error::file_help(
                &self.plan,
                format!("{m}, so it is not a compiled program"),
                "give what `wgfc compile` wrote, or a model's file",
            ),
            None => Error::file_help(
                &self.plan,
                m,
                "give the folder that `wgfc compile` wrote, or a model's file",
            ),
        })
    }

    fn bundle(&self, options: &ReadOptions) -> Result<Bundle, Error> {
        let text = self.plan_text()?;
        let Version { version } = serde_json::from_str(&text)
            .map_err(|e| self.damaged(format!("is not a plan: {}", wgfc_compiler::json_in_words(&e))))?;
        if version != u64::from(FORMAT_VERSION) {
            let help = match version > u64::from(FORMAT_VERSION) {
                true => "update wgfc, or compile the model again with this version of it",
                false => "compile the model again with this version of wgfc",
            };
            let says = format!("is of format version {version}; this wgfc reads version {FORMAT_VERSION}");
            return Err(Error::file_help(&self.plan, says, help));
        }
        let mut bundle: Bundle = self.json(&text)?;
        if bundle.plans.is_empty() {
            return Err(self.damaged("has no plan"));
        }
        self.kernels(&mut bundle)?;
        self.weights(&mut bundle, options)?;
        let mut problems = vec![];
        for plan in &bundle.plans {
            let of = if bundle.plans.len() > 1 { format!("plan \"{}\": ", plan.name) } else { String::new() };
            problems.extend(wgfc_runtime::check::check(&plan.program).into_iter().map(|p| of.clone() + &p));
        }
        if problems.is_empty() { Ok(bundle) } else { Err(damaged(&self.plan, problems)) }
    }

    /// Reads the texts of the kernels. Kernels of the same name share one text.
    fn kernels(&self, bundle: &mut Bundle) -> Result<(), Error> {
        let mut texts: BTreeMap<String, String> = BTreeMap::new();
        let mut problems = Vec::new();
        for (p, plan) in bundle.plans.iter_mut().enumerate() {
            for (i, k) in plan.program.kernels.iter_mut().enumerate() {
                let at = if p == 0 { format!("kernels[{i}]") } else { format!("plans[{p}].kernels[{i}]") };
                if !is_plain_name(&k.name) {
                    problems.push(format!("{at}: `{}` cannot be a file's name", k.name.escape_debug()));
                    continue;
                }
                if let Some(known) = texts.get(&k.name) {
                    self.take(known.len() as u64, format_args!("the text of kernel `{}`", k.name))?;
                    k.wgsl.clone_from(known);
                    continue;
                }
                let name = format!("{KERNELS}/{}.wgsl", k.name);
                match self.text(&name) {
                    Ok(s) => {
                        texts.insert(k.name.clone(), s.clone());
                        k.wgsl = s;
                    }
                    Err(m) => problems.push(format!("{at}: {}: {m}", self.folder.join(&name).display())),
                }
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(damaged(&self.plan, problems)) }
    }

    /// Gives each plan the weights that it uses.
    fn weights(&self, bundle: &mut Bundle, options: &ReadOptions) -> Result<(), Error> {
        let wanted: BTreeSet<String> =
            bundle.plans.iter().flat_map(|p| used(&p.program)).map(str::to_owned).collect();
        let recipes = bundle.weights.take().unwrap_or_default();
        let mut store = self.cooked(&recipes, &wanted, options)?;
        // A weight without a recipe is the tensor of the same name in the file beside the plan.
        let path = self.folder.join(WEIGHTS);
        let rest = wanted.iter().any(|n| !store.contains_key(n));
        let beside = match &self.file {
            Some(f) if rest => own_tensors(f).map_err(|p| damaged(&self.plan, p))?,
            None if rest => {
                let opened =
                    tensors::open(&path, &self.budget).and_then(|f| own_tensors(&f).map_err(Unread::Damaged));
                opened.map_err(|e| match e {
                    Unread::File(e) => e,
                    Unread::Damaged(problems) => damaged(&path, problems),
                })?
            }
            _ => BTreeMap::new(),
        };
        for (name, tensor) in beside {
            store.entry(name).or_insert(tensor);
        }
        for plan in &mut bundle.plans {
            let p = &mut plan.program;
            let own = used(p).into_iter().filter_map(|n| Some((n.to_owned(), store.get(n)?.clone())));
            p.weights = own.collect();
            if p.stats.weights_absent {
                absent(p);
            }
        }
        Ok(())
    }

    /// The weights in `wanted` that recipes describe, checked against their hashes.
    fn cooked(
        &self,
        recipes: &Recipes,
        wanted: &BTreeSet<String>,
        options: &ReadOptions,
    ) -> Result<BTreeMap<String, Tensor>, Error> {
        let mut files: Vec<Option<Mapped>> = recipes.files.iter().map(|_| None).collect();
        let mut made = BTreeMap::new();
        let mut to_compare: Vec<(&str, &Part, Arc<dyn ByteOwner>)> = vec![];
        let mut problems = vec![];
        for (name, recipe) in recipes.tensors.iter().filter(|(n, _)| wanted.contains(*n)) {
            let at = format!("weights: tensor `{}`", name.escape_debug());
            let columns = match recipe.columns(&recipes.files) {
                Ok(c) => c,
                Err(m) => {
                    problems.push(format!("{at}: {m}"));
                    continue;
                }
            };
            let mut pieces = vec![];
            for part in &recipe.parts {
                let (Some(slot), Some(file)) = (files.get_mut(part.file), recipes.files.get(part.file))
                else {
                    continue;
                };
                let mapped = match slot {
                    Some(m) => m,
                    None => slot.insert(self.map(file)?),
                };
                if mapped.outside && part.sha256.is_none() {
                    problems.push(format!(
                        "{at}: a part in {} has no hash, which one of a file outside of the plan's folder must have",
                        mapped.path.display()
                    ));
                }
                if part.sha256.is_some() && (options.verify || mapped.outside) {
                    to_compare.push((name, part, mapped.owner.clone()));
                }
                let (offset, len) = (part.offset as usize, part.bytes as usize);
                match Tensor::shared(DType::U8, vec![len], mapped.owner.clone(), offset, len) {
                    Ok(t) => pieces.push(t),
                    Err(m) => problems.push(format!("{at}: {m}")),
                }
            }
            if pieces.len() < recipe.parts.len() {
                continue;
            }
            let bytes = pieces.iter().filter_map(Tensor::byte_len).sum::<usize>();
            self.take(bytes as u64, format_args!("weight `{}`", name.escape_debug()))?;
            match put_together(recipe, &columns, &pieces) {
                // Parts that match their hashes were checked for overflow when the model was compiled.
                Ok(t)
                    if recipe.from.is_some()
                        && recipe.parts.iter().any(|p| p.sha256.is_none())
                        && t.overflows_in_half() =>
                {
                    problems.push(format!("{at}: a value is beyond f16, which it is to be rounded to"));
                }
                Ok(t) => {
                    let t = if recipe.from.is_some() { t.in_half() } else { t };
                    made.insert(name.clone(), t);
                }
                Err(m) => problems.push(format!("{at}: {m}")),
            }
        }
        if !problems.is_empty() {
            return Err(damaged(&self.plan, problems));
        }
        let same = on_all_cores(&to_compare, |(_, part, owner)| {
            let end = part.offset + part.bytes;
            let bytes = (**owner).as_ref().get(part.offset as usize..end as usize).unwrap_or_default();
            part.sha256.as_deref().is_some_and(|h| h.eq_ignore_ascii_case(&sha256(|hash| hash(bytes))))
        });
        for ((name, part, _), _) in to_compare.iter().zip(&same).filter(|(_, same)| !**same) {
            let file = files.get(part.file).and_then(Option::as_ref);
            let path = file.map_or(&self.plan, |f| &f.path);
            problems.push(format!(
                "tensor `{}`: bytes {} to {} are not those that were compiled: their hash differs",
                name.escape_debug(),
                part.offset,
                part.offset + part.bytes
            ));
            if problems.len() == MOST_SAID || problems.len() == same.iter().filter(|s| !**s).count() {
                return Err(Error::File {
                    path: path.clone(),
                    problems,
                    help: Some("it was changed or damaged after it was compiled; copy or download it again, or compile the model again".into()),
                });
            }
        }
        match same.len() == to_compare.len() {
            true => Ok(made),
            false => Err(Error::Internal("a thread that hashes weights panicked".into())),
        }
    }

    /// Maps a file that holds parts of weights.
    fn map(&self, file: &SourceFile) -> Result<Mapped, Error> {
        if file.name.is_empty() {
            let Some(own) = &self.file else {
                return Err(self.damaged("weights: a file has no name, which only that of a bundle can be"));
            };
            let mapped = Mapped { path: self.plan.clone(), owner: own.owner.clone(), outside: false };
            return mapped.of(file);
        }
        let bad = |m: String| self.damaged(format!("weights: file `{}` {m}", file.name.escape_debug()));
        let relative = path_of(&file.name).map_err(bad)?;
        let outside = !relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        let path = self.folder.join(relative);
        let owner = map_file(&path).map_err(|e| match e {
            Error::File { path, problems, .. } => Error::File {
                path,
                problems: problems
                    .into_iter()
                    .map(|p| format!("{p}; the plan's weights are in it"))
                    .collect(),
                help: Some("put the file there, or compile the model again".into()),
            },
            e => e,
        })?;
        self.budget.add_file((*owner).as_ref().len() as u64);
        Mapped { path, owner, outside }.of(file)
    }
}

/// The error for a file that exceeds the budget.
fn over(path: &Path, d: wgfc_compiler::Diagnostic) -> Error {
    Error::File { path: path.to_owned(), problems: vec![d.message], help: d.help }
}

/// The most problems of one kind that are listed.
const MOST_SAID: usize = 8;

/// A mapped file that holds parts of weights.
struct Mapped {
    path: PathBuf,
    owner: Arc<dyn ByteOwner>,
    /// Whether it is outside of the plan's folder.
    outside: bool,
}

impl Mapped {
    /// Returns `self` if the file has the size that the plan gives for it.
    fn of(self, file: &SourceFile) -> Result<Mapped, Error> {
        let have = (*self.owner).as_ref().len() as u64;
        if have == file.bytes {
            return Ok(self);
        }
        Err(Error::file_help(
            &self.path,
            format!(
                "has {have} bytes, and had {} when it was compiled; the plan's weights are in it",
                file.bytes
            ),
            "copy or download it again, or compile the model again",
        ))
    }
}

/// The tensor that a recipe describes, made of its parts, which `columns` groups into columns. Its type is the one that it
/// has in the files.
fn put_together(recipe: &Recipe, columns: &[Range<usize>], parts: &[Tensor]) -> Result<Tensor, String> {
    let pieces = |r: &Range<usize>| one_behind_the_other(parts.get(r.clone()).unwrap_or_default());
    if let Some(blocks) = &recipe.derived {
        let bytes = parts.iter().filter_map(Tensor::byte_len).sum();
        let blocks_of = Tensor::of_pieces(DType::U8, vec![bytes], pieces(&(0..parts.len())))?;
        return blocks_of.derived(blocks.derivation()?, recipe.dtype, recipe.shape.clone());
    }
    if columns.len() <= 1 {
        return Tensor::of_pieces(recipe.stored(), recipe.shape.clone(), pieces(&(0..parts.len())));
    }
    let column = |r: &Range<usize>| {
        let pieces = pieces(r);
        let bytes = pieces.iter().filter_map(Tensor::byte_len).sum();
        Tensor::of_pieces(DType::U8, vec![bytes], pieces)
    };
    let all = columns.iter().map(column).collect::<Result<Vec<Tensor>, String>>()?;
    Tensor::of_columns(recipe.stored(), recipe.shape.clone(), recipe.rows as usize, all)
}

/// The pieces in order; neighbours that are contiguous in the same file are joined.
fn one_behind_the_other(pieces: &[Tensor]) -> Vec<Tensor> {
    use wgfc_ir::tensor::Data;
    let mut all: Vec<Tensor> = vec![];
    for p in pieces {
        if let Some(Tensor { data: Data::Bytes { owner, offset, len }, shape, .. }) = all.last_mut()
            && let Data::Bytes { owner: next, offset: begin, len: more } = &p.data
            && Arc::ptr_eq(owner, next)
            && *offset + *len == *begin
        {
            *len += more;
            *shape = vec![*len];
        } else {
            all.push(p.clone());
        }
    }
    all
}

/// The tensors of a safetensors file: the weights beside a plan, or a bundle in one file.
fn own_tensors(file: &Opened) -> Result<BTreeMap<String, Tensor>, Vec<String>> {
    file.tensors(&|text| {
        serde_json::from_str::<TrueTypes>(text).map_err(|e| wgfc_compiler::json_in_words(&e))
    })
}

/// Gives a program that was compiled without its weights tensors without values in place of the missing ones.
fn absent(p: &mut Program) {
    use wgfc_ir::program::BufferKind;
    for b in &p.buffers {
        if let (BufferKind::Weight { name }, Some(n)) = (&b.kind, b.elements.as_const())
            && !p.weights.contains_key(name)
        {
            let absent = Tensor::absent(b.dtype, vec![usize::try_from(n).unwrap_or(0)]);
            p.weights.insert(name.clone(), absent);
        }
    }
    for s in &p.states {
        let extents = s.shape.iter().map(|d| usize::try_from(d.as_const()?).ok());
        if let (Some(name), Some(shape)) = (&s.initial, extents.collect())
            && !p.weights.contains_key(name)
        {
            p.weights.insert(name.clone(), Tensor::absent(s.dtype, shape));
        }
    }
}
