//! Reproducible random tensors, and random weights for models without theirs.

use crate::Error;
use crate::memory::afford;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use wgfc_compiler::Diagnostic;
use wgfc_compiler::import::onnx::{GraphProto, TensorProto, data_type};
use wgfc_compiler::import::{ExternalData, Format, checkpoint, decode, fx};
use wgfc_ir::tensor::{ByteOwner, checked_numel};
use wgfc_ir::{Class, DType, Scalar, Tensor};

/// The file of a checkpoint's weights, and the one that names the parts of those in several.
const CHECKPOINT: &str = "model.safetensors";
const CHECKPOINT_INDEX: &str = "model.safetensors.index.json";

/// SplitMix64, started from a seed and a name: the same two give the same numbers on every machine.
///
/// ```
/// use wgfc::random::Rng;
/// let mut rng = Rng::new(7, "weights");
/// let x = rng.unit_variance();
/// assert!(x.abs() <= 3_f32.sqrt());
/// // The same seed and name give the same numbers.
/// assert_eq!(Rng::new(7, "weights").unit_variance(), x);
/// ```
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    /// The generator for a seed and a name.
    pub fn new(seed: u64, name: &str) -> Rng {
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Rng(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A uniform number with mean 0 and variance 1, in ±√3.
    pub fn unit_variance(&mut self) -> f32 {
        ((self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 3f32.sqrt()
    }
}

/// A random tensor for an input: floats uniform with mean 0 and variance 1, integers and booleans 0 or 1
/// (the only values that are valid ids, masks and indices everywhere).
///
/// ```
/// use wgfc::{DType, random};
/// let x = random::tensor(DType::F32, vec![2, 3], "x", 0);
/// assert_eq!(x, random::tensor(DType::F32, vec![2, 3], "x", 0));
/// ```
pub fn tensor(dtype: DType, shape: Vec<usize>, name: &str, seed: u64) -> Tensor {
    fill(dtype, shape, &mut Rng::new(seed, name), 0.0, 1.0)
}

/// Whether a source asks for random numbers: `random`, or `random:SEED`.
///
/// ```
/// use wgfc::random::is_source;
/// assert!(is_source("random:7") && !is_source("x.npy"));
/// ```
pub fn is_source(words: &str) -> bool {
    words == "random" || words.starts_with("random:")
}

/// The initial values of a parameter of this name and shape. Floats are scaled as in [`RandomWeights`]; `source` is `random`
/// or `random:SEED`.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// use wgfc::DType;
/// use wgfc::random::{cost, weight_like};
/// let w = weight_like("layer.weight", DType::F32, vec![64, 64], "random:7")?;
/// assert_eq!(w.shape, [64, 64]);
/// assert_eq!(cost(DType::F32, &w.shape), 2 * 4 * 64 * 64);
/// # Ok(()) }
/// ```
pub fn weight_like(name: &str, dtype: DType, shape: Vec<usize>, source: &str) -> Result<Tensor, Error> {
    let seed = match source.strip_prefix("random:") {
        None => 0,
        Some(s) => s.parse().map_err(|_| {
            Error::usage(format!("`{source}`: the seed `{s}` is not a whole number"), "write as in random:7")
        })?,
    };
    affordable(usize::try_from(cost(dtype, &shape)).unwrap_or(usize::MAX))?;
    Ok(parameter(&fx::StoredTensor { name: name.to_owned(), dtype, shape, first: 0 }, seed))
}

/// The bytes of memory that making a tensor takes, including the tensor itself.
pub fn cost(dtype: DType, shape: &[usize]) -> u64 {
    checked_numel(shape).map_or(u64::MAX, |n| 2 * dtype.bytes_for(n) as u64)
}

fn fill(dtype: DType, shape: Vec<usize>, rng: &mut Rng, mean: f32, deviation: f32) -> Tensor {
    let n: usize = shape.iter().product();
    if dtype == DType::F32 {
        let v: Vec<f32> = (0..n).map(|_| mean + deviation * rng.unit_variance()).collect();
        return Tensor::from_f32(shape, &v);
    }
    Tensor::generate(dtype, shape, |_| match dtype.class() {
        Class::Float => Scalar::from_f64(dtype, f64::from(mean + deviation * rng.unit_variance())),
        _ => Scalar::from_i64(dtype, (rng.bits() >> 63) as i64),
    })
}

/// Random weights in place of the external data of a model that came without it, or of a checkpoint of which only the `config.json` is there.
///
/// The numbers depend only on the name, shape and use of each tensor. They are scaled by the fan-in of the operator that
/// reads them (He initialisation), so that activations neither vanish nor explode in the network. The outputs are
/// meaningless, but run time and agreement between back ends can be measured.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let hollow = wgfc::hollow::hollow(&wgfc::ModelFile::open(&path)?, false)?.model;
/// # let bytes = prost::Message::encode_to_vec(&hollow);
/// use std::sync::Arc;
/// // A model whose weights are missing.
/// let file = wgfc::ModelFile::of_bytes(Arc::new(bytes)).with_random_weights()?;
/// let (tensors, bytes) = file.random_weights().expect("they were requested").size();
/// println!("{tensors} tensors of {bytes} bytes are made up");
/// let program = file.compile(&wgfc::Options::default())?;
/// assert!(!program.stats.weights_absent);
/// # Ok(()) }
/// ```
pub struct RandomWeights {
    files: BTreeMap<String, Arc<dyn ByteOwner>>,
    tensors: usize,
    bytes: u64,
}

impl RandomWeights {
    /// Generates all external tensors of an ONNX model, or those that an archive of torch.export refers to but neither it
    /// nor `external` contains.
    pub fn of(model: &[u8], external: &dyn ExternalData) -> Result<RandomWeights, Error> {
        match Format::of(model) {
            Format::Archive => return RandomWeights::of_archive(model, external),
            Format::Checkpoint
                if [CHECKPOINT, CHECKPOINT_INDEX].iter().all(|f| external.open(f).is_err()) =>
            {
                return RandomWeights::of_checkpoint(model);
            }
            Format::Gguf | Format::Checkpoint => {
                let message = "the file has its own weights, so none are made up";
                return Err(Error::usage(message, "leave --random-weights out"));
            }
            Format::Onnx => {}
        }
        let wrong = |m: String| Error::from(wgfc_compiler::Errors::from(Diagnostic::model(m)));
        let model = decode(model)?;
        let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let (mut tensors, mut bytes) = (0, 0);
        if let Some(graph) = &model.graph {
            let uses = uses(graph);
            let external =
                || graph.initializer.iter().filter(|t| t.data_location == 1 || !t.external_data.is_empty());
            // A file is as long as the largest end of its tensors.
            let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
            for t in external() {
                let (location, offset) = place(t);
                let end = extent(t).and_then(|n| n.checked_add(offset)).filter(|e| *e < 1 << 40);
                let end =
                    end.ok_or_else(|| wrong(format!("initializer `{}` lies beyond any file", t.name)))?;
                let known = ends.entry(location).or_default();
                *known = end.max(*known);
            }
            let longest = external().filter_map(extent).max().unwrap_or(0);
            let all = ends.values().sum::<usize>().saturating_add(2 * longest);
            affordable(all)?;
            for (location, end) in ends {
                files.insert(location.to_owned(), vec![0; end]);
            }
            for t in external() {
                let (location, offset) = place(t);
                let values = weight(t, uses.get(t.name.as_str()))
                    .ok_or_else(|| wrong(format!("initializer `{}` has no valid type and shape", t.name)))?;
                let data = values.bytes().unwrap_or_default();
                let file = files.get_mut(location).map(Vec::as_mut_slice).unwrap_or_default();
                if let Some(place) = file.get_mut(offset..).and_then(|f| f.get_mut(..data.len())) {
                    place.copy_from_slice(data);
                }
                tensors += 1;
                bytes += data.len() as u64;
            }
        }
        let files = files.into_iter().map(|(k, v)| (k, Arc::new(v) as Arc<dyn ByteOwner>)).collect();
        Ok(RandomWeights { files, tensors, bytes })
    }

    fn of_archive(model: &[u8], external: &dyn ExternalData) -> Result<RandomWeights, Error> {
        let wrong = |record: &str| {
            let d = Diagnostic::model(format!("the storage `{record}` is longer than any file"));
            Error::from(wgfc_compiler::Errors::from(d.help("save the archive again")))
        };
        let storages = fx::missing_storages(model, external, None)?;
        let extent = |t: &fx::StoredTensor| {
            let n = checked_numel(&t.shape)?;
            let end = t.dtype.bytes_for(t.first).checked_add(t.dtype.bytes_for(n))?;
            (end < 1 << 40).then_some(end)
        };
        let mut ends = vec![];
        for s in &storages {
            let end = s.tensors.iter().map(extent).try_fold(0, |a, b| Some(b?.max(a)));
            ends.push(end.ok_or_else(|| wrong(&s.record))?);
        }
        let longest = ends.iter().max().copied().unwrap_or(0);
        affordable(ends.iter().fold(2 * longest, |a, b| a.saturating_add(*b)))?;
        let mut made = RandomWeights { files: BTreeMap::new(), tensors: 0, bytes: 0 };
        for (s, end) in storages.into_iter().zip(ends) {
            let mut file = vec![0; end];
            for t in &s.tensors {
                let values = parameter(t, 0);
                let data = values.bytes().unwrap_or_default();
                let start = t.dtype.bytes_for(t.first);
                if let Some(place) = file.get_mut(start..).and_then(|f| f.get_mut(..data.len())) {
                    place.copy_from_slice(data);
                }
                made.tensors += 1;
            }
            made.bytes += end as u64;
            made.files.insert(s.record, Arc::new(file));
        }
        Ok(made)
    }

    /// Generates all tensors of a checkpoint by its `config.json`, as one file of safetensors.
    fn of_checkpoint(config: &[u8]) -> Result<RandomWeights, Error> {
        let tensors = checkpoint::tensors(config)?;
        let (mut header, mut end) = (serde_json::Map::new(), 0usize);
        let too_long =
            || Error::usage("the checkpoint is longer than any file", "give a smaller configuration");
        for t in &tensors {
            let bytes = checked_numel(&t.shape).map(|n| t.dtype.bytes_for(n)).ok_or_else(too_long)?;
            let next = end.checked_add(bytes).filter(|e| *e < 1 << 42).ok_or_else(too_long)?;
            let place = serde_json::json!({
                "dtype": t.dtype.to_string().to_uppercase(), "shape": t.shape, "data_offsets": [end, next],
            });
            header.insert(t.name.clone(), place);
            end = next;
        }
        affordable(end)?;
        let header = serde_json::Value::from(header).to_string();
        let mut file = Vec::with_capacity(8 + header.len() + end);
        file.extend((header.len() as u64).to_le_bytes());
        file.extend(header.as_bytes());
        for t in &tensors {
            let values = scaled(&t.name, t.dtype, t.shape.clone(), 0);
            file.extend(values.bytes().unwrap_or_default());
        }
        let files = [(CHECKPOINT.to_owned(), Arc::new(file) as Arc<dyn ByteOwner>)].into();
        Ok(RandomWeights { files, tensors: tensors.len(), bytes: end as u64 })
    }

    /// The number of generated tensors, and their bytes.
    pub fn size(&self) -> (usize, u64) {
        (self.tensors, self.bytes)
    }
}

impl ExternalData for RandomWeights {
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String> {
        self.files
            .get(location)
            .cloned()
            .ok_or_else(|| format!("no initializer of the model lies in `{location}`"))
    }
}

fn affordable(bytes: usize) -> Result<(), Error> {
    afford(bytes as u64).map_err(|e| {
        let help = "a machine with more memory, or `wgfc check`, which needs no weights";
        Error::usage(format!("generating the weights {e}"), help)
    })
}

/// Values for a parameter or buffer of a module, whose use follows from its name and shape.
fn parameter(t: &fx::StoredTensor, seed: u64) -> Tensor {
    scaled(&t.name, t.dtype, t.shape.clone(), seed)
}

/// Values for a tensor whose use follows from its name, which ends as PyTorch's modules name theirs, and its shape.
fn scaled(name: &str, dtype: DType, shape: Vec<usize>, seed: u64) -> Tensor {
    let mut rng = Rng::new(seed, name);
    let name = name.rsplit('.').next().unwrap_or_default();
    // Small integers are codes of quantised weights, for which any bits are valid. Wider integers are mostly indices.
    if matches!(dtype, DType::I8 | DType::U8) {
        return Tensor::generate(dtype, shape, |_| Scalar::from_i64(dtype, (rng.bits() >> 58) as i64 - 32));
    }
    let fan_in = shape.iter().skip(1).product::<usize>().max(1) as f32;
    let (mean, deviation) = match name {
        _ if shape.len() >= 2 => (0.0, fan_in.recip().sqrt()),
        "running_var" | "scale" | "scales" => (1.0, 0.05),
        "weight" | "gamma" => (1.0, 0.02),
        _ => (0.0, 0.02),
    };
    fill(dtype, shape, &mut rng, mean, deviation)
}

/// The first operator that reads an initializer, the position of the operand, and whether a Gemm transposes it.
struct Use<'m> {
    operator: &'m str,
    input: usize,
    transposed: bool,
}

fn uses(graph: &GraphProto) -> HashMap<&str, Use<'_>> {
    let mut uses = HashMap::new();
    for node in &graph.node {
        let transposed = node.attribute.iter().any(|a| a.name == "transB" && a.i != 0);
        for (input, name) in node.input.iter().enumerate() {
            uses.entry(name.as_str()).or_insert(Use { operator: &node.op_type, input, transposed });
        }
    }
    uses
}

/// The file of an external tensor, and its offset there.
fn place(t: &TensorProto) -> (&str, usize) {
    let get = |k: &str| t.external_data.iter().find(|e| e.key == k).map(|e| e.value.trim());
    let offset = get("offset").and_then(|v| v.parse().ok()).unwrap_or(0);
    (get("location").unwrap_or_default(), offset)
}

/// The bytes of a tensor; `None` if its type or shape is invalid.
fn extent(t: &TensorProto) -> Option<usize> {
    let dtype = data_type::dtype(t.data_type)?;
    let shape: Vec<usize> = t.dims.iter().map(|d| usize::try_from(*d).ok()).collect::<Option<_>>()?;
    checked_numel(&shape).map(|n| dtype.bytes_for(n))
}

/// Values for an initializer of a graph, scaled as in [`RandomWeights`]; `None` if its type or shape is invalid.
/// See the example of [`RandomWeights`].
pub fn made_up(graph: &GraphProto, t: &TensorProto) -> Option<Tensor> {
    weight(t, uses(graph).get(t.name.as_str()))
}

/// Values for an initializer; `None` if its type or shape is invalid.
fn weight(t: &TensorProto, used: Option<&Use<'_>>) -> Option<Tensor> {
    let dtype = data_type::dtype(t.data_type)?;
    let shape: Vec<usize> = t.dims.iter().map(|d| usize::try_from(*d).ok()).collect::<Option<_>>()?;
    checked_numel(&shape).filter(|n| *n < 1 << 36)?;
    let mut rng = Rng::new(0, &t.name);
    if !dtype.is_float() {
        // Codes of quantised weights: any bits are valid.
        let bytes = (0..dtype.bytes_for(shape.iter().product())).map(|_| (rng.bits() >> 56) as u8).collect();
        return match dtype {
            DType::Bool => Some(fill(dtype, shape, &mut rng, 0.0, 1.0)),
            _ => Tensor::new(dtype, shape, bytes).ok(),
        };
    }
    let (operator, input) = used.map_or(("", 0), |u| (u.operator, u.input));
    let inner = |from: usize| shape.iter().skip(from).product::<usize>().max(1) as f32;
    let (mean, deviation) = match (operator, input) {
        ("BatchNormalization", 4) => (1.0, 0.05),
        (o, 1) if o.contains("Norm") => (1.0, 0.02),
        (o, 2) if o.contains("MatMulNBits") => (0.004, 0.0004),
        ("Conv", 1) => (0.0, (2.0 / inner(1)).sqrt()),
        ("ConvTranspose", 1) => (0.0, (2.0 / inner(1)).sqrt()),
        ("Gemm", 1) => {
            let fan_in = if used.is_some_and(|u| u.transposed) {
                inner(1)
            } else {
                shape.first().map_or(1.0, |d| *d as f32)
            };
            (0.0, fan_in.max(1.0).recip().sqrt())
        }
        ("MatMul", 1) if shape.len() >= 2 => {
            (0.0, (shape.get(shape.len() - 2).map_or(1.0, |d| *d as f32)).max(1.0).recip().sqrt())
        }
        // A table of embeddings, or a matrix that another operator (such as a transpose) reads first.
        _ if shape.len() >= 2 => {
            (0.0, shape.iter().min().map_or(1.0, |d| *d as f32).max(1.0).recip().sqrt().min(0.05))
        }
        _ if t.name.to_lowercase().contains("norm") && t.name.to_lowercase().contains("weight") => {
            (1.0, 0.02)
        }
        _ => (0.0, 0.02),
    };
    Some(fill(dtype, shape, &mut rng, mean, deviation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_name_gives_the_same_numbers() {
        let a = tensor(DType::F32, vec![1000], "x", 1).to_f32s().unwrap();
        assert_eq!(a, tensor(DType::F32, vec![1000], "x", 1).to_f32s().unwrap());
        assert_ne!(a, tensor(DType::F32, vec![1000], "x", 2).to_f32s().unwrap());
        assert_ne!(a, tensor(DType::F32, vec![1000], "y", 1).to_f32s().unwrap());
        let mean = a.iter().sum::<f32>() / 1000.0;
        let variance = a.iter().map(|v| v * v).sum::<f32>() / 1000.0;
        assert!(mean.abs() < 0.1 && (variance - 1.0).abs() < 0.1, "{mean} {variance}");
    }

    #[test]
    fn integers_are_zero_or_one() {
        let v = tensor(DType::I64, vec![100], "ids", 7).to_i64s().unwrap();
        assert!(v.iter().all(|x| *x == 0 || *x == 1));
        assert!(v.contains(&0) && v.contains(&1));
    }
}
