//! Tensors by name in a safetensors file.

use crate::Error;
use crate::files::map_file;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use wgfc_compiler::budget::Budget;
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{DType, Tensor};

/// The key of wgfc's metadata in the header.
pub(crate) const METADATA_KEY: &str = "wgfc";

/// The metadata entry of a tensor whose type or shape safetensors cannot express.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct TrueType {
    pub dtype: DType,
    pub shape: Vec<usize>,
}

/// The true types of the tensors that need such an entry, by name.
pub(crate) type TrueTypes = BTreeMap<String, TrueType>;

/// The safetensors type of `dtype`; `None` if there is none with elements of whole bytes.
pub(crate) fn stored_as(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F64 => Dtype::F64,
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::F8E4M3Uz => Dtype::F8_E4M3FNUZ,
        DType::F8E5M2 => Dtype::F8_E5M2,
        DType::F8E5M2Uz => Dtype::F8_E5M2FNUZ,
        DType::F8E8M0 => Dtype::F8_E8M0,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
        DType::F4E2M1 | DType::I4 | DType::I2 | DType::U4 | DType::U2 => return None,
    })
}

/// Writes a file, which errors call `shown`. Tensors without values are left out. `metadata` makes the text of wgfc's
/// metadata.
pub(crate) fn write(
    (path, shown): (&Path, &Path),
    tensors: &BTreeMap<String, Tensor>,
    metadata: &dyn Fn(&TrueTypes) -> serde_json::Result<String>,
) -> Result<(), Error> {
    let mut tensors: Vec<(&String, &Tensor, &[u8])> =
        tensors.iter().filter_map(|(n, t)| Some((n, t, t.bytes()?))).collect();
    // Sorted by element width, widest first, each tensor starts at a multiple of its element's size.
    tensors.sort_by(|a, b| (b.1.dtype.bits(), a.0).cmp(&(a.1.dtype.bits(), b.0)));
    let mut infos = Vec::with_capacity(tensors.len());
    let mut true_types = TrueTypes::new();
    let mut total = 0usize;
    for (name, t, bytes) in &tensors {
        let (dtype, shape) = match stored_as(t.dtype) {
            Some(d) => (d, t.shape.clone()),
            None => {
                true_types.insert((*name).clone(), TrueType { dtype: t.dtype, shape: t.shape.clone() });
                (Dtype::U8, vec![bytes.len()])
            }
        };
        infos
            .push(((*name).clone(), TensorInfo { dtype, shape, data_offsets: (total, total + bytes.len()) }));
        total += bytes.len();
    }
    let internal = |e: String| Error::Internal(format!("the tensors cannot be written: {e}"));
    // There is a single key, as the library keeps metadata in a hash map without a fixed order.
    let text = metadata(&true_types).map_err(|e| internal(e.to_string()))?;
    let metadata = HashMap::from([(METADATA_KEY.to_owned(), text)]);
    let header = Metadata::new(Some(metadata), infos).map_err(|e| internal(e.to_string()))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| internal(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');

    let write = || -> std::io::Result<()> {
        let mut file = std::io::BufWriter::with_capacity(1 << 20, fs::File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for (_, _, bytes) in &tensors {
            file.write_all(bytes)?;
        }
        file.into_inner()?.sync_data()
    };
    write().map_err(|e| Error::unwritable(shown, &e))
}

/// The tensors of a file.
pub(crate) struct Read {
    /// Mapped into memory, see [`map_file`].
    pub tensors: BTreeMap<String, Tensor>,
    /// The text of wgfc's metadata.
    pub metadata: Option<String>,
}

/// The reason why a file was not read.
pub(crate) enum Unread {
    /// It cannot be read.
    File(Error),
    /// The faults of its contents; never empty.
    Damaged(Vec<String>),
}

/// A file that is mapped into memory, with its header.
pub(crate) struct Opened {
    pub owner: Arc<dyn ByteOwner>,
    /// The offset of the tensors' bytes in the file.
    data: usize,
    header: Metadata,
}

/// Opens a file. Its size is added to the budget, and reading its header draws from it.
pub(crate) fn open(path: &Path, budget: &Budget) -> Result<Opened, Unread> {
    let owner: Arc<dyn ByteOwner> = map_file(path).map_err(Unread::File)?;
    let bytes = (*owner).as_ref();
    budget.add_file(bytes.len() as u64);
    let length = bytes.first_chunk().map_or(0, |n| u64::from_le_bytes(*n));
    let header = usize::try_from(length).ok().and_then(|n| bytes.get(8..)?.get(..n));
    budget.take_json(header.unwrap_or_default()).map_err(|d| {
        Unread::File(Error::File { path: path.to_owned(), problems: vec![d.message], help: d.help })
    })?;
    let read = SafeTensors::read_metadata((*owner).as_ref());
    let (header, metadata) =
        read.map_err(|e| Unread::Damaged(vec![format!("is not a safetensors file: {e}")]))?;
    Ok(Opened { owner, data: 8 + header, header: metadata })
}

impl Opened {
    /// The text of a metadata entry.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.header.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// The tensors. `types` reads the true types from wgfc's metadata. The error lists all faults and is never empty.
    pub fn tensors(
        &self,
        types: &dyn Fn(&str) -> Result<TrueTypes, String>,
    ) -> Result<BTreeMap<String, Tensor>, Vec<String>> {
        let true_types = self.text(METADATA_KEY).map(types).transpose();
        let mut true_types =
            true_types.map_err(|e| vec![format!("metadata `{METADATA_KEY}`: {e}")])?.unwrap_or_default();
        let (mut tensors, mut problems) = (BTreeMap::new(), Vec::new());
        for (name, info) in self.header.tensors() {
            let (begin, end) = info.data_offsets;
            let ours = DType::ALL.iter().copied().find(|d| stored_as(*d) == Some(info.dtype));
            let (dtype, shape) = match (true_types.remove(&name), ours) {
                (Some(t), _) => (t.dtype, t.shape),
                (None, Some(d)) => (d, info.shape.clone()),
                (None, None) => {
                    problems.push(format!("tensor `{name}` has the unknown element type {}", info.dtype));
                    continue;
                }
            };
            match Tensor::shared(dtype, shape, self.owner.clone(), self.data + begin, end - begin) {
                Ok(t) => {
                    tensors.insert(name, t);
                }
                Err(e) => problems.push(format!("tensor `{name}`: {e}")),
            }
        }
        problems.sort();
        if problems.is_empty() { Ok(tensors) } else { Err(problems) }
    }
}

/// Reads a file within a budget. `types` reads the true types from wgfc's metadata.
pub(crate) fn read(
    path: &Path,
    budget: &Budget,
    types: &dyn Fn(&str) -> Result<TrueTypes, String>,
) -> Result<Read, Unread> {
    let file = open(path, budget)?;
    let tensors = file.tensors(types).map_err(Unread::Damaged)?;
    Ok(Read { tensors, metadata: file.text(METADATA_KEY).map(str::to_owned) })
}
