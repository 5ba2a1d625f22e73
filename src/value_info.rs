//! The inputs and outputs of a model, and whether given tensors fit.

use crate::{Error, Problem, Tensor};
use std::collections::BTreeMap;
use wgfc_ir::{DType, Dim, Graph, optional, symbols};

/// An input or output of a model: its name, element type and extents over the model's symbols.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let program = wgfc::compile_file(&path, &Default::default())?;
/// use wgfc::value_info::program_values;
/// let x = &program_values(&program.inputs)[0];
/// assert_eq!((x.name.as_str(), x.type_text().as_str()), ("x", "f32[batch, 13]"));
/// assert_eq!(x.shape_at(&[("batch".to_owned(), 4)].into()), Ok(vec![4, 13]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ValueInfo {
    /// Its name in the model.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<Dim>,
    /// For an input that a run may leave out, the shape to which it is broadcast: see [`optional`].
    pub broadcast: Option<Vec<Dim>>,
}

impl ValueInfo {
    /// The type as text, such as `f32[batch, 3, 224, 224]`.
    pub fn type_text(&self) -> String {
        let dims: Vec<String> = self.whole().iter().map(ToString::to_string).collect();
        let broadcast = if self.broadcast.is_some() { ", broadcast, optional" } else { "" };
        format!("{}[{}]{broadcast}", self.dtype, dims.join(", "))
    }
    /// The shape, or the shape to which the input is broadcast.
    pub fn whole(&self) -> &[Dim] {
        self.broadcast.as_ref().unwrap_or(&self.shape)
    }
    /// The extents ([`ValueInfo::whole`]) for these values of symbols; `Err` names the symbols that have no value.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// let file = wgfc::ModelFile::open(&path)?;
    /// let graph = file.import(&wgfc::Options::default())?.graph;
    /// let x = &wgfc::value_info::graph_values(&graph, &graph.inputs)[0];
    /// assert_eq!(x.shape_at(&[("batch".to_owned(), 2)].into()), Ok(vec![2, 13]));
    /// assert_eq!(x.shape_at(&Default::default()), Err(vec!["batch".to_owned()]));
    /// # Ok(()) }
    /// ```
    pub fn shape_at(&self, dims: &BTreeMap<String, i64>) -> Result<Vec<usize>, Vec<String>> {
        let mut missing = Vec::new();
        for d in self.whole() {
            for s in d.symbols() {
                if !dims.contains_key(&*s) && !missing.iter().any(|m: &String| **m == *s) {
                    missing.push(s.to_string());
                }
            }
        }
        if !missing.is_empty() {
            return Err(missing);
        }
        self.whole()
            .iter()
            .map(|d| d.eval_syms(&|s| dims.get(s).copied()).and_then(|v| usize::try_from(v).ok()))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(Vec::new)
    }
}

/// The inputs or outputs of a program.
pub fn program_values(declared: &[wgfc_ir::program::Port]) -> Vec<ValueInfo> {
    let info = |p: &wgfc_ir::program::Port| ValueInfo {
        name: p.name.clone(),
        dtype: p.dtype,
        shape: p.shape.clone(),
        broadcast: p.broadcast.clone(),
    };
    declared.iter().map(info).collect()
}

/// The inputs or outputs of a graph.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// use wgfc::value_info::graph_values;
/// let graph = wgfc::ModelFile::open(&path)?.import(&Default::default())?.graph;
/// assert_eq!(graph_values(&graph, &graph.inputs)[0].type_text(), "f32[batch, 13]");
/// # Ok(()) }
/// ```
pub fn graph_values(graph: &Graph, borders: &[wgfc_ir::Border]) -> Vec<ValueInfo> {
    borders
        .iter()
        .map(|b| {
            let ty = graph.ty(b.value);
            let broadcast = graph.optional.get(&b.name).cloned();
            ValueInfo { name: b.name.to_string(), dtype: ty.dtype, shape: ty.shape.clone(), broadcast }
        })
        .collect()
}

/// Derives values of symbols from the shapes of inputs and adds them to `dims`. Optional inputs are skipped.
/// See the example of [`check_inputs`].
pub fn bind(given: &[(&ValueInfo, &[usize])], dims: &mut BTreeMap<String, i64>) {
    let fit = given.iter().filter(|(p, s)| p.broadcast.is_none() && p.shape.len() == s.len());
    let extents: Vec<(&Dim, i64)> = fit
        .flat_map(|(info, shape)| info.shape.iter().zip(*shape))
        .filter_map(|(d, n)| Some((d, i64::try_from(*n).ok()?)))
        .collect();
    let found = symbols::bind(&extents, &|s| dims.get(s).copied());
    dims.extend(found.into_iter().map(|f| (f.symbol.to_string(), f.value)));
}

