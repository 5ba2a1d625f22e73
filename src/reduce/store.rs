//! The constants of a model that is being reduced, in a file that all candidates share.

use crate::output::Beside;
use crate::{Error, ModelFile};
use prost::Message;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wgfc_compiler::Diagnostic;
use wgfc_compiler::import::NoExternalData;
use wgfc_compiler::import::onnx::weights::Weights;
use wgfc_compiler::import::onnx::*;
use wgfc_ir::{DType, Scalar, Tensor};

/// Constants of at most this many bytes are stored in the candidates themselves.
const SMALL: usize = 1024;
/// The name of the file of larger constants, beside the candidates.
const FILE: &str = "weights.bin";
/// The prefix of the locations of tensors whose file is missing.
const MISSING: &str = "missing-weights-";

/// A folder for candidates, and the file of their large constants.
pub struct Store {
    /// The folder is removed even if a signal ends the process.
    folder: Beside,
    file: File,
    len: u64,
    missing: usize,
}

fn at(path: &Path, e: &std::io::Error) -> Error {
    Error::file_help(
        path,
        format!("cannot be used for temporary models: {e}"),
        "free some space in the folder for temporary files, or set TMPDIR to another",
    )
}

impl Store {
    /// An empty store in the folder for temporary files.
    pub fn new() -> Result<Store, Error> {
        let temporary = std::env::temp_dir();
        let folder = Beside::new(&temporary).map_err(|e| at(&temporary, &e))?;
        let path = folder.join(FILE);
        let file =
            File::options().read(true).write(true).create_new(true).open(&path).map_err(|e| at(&path, &e))?;
        Ok(Store { folder, file, len: 0, missing: 0 })
    }

    /// Converts a constant of the model to its form in candidates. If its file is missing, the result refers to a missing
    /// file too.
    pub fn take(&mut self, t: &TensorProto, file: &ModelFile) -> Result<TensorProto, Error> {
        let external = t.data_location == 1 || !t.external_data.is_empty();
        let location = t.external_data.iter().find(|e| e.key == "location").map(|e| e.value.as_str());
        let gone = |l: &str| wgfc_compiler::import::ExternalData::open(file, l).is_err();
        if external && location.is_some_and(gone) {
            return Ok(self.absent(t));
        }
        match Weights::new(file, false).tensor(t) {
            Ok(x) => self.put(&t.name, &x),
            // For instance a constant of strings, which is kept unchanged.
            Err(_) if !external => Ok(t.clone()),
            Err(e) => {
                let d = Diagnostic::model(format!("initializer \"{}\": {}", t.name, e.message));
                Err(Error::Compile { path: Some(file.path().to_owned()), errors: d.into() })
            }
        }
    }

    /// A constant of the same type and shape in a file that does not exist.
    fn absent(&mut self, t: &TensorProto) -> TensorProto {
        self.missing += 1;
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        TensorProto {
            name: t.name.clone(),
            dims: t.dims.clone(),
            data_type: t.data_type,
            data_location: 1,
            external_data: vec![entry("location", format!("{MISSING}{}", self.missing))],
            ..TensorProto::default()
        }
    }

    /// Stores a tensor. Returns it in the form that candidates contain.
    pub fn put(&mut self, name: &str, t: &Tensor) -> Result<TensorProto, Error> {
        let bytes = t.bytes().unwrap_or_default();
        if bytes.len() <= SMALL {
            return Ok(TensorProto::of(name, t));
        }
        let path = self.folder.join(FILE);
        let offset = self.len;
        self.file
            .seek(SeekFrom::Start(offset))
            .and_then(|_| self.file.write_all(bytes))
            .map_err(|e| at(&path, &e))?;
        self.len += bytes.len() as u64;
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        Ok(TensorProto {
            name: name.into(),
            dims: t.shape.iter().map(|d| *d as i64).collect(),
            data_type: data_type::code(t.dtype),
            data_location: 1,
            external_data: vec![
                entry("location", FILE.into()),
                entry("offset", offset.to_string()),
                entry("length", bytes.len().to_string()),
            ],
            ..TensorProto::default()
        })
    }

