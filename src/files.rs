//! Reads a model and its external data.

use crate::Error;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use wgfc_compiler::import::ExternalData;
use wgfc_ir::mapped::{Mapped, Pages};
use wgfc_ir::tensor::ByteOwner;

/// Maps a file into memory. Its bytes are read when they are first accessed.
///
/// The mapping lives as long as any tensor that refers to it. If another process shortens the file meanwhile, this process
/// is killed, as with every memory-mapped file: replace such files by renaming a new one over them instead of writing into
/// them.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// let bytes = wgfc::files::map_file(&path)?;
/// println!("{} bytes", (*bytes).as_ref().len());
/// # Ok(()) }
/// ```
pub fn map_file(path: &Path) -> Result<Arc<dyn ByteOwner>, Error> {
    map(path).map_err(|m| unreadable(path, m))
}

/// The error of a file that cannot be read, with advice.
pub(crate) fn unreadable(path: &Path, message: String) -> Error {
    let help = match message.as_str() {
        ABSENT => "check the path; it is relative to the current folder",
        FOLDER => "give a file in it",
        DENIED => "change its permissions, or copy it to a folder that you can read",
        _ => "give a regular file; input from a pipe is read from /dev/stdin",
    };
    Error::file_help(path, message, help)
}

const ABSENT: &str = "no such file";
const FOLDER: &str = "is a folder, not a file";
const DENIED: &str = "permission denied";

/// The bytes of a file.
///
/// ```
/// use wgfc::files::read;
/// assert_eq!(read("absent.onnx".as_ref()), Err("no such file".to_owned()));
/// ```
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut open(path)?.0, &mut bytes).map_err(|e| in_words(&e))?;
    Ok(bytes)
}

/// Opens a file that has an end: a regular file, or a pipe that this process already has open. Opening a named pipe would
/// block until another process writes to it, and a device may have no end.
fn open(path: &Path) -> Result<(File, std::fs::Metadata), String> {
    let meta = std::fs::metadata(path).map_err(|e| in_words(&e))?;
    if meta.is_dir() {
        return Err(FOLDER.into());
    }
    let pipe = is_handed_over(path) && kind(&meta) == PIPE;
    if !meta.is_file() && !pipe {
        return Err(format!("is {}, not a regular file", kind(&meta)));
    }
    let file = File::open(path).map_err(|e| in_words(&e))?;
    Ok((file, meta))
}

/// Whether the path names a file that this process has open, as do `/dev/stdin` and the path of a shell's `<(…)`.
fn is_handed_over(path: &Path) -> bool {
    path == Path::new("/dev/stdin") || ["/dev/fd", "/proc/self/fd"].iter().any(|p| path.starts_with(p))
}

const PIPE: &str = "a pipe";

fn kind(meta: &std::fs::Metadata) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let t = meta.file_type();
        if t.is_fifo() {
            return PIPE;
        }
        if t.is_socket() {
            return "a socket";
        }
    }
    let _ = meta;
    "a device"
}

fn map(path: &Path) -> Result<Arc<dyn ByteOwner>, String> {
    let (file, meta) = open(path)?;
    if !meta.is_file() {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut { file }, &mut bytes).map_err(|e| in_words(&e))?;
        return Ok(Arc::new(bytes));
    }
    if meta.len() == 0 {
        return Ok(Arc::new(Vec::new()));
    }
    // SAFETY: the mapping is read-only. Its other requirement, that the file keeps its length, is documented in
    // `map_file`.
    let mapped = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| in_words(&e))?;
    Ok(Arc::new(Mapped::new(Box::new(Map(mapped)))))
}

/// A mapping of a file.
struct Map(memmap2::Mmap);

impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Pages for Map {
    fn release(&self, range: Range<usize>) {
        /// A multiple of the size of a page, whatever that is.
        const WHOLE: usize = 64 << 10;
        let (begin, end) = (range.start.next_multiple_of(WHOLE), range.end.min(self.0.len()) / WHOLE * WHOLE);
        #[cfg(unix)]
        if begin < end {
            use memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the mapping is shared and read-only, so that pages have the file's bytes again when they are touched. An error
            // is ignored: pages stay in memory then.
            let _ = unsafe { self.0.unchecked_advise_range(DontNeed, begin, end - begin) };
        }
        #[cfg(not(unix))]
        let _ = (begin, end);
    }
}

