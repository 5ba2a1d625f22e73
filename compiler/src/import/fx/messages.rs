//! The contents of `model.json` of an exported program: the serialized schema of `torch.export`, versions 7 and 8.
//!
//! Unknown keys are ignored, as in torch; a union of an unknown kind is kept as its key.

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// An exported program.
#[derive(Clone, Debug, Deserialize)]
pub struct ExportedProgram {
    /// The graph and its signature.
    pub graph_module: GraphModule,
    /// The ranges of values of symbols.
    #[serde(default)]
    pub range_constraints: BTreeMap<String, Range>,
    /// Conditions on the inputs, as Python text.
    #[serde(default)]
    pub guards_code: Vec<String>,
}

/// A version of the schema.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct SchemaVersion {
    /// The major version; files of different major versions are incompatible.
    pub major: i64,
    /// The minor version, which counts backward-compatible additions.
    #[serde(default)]
    pub minor: i64,
}

/// The range of a symbol, with both ends included.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Range {
    /// The minimum, if there is one.
    pub min_val: Option<i64>,
    /// The maximum, if there is one.
    pub max_val: Option<i64>,
}

/// A graph and its signature.
#[derive(Clone, Debug, Deserialize)]
pub struct GraphModule {
    /// The graph.
    pub graph: Graph,
    /// The meaning of the graph's inputs and outputs.
    pub signature: Signature,
    /// The modules it was traced from.
    #[serde(default)]
    pub module_call_graph: Vec<ModuleCall>,
}

/// One module that was traced.
#[derive(Clone, Debug, Deserialize)]
pub struct ModuleCall {
    /// The qualified name; empty for the whole model.
    pub fqn: String,
    /// The signature of the call, if it was kept.
    #[serde(default)]
    pub signature: Option<CallSignature>,
}

/// The signature of a module's call.
#[derive(Clone, Debug, Deserialize)]
pub struct CallSignature {
    /// The pytree of its arguments, as JSON text.
    #[serde(default)]
    pub in_spec: String,
    /// The pytree of its results, as JSON text.
    #[serde(default)]
    pub out_spec: String,
    /// The names of the arguments of `forward`.
    #[serde(default)]
    pub forward_arg_names: Option<Vec<String>>,
}

/// A graph.
#[derive(Clone, Debug, Deserialize)]
pub struct Graph {
    /// Its inputs, weights among them.
    pub inputs: Vec<Argument>,
    /// Its results.
    pub outputs: Vec<Argument>,
    /// Its nodes in topological order.
    pub nodes: Vec<Node>,
    /// The types of its tensors.
    #[serde(default)]
    pub tensor_values: BTreeMap<String, TensorMeta>,
    /// The values of its symbolic integers.
    #[serde(default)]
    pub sym_int_values: BTreeMap<String, SymInt>,
    /// The values of its symbolic bools.
    #[serde(default)]
    pub sym_bool_values: BTreeMap<String, SymBool>,
    /// The values of its symbolic floats.
    #[serde(default)]
    pub sym_float_values: BTreeMap<String, SymFloat>,
    /// Whether it returns a single tensor instead of a tuple.
    #[serde(default)]
    pub is_single_tensor_return: bool,
}

/// One call of an operator.
#[derive(Clone, Debug, Deserialize)]
pub struct Node {
    /// The operator: `torch.ops.aten.add.Tensor`.
    pub target: String,
    /// Its arguments; those with default values may be left out.
    pub inputs: Vec<NamedArgument>,
    /// Its results.
    pub outputs: Vec<Argument>,
    /// Its origin: `stack_trace`, `nn_module_stack`, `torch_fn`.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Its name.
    #[serde(default)]
    pub name: Option<String>,
}

/// An argument of an operator.
#[derive(Clone, Debug, Deserialize)]
pub struct NamedArgument {
    /// Its name; empty for higher-order operators.
    pub name: String,
    /// Its value.
    pub arg: Argument,
}

/// A tensor by its name.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct TensorArgument {
    /// The key in [`Graph::tensor_values`].
    pub name: String,
}

