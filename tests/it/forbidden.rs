//! Nodes that violate the ONNX specification are refused with an error that names the node, the operator, its
//! opset and the faulty part, and suggests a remedy.
//!
//! Faults are put into the cases of operators ([`plain_cases`]) one at a time: unknown attributes, attributes
//! of another kind, inputs of other types and ranks, omitted or surplus inputs. Each resulting model must be
//! refused or compile.

use crate::backend::{Failure, caught};
use prost::Message;
use std::collections::BTreeMap;
use wgfc_compiler::Options;
use wgfc_compiler::import::onnx::*;
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_ir::DType;
use wgfc_selftest::plain_cases;

/// The node under test.
fn node(m: &mut ModelProto) -> &mut NodeProto {
    &mut m.graph.as_mut().expect("a graph").node[0]
}

fn input_type(m: &mut ModelProto, i: usize) -> Option<&mut TensorTypeProto> {
    let name = node(m).input.get(i)?.clone();
    let port = m.graph.as_mut()?.input.iter_mut().find(|p| p.name == name)?;
    match port.r#type.as_mut()?.value.as_mut()? {
        TypeValue::Tensor(t) => Some(t),
        _ => None,
    }
}

/// Models with one change each: a description, the name that the error must contain if there must be an
/// error, and the model.
fn spoilt(m: &ModelProto) -> Vec<(String, Option<String>, ModelProto)> {
    let mut all = vec![];
    let mut change = |what: String, named: Option<&str>, f: &dyn Fn(&mut ModelProto)| {
        let mut bad = m.clone();
        f(&mut bad);
        all.push((what, named.map(|n| format!("`{n}`")), bad));
    };
    let own = m.graph.as_ref().map(|g| g.node[0].clone()).unwrap_or_default();
    // Operators that have no schema in ONNX are not checked against one.
    let unknown = ["ImageScaler", "SimplifiedLayerNormalization"].contains(&own.op_type.as_str());
    let checked = !own.domain.starts_with("com.") && !unknown;
    if checked {
        change("an unknown attribute".into(), Some("nonsense"), &|m| {
            let a =
                AttributeProto { name: "nonsense".into(), r#type: attribute_type::INT, ..Default::default() };
            node(m).attribute.push(a);
        });
    }
    for (i, a) in own.attribute.iter().enumerate() {
        // The kind is not a string, since no string stands for a number.
        let kind =
            if a.r#type == attribute_type::FLOATS { attribute_type::INT } else { attribute_type::FLOATS };
        let named = checked.then_some(a.name.as_str());
        change(format!("{} of another kind", a.name), named, &|m| node(m).attribute[i].r#type = kind);
        if a.r#type == attribute_type::INT {
            for v in [i64::MIN, -7, 1 << 40] {
                change(format!("{} = {v}", a.name), None, &|m| node(m).attribute[i].i = v);
            }
        }
        if a.r#type == attribute_type::STRING {
            change(format!("{} = sideways", a.name), Some(&a.name), &|m| {
                node(m).attribute[i].s = b"sideways".to_vec();
            });
        }
        change(format!("without {}", a.name), None, &|m| drop(node(m).attribute.remove(i)));
    }
    for i in 0..own.input.len() {
        change(format!("without input {i}"), None, &|m| node(m).input[i].clear());
        for d in [DType::Bool, DType::F32, DType::I64, DType::U8, DType::F8E5M2] {
            change(format!("input {i} of {d}"), None, &|m| {
                if let Some(t) = input_type(m, i) {
                    t.elem_type = data_type::code(d);
                }
            });
        }
        let one = || DimensionProto { value: Some(DimensionValue::Value(3)) };
        change(format!("input {i} of one rank more"), None, &|m| {
            if let Some(s) = input_type(m, i).and_then(|t| t.shape.as_mut()) {
                s.dim.insert(0, one());
            }
        });
        change(format!("input {i} of rank 0"), None, &|m| {
            if let Some(s) = input_type(m, i).and_then(|t| t.shape.as_mut()) {
                s.dim.clear();
            }
        });
    }
    all
}

#[test]
fn what_onnx_forbids_is_named() {
    let (mut tried, mut refused, mut wrong) = (0, 0, vec![]);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (name, seed, model) in plain_cases(1..=3) {
        let operator = name.rsplit('.').next().unwrap_or(name);
        for (what, named, bad) in spoilt(&model) {
            tried += 1;
            let options = Options { graph_only: true, ..Options::default() };
            let result = caught(|| {
                import(&bad.encode_to_vec(), &NoExternalData, &options)
                    .map(drop)
                    .map_err(|e| Failure::error(e.to_string()))
            });
            let trouble = match (&result, named) {
                (Ok(()), None) => None,
                (Ok(()), Some(n)) => Some(format!("{n} is accepted")),
                (Err(Failure::Panic(e)), _) => Some(e.clone()),
                (Err(e), named) => {
                    refused += 1;
                    let text = e.message();
                    let help = Some("\n  help: ".to_owned());
                    let parts = [Some(format!("node \"{operator}\" (")), Some("opset".into()), named, help];
                    let missing: Vec<String> =
                        parts.into_iter().flatten().filter(|p| !text.contains(p)).collect();
                    let good = missing.is_empty() && !text.contains("[internal]");
                    (!good).then(|| format!("{missing:?} is not in: {text}"))
                }
            };
            if let Some(t) = trouble
                && *seen.entry(format!("{name} {what}")).and_modify(|n| *n += 1).or_insert(0) == 0
            {
                wrong.push(format!("{name} {seed}, {what}: {t}"));
            }
        }
    }
    crate::say(format!("what_onnx_forbids_is_named: {tried} spoilt models, {refused} refused"));
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
}
