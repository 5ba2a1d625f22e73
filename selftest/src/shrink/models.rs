//! Smaller variants of a model.

use crate::failure::{Failure, caught};
use crate::subject::{Source, Subject};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_compiler::Options;
use wgfc_compiler::import::onnx::*;
use wgfc_ir::eval::evaluate;
use wgfc_ir::{DType, Scalar, Tensor};

/// The parts of a model that reduction changes.
#[derive(Clone)]
struct Parts {
    model: ModelProto,
    graph: GraphProto,
    inputs: BTreeMap<String, Tensor>,
    constants: BTreeMap<String, Tensor>,
}

impl Parts {
    fn of(m: &ModelProto, s: &Subject) -> Option<Parts> {
        let mut model = m.clone();
        let mut graph = model.graph.take()?;
        let constants = std::mem::take(&mut graph.initializer)
            .iter()
            .map(|t| Some((t.name.clone(), to_tensor(t)?)))
            .collect::<Option<_>>()?;
        Some(Parts { model, graph, inputs: s.inputs.clone(), constants })
    }

    /// Assembles the subject, without nodes, inputs and constants that no output needs.
    fn subject(mut self, s: &Subject) -> Subject {
        let mut needed: BTreeSet<String> = self.graph.output.iter().map(|o| o.name.clone()).collect();
        let mut nodes: Vec<NodeProto> = vec![];
        for n in self.graph.node.drain(..).rev() {
            if n.output.iter().any(|o| needed.contains(o)) {
                needed.extend(n.input.iter().cloned());
                nodes.push(n);
            }
        }
        nodes.reverse();
        self.graph.node = nodes;
        self.graph.input.retain(|p| needed.contains(&p.name));
        self.inputs.retain(|n, _| needed.contains(n));
        self.constants.retain(|n, _| needed.contains(n));
        for p in &mut self.graph.input {
            if let Some(t) = self.inputs.get(&p.name) {
                fit(p, t);
            }
        }
        self.graph.initializer = self.constants.iter().map(|(n, t)| TensorProto::of(n, t)).collect();
        self.model.graph = Some(self.graph);
        Subject { source: Source::Model(Box::new(self.model)), inputs: self.inputs, rule: s.rule }
    }

    fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.inputs.values_mut().chain(self.constants.values_mut())
    }
}

/// Variants by kind: fewer nodes, fewer outputs, no symbolic extents, smaller extents, fewer attributes, fewer optional
/// operands, simpler values.
pub fn edits<'a>(m: &'a ModelProto, s: &'a Subject, kind: usize) -> Box<dyn Iterator<Item = Subject> + 'a> {
    let all = [nodes, outputs, names, extents, attributes, optional, values];
    let parts = Parts::of(m, s).zip(all.get(kind)).map(|(p, kind)| kind(&p, s));
    Box::new(parts.unwrap_or_default().into_iter().map(move |p| p.subject(s)))
}

