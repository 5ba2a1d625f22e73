//! The ONNX protobuf messages, with the field numbers of the public schema (`onnx.proto`).
//!
//! The messages are written by hand with `prost`'s derive; they contain only the fields that the importer uses, and need no code
//! generation at build time. Tests also encode them to build models. A field that the schema calls optional is plain here if its default
//! means the same as its absence.

use prost::Message;
pub use prost::bytes::Bytes;

/// A model.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Version of the file format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// The name of the exporter.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// The version of the exporter.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// The graph.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// The operator sets that the model uses.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Free-form notes.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
    /// Model-local functions.
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

/// An operator set with its version.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// The domain; empty for `ai.onnx`.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A key and its value.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    /// Key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A graph: nodes that are connected by named values.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// Nodes in topological order.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// Name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Constants.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// The inputs.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// The outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// Types of intermediate values.
    #[prost(message, repeated, tag = "13")]
    pub value_info: Vec<ValueInfoProto>,
    /// Sparse constants.
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
}

/// One application of an operator.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of its input values; empty for an optional one that is left out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of its output values; empty for an output that is not used.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Its own name, which is often empty.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// The operator's domain; empty for `ai.onnx`.
    #[prost(string, tag = "7")]
    pub domain: String,
    /// The overload of a model-local function.
    #[prost(string, tag = "8")]
    pub overload: String,
}

/// The kinds of [`AttributeProto`], by number.
pub mod attribute_type {
    #![expect(missing_docs, reason = "the names say it")]
    pub const FLOAT: i32 = 1;
    pub const INT: i32 = 2;
    pub const STRING: i32 = 3;
    pub const TENSOR: i32 = 4;
    pub const GRAPH: i32 = 5;
    pub const FLOATS: i32 = 6;
    pub const INTS: i32 = 7;
    pub const STRINGS: i32 = 8;
    /// The name of a kind, for messages.
    pub fn name(t: i32) -> &'static str {
        [
            "an undefined value",
            "a float",
            "an integer",
            "a string",
            "a tensor",
            "a graph",
            "floats",
            "integers",
        ]
        .into_iter()
        .chain(["strings", "tensors", "graphs", "a sparse tensor", "sparse tensors", "a type", "types"])
        .nth(usize::try_from(t).unwrap_or(usize::MAX))
        .unwrap_or("a value of unknown kind")
    }
}

/// A named attribute of a node.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// A float.
    #[prost(float, tag = "2")]
    pub f: f32,
    /// An integer.
    #[prost(int64, tag = "3")]
    pub i: i64,
    /// A string.
    #[prost(bytes = "vec", tag = "4")]
    pub s: Vec<u8>,
    /// A tensor.
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    /// A graph.
    #[prost(message, optional, tag = "6")]
    pub g: Option<GraphProto>,
    /// Floats.
    #[prost(float, repeated, tag = "7")]
    pub floats: Vec<f32>,
    /// Integers.
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// Strings.
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub strings: Vec<Vec<u8>>,
    /// The kind of the value, as in [`attribute_type`].
    #[prost(int32, tag = "20")]
    pub r#type: i32,
    /// Inside of a function: the attribute of the function that this one takes its value from.
    #[prost(string, tag = "21")]
    pub ref_attr_name: String,
    /// A sparse tensor.
    #[prost(message, optional, tag = "22")]
    pub sparse_tensor: Option<SparseTensorProto>,
}

/// A dense tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// Extents.
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    /// Element type, as in [`data_type`].
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Elements of type f32 and complex64.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Elements of bool, of integers of at most 32 bits, and of floats of at most 16 bits as bit patterns.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// Strings.
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub string_data: Vec<Vec<u8>>,
    /// Elements of type i64.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// Name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Packed little-endian elements.
    #[prost(bytes = "bytes", tag = "9")]
    pub raw_data: Bytes,
    /// Elements of type f64 and complex128.
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// Elements of type u32 and u64.
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    /// The place of external elements: `location`, `offset`, `length`.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 1 if the elements are in another file.
    #[prost(int32, tag = "14")]
    pub data_location: i32,
}

impl TensorProto {
    /// A named tensor with packed elements.
    pub fn of(name: &str, t: &wgfc_ir::Tensor) -> TensorProto {
        TensorProto {
            name: name.into(),
            dims: t.shape.iter().map(|d| *d as i64).collect(),
            data_type: data_type::code(t.dtype),
            raw_data: t.bytes().unwrap_or(&[]).to_vec().into(),
            ..TensorProto::default()
        }
    }
}

