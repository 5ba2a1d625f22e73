//! Removes the weights from ONNX models and keeps their structure.
//!
//! The weights are declared as external data in a file that does not exist, as in `fixtures/`. Such a model can be compiled,
//! and run with random weights.
//!
//! ```
//! use wgfc::ModelFile;
//! use wgfc::hollow::hollow;
//! # fn main() -> Result<(), wgfc::Error> {
//! # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
//! let h = hollow(&ModelFile::open(&path)?, true)?;
//! assert!(h.left_out.tensors > 0);
//! let graph = h.model.graph.as_ref().unwrap();
//! assert!(graph.node.iter().all(|n| n.name.starts_with("node_")));
//! # Ok(()) }
//! ```

use crate::{Error, ModelFile};
use std::collections::HashMap;
use wgfc_compiler::import::NoExternalData;
use wgfc_compiler::import::onnx::weights::Weights;
use wgfc_compiler::import::onnx::*;
use wgfc_ir::{DType, Poly, Scalar, Tensor};

/// The name of the missing file of weights.
pub const WEIGHTS: &str = "weights-are-left-out.bin";

/// The most elements of an integer tensor that is kept, as its values may be sizes, axes or indices.
const FEW: usize = 64;
/// Tensors of fewer elements than this are replaced by filled ones where external data is not possible.
const LONG: u64 = 1 << 20;

/// A model without weights. See the example of the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Hollow {
    /// The model.
    pub model: ModelProto,
    /// The constants whose values were removed.
    pub left_out: Count,
    /// The constants whose values were kept: numbers as people write them, and short integer tensors.
    pub kept: Count,
}

/// A number of tensors, and their bytes. See the example of the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The number of tensors.
    pub tensors: usize,
    /// Bytes of their elements.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u64) {
        self.tensors += 1;
        self.bytes += bytes;
    }
}

/// Removes the weights from a model; with `anonymous`, also the names of its nodes, tensors, functions and dimensions.
///
/// Kept constants are numbers as people write them (1e-5, 0.125, the root of 2, infinity) and integer tensors of at most 64
/// elements. Metadata is removed.
///
/// # Errors
/// The file is no ONNX model.
pub fn hollow(file: &ModelFile, anonymous: bool) -> Result<Hollow, Error> {
    let mut h = Hollow { model: decode(file.bytes())?, ..Hollow::default() };
    let mut m = std::mem::take(&mut h.model);
    m.metadata_props.clear();
    let mut offset = 0;
    if let Some(g) = &mut m.graph {
        // A weight in a Constant node becomes an initializer, which can be external.
        let mut constants = vec![];
        g.node.retain(|n| {
            let value = weight(n);
            let there = value.is_none();
            constants.extend(value);
            there
        });
        g.initializer.extend(constants);
        for t in &mut g.initializer {
            h.take_out(t, Some(&mut offset));
        }
        g.sparse_initializer.iter_mut().for_each(|s| h.blank_sparse(s));
        h.nodes(&mut g.node);
    }
    for f in &mut m.functions {
        h.nodes(&mut f.node);
        f.attribute_proto.iter_mut().for_each(|a| h.attribute(a));
    }
    if anonymous {
        Names::default().model(&mut m);
    }
    h.model = m;
    Ok(h)
}

/// The tensor of a Constant node if its value is to be removed.
fn weight(n: &NodeProto) -> Option<TensorProto> {
    let (name, [a]) = (n.output.first()?, n.attribute.as_slice()) else { return None };
    let t = match (n.op_type.as_str(), a.name.as_str()) {
        ("Constant", "value") => a.t.clone()?,
        ("Constant", "value_float") => TensorProto::of("", &Tensor::from_f32(vec![], &[a.f])),
        ("Constant", "value_floats") => {
            TensorProto::of("", &Tensor::from_f32(vec![a.floats.len()], &a.floats))
        }
        _ => return None,
    };
    let plain = Weights::new(&NoExternalData, false).tensor(&t).is_ok_and(|x| stays(&x));
    (!plain && data_type::dtype(t.data_type).is_some()).then(|| TensorProto { name: name.clone(), ..t })
}

