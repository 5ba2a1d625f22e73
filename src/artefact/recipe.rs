//! Where the bytes of weights are stored: stretches of files, each with its hash.

use crate::Error;
use sha2::{Digest, Sha256};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use wgfc_ir::Tensor;
use wgfc_ir::recipe::{Part, Recipe};
use wgfc_ir::remote::Stretch;
use wgfc_ir::tensor::ByteOwner;

/// The files that a model was read from, mapped into memory.
pub(crate) struct Originals(pub Vec<(PathBuf, Arc<dyn ByteOwner>)>);

/// The least average number of bytes of the stretches that make up a tensor.
const LEAST_STRETCH: usize = 16 << 10;
/// A tensor of fewer bytes is copied, as a description of its place would be as long.
const LEAST_TENSOR: usize = 512;

impl Originals {
    /// How to assemble a tensor from stretches of the files; `None` if it does not share their memory or would need too many
    /// stretches. A recipe's file numbers are indices into `self`.
    pub(super) fn find(&self, t: &Tensor) -> Option<Recipe> {
        t.byte_len().filter(|n| *n >= LEAST_TENSOR)?;
        Recipe::find(t, LEAST_STRETCH, |s| match s {
            Stretch::Here(bytes) => self.place(bytes),
            Stretch::There { .. } => None,
        })
    }

    fn place(&self, piece: &[u8]) -> Option<(usize, u64)> {
        let at = piece.as_ptr_range();
        self.0.iter().enumerate().find_map(|(file, (_, owner))| {
            let all = (**owner).as_ref().as_ptr_range();
            let inside = all.start <= at.start && at.end <= all.end;
            inside.then_some((file, (at.start as usize).wrapping_sub(all.start as usize) as u64))
        })
    }

    /// The bytes of a part.
    pub(super) fn bytes(&self, p: &Part) -> &[u8] {
        let all = self.0.get(p.file).map(|(_, owner)| (**owner).as_ref());
        all.and_then(|b| b.get(p.offset as usize..(p.offset + p.bytes) as usize)).unwrap_or_default()
    }
}

/// The SHA-256 hash of consecutive pieces, in hexadecimal digits.
pub(crate) fn sha256(read: impl FnOnce(&mut dyn FnMut(&[u8]))) -> String {
    use std::fmt::Write;
    let mut hash = Sha256::new();
    read(&mut |piece| hash.update(piece));
    hash.finalize().iter().fold(String::with_capacity(64), |mut s, b| {
        // Writing to a string does not fail.
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// Applies `one` to each item, on all cores. The results are in the order of the items; the results of a thread that
/// panicked are missing.
pub(super) fn on_all_cores<T: Sync, R: Send>(items: &[T], one: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = vec![];
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            match items.get(i) {
                Some(item) => done.push((i, one(item))),
                None => return done,
            }
        }
    };
    if threads <= 1 {
        return work().into_iter().map(|(_, r)| r).collect();
    }
    let mut all: Vec<(usize, R)> = std::thread::scope(|s| {
        let workers: Vec<_> = (1..threads).map(|_| s.spawn(work)).collect();
        let mut all = work();
        all.extend(workers.into_iter().filter_map(|w| w.join().ok()).flatten());
        all
    });
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, r)| r).collect()
}

/// The relative URL of a file as seen from a folder. Both must exist.
pub(super) fn relative(file: &Path, from: &Path) -> Result<String, Error> {
    let real =
        |p: &Path| p.canonicalize().map_err(|e| crate::files::unreadable(p, crate::files::in_words(&e)));
    let (file, from) = (real(file)?, real(from)?);
    let (to, base): (Vec<Component<'_>>, Vec<Component<'_>>) =
        (file.components().collect(), from.components().collect());
    let common = to.iter().zip(&base).take_while(|(a, b)| a == b).count();
    let mut url = "../".repeat(base.len() - common);
    for (i, c) in to[common..].iter().enumerate() {
        let Component::Normal(name) = c else {
            let help = "write the plan on the same drive, or without --weights-from-model";
            return Err(Error::file_help(&file, "has no path relative to the plan", help));
        };
        let name = name.to_str().ok_or_else(|| {
            Error::file_help(&file, "has a path that is no Unicode text", "give the model another place")
        })?;
        url += if i > 0 { "/" } else { "" };
        url += &crate::urls::escaped(name);
    }
    Ok(url)
}