/// Variants without one node: its operands become outputs, its result is replaced by its first operand, or its results
/// become inputs.
fn nodes(p: &Parts, s: &Subject) -> Vec<Parts> {
    let count = p.graph.node.len();
    if count < 2 {
        return vec![];
    }
    let computed: BTreeSet<&String> = p.graph.node.iter().flat_map(|n| &n.output).collect();
    let is_output = |name: &String| p.graph.output.iter().any(|o| o.name == *name);
    let given = inner(p, s);
    let mut all = vec![];
    for i in (0..count).rev() {
        let node = &p.graph.node[i];
        let without = || {
            let mut q = p.clone();
            q.graph.node.remove(i);
            q
        };
        if node.output.iter().any(is_output) {
            let mut q = without();
            q.graph.output.retain(|o| !node.output.contains(&o.name));
            for name in node.input.iter().filter(|n| computed.contains(n)) {
                if !q.graph.output.iter().any(|o| o.name == *name) {
                    q.graph.output.push(ValueInfoProto { name: name.clone(), r#type: None });
                }
            }
            if !q.graph.output.is_empty() {
                all.push(q);
            }
        }
        if let (Some(from), Some(to)) = (node.output.first(), node.input.first()) {
            let mut q = without();
            for n in q.graph.node.iter_mut().flat_map(|n| &mut n.input).filter(|n| *n == from) {
                n.clone_from(to);
            }
            if computed.contains(to) {
                q.graph.output.iter_mut().filter(|o| o.name == *from).for_each(|o| o.name.clone_from(to));
            }
            all.push(q);
        }
        if !node.output.iter().any(is_output) {
            let mut q = without();
            let values: Option<Vec<(String, Tensor)>> = node
                .output
                .iter()
                .filter(|o| !o.is_empty())
                .map(|o| Some((o.clone(), given.get(o)?.clone())))
                .collect();
            if let Some(values) = values {
                for (name, t) in values {
                    q.graph.input.push(port(&name, &t));
                    q.inputs.insert(name, t);
                }
                all.push(q);
            }
        }
    }
    all
}

/// The evaluator's values of all nodes' results.
fn inner(p: &Parts, s: &Subject) -> BTreeMap<String, Tensor> {
    let mut q = p.clone();
    let names: Vec<String> =
        p.graph.node.iter().flat_map(|n| &n.output).filter(|n| !n.is_empty()).cloned().collect();
    q.graph.output = names.iter().map(|n| ValueInfoProto { name: n.clone(), r#type: None }).collect();
    let all = q.subject(s);
    let values = caught(|| {
        let graph = all.graph(&Options::default())?;
        evaluate(&graph, &all.inputs).map_err(|e| Failure::error(e.to_string()))
    });
    names.into_iter().zip(values.unwrap_or_default()).collect()
}

/// Variants with one output.
fn outputs(p: &Parts, _: &Subject) -> Vec<Parts> {
    let one = |i: usize| {
        let mut q = p.clone();
        q.graph.output = vec![p.graph.output[i].clone()];
        q
    };
    let n = p.graph.output.len();
    if n < 2 { vec![] } else { (0..n).map(one).collect() }
}

/// The variant with numbers in place of symbolic extents.
fn names(p: &Parts, _: &Subject) -> Vec<Parts> {
    let mut q = p.clone();
    let mut named = false;
    for port in &mut q.graph.input {
        let Some(t) = q.inputs.get(&port.name) else { continue };
        for d in dims(port) {
            named |= matches!(d.value, Some(DimensionValue::Param(_)));
            d.value = None;
        }
        fit(port, t);
    }
    if named { vec![q] } else { vec![] }
}

fn attributes(p: &Parts, _: &Subject) -> Vec<Parts> {
    let mut all = vec![];
    for (i, node) in p.graph.node.iter().enumerate() {
        for a in 0..node.attribute.len() {
            let mut q = p.clone();
            q.graph.node[i].attribute.remove(a);
            all.push(q);
        }
    }
    all
}

/// Variants without one operand, or without the last result of a node if nothing reads it. The importer decides which
/// operands may be left out.
fn optional(p: &Parts, _: &Subject) -> Vec<Parts> {
    let mut all = vec![];
    for (i, node) in p.graph.node.iter().enumerate() {
        for (k, name) in node.input.iter().enumerate().rev() {
            if !name.is_empty() {
                let mut q = p.clone();
                let inputs = &mut q.graph.node[i].input;
                inputs[k].clear();
                while inputs.last().is_some_and(String::is_empty) {
                    inputs.pop();
                }
                all.push(q);
            }
        }
        let unread = |o: &String| {
            !p.graph.output.iter().any(|x| x.name == *o) && !p.graph.node.iter().any(|n| n.input.contains(o))
        };
        if node.output.len() > 1 && node.output.last().is_some_and(unread) {
            let mut q = p.clone();
            q.graph.node[i].output.pop();
            all.push(q);
        }
    }
    all
}

/// Variants with smaller extents: all extents, all equal ones with or without the integers of the same value, or a single
/// one.
fn extents(p: &Parts, _: &Subject) -> Vec<Parts> {
    let tensors = || p.inputs.values().chain(p.constants.values());
    let mut present: Vec<usize> =
        tensors().flat_map(|t| t.shape.iter().copied()).filter(|e| *e > 1).collect();
    present.sort_unstable_by(|a, b| b.cmp(a));
    present.dedup();
    let mut all = vec![];
    for to in [1, 2] {
        if present.iter().filter(|e| **e > to).count() > 1 {
            let mut q = p.clone();
            for t in q.tensors_mut() {
                for axis in 0..t.shape.len() {
                    if t.shape[axis] > to {
                        *t = cut(t, axis, to);
                    }
                }
            }
            all.push(q);
        }
    }
    for from in present {
        let mut targets = vec![1, 2, from / 2, from - 1];
        targets.retain(|t| *t < from && *t > 0);
        targets.dedup();
        for to in targets {
            for numbers in [false, true] {
                let mut q = p.clone();
                for t in q.tensors_mut() {
                    for axis in 0..t.shape.len() {
                        if t.shape[axis] == from {
                            *t = cut(t, axis, to);
                        }
                    }
                }
                if !numbers || replace(&mut q, from as i64, to as i64) {
                    all.push(q);
                }
            }
            for (i, t) in tensors().enumerate() {
                for axis in (0..t.shape.len()).filter(|a| t.shape[*a] == from) {
                    let mut q = p.clone();
                    if let Some(t) = q.tensors_mut().nth(i) {
                        *t = cut(t, axis, to);
                    }
                    all.push(q);
                }
            }
        }
    }
    all
}

/// Replaces a number in attributes and constant integers. Returns whether it occurred.
fn replace(p: &mut Parts, from: i64, to: i64) -> bool {
    let mut any = false;
    let mut change = |v: &mut i64| {
        any |= *v == from;
        *v = if *v == from { to } else { *v };
    };
    for a in p.graph.node.iter_mut().flat_map(|n| &mut n.attribute) {
        match a.r#type {
            attribute_type::INT => change(&mut a.i),
            attribute_type::INTS => a.ints.iter_mut().for_each(&mut change),
            _ => {}
        }
    }
    for t in p.constants.values_mut().filter(|t| t.dtype == DType::I64) {
        let mut v = t.to_i64s().unwrap_or_default();
        v.iter_mut().for_each(&mut change);
        *t = Tensor::from_i64(t.shape.clone(), &v);
    }
    any
}

/// Variants in which the floats of one tensor become ones, zeros or multiples of a quarter.
fn values(p: &Parts, _: &Subject) -> Vec<Parts> {
    let ways: [fn(f64) -> f64; 3] = [|_| 1.0, |_| 0.0, |v| (v * 4.0).round() / 4.0];
    let rank = |t: &[Scalar]| {
        let all = |f: fn(f64) -> f64| t.iter().all(|s| f(s.as_f64()) == s.as_f64());
        ways.iter().position(|f| all(*f)).unwrap_or(ways.len())
    };
    let mut all = vec![];
    let count = p.inputs.len() + p.constants.len();
    for i in 0..count {
        let mut q = p.clone();
        let Some(t) = q.tensors_mut().nth(i) else { continue };
        let v = t.scalars().unwrap_or_default();
        if !t.dtype.is_float() || v.is_empty() {
            continue;
        }
        let (dtype, shape) = (t.dtype, t.shape.clone());
        for way in &ways[..rank(&v)] {
            let new: Vec<Scalar> = v.iter().map(|s| Scalar::from_f64(dtype, way(s.as_f64()))).collect();
            let mut q = p.clone();
            if let Some(t) = q.tensors_mut().nth(i) {
                *t = Tensor::from_scalars(dtype, shape.clone(), &new);
            }
            all.push(q);
        }
    }
    all
}

/// The first `to` elements along an axis.
fn cut(t: &Tensor, axis: usize, to: usize) -> Tensor {
    let inner: usize = t.shape[axis + 1..].iter().product();
    let (row, keep) = (t.shape[axis] * inner, to * inner);
    let v = t.scalars().unwrap_or_default();
    let kept: Vec<Scalar> = v.chunks(row.max(1)).flat_map(|c| c.iter().take(keep)).copied().collect();
    let mut shape = t.shape.clone();
    shape[axis] = to;
    Tensor::from_scalars(t.dtype, shape, &kept)
}

fn to_tensor(t: &TensorProto) -> Option<Tensor> {
    let shape = t.dims.iter().map(|d| usize::try_from(*d).ok()).collect::<Option<Vec<_>>>()?;
    Tensor::new(data_type::dtype(t.data_type)?, shape, t.raw_data.to_vec()).ok()
}

fn port(name: &str, t: &Tensor) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto::of(t.dtype, &t.shape)) }
}

fn dims(p: &mut ValueInfoProto) -> impl Iterator<Item = &mut DimensionProto> {
    let ty = p.r#type.as_mut().and_then(|t| t.value.as_mut());
    let shape = match ty {
        Some(TypeValue::Tensor(t)) => t.shape.as_mut(),
        _ => None,
    };
    shape.into_iter().flat_map(|s| &mut s.dim)
}

/// Sets the extents that are not symbolic to those of the tensor.
fn fit(p: &mut ValueInfoProto, t: &Tensor) {
    for (d, e) in dims(p).zip(&t.shape) {
        if !matches!(d.value, Some(DimensionValue::Param(_))) {
            d.value = Some(DimensionValue::Value(*e as i64));
        }
    }
}
