//! The roles of a decoder's inputs.

use super::described;
use crate::value_info::{ValueInfo, graph_values};
use crate::{Error, ModelFile, Options, Tensor};
use std::collections::BTreeMap;
pub use wgfc_compiler::decoding::roles::Symbols;
use wgfc_compiler::decoding::roles::{self, Role};
use wgfc_compiler::{Diagnostic, Errors};
use wgfc_ir::{DType, Dim, Scalar};
use wgfc_runtime::session::Value;
use wgfc_runtime::{DeviceTensor, Gpu, RunError};

/// Inputs that have the same value in all runs, by name.
pub type Context = BTreeMap<String, Tensor>;

/// An input and its role.
#[derive(Clone)]
pub struct Input {
    pub name: String,
    pub dtype: DType,
    rank: usize,
    role: Role,
    /// The value of [`Role::Context`].
    context: Option<Tensor>,
    /// A copy of `context` on the device.
    uploaded: Option<DeviceTensor>,
}

/// The values for one run of several sequences, row by row.
#[derive(Debug, Default)]
pub struct Step {
    /// Number of sequences.
    pub rows: usize,
    /// Token ids, sequence by sequence.
    pub ids: Vec<i64>,
    /// The position of each token in its sequence.
    pub positions: Vec<i64>,
    /// For each position of the cache and each new one, 1 if it is attended to.
    pub mask: Vec<i64>,
}

impl Step {
    /// The step that appends `ids` to `past` others, for a single sequence.
    fn single(ids: &[i64], past: usize) -> Step {
        let n = ids.len();
        let positions = (past..past + n).map(|p| p as i64).collect();
        Step { rows: 1, ids: ids.to_vec(), positions, mask: vec![1; past + n] }
    }
}

impl Input {
    /// Whether it holds the token ids.
    pub fn is_ids(&self) -> bool {
        self.role == Role::Ids
    }
    /// Whether it is the attention mask, which can hide tokens.
    pub fn hides(&self) -> bool {
        self.role == Role::Mask
    }
    /// Whether it gives the positions of a run, the same for all sequences.
    pub fn is_shared_positions(&self) -> bool {
        self.role == Role::Positions && self.rank == 1
    }
    /// Whether it gives positions for each sequence separately.
    pub fn places_each(&self) -> bool {
        self.role == Role::Positions && self.rank == 2
    }

    /// Copies a value that is the same in all runs to the device.
    pub fn upload(&mut self, gpu: &Gpu) -> Result<(), RunError> {
        self.uploaded = self.context.as_ref().map(|t| gpu.upload_blocking(t)).transpose()?;
        Ok(())
    }

    /// Its value in a run, on the device if it is there already.
    pub fn value(&self, step: &Step) -> Value {
        self.uploaded.as_ref().map_or_else(|| self.of(step).into(), |t| t.clone().into())
    }

    /// Its value when `ids` follow `past` others in one sequence.
    pub fn tensor(&self, ids: &[i64], past: usize) -> Tensor {
        self.of(&Step::single(ids, past))
    }

    /// [`Input::value`] when `ids` follow `past` others in one sequence.
    pub fn value_after(&self, ids: &[i64], past: usize) -> Value {
        self.value(&Step::single(ids, past))
    }

    /// Its value in a run.
    pub fn of(&self, step: &Step) -> Tensor {
        let zeros;
        if let Some(t) = &self.context {
            return t.clone();
        }
        let mut values: &[i64] = match self.role {
            Role::Ids => &step.ids,
            Role::Positions => &step.positions,
            Role::Mask => &step.mask,
            Role::Segments | Role::Pages | Role::Context => {
                zeros = vec![0; step.ids.len()];
                &zeros
            }
        };
        let each = values.len() / step.rows.max(1);
        let mut shape = vec![each];
        if self.rank > 1 {
            shape.insert(0, step.rows);
        } else {
            // A value of rank 1 is the same for all rows: the first row is taken.
            values = &values[..each];
        }
        if self.dtype == DType::I64 {
            return Tensor::from_i64(shape, values);
        }
        let values: Vec<Scalar> = values.iter().map(|v| Scalar::from_i64(self.dtype, *v)).collect();
        Tensor::from_scalars(self.dtype, shape, &values)
    }
}

fn role(p: &ValueInfo) -> Option<Role> {
    roles::role(&p.name, p.dtype, p.shape.len())
}

/// Whether a tensor can be the value of an input, as far as the extents are known. That of an optional input is broadcast.
fn fits(p: &ValueInfo, t: &Tensor) -> bool {
    if p.broadcast.is_some() {
        return p.dtype == t.dtype && t.shape.len() <= p.shape.len();
    }
    let extent = |(d, n): (&Dim, &usize)| d.as_const().is_none_or(|d| usize::try_from(d) == Ok(*n));
    p.dtype == t.dtype && p.shape.len() == t.shape.len() && p.shape.iter().zip(&t.shape).all(extent)
}

