//! Requests: options, plans, and files.

use super::TrialsRequest;
use crate::DeviceProfile;
use crate::import::{ExternalData, OWN_FILE};
use crate::schedule::table::Tuning;
use crate::training::{Given, Ports, Words};
use crate::{Activations, Diagnostic, Errors, Fusion, Options, Precision, States, WeightBits};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_ir::remote::{Remote, Source};
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{Dim, Graph, symbols};

/// The options of a compilation, and the files with the model's tensors.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Request {
    /// The model's files, to which external data refers by name.
    pub files: Vec<File>,
    /// The name of the file of which the model is the beginning, if that is not the whole model.
    pub begins: Option<String>,
    /// Whether the model is a decoder that chooses tokens. Its plans are `decode` for a single token and `prefill` for prompts, and
    /// [`Request::plans`] must be empty.
    pub generate: bool,
    /// The inputs that the caller gives to each step, if the model is a training step. Inputs that it does not give become states.
    pub training: Option<TrainingRequest>,
    /// The device profile in the JSON format of [`device::file`](crate::device::file).
    pub profile: Option<serde_json::Value>,
    /// Values of symbolic dimensions to fix in all plans.
    pub dims: BTreeMap<String, i64>,
    /// Expected values of symbolic dimensions.
    pub expect: BTreeMap<String, i64>,
    /// Whether to disable fusion, as a baseline.
    pub unfused: bool,
    /// The type in memory of f32 values.
    pub precision: Precision,
    /// Nodes of the model whose values stay f32 in memory.
    pub keep_f32: Vec<String>,
    /// The quantization of weights of matrix products.
    pub weights: WeightBits,
    /// The precision of what products multiply with quantised weights.
    pub activations: Activations,
    /// Tensors of the model to return as extra outputs.
    pub taps: Vec<String>,
    /// Tensors of the model to which runs may add: [`Options::added`].
    pub added: Vec<String>,
    /// Tensors of the model that runs may replace: [`Options::replaced`].
    pub replaced: Vec<String>,
    /// Schedules of kernels, in the format that `wgfc inspect --schedule --json` prints.
    pub schedules: Option<String>,
    /// Whether the answer has the schedules in that format.
    pub list_schedules: bool,
    /// The schedules that are fastest on the device, in the format of [`Tuning::to_json`]. A table of another version is left out, as a page
    /// may have kept it since.
    pub tuning: Option<String>,
    /// Asks for kernels to be timed instead of plans.
    pub trials: Option<TrialsRequest>,
    /// The plans in order of preference. If empty, there is one plan without a name.
    pub plans: Vec<PlanRequest>,
}

/// One of several plans.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanRequest {
    /// The plan's name.
    pub name: String,
    /// Values of symbolic dimensions to fix in this plan.
    pub dims: BTreeMap<String, i64>,
    /// The device profile, instead of that of the request.
    pub profile: Option<serde_json::Value>,
}

/// The inputs of a training step. Shapes have `null` for an extent that the caller leaves to the model.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingRequest {
    /// The inputs of which each step gets other rows, with the shapes of their tensors in a step.
    pub data: BTreeMap<String, Vec<Option<i64>>>,
    /// The inputs that are the same in each step, with their shapes.
    pub inputs: BTreeMap<String, Vec<Option<i64>>>,
    /// Pairs of an input and the output that is its value in the next step, besides those that are found by name or order.
    pub states: Vec<(String, String)>,
    /// The output that is the loss, if it is not the one called `loss` or the first one that is a single float.
    pub loss: Option<String>,
}

/// The options of npm's `Trainer`, for messages.
const WORDS: Words = Words {
    data: "data: { \"{}\": rows }",
    same: "inputs: { \"{}\": tensor }",
    carry: "states: { \"{}\": \"OUTPUT\" }",
};