/// The message of an I/O error without the operating system's error number.
pub(crate) fn in_words(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::NotFound => ABSENT.into(),
        std::io::ErrorKind::PermissionDenied => DENIED.into(),
        _ => {
            let text = e.to_string();
            text.split(" (os error").next().unwrap_or(&text).to_owned()
        }
    }
}

/// The names of the files into which vision-language models are cut, without what says the type of their weights, as in `_q4f16`: the
/// decoder, the embedding of tokens, and the encoder of pictures.
const DECODER: &str = "decoder_model_merged";
pub(crate) const EMBEDDING: &str = "embed_tokens";
pub(crate) const VISION: &str = "vision_encoder";

/// The files of a part in a folder, one for each type of weights.
fn kinds(folder: &Path, part: &str) -> Vec<PathBuf> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let is_kind = |p: &PathBuf| {
        let stem = p.file_stem().and_then(|s| s.to_str()).and_then(|s| s.strip_prefix(part));
        p.extension().is_some_and(|x| x == "onnx") && stem.is_some_and(|k| k.is_empty() || k.starts_with('_'))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut all: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).filter(is_kind).collect();
    all.sort();
    all
}

/// The file of a part beside a decoder: the one with the decoder's type of weights, otherwise the plain one or the only one.
pub(crate) fn part_beside(decoder: &Path, part: &str) -> Option<PathBuf> {
    let kind = decoder.file_stem()?.to_str()?.strip_prefix(DECODER)?;
    let folder = decoder.parent()?;
    let named = [kind, ""].map(|k| folder.join(format!("{part}{k}.onnx")));
    if let Some(found) = named.into_iter().find(|p| p.is_file()) {
        return Some(found);
    }
    let mut all = kinds(folder, part).into_iter();
    all.next().filter(|_| all.next().is_none())
}

/// The model in a folder, as published ones are laid out.
pub(crate) fn model_in(folder: &Path) -> Result<PathBuf, Error> {
    let inner = folder.join("onnx");
    for of in [folder, &inner] {
        if of.join("model.onnx").is_file() {
            return Ok(of.join("model.onnx"));
        }
    }
    let mut models = vec![];
    for of in [folder, &inner] {
        if !kinds(of, EMBEDDING).is_empty() && models.is_empty() {
            models = kinds(of, DECODER);
        }
    }
    if let Some(plain) = models.iter().find(|m| m.file_stem().is_some_and(|s| s == DECODER)) {
        return Ok(plain.clone());
    }
    for (of, extension) in [(folder, "onnx"), (&inner, "onnx"), (folder, "gguf")] {
        if models.is_empty() && of.is_dir() {
            let entries = std::fs::read_dir(of).map_err(|e| unreadable(of, in_words(&e)))?;
            let paths = entries.filter_map(|e| Some(e.ok()?.path()));
            models.extend(paths.filter(|p| p.extension().is_some_and(|x| x == extension)));
        }
    }
    models.sort();
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    let config = folder.join("config.json");
    match models.as_slice() {
        [one] => Ok(one.clone()),
        [] if config.is_file() && weights.iter().any(|w| folder.join(w).is_file()) => Ok(config),
        [] => Err(Error::file_help(
            folder,
            "holds no model: neither .onnx nor .gguf, nor config.json with model.safetensors",
            "give a folder with a model, or a model's file",
        )),
        [first, ..] => {
            let names: Vec<String> =
                models.iter().filter_map(|m| Some(m.file_name()?.to_string_lossy().into_owned())).collect();
            Err(Error::file_help(
                folder,
                format!("holds {} models and none is called model.onnx: {}", models.len(), names.join(", ")),
                format!("give the file, as in {}", first.display()),
            ))
        }
    }
}

