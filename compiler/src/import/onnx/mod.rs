//! Importer of ONNX models.
//!
//! `messages` defines the contents of a file; `model` imports its header, inputs and outputs; `walk` lowers its nodes, and `call` and
//! `subgraph` those of functions and of inner graphs. [`op`] is the contract of an operator, [`ops`] decodes each operator, and [`cx`] is
//! a decoder's access to its node. `docs/adding-an-operator.md` explains how to add an operator.

#[cfg(test)]
mod attribute_tests;
mod call;
mod cost;
pub mod cx;
#[cfg(test)]
mod decoder_tests;
mod dims;
#[cfg(test)]
mod error_tests;
mod external;
#[cfg(test)]
mod integer_tests;
mod messages;
mod model;
mod names;
pub mod op;
pub mod ops;
mod schema;
#[cfg(test)]
mod shape_tests;
mod subgraph;
mod survey;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod traffic;
mod types;
mod walk;
pub mod weights;

pub use cx::Cx;
pub use messages::*;
pub use names::Scope;
pub use survey::{CheckReport, Unsupported, check, wants_indices_inside};
pub use types::{Known, known_types};

/// The items that every decoder uses.
mod prelude {
    pub use super::cx::Cx;
    pub use super::op::{AtAttribute, Lowered, OpDef, OpError};
    pub use crate::lower::{Lowering, Result};

    /// The domain of ONNX Runtime's operators.
    pub const MICROSOFT: &str = "com.microsoft";
}

use super::{ExternalData, Imported, NoExternalData};
use crate::budget::Budget;
use crate::lower::Lowering;
use crate::{Diagnostic, Errors, Kind, Options};
use names::opsets;
use prost::Message;
use prost::bytes::Buf;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use walk::Importer;
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{Graph, TensorType};

/// The newest version of the file format that can be read.
pub const NEWEST_IR: i64 = 14;
/// The versions of `ai.onnx` that can be read; each operator states its own oldest version.
pub const OPSETS: std::ops::RangeInclusive<i64> = 1..=28;

