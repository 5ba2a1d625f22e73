//! Importers, which turn a model's bytes into a [`Graph`].
//!
//! Each format has a module that decodes it: it reads the messages, walks the graph, and calls a function of [`lower`](crate::lower) with
//! the operands and parameters of each operator. The modules are [`onnx`] and [`fx`]; [`gguf`] and
//! [`checkpoint`] hold no graph, which [`decoder`] makes from their description.

pub mod checkpoint;
pub mod decoder;
pub mod fx;
pub mod gguf;
pub mod onnx;
#[cfg(test)]
mod supported;

pub use onnx::{CheckReport, Unsupported, decode, import_model, shape_inputs};

pub use crate::error::close_names;
use crate::loss_scale::Ones;
use crate::lower::{OpError, Part};
use crate::{Diagnostic, Errors, Kind, Location, Options};
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_ir::computed::Bounds;
use wgfc_ir::remote::Remote;
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{Border, DType, Dim, Graph, TensorType};

/// The source of a model's external tensors.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::Arc;
/// use wgfc_compiler::import::ExternalData;
/// use wgfc_ir::tensor::ByteOwner;
/// /// The files of a model that are in memory.
/// struct InMemory(BTreeMap<String, Arc<Vec<u8>>>);
/// impl ExternalData for InMemory {
///     fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String> {
///         let file = self.0.get(location).ok_or_else(|| format!("there is no file {location}"))?;
///         Ok(file.clone())
///     }
/// }
/// ```
pub trait ExternalData {
    /// The whole file at `location`, a path relative to the model. The importer has checked that the path stays within the model's
    /// folder.
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String>;

    /// A range of bytes of such a file that is read on demand; `None` if the source reads whole files.
    fn remote(&self, _location: &str, _offset: u64, _bytes: u64) -> Option<Result<Remote, String>> {
        None
    }

    /// The size of the model's own file, if the importer is given only its beginning. [`ExternalData::remote`] then reads ranges of it at
    /// [`OWN_FILE`].
    fn bytes(&self) -> Option<u64> {
        None
    }

    /// The bytes of the model itself, if tensors may share them. The tensors of an archive are in these bytes.
    fn model(&self) -> Option<Arc<dyn ByteOwner>> {
        None
    }

    /// Made-up bytes for a record that an archive does not contain.
    fn made_up(&self, _record: &str) -> Option<Arc<dyn ByteOwner>> {
        None
    }
}

/// The location of the model's own file.
pub const OWN_FILE: &str = "";

/// No external data: a model that refers to some is refused.
pub struct NoExternalData;

impl ExternalData for NoExternalData {
    fn open(&self, _: &str) -> Result<Arc<dyn ByteOwner>, String> {
        Err("the model was given as bytes alone, without its folder".into())
    }
}

/// The most positions of a page ([`Options::page`]).
const MOST_OF_A_PAGE: i64 = 65536;

