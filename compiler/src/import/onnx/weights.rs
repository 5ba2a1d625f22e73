//! Constants of the model, from typed fields, packed bytes, or other files.

use super::messages::{StringStringEntryProto, TensorProto, data_type};
use super::op::OpError;
use crate::import::ExternalData;
use std::collections::HashMap;
use std::sync::Arc;
use wgfc_ir::tensor::{ByteOwner, checked_numel};
use wgfc_ir::{DType, Scalar, Tensor, storage};

/// Reads tensors, and keeps the files that it has opened.
pub struct Weights<'m> {
    external: &'m dyn ExternalData,
    graph_only: bool,
    files: HashMap<String, Result<Arc<dyn ByteOwner>, String>>,
    /// The number of tensors that contain NaN, and the total number of NaN elements.
    pub nan: (usize, usize),
}

impl<'m> Weights<'m> {
    /// A reader. With `graph_only`, external data is not opened.
    pub fn new(external: &'m dyn ExternalData, graph_only: bool) -> Weights<'m> {
        Weights { external, graph_only, files: HashMap::new(), nan: (0, 0) }
    }

    /// Reads a tensor.
    pub fn tensor(&mut self, t: &TensorProto) -> Result<Tensor, OpError> {
        let Some(dtype) = data_type::dtype(t.data_type) else {
            let what = format!("a constant of element type {}", data_type::name(t.data_type));
            let help = "cut the part out of the model that uses it: devices compute with numbers and bools";
            return Err(if t.data_type == 0 {
                OpError::model(what)
            } else {
                OpError::unsupported(what, help)
            });
        };
        let shape = t
            .dims
            .iter()
            .map(|d| usize::try_from(*d).map_err(|_| format!("negative dimension {d} in shape {:?}", t.dims)))
            .collect::<Result<Vec<_>, _>>()?;
        let n = checked_numel(&shape).ok_or_else(|| format!("shape {shape:?} is too large to exist"))?;
        let tensor = if t.data_location == 1 || !t.external_data.is_empty() {
            self.external(dtype, shape, &t.external_data)?
        } else if !t.raw_data.is_empty() {
            let bytes = t.raw_data.clone();
            let len = bytes.len();
            Tensor::shared(dtype, shape, Arc::new(bytes), 0, len)?
        } else {
            typed(dtype, shape, n, t)?
        };
        // Remote tensors are not read only to count NaN.
        let bytes = if tensor.is_remote() { None } else { tensor.bytes() };
        let nan = bytes.map_or(0, |b| wgfc_ir::nan::count_nan(dtype, b));
        if nan > 0 {
            self.nan = (self.nan.0 + 1, self.nan.1 + nan);
        }
        Ok(tensor)
    }

    fn external(
        &mut self,
        dtype: DType,
        shape: Vec<usize>,
        entries: &[StringStringEntryProto],
    ) -> Result<Tensor, OpError> {
        let get = |k: &str| entries.iter().find(|e| e.key == k).map(|e| e.value.as_str());
        let number = |k: &str| {
            get(k)
                .map(|v| {
                    v.trim()
                        .parse::<u64>()
                        .map_err(|_| format!("external data: `{k}` is `{v}`, not a number"))
                })
                .transpose()
        };
        let location = get("location").ok_or("external data without a location")?;
        check_location(location)?;
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
        let need = dtype.bytes_of(checked_numel(&shape).map_or(u64::MAX, |n| n as u64));
        if let Some(l) = length
            && l != need
        {
            return Err(format!("{dtype}{shape:?} needs {need} bytes, its external data has {l}").into());
        }
        if self.graph_only {
            return Ok(Tensor::absent(dtype, shape));
        }
        let unreadable = |e: &str| {
            OpError::model(format!("cannot read external data `{location}`: {e}"))
                .help("put the file beside the model, or compile the graph alone with --graph-only")
        };
        if let Some(remote) = self.external.remote(location, offset, need) {
            return Ok(Tensor::remote(dtype, shape, Arc::new(remote.map_err(|e| unreadable(&e))?))?);
        }
        if !self.files.contains_key(location) {
            self.files.insert(location.to_owned(), self.external.open(location));
        }
        let file = match self.files.get(location) {
            Some(Ok(f)) => f.clone(),
            Some(Err(e)) => return Err(unreadable(e)),
            None => return Err(OpError::internal("an opened file is gone")),
        };
        let have = (*file).as_ref().len();
        let end = offset.checked_add(need).filter(|end| *end <= have as u64);
        let range = end.and_then(|_| Some((usize::try_from(offset).ok()?, usize::try_from(need).ok()?)));
        let Some((begin, need)) = range else {
            return Err(format!(
                "external data `{location}`: {need} bytes from {offset} are outside the file ({have} bytes)"
            )
            .into());
        };
        Ok(Tensor::shared(dtype, shape, file, begin, need)?)
    }
}

/// Refuses locations outside of the model's folder.
fn check_location(location: &str) -> Result<(), String> {
    let parts: Vec<&str> = location.split(['/', '\\']).collect();
    let absolute = location.starts_with(['/', '\\']) || parts.first().is_some_and(|p| p.contains(':'));
    if location.is_empty() || location.contains('\0') || absolute || parts.contains(&"..") {
        return Err(format!("external data location `{location}` is not inside the model's folder"));
    }
    Ok(())
}

/// Reads a tensor from the typed fields.
fn typed(dtype: DType, shape: Vec<usize>, n: usize, t: &TensorProto) -> Result<Tensor, OpError> {
    let wrong =
        |have: usize| OpError::model(format!("{dtype}{shape:?} has {n} elements, its data has {have}"));
    let bytes: Vec<u8> = match dtype {
        DType::F32 => t.float_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F64 => t.double_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::I64 => t.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::U64 => t.uint64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::U32 => t.uint64_data.iter().flat_map(|v| (*v as u32).to_le_bytes()).collect(),
        // Elements narrower than a byte are already packed, with one byte per int32.
        d if d.bits() <= 8 && d != DType::Bool => t.int32_data.iter().map(|v| *v as u8).collect(),
        DType::Bool => t.int32_data.iter().map(|v| u8::from(*v != 0)).collect(),
        d if d.bits() == 16 => t.int32_data.iter().flat_map(|v| (*v as u16).to_le_bytes()).collect(),
        d => storage::encode(d, t.int32_data.iter().map(|v| Scalar::from_i64(DType::I32, i64::from(*v)))),
    };
    if bytes.len() != dtype.bytes_for(n) {
        return Err(wrong(bytes.len() * 8 / dtype.bits()));
    }
    Ok(Tensor::new(dtype, shape, bytes)?)
}