/// The path, relative to the plan's folder, that a relative URL names.
///
/// # Errors
/// The reason why it names none.
pub(super) fn path_of(url: &str) -> Result<PathBuf, String> {
    if url.contains("://") {
        return Err("is on the web; put the file beside the plan and its name in its place".into());
    }
    let text = crate::urls::unescaped(url)
        .ok_or("is no URL: two hexadecimal digits must follow a `%`, and stand for text")?;
    let relative = Path::new(&text)
        .components()
        .all(|c| matches!(c, Component::Normal(_) | Component::CurDir | Component::ParentDir));
    let bad = text.is_empty() || !relative || text.contains(['\\', '\0']) || url.contains([':', '?', '#']);
    if bad { Err("is not a path relative to the plan".into()) } else { Ok(PathBuf::from(text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_relative_urls() {
        let dir = tempfile::tempdir().unwrap();
        let at = |p: &str| dir.path().join(p);
        std::fs::create_dir_all(at("a/out")).unwrap();
        for (name, from, url) in [
            ("a/m.onnx", "a/out", "../m.onnx"),
            ("a/out/w.bin", "a/out", "w.bin"),
            ("a/50% of #1?.onnx", "a", "50%25%20of%20%231%3F.onnx"),
            ("größe.onnx", "a/out", "../../gr%C3%B6%C3%9Fe.onnx"),
        ] {
            std::fs::write(at(name), b"x").unwrap();
            assert_eq!(relative(&at(name), &at(from)).unwrap(), url);
            let back = at(from).join(path_of(url).unwrap());
            assert_eq!(back.canonicalize().unwrap(), at(name).canonicalize().unwrap());
        }
        for bad in ["", "/etc/passwd", "https://a.example/m", "a%2", "a%zz", "%2Fetc", "C:%5Cm", "%FF"] {
            assert!(path_of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hashes_are_of_all_pieces() {
        assert_eq!(
            sha256(|hash| [&b"ab"[..], b"c"].into_iter().for_each(hash)),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn weights_are_found_by_their_memory() {
        let owner: Arc<dyn ByteOwner> = Arc::new(vec![7u8; 1 << 17]);
        let all = Originals(vec![("m".into(), owner.clone())]);
        let of = |at: usize, n: usize| {
            Tensor::shared(wgfc_ir::DType::F32, vec![n / 4 / 256, 256], owner.clone(), at, n).unwrap()
        };
        let (a, b) = (of(64, 65536), of(64 + 65536, 32768));
        let parts = |t: &Tensor| all.find(t).map(|r| r.parts.len());
        assert_eq!(all.find(&a), Some(Recipe::whole(&a, 0, 64)));
        assert_eq!(parts(&Tensor::joined(&[&a, &b], 0).unwrap()), Some(1));
        assert_eq!(parts(&Tensor::joined(&[&b, &a], 0).unwrap()), Some(2));
        assert_eq!(parts(&Tensor::joined(&[&a, &a], 1).unwrap()), Some(2));
        assert_eq!(parts(&Tensor::zeros(wgfc_ir::DType::F32, vec![1024])), None);
        assert_eq!(all.bytes(&all.find(&b).unwrap().parts[0]), b.bytes().unwrap());
        let small = Tensor::shared(wgfc_ir::DType::F32, vec![64], owner.clone(), 0, 256).unwrap();
        assert_eq!(parts(&small), None);
    }
}
