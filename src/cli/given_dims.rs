//! The values of dimensions that follow from given tensors.

use super::args::{DataArgs, DimArgs};
use super::terminal::Terminal;
use super::{inputs, is_program, shown};
use std::collections::BTreeMap;
use std::path::Path;
use wgfc::artefact::{ReadOptions, load_with};
use wgfc::compiler::budget::Budget;
use wgfc::compiler::lower::inside::{add_input, replace_input, where_input};
use wgfc::ir::TensorType;
use wgfc::value_info::{ValueInfo, bind, no_such_input, program_values};
use wgfc::{Error, ModelFile, Options, Tensor, npy, pb};

/// The declared inputs of a model.
fn declared(file: &ModelFile, options: &Options) -> Result<Vec<ValueInfo>, Error> {
    let inputs = wgfc::compiler::import::declared_inputs(file.bytes(), file, options)?;
    let port = |(name, ty): (String, TensorType)| ValueInfo {
        name,
        dtype: ty.dtype,
        shape: ty.shape,
        broadcast: None,
    };
    Ok(inputs.into_iter().map(port).collect())
}

/// The dimensions of the options, and those that follow from the files of `--like`.
pub fn dims(model: &Path, options: &Options, a: &DimArgs) -> Result<Vec<(String, i64)>, Error> {
    let mut dims = options.dims.clone();
    if a.like.is_empty() {
        return Ok(dims.into_iter().collect());
    }
    let ports = match is_program(model) {
        true => {
            let read = ReadOptions { verify: false, memory_limit: options.memory_limit };
            program_values(&load_with(model, &read)?.inputs)
        }
        false => declared(&ModelFile::open(model)?, options)?,
    };
    let budget = Budget::of_data(options.memory_limit);
    let mut given: Vec<(&ValueInfo, Tensor)> = vec![];
    for text in &a.like {
        let named =
            ports.iter().find_map(|p| Some((p, text.strip_prefix(p.name.as_str())?.strip_prefix('=')?)));
        let (port, path) = match (named, ports.as_slice(), text.split_once('=')) {
            (Some(found), ..) => found,
            (None, [only], None) => (only, text.as_str()),
            (None, _, Some((name, _))) => return Err(Error::Usage(vec![no_such_input(name, &ports)])),
            (None, ..) => {
                return Err(Error::usage(
                    format!("`--like {text}` does not say which input it is for"),
                    format!("write --like NAME={text}"),
                ));
            }
        };
        let tensor = match path.ends_with(".pb") {
            true => pb::read_within(path.as_ref(), &budget)?,
            false => npy::read_within(path.as_ref(), &budget)?,
        };
        if tensor.shape.len() != port.shape.len() {
            return Err(Error::usage(
                format!(
                    "input `{}` is {}, and {} has shape {:?}",
                    port.name,
                    port.type_text(),
                    shown(path.as_ref()),
                    tensor.shape
                ),
                "give a tensor of that rank",
            ));
        }
        given.push((port, tensor));
    }
    let shapes: Vec<_> = given.iter().map(|(p, t)| (*p, t.shape.as_slice())).collect();
    bind(&shapes, &mut dims);
    Ok(dims.into_iter().collect())
}

/// The dimensions and tensors of a run's inputs, for a model that can be compiled only with their values. Random inputs are
/// not among the tensors. `None` if not all inputs are given.
pub fn of_inputs(
    file: &ModelFile,
    options: &Options,
    given: &[(String, i64)],
    data: &DataArgs,
) -> Option<(BTreeMap<String, i64>, BTreeMap<String, Tensor>)> {
    let mut ports = declared(file, options).ok()?;
    ports.retain(|p| !options.values.contains_key(&p.name));
    // Inputs of `--add` and `--replace` are not declared by the model.
    let added = options.added.iter().map(|n| add_input(n));
    let replaced = options.replaced.iter().flat_map(|n| [replace_input(n), where_input(n)]);
    let inside: Vec<String> = added.chain(replaced).map(|n| format!("{n}=")).collect();
    let own = |text: &&String| !inside.iter().any(|n| text.starts_with(n));
    let data = DataArgs { inputs: data.inputs.iter().filter(own).cloned().collect(), ..data.clone() };
    let mut tensors = inputs::make(&ports, given, &data, options.memory_limit, &Terminal::silent()).ok()?;
    let shapes: Vec<_> =
        ports.iter().filter_map(|p| Some((p, tensors.get(&p.name)?.shape.as_slice()))).collect();
    let mut dims = options.dims.clone();
    bind(&shapes, &mut dims);
    let values: Vec<_> = data.inputs.iter().filter_map(|text| inputs::named(&ports, text)).collect();
    tensors.retain(|n, _| values.iter().any(|(p, from)| p.name == *n && !from.starts_with("random")));
    Some((dims, tensors))
}
