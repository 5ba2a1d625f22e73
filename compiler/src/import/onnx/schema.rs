//! ONNX's schemas of its operators: element types of inputs, names and kinds of attributes. The schemas of all versions of an operator
//! are merged, so only inputs and attributes that no version allows are refused.
//!
//! `scripts/operator_schemas.py` writes `schemas.txt` and documents its format.

use super::messages::{NodeProto, attribute_type, data_type};
use super::op::{AtAttribute, OpError};
use std::collections::HashMap;
use std::sync::OnceLock;
use wgfc_ir::DType;

/// One input of an operator.
struct Input {
    /// The type variable; inputs with the same variable have the same element type.
    variable: Option<char>,
    /// The allowed element types: bit n stands for the type with number n.
    types: u64,
    repeats: bool,
}

struct Schema {
    inputs: Vec<Input>,
    attributes: Vec<(&'static str, Vec<i32>)>,
}

fn schemas() -> &'static HashMap<&'static str, Schema> {
    static TABLE: OnceLock<HashMap<&'static str, Schema>> = OnceLock::new();
    TABLE.get_or_init(|| include_str!("schemas.txt").lines().filter_map(schema).collect())
}

fn schema(line: &'static str) -> Option<(&'static str, Schema)> {
    let mut fields = line.split('\t');
    let (name, inputs, attributes) = (fields.next()?, fields.next()?, fields.next()?);
    let input = |text: &str| {
        let mut c = text.chars();
        let variable = c.next().filter(|v| *v != '-');
        let types = u64::from_str_radix(c.as_str().trim_end_matches('+'), 16).ok()?;
        Some(Input { variable, types, repeats: text.ends_with('+') })
    };
    let attribute = |text: &'static str| {
        let (name, kinds) = text.split_once(':')?;
        Some((name, kinds.split(',').filter_map(|k| k.parse().ok()).collect()))
    };
    let inputs = inputs.split_whitespace().filter_map(input).collect();
    let attributes = attributes.split_whitespace().filter_map(attribute).collect();
    Some((name, Schema { inputs, attributes }))
}

/// Checks a node of `ai.onnx`, `ai.onnx.ml` or `ai.onnx.preview` with inputs of these types, `None` for one that is left out. Operators
/// without a schema are not checked. Returns the inputs that are i32 where ONNX requires i64, which exporters write for shapes, axes and
/// the like.
pub(super) fn check(domain: &str, node: &NodeProto, inputs: &[Option<DType>]) -> Result<Vec<usize>, OpError> {
    let mut widened = vec![];
    let key = match domain {
        "" => node.op_type.clone(),
        _ => format!("{domain}.{}", node.op_type),
    };
    let Some(schema) = schemas().get(key.as_str()) else { return Ok(vec![]) };
    for a in &node.attribute {
        let Some((_, kinds)) = schema.attributes.iter().find(|(name, _)| *name == a.name) else {
            let names: Vec<&str> = schema.attributes.iter().map(|(name, _)| *name).collect();
            let e = OpError::model(format!("{} has no attribute `{}`", node.op_type, a.name));
            let e = e.attribute(&a.name);
            return Err(if names.is_empty() { e } else { e.help(format!("it has {}", names.join(", "))) });
        };
        if a.r#type != 0 && !kinds.contains(&a.r#type) {
            let want: Vec<&str> = kinds.iter().map(|k| attribute_type::name(*k)).collect();
            let (is, want) = (attribute_type::name(a.r#type), want.join(" or "));
            return Err(
                OpError::model(format!("attribute `{}` is {is}, not {want}", a.name)).attribute(&a.name)
            );
        }
    }
    let mut seen: HashMap<char, (usize, DType)> = HashMap::new();
    for (i, dtype) in inputs.iter().enumerate() {
        let at = |e: OpError| e.at(format!("input {i} (\"{}\")", node.input[i]));
        let last = schema.inputs.last().filter(|l| l.repeats);
        let Some(dtype) = *dtype else { continue };
        let Some(input) = schema.inputs.get(i).or(last) else {
            let e = format!("{} takes {} inputs", node.op_type, schema.inputs.len());
            return Err(at(OpError::model(e)));
        };
        let takes = |d: DType| input.types >> data_type::code(d) & 1 == 1;
        if dtype == DType::I32 && !takes(dtype) && takes(DType::I64) && input.variable.is_none() {
            widened.push(i);
            continue;
        }
        if !takes(dtype) {
            let all = DType::ALL.iter().filter(|d| input.types >> data_type::code(**d) & 1 == 1);
            let all: Vec<String> = all.map(DType::to_string).collect();
            let e = format!("{dtype}, and {} takes {}", node.op_type, all.join(", "));
            return Err(at(OpError::model(e)));
        }
        if let Some(v) = input.variable {
            let (first, other) = *seen.entry(v).or_insert((i, dtype));
            if other != dtype {
                let e = format!("operands of different types: {dtype}, and input {first} has {other}");
                return Err(at(OpError::model(e)));
            }
        }
    }
    Ok(widened)
}
