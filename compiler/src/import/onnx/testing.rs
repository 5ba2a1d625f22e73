//! Builders of small models for tests.

use super::messages::*;
use crate::import::{Imported, NoExternalData, import};
use crate::{Errors, Options};
use prost::Message;
use wgfc_ir::DType;

/// A node without a name.
pub fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let own = |v: &[&str]| v.iter().map(|s| s.to_string()).collect();
    NodeProto { op_type: op.into(), input: own(inputs), output: own(outputs), ..Default::default() }
}

impl NodeProto {
    /// Sets the name.
    pub fn named(self, name: &str) -> NodeProto {
        NodeProto { name: name.into(), ..self }
    }
    /// Sets the domain.
    pub fn of(self, domain: &str) -> NodeProto {
        NodeProto { domain: domain.into(), ..self }
    }
    fn with(mut self, name: &str, r#type: i32, a: AttributeProto) -> NodeProto {
        self.attribute.push(AttributeProto { name: name.into(), r#type, ..a });
        self
    }
    /// Adds an integer attribute.
    pub fn int(self, name: &str, i: i64) -> NodeProto {
        self.with(name, attribute_type::INT, AttributeProto { i, ..Default::default() })
    }
    /// Adds a float attribute.
    pub fn float(self, name: &str, f: f32) -> NodeProto {
        self.with(name, attribute_type::FLOAT, AttributeProto { f, ..Default::default() })
    }
    /// Adds integers.
    pub fn ints(self, name: &str, v: &[i64]) -> NodeProto {
        self.with(name, attribute_type::INTS, AttributeProto { ints: v.to_vec(), ..Default::default() })
    }
    /// Adds floats.
    pub fn floats(self, name: &str, v: &[f32]) -> NodeProto {
        self.with(name, attribute_type::FLOATS, AttributeProto { floats: v.to_vec(), ..Default::default() })
    }
    /// Adds strings.
    pub fn texts(self, name: &str, v: &[&str]) -> NodeProto {
        let strings = v.iter().map(|t| t.as_bytes().to_vec()).collect();
        self.with(name, attribute_type::STRINGS, AttributeProto { strings, ..Default::default() })
    }
    /// Adds a tensor.
    pub fn tensor(self, name: &str, t: TensorProto) -> NodeProto {
        self.with(name, attribute_type::TENSOR, AttributeProto { t: Some(t), ..Default::default() })
    }
    /// Adds a string.
    pub fn text(self, name: &str, v: &str) -> NodeProto {
        self.with(name, attribute_type::STRING, AttributeProto { s: v.into(), ..Default::default() })
    }
    /// Adds a subgraph.
    pub fn graph(self, name: &str, g: GraphProto) -> NodeProto {
        self.with(name, attribute_type::GRAPH, AttributeProto { g: Some(g), ..Default::default() })
    }
    /// Adds an attribute that takes its value from the function's attribute `from`.
    pub fn by_ref(self, name: &str, from: &str) -> NodeProto {
        self.with(name, 0, AttributeProto { ref_attr_name: from.into(), ..Default::default() })
    }
}

/// A declared tensor: `("x", F32, "batch 3 past+seq")`; `?` is an unknown dimension.
pub fn value(name: &str, dtype: DType, dims: &str) -> ValueInfoProto {
    let dim = dims
        .split_whitespace()
        .map(|d| DimensionProto {
            value: match d.parse() {
                Ok(n) => Some(DimensionValue::Value(n)),
                Err(_) if d == "?" => None,
                Err(_) => Some(DimensionValue::Param(d.into())),
            },
        })
        .collect();
    let tensor = TensorTypeProto { elem_type: data_type::code(dtype), shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) }) }
}

/// A declared value of unknown type.
pub fn untyped(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), r#type: None }
}

/// A constant of integers.
pub fn ints(name: &str, dims: &[i64], v: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: data_type::code(DType::I64),
        int64_data: v.to_vec(),
        ..Default::default()
    }
}

/// A constant of floats.
pub fn floats(name: &str, dims: &[i64], v: &[f32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: data_type::code(DType::F32),
        float_data: v.to_vec(),
        ..Default::default()
    }
}

/// A graph without constants.
pub fn graph(nodes: Vec<NodeProto>, input: Vec<ValueInfoProto>, output: Vec<ValueInfoProto>) -> GraphProto {
    GraphProto { node: nodes, name: "g".into(), input, output, ..Default::default() }
}

/// A model of opset 20.
pub fn model(graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: 9,
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 20 }],
        ..Default::default()
    }
}

/// Encodes and imports.
pub fn import_it(m: &ModelProto) -> Result<Imported, Errors> {
    import(&m.encode_to_vec(), &NoExternalData, &Options::default())
}

/// The rendered errors of a model that must not import.
pub fn errors(m: &ModelProto) -> String {
    match import_it(m) {
        Ok(_) => panic!("it imports"),
        Err(e) => e.to_string(),
    }
}

/// The type of a model's first output.
pub fn output_type(m: &ModelProto) -> String {
    let i = import_it(m).unwrap_or_else(|e| panic!("{e}"));
    if let Err(e) = wgfc_ir::verify::verify(&i.graph) {
        panic!("{e:?}");
    }
    i.graph.ty(i.graph.outputs[0].value).to_string()
}
