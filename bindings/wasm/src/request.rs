//! The request of a page.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_compiler::DeviceProfile;
use wgfc_compiler::import::ExternalData;
use wgfc_compiler::schedule::table::Tuning;
use wgfc_compiler::{Diagnostic, Errors, Fusion, Options, Precision, WeightBits};
use wgfc_ir::remote::{Remote, Source};
use wgfc_ir::tensor::ByteOwner;

/// How a model is compiled, and where its bytes are.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Request {
    /// The model's files, by which external data refers to them.
    pub files: Vec<File>,
    /// The device: the JSON form of [`wgfc_compiler::device::file`].
    pub profile: Option<serde_json::Value>,
    /// Symbolic dimensions to fix, in all plans.
    pub dims: BTreeMap<String, i64>,
    /// Expected values of symbolic dimensions.
    pub expect: BTreeMap<String, i64>,
    /// No fusion, as a baseline.
    pub unfused: bool,
    /// In which type values of f32 are kept in memory.
    pub precision: Precision,
    /// Nodes of the model whose values stay f32 in memory.
    pub keep_f32: Vec<String>,
    /// How weights of products are kept.
    pub weights: WeightBits,
    /// Tensors of the model to return as extra outputs.
    pub taps: Vec<String>,
    /// How kernels are computed: the text of what `wgfc inspect --schedule --json` prints, edited.
    pub schedules: Option<String>,
    /// Whether the answer has such a text.
    pub list_schedules: bool,
    /// The plans, those that are preferred first. None is one without a name.
    pub plans: Vec<PlanRequest>,
}

/// One of several plans.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanRequest {
    /// The name that people give it.
    pub name: String,
    /// Symbolic dimensions to fix.
    pub dims: BTreeMap<String, i64>,
    /// Another device than that of the request.
    pub profile: Option<serde_json::Value>,
}

/// A file that tensors are in.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Its location, as external data has it.
    pub name: String,
    /// How many bytes it has.
    pub bytes: u64,
}

impl Request {
    /// The options of each plan, with its name.
    ///
    /// # Errors
    /// A profile or schedules that are none.
    pub(crate) fn options(&self) -> Result<Vec<(String, Options)>, Errors> {
        let one = [PlanRequest::default()];
        let plans = if self.plans.is_empty() { &one[..] } else { &self.plans };
        let options = plans.iter().map(|p| {
            let mut options = Options {
                dims: self.dims.iter().chain(&p.dims).map(|(n, v)| (n.clone(), *v)).collect(),
                fusion: if self.unfused { Fusion::None } else { Fusion::Full },
                taps: self.taps.clone(),
                precision: self.precision,
                keep_f32: self.keep_f32.clone(),
                weights: self.weights,
                ..Options::default()
            };
            if let Some(text) = &self.schedules {
                let wrong = |e: String| Errors(vec![Diagnostic::model(format!("the schedules: {e}"))]);
                options.schedules = Tuning::from_json(text.as_bytes()).map_err(wrong)?;
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

/// The files of a request, whose bytes are read when they are asked for.
pub(crate) struct Elsewhere {
    pub files: Vec<File>,
    pub source: Arc<Source>,
}

impl ExternalData for Elsewhere {
    fn open(&self, _: &str) -> Result<Arc<dyn ByteOwner>, String> {
        Err("whole files are not read here".into())
    }

    fn remote(&self, location: &str, offset: u64, bytes: u64) -> Option<Result<Remote, String>> {
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
