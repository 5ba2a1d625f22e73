//! Names of inputs and outputs: the arguments of `forward`, and the paths in its result.

use super::guards::Path;
use super::messages::{Argument, ExportedProgram, InputSpec};
use super::tree;
use std::collections::BTreeMap;

/// The user's names of inputs and outputs.
pub struct Names {
    /// The paths of the inputs that the user passes, by the graph's name.
    pub inputs: BTreeMap<String, Path>,
    /// The paths of all results that the user receives; empty if the program does not record them.
    pub outputs: Vec<Path>,
}

impl Names {
    /// Reads the names from the signature of the whole model's call.
    pub fn of(p: &ExportedProgram) -> Names {
        let call = p.graph_module.module_call_graph.iter().find(|c| c.fqn.is_empty());
        let call = call.and_then(|c| c.signature.as_ref());
        let users = || {
            p.graph_module.signature.input_specs.iter().filter_map(|s| match s {
                InputSpec::UserInput(Argument::Tensor(t)) => Some(Some(t.name.clone())),
                InputSpec::UserInput(_) | InputSpec::Fixed => Some(None),
                _ => None,
            })
        };
        let paths = call.and_then(tree::arguments).filter(|p| p.len() == users().count());
        let inputs = match paths {
            Some(paths) => users().zip(paths).filter_map(|(name, path)| Some((name?, path))).collect(),
            None => users().flatten().map(|name| (name.clone(), vec![name])).collect(),
        };
        Names { inputs, outputs: call.and_then(tree::results).unwrap_or_default() }
    }

    /// The user's name of an input, by the graph's name.
    pub fn input(&self, name: &str) -> String {
        self.inputs.get(name).map_or_else(|| name.to_owned(), |p| p.join("."))
    }

    /// The user's name of result `i` of `n`.
    pub fn output(&self, i: usize, n: usize) -> String {
        match self.outputs.get(i).filter(|_| self.outputs.len() == n).map(Vec::as_slice) {
            Some([]) => "output".into(),
            Some(path) if path[0].starts_with(|c: char| c.is_ascii_digit()) => {
                format!("output.{}", path.join("."))
            }
            Some(path) => path.join("."),
            None if n == 1 => "output".into(),
            None => format!("output.{i}"),
        }
    }
}