/// Imports an ONNX model. All errors are collected.
pub fn import(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> Result<Imported, Errors> {
    import_model(&decode_shared(bytes, external, options.memory_limit)?, external, options)
}

/// [`decode`], except that tensors share the memory of the model if possible.
fn decode_shared(
    bytes: &[u8],
    external: &dyn ExternalData,
    memory_limit: Option<u64>,
) -> Result<ModelProto, Errors> {
    match external.model().filter(|m| std::ptr::eq((**m).as_ref(), bytes)) {
        Some(owner) => {
            afford(bytes, true, memory_limit)?;
            read(Bytes::from_owner(Shared(owner)))
        }
        None => {
            afford(bytes, false, memory_limit)?;
            read(bytes)
        }
    }
}

/// The memory of a model.
struct Shared(Arc<dyn ByteOwner>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// Decodes a model's messages, within a memory budget that depends on its size.
pub fn decode(bytes: &[u8]) -> Result<ModelProto, Errors> {
    decode_shared(bytes, &NoExternalData, None)
}

/// The locations of external tensors, relative to the model's folder, and the number of tensors at each.
///
/// # Errors
/// The model cannot be decoded.
pub fn external_locations(
    bytes: &[u8],
    external: &dyn ExternalData,
    memory_limit: Option<u64>,
) -> Result<BTreeMap<String, usize>, Errors> {
    Ok(external::locations(&decode_shared(bytes, external, memory_limit)?))
}

/// Takes the memory of the model's decoded messages from its budget.
fn afford(bytes: &[u8], shared: bool, memory_limit: Option<u64>) -> Result<(), Errors> {
    let budget = Budget::new(bytes.len() as u64, memory_limit);
    Ok(budget.take(cost::of_model(bytes, shared), "decoding the model's messages")?)
}

/// Decodes the message of a single tensor, within a memory budget.
///
/// # Errors
/// The bytes are no tensor, or the budget does not suffice.
pub fn decode_tensor(bytes: &[u8], budget: &Budget) -> Result<TensorProto, Diagnostic> {
    budget.take(cost::of_tensor(bytes), "decoding the tensor's message")?;
    TensorProto::decode(bytes).map_err(|e| Diagnostic::model(format!("is not an ONNX TensorProto: {e}")))
}

fn read(bytes: impl Buf) -> Result<ModelProto, Errors> {
    ModelProto::decode(bytes).map_err(|e| {
        Diagnostic::model(format!("this is not an ONNX model: {e}"))
            .help("the file may be cut short, or be a Git LFS pointer")
            .into()
    })
}

/// Imports a decoded model.
pub fn import_model(
    model: &ModelProto,
    external: &dyn ExternalData,
    options: &Options,
) -> Result<Imported, Errors> {
    run(model, external, options).0
}

/// The inputs of the model whose *data* shapes depend on, as far as an import finds them. With their values given ([`Options::values`])
/// it proceeds further. Empty if there are none.
pub fn shape_inputs(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> Vec<String> {
    let Ok(model) = decode_shared(bytes, external, options.memory_limit) else { return vec![] };
    run(&model, external, options).1.into_iter().collect()
}

type Ran = (Result<Imported, Errors>, BTreeSet<String>);

fn run(model: &ModelProto, external: &dyn ExternalData, options: &Options) -> Ran {
    let proto = match model::check_header(model) {
        Ok(p) => p,
        Err(e) => return (Err(e), BTreeSet::new()),
    };
    let mut im = importer(model, external, options);
    let (result, mut data_inputs) = model::import(&mut im, proto, options);
    // Parameters of subgraphs are among them; only inputs of the model can be given.
    data_inputs.retain(|n| proto.input.iter().any(|v| v.name == *n));
    (result.map_err(|e| with_fitting_extents(e, model, external, options)), data_inputs)
}

/// Adds the extents that would fit to the errors of a model, if it can be imported without the given extents.
fn with_fitting_extents(
    mut errors: Errors,
    model: &ModelProto,
    external: &dyn ExternalData,
    options: &Options,
) -> Errors {
    if options.dims.is_empty() {
        return errors;
    }
    let open = Options { dims: BTreeMap::new(), graph_only: true, ..options.clone() };
    let Ok(imported) = import_model(model, external, &open) else { return errors };
    let values: Vec<(&String, i64)> = options.dims.iter().map(|(s, v)| (s, *v)).collect();
    let pairs: Vec<_> = imported.graph.constraints.iter().map(|c| (&c.a, &c.b)).collect();
    if let Some(text) = wgfc_ir::suggest::suggest(&values, &pairs, &|_| None) {
        errors.0.iter_mut().filter(|d| d.kind == Kind::Model).for_each(|d| d.help = Some(text.clone()));
    }
    errors
}

/// The inputs of a model that each run must pass, with their declared types.
pub fn declared_inputs(bytes: &[u8], options: &Options) -> Result<Vec<(String, TensorType)>, Errors> {
    let model = decode_shared(bytes, &NoExternalData, options.memory_limit)?;
    let proto = model::check_header(&model)?;
    let mut im = importer(&model, &NoExternalData, options);
    im.errors.clear();
    let mut g = Graph::new();
    model::inputs(&mut im, &mut Lowering::new(&mut g), &mut Scope::default(), proto, options);
    match im.errors.is_empty() {
        true => Ok(g.inputs.iter().map(|b| (b.name.to_string(), g.ty(b.value).clone())).collect()),
        false => Err(Errors(im.errors)),
    }
}

fn importer<'m>(model: &'m ModelProto, external: &'m dyn ExternalData, options: &Options) -> Importer<'m> {
    let survey = survey::survey(model);
    Importer {
        weights: weights::Weights::new(external, options.graph_only),
        functions: survey::functions(model),
        opsets: opsets(&model.opset_import),
        errors: survey.unsupported.iter().map(Unsupported::diagnostic).collect(),
        calls: vec![],
        bytes_unfused: wgfc_ir::Dim::ZERO,
        expanded: 0,
        most_expanded: walk::most_expanded(model),
        bodies: 0,
        depth: 0,
        stopped: false,
        operators: Default::default(),
        known: None,
    }
}