/// Imports a model of any format, which its first bytes identify. All errors are collected.
///
/// # Errors
/// The faults of the model, or the parts that are not supported.
///
/// ```
/// use wgfc_compiler::{Options, import::{NoExternalData, import}};
/// let errors = import(b"no model", &NoExternalData, &Options::default()).err().unwrap();
/// assert_eq!(errors.0.len(), 1);
/// ```
pub fn import(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> Result<Imported, Errors> {
    let format = Format::of(bytes);
    if let Some(page) = options.page {
        let problem = match format.is_built() {
            true if (1..=MOST_OF_A_PAGE).contains(&page) => None,
            true => Some((
                format!("a page of a cache cannot have {page} positions"),
                format!("give a number from 1 to {MOST_OF_A_PAGE}"),
            )),
            false => Some((
                "the model's graph says how its caches are laid out, which cannot become pages".to_owned(),
                "leave out --page, or give a GGUF file or a checkpoint of the model".to_owned(),
            )),
        };
        if let Some((message, help)) = problem {
            return Err(Diagnostic::unsupported(message).help(help).into());
        }
    }
    match format {
        Format::Onnx => onnx::import(bytes, external, options),
        Format::Archive => fx::import(bytes, external, options),
        Format::Gguf => gguf::import(bytes, external, options),
        Format::Checkpoint => checkpoint::import(bytes, external, options),
    }
}

/// Reports which operators a model of any format uses and whether it can be compiled, without reading its weights.
///
/// ```no_run
/// use wgfc_compiler::{Options, import::{NoExternalData, check}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let report = check(&std::fs::read("model.onnx")?, &NoExternalData, &Options::default());
/// for (operator, count) in &report.operators {
///     println!("{count} × {operator}");
/// }
/// println!("{} operators are not supported", report.unsupported.len());
/// # Ok(()) }
/// ```
pub fn check(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> CheckReport {
    match Format::of(bytes) {
        Format::Onnx => onnx::check(bytes, external, options),
        Format::Archive => fx::check(bytes, external, options),
        Format::Gguf => report("GGUF", planned(bytes, external, options)),
        Format::Checkpoint => report("transformers", planned(bytes, external, options)),
    }
}

/// The inputs of a model of any format that each run must pass, with their declared types.
///
/// # Errors
/// The faults of the model that concern its inputs.
pub fn declared_inputs(
    bytes: &[u8],
    external: &dyn ExternalData,
    options: &Options,
) -> Result<Vec<(String, TensorType)>, Errors> {
    match Format::of(bytes) {
        Format::Onnx => onnx::declared_inputs(bytes, options),
        Format::Archive => fx::declared_inputs(bytes, external, options),
        Format::Gguf | Format::Checkpoint => {
            planned(bytes, external, options).map(|i| types_of_inputs(&i.graph))
        }
    }
}

/// The format of a model, which its first bytes identify.
///
/// ```
/// use wgfc_compiler::import::Format;
/// assert_eq!(Format::of(b"GGUF\x03\0\0\0"), Format::Gguf);
/// assert_eq!(Format::of(b"\x08\x0a"), Format::Onnx);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// ONNX, and whatever is of no other format.
    Onnx,
    /// An archive of `torch.export.save`, or the `model.json` of one.
    Archive,
    /// GGUF.
    Gguf,
    /// A `config.json` of transformers, with weights in safetensors beside it.
    Checkpoint,
}

impl Format {
    /// Whether files of this format hold weights and parameters, and no graph: [`decoder`] builds it.
    pub fn is_built(self) -> bool {
        matches!(self, Format::Gguf | Format::Checkpoint)
    }

    /// The format of a model with these bytes.
    pub fn of(bytes: &[u8]) -> Format {
        match () {
            () if gguf::is_gguf(bytes) => Format::Gguf,
            () if checkpoint::is_config(bytes) => Format::Checkpoint,
            () if fx::is_archive(bytes) => Format::Archive,
            () => Format::Onnx,
        }
    }
}

/// The name and type of each input of a graph. An optional input is shown with the type that it is broadcast to.
fn shown_inputs(g: &Graph) -> Vec<(String, String)> {
    let show = |b: &Border| {
        let own = g.ty(b.value);
        let ty = match g.optional.get(&b.name) {
            Some(full) => format!("{}, broadcast, optional", TensorType::new(own.dtype, full.clone())),
            None => own.to_string(),
        };
        (b.name.to_string(), ty)
    };
    g.inputs.iter().map(show).collect()
}

/// The name and type of each input of a graph.
fn types_of_inputs(g: &Graph) -> Vec<(String, TensorType)> {
    g.inputs.iter().map(|b| (b.name.to_string(), g.ty(b.value).clone())).collect()
}

/// Imports a model without its weights.
fn planned(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> Result<Imported, Errors> {
    import(bytes, external, &Options { graph_only: true, ..options.clone() })
}

/// The report on a model without a graph of its own, from its import.
fn report(producer: &str, imported: Result<Imported, Errors>) -> CheckReport {
    let mut report = CheckReport { producer: producer.into(), ..CheckReport::default() };
    match imported {
        Ok(imported) => {
            for operator in imported.operators.values() {
                *report.operators.entry(operator.clone()).or_default() += 1;
            }
            report.inputs = shown_inputs(&imported.graph);
            report.outputs = shown_outputs(&imported.graph);
            report.warnings = imported.warnings;
        }
        Err(e) => report.errors = e.0,
    }
    report
}

/// The name and type of each output of a graph.
fn shown_outputs(g: &Graph) -> Vec<(String, String)> {
    g.outputs.iter().map(|b| (b.name.to_string(), g.ty(b.value).to_string())).collect()
}

/// Whether an operator requires indices within the bounds of their axes. Names outside of the domain `ai.onnx` are prefixed with their
/// domain.
pub fn wants_indices_inside(operator: &str) -> bool {
    onnx::wants_indices_inside(operator) || fx::ops::wants_indices_inside(operator)
}

/// An imported model. See the example of [`import`](import()).
#[derive(Clone, Debug)]
pub struct Imported {
    /// Its graph in core operators, with inferred shapes and evaluated shape arithmetic.
    pub graph: Graph,
    /// The number of nodes of the model, without constants.
    pub model_nodes: usize,
    /// Bytes moved if every node of the model were a kernel of its own.
    pub bytes_unfused: Dim,
    /// The warnings for the user.
    pub warnings: Vec<String>,
    /// The operator of each lowered node, by the node's name; nodes of subgraphs and functions are included.
    pub operators: BTreeMap<String, String>,
    /// Scalars of 1 that the model makes like another value, of which one may be the seed of a backward pass.
    pub ones: Vec<Ones>,
}

impl Imported {
    /// An imported model from a complete graph: removes unused nodes and adds warnings. `bytes` is the traffic without fusion; `nan` is
    /// the number of NaN elements in `tensors` constants.
    fn of(
        mut graph: Graph,
        model_nodes: usize,
        bytes: &Dim,
        mut warnings: Vec<String>,
        (tensors, nan): (usize, usize),
        operators: BTreeMap<String, String>,
    ) -> Imported {
        let bytes_unfused = Bounds::of(&graph.computed).most(bytes);
        let bytes_unfused = if bytes_unfused.is_too_large() { Dim::ZERO } else { bytes_unfused };
        graph.remove_dead();
        // Optional inputs that nothing reads, such as the seed of unused random numbers, are removed.
        let (optional, all) = (std::mem::take(&mut graph.optional), std::mem::take(&mut graph.inputs));
        let needed = |b: &Border| {
            !optional.contains_key(&b.name) || !graph.uses(b.value).is_empty() || graph.is_output(b.value)
        };
        graph.inputs = all.into_iter().filter(needed).collect();
        graph.optional =
            optional.into_iter().filter(|(n, _)| graph.inputs.iter().any(|b| b.name == *n)).collect();
        graph.remove_dead();
        if nan > 0 {
            warnings.push(format!("{nan} elements of {tensors} constants are not numbers (NaN)"));
        }
        if graph.node_ids().any(|n| graph.node(n).outputs.iter().any(|ty| ty.dtype == DType::F64)) {
            warnings.push("f64 values are computed in f32".into());
        }
        Imported { graph, model_nodes, bytes_unfused, warnings, operators, ones: vec![] }
    }
}

/// The diagnostic for an error at a node; `advice` gives the help text if the error has none.
fn diagnostic(e: OpError, mut at: Location, advice: impl FnOnce(&Location) -> String) -> Diagnostic {
    let d = match e.kind {
        Kind::Model => Diagnostic::model(e.message),
        Kind::Unsupported => Diagnostic::unsupported(e.message),
        Kind::Internal => Diagnostic::internal(e.message),
    };
    at.part = match e.part {
        Some(Part::Source(text)) => Some(text),
        _ => None,
    };
    let help = e.help.or(d.help.clone()).unwrap_or_else(|| advice(&at));
    d.at(at).help(help)
}