impl Hollow {
    /// Removes the elements of a tensor unless they are to be kept. With an offset the tensor becomes external data at that
    /// offset. Wide integers are replaced by zeros, as they may be indices; where there is no offset, other elements are
    /// replaced by ones.
    fn take_out(&mut self, t: &mut TensorProto, offset: Option<&mut u64>) {
        let n = t.dims.iter().try_fold(1u64, |a, d| a.checked_mul(u64::try_from(*d).ok()?)).unwrap_or(0);
        let dtype = data_type::dtype(t.data_type);
        let bytes = dtype.map_or(0, |d| d.bytes_of(n));
        let external = t.data_location == 1 || !t.external_data.is_empty();
        let value = if external { None } else { Weights::new(&NoExternalData, false).tensor(t).ok() };
        if value.is_some_and(|x| stays(&x)) {
            return self.kept.add(bytes);
        }
        self.left_out.add(bytes);
        let empty = TensorProto {
            name: t.name.clone(),
            dims: t.dims.clone(),
            data_type: t.data_type,
            ..TensorProto::default()
        };
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        // Zero is a valid index on every axis; other integers may not be.
        let indices = dtype.is_some_and(|d| !d.is_float() && d.bits() >= 32);
        *t = match (offset, dtype) {
            (Some(offset), Some(_)) if !indices || n >= LONG => {
                let at = *offset;
                *offset += bytes;
                TensorProto {
                    data_location: 1,
                    external_data: vec![
                        entry("location", WEIGHTS.into()),
                        entry("offset", at.to_string()),
                        entry("length", bytes.to_string()),
                    ],
                    ..empty
                }
            }
            (_, Some(d)) if n < LONG => {
                let shape: Vec<usize> = t.dims.iter().map(|d| *d as usize).collect();
                let filled = Tensor::generate(d, shape, |_| Scalar::from_i64(d, i64::from(!indices)));
                TensorProto::of(&t.name, &filled)
            }
            // Strings, and tensors that are too long to be filled.
            _ => empty,
        };
    }

    fn blank_sparse(&mut self, s: &mut SparseTensorProto) {
        s.values.iter_mut().for_each(|t| self.take_out(t, None));
    }

    fn nodes(&mut self, nodes: &mut [NodeProto]) {
        nodes.iter_mut().flat_map(|n| &mut n.attribute).for_each(|a| self.attribute(a));
    }

    fn attribute(&mut self, a: &mut AttributeProto) {
        a.t.iter_mut().for_each(|t| self.take_out(t, None));
        a.sparse_tensor.iter_mut().for_each(|s| self.blank_sparse(s));
        for v in a.floats.iter_mut().chain(std::iter::once(&mut a.f)) {
            if !is_written(*v) {
                *v = 1.0;
            }
        }
        // Mode names are short; longer texts may be data.
        for s in a.strings.iter_mut().chain(std::iter::once(&mut a.s)) {
            s.truncate(FEW);
        }
        if let Some(g) = &mut a.g {
            g.initializer.iter_mut().for_each(|t| self.take_out(t, None));
            g.sparse_initializer.iter_mut().for_each(|s| self.blank_sparse(s));
            self.nodes(&mut g.node);
        }
    }
}

/// Whether a constant belongs to the structure: a single number as people write it, or a short integer tensor.
fn stays(t: &Tensor) -> bool {
    match t.dtype {
        d if d.is_float() => {
            t.numel() <= 1 && t.scalars().is_some_and(|v| v.iter().all(|x| is_written(x.as_f64() as f32)))
        }
        DType::Bool => t.numel() <= FEW,
        d => d.bits() >= 32 && t.numel() <= FEW,
    }
}

/// Whether a number looks written rather than learned: few digits, the root of a whole number or its reciprocal, or a
/// mathematical constant.
///
/// ```
/// use wgfc::hollow::is_written;
/// assert!(is_written(0.125) && is_written(std::f32::consts::PI));
/// assert!(!is_written(0.048_362_918));
/// ```
pub fn is_written(v: f32) -> bool {
    use std::f64::consts::{E, LN_2, LOG2_E, PI};
    if !v.is_finite() || v.abs() > 1e30 {
        return true;
    }
    let digits = format!("{v:e}").bytes().take_while(|b| *b != b'e').filter(u8::is_ascii_digit).count();
    if digits <= 5 {
        return true;
    }
    let x = f64::from(v.abs());
    let near = |a: f64, b: f64| (a - b).abs() <= 2.5e-7 * b;
    let whole = |s: f64| (1.0..=4096.0).contains(&s.round()) && near(s, s.round());
    let known = [E, LN_2, LOG2_E, PI, 2.0 * PI, PI / 2.0, 1.0 / PI, (2.0 / PI).sqrt(), (0.5 / PI).sqrt()];
    whole(x * x) || whole(1.0 / (x * x)) || known.iter().any(|k| near(x, *k))
}

