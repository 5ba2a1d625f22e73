//! What `model.json` of an exported program holds: the serialized schema of `torch.export`, versions 7 and 8.
//!
//! Keys that are not known are ignored, as torch does; a union of a kind that is not known is kept by its name.

use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// An exported program.
#[derive(Clone, Debug, Deserialize)]
pub struct ExportedProgram {
    /// The graph and its signature.
    pub graph_module: GraphModule,
    /// Versions of the operators, by name space.
    #[serde(default)]
    pub opset_version: BTreeMap<String, i64>,
    /// What values symbols have.
    #[serde(default)]
    pub range_constraints: BTreeMap<String, Range>,
    /// The version of the schema.
    pub schema_version: SchemaVersion,
    /// The dialects that the graph is in: `ATEN`, `TRAINING`.
    #[serde(default)]
    pub verifiers: Vec<String>,
    /// The dialect, in older versions.
    #[serde(default)]
    pub dialect: String,
    /// What wrote it.
    #[serde(default)]
    pub torch_version: String,
    /// Conditions on the inputs, as Python text.
    #[serde(default)]
    pub guards_code: Vec<String>,
}

/// A version of the schema.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct SchemaVersion {
    /// Versions that differ in it do not read each other's files.
    pub major: i64,
    /// Grows with what is added.
    pub minor: i64,
}

/// The values of a symbol, ends included.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Range {
    /// The least one, if there is one.
    pub min_val: Option<i64>,
    /// The greatest one, if there is one.
    pub max_val: Option<i64>,
}

/// A graph and its signature.
#[derive(Clone, Debug, Deserialize)]
pub struct GraphModule {
    /// The graph.
    pub graph: Graph,
    /// What its inputs and outputs are.
    pub signature: Signature,
    /// The modules it was traced from.
    #[serde(default)]
    pub module_call_graph: Vec<ModuleCall>,
}

/// One module that was traced.
#[derive(Clone, Debug, Deserialize)]
pub struct ModuleCall {
    /// Its qualified name; of the whole model empty.
    pub fqn: String,
    /// How it is called, if that was kept.
    #[serde(default)]
    pub signature: Option<CallSignature>,
}

/// How a module is called.
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
    /// Its nodes, operands first.
    pub nodes: Vec<Node>,
    /// The types of its tensors.
    #[serde(default)]
    pub tensor_values: BTreeMap<String, TensorMeta>,
    /// The values of its integers.
    #[serde(default)]
    pub sym_int_values: BTreeMap<String, SymInt>,
    /// Whether it returns one tensor that is no tuple.
    #[serde(default)]
    pub is_single_tensor_return: bool,
}

/// One call of an operator.
#[derive(Clone, Debug, Deserialize)]
pub struct Node {
    /// The operator: `torch.ops.aten.add.Tensor`.
    pub target: String,
    /// Its arguments; what is at its default is left out.
    pub inputs: Vec<NamedArgument>,
    /// Its results.
    pub outputs: Vec<Argument>,
    /// Where it comes from: `stack_trace`, `nn_module_stack`, `torch_fn`.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Its name.
    #[serde(default)]
    pub name: Option<String>,
}

/// An argument of an operator.
#[derive(Clone, Debug, Deserialize)]
pub struct NamedArgument {
    /// Its name; of higher-order operators empty.
    pub name: String,
    /// Its value.
    pub arg: Argument,
}

/// A tensor by its name.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct TensorArgument {
    /// Which of [`Graph::tensor_values`].
    pub name: String,
}

/// A value, or nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionalTensor {
    /// A tensor.
    Tensor(TensorArgument),
    /// None.
    None,
}

/// An integer that is known, or one that the graph computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SymArgument {
    /// Which of [`Graph::sym_int_values`].
    Name(String),
    /// A number.
    Int(i64),
}

/// An integer, or an expression of symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SymInt {
    /// sympy's `srepr` of it ([`expr`](super::expr)).
    Expr(String),
    /// A number.
    Int(i64),
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
    /// A tensor or nothing.
    OptionalTensor(OptionalTensor),
    /// A list of tensors with gaps.
    OptionalTensors(Vec<OptionalTensor>),
    /// An integer.
    Int(i64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A number.
    Float(f64),
    /// A list of numbers.
    Floats(Vec<f64>),
    /// A truth value.
    Bool(bool),
    /// A list of truth values.
    Bools(Vec<bool>),
    /// A text.
    String(String),
    /// A list of texts.
    Strings(Vec<String>),
    /// An integer that is known, or one that the graph computes.
    SymInt(SymArgument),
    /// A list of those.
    SymInts(Vec<SymArgument>),
    /// A number that the graph computes from sizes.
    SymFloat(String),
    /// A truth value that the graph computes from sizes.
    SymBool(String),
    /// An element type, by its [code](dtype).
    ScalarType(i64),
    /// How elements lie in memory.
    Layout(i64),
    /// In which order dimensions lie in memory.
    MemoryFormat(i64),
    /// A device.
    Device(String),
    /// A graph.
    Graph(GraphArgument),
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
    /// How many elements apart neighbours along each axis are.
    #[serde(default)]
    pub strides: Vec<SymInt>,
    /// Elements before the first one.
    #[serde(default)]
    pub storage_offset: Option<SymInt>,
    /// 7 is strided.
    #[serde(default)]
    pub layout: i64,
}

