//! Writes bundles to files.

use super::recipe::{Originals, on_all_cores, relative, sha256};
use super::{KERNELS, PLAN, SaveOptions, WEIGHTS, is_plain_name};
use crate::Error;
use crate::tensors::{TrueType, TrueTypes, stored_as};
use safetensors::tensor::{Dtype, TensorInfo};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use wgfc_ir::recipe::{PART_BYTES, Part, Recipe, Recipes, SourceFile};
use wgfc_ir::{Bundle, Tensor};

/// The weights of a bundle: the safetensors files to write ("own files") and the place of the bytes of each weight.
pub(super) struct Weights<'b> {
    files: Vec<File<'b>>,
    /// Names and sizes of the original files.
    originals: Vec<SourceFile>,
    sources: Vec<(&'b str, &'b Tensor, Source)>,
    /// The hash of each part in own files, in the order of `sources`.
    hashes: Vec<String>,
}

/// The place of the bytes of a weight.
enum Source {
    /// Stretches of the original files. The recipe's file numbers are indices into `originals`.
    Model(Recipe),
    /// Entries of own files, as (index of the file, index of the entry in it).
    Own(Vec<(usize, usize)>),
}

/// A safetensors file to write.
#[derive(Default)]
struct File<'b> {
    entries: Vec<Entry<'b>>,
    types: TrueTypes,
    /// Bytes of all entries.
    bytes: u64,
}

struct Entry<'b> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    tensor: &'b Tensor,
    range: Range<usize>,
    /// The offset of its first byte from the end of the header.
    begin: u64,
}

/// A safetensors header; the metadata comes first.
struct Header<'a, 'b> {
    metadata: &'a BTreeMap<&'a str, String>,
    entries: &'a [Entry<'b>],
}

impl Serialize for Header<'_, '_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry("__metadata__", self.metadata)?;
        }
        for e in self.entries {
            let begin = e.begin as usize;
            let data_offsets = (begin, begin + e.range.len());
            map.serialize_entry(
                &e.name,
                &TensorInfo { dtype: e.dtype, shape: e.shape.clone(), data_offsets },
            )?;
        }
        map.end()
    }
}

impl<'b> File<'b> {
    fn put(&mut self, name: String, tensor: &'b Tensor, range: Range<usize>) -> usize {
        let whole = range.len() == tensor.byte_len().unwrap_or(0);
        let (dtype, shape) = match stored_as(tensor.dtype).filter(|_| whole) {
            Some(d) => (d, tensor.shape.clone()),
            None => (Dtype::U8, vec![range.len()]),
        };
        if whole && dtype == Dtype::U8 && stored_as(tensor.dtype).is_none() {
            let ty = TrueType { dtype: tensor.dtype, shape: tensor.shape.clone() };
            self.types.insert(name.clone(), ty);
        }
        let begin = self.bytes;
        self.bytes += range.len() as u64;
        self.entries.push(Entry { name, dtype, shape, tensor, range, begin });
        self.entries.len() - 1
    }

    /// The header of the file with this metadata. It is padded with spaces to at least `least` bytes and to a multiple of 8.
    fn header(&self, mut metadata: BTreeMap<&str, String>, least: usize) -> Result<Vec<u8>, Error> {
        let internal = |e: serde_json::Error| Error::Internal(format!("the tensors cannot be written: {e}"));
        if !self.types.is_empty() {
            metadata
                .insert(crate::tensors::METADATA_KEY, serde_json::to_string(&self.types).map_err(internal)?);
        }
        let header = Header { metadata: &metadata, entries: &self.entries };
        let mut text = serde_json::to_vec(&header).map_err(internal)?;
        text.resize(text.len().max(least).next_multiple_of(8), b' ');
        Ok(text)
    }

    fn write(&self, path: &Path, header: &[u8], wrote: &mut dyn FnMut(usize)) -> std::io::Result<()> {
        let mut file = std::io::BufWriter::with_capacity(1 << 20, fs::File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header)?;
        for e in &self.entries {
            for begin in e.range.clone().step_by(PART_BYTES as usize) {
                let end = e.range.end.min(begin + PART_BYTES as usize);
                let mut written = Ok(());
                e.tensor.read(begin..end, &mut |piece| {
                    if written.is_ok() {
                        written = file.write_all(piece);
                    }
                });
                written?;
                wrote(end - begin);
            }
        }
        file.into_inner()?.sync_data()
    }
}

