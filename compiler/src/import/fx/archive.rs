//! The container: a zip file with the program as JSON and the storages of its tensors, or a bare JSON program with the storages in a
//! folder beside it.
//!
//! Most records are stored uncompressed, so that tensors share the file's bytes; a file that was repacked may have deflated records. The
//! root folder has the name that the file had when it was saved.

use crate::budget::Budget;
use crate::import::ExternalData;
use crate::{Diagnostic, Errors};
use rawzip::{CompressionMethod, ZipArchive};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use wgfc_ir::tensor::ByteOwner;

/// The maximum size of a text record, in bytes.
const MOST_TEXT: u64 = 256 << 20;
/// The maximum ratio of unpacked to packed bytes: of a text record, and of a storage.
const MOST_RATIO: [u64; 2] = [300, 1032];
/// The maximum number of records.
const MOST_RECORDS: usize = 1 << 20;

/// An opened archive.
pub struct Archive<'m> {
    from: From<'m>,
    /// The memory budget of reading the archive.
    pub budget: Budget,
    /// The program's JSON, once it has been unpacked.
    program: OnceCell<Part>,
    /// The layout of its records.
    pub layout: Layout,
}

enum From<'m> {
    /// A zip file: its bytes, its records by their names below the root, and the source of made-up records.
    Zip(Part, BTreeMap<String, Record>, &'m dyn ExternalData),
    /// A bare program, and the source of the files beside it.
    Folder(Part, &'m dyn ExternalData),
}

/// The layout of an archive, which depends on the version of torch that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Torch 2.8 and later: a root folder with `models/` and `data/`.
    Folders,
    /// Torch 2.5 to 2.7: four records at the top level.
    Flat,
    /// The format of `torch.save`: a pickle and storages.
    Pickle,
    /// The program's JSON without a container.
    Bare,
}

struct Record {
    /// The offset of its packed bytes in the zip file.
    start: u64,
    packed: u64,
    size: u64,
    deflated: bool,
}

/// A range of bytes that another object owns.
#[derive(Clone)]
pub struct Part {
    /// The owner of the memory.
    pub owner: Arc<dyn ByteOwner>,
    /// The offset of the first byte in the owner's bytes.
    pub start: usize,
    /// Number of bytes.
    pub len: usize,
}

impl Part {
    /// All bytes of an owner.
    pub fn whole(owner: Arc<dyn ByteOwner>) -> Part {
        let len = (*owner).as_ref().len();
        Part { owner, start: 0, len }
    }
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        (*self.owner).as_ref().get(self.start..self.start + self.len).unwrap_or_default()
    }
}

fn broken(why: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::model(format!("this is not an archive of torch.export: {why}"))
        .help("write it with torch.export.save(torch.export.export(model, args), path)")
}

/// Whether the bytes begin like a zip file or a JSON object.
pub fn is_archive(bytes: &[u8]) -> bool {
    let text = bytes.iter().position(|b| !b.is_ascii_whitespace()).map_or(bytes, |i| &bytes[i..]);
    is_zip(bytes) || text.starts_with(b"{")
}

fn is_zip(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04")
}

impl<'m> Archive<'m> {
    /// Reads the directory.
    ///
    /// # Errors
    /// The file is a damaged zip file, holds names that point outside of it, or has no program.
    pub fn open(file: Part, external: &'m dyn ExternalData, budget: Budget) -> Result<Archive<'m>, Errors> {
        if !is_zip(file.bytes()) {
            return Ok(Archive {
                from: From::Folder(file, external),
                budget,
                program: OnceCell::new(),
                layout: Layout::Bare,
            });
        }
        let mut records = directory(&file, &budget)?;
        let layout = if records.contains_key("serialized_exported_program.json") {
            Layout::Flat
        } else {
            let (root, layout) = root(&records)?;
            let below = |(n, r): (String, Record)| Some((n.strip_prefix(&root)?.to_owned(), r));
            records = records.into_iter().filter_map(below).collect();
            layout
        };
        Ok(Archive { from: From::Zip(file, records, external), budget, program: OnceCell::new(), layout })
    }

    /// Opens a record that is itself a zip file, as `torch.save` writes it.
    ///
    /// # Errors
    /// See [`Archive::open`].
    pub fn inner(&self, name: &str) -> Result<Archive<'m>, Diagnostic> {
        let part = self.storage(name)?;
        let records = directory(&part, &self.budget)?;
        let (root, _) = root(&records)?;
        let below = |(n, r): (String, Record)| Some((n.strip_prefix(&root)?.to_owned(), r));
        let records = records.into_iter().filter_map(below).collect();
        let external = &crate::import::NoExternalData;
        let budget = self.budget.clone();
        Ok(Archive {
            from: From::Zip(part, records, external),
            budget,
            program: OnceCell::new(),
            layout: Layout::Pickle,
        })
    }