/// Checks the inputs of a run and returns the values of the symbols. The error lists every problem.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let program = wgfc::compile_file(&path, &Default::default())?;
/// use wgfc::Tensor;
/// use wgfc::value_info::{check_inputs, program_values};
/// let declared = program_values(&program.inputs);
/// let x = |columns| [("x".to_owned(), Tensor::zeros(wgfc::DType::F32, vec![4, columns]))].into();
/// assert_eq!(check_inputs(&declared, &x(13))?["batch"], 4);
/// assert!(check_inputs(&declared, &x(12)).is_err());
/// # let _: Option<Tensor> = None;
/// # Ok(()) }
/// ```
pub fn check_inputs(
    declared: &[ValueInfo],
    inputs: &BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, i64>, Error> {
    let types = inputs.iter().map(|(n, t)| (n.as_str(), (t.dtype, t.shape.as_slice()))).collect();
    check_types(declared, &types)
}

/// [`check_inputs`] for tensors in any memory, given by their element types and shapes.
/// See the example of [`check_inputs`].
pub fn check_types(
    declared: &[ValueInfo],
    inputs: &BTreeMap<&str, (DType, &[usize])>,
) -> Result<BTreeMap<String, i64>, Error> {
    let mut problems = Vec::new();
    let mut dims = BTreeMap::new();
    let given: Vec<_> = declared.iter().filter_map(|p| Some((p, inputs.get(p.name.as_str())?.1))).collect();
    bind(&given, &mut dims);
    let wants = |p: &ValueInfo| format!("input `{}` is {}", p.name, p.type_text());
    for info in declared {
        let Some((dtype, given)) = inputs.get(info.name.as_str()).copied() else {
            if info.broadcast.is_some() {
                continue;
            }
            problems.push(Problem::with_help(
                format!("{} and was not given", wants(info)),
                format!("give a tensor for `{}`", info.name),
            ));
            continue;
        };
        if dtype != info.dtype {
            problems.push(Problem::with_help(
                format!("{}, not {dtype}", wants(info)),
                format!("convert it, with NumPy: x.astype(\"{}\")", numpy_name(info.dtype)),
            ));
        }
        if info.broadcast.is_some() {
            problems.extend(check_broadcast(info, given, &dims));
            continue;
        }
        if given.len() != info.shape.len() {
            problems.push(Problem::with_help(
                format!("{}, not of shape {given:?}", wants(info)),
                format!("reshape it to {} axes", info.shape.len()),
            ));
            continue;
        }
        if let Ok(shape) = info.shape_at(&dims)
            && shape != given
        {
            let at = if info.shape.iter().all(|d| d.as_const().is_some()) {
                String::new()
            } else {
                let known = dims
                    .iter()
                    .filter(|(k, _)| info.shape.iter().any(|d| d.symbols().iter().any(|s| **s == ***k)));
                let known: Vec<String> = known.map(|(k, v)| format!("{k} = {v}")).collect();
                format!(" with {}", known.join(", "))
            };
            problems.push(Problem::with_help(
                format!("{}{at}, not of shape {given:?}", wants(info)),
                format!("give one of shape {shape:?}, or inputs that all agree on another size"),
            ));
        }
    }
    for name in inputs.keys() {
        if !declared.iter().any(|p| p.name == **name) {
            problems.push(no_such_input(name, declared));
        }
    }
    if problems.is_empty() { Ok(dims) } else { Err(Error::Usage(problems)) }
}

/// The problem of a tensor that cannot be broadcast to the declared shape; `None` if it can.
fn check_broadcast(info: &ValueInfo, given: &[usize], dims: &BTreeMap<String, i64>) -> Option<Problem> {
    let shape = optional::shape(Some(given), info.shape.len());
    let whole = info.shape_at(dims).ok()?;
    let extents: Vec<i64> = whole.iter().map(|n| i64::try_from(*n).unwrap_or(i64::MAX)).collect();
    if shape.is_some_and(|s| optional::misfit(&s, &extents).is_none()) {
        return None;
    }
    Some(Problem::with_help(
        format!("input `{}` is broadcast to {whole:?}, not of shape {given:?}", info.name),
        "give a tensor of that shape, or of the extent 1 along some axes; leading ones may be left out",
    ))
}

/// The problem of an input that the model does not have.
///
/// ```
/// let problem = wgfc::value_info::no_such_input("y", &[]);
/// println!("{}", problem.message);
/// ```
pub fn no_such_input(name: &str, declared: &[ValueInfo]) -> Problem {
    let all: Vec<String> = declared.iter().map(|p| format!("`{}`", p.name)).collect();
    let help = if all.is_empty() {
        "the model has no inputs".into()
    } else {
        format!("its inputs are {}", all.join(", "))
    };
    Problem::with_help(format!("the model has no input `{name}`"), help)
}

fn numpy_name(dtype: DType) -> &'static str {
    match crate::npy::file_dtype(dtype) {
        DType::F16 => "float16",
        DType::F64 => "float64",
        DType::I8 => "int8",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::U8 => "uint8",
        DType::U16 => "uint16",
        DType::U32 => "uint32",
        DType::U64 => "uint64",
        DType::Bool => "bool",
        _ => "float32",
    }
}