    /// The tensor of a candidate's constant; `None` if it is missing or not numeric.
    pub fn get(&self, t: &TensorProto) -> Option<Tensor> {
        let value = |k: &str| t.external_data.iter().find(|e| e.key == k).map(|e| e.value.as_str());
        if t.data_location != 1 {
            return Weights::new(&NoExternalData, false).tensor(t).ok();
        }
        let (offset, length) = (value("offset")?.parse().ok()?, value("length")?.parse::<usize>().ok()?);
        let mut bytes = vec![0; length];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(offset)).ok()?;
        file.read_exact(&mut bytes).ok()?;
        let shape = t.dims.iter().map(|d| usize::try_from(*d).ok()).collect::<Option<Vec<_>>>()?;
        Tensor::shared(data_type::dtype(t.data_type)?, shape, Arc::new(bytes), 0, length).ok()
    }

    /// The first `to` elements of a constant along an axis.
    pub fn cut(&mut self, t: &TensorProto, axis: usize, to: usize) -> Option<TensorProto> {
        if is_missing(t) {
            let mut t = t.clone();
            *t.dims.get_mut(axis)? = to as i64;
            return Some(t);
        }
        let x = cut(&self.get(t)?, axis, to)?;
        self.put(&t.name, &x).ok()
    }

    /// Writes a candidate, replacing the previous one.
    pub fn write(&self, m: &ModelProto) -> Result<PathBuf, Error> {
        let path = self.folder.join("candidate.onnx");
        // The file is created anew each time, as a hanging process may still use the previous one.
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, m.encode_to_vec()).map_err(|e| at(&path, &e))?;
        Ok(path)
    }

    /// A candidate with all of its constants embedded, except missing ones.
    pub fn whole(&self, m: &ModelProto) -> ModelProto {
        let mut m = m.clone();
        for t in m.graph.iter_mut().flat_map(|g| &mut g.initializer) {
            if let Some(x) = self.get(t).filter(|_| t.data_location == 1) {
                *t = TensorProto::of(&t.name, &x);
            }
        }
        m
    }
}

/// Whether a constant's file is missing.
pub fn is_missing(t: &TensorProto) -> bool {
    t.external_data.iter().any(|e| e.key == "location" && e.value.starts_with(MISSING))
}

/// The bytes of a constant's elements.
pub fn bytes(t: &TensorProto) -> u64 {
    let n = t.dims.iter().try_fold(1u64, |a, d| a.checked_mul(u64::try_from(*d).ok()?));
    data_type::dtype(t.data_type).zip(n).map_or(0, |(d, n)| d.bytes_of(n))
}

fn cut(t: &Tensor, axis: usize, to: usize) -> Option<Tensor> {
    let inner: usize = t.shape.get(axis + 1..)?.iter().product();
    let (row, keep) = (t.shape[axis] * inner, to * inner);
    let mut shape = t.shape.clone();
    shape[axis] = to;
    if t.dtype.bits().is_multiple_of(8) {
        let size = t.dtype.bits() / 8;
        let kept = t.bytes()?.chunks((row * size).max(1)).flat_map(|c| c.iter().take(keep * size)).copied();
        return Tensor::new(t.dtype, shape, kept.collect()).ok();
    }
    let v = t.scalars()?;
    let kept: Vec<Scalar> = v.chunks(row.max(1)).flat_map(|c| c.iter().take(keep)).copied().collect();
    Some(Tensor::from_scalars(t.dtype, shape, &kept))
}

/// A tensor whose elements are all 1.
pub fn ones(dtype: DType, shape: Vec<usize>) -> Tensor {
    Tensor::generate(dtype, shape, |_| Scalar::from_i64(dtype, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_come_back_and_are_cut() {
        let mut s = Store::new().unwrap();
        let v: Vec<f32> = (0..3 * 700).map(|i| i as f32).collect();
        let t = Tensor::from_f32(vec![3, 700], &v);
        let p = s.put("w", &t).unwrap();
        assert_eq!((p.data_location, s.len), (1, 3 * 700 * 4));
        assert_eq!(s.get(&p).unwrap().to_f32s().unwrap(), v);
        let c = s.cut(&p, 1, 2).unwrap();
        assert_eq!((c.dims.clone(), c.data_location), (vec![3, 2], 0));
        assert_eq!(s.get(&c).unwrap().to_f32s().unwrap(), [0.0, 1.0, 700.0, 701.0, 1400.0, 1401.0]);
        let m = ModelProto {
            graph: Some(GraphProto { initializer: vec![p], ..GraphProto::default() }),
            ..ModelProto::default()
        };
        let whole = s.whole(&m).graph.unwrap();
        assert_eq!(whole.initializer[0].raw_data.len(), 3 * 700 * 4);
        let gone = s.absent(&whole.initializer[0]);
        assert!(is_missing(&gone) && s.get(&gone).is_none());
        assert_eq!(bytes(&s.cut(&gone, 0, 1).unwrap()), 2800);
    }
}