/// The element types of [`TensorProto`], by number.
pub mod data_type {
    use wgfc_ir::DType;
    /// Strings, which are not supported as elements.
    pub const STRING: i32 = 8;
    const TABLE: &[(i32, DType)] = &[
        (1, DType::F32),
        (2, DType::U8),
        (3, DType::I8),
        (4, DType::U16),
        (5, DType::I16),
        (6, DType::I32),
        (7, DType::I64),
        (9, DType::Bool),
        (10, DType::F16),
        (11, DType::F64),
        (12, DType::U32),
        (13, DType::U64),
        (16, DType::BF16),
        (17, DType::F8E4M3),
        (18, DType::F8E4M3Uz),
        (19, DType::F8E5M2),
        (20, DType::F8E5M2Uz),
        (21, DType::U4),
        (22, DType::I4),
        (23, DType::F4E2M1),
        (24, DType::F8E8M0),
        (25, DType::U2),
        (26, DType::I2),
    ];
    /// The element type of a number, if it is supported.
    pub fn dtype(code: i32) -> Option<DType> {
        TABLE.iter().find(|(c, _)| *c == code).map(|(_, d)| *d)
    }
    /// The number of an element type.
    pub fn code(d: DType) -> i32 {
        TABLE.iter().find(|(_, t)| *t == d).map_or(0, |(c, _)| *c)
    }
    /// The name of a type that is not supported.
    pub fn name(code: i32) -> String {
        match code {
            0 => "undefined".into(),
            STRING => "string".into(),
            14 => "complex64".into(),
            15 => "complex128".into(),
            c => {
                dtype(c).map_or(format!("number {c}, which is not in the schema we know"), |d| d.to_string())
            }
        }
    }
}

/// A sparse tensor.
#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorProto {
    /// The elements that are not zero.
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
    /// The indices of these elements.
    #[prost(message, optional, tag = "2")]
    pub indices: Option<TensorProto>,
    /// Extents.
    #[prost(int64, repeated, tag = "3")]
    pub dims: Vec<i64>,
}

/// The name and type of a value.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// A type.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// The kind of type.
    #[prost(oneof = "TypeValue", tags = "1, 4, 5, 8, 9")]
    pub value: Option<TypeValue>,
}

/// The kinds of [`TypeProto`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum TypeValue {
    /// A dense tensor.
    #[prost(message, tag = "1")]
    Tensor(TensorTypeProto),
    /// A sequence.
    #[prost(message, tag = "4")]
    Sequence(ElemTypeProto),
    /// A map.
    #[prost(message, tag = "5")]
    Map(MapTypeProto),
    /// A sparse tensor.
    #[prost(message, tag = "8")]
    SparseTensor(TensorTypeProto),
    /// A value or `None`.
    #[prost(message, tag = "9")]
    Optional(ElemTypeProto),
}

impl TypeValue {
    /// The name of the kind.
    pub fn name(&self) -> &'static str {
        match self {
            TypeValue::Tensor(_) => "tensor",
            TypeValue::Sequence(_) => "sequence",
            TypeValue::Map(_) => "map",
            TypeValue::SparseTensor(_) => "sparse tensor",
            TypeValue::Optional(_) => "optional",
        }
    }
}

/// The element type and shape of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// The element type, as in [`data_type`].
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// The shape; absent if even the rank is unknown.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

impl TypeProto {
    /// The type of a dense tensor.
    pub fn tensor(dtype: wgfc_ir::DType, dims: impl IntoIterator<Item = DimensionValue>) -> TypeProto {
        let dim = dims.into_iter().map(|d| DimensionProto { value: Some(d) }).collect();
        let shape = Some(TensorShapeProto { dim });
        TypeProto {
            value: Some(TypeValue::Tensor(TensorTypeProto { elem_type: data_type::code(dtype), shape })),
        }
    }
    /// The type of a dense tensor with constant extents.
    pub fn of(dtype: wgfc_ir::DType, shape: &[usize]) -> TypeProto {
        TypeProto::tensor(dtype, shape.iter().map(|d| DimensionValue::Value(*d as i64)))
    }
}

/// The element type of a sequence or an optional.
#[derive(Clone, PartialEq, Message)]
pub struct ElemTypeProto {
    /// Its type.
    #[prost(message, optional, boxed, tag = "1")]
    pub elem_type: Option<Box<TypeProto>>,
}

/// The key and value types of a map.
#[derive(Clone, PartialEq, Message)]
pub struct MapTypeProto {
    /// The key's type, as in [`data_type`].
    #[prost(int32, tag = "1")]
    pub key_type: i32,
    /// The value's type.
    #[prost(message, optional, boxed, tag = "2")]
    pub value_type: Option<Box<TypeProto>>,
}

/// A shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// The extents, outermost first.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// One extent.
#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    /// The extent; absent if it is unknown.
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub value: Option<DimensionValue>,
}

/// The kinds of extents in [`DimensionProto`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum DimensionValue {
    /// A constant.
    #[prost(int64, tag = "1")]
    Value(i64),
    /// A symbol, or an expression of symbols.
    #[prost(string, tag = "2")]
    Param(String),
}

/// A model-local function.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionProto {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Parameters.
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    /// Results.
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    /// The names of required attributes.
    #[prost(string, repeated, tag = "6")]
    pub attribute: Vec<String>,
    /// Body.
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    /// The operator sets that the body uses.
    #[prost(message, repeated, tag = "9")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Domain.
    #[prost(string, tag = "10")]
    pub domain: String,
    /// Attributes with default values.
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
    /// The overload.
    #[prost(string, tag = "13")]
    pub overload: String,
}
