//! Test data in ONNX's folder layout, `model.onnx`, `test_data_set_N/{input,output}_I.pb`, and programs of torch,
//! `model.json`, `in_I.npy`, `out_I.npy`.
//!
//! The tensor decoder here shares no code with the compiler's, so that an error in one cannot hide an error
//! in the other.

use prost::Message;
use std::path::{Path, PathBuf};
use wgfc_ir::{DType, Tensor};

/// The fields of ONNX's `TensorProto` that the test data uses.
#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    data_type: Option<i32>,
    #[prost(float, repeated, tag = "4")]
    float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    int32_data: Vec<i32>,
    #[prost(int64, repeated, tag = "7")]
    int64_data: Vec<i64>,
    #[prost(bytes = "vec", optional, tag = "9")]
    raw_data: Option<Vec<u8>>,
    #[prost(double, repeated, tag = "10")]
    double_data: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    uint64_data: Vec<u64>,
}

/// The type with this `TensorProto.DataType` code.
fn dtype(code: i32) -> Result<DType, String> {
    use DType::*;
    Ok(match code {
        1 => F32,
        2 => U8,
        3 => I8,
        4 => U16,
        5 => I16,
        6 => I32,
        7 => I64,
        9 => Bool,
        10 => F16,
        11 => F64,
        12 => U32,
        13 => U64,
        16 => BF16,
        17 => F8E4M3,
        18 => F8E4M3Uz,
        19 => F8E5M2,
        20 => F8E5M2Uz,
        21 => U4,
        22 => I4,
        23 => F4E2M1,
        24 => F8E8M0,
        25 => U2,
        26 => I2,
        8 => return Err("tensor of strings".into()),
        14 | 15 => return Err("complex tensor".into()),
        _ => return Err(format!("element type {code}")),
    })
}

/// Reads one serialised `TensorProto`.
pub fn tensor(bytes: &[u8]) -> Result<Tensor, String> {
    let p = TensorProto::decode(bytes).map_err(|e| e.to_string())?;
    let dtype = dtype(p.data_type.unwrap_or(0))?;
    let shape: Vec<usize> = p.dims.iter().map(|d| *d as usize).collect();
    let packed = if let Some(raw) = p.raw_data {
        raw
    } else if !p.float_data.is_empty() {
        p.float_data.iter().flat_map(|v| v.to_le_bytes()).collect()
    } else if !p.int64_data.is_empty() {
        p.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect()
    } else if !p.double_data.is_empty() {
        p.double_data.iter().flat_map(|v| v.to_le_bytes()).collect()
    } else if !p.uint64_data.is_empty() {
        p.uint64_data.iter().flat_map(|v| v.to_le_bytes()[..dtype.bits() / 8].to_vec()).collect()
    } else {
        // Types of at most 16 bits store one value per field; 4-bit types one packed byte per field.
        let width = dtype.bits().max(8) / 8;
        p.int32_data.iter().flat_map(|v| v.to_le_bytes()[..width].to_vec()).collect()
    };
    Tensor::new(dtype, shape, packed)
}

/// A model's folder.
#[derive(Clone, Debug)]
pub struct Folder {
    /// The path of the folder.
    pub path: PathBuf,
    /// The last component of the path.
    pub name: String,
}

/// Inputs and expected outputs of one run.
pub struct DataSet {
    /// In the model's order.
    pub inputs: Vec<Tensor>,
    /// In the model's order.
    pub outputs: Vec<Tensor>,
}

impl Folder {
    /// The folder `name` in `root`.
    pub fn new(root: &Path, name: &str) -> Folder {
        Folder { path: root.join(name), name: name.to_owned() }
    }
    /// Every folder in `root` that holds a model, sorted by name.
    pub fn all(root: &Path) -> Vec<Folder> {
        let Ok(dir) = std::fs::read_dir(root) else { return vec![] };
        let mut names: Vec<String> = dir
            .filter_map(|e| e.ok()?.file_name().into_string().ok())
            .filter(|n| !n.ends_with(".partial"))
            .collect();
        names.sort();
        names.iter().map(|n| Folder::new(root, n)).filter(|f| f.model_path().exists()).collect()
    }
    /// The model's file.
    pub fn model_path(&self) -> PathBuf {
        let program = self.path.join("model.json");
        if program.exists() { program } else { self.path.join("model.onnx") }
    }
    /// The arrays `KIND_0.npy`, `KIND_1.npy`, ….
    fn arrays(&self, kind: &str) -> Result<Vec<Tensor>, String> {
        let files = (0..).map(|i| self.path.join(format!("{kind}_{i}.npy"))).take_while(|f| f.exists());
        files.map(|f| wgfc::npy::read(&f).map_err(|e| format!("{}: {e}", f.display()))).collect()
    }
    /// The number of data sets.
    pub fn data_sets(&self) -> usize {
        (0..).take_while(|n| self.path.join(format!("test_data_set_{n}")).is_dir()).count()
    }
    /// Reads data set `n`.
    pub fn data_set(&self, n: usize) -> Result<DataSet, String> {
        if self.model_path().ends_with("model.json") {
            return Ok(DataSet { inputs: self.arrays("in")?, outputs: self.arrays("out")? });
        }
        let read = |kind: &str| -> Result<Vec<Tensor>, String> {
            let mut out = vec![];
            loop {
                let file = self.path.join(format!("test_data_set_{n}/{kind}_{}.pb", out.len()));
                let Ok(bytes) = std::fs::read(&file) else { return Ok(out) };
                out.push(tensor(&bytes).map_err(|e| format!("{kind} {}: {e}", out.len()))?);
            }
        };
        Ok(DataSet { inputs: read("input")?, outputs: read("output")? })
    }
}