/// The folder of a model as the source of its external tensors.
///
/// A location may name any regular file in the folder or below it. A location that leaves the folder, through `..` or a
/// symbolic link, is refused. If the model's own path is a symbolic link, the folder of its target counts as the model's
/// folder too, as download caches keep a model and its data side by side behind links. For a program in the folder `models/`
/// of an unpacked archive of torch.export, the folder is that of the archive.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let bytes = std::fs::read(&path).unwrap();
/// use wgfc::files::ModelFolder;
/// // The model's bytes come from elsewhere, and its external data from its folder.
/// let folder = ModelFolder::of(&path)?;
/// let program = wgfc::compiler::compile(&bytes, &folder, &wgfc::Options::default())?;
/// assert!(folder.missing().is_empty());
/// # drop(program);
/// # Ok(()) }
/// ```
pub struct ModelFolder {
    roots: Vec<PathBuf>,
    open: Mutex<BTreeMap<String, Arc<dyn ByteOwner>>>,
    missing: Mutex<Vec<String>>,
}

impl ModelFolder {
    /// The folder that holds the model at `model`.
    pub fn of(model: &Path) -> Result<ModelFolder, Error> {
        // A pipe has no folder: the current folder is used.
        let stdin = Path::new("model");
        let model = if is_handed_over(model) { stdin } else { model };
        let real = if model == stdin {
            stdin.to_owned()
        } else {
            model.canonicalize().map_err(|e| unreadable(model, in_words(&e)))?
        };
        let parent = |p: &Path| match p.parent() {
            Some(d) if !d.as_os_str().is_empty() => d.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut roots = Vec::new();
        for folder in [parent(model), parent(&real)] {
            if let Ok(f) = folder.canonicalize().map(archive_of)
                && !roots.contains(&f)
            {
                roots.push(f);
            }
        }
        Ok(ModelFolder { roots, open: Mutex::default(), missing: Mutex::default() })
    }

    /// The canonical path of the folder.
    pub fn path(&self) -> &Path {
        self.roots.first().map_or(Path::new("."), PathBuf::as_path)
    }

    /// The locations that were requested and do not exist, each once.
    pub fn missing(&self) -> Vec<String> {
        self.missing.lock().map(|m| m.clone()).unwrap_or_default()
    }

    /// The files that have been opened, with their bytes.
    pub(crate) fn opened(&self) -> Vec<(PathBuf, Arc<dyn ByteOwner>)> {
        let open = self.open.lock().map(|o| o.clone()).unwrap_or_default();
        open.into_iter().filter_map(|(location, b)| Some((self.resolve(&location).ok()?, b))).collect()
    }

    fn resolve(&self, location: &str) -> Result<PathBuf, String> {
        let relative = Path::new(location);
        let plain = relative
            .components()
            .all(|c| matches!(c, std::path::Component::Normal(_) | std::path::Component::CurDir));
        if !plain || location.is_empty() {
            return Err(format!("`{location}` leaves the model's folder"));
        }
        let root = self.roots.first().ok_or("the model's folder is gone")?;
        let real = match root.join(relative).canonicalize() {
            Ok(p) => p,
            Err(e) => {
                if e.kind() == std::io::ErrorKind::NotFound
                    && let Ok(mut m) = self.missing.lock()
                    && !m.iter().any(|x| x == location)
                {
                    m.push(location.to_owned());
                }
                return Err(format!("{}: {}", root.join(relative).display(), in_words(&e)));
            }
        };
        if !self.roots.iter().any(|r| real.starts_with(r)) {
            return Err(format!(
                "`{location}` leaves the model's folder: it is a link to {}",
                real.display()
            ));
        }
        Ok(real)
    }
}

/// The folder of an unpacked archive of torch.export if `folder` is its `models`, else `folder`.
fn archive_of(folder: PathBuf) -> PathBuf {
    match folder.parent() {
        Some(p) if folder.ends_with("models") && is_data(&p.join("data")) => p.to_owned(),
        _ => folder,
    }
}

fn is_data(folder: &Path) -> bool {
    ["weights", "constants"].iter().any(|kind| folder.join(kind).is_dir())
}

impl ExternalData for ModelFolder {
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String> {
        let mut open = self.open.lock().map_err(|_| "another thread failed while it read this")?;
        if let Some(f) = open.get(location) {
            return Ok(f.clone());
        }
        let path = self.resolve(location)?;
        let bytes = map(&path).map_err(|m| format!("{}: {m}", path.display()))?;
        open.insert(location.to_owned(), bytes.clone());
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_paths_stay_in_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("inner/m.onnx");
        std::fs::create_dir(dir.path().join("inner")).unwrap();
        std::fs::write(&model, b"x").unwrap();
        std::fs::write(dir.path().join("secret"), b"s").unwrap();
        std::fs::write(dir.path().join("inner/data"), b"12345").unwrap();
        std::fs::write(dir.path().join("inner/empty"), b"").unwrap();
        let folder = ModelFolder::of(&model).unwrap();
        assert_eq!((*folder.open("data").unwrap()).as_ref(), b"12345");
        assert_eq!((*folder.open("./data").unwrap()).as_ref(), b"12345");
        assert_eq!((*folder.open("empty").unwrap()).as_ref(), b"");
        for bad in ["../secret", "/etc/hostname", "", "data/../../secret"] {
            let e = folder.open(bad).err().unwrap();
            assert!(e.contains("leaves the model's folder"), "{bad}: {e}");
        }
        assert!(folder.missing().is_empty());
        assert!(folder.open("gone").err().unwrap().contains("no such file"));
        assert_eq!(folder.missing(), ["gone"]);
    }

