//! Builds models of a few nodes from a line of text.
//!
//! The syntax follows ONNX's own printer: `y, z = Op<attribute=value>(a, , [1, 2]); …`. An omitted operand is empty. A list
//! of numbers is a constant, i64 or, with a decimal point, f32; a single number is a scalar constant. The results of the
//! last node are the model's outputs.

use super::list::{Operand, Problem};
use wgfc::compiler::import::onnx::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto,
    ValueInfoProto, attribute_type,
};
use wgfc::{DType, Tensor};

/// The operator sets of the models.
const OPSETS: [(&str, i64); 2] = [("", 24), ("com.microsoft", 1)];

/// The model of a problem; `weight` makes its constants.
pub fn model(p: &Problem, weight: &dyn Fn(&Operand) -> Tensor) -> Result<ModelProto, String> {
    let mut graph = GraphProto { name: p.name.clone(), ..GraphProto::default() };
    for o in &p.inputs {
        graph.input.push(declared(&o.name, Some((o.dtype, &o.shape))));
    }
    for o in &p.weights {
        graph.initializer.push(TensorProto::of(&o.name, &weight(o)));
    }
    for statement in split(&p.onnx, ';') {
        let node = node(statement.trim(), &mut graph.initializer)
            .ok_or_else(|| format!("`{statement}` is no node"))?;
        graph.node.push(node);
    }
    let last = graph.node.last().ok_or("there is no node")?;
    graph.output = last.output.iter().map(|o| declared(o, None)).collect();
    let opset_import = OPSETS
        .iter()
        .map(|(domain, version)| OperatorSetIdProto { domain: (*domain).into(), version: *version })
        .collect();
    Ok(ModelProto {
        ir_version: 10,
        producer_name: "wgfc".into(),
        graph: Some(graph),
        opset_import,
        ..Default::default()
    })
}

fn declared(name: &str, of: Option<(DType, &[usize])>) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), r#type: of.map(|(t, shape)| TypeProto::of(t, shape)) }
}

/// The parts of a text between separators that are not inside brackets.
fn split(text: &str, by: char) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (vec![], 0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '(' | '[' | '<' => depth += 1,
            ')' | ']' | '>' => depth -= 1,
            c if c == by && depth == 0 => {
                parts.push(&text[from..i]);
                from = i + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

fn node(text: &str, constants: &mut Vec<TensorProto>) -> Option<NodeProto> {
    let (outputs, call) = text.split_once('=')?;
    let (head, operands) = call.trim().strip_suffix(')')?.rsplit_once('(')?;
    let (op, attributes) = match head.split_once('<') {
        Some((op, list)) => (op, split(list.trim().strip_suffix('>')?, ',')),
        None => (head, vec![]),
    };
    let (domain, op_type) = op.trim().rsplit_once('.').unwrap_or(("", op.trim()));
    let names = |list: &str| list.split(',').map(|n| n.trim().to_owned()).collect::<Vec<_>>();
    let mut input = vec![];
    for o in split(operands, ',') {
        let o = o.trim();
        input.push(match numbers(o) {
            Some(t) => {
                let name = format!("constant{}", constants.len());
                constants.push(TensorProto::of(&name, &t));
                name
            }
            None => o.to_owned(),
        });
    }
    let output = names(outputs);
    Some(NodeProto {
        name: format!("{}_{}", op_type.to_lowercase(), output.first()?),
        input,
        output,
        op_type: op_type.into(),
        domain: domain.into(),
        attribute: attributes.into_iter().map(attribute).collect::<Option<_>>()?,
        ..Default::default()
    })
}

/// The constant that an operand stands for; `None` if it is a name.
fn numbers(text: &str) -> Option<Tensor> {
    let list = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let words: Vec<&str> = list.unwrap_or(text).split(',').map(str::trim).collect();
    let shape = if list.is_some() { vec![words.len()] } else { vec![] };
    if text.contains('.') {
        let all: Option<Vec<f32>> = words.iter().map(|w| w.parse().ok()).collect();
        return Some(Tensor::from_f32(shape, &all?));
    }
    let all: Option<Vec<i64>> = words.iter().map(|w| w.parse().ok()).collect();
    Some(Tensor::from_i64(shape, &all?))
}

fn attribute(text: &str) -> Option<AttributeProto> {
    let (name, value) = text.split_once('=')?;
    let (name, value) = (name.trim().to_owned(), value.trim());
    let a = AttributeProto { name, ..Default::default() };
    if let Some(s) = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')) {
        return Some(AttributeProto { s: s.to_owned().into(), r#type: attribute_type::STRING, ..a });
    }
    if let Some(list) = value.strip_prefix('[').and_then(|v| v.strip_suffix(']')) {
        let ints = list.split(',').map(|i| i.trim().parse().ok()).collect::<Option<_>>()?;
        return Some(AttributeProto { ints, r#type: attribute_type::INTS, ..a });
    }
    if value.contains('.') {
        return Some(AttributeProto { f: value.parse().ok()?, r#type: attribute_type::FLOAT, ..a });
    }
    Some(AttributeProto { i: value.parse().ok()?, r#type: attribute_type::INT, ..a })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read() {
        let mut constants = vec![];
        let n = node(
            "v, i = com.microsoft.TopK<axis=1, mode=\"a b\", k=[1,2], f=0.5>(x, , [3, 4], 1.5)",
            &mut constants,
        );
        let n = n.unwrap();
        assert_eq!((n.op_type.as_str(), n.domain.as_str()), ("TopK", "com.microsoft"));
        assert_eq!(n.output, ["v", "i"]);
        assert_eq!(n.input, ["x", "", "constant0", "constant1"]);
        assert_eq!(n.attribute.len(), 4);
        assert_eq!((constants[0].dims.clone(), constants[1].dims.clone()), (vec![2], vec![]));
        assert!(node("y = Op(x", &mut constants).is_none());
        assert!(node("y = Op<a>(x)", &mut constants).is_none());
        assert_eq!(split("a, [b, c], d", ','), ["a", " [b, c]", " d"]);
    }
}