impl<'b> Weights<'b> {
    /// Decides where the weights of a bundle are stored, and hashes them. Absent weights are left out. `place` is the folder
    /// of the plan or a folder above it, and `up` the relative URL that leads from the plan's folder to `place`.
    pub fn of(
        bundle: &'b Bundle,
        options: &SaveOptions<'_>,
        shards: Option<u64>,
        (up, place): (&str, &Path),
    ) -> Result<Weights<'b>, Error> {
        let from = options.model.map(|m| m.originals()).unwrap_or(Originals(vec![]));
        let mut weights = Weights { files: vec![], originals: vec![], sources: vec![], hashes: vec![] };
        let (mut own, mut found) = (vec![], vec![]);
        for (name, tensor) in bundle.store().into_iter().filter(|(_, t)| t.is_present()) {
            match from.find(tensor) {
                Some(recipe) => found.push((name, tensor, recipe)),
                None => own.push((name, tensor)),
            }
        }
        let parts: Vec<&Part> = found.iter().flat_map(|(_, _, r)| &r.parts).collect();
        let mut hashes = hashed(&parts, |p| sha256(|hash| hash(from.bytes(p))))?.into_iter();
        let mut named: BTreeMap<usize, usize> = BTreeMap::new();
        for (name, tensor, mut recipe) in found {
            for p in &mut recipe.parts {
                p.sha256 = hashes.next();
                let known = named.get(&p.file).copied();
                p.file = match (known, &from.0[p.file]) {
                    (Some(i), _) => i,
                    (None, (path, owner)) => {
                        let url = up.to_owned() + &relative(path, place)?;
                        let bytes = (**owner).as_ref().len() as u64;
                        weights.originals.push(SourceFile { name: url, bytes, sha256: None });
                        named.insert(p.file, weights.originals.len() - 1);
                        weights.originals.len() - 1
                    }
                };
            }
            weights.sources.push((name, tensor, Source::Model(recipe)));
        }
        // Tensors whose length is no multiple of 8 bytes come last, so that all others are aligned to 8 bytes.
        own.sort_by_key(|(_, t)| !t.byte_len().unwrap_or(0).is_multiple_of(8));
        for (name, tensor) in own {
            weights.put(name, tensor, shards);
        }
        if weights.files.is_empty() {
            weights.files.push(File::default());
        }
        let ranges: Vec<(&Tensor, Range<usize>)> =
            weights.sources.iter().flat_map(|s| weights.own_parts(s)).map(|(t, r, _)| (t, r)).collect();
        weights.hashes = hashed(&ranges, |(t, r)| {
            sha256(|hash| {
                t.read(r.clone(), hash);
            })
        })?;
        Ok(weights)
    }

    /// Puts a weight into own files of about `most` bytes each, split into several entries if it is larger.
    fn put(&mut self, name: &'b str, tensor: &'b Tensor, most: Option<u64>) {
        let len = tensor.byte_len().unwrap_or(0);
        let most = most.unwrap_or(u64::MAX);
        let mut places = vec![];
        let cut = len as u64 > most;
        let mut at = 0;
        loop {
            let n = usize::try_from(most).map_or(len - at, |m| m.min(len - at));
            let full = self.files.last().is_none_or(|f| f.bytes > 0 && f.bytes + n as u64 > most);
            if full {
                self.files.push(File::default());
            }
            let file = self.files.len() - 1;
            let f = &mut self.files[file];
            let mut own = if cut { format!("{name}#{}", places.len()) } else { name.to_owned() };
            while own == "__metadata__" || own.contains('#') && f.entries.iter().any(|e| e.name == own) {
                own.push('#');
            }
            places.push((file, f.put(own, tensor, at..at + n)));
            at += n;
            if at >= len {
                break;
            }
        }
        self.sources.push((name, tensor, Source::Own(places)));
    }

    /// The parts of a weight in own files, each with the range of the weight's bytes that it holds. Offsets are relative to
    /// the end of the file's header.
    fn own_parts(&self, source: &(&'b str, &'b Tensor, Source)) -> Vec<(&'b Tensor, Range<usize>, Part)> {
        let (_, tensor, Source::Own(places)) = source else { return vec![] };
        let entries = places.iter().map(|(file, entry)| (*file, &self.files[*file].entries[*entry]));
        let parts = entries.flat_map(|(file, e)| {
            let starts = e.range.clone().step_by(PART_BYTES as usize);
            starts.map(move |at| {
                let range = at..e.range.end.min(at + PART_BYTES as usize);
                let (offset, bytes) = (e.begin + (at - e.range.start) as u64, range.len() as u64);
                (*tensor, range, Part { column: 0, file, offset, bytes, sha256: None })
            })
        });
        parts.collect()
    }

    /// The recipes of all weights. `own` holds the name of each own file and the bytes before its data; in the recipes,
    /// original files come after own ones.
    fn recipes(&self, own: &[(String, u64)]) -> Recipes {
        let mut hashes = self.hashes.iter();
        let headers = |file: usize| own.get(file).map_or(0, |(_, header)| *header);
        let mut tensors = BTreeMap::new();
        for source in &self.sources {
            let (name, tensor, place) = source;
            let recipe = match place {
                Source::Model(r) => {
                    let mut r = r.clone();
                    r.parts.iter_mut().for_each(|p| p.file += self.files.len());
                    r
                }
                Source::Own(_) => {
                    let part = |(_, _, p): (&Tensor, Range<usize>, Part)| Part {
                        offset: headers(p.file) + p.offset,
                        sha256: hashes.next().cloned(),
                        ..p
                    };
                    let parts = self.own_parts(source).into_iter().map(part).collect();
                    Recipe {
                        dtype: tensor.dtype,
                        shape: tensor.shape.clone(),
                        from: None,
                        derived: None,
                        rows: 1,
                        parts,
                    }
                }
            };
            tensors.insert((*name).to_owned(), recipe);
        }
        let files = own.iter().zip(&self.files).map(|((name, header), f)| SourceFile {
            name: name.clone(),
            bytes: header + f.bytes,
            sha256: None,
        });
        let mut recipes = Recipes { files: files.chain(self.originals.iter().cloned()).collect(), tensors };
        forget_unused(&mut recipes);
        recipes
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }
}