impl TrainingRequest {
    /// Options for a graph of a step: the inputs that no one gives are states, and symbols have the values that follow from
    /// the shapes of the inputs that are given.
    ///
    /// # Errors
    /// Inputs without a value, a missing loss, pairs that do not match, a step without states.
    pub(super) fn options(&self, graph: &Graph, mut options: Options) -> Result<Options, Errors> {
        if options.precision == Precision::F16 {
            options.loss_scale.get_or_insert_default();
        }
        let given = Given {
            data: self.data.keys().map(String::as_str).collect(),
            inputs: self.inputs.keys().map(String::as_str).collect(),
            states: &self.states,
            loss: self.loss.as_deref(),
            words: WORDS,
        };
        let ports = Ports::of_graph(graph);
        let pairs = ports.pairs(&given)?.states;
        if !pairs.is_empty() {
            options.states = States::Named { pairs, capacity: None };
        }
        let shapes = || self.data.iter().chain(&self.inputs);
        let known = ports.inputs.iter().filter_map(|p| Some((p, shapes().find(|(n, _)| **n == p.name)?.1)));
        let extents: Vec<(&Dim, i64)> = known
            .filter(|(p, shape)| p.broadcast.is_none() && p.shape.len() == shape.len())
            .flat_map(|(p, shape)| p.shape.iter().zip(shape))
            .filter_map(|(d, n)| Some((d, (*n)?)))
            .collect();
        for f in symbols::bind(&extents, &|s| options.dims.get(s).copied()) {
            options.dims.entry(f.symbol.to_string()).or_insert(f.value);
        }
        Ok(options)
    }
}

/// A file that tensors are in.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The location by which external data refers to it.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
}

impl Request {
    /// The options of each plan, with its name.
    ///
    /// # Errors
    /// A device profile or schedules that cannot be parsed.
    pub(super) fn options(&self) -> Result<Vec<(String, Options)>, Errors> {
        let one = [PlanRequest::default()];
        let plans = if self.plans.is_empty() { &one[..] } else { &self.plans };
        let options = plans.iter().map(|p| {
            let mut options = Options {
                dims: self.dims.iter().chain(&p.dims).map(|(n, v)| (n.clone(), *v)).collect(),
                fusion: if self.unfused { Fusion::None } else { Fusion::Full },
                taps: self.taps.clone(),
                added: self.added.clone(),
                replaced: self.replaced.clone(),
                precision: self.precision,
                keep_f32: self.keep_f32.clone(),
                weights: self.weights,
                activations: self.activations,
                ..Options::default()
            };
            if let Some(text) = &self.schedules {
                let wrong = |e: String| Errors(vec![Diagnostic::model(format!("the schedules: {e}"))]);
                options.schedules = Tuning::from_json(text.as_bytes()).map_err(wrong)?;
            }
            if let Some(Ok(table)) = self.tuning.as_ref().map(|t| Tuning::from_json(t.as_bytes())) {
                options.tuning = table;
            }
            options.expect.0.extend(self.expect.iter().map(|(n, v)| (n.clone(), *v)));
            if let Some(profile) = p.profile.as_ref().or(self.profile.as_ref()) {
                let wrong = |e: String| Errors(vec![Diagnostic::model(format!("the device profile {e}"))]);
                options.profile = DeviceProfile::from_json(profile.to_string().as_bytes()).map_err(wrong)?;
            }
            Ok((p.name.clone(), options))
        });
        options.collect()
    }
}

/// The files of a request, whose bytes are read on demand.
pub(super) struct Elsewhere {
    pub files: Vec<File>,
    /// The name of the model's own file.
    pub own: Option<String>,
    pub source: Arc<Source>,
}

impl Elsewhere {
    /// The error about bytes that could not be read.
    pub fn unreadable(&self, file: usize, offset: u64) -> Diagnostic {
        let name = self.files.get(file).map_or("", |f| &f.name);
        Diagnostic::model(format!("cannot read the bytes of `{name}` from {offset}"))
            .help("the file was cut short, or its download ended: load it again")
    }
}

impl ExternalData for Elsewhere {
    fn open(&self, _: &str) -> Result<Arc<dyn ByteOwner>, String> {
        Err("whole files are not read here".into())
    }

    fn bytes(&self) -> Option<u64> {
        let own = self.own.as_ref()?;
        Some(self.files.iter().find(|f| f.name == *own)?.bytes)
    }

    fn remote(&self, location: &str, offset: u64, bytes: u64) -> Option<Result<Remote, String>> {
        let location = if location == OWN_FILE { self.own.as_deref()? } else { location };
        let found = self.files.iter().enumerate().find(|(_, f)| f.name == location);
        let Some((i, f)) = found else { return Some(Err("there is no such file".into())) };
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= f.bytes);
        let remote = match usize::try_from(bytes) {
            Ok(n) if inside => Ok(Remote::new(self.source.clone(), i, offset, n)),
            _ => Err(format!("{bytes} bytes from {offset} are outside the file ({} bytes)", f.bytes)),
        };
        Some(remote)
    }
}