/// What inputs and outputs are.
#[derive(Clone, Debug, Deserialize)]
pub struct Signature {
    /// Of each input.
    pub input_specs: Vec<InputSpec>,
    /// Of each output.
    pub output_specs: Vec<OutputSpec>,
}

/// What an input is.
#[derive(Clone, Debug)]
pub enum InputSpec {
    /// The caller gives it.
    UserInput(Argument),
    /// A parameter, with its name.
    Parameter { arg: String, name: String },
    /// A buffer, with its name and whether the state holds it.
    Buffer { arg: String, name: String, persistent: bool },
    /// A constant, with its name.
    Constant { arg: String, name: String },
    /// A number, a text or nothing that the caller gave when it was traced.
    Fixed { name: String },
    /// Anything else, by its key.
    Other(String),
}

/// What an output is.
#[derive(Clone, Debug)]
pub enum OutputSpec {
    /// The caller takes it.
    UserOutput(Argument),
    /// The loss.
    Loss(String),
    /// What a buffer becomes.
    BufferMutation { arg: String, name: String },
    /// What an input becomes.
    InputMutation { arg: String, name: String },
    /// The gradient of a parameter.
    Gradient { arg: String, name: String },
    /// Anything else, by its key.
    Other(String),
}

/// The element type of a code, or its name where there is none here.
pub fn dtype(code: i64) -> Result<wgfc_ir::DType, &'static str> {
    use wgfc_ir::DType::*;
    Ok(match code {
        1 => U8,
        2 => I8,
        3 => I16,
        4 => I32,
        5 => I64,
        6 => F16,
        7 => F32,
        8 => F64,
        12 => Bool,
        13 => Bf16,
        28 => U16,
        34 => U32,
        35 => U64,
        9 => return Err("complex32"),
        10 => return Err("complex64"),
        11 => return Err("complex128"),
        29..=33 => return Err("a float of 8 bits"),
        _ => return Err("unknown"),
    })
}

/// The only key of an object, and its value.
fn union<'de, D: Deserializer<'de>>(d: D) -> Result<(String, serde_json::Value), D::Error> {
    let map = serde_json::Map::deserialize(d)?;
    let mut entries = map.into_iter();
    match (entries.next(), entries.next()) {
        (Some(entry), None) => Ok(entry),
        _ => Err(de::Error::custom("a union is an object of one key")),
    }
}

fn of<T: DeserializeOwned, E: de::Error>(v: serde_json::Value) -> Result<T, E> {
    T::deserialize(v).map_err(E::custom)
}

/// Floats that are not finite are texts.
#[derive(Deserialize)]
#[serde(untagged)]
enum Float {
    Number(f64),
    Text(String),
}

fn float<E: de::Error>(f: Float) -> Result<f64, E> {
    match f {
        Float::Number(x) => Ok(x),
        Float::Text(t) => match t.as_str() {
            "Infinity" => Ok(f64::INFINITY),
            "-Infinity" => Ok(f64::NEG_INFINITY),
            "NaN" => Ok(f64::NAN),
            _ => Err(E::custom(format!("`{t}` is no number"))),
        },
    }
}

impl<'de> Deserialize<'de> for OptionalTensor {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (key, v) = union(d)?;
        match key.as_str() {
            "as_tensor" => of(v).map(OptionalTensor::Tensor),
            "as_none" => Ok(OptionalTensor::None),
            k => Err(de::Error::custom(format!("`{k}` is no tensor"))),
        }
    }
}

impl<'de> Deserialize<'de> for SymArgument {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (key, v) = union(d)?;
        match key.as_str() {
            "as_name" => of(v).map(SymArgument::Name),
            "as_int" => of(v).map(SymArgument::Int),
            k => Err(de::Error::custom(format!("`{k}` is no integer"))),
        }
    }
}