/// The hash of each item, computed on all cores.
fn hashed<T: Sync>(items: &[T], one: impl Fn(&T) -> String + Sync) -> Result<Vec<String>, Error> {
    let hashes = on_all_cores(items, one);
    match hashes.len() == items.len() {
        true => Ok(hashes),
        false => Err(Error::Internal("a thread that hashes weights panicked".into())),
    }
}

/// Removes files that hold no part, and renumbers the others.
fn forget_unused(r: &mut Recipes) {
    let used: BTreeSet<usize> = r.tensors.values().flat_map(|t| &t.parts).map(|p| p.file).collect();
    let places: BTreeMap<usize, usize> = used.iter().enumerate().map(|(new, old)| (*old, new)).collect();
    let mut i = 0;
    r.files.retain(|_| {
        i += 1;
        used.contains(&(i - 1))
    });
    for p in r.tensors.values_mut().flat_map(|t| &mut t.parts) {
        p.file = places.get(&p.file).copied().unwrap_or(p.file);
    }
}

/// The bundle's `plan.json`.
fn plan_text(bundle: &Bundle, weights: Recipes, pretty: bool) -> Result<String, Error> {
    let bundle = Bundle { weights: Some(weights), ..bundle.clone() };
    let text = if pretty { serde_json::to_string_pretty(&bundle) } else { serde_json::to_string(&bundle) };
    text.map(|t| t + "\n").map_err(|e| Error::Internal(format!("the plan cannot be written as JSON: {e}")))
}

