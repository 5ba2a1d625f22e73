//! Changes that shrink the nodes of a model: sizes, attributes, optional operands, bodies.

use super::Reducer;
use super::graph;
use super::store::{Store, ones};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_compiler::import::onnx::*;
use wgfc_ir::{Poly, Tensor};

/// The dimensions in the declared type of a value.
pub fn dims_mut(v: &mut ValueInfoProto) -> impl Iterator<Item = &mut DimensionProto> {
    let shape = match v.r#type.as_mut().and_then(|t| t.value.as_mut()) {
        Some(TypeValue::Tensor(t)) => t.shape.as_mut(),
        _ => None,
    };
    shape.into_iter().flat_map(|s| &mut s.dim)
}

fn dims(v: &ValueInfoProto) -> impl Iterator<Item = &DimensionProto> {
    let shape = match v.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Tensor(t)) => t.shape.as_ref(),
        _ => None,
    };
    shape.into_iter().flat_map(|s| &s.dim)
}

/// Models with numbers in place of symbolic dimensions: first models in which all are replaced, then models in which one is.
pub fn symbols(r: &mut Reducer<'_>) -> Vec<ModelProto> {
    let g = r.graph();
    let (mut first, mut all) = (BTreeSet::new(), BTreeSet::new());
    let mut open = false;
    for v in &g.input {
        for (axis, d) in dims(v).enumerate() {
            match &d.value {
                Some(DimensionValue::Param(p)) => {
                    let found = Poly::parse(p).map(|p| p.symbols()).unwrap_or_default();
                    if axis == 0 {
                        first.extend(found.iter().map(ToString::to_string));
                    }
                    all.extend(found.iter().map(ToString::to_string));
                }
                None => open = true,
                _ => {}
            }
        }
    }
    if all.is_empty() && !open {
        return vec![];
    }
    let with = |values: &BTreeMap<&str, i64>, others: Option<i64>| {
        let mut g = g.clone();
        for d in g.input.iter_mut().flat_map(dims_mut) {
            let n = match &d.value {
                Some(DimensionValue::Param(p)) => match Poly::parse(p) {
                    Ok(p) => p.eval_syms(&|s| values.get(s).copied()),
                    Err(_) => others,
                },
                None => others,
                Some(_) => continue,
            };
            if let Some(n) = n.filter(|n| *n >= 0) {
                d.value = Some(DimensionValue::Value(n));
            }
        }
        r.with(g)
    };
    let mut found = vec![];
    for size in [4, 1, 8, 64] {
        let value = |s: &String| if first.contains(s) { 1 } else { size };
        found.push(with(&all.iter().map(|s| (s.as_str(), value(s))).collect(), Some(size)));
    }
    found.push(with(&all.iter().map(|s| (s.as_str(), 2)).collect(), Some(2)));
    for s in &all {
        found.extend([1, 2, 8].map(|n| with(&[(s.as_str(), n)].into(), None)));
    }
    found
}

/// Models with smaller inputs, which many models accept without other changes. Each distinct extent, the largest first, is
/// divided by eight, by four and by two.
pub fn inputs(r: &mut Reducer<'_>) -> Vec<ModelProto> {
    const LARGE: i64 = 32;
    let g = r.graph();
    let value = |d: &DimensionProto| match d.value {
        Some(DimensionValue::Value(n)) => Some(n),
        _ => None,
    };
    let extents: BTreeSet<i64> =
        g.input.iter().flat_map(dims).filter_map(value).filter(|n| *n >= LARGE).collect();
    let mut found = vec![];
    for from in extents.into_iter().rev() {
        for part in [8, 4, 2] {
            let mut g = g.clone();
            let all = g.input.iter_mut().flat_map(dims_mut).filter(|d| value(d) == Some(from));
            all.for_each(|d| d.value = Some(DimensionValue::Value(from / part)));
            found.push(r.with(g));
        }
    }
    found
}

/// Whether a constant may hold sizes: a short i64 tensor.
fn is_sizes(t: &TensorProto) -> bool {
    t.data_type == 7 && t.data_location == 0 && t.dims.len() < 2 && t.dims.iter().product::<i64>() <= 16
}

fn integers(t: &TensorProto) -> Vec<i64> {
    match t.raw_data.is_empty() {
        true => t.int64_data.clone(),
        false => {
            let one = |b: &[u8]| b.try_into().map(i64::from_le_bytes).unwrap_or_default();
            t.raw_data.chunks_exact(8).map(one).collect()
        }
    }
}

/// The extents of inputs and constants, and integers that may be extents, in descending order.
pub fn present(g: &GraphProto) -> Vec<i64> {
    let mut all: BTreeSet<i64> = g.initializer.iter().flat_map(|t| t.dims.iter().copied()).collect();
    all.extend(g.input.iter().flat_map(dims).filter_map(|d| match d.value {
        Some(DimensionValue::Value(n)) => Some(n),
        _ => None,
    }));
    all.extend(g.initializer.iter().filter(|t| is_sizes(t)).flat_map(integers));
    all.into_iter().rev().filter(|n| *n > 1 && *n < 1 << 40).collect()
}

/// The model with the extent `from` replaced by `to`. Variants scale multiples of `from` too or not, and replace integers of
/// the same value too or not.
pub fn smaller(m: &ModelProto, from: i64, to: i64, store: &mut Store) -> Vec<ModelProto> {
    let mut found: Vec<ModelProto> = vec![];
    for (multiples, numbers) in [(true, true), (false, true), (false, false)] {
        let map = |n: i64| match n {
            n if n == from => to,
            n if multiples && n > from && n % from == 0 => n / from * to,
            n => n,
        };
        if let Some(m) = resized(m, &map, numbers, store)
            && !found.contains(&m)
        {
            found.push(m);
        }
    }
    found
}

