//! Places an operator among others. Its inputs pass through nodes that do not change their values, which the compiler cannot
//! know, and its first result passes into further nodes.

use super::draw::{Case, hash};
use wgfc_compiler::Options;
use wgfc_compiler::import::onnx::*;
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_ir::eval::unary_scalar;
use wgfc_ir::testing::{Rng, random_tensor};
use wgfc_ir::{Class, DType, Scalar, Tensor, UnaryOp};

use prost::Message;

struct Around {
    rng: Rng,
    nodes: Vec<NodeProto>,
    ports: Vec<ValueInfoProto>,
    inputs: Vec<(String, Tensor)>,
    constants: Vec<TensorProto>,
    names: usize,
}

/// The version of the operator set that these nodes belong to.
const OPSET: i64 = 18;

/// The case with nodes before and after its own. The case is returned unchanged if its opset is older than [`OPSET`], or if
/// it cannot be imported, which is reported when it is run.
pub(crate) fn surrounded(mut case: Case, name: &str, seed: u64) -> Case {
    if case.model.opset_import.iter().any(|o| o.domain.is_empty() && o.version < OPSET) {
        return case;
    }
    let imported = import(&case.model.encode_to_vec(), &NoExternalData, &Options::default());
    let Ok(imported) = imported else { return case };
    let Some(result) = imported.graph.outputs.first() else { return case };
    let ty = imported.graph.ty(result.value).clone();
    let extents: Vec<Option<usize>> =
        ty.shape.iter().map(|d| d.as_const().and_then(|d| usize::try_from(d).ok())).collect();
    let mut a = Around {
        rng: Rng::new(hash(name) ^ seed.wrapping_mul(0xa076_1d64_78bd_642f)),
        nodes: vec![],
        ports: vec![],
        inputs: vec![],
        constants: vec![],
        names: 0,
    };
    let Some(graph) = case.model.graph.as_mut() else { return case };
    for (port, (name, t)) in graph.input.iter().zip(&mut case.inputs) {
        let mut last = name.clone();
        // Some drivers miscompile an operator whose operand is negated.
        let opposite = if a.rng.one_in(4) { negated(t) } else { None };
        if let Some(opposite) = opposite {
            *t = opposite;
            last = a.node("Neg", &[&last], vec![]);
        }
        while a.rng.one_in(2) && a.nodes.len() < 12 {
            last = a.unchanged(&last, t);
        }
        if last != *name {
            for i in graph.node.iter_mut().flat_map(|n| &mut n.input).filter(|i| **i == port.name) {
                i.clone_from(&last);
            }
        }
    }
    graph.node.splice(0..0, a.nodes.drain(..));
    let exact = !(case.loose && ty.dtype.is_int()) && ty.dtype != DType::BF16;
    if exact && !extents.contains(&Some(0)) {
        let first = graph.output[0].name.clone();
        let mut last = a.node("Cast", &[&first], vec![int("to", i64::from(data_type::code(DType::F32)))]);
        last = a.node("Tanh", &[&last], vec![]);
        let mut shape = extents;
        let coarse = case.loose || ty.dtype == DType::F16;
        let steps = 1 + a.rng.below(5);
        for _ in 0..steps {
            last = a.then(&last, &mut shape, coarse);
        }
        case.loose |= coarse;
        // One time in three, the result of these nodes becomes an additional output instead of replacing the first one.
        if a.rng.one_in(3) {
            graph.output.push(ValueInfoProto { name: last, r#type: None });
        } else {
            graph.output[0].name = last;
        }
        graph.node.append(&mut a.nodes);
    }
    graph.input.append(&mut a.ports);
    graph.initializer.append(&mut a.constants);
    case.inputs.append(&mut a.inputs);
    case
}

impl Around {
    fn name(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}{}", self.names)
    }
    fn node(&mut self, op: &str, inputs: &[&str], attribute: Vec<AttributeProto>) -> String {
        let name = self.name("v");
        self.nodes.push(NodeProto {
            op_type: op.into(),
            name: name.clone(),
            input: inputs.iter().map(|s| (*s).to_owned()).collect(),
            output: vec![name.clone()],
            attribute,
            ..Default::default()
        });
        name
    }
    fn constant(&mut self, t: &Tensor) -> String {
        let name = self.name("c");
        self.constants.push(TensorProto::of(&name, t));
        name
    }
    fn ints(&mut self, v: &[i64]) -> String {
        self.constant(&Tensor::from_i64(vec![v.len()], v))
    }
    fn input(&mut self, t: Tensor) -> String {
        let name = self.name("e");
        let ty = TypeProto::of(t.dtype, &t.shape);
        self.ports.push(ValueInfoProto { name: name.clone(), r#type: Some(ty) });
        self.inputs.push((name.clone(), t));
        name
    }
    /// A tensor of equal values whose shape is a random suffix of `shape`.
    fn fill(&mut self, dtype: DType, shape: &[usize], value: f64) -> Tensor {
        let from = self.rng.below(shape.len() + 1);
        let shape: Vec<usize> = shape[from..].to_vec();
        let one = if dtype.is_float() {
            Scalar::from_f64(dtype, value)
        } else {
            Scalar::from_i64(dtype, value as i64)
        };
        let n = shape.iter().product();
        Tensor::from_scalars(dtype, shape, &vec![one; n])
    }

    /// Adds nodes that compute `x` itself. For some of them this follows only from the values of their inputs.
    fn unchanged(&mut self, x: &str, t: &Tensor) -> String {
        let (rank, dtype) = (t.shape.len(), t.dtype);
        let counts = (dtype.is_float() && dtype.bits() > 8)
            || [DType::I32, DType::I64, DType::U32, DType::U64].contains(&dtype);
        let plain = counts || dtype == DType::Bool || (dtype.is_int() && dtype.bits() >= 8);
        match self.rng.below(8) {
            0 if counts => {
                let zero = self.fill(dtype, &t.shape, 0.0);
                let zero = self.input(zero);
                self.node("Add", &[x, &zero], vec![])
            }
            1 if counts => {
                let one = self.fill(dtype, &t.shape, 1.0);
                let one = self.input(one);
                self.node("Mul", &[&one, x], vec![])
            }
            2 if plain => {
                let all = self.fill(DType::Bool, &t.shape, 1.0);
                let all = self.input(all);
                self.node("Where", &[&all, x, x], vec![])
            }
            3 | 4 if rank > 1 => {
                let mut perm: Vec<i64> = (0..rank as i64).collect();
                for i in (1..rank).rev() {
                    perm.swap(i, self.rng.below(i + 1));
                }
                let mut back = vec![0i64; rank];
                for (to, from) in perm.iter().enumerate() {
                    back[*from as usize] = to as i64;
                }
                let turned = self.node("Transpose", &[x], vec![ints("perm", &perm)]);
                self.node("Transpose", &[&turned], vec![ints("perm", &back)])
            }
            // In a Reshape, an extent of 0 would stand for the input's extent.
            5 if !t.shape.contains(&0) => {
                let (shape, flat) = (self.node("Shape", &[x], vec![]), self.ints(&[-1]));
                let flat = self.node("Reshape", &[x, &flat], vec![]);
                self.node("Reshape", &[&flat, &shape], vec![])
            }
            6 if plain && rank > 0 => {
                let axis = self.rng.below(rank);
                if t.shape[axis] < 2 {
                    return self.node("Identity", &[x], vec![]);
                }
                let middle = 1 + self.rng.below(t.shape[axis] - 1) as i64;
                let [start, middle, end, axes] = [0, middle, i64::MAX, axis as i64].map(|v| self.ints(&[v]));
                let head = self.node("Slice", &[x, &start, &middle, &axes], vec![]);
                let tail = self.node("Slice", &[x, &middle, &end, &axes], vec![]);
                self.node("Concat", &[&head, &tail], vec![int("axis", axis as i64)])
            }
            _ => {
                let axis = self.rng.below(rank + 1) as i64;
                let axes = self.ints(&[axis]);
                let more = self.node("Unsqueeze", &[x, &axes], vec![]);
                self.node("Squeeze", &[&more, &axes], vec![])
            }
        }
    }

    /// Adds a continuous function of the f32 value `x` whose results stay of moderate size.
    fn then(&mut self, x: &str, shape: &mut Vec<Option<usize>>, coarse: bool) -> String {
        let rank = shape.len();
        let axis = self.rng.below(rank.max(1));
        match self.rng.below(12) {
            0 => {
                let by = Tensor::from_f32(vec![], &[self.rng.unit() * 2.0]);
                let by = self.constant(&by);
                self.node("Mul", &[x, &by], vec![])
            }
            1 | 2 => {
                // The new operand has the last extents of `shape`, as far as these are known.
                let known = shape.iter().rev().take_while(|d| d.is_some()).count();
                let tail: Vec<usize> = shape[rank - known..].iter().flatten().copied().collect();
                let t = random_tensor(&mut self.rng, DType::F32, tail);
                let t = self.input(t);
                let op = if self.rng.one_in(2) { "Add" } else { "Sub" };
                self.node(op, &[x, &t], vec![])
            }
            3 => self.node("Relu", &[x], vec![]),
            4 => self.node("Sigmoid", &[x], vec![]),
            5 if rank > 0 => self.node("Softmax", &[x], vec![int("axis", axis as i64)]),
            6 if rank > 0 => {
                let op = if self.rng.one_in(2) { "ReduceMean" } else { "ReduceMax" };
                let axes = self.ints(&[axis as i64]);
                let keep = self.rng.one_in(2);
                match keep {
                    true => shape[axis] = Some(1),
                    false => drop(shape.remove(axis)),
                }
                self.node(op, &[x, &axes], vec![int("keepdims", keep.into())])
            }
            7 if rank > 0 => {
                let axes = self.ints(&[axis as i64]);
                let mean = self.node("ReduceMean", &[x, &axes], vec![]);
                self.node("Sub", &[x, &mean], vec![])
            }
            8 if rank > 1 => {
                let mut perm: Vec<i64> = (0..rank as i64).collect();
                perm.swap(axis, self.rng.below(rank));
                *shape = perm.iter().map(|p| shape[*p as usize]).collect();
                self.node("Transpose", &[x], vec![ints("perm", &perm)])
            }
            9 if rank > 0 => {
                shape[axis] = shape[axis].map(|d| 2 * d);
                let other = self.node("Neg", &[x], vec![]);
                self.node("Concat", &[x, &other], vec![int("axis", axis as i64)])
            }
            10 if rank > 0 && !coarse => {
                let Some(k) = shape[rank - 1] else { return self.node("Tanh", &[x], vec![]) };
                let n = [1, 3, 8, 17][self.rng.below(4)];
                let w = random_tensor(&mut self.rng, DType::F32, vec![k, n]);
                let w = self.constant(&w);
                shape[rank - 1] = Some(n);
                let y = self.node("MatMul", &[x, &w], vec![]);
                self.node("Tanh", &[&y], vec![])
            }
            _ => self.node("Tanh", &[x], vec![]),
        }
    }
}

/// The negation of `t`; `None` if Neg does not take its type.
fn negated(t: &Tensor) -> Option<Tensor> {
    let bits = t.dtype.bits();
    let signed = (t.dtype.is_float() && bits > 8) || (t.dtype.class() == Class::Int && bits >= 8);
    let values = signed.then(|| t.scalars()).flatten()?;
    let opposite: Option<Vec<Scalar>> = values.into_iter().map(|x| unary_scalar(UnaryOp::Neg, x)).collect();
    Some(Tensor::from_scalars(t.dtype, t.shape.clone(), &opposite?))
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: attribute_type::INT, i, ..Default::default() }
}

fn ints(name: &str, v: &[i64]) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: attribute_type::INTS, ints: v.to_vec(), ..Default::default() }
}
