//! Structural mutations of a decoded model, which remains well-formed protobuf: nodes, edges, attributes,
//! constants, types, operator sets, subgraphs and functions.

use super::NUMBERS;
use wgfc_compiler::import::onnx::*;
use wgfc_ir::testing::Rng;

const FLOATS: [f32; 10] =
    [0.0, -0.0, 1.0, -1.0, 0.5, 1e-38, 1e38, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
const SYMBOLS: [&str; 8] = ["n", "m", "batch", "n + m", "n*2", "n - 1", "(n + 3)/2", "?"];

fn number(rng: &mut Rng, old: i64) -> i64 {
    match rng.below(4) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old.wrapping_neg(),
        _ => *rng.pick(&NUMBERS).unwrap_or(&0),
    }
}

/// Parts of the model that mutations reuse in other places.
struct Spare {
    operators: Vec<(String, String)>,
    attributes: Vec<AttributeProto>,
    texts: Vec<Vec<u8>>,
    tensors: Vec<TensorProto>,
}

fn graphs<'g>(g: &'g GraphProto, out: &mut Vec<&'g GraphProto>) {
    out.push(g);
    for a in g.node.iter().flat_map(|n| &n.attribute) {
        if let Some(inner) = &a.g {
            graphs(inner, out);
        }
    }
}

impl Spare {
    fn of(model: &ModelProto) -> Spare {
        let mut all = vec![];
        if let Some(g) = &model.graph {
            graphs(g, &mut all);
        }
        let nodes = || all.iter().flat_map(|g| &g.node).chain(model.functions.iter().flat_map(|f| &f.node));
        Spare {
            operators: nodes().map(|n| (n.domain.clone(), n.op_type.clone())).collect(),
            attributes: nodes().flat_map(|n| &n.attribute).filter(|a| a.g.is_none()).cloned().collect(),
            texts: nodes()
                .flat_map(|n| &n.attribute)
                .map(|a| a.s.clone())
                .filter(|s| !s.is_empty())
                .collect(),
            tensors: all
                .iter()
                .flat_map(|g| &g.initializer)
                .filter(|t| t.raw_data.len() < 4096)
                .cloned()
                .collect(),
        }
    }
}

/// A copy of the model with one to four changes.
pub fn mutated(model: &ModelProto, rng: &mut Rng) -> ModelProto {
    let mut model = model.clone();
    for _ in 0..1 + rng.below(4) {
        let spare = Spare::of(&model);
        match rng.below(16) {
            0 => opsets(&mut model.opset_import, rng),
            1 if !model.functions.is_empty() => {
                let i = rng.below(model.functions.len());
                let f = &mut model.functions[i];
                match rng.below(4) {
                    0 => f.input.truncate(rng.below(f.input.len() + 1)),
                    1 => f.output.truncate(rng.below(f.output.len() + 1)),
                    2 => opsets(&mut f.opset_import, rng),
                    _ => nodes(&mut f.node, rng, &spare),
                }
            }
            _ => {
                if let Some(g) = &mut model.graph {
                    graph(g, rng, &spare);
                }
            }
        }
    }
    model
}

fn opsets(sets: &mut [OperatorSetIdProto], rng: &mut Rng) {
    if !sets.is_empty() {
        let i = rng.below(sets.len());
        sets[i].version = if rng.one_in(6) { number(rng, sets[i].version) } else { 1 + rng.below(28) as i64 };
    }
}