impl<'de> Deserialize<'de> for SymInt {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Text {
            expr_str: String,
        }
        let (key, v) = union(d)?;
        match key.as_str() {
            "as_expr" => of::<Text, _>(v).map(|t| SymInt::Expr(t.expr_str)),
            "as_int" => of(v).map(SymInt::Int),
            k => Err(de::Error::custom(format!("`{k}` is no size"))),
        }
    }
}

impl<'de> Deserialize<'de> for Argument {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Device {
            r#type: String,
        }
        #[derive(Deserialize)]
        struct Named {
            as_name: String,
        }
        let (key, v) = union(d)?;
        Ok(match key.as_str() {
            "as_none" => Argument::None,
            "as_tensor" => Argument::Tensor(of(v)?),
            "as_tensors" => Argument::Tensors(of(v)?),
            "as_optional_tensor" => Argument::OptionalTensor(of(v)?),
            "as_optional_tensors" => Argument::OptionalTensors(of(v)?),
            "as_int" => Argument::Int(of(v)?),
            "as_ints" => Argument::Ints(of(v)?),
            "as_float" => Argument::Float(float(of(v)?)?),
            "as_floats" => {
                Argument::Floats(of::<Vec<Float>, D::Error>(v)?.into_iter().map(float).collect::<Result<_, _>>()?)
            }
            "as_bool" => Argument::Bool(of(v)?),
            "as_bools" => Argument::Bools(of(v)?),
            "as_string" => Argument::String(of(v)?),
            "as_strings" => Argument::Strings(of(v)?),
            "as_sym_int" => Argument::SymInt(of(v)?),
            "as_sym_ints" => Argument::SymInts(of(v)?),
            "as_sym_float" if v.get("as_name").is_some() => Argument::SymFloat(of::<Named, _>(v)?.as_name),
            "as_sym_bool" if v.get("as_name").is_some() => Argument::SymBool(of::<Named, _>(v)?.as_name),
            "as_scalar_type" => Argument::ScalarType(of(v)?),
            "as_layout" => Argument::Layout(of(v)?),
            "as_memory_format" => Argument::MemoryFormat(of(v)?),
            "as_device" => Argument::Device(of::<Device, _>(v)?.r#type),
            "as_graph" => Argument::Graph(of(v)?),
            _ => Argument::Other(key),
        })
    }
}

/// The name of the value that a specification is about.
#[derive(Deserialize)]
struct Arg {
    name: String,
}

impl<'de> Deserialize<'de> for InputSpec {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct User {
            arg: Argument,
        }
        #[derive(Deserialize)]
        struct Named {
            arg: Arg,
            #[serde(alias = "parameter_name", alias = "buffer_name", alias = "tensor_constant_name")]
            of: String,
            #[serde(default)]
            persistent: bool,
        }
        #[derive(Deserialize)]
        struct Fixed {
            name: String,
        }
        let (key, v) = union(d)?;
        Ok(match key.as_str() {
            "user_input" => InputSpec::UserInput(of::<User, _>(v)?.arg),
            "constant_input" => InputSpec::Fixed { name: of::<Fixed, _>(v)?.name },
            "parameter" | "buffer" | "tensor_constant" => {
                let n: Named = of(v)?;
                let (arg, name) = (n.arg.name, n.of);
                match key.as_str() {
                    "parameter" => InputSpec::Parameter { arg, name },
                    "buffer" => InputSpec::Buffer { arg, name, persistent: n.persistent },
                    _ => InputSpec::Constant { arg, name },
                }
            }
            _ => InputSpec::Other(key),
        })
    }
}

impl<'de> Deserialize<'de> for OutputSpec {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct User {
            arg: Argument,
        }
        #[derive(Deserialize)]
        struct Loss {
            arg: Arg,
        }
        #[derive(Deserialize)]
        struct Named {
            arg: Arg,
            #[serde(alias = "parameter_name", alias = "buffer_name", alias = "user_input_name")]
            of: String,
        }
        let (key, v) = union(d)?;
        let named = |v| of::<Named, D::Error>(v).map(|n| (n.arg.name, n.of));
        Ok(match key.as_str() {
            "user_output" => OutputSpec::UserOutput(of::<User, _>(v)?.arg),
            "loss_output" => OutputSpec::Loss(of::<Loss, _>(v)?.arg.name),
            "buffer_mutation" => named(v).map(|(arg, name)| OutputSpec::BufferMutation { arg, name })?,
            "user_input_mutation" => named(v).map(|(arg, name)| OutputSpec::InputMutation { arg, name })?,
            "gradient_to_parameter" => named(v).map(|(arg, name)| OutputSpec::Gradient { arg, name })?,
            _ => OutputSpec::Other(key),
        })
    }
}