/// The new names in place of the model's own.
#[derive(Default)]
struct Names {
    values: HashMap<String, String>,
    symbols: HashMap<String, String>,
    functions: HashMap<String, String>,
    nodes: usize,
}

impl Names {
    fn value(&mut self, name: &mut String) {
        if !name.is_empty() {
            let n = self.values.len();
            name.clone_from(self.values.entry(name.clone()).or_insert_with(|| format!("v{n}")));
        }
    }

    fn model(&mut self, m: &mut ModelProto) {
        m.producer_name.clear();
        m.producer_version.clear();
        for f in &m.functions {
            let n = self.functions.len();
            self.functions.entry(f.name.clone()).or_insert_with(|| format!("Function{n}"));
        }
        for f in &mut m.functions {
            f.name = self.functions[&f.name].clone();
            f.overload.clear();
            f.input.iter_mut().chain(&mut f.output).for_each(|v| self.value(v));
            self.node_list(&mut f.node);
        }
        if let Some(g) = &mut m.graph {
            self.graph(g);
        }
    }

    fn graph(&mut self, g: &mut GraphProto) {
        g.name = "graph".into();
        for v in g.input.iter_mut().chain(&mut g.output).chain(&mut g.value_info) {
            self.value(&mut v.name);
            let shape = match v.r#type.as_mut().and_then(|t| t.value.as_mut()) {
                Some(TypeValue::Tensor(t)) => t.shape.as_mut(),
                _ => None,
            };
            for d in shape.into_iter().flat_map(|s| &mut s.dim) {
                if let Some(DimensionValue::Param(p)) = &mut d.value {
                    *p = self.dimension(p);
                }
            }
        }
        for t in &mut g.initializer {
            self.value(&mut t.name);
        }
        for s in &mut g.sparse_initializer {
            s.values.iter_mut().for_each(|t| self.value(&mut t.name));
        }
        self.node_list(&mut g.node);
    }

    /// A dimension expression with its symbols renamed.
    fn dimension(&mut self, text: &str) -> String {
        let mut name = |s: &str| {
            let n = self.symbols.len();
            self.symbols.entry(s.to_owned()).or_insert_with(|| format!("d{n}")).clone()
        };
        match Poly::parse(text) {
            Ok(p) => {
                let own: HashMap<String, String> =
                    p.symbols().iter().map(|s| (s.to_string(), name(s))).collect();
                let replace = |a: &wgfc_ir::Atom| match a {
                    wgfc_ir::Atom::Sym(s) => Some(Poly::sym(own.get(&**s)?)),
                    _ => None,
                };
                p.subst(&replace, &[]).to_string()
            }
            Err(_) => name(text),
        }
    }

    fn node_list(&mut self, nodes: &mut [NodeProto]) {
        for n in nodes {
            n.name = format!("node_{}", self.nodes);
            self.nodes += 1;
            n.input.iter_mut().chain(&mut n.output).for_each(|v| self.value(v));
            if let Some(f) = self.functions.get(&n.op_type) {
                n.op_type.clone_from(f);
                n.overload.clear();
            }
            for a in &mut n.attribute {
                a.t.iter_mut().for_each(|t| t.name.clear());
                if let Some(g) = &mut a.g {
                    self.graph(g);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_people_write_are_known() {
        let written = [
            0.0,
            1.0,
            -2.5,
            1e-5,
            1e-12,
            0.044715,
            0.125,
            65504.0,
            0.797_884_6,
            0.707_106_77,
            1.0 / 96f32.sqrt(),
        ];
        for v in written.into_iter().chain([f32::INFINITY, f32::MIN, std::f32::consts::PI, 2f32.sqrt(), 0.01])
        {
            assert!(is_written(v), "{v}");
        }
        for v in [0.123_456_79, -1.234_568e-3, 17.654_321, 0.731_058_6] {
            assert!(!is_written(v), "{v}");
        }
        let mut rng = crate::random::Rng::new(1, "x");
        let many = (0..10_000).filter(|_| is_written(rng.unit_variance())).count();
        assert!(many < 150, "{many} of 10,000 random numbers look as written");
    }
}