    /// The program's JSON.
    ///
    /// # Errors
    /// See [`Archive::text`].
    pub fn program(&self) -> Result<Part, Diagnostic> {
        if let Some(program) = self.program.get() {
            return Ok(program.clone());
        }
        let program = match (&self.from, self.layout) {
            (From::Folder(program, _), _) => program.clone(),
            (_, Layout::Flat) => self.text("serialized_exported_program.json")?,
            _ => self.text("models/model.json")?,
        };
        Ok(self.program.get_or_init(|| program).clone())
    }

    /// Whether a record of this name exists.
    pub fn has(&self, name: &str) -> bool {
        match &self.from {
            From::Zip(_, records, _) => records.contains_key(name),
            From::Folder(_, external) => external.open(name).is_ok(),
        }
    }

    /// A text record.
    ///
    /// # Errors
    /// The record is missing, damaged or longer than the maximum for a text.
    pub fn text(&self, name: &str) -> Result<Part, Diagnostic> {
        let part = self.record(name, MOST_RATIO[0], MOST_TEXT)?;
        if part.len as u64 > MOST_TEXT {
            return Err(broken(format!("`{name}` has {} bytes", part.len)));
        }
        Ok(part)
    }

    /// Parses a JSON record.
    ///
    /// # Errors
    /// See [`Archive::text`]; JSON of another form is an error that `not_read` makes.
    pub fn json<T: serde::de::DeserializeOwned>(
        &self,
        text: &Part,
        not_read: impl FnOnce(serde_json::Error) -> Diagnostic,
    ) -> Result<T, Diagnostic> {
        self.budget.take_json(text.bytes())?;
        serde_json::from_slice(text.bytes()).map_err(not_read)
    }

    /// A storage record.
    ///
    /// # Errors
    /// The record is missing or damaged.
    pub fn storage(&self, name: &str) -> Result<Part, Diagnostic> {
        self.record(name, MOST_RATIO[1], u64::MAX)
    }

    fn record(&self, name: &str, most_ratio: u64, most: u64) -> Result<Part, Diagnostic> {
        let (file, records) = match &self.from {
            From::Zip(file, records, external) => match external.made_up(name) {
                Some(owner) if !records.contains_key(name) => return Ok(Part::whole(owner)),
                _ => (file, records),
            },
            From::Folder(_, external) => {
                let missing = |e| {
                    Diagnostic::model(format!("cannot read `{name}`: {e}"))
                        .help("put the folder `data` of the archive beside the model, or beside its folder `models`")
                };
                return external.open(name).map(Part::whole).map_err(missing);
            }
        };
        let r = records.get(name).ok_or_else(|| {
            Diagnostic::model(format!("the archive has no record `{name}`"))
                .help("save it again with its weights, use random ones (--random-weights), or compile only the graph (--graph-only)")
        })?;
        let start = file.start + r.start as usize;
        if !r.deflated {
            return Ok(Part { owner: file.owner.clone(), start, len: r.size as usize });
        }
        if r.size > most || r.size / most_ratio > r.packed {
            return Err(broken(format!("of `{name}` {} bytes would become {}", r.packed, r.size)));
        }
        self.budget.take(r.size, format_args!("unpacking `{name}`"))?;
        let packed = Part { owner: file.owner.clone(), start, len: r.packed as usize };
        let mut out = Vec::with_capacity(r.size as usize);
        let mut inflated = flate2::read::DeflateDecoder::new(packed.bytes()).take(r.size + 1);
        match inflated.read_to_end(&mut out) {
            Ok(n) if n as u64 == r.size => Ok(Part::whole(Arc::new(out))),
            Ok(_) => Err(broken(format!("`{name}` has another size than it says"))),
            Err(e) => Err(broken(format!("`{name}` is damaged: {e}"))),
        }
    }
}