/// A tensor or `None`.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionalTensor {
    /// A tensor.
    Tensor(TensorArgument),
    /// `None`.
    None,
}

/// A constant integer, or one that the graph computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SymArgument {
    /// The key in [`Graph::sym_int_values`].
    Name(String),
    /// A constant.
    Int(i64),
}

/// An integer, or an expression of symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SymInt {
    /// The expression in the format of sympy's `srepr` ([`expr`](super::expr)).
    Expr(String),
    /// A constant.
    Int(i64),
}

/// A bool, or an expression of symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SymBool {
    /// The expression in the format of sympy's `srepr`.
    Expr(String),
    /// A constant.
    Bool(bool),
}

/// A float, or an expression of symbols.
#[derive(Clone, Debug, PartialEq)]
pub enum SymFloat {
    /// The expression in the format of sympy's `srepr`.
    Expr(String),
    /// A constant.
    Float(f64),
}

/// A graph that is an argument.
#[derive(Clone, Debug, Deserialize)]
pub struct GraphArgument {
    /// Its name.
    pub name: String,
    /// The graph.
    pub graph: Box<Graph>,
}

/// The value of an argument or a result.
#[derive(Clone, Debug)]
pub enum Argument {
    /// `None`.
    None,
    /// A tensor.
    Tensor(TensorArgument),
    /// A list of tensors.
    Tensors(Vec<TensorArgument>),
    /// A tensor or `None`.
    OptionalTensor(OptionalTensor),
    /// A list of tensors, some of which may be `None`.
    OptionalTensors(Vec<OptionalTensor>),
    /// An integer.
    Int(i64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A float.
    Float(f64),
    /// A list of floats.
    Floats(Vec<f64>),
    /// A bool.
    Bool(bool),
    /// A list of bools.
    Bools(Vec<bool>),
    /// A string.
    String(String),
    /// A list of strings.
    Strings(Vec<String>),
    /// A constant integer, or one that the graph computes.
    SymInt(SymArgument),
    /// A list of such integers.
    SymInts(Vec<SymArgument>),
    /// A float that the graph computes from sizes, by its name.
    SymFloat(String),
    /// A bool that the graph computes from sizes, by its name.
    SymBool(String),
    /// An element type, by its [code](dtype).
    ScalarType(i64),
    /// A layout, such as strided or sparse.
    Layout(i64),
    /// A memory format: the order of dimensions in memory.
    MemoryFormat(i64),
    /// A device.
    Device(String),
    /// A graph.
    Graph(GraphArgument),
    /// An operator, by its name.
    Operator(String),
    /// A complex number: its real and imaginary parts.
    Complex([f64; 2]),
    /// Anything else, by its key.
    Other(String),
}

/// The type of a tensor.
#[derive(Clone, Debug, Deserialize)]
pub struct TensorMeta {
    /// Its element type's [code](dtype).
    pub dtype: i64,
    /// Its shape.
    pub sizes: Vec<SymInt>,
    /// The stride of each axis, in elements.
    #[serde(default)]
    pub strides: Vec<SymInt>,
    /// The offset of the first element in the storage, in elements.
    #[serde(default)]
    pub storage_offset: Option<SymInt>,
    /// The code of the layout; 7 is strided.
    #[serde(default)]
    pub layout: i64,
}

/// The meaning of inputs and outputs.
#[derive(Clone, Debug, Deserialize)]
pub struct Signature {
    /// The meaning of each input.
    pub input_specs: Vec<InputSpec>,
    /// The meaning of each output.
    pub output_specs: Vec<OutputSpec>,
}

/// The kind of an input.
#[derive(Clone, Debug)]
pub enum InputSpec {
    /// An input that the caller passes.
    UserInput(Argument),
    /// A parameter, with its name.
    Parameter { arg: String, name: String },
    /// A buffer, with its name and whether the state dictionary holds it.
    Buffer { arg: String, name: String, persistent: bool },
    /// A constant, with its name.
    Constant { arg: String, name: String },
    /// A number, a string or `None` that was fixed by the export.
    Fixed,
    /// Anything else, by its key.
    Other(String),
}

/// The kind of an output.
#[derive(Clone, Debug)]
pub enum OutputSpec {
    /// A result that the caller receives.
    UserOutput(Argument),
    /// The loss.
    Loss(String),
    /// The new value of a buffer.
    BufferMutation { arg: String, name: String },
    /// The new value of an input.
    InputMutation { arg: String, name: String },
    /// The gradient of a parameter.
    Gradient { arg: String, name: String },
    /// Anything else, by its key.
    Other(String),
}

/// The element type of a code, or a description of one that is not supported. A complex number is two numbers of the returned type.
pub fn dtype(code: i64) -> Result<wgfc_ir::DType, &'static str> {
    use wgfc_ir::DType::*;
    Ok(match code {
        9 => F16,
        10 => F32,
        11 => F64,
        1 => U8,
        2 => I8,
        3 => I16,
        4 => I32,
        5 => I64,
        6 => F16,
        7 => F32,
        8 => F64,
        12 => Bool,
        13 => BF16,
        28 => U16,
        34 => U32,
        35 => U64,
        29..=33 => return Err("a float of 8 bits"),
        _ => return Err("unknown"),
    })
}