    #[test]
    fn pages_that_were_given_back_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        let bytes: Vec<u8> = (0..1_000_003u32).map(|i| (i * 7 + i / 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = map_file(&path).unwrap();
        let t = wgfc_ir::Tensor::shared(wgfc_ir::DType::U8, vec![1_000_000], file, 3, 1_000_000).unwrap();
        for range in [0..1_000_000, 5..700_000, 999_999..1_000_000, 7..7, 0..usize::MAX] {
            assert_eq!(t.bytes(), Some(&bytes[3..]));
            t.release(range);
        }
        let sum = |piece: &[u8]| piece.iter().map(|b| u64::from(*b)).sum::<u64>();
        assert_eq!(t.scan(70_000, sum).unwrap().iter().sum::<u64>(), sum(&bytes[3..]));
        assert_eq!(t.bytes(), Some(&bytes[3..]));
    }

    #[test]
    fn a_program_of_an_unpacked_archive_finds_its_weights() {
        let dir = tempfile::tempdir().unwrap();
        let at = |p: &str| dir.path().join(p);
        std::fs::create_dir_all(at("net/models")).unwrap();
        std::fs::write(at("net/models/model.json"), b"{}").unwrap();
        std::fs::write(at("secret"), b"s").unwrap();
        let before = ModelFolder::of(&at("net/models/model.json")).unwrap();
        assert!(before.open("data/weights/weight_0").is_err());
        std::fs::create_dir_all(at("net/data/weights")).unwrap();
        std::fs::write(at("net/data/weights/weight_0"), b"1234").unwrap();
        let folder = ModelFolder::of(&at("net/models/model.json")).unwrap();
        assert_eq!((*folder.open("data/weights/weight_0").unwrap()).as_ref(), b"1234");
        for bad in ["../secret", "data/../../secret"] {
            let e = folder.open(bad).err().unwrap();
            assert!(e.contains("leaves the model's folder"), "{bad}: {e}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_inside_and_refused_outside() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |p: &str| dir.path().join(p);
        std::fs::create_dir_all(at("blobs")).unwrap();
        std::fs::create_dir_all(at("snapshot")).unwrap();
        std::fs::create_dir_all(at("elsewhere")).unwrap();
        std::fs::write(at("blobs/aa"), b"model").unwrap();
        std::fs::write(at("blobs/bb"), b"data").unwrap();
        std::fs::write(at("elsewhere/cc"), b"secret").unwrap();
        symlink("../blobs/aa", at("snapshot/m.onnx")).unwrap();
        symlink("../blobs/bb", at("snapshot/m.data")).unwrap();
        symlink("../elsewhere/cc", at("snapshot/bad.data")).unwrap();
        let folder = ModelFolder::of(&at("snapshot/m.onnx")).unwrap();
        assert_eq!((*folder.open("m.data").unwrap()).as_ref(), b"data");
        assert!(folder.open("bad.data").err().unwrap().contains("leaves the model's folder"));
    }
}
