//! The container: a zip file with the program as JSON and the storages of its tensors.
//!
//! Records are mostly stored as they are, so that tensors share the file's bytes; a file that was packed again may have deflated
//! ones. The root folder has the name that the file had when it was saved.

use crate::{Diagnostic, Errors};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::sync::Arc;
use wgfc_ir::tensor::ByteOwner;
use zip::{CompressionMethod, ZipArchive};

/// The most bytes of a record that is no storage, and of one that is deflated.
const MOST_TEXT: u64 = 1 << 30;
const MOST_DEFLATED: u64 = 16 << 30;
/// The most records.
const MOST_RECORDS: usize = 1 << 20;

/// An opened archive.
pub struct Archive {
    bytes: Arc<dyn ByteOwner>,
    /// By name, below the root.
    records: BTreeMap<String, Record>,
    /// How it is laid out.
    pub layout: Layout,
}

/// What versions of torch wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// 2.8 and later: a root folder, `models/`, `data/`.
    Folders,
    /// 2.5 to 2.7: four records at the top.
    Flat,
    /// The program's JSON without a container.
    Bare,
}

struct Record {
    /// Where its bytes begin.
    start: u64,
    packed: u64,
    size: u64,
    deflated: bool,
}

/// A record's bytes.
pub enum Bytes {
    /// A part of the file.
    Shared(Arc<dyn ByteOwner>, usize, usize),
    /// What was inflated.
    Owned(Vec<u8>),
}

fn broken(why: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::model(format!("this is no archive of torch.export: {why}"))
        .help("write it with torch.export.save(torch.export.export(model, args), path)")
}

impl Archive {
    /// Whether bytes begin as a zip file does.
    pub fn is_zip(bytes: &[u8]) -> bool {
        bytes.starts_with(b"PK\x03\x04")
    }

    /// Reads the directory.
    ///
    /// # Errors
    /// Where it is no zip file, holds names that leave it, or has no program.
    pub fn open(bytes: Arc<dyn ByteOwner>) -> Result<Archive, Errors> {
        let all = (*bytes).as_ref();
        if !Archive::is_zip(all) {
            return Ok(Archive { bytes: bytes.clone(), records: BTreeMap::new(), layout: Layout::Bare });
        }
        let len = all.len() as u64;
        let mut zip = ZipArchive::new(Cursor::new(all)).map_err(broken)?;
        if zip.len() > MOST_RECORDS {
            return Err(broken(format!("it has {} records", zip.len())).into());
        }
        let mut records = BTreeMap::new();
        for i in 0..zip.len() {
            let r = zip.by_index_raw(i).map_err(broken)?;
            let name = r.name().to_owned();
            if r.enclosed_name().is_none() || name.contains('\\') {
                return Err(broken(format!("`{}` leaves the archive", name.escape_default())).into());
            }
            let deflated = match r.compression() {
                CompressionMethod::Stored => false,
                CompressionMethod::Deflated => true,
                other => return Err(broken(format!("`{name}` is packed by {other}")).into()),
            };
            let (size, packed) = (r.size(), r.compressed_size());
            let start = r.data_start().ok_or_else(|| broken(format!("`{name}` has no data")))?;
            let inside = start.checked_add(packed).is_some_and(|end| end <= len);
            if !inside || !deflated && size != packed {
                return Err(broken(format!("`{name}` is longer than the file")).into());
            }
            records.insert(name, Record { start, packed, size, deflated });
        }
        let flat = records.contains_key("serialized_exported_program.json");
        let layout = if flat { Layout::Flat } else { Layout::Folders };
        if layout == Layout::Folders {
            let root = records.keys().find_map(|n| n.strip_suffix("models/model.json").map(str::to_owned));
            let root = root.ok_or_else(|| broken("it has no models/model.json"))?;
            let below = |(n, r): (String, Record)| Some((n.strip_prefix(&root)?.to_owned(), r));
            records = records.into_iter().filter_map(below).collect();
        }
        Ok(Archive { bytes, records, layout })
    }

    /// Whether there is such a record.
    pub fn has(&self, name: &str) -> bool {
        self.records.contains_key(name)
    }

    /// How long a record is.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.records.get(name).map(|r| r.size)
    }

    /// A short record, as a whole.
    ///
    /// # Errors
    /// Where it is missing, damaged or longer than a text can be.
    pub fn text(&self, name: &str) -> Result<Cow<'_, [u8]>, Diagnostic> {
        let r = self.records.get(name).ok_or_else(|| broken(format!("`{name}` is missing")))?;
        if r.size > MOST_TEXT {
            return Err(broken(format!("`{name}` has {} bytes", r.size)));
        }
        if r.deflated { self.inflate(name, r).map(Cow::Owned) } else { Ok(Cow::Borrowed(self.slice(r))) }
    }

    /// A record's bytes, shared with the file where they are stored as they are.
    ///
    /// # Errors
    /// Where it is missing or damaged.
    pub fn bytes(&self, name: &str) -> Result<Bytes, Diagnostic> {
        let r = self.records.get(name).ok_or_else(|| broken(format!("`{name}` is missing")))?;
        if r.deflated {
            return self.inflate(name, r).map(Bytes::Owned);
        }
        Ok(Bytes::Shared(self.bytes.clone(), r.start as usize, r.size as usize))
    }

    fn slice(&self, r: &Record) -> &[u8] {
        (*self.bytes).as_ref().get(r.start as usize..(r.start + r.packed) as usize).unwrap_or_default()
    }

    fn inflate(&self, name: &str, r: &Record) -> Result<Vec<u8>, Diagnostic> {
        // Deflate packs 1,032 bytes into one at best.
        if r.size > MOST_DEFLATED || r.size / 1040 > r.packed {
            return Err(broken(format!("`{name}` says that {} bytes become {}", r.packed, r.size)));
        }
        let mut out = vec![];
        let read = flate2::read::DeflateDecoder::new(self.slice(r)).take(r.size + 1).read_to_end(&mut out);
        match read {
            Ok(n) if n as u64 == r.size => Ok(out),
            Ok(_) => Err(broken(format!("`{name}` has another size than it says"))),
            Err(e) => Err(broken(format!("`{name}` is damaged: {e}"))),
        }
    }
}
