//! The inputs and outputs of a model, and whether given tensors fit.

use crate::{Error, Problem, Tensor};
use std::collections::BTreeMap;
pub use wgfc_compiler::value_info::{ValueInfo, bind, graph_values, program_values};
use wgfc_ir::{DType, optional};

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
    wgfc_compiler::value_info::no_such_input(name, declared).into()
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