/// The roles of the inputs. Those in `context` have the same value in all runs. `states` is the reason why inputs that carry the cache
/// have not become states, for messages.
pub fn inputs(
    ports: &[ValueInfo],
    states: Option<&str>,
    context: &Context,
) -> Result<Vec<Input>, Vec<Diagnostic>> {
    let mut found = vec![];
    let mut strange = vec![];
    let mut problems = vec![];
    for p in ports.iter().filter(|p| p.broadcast.is_none() || context.contains_key(&p.name)) {
        let given = context.get(&p.name).cloned();
        let role = if given.is_some() { Some(Role::Context) } else { role(p) };
        if let Some(t) = given.as_ref().filter(|t| !fits(p, t)) {
            problems.push(
                Diagnostic::model(format!("{} cannot be {}{:?}", described(p), t.dtype, t.shape))
                    .help("give a tensor of its type and shape"),
            );
        }
        let (name, rank) = (p.name.clone(), p.shape.len());
        match role {
            Some(role) => {
                found.push(Input { name, dtype: p.dtype, rank, role, context: given, uploaded: None })
            }
            None => strange.push(p),
        }
    }
    for name in context.keys().filter(|n| !ports.iter().any(|p| p.name == **n)) {
        let all: Vec<String> = ports.iter().map(described).collect();
        problems.push(
            Diagnostic::model(format!("the model has no input `{name}` to be given"))
                .help(format!("its inputs are {}", all.join(", "))),
        );
    }
    let help = "a decoder has token ids [batch, seq], and may have position ids [batch, seq], an attention mask [batch, past + seq], and past keys and values that its outputs extend. The value of another input, such as what an encoder made, is given with --context NAME=FILE.npy (GeneratorOptions::context)";
    let because = states.map(|s| format!("; {s}")).unwrap_or_default();
    let wrong = |m: String| {
        Diagnostic::unsupported(format!("the model is not a decoder that wgfc understands: {m}")).help(help)
    };
    if let [first, rest @ ..] = strange.as_slice() {
        let more = if rest.is_empty() { String::new() } else { format!(" (and {} more)", rest.len()) };
        problems.push(wrong(format!("what {}{more} is for is not known{because}", described(first))));
    }
    match found.iter().filter(|i| i.role == Role::Ids).count() {
        1 => {}
        0 => problems.push(wrong("none of its inputs holds token ids".into())),
        n => problems.push(wrong(format!("{n} of its inputs seem to hold token ids"))),
    }
    if problems.is_empty() { Ok(found) } else { Err(problems) }
}

/// The input that holds the token ids, if one does.
pub fn ids(ports: &[ValueInfo]) -> Option<&ValueInfo> {
    ports.iter().find(|p| p.broadcast.is_none() && role(p) == Some(Role::Ids))
}

/// Finds the symbols in the shape of the token ids.
pub fn symbols(file: &ModelFile, memory_limit: Option<u64>) -> Result<Symbols, Error> {
    let whole = Options { memory_limit, ..Options::default() };
    let plan = Options { graph_only: true, ..whole.clone() };
    // Shapes may depend on external data; in that case the import is repeated with the weights.
    let graph = file.import(&plan).or_else(|_| file.import(&whole))?.graph;
    let errors = |d| Error::Compile { path: Some(file.path().to_owned()), errors: Errors(vec![d]) };
    roles::symbols(&graph).map_err(errors)
}

/// The inputs with past keys and values.
pub fn past(file: &ModelFile, memory_limit: Option<u64>) -> Result<Vec<ValueInfo>, Error> {
    let whole = Options { memory_limit, ..Options::default() };
    let plan = Options { graph_only: true, ..whole.clone() };
    let graph = file.import(&plan).or_else(|_| file.import(&whole))?.graph;
    let mut ports = graph_values(&graph, &graph.inputs);
    ports.retain(|p| p.broadcast.is_none() && role(p).is_none());
    Ok(ports)
}

/// The symbols other than `seq` in the shapes of past keys and values.
pub fn past_symbols(file: &ModelFile, seq: &str, memory_limit: Option<u64>) -> Result<Vec<String>, Error> {
    Ok(symbols_of(&past(file, memory_limit)?, seq))
}

/// The symbols other than `seq` in the shapes of these inputs.
pub fn symbols_of(past: &[ValueInfo], seq: &str) -> Vec<String> {
    let symbols = past.iter().flat_map(|p| p.shape.iter().flat_map(Dim::symbols).map(|s| s.to_string()));
    let all: std::collections::BTreeSet<String> = symbols.filter(|s| s != seq).collect();
    all.into_iter().collect()
}