/// Changes one place in a graph or in one of its subgraphs.
fn graph(g: &mut GraphProto, rng: &mut Rng, spare: &Spare) {
    let mut inner: Vec<&mut GraphProto> =
        g.node.iter_mut().flat_map(|n| &mut n.attribute).filter_map(|a| a.g.as_mut()).collect();
    if !inner.is_empty() && !rng.one_in(3) {
        let i = rng.below(inner.len());
        return graph(inner.swap_remove(i), rng, spare);
    }
    match rng.below(12) {
        0..5 => nodes(&mut g.node, rng, spare),
        5 | 6 => edge(g, rng),
        7 | 8 if !g.initializer.is_empty() => {
            let i = rng.below(g.initializer.len());
            tensor(&mut g.initializer[i], rng);
        }
        7..=9 if !g.input.is_empty() => {
            let i = rng.below(g.input.len());
            value_info(&mut g.input[i], rng);
        }
        10 if !g.output.is_empty() => match rng.below(4) {
            0 => g.output.truncate(rng.below(g.output.len()) + 1),
            1 => g.output.push(g.output[0].clone()),
            2 => {
                let made: Vec<&String> = g.node.iter().flat_map(|n| &n.output).collect();
                if let Some(name) = rng.pick(&made) {
                    g.output.push(ValueInfoProto { name: (*name).clone(), r#type: None });
                }
            }
            _ => {
                let i = rng.below(g.output.len());
                value_info(&mut g.output[i], rng);
            }
        },
        // A constant replaces an input.
        _ if !g.input.is_empty() && !spare.tensors.is_empty() => {
            let name = g.input[rng.below(g.input.len())].name.clone();
            if let Some(t) = rng.pick(&spare.tensors) {
                g.initializer.push(TensorProto { name, ..t.clone() });
            }
        }
        _ => nodes(&mut g.node, rng, spare),
    }
}

fn nodes(list: &mut Vec<NodeProto>, rng: &mut Rng, spare: &Spare) {
    if list.is_empty() {
        return;
    }
    let i = rng.below(list.len());
    match rng.below(10) {
        0 => drop(list.remove(i)),
        1 => {
            let mut twin = list[i].clone();
            twin.output.iter_mut().filter(|o| !o.is_empty()).for_each(|o| o.push_str("_again"));
            // Readers of the first node read its copy.
            let from = list[i].output.clone();
            for (n, o) in from.iter().zip(&twin.output).filter(|(n, _)| !n.is_empty()) {
                if let Some(input) = list.iter_mut().flat_map(|n| &mut n.input).find(|i| *i == n) {
                    *input = o.clone();
                }
            }
            list.push(twin);
        }
        2 => operator(&mut list[i], rng, spare),
        3 => {
            let n = &mut list[i];
            if n.input.len() > 1 {
                let (a, b) = (rng.below(n.input.len()), rng.below(n.input.len()));
                n.input.swap(a, b);
            }
        }
        4 => branch(&mut list[i]),
        5 => {
            let n = &mut list[i];
            if rng.one_in(2) {
                n.output.push(format!("extra_{}", rng.below(100)));
            } else if !n.output.is_empty() {
                n.output.pop();
            }
        }
        _ => attribute(&mut list[i], rng, spare),
    }
}

fn operator(n: &mut NodeProto, rng: &mut Rng, spare: &Spare) {
    if rng.one_in(3)
        && let Some((domain, op)) = rng.pick(&spare.operators).cloned()
    {
        (n.domain, n.op_type) = (domain, op);
        return;
    }
    let all: Vec<_> = wgfc_compiler::import::onnx::ops::all().collect();
    if let Some(def) = rng.pick(&all) {
        (n.domain, n.op_type) = (def.domain.into(), def.name.into());
    }
}

/// Puts the node into both branches of an `If`.
fn branch(n: &mut NodeProto) {
    let outputs = n.output.iter().filter(|o| !o.is_empty());
    let body = |suffix: &str| {
        let rename = |o: &String| if o.is_empty() { o.clone() } else { format!("{o}{suffix}") };
        let output = outputs.clone().map(|o| ValueInfoProto { name: rename(o), r#type: None }).collect();
        let node = NodeProto { output: n.output.iter().map(rename).collect(), ..n.clone() };
        GraphProto { node: vec![node], name: "branch".into(), output, ..Default::default() }
    };
    let attribute = |name: &str, suffix: &str| AttributeProto {
        name: name.into(),
        r#type: attribute_type::GRAPH,
        g: Some(body(suffix)),
        ..Default::default()
    };
    let both = vec![attribute("then_branch", "_then"), attribute("else_branch", "_else")];
    let condition = n.input.first().cloned().unwrap_or_default();
    let output = outputs.cloned().collect();
    *n = NodeProto {
        op_type: "If".into(),
        input: vec![condition],
        output,
        attribute: both,
        ..Default::default()
    };
}

fn attribute(n: &mut NodeProto, rng: &mut Rng, spare: &Spare) {
    if n.attribute.is_empty() || rng.one_in(6) {
        n.attribute.extend(rng.pick(&spare.attributes).cloned());
        return;
    }
    let i = rng.below(n.attribute.len());
    let a = &mut n.attribute[i];
    match rng.below(8) {
        0 => drop(n.attribute.remove(i)),
        1 => a.r#type = rng.below(9) as i32,
        _ => match a.r#type {
            attribute_type::INT => a.i = number(rng, a.i),
            attribute_type::FLOAT => a.f = *rng.pick(&FLOATS).unwrap_or(&0.0),
            attribute_type::STRING => a.s = rng.pick(&spare.texts).cloned().unwrap_or_default(),
            attribute_type::INTS => match rng.below(4) {
                0 => a.ints.push(number(rng, 1)),
                1 => _ = a.ints.pop(),
                _ if a.ints.is_empty() => {}
                _ => {
                    let j = rng.below(a.ints.len());
                    a.ints[j] = number(rng, a.ints[j]);
                }
            },
            attribute_type::FLOATS if !a.floats.is_empty() => {
                let j = rng.below(a.floats.len());
                a.floats[j] = *rng.pick(&FLOATS).unwrap_or(&0.0);
            }
            attribute_type::TENSOR => {
                if let Some(t) = &mut a.t {
                    tensor(t, rng);
                }
            }
            attribute_type::GRAPH => {
                if let Some(g) = &mut a.g {
                    match rng.below(3) {
                        0 => _ = g.input.pop(),
                        1 => _ = g.output.pop(),
                        _ => g.input.push(ValueInfoProto { name: "more".into(), r#type: None }),
                    }
                }
            }
            _ => {}
        },
    }
}

/// Makes a node read another value.
fn edge(g: &mut GraphProto, rng: &mut Rng) {
    let mut names: Vec<String> = g.node.iter().flat_map(|n| n.output.iter().cloned()).collect();
    names.extend(g.input.iter().map(|v| v.name.clone()));
    names.extend(g.initializer.iter().map(|t| t.name.clone()));
    if g.node.is_empty() {
        return;
    }
    let i = rng.below(g.node.len());
    let n = &mut g.node[i];
    let to = if rng.one_in(5) { String::new() } else { rng.pick(&names).cloned().unwrap_or_default() };
    match n.input.len() {
        0 => n.input.push(to),
        _ if rng.one_in(6) => n.input.push(to),
        _ if rng.one_in(6) => _ = n.input.pop(),
        len => n.input[rng.below(len)] = to,
    }
}

fn tensor(t: &mut TensorProto, rng: &mut Rng) {
    match rng.below(6) {
        0 if !t.dims.is_empty() => {
            let i = rng.below(t.dims.len());
            t.dims[i] = number(rng, t.dims[i]);
        }
        1 => t.dims.push(1),
        2 => t.data_type = rng.below(27) as i32,
        // A tensor without elements.
        3 if !t.dims.is_empty() => {
            let i = rng.below(t.dims.len());
            t.dims[i] = 0;
            *t = TensorProto {
                name: std::mem::take(&mut t.name),
                dims: std::mem::take(&mut t.dims),
                data_type: t.data_type,
                ..Default::default()
            };
        }
        _ => {
            if !t.int64_data.is_empty() {
                let i = rng.below(t.int64_data.len());
                t.int64_data[i] = number(rng, t.int64_data[i]);
            } else if !t.float_data.is_empty() {
                let i = rng.below(t.float_data.len());
                t.float_data[i] = *rng.pick(&FLOATS).unwrap_or(&0.0);
            } else if t.raw_data.len() >= 8 && t.data_type == 7 {
                let mut raw = t.raw_data.to_vec();
                let at = rng.below(raw.len() / 8) * 8;
                let old = i64::from_le_bytes(raw[at..at + 8].try_into().unwrap_or_default());
                raw[at..at + 8].copy_from_slice(&number(rng, old).to_le_bytes());
                t.raw_data = raw.into();
            } else if t.raw_data.len() >= 4 {
                let mut raw = t.raw_data.to_vec();
                let at = rng.below(raw.len() / 4) * 4;
                raw[at..at + 4].copy_from_slice(&rng.pick(&FLOATS).unwrap_or(&0.0).to_le_bytes());
                t.raw_data = raw.into();
            }
        }
    }
}

fn value_info(v: &mut ValueInfoProto, rng: &mut Rng) {
    let Some(TypeValue::Tensor(t)) = v.r#type.as_mut().and_then(|t| t.value.as_mut()) else { return };
    match rng.below(8) {
        0 => t.elem_type = rng.below(27) as i32,
        1 => t.shape = None,
        _ => {
            let Some(shape) = &mut t.shape else { return };
            let new = match rng.below(3) {
                0 => Some(DimensionValue::Value(rng.below(5) as i64)),
                1 => Some(DimensionValue::Value(number(rng, 4))),
                _ => Some(DimensionValue::Param((*rng.pick(&SYMBOLS).unwrap_or(&"n")).into())),
            };
            let new = DimensionProto { value: new };
            match shape.dim.len() {
                0 => shape.dim.push(new),
                _ if rng.one_in(6) => _ = shape.dim.pop(),
                _ if rng.one_in(6) => shape.dim.push(new),
                n => shape.dim[rng.below(n)] = new,
            }
        }
    }
}
