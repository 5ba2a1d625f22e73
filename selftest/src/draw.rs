//! Draws a case of one operator piece by piece.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use wgfc_compiler::import::onnx::*;
use wgfc_ir::testing::Rng;
use wgfc_ir::{DType, Scalar, Tensor};

/// The most elements of an operand.
const MOST: usize = 4096;

/// A model of one operator, with its inputs.
#[derive(Clone)]
pub struct Case {
    pub model: ModelProto,
    pub inputs: Vec<(String, Tensor)>,
    pub loose: bool,
    /// Whether some extents are symbolic.
    pub named: bool,
}

/// A model's inputs, constants and nodes as text.
pub(crate) fn model_text(model: &ModelProto, inputs: &BTreeMap<String, Tensor>) -> String {
    let mut f = String::new();
    let graph = model.graph.clone().unwrap_or_default();
    for port in &graph.input {
        let Some(t) = inputs.get(&port.name) else { continue };
        let dims = match port.r#type.as_ref().and_then(|t| t.value.as_ref()) {
            Some(TypeValue::Tensor(t)) => t.shape.clone().unwrap_or_default().dim,
            _ => vec![],
        };
        let symbols: String = dims
            .into_iter()
            .filter_map(|d| match d.value {
                Some(DimensionValue::Param(p)) => Some(format!(" {p}")),
                _ => None,
            })
            .collect();
        let _ = writeln!(f, "{}: {}{symbols}", port.name, tensor_text(t));
    }
    for t in &graph.initializer {
        let shape = t.dims.iter().map(|d| *d as usize).collect();
        let text = data_type::dtype(t.data_type)
            .and_then(|d| Tensor::new(d, shape, t.raw_data.to_vec()).ok())
            .map_or_else(String::new, |t| tensor_text(&t));
        let _ = writeln!(f, "{} = {text}", t.name);
    }
    for n in &graph.node {
        let _ = write!(f, "{} = {}({})", n.output.join(", "), n.op_type, n.input.join(", "));
        for a in &n.attribute {
            let _ = match a.r#type {
                attribute_type::INT => write!(f, " {}={}", a.name, a.i),
                attribute_type::FLOAT => write!(f, " {}={}", a.name, a.f),
                attribute_type::INTS => write!(f, " {}={:?}", a.name, a.ints),
                _ => write!(f, " {}={}", a.name, String::from_utf8_lossy(&a.s)),
            };
        }
        f.push('\n');
    }
    let outputs: Vec<&str> = graph.output.iter().map(|o| o.name.as_str()).collect();
    let _ = writeln!(f, "-> {}", outputs.join(", "));
    f
}

/// A tensor's type and shape, and its values if there are at most 16.
pub(crate) fn tensor_text(t: &Tensor) -> String {
    let mut text = format!("{}{:?}", t.dtype, t.shape);
    if t.shape.iter().product::<usize>() <= 16
        && let Some(v) = t.scalars()
    {
        text += &format!(" = {}", v.iter().map(|x| x.to_string()).collect::<Vec<_>>().join(" "));
    }
    text
}

/// The node that is being drawn.
pub struct Draw {
    rng: Rng,
    node: NodeProto,
    /// The version of the operator set that the model declares.
    pub opset: i64,
    /// Whether the comparison is loose: integers may differ by one, and floats have a larger tolerance, because the operator
    /// rounds intermediate values.
    pub loose: bool,
    /// Values to mix into the floats of all operands except those that are always constant.
    pub special: &'static [f64],
    /// Whether shapes have an axis without elements.
    pub hollow: bool,
    operands: Vec<Option<(Tensor, bool)>>,
}

pub(crate) fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