/// Whether the code is that of a complex type.
pub fn is_complex(code: i64) -> bool {
    matches!(code, 9..=11)
}

impl Node {
    /// The names of the tensors that are its results; a list contributes each of its tensors.
    pub fn results(&self) -> impl Iterator<Item = &str> {
        self.outputs
            .iter()
            .flat_map(|o| match o {
                Argument::Tensor(t) | Argument::OptionalTensor(OptionalTensor::Tensor(t)) => {
                    std::slice::from_ref(t)
                }
                Argument::Tensors(ts) => ts.as_slice(),
                _ => &[],
            })
            .map(|t| t.name.as_str())
    }
}

impl Argument {
    /// Its kind, in words.
    pub fn kind(&self) -> &str {
        match self {
            Argument::None => "None",
            Argument::Tensor(_) | Argument::OptionalTensor(OptionalTensor::Tensor(_)) => "a tensor",
            Argument::OptionalTensor(OptionalTensor::None) => "None",
            Argument::Tensors(_) | Argument::OptionalTensors(_) => "a list of tensors",
            Argument::Int(_) | Argument::SymInt(_) => "an integer",
            Argument::Ints(_) | Argument::SymInts(_) => "a list of integers",
            Argument::Float(_) | Argument::SymFloat(_) => "a number",
            Argument::Floats(_) => "a list of numbers",
            Argument::Bool(_) | Argument::SymBool(_) => "a truth value",
            Argument::Bools(_) => "a list of truth values",
            Argument::String(_) => "a text",
            Argument::Strings(_) => "a list of texts",
            Argument::ScalarType(_) => "an element type",
            Argument::Layout(_) => "a layout",
            Argument::MemoryFormat(_) => "a memory format",
            Argument::Device(_) => "a device",
            Argument::Graph(_) => "a graph",
            Argument::Operator(_) => "an operator",
            Argument::Complex(_) => "a complex number",
            Argument::Other(key) => key,
        }
    }
}

/// Deserializes a union: an object with one key, which names the variant.
macro_rules! union {
    ($type:ty, $what:literal, $key:ident, $map:ident, $value:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct Read;
                impl<'de> Visitor<'de> for Read {
                    type Value = $type;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!($what, ": an object of one key"))
                    }
                    fn visit_map<A: MapAccess<'de>>(self, mut $map: A) -> Result<$type, A::Error> {
                        let $key = $map
                            .next_key::<String>()?
                            .ok_or_else(|| A::Error::custom("a union without a key"))?;
                        let value: $type = $value;
                        match $map.next_key::<IgnoredAny>()? {
                            None => Ok(value),
                            Some(_) => Err(A::Error::custom(concat!($what, " of two kinds"))),
                        }
                    }
                }
                d.deserialize_map(Read)
            }
        }
    };
}