/// The records of a zip file, by their full names.
fn directory(file: &Part, budget: &Budget) -> Result<BTreeMap<String, Record>, Diagnostic> {
    let len = file.len as u64;
    let zip = ZipArchive::from_slice(file.bytes()).map_err(broken)?;
    let (mut records, mut places) = (BTreeMap::new(), vec![]);
    for r in zip.entries() {
        let r = r.map_err(broken)?;
        if places.len() >= MOST_RECORDS {
            return Err(broken(format!("it has more than {MOST_RECORDS} records")));
        }
        let path = r.file_path();
        let name = str::from_utf8(path.as_bytes())
            .map_err(|_| broken("a name in it is not valid UTF-8"))?
            .to_owned();
        let leaves =
            name.starts_with('/') || name.split('/').any(|p| p == "..") || name.contains(['\\', '\0', ':']);
        if leaves {
            return Err(broken(format!("`{}` leaves the archive", name.escape_default())));
        }
        let deflated = match r.compression_method() {
            CompressionMethod::STORE => false,
            CompressionMethod::DEFLATE => true,
            other => return Err(broken(format!("`{name}` is packed by {other}"))),
        };
        if r.flags().is_encrypted() {
            return Err(broken(format!("`{name}` is encrypted")));
        }
        let (size, packed) = (r.uncompressed_size_hint(), r.compressed_size_hint());
        let entry = zip.get_entry(r.wayfinder()).map_err(|e| broken(format!("`{name}`: {e}")))?;
        let (start, _) = entry.compressed_data_range();
        let inside = start.checked_add(packed).is_some_and(|end| end <= len);
        if !inside || !deflated && size != packed {
            return Err(broken(format!("`{name}` is longer than the file")));
        }
        budget.take((2 * name.len() + 2 * size_of::<Record>() + 96) as u64, "the archive's directory")?;
        places.push((start, packed));
        records.insert(name, Record { start, packed, size, deflated });
    }
    // Overlapping records could unpack the same bytes many times, which defeats limits by the file's length.
    places.retain(|(_, packed)| *packed > 0);
    places.sort_unstable();
    if places.windows(2).any(|w| w[0].0 + w[0].1 > w[1].0) {
        return Err(broken("its records overlap"));
    }
    Ok(records)
}

/// The root folder of all records, and the layout.
fn root(records: &BTreeMap<String, Record>) -> Result<(String, Layout), Diagnostic> {
    let known = [("models/model.json", Layout::Folders), ("data.pkl", Layout::Pickle)];
    for (name, layout) in known {
        let ends =
            |n: &&String| n.strip_suffix(name).is_some_and(|root| root.is_empty() || root.ends_with('/'));
        if let Some(root) = records.keys().filter(ends).min_by_key(|n| n.len()) {
            return Ok((root.strip_suffix(name).unwrap_or_default().to_owned(), layout));
        }
    }
    Err(broken("it has no models/model.json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Cursor, Write};
    use zip::CompressionMethod;
    use zip::write::SimpleFileOptions;

    fn zipped(records: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(Cursor::new(vec![]));
        for (name, data) in records {
            zip.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
            zip.write_all(data).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    fn refused(bytes: Vec<u8>) -> String {
        let budget = Budget::new(bytes.len() as u64, None);
        let opened = Archive::open(Part::whole(Arc::new(bytes)), &crate::import::NoExternalData, budget);
        let read = opened.and_then(|a| Ok(a.program().map(|_| ())?));
        read.err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn archives_stay_in_their_bytes() {
        let model = ("m/models/model.json", &b"{}"[..]);
        assert_eq!(refused(zipped(&[model, ("m/x", b"12")], CompressionMethod::Stored)), "");
        for name in ["../x", "/x", "m/../../x", "c:x", "a\\x"] {
            let e = refused(zipped(&[model, (name, b"12")], CompressionMethod::Stored));
            assert!(e.contains("leaves the archive"), "{name}: {e}");
        }
        // Both entries of the directory point to the first record.
        let mut both = zipped(&[model, ("m/models/model2json", b"12")], CompressionMethod::Stored);
        let entry = both.windows(4).rposition(|w| w == b"PK\x01\x02").unwrap();
        both[entry + 42..entry + 46].copy_from_slice(&[0; 4]);
        let e = refused(both);
        assert!(e.contains("overlap"), "{e}");
        let bomb = vec![b' '; 4 << 20];
        let e = refused(zipped(&[("m/models/model.json", &bomb)], CompressionMethod::Deflated));
        assert!(e.contains("would become"), "{e}");
    }
}