fn resized(m: &ModelProto, map: &dyn Fn(i64) -> i64, numbers: bool, store: &mut Store) -> Option<ModelProto> {
    let mut m = m.clone();
    let g = m.graph.as_mut()?;
    for d in g.input.iter_mut().flat_map(dims_mut) {
        if let Some(DimensionValue::Value(n)) = &mut d.value {
            *n = map(*n);
        }
    }
    for t in &mut g.initializer {
        for axis in 0..t.dims.len() {
            let to = map(t.dims[axis]);
            if to != t.dims[axis] {
                *t = store.cut(t, axis, usize::try_from(to).ok()?)?;
            }
        }
        if numbers && is_sizes(t) {
            let v = integers(t);
            let new: Vec<i64> = v.iter().map(|n| map(*n)).collect();
            if new != v {
                let shape = t.dims.iter().map(|d| *d as usize).collect();
                *t = TensorProto::of(&t.name, &Tensor::from_i64(shape, &new));
            }
        }
    }
    if numbers {
        attributes(&mut g.node, map);
    }
    Some(m)
}

fn attributes(nodes: &mut [NodeProto], map: &dyn Fn(i64) -> i64) {
    for a in nodes.iter_mut().flat_map(|n| &mut n.attribute) {
        match a.r#type {
            attribute_type::INT => a.i = map(a.i),
            attribute_type::INTS => a.ints.iter_mut().for_each(|i| *i = map(*i)),
            attribute_type::GRAPH => a.g.iter_mut().for_each(|g| attributes(&mut g.node, map)),
            _ => {}
        }
    }
}

/// The model in which one axis of the `i`-th constant or input has extent 1.
pub fn broadcast(m: &ModelProto, i: usize, axis: usize, store: &mut Store) -> Option<ModelProto> {
    let mut m = m.clone();
    let g = m.graph.as_mut()?;
    let constants = g.initializer.len();
    if let Some(t) = g.initializer.get_mut(i) {
        if t.dims.get(axis).is_none_or(|d| *d < 2) {
            return None;
        }
        *t = store.cut(t, axis, 1)?;
        return Some(m);
    }
    let d = dims_mut(g.input.get_mut(i - constants)?).nth(axis)?;
    match &mut d.value {
        Some(DimensionValue::Value(n)) if *n > 1 => *n = 1,
        _ => return None,
    }
    Some(m)
}

/// Whether all elements are 1.
pub fn is_ones(t: &TensorProto, store: &Store) -> bool {
    store.get(t).is_some_and(|x| x.bytes() == ones(x.dtype, x.shape.clone()).bytes())
}

/// Models without one attribute, one operand, or the last result of a node if nothing reads it. The importer decides which
/// operands may be left out.
pub fn optional(m: &ModelProto) -> Vec<ModelProto> {
    let Some(g) = &m.graph else { return vec![] };
    let mut found = vec![];
    let mut with = |i: usize, change: &dyn Fn(&mut NodeProto)| {
        let mut m = m.clone();
        if let Some(n) = m.graph.as_mut().and_then(|g| g.node.get_mut(i)) {
            change(n);
            found.push(m);
        }
    };
    for (i, n) in g.node.iter().enumerate() {
        for (k, a) in n.attribute.iter().enumerate().rev() {
            if a.g.is_none() {
                with(i, &|n| drop(n.attribute.remove(k)));
            }
        }
        for (k, _) in n.input.iter().enumerate().filter(|(_, x)| !x.is_empty()).rev() {
            with(i, &|n| {
                n.input[k].clear();
                while n.input.last().is_some_and(String::is_empty) {
                    n.input.pop();
                }
            });
        }
        let read = |o: &String| {
            g.output.iter().any(|v| v.name == *o)
                || g.node.iter().any(|n| graph::reads(n).contains(o.as_str()))
        };
        if n.output.len() > 1 && n.output.last().is_some_and(|o| !read(o)) {
            with(i, &|n| drop(n.output.pop()));
        }
    }
    found
}

/// Models without one node of a body, whose result is replaced by one of its operands or by a new input of the model.
pub fn bodies(m: &ModelProto, type_of: &dyn Fn(&str) -> Option<TypeProto>) -> Vec<ModelProto> {
    let Some(g) = &m.graph else { return vec![] };
    let mut found = vec![];
    for (i, n) in g.node.iter().enumerate() {
        for a in 0..n.attribute.len() {
            let Some(body) = &n.attribute[a].g else { continue };
            for k in (0..body.node.len()).rev() {
                let inner = &body.node[k];
                let without = |from: &str, to: &str, input: Option<ValueInfoProto>| {
                    let mut m = m.clone();
                    let g = m.graph.as_mut()?;
                    let body = g.node[i].attribute[a].g.as_mut()?;
                    body.node.remove(k);
                    if from != to {
                        graph::rename_reads(&mut body.node, from, to);
                        body.output
                            .iter_mut()
                            .filter(|o| o.name == from)
                            .for_each(|o| to.clone_into(&mut o.name));
                    }
                    unread(body);
                    g.input.extend(input);
                    Some(m)
                };
                let [o] = inner.output.as_slice() else { continue };
                found
                    .extend(inner.input.iter().filter(|x| !x.is_empty()).filter_map(|x| without(o, x, None)));
                if let Some(ty) = type_of(o) {
                    found.extend(without(o, o, Some(ValueInfoProto { name: o.clone(), r#type: Some(ty) })));
                }
            }
        }
    }
    found
}

/// Removes the nodes and constants of a body that none of its outputs needs.
fn unread(body: &mut GraphProto) {
    let inputs = std::mem::take(&mut body.input);
    graph::prune(body);
    body.input = inputs;
}