/// Skips the value of a union variant and returns its key.
fn skipped<'de, A: MapAccess<'de>>(map: &mut A, key: String) -> Result<String, A::Error> {
    map.next_value::<IgnoredAny>()?;
    Ok(key)
}

/// A float; JSON has strings for infinities and NaN.
#[derive(Clone, Copy)]
struct Number(f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(f64),
            Text(String),
        }
        Ok(Number(match Written::deserialize(d)? {
            Written::Number(x) => x,
            Written::Text(t) => match t.as_str() {
                "Infinity" => f64::INFINITY,
                "-Infinity" => f64::NEG_INFINITY,
                "NaN" => f64::NAN,
                _ => return Err(D::Error::custom(format!("`{t}` is not a number"))),
            },
        }))
    }
}

#[derive(Deserialize)]
struct Text {
    expr_str: String,
}

#[derive(Deserialize)]
struct Complex {
    real: Number,
    imag: Number,
}

#[derive(Deserialize)]
struct Device {
    r#type: String,
}

/// The name of the value that a specification refers to.
#[derive(Deserialize)]
struct Arg {
    name: String,
}

/// A value, and the name of the parameter, buffer, constant or input that it belongs to.
#[derive(Deserialize)]
struct Named {
    arg: Arg,
    #[serde(
        alias = "parameter_name",
        alias = "buffer_name",
        alias = "tensor_constant_name",
        alias = "user_input_name"
    )]
    of: String,
    #[serde(default)]
    persistent: bool,
}

#[derive(Deserialize)]
struct User {
    arg: Argument,
}

#[derive(Deserialize)]
struct Loss {
    arg: Arg,
}

union!(
    OptionalTensor,
    "a tensor or nothing",
    key,
    map,
    match key.as_str() {
        "as_tensor" => OptionalTensor::Tensor(map.next_value()?),
        "as_none" => skipped(&mut map, key).map(|_| OptionalTensor::None)?,
        k => return Err(A::Error::custom(format!("`{k}` is not a tensor"))),
    }
);

union!(
    SymArgument,
    "an integer",
    key,
    map,
    match key.as_str() {
        "as_name" => SymArgument::Name(map.next_value()?),
        "as_int" => SymArgument::Int(map.next_value()?),
        k => return Err(A::Error::custom(format!("`{k}` is not an integer"))),
    }
);

/// A bool or a float: the name of a symbolic value, or a constant.
enum Symbolic {
    Name(String),
    Bool(bool),
    Float(f64),
}
union!(
    Symbolic,
    "a number of sizes",
    key,
    map,
    match key.as_str() {
        "as_name" => Symbolic::Name(map.next_value()?),
        "as_bool" => Symbolic::Bool(map.next_value()?),
        "as_float" => Symbolic::Float(map.next_value::<Number>()?.0),
        "as_int" => Symbolic::Float(map.next_value::<i64>()? as f64),
        k => return Err(A::Error::custom(format!("`{k}` is not a number"))),
    }
);

union!(
    SymInt,
    "a size",
    key,
    map,
    match key.as_str() {
        "as_expr" => SymInt::Expr(map.next_value::<Text>()?.expr_str),
        "as_int" => SymInt::Int(map.next_value()?),
        k => return Err(A::Error::custom(format!("`{k}` is not a size"))),
    }
);

union!(
    SymBool,
    "a truth value",
    key,
    map,
    match key.as_str() {
        "as_expr" => SymBool::Expr(map.next_value::<Text>()?.expr_str),
        "as_bool" => SymBool::Bool(map.next_value()?),
        k => return Err(A::Error::custom(format!("`{k}` is not a truth value"))),
    }
);

union!(
    SymFloat,
    "a number",
    key,
    map,
    match key.as_str() {
        "as_expr" => SymFloat::Expr(map.next_value::<Text>()?.expr_str),
        "as_float" => SymFloat::Float(map.next_value::<Number>()?.0),
        k => return Err(A::Error::custom(format!("`{k}` is not a number"))),
    }
);