impl Draw {
    /// Draws case `seed` of the operator `name`. A suffix after a colon selects a kind of case.
    pub fn new(name: &str, seed: u64) -> Draw {
        let plain = name.split(':').next().unwrap_or(name);
        let (domain, op) = plain.rsplit_once('.').unwrap_or(("", plain));
        let node = NodeProto {
            op_type: op.into(),
            name: op.into(),
            domain: domain.into(),
            output: vec!["y0".into()],
            ..Default::default()
        };
        let rng = Rng::new(hash(name) ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Draw { rng, node, opset: 28, loose: false, special: &[], hollow: false, operands: vec![] }
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.rng.below(n)
    }
    pub fn one_in(&mut self, n: usize) -> bool {
        self.rng.one_in(n)
    }
    /// One of the elements of `of`.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.below(of.len())]
    }
    /// A number in a range.
    pub fn from(&mut self, range: RangeInclusive<usize>) -> usize {
        range.start() + self.rng.below(range.end() + 1 - range.start())
    }

    /// A shape of that many axes. No extent is 0 unless cases are [hollow](Draw::hollow).
    pub fn full(&mut self, ranks: RangeInclusive<usize>) -> Vec<usize> {
        let rank = self.from(ranks);
        let mut left = MOST;
        let mut shape: Vec<usize> = (0..rank)
            .map(|_| {
                let d = self.pick(&[1, 1, 2, 3, 3, 4, 5, 7, 8, 9, 13, 17, 31, 33, 64, 131]);
                let d = if d > left { 1 } else { d };
                left /= d;
                d
            })
            .collect();
        let turn = self.below(rank.max(1));
        if rank > 0 {
            shape.rotate_left(turn);
        }
        if self.hollow && rank > 0 && !self.one_in(4) {
            let axis = self.below(rank);
            shape[axis] = 0;
        }
        shape
    }
    /// A shape, of which one axis is empty now and then.
    pub fn shape(&mut self, ranks: RangeInclusive<usize>) -> Vec<usize> {
        let mut s = self.full(ranks);
        if !s.is_empty() && self.one_in(24) {
            let i = self.below(s.len());
            s[i] = 0;
        }
        s
    }
    /// A shape that broadcasts to `shape`.
    pub fn fitting(&mut self, shape: &[usize]) -> Vec<usize> {
        let skip = if self.one_in(3) { self.below(shape.len() + 1) } else { 0 };
        shape[skip..].iter().map(|d| if self.one_in(4) { 1 } else { *d }).collect()
    }
    /// An axis of a tensor of this rank, and the number that stands for it in the model, which may be negative.
    pub fn axis(&mut self, rank: usize) -> (usize, i64) {
        let a = self.below(rank);
        (a, if self.one_in(2) { a as i64 } else { a as i64 - rank as i64 })
    }
    /// A random subset of the axes, in ascending order.
    pub fn axes(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|_| self.one_in(2)).collect()
    }

    /// Uniform random numbers in a range, which includes its end for integers. None is subnormal, as a device may flush
    /// these to 0.
    pub fn numbers(&mut self, dtype: DType, shape: &[usize], low: f64, high: f64) -> Tensor {
        let n = shape.iter().product();
        let v: Vec<Scalar> = (0..n)
            .map(|_| {
                let u = (f64::from(self.rng.unit()) + 1.0) / 2.0;
                match dtype {
                    DType::Bool => Scalar::bool(u < 0.5),
                    d if d.is_float() => {
                        let x = low + u * (high - low);
                        let least = if d == DType::F16 { 2f64.powi(-14) } else { 2f64.powi(-126) };
                        let tiny = x != 0.0 && x.abs() < least;
                        Scalar::from_f64(d, if tiny { least.copysign(x) } else { x })
                    }
                    d => Scalar::from_i64(d, (low + u * (high + 1.0 - low)).floor() as i64),
                }
            })
            .collect();
        Tensor::from_scalars(dtype, shape.to_vec(), &v)
    }
    /// Adds an operand. It is an input, or one time in five a constant.
    pub fn give(&mut self, mut t: Tensor) {
        let constant = self.one_in(5);
        if t.dtype.is_float() && !self.special.is_empty() {
            let mut v = t.scalars().unwrap_or_default();
            for x in &mut v {
                if self.one_in(4) {
                    *x = Scalar::from_f64(t.dtype, self.pick(self.special));
                }
            }
            t = Tensor::from_scalars(t.dtype, t.shape, &v);
        }
        self.operands.push(Some((t, constant)));
    }
    /// Adds a constant operand.
    pub fn known(&mut self, t: Tensor) {
        self.operands.push(Some((t, true)));
    }
    /// Adds a constant operand: a list of integers.
    pub fn ints(&mut self, v: &[i64]) {
        self.known(Tensor::from_i64(vec![v.len()], v));
    }
    /// Adds a constant operand: one integer.
    pub fn int(&mut self, v: i64) {
        self.known(Tensor::from_i64(vec![], &[v]));
    }
    /// Omits an operand.
    pub fn none(&mut self) {
        self.operands.push(None);
    }
    /// Adds an operand with numbers in −2..2; unsigned ones in 0..2.
    pub fn x(&mut self, dtype: DType, shape: &[usize]) {
        self.within(dtype, shape, -2.0, 2.0);
    }
    /// Adds an operand with numbers in a range; unsigned ones are at least 0.
    pub fn within(&mut self, dtype: DType, shape: &[usize], low: f64, high: f64) {
        let t = self.some(dtype, shape, low, high);
        self.give(t);
    }
    fn some(&mut self, dtype: DType, shape: &[usize], low: f64, high: f64) -> Tensor {
        use wgfc_ir::dtype::Class;
        let low = if dtype.class() == Class::Uint { low.max(0.0) } else { low };
        self.numbers(dtype, shape, low, high)
    }
    /// Adds an operand with random bits.
    pub fn bits(&mut self, dtype: DType, shape: &[usize]) {
        let bytes = dtype.bytes_for(shape.iter().product());
        let data = (0..bytes).map(|_| self.rng.bits() as u8).collect();
        let t = Tensor::new(dtype, shape.to_vec(), data).expect("as many bytes");
        self.give(t);
    }

    fn attribute(&mut self, name: &str, r#type: i32, a: AttributeProto) {
        self.node.attribute.push(AttributeProto { name: name.into(), r#type, ..a });
    }
    pub fn set(&mut self, name: &str, i: i64) {
        self.attribute(name, attribute_type::INT, AttributeProto { i, ..Default::default() });
    }
    pub fn set_float(&mut self, name: &str, f: f32) {
        self.attribute(name, attribute_type::FLOAT, AttributeProto { f, ..Default::default() });
    }
    pub fn set_ints(&mut self, name: &str, v: &[i64]) {
        self.attribute(name, attribute_type::INTS, AttributeProto { ints: v.to_vec(), ..Default::default() });
    }
    pub fn set_floats(&mut self, name: &str, v: &[f32]) {
        let a = AttributeProto { floats: v.to_vec(), ..Default::default() };
        self.attribute(name, attribute_type::FLOATS, a);
    }
    pub fn set_text(&mut self, name: &str, v: &str) {
        self.attribute(name, attribute_type::STRING, AttributeProto { s: v.into(), ..Default::default() });
    }
    pub fn set_texts(&mut self, name: &str, v: &[&str]) {
        let strings = v.iter().map(|s| s.as_bytes().to_vec()).collect();
        self.attribute(name, attribute_type::STRINGS, AttributeProto { strings, ..Default::default() });
    }
    pub fn set_tensor(&mut self, name: &str, t: &Tensor) {
        let t = Some(TensorProto::of("", t));
        self.attribute(name, attribute_type::TENSOR, AttributeProto { t, ..Default::default() });
    }
    pub fn set_type(&mut self, name: &str, d: DType) {
        self.set(name, i64::from(data_type::code(d)));
    }
    /// Sets an attribute that is 0 or 1, or leaves it out.
    pub fn flag(&mut self, name: &str) -> Option<bool> {
        let v = self.pick(&[None, Some(false), Some(true)]);
        if let Some(v) = v {
            self.set(name, v.into());
        }
        v
    }
    /// Sets the number of the node's outputs.
    pub fn outputs(&mut self, n: usize) {
        self.node.output = (0..n).map(|i| format!("y{i}")).collect();
    }

    /// Draws the model. Inputs may pass through a transposition and, if `rank` is the rank of the first result, that result
    /// too. With `symbols`, extents may be symbolic.
    pub fn case(mut self, draw: fn(&mut Draw), rank: Option<usize>, symbols: bool) -> Case {
        draw(&mut self);
        self.model(rank, symbols, true)
    }

    /// Draws the model without transpositions and symbols.
    pub fn plain(mut self, draw: fn(&mut Draw)) -> ModelProto {
        draw(&mut self);
        self.model(None, false, false).model
    }

    fn model(mut self, rank: Option<usize>, symbols: bool, turned: bool) -> Case {
        let naming = self.below(3);
        let naming = if symbols { naming } else { 0 };
        let (mut nodes, mut inputs, mut ports, mut constants) = (vec![], vec![], vec![], vec![]);
        for (i, operand) in std::mem::take(&mut self.operands).into_iter().enumerate() {
            let Some((mut t, constant)) = operand else {
                self.node.input.push(String::new());
                continue;
            };
            let mut name = format!("x{i}");
            self.node.input.push(name.clone());
            if constant {
                constants.push(TensorProto::of(&name, &t));
                continue;
            }
            if t.shape.len() > 1 && self.one_in(5) && turned {
                let perm: Vec<i64> = (0..t.shape.len() as i64).rev().collect();
                nodes.push(transposition(&format!("t{i}"), &name, &perm));
                t = transposed(&t);
                name = format!("t{i}");
            }
            let dim = t.shape.iter().enumerate().map(|(axis, d)| {
                let symbol = self.rng.one_in(2) && (*d > 1 || self.hollow && *d == 0) && naming > 0;
                match (symbol, naming) {
                    (false, _) => DimensionValue::Value(*d as i64),
                    (_, 1) => DimensionValue::Param(format!("n{d}")),
                    _ => DimensionValue::Param(format!("x{i}_{axis}")),
                }
            });
            let ty = TypeProto::tensor(t.dtype, dim);
            ports.push(ValueInfoProto { name: name.clone(), r#type: Some(ty) });
            inputs.push((name, t));
        }
        let mut results = self.node.output.clone();
        let turn = self.one_in(4);
        nodes.push(self.node);
        if let Some(rank) = rank.filter(|r| *r > 1 && turn) {
            let perm: Vec<i64> = (1..rank as i64).chain([0]).collect();
            nodes.push(transposition("y0", "z", &perm));
            results[0] = "z".into();
        }
        let output = results.into_iter().map(|name| ValueInfoProto { name, r#type: None }).collect();
        let graph = GraphProto {
            node: nodes,
            name: "g".into(),
            initializer: constants,
            input: ports,
            output,
            ..Default::default()
        };
        let set = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
        let model = ModelProto {
            ir_version: 13,
            graph: Some(graph),
            opset_import: vec![
                set("", self.opset),
                set("com.microsoft", 1),
                set("ai.onnx.preview", 1),
                set("ai.onnx.ml", 5),
            ],
            ..Default::default()
        };
        Case { model, inputs, loose: self.loose, named: naming > 0 }
    }
}

fn transposition(from: &str, to: &str, perm: &[i64]) -> NodeProto {
    let perm = AttributeProto {
        name: "perm".into(),
        r#type: attribute_type::INTS,
        ints: perm.to_vec(),
        ..Default::default()
    };
    NodeProto {
        op_type: "Transpose".into(),
        input: vec![from.into()],
        output: vec![to.into()],
        attribute: vec![perm],
        ..Default::default()
    }
}

/// The tensor with its axes in reverse order.
fn transposed(t: &Tensor) -> Tensor {
    let v = t.scalars().expect("values");
    let shape: Vec<usize> = t.shape.iter().rev().copied().collect();
    let mut out = Vec::with_capacity(v.len());
    for mut i in 0..v.len() {
        // `i` is a position in the result, whose last axes are the first ones of `t`.
        let (mut at, mut stride) = (0, v.len());
        for d in &t.shape {
            stride /= d;
            at += i % d * stride;
            i /= d;
        }
        out.push(v[at]);
    }
    Tensor::from_scalars(t.dtype, shape, &out)
}