/// The texts of the kernels, each with the name of its file.
fn kernels(bundle: &Bundle) -> Result<Vec<(String, &str)>, Error> {
    let file = |(name, k): (&str, &'_ wgfc_ir::program::Kernel)| match is_plain_name(name) {
        true => Ok(format!("{name}.wgsl")),
        false => Err(Error::Internal(format!(
            "kernel name `{name}` cannot be a file's name, as that of {}",
            k.family
        ))),
    };
    let texts = bundle.kernels();
    texts.into_iter().map(|(name, k)| Ok((file((name, k))?, k.wgsl.as_str()))).collect()
}

/// A function that adds up the bytes written and reports them to [`SaveOptions::progress`].
fn progress<'o>(options: &'o SaveOptions<'_>, total: u64) -> impl FnMut(usize) + use<'o> {
    let mut done = 0;
    let tell = options.progress;
    move |n| {
        done += n as u64;
        if let Some(p) = tell {
            p(done, total);
        }
    }
}

/// Writes a bundle into the empty folder `new`, which is moved to `dir` later.
pub(super) fn folder(
    bundle: &Bundle,
    new: &Path,
    dir: &Path,
    options: &SaveOptions<'_>,
) -> Result<(), Error> {
    let failed = |name: String| move |e: std::io::Error| Error::unwritable(&dir.join(name), &e);
    // `dir` need not exist yet, but its parent does.
    let parent = dir.parent().unwrap_or(dir);
    let weights = Weights::of(bundle, options, options.shard_size, ("../", parent))?;
    fs::create_dir(new.join(KERNELS)).map_err(failed(KERNELS.into()))?;
    for (file, text) in kernels(bundle)? {
        fs::write(new.join(KERNELS).join(&file), text).map_err(failed(format!("{KERNELS}/{file}")))?;
    }
    let mut own = vec![];
    let mut wrote = progress(options, weights.bytes());
    for (i, f) in weights.files.iter().enumerate() {
        let name = match options.shard_size {
            Some(_) => shard(i, weights.files.len()),
            None => WEIGHTS.to_owned(),
        };
        let header = f.header(BTreeMap::new(), 0)?;
        f.write(&new.join(&name), &header, &mut wrote).map_err(failed(name.clone()))?;
        own.push((name, 8 + header.len() as u64));
    }
    let text = plan_text(bundle, weights.recipes(&own), true)?;
    fs::write(new.join(PLAN), text).map_err(failed(PLAN.into()))
}

/// The name of the `i`-th of `n` weight files.
fn shard(i: usize, n: usize) -> String {
    format!("weights-{:05}-of-{n:05}.safetensors", i + 1)
}

/// Whether a file's name is one that `shard` gives.
pub(super) fn is_shard(name: &str) -> bool {
    let numbers = name.strip_prefix("weights-").and_then(|n| n.strip_suffix(".safetensors"));
    numbers
        .and_then(|n| n.split_once("-of-"))
        .is_some_and(|(a, b)| [a, b].iter().all(|n| n.len() >= 5 && n.bytes().all(|c| c.is_ascii_digit())))
}

/// Writes a bundle as the file `new`, which is moved into the folder `place` later. Errors name it `shown`.
pub(super) fn file(
    bundle: &Bundle,
    new: &Path,
    place: &Path,
    shown: &Path,
    options: &SaveOptions<'_>,
) -> Result<(), Error> {
    let weights = Weights::of(bundle, options, None, ("", place))?;
    let [own] = &weights.files[..] else {
        return Err(Error::Internal("the weights of a bundle are in several files".into()));
    };
    let kernels: Vec<(String, &str)> =
        kernels(bundle)?.into_iter().map(|(f, text)| (format!("{KERNELS}/{f}"), text)).collect();
    // The header holds the offsets of tensors, which depend on the header's length: it is lengthened until the two agree.
    let mut least = 0;
    let header = loop {
        let text = plan_text(bundle, weights.recipes(&[(String::new(), 8 + least as u64)]), false)?;
        let mut metadata: BTreeMap<&str, String> =
            kernels.iter().map(|(f, text)| (f.as_str(), (*text).to_owned())).collect();
        metadata.insert(PLAN, text);
        let header = own.header(metadata, least)?;
        if header.len() == least {
            break header;
        }
        least = header.len();
    };
    let mut wrote = progress(options, weights.bytes());
    own.write(new, &header, &mut wrote).map_err(|e| Error::unwritable(shown, &e))
}