union!(
    Argument,
    "an argument",
    key,
    map,
    match key.as_str() {
        "as_none" => skipped(&mut map, key).map(|_| Argument::None)?,
        "as_tensor" => Argument::Tensor(map.next_value()?),
        "as_tensors" => Argument::Tensors(map.next_value()?),
        "as_optional_tensor" => Argument::OptionalTensor(map.next_value()?),
        "as_optional_tensors" => Argument::OptionalTensors(map.next_value()?),
        "as_int" => Argument::Int(map.next_value()?),
        "as_ints" => Argument::Ints(map.next_value()?),
        "as_float" => Argument::Float(map.next_value::<Number>()?.0),
        "as_floats" => Argument::Floats(map.next_value::<Vec<Number>>()?.into_iter().map(|n| n.0).collect()),
        "as_bool" => Argument::Bool(map.next_value()?),
        "as_bools" => Argument::Bools(map.next_value()?),
        "as_string" => Argument::String(map.next_value()?),
        "as_strings" => Argument::Strings(map.next_value()?),
        "as_sym_int" => Argument::SymInt(map.next_value()?),
        "as_sym_ints" => Argument::SymInts(map.next_value()?),
        "as_sym_float" => match map.next_value()? {
            Symbolic::Name(n) => Argument::SymFloat(n),
            Symbolic::Float(x) => Argument::Float(x),
            Symbolic::Bool(b) => Argument::Bool(b),
        },
        "as_sym_bool" => match map.next_value()? {
            Symbolic::Name(n) => Argument::SymBool(n),
            Symbolic::Float(x) => Argument::Float(x),
            Symbolic::Bool(b) => Argument::Bool(b),
        },
        "as_scalar_type" => Argument::ScalarType(map.next_value()?),
        "as_layout" => Argument::Layout(map.next_value()?),
        "as_memory_format" => Argument::MemoryFormat(map.next_value()?),
        "as_device" => Argument::Device(map.next_value::<Device>()?.r#type),
        "as_graph" => Argument::Graph(map.next_value()?),
        "as_operator" => Argument::Operator(map.next_value()?),
        "as_complex" => map.next_value::<Complex>().map(|c| Argument::Complex([c.real.0, c.imag.0]))?,
        _ => Argument::Other(skipped(&mut map, key)?),
    }
);

union!(
    InputSpec,
    "what an input is",
    key,
    map,
    match key.as_str() {
        "user_input" => InputSpec::UserInput(map.next_value::<User>()?.arg),
        "constant_input" => skipped(&mut map, key).map(|_| InputSpec::Fixed)?,
        "parameter" =>
            map.next_value::<Named>().map(|n| InputSpec::Parameter { arg: n.arg.name, name: n.of })?,
        "buffer" => map.next_value::<Named>().map(|n| InputSpec::Buffer {
            arg: n.arg.name,
            name: n.of,
            persistent: n.persistent,
        })?,
        "tensor_constant" =>
            map.next_value::<Named>().map(|n| InputSpec::Constant { arg: n.arg.name, name: n.of })?,
        _ => InputSpec::Other(skipped(&mut map, key)?),
    }
);

union!(
    OutputSpec,
    "what an output is",
    key,
    map,
    match key.as_str() {
        "user_output" => OutputSpec::UserOutput(map.next_value::<User>()?.arg),
        "loss_output" => OutputSpec::Loss(map.next_value::<Loss>()?.arg.name),
        "buffer_mutation" => {
            map.next_value::<Named>().map(|n| OutputSpec::BufferMutation { arg: n.arg.name, name: n.of })?
        }
        "user_input_mutation" => {
            map.next_value::<Named>().map(|n| OutputSpec::InputMutation { arg: n.arg.name, name: n.of })?
        }
        "gradient_to_parameter" => {
            map.next_value::<Named>().map(|n| OutputSpec::Gradient { arg: n.arg.name, name: n.of })?
        }
        _ => OutputSpec::Other(skipped(&mut map, key)?),
    }
);
