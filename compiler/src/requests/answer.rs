//! Answers to requests.

use super::request::Elsewhere;
use super::{Request, trials};
use crate::import::{Format, gguf, import};
use crate::schedule::table::{self, Tuning};
use crate::{Diagnostic, Errors, Kind, Options, decoding, pipeline};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use wgfc_ir::recipe::{Recipe, Recipes, SourceFile};
use wgfc_ir::remote::{Files, Source, Stretch};
use wgfc_ir::{Bundle, Graph};

/// A tensor whose pieces in files are smaller than this many bytes on average is assembled here and becomes data of the answer.
const LEAST_STRETCH: usize = 4 << 10;

/// The answer to a [`Request`].
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// `{"plan", "kernels", "read"}`: the bundle in the format of `docs/plan-format.md`, the texts of its kernels by name, and
    /// the number of bytes read from files; `"schedules"` if they were requested; `"beside"`, for a GGUF file of a decoder that generates, the texts
    /// of the files that would lie beside another model. Where [trials](super::TrialsRequest) were asked for: `{"trials",
    /// "version"}`, the latter that of tables. After an error: `{"errors", "text"}`.
    pub json: String,
    /// The contents of the file without a name, which holds the parts of weights that were computed here.
    pub data: Vec<u8>,
}

/// Compiles a model whose large tensors are in `files`.
pub fn compile(model: &[u8], request: &str, files: Box<dyn Files>) -> Answer {
    let made = serde_json::from_str::<Request>(request)
        .map_err(|e| Errors(vec![Diagnostic::internal(format!("the request is not what it should be: {e}"))]))
        .and_then(|r| answer(model, r, files));
    made.unwrap_or_else(|e| Answer { json: failed(&e).to_string(), data: vec![] })
}

fn answer(model: &[u8], request: Request, files: Box<dyn Files>) -> Result<Answer, Errors> {
    let mut options = request.options()?;
    let source = Source::new(files);
    let elsewhere = Elsewhere { files: request.files, own: request.begins, source: source.clone() };
    if request.generate {
        let [(_, common)] = <[_; 1]>::try_from(options).map_err(|_| {
            Diagnostic::model("a decoder that generates has plans of its own").help("leave out `plans`")
        })?;
        let sketch = Options { graph_only: true, ..common.clone() };
        let graph = import(model, &elsewhere, &sketch)?.graph;
        options = decoding::plans(&decoding::roles::symbols(&graph)?, common);
    }
    if let Some(training) = &request.training {
        for (_, o) in &mut options {
            let sketch = Options { graph_only: true, ..o.clone() };
            let graph = import(model, &elsewhere, &sketch)?.graph;
            *o = training.options(&graph, std::mem::take(o))?;
        }
    }
    let mut amend = |graph: &mut Graph| match request.generate {
        true => decoding::generate(graph, &request.taps),
        false => Ok(()),
    };
    if let Some(asked) = &request.trials {
        let mut trials = vec![];
        for (_, options) in &options {
            let fused = pipeline::fuse_amended(model, &elsewhere, options, &mut amend, &mut |_, _| {})?;
            trials::add(&mut trials, &fused, options, asked)?;
        }
        return Ok(Answer {
            json: json!({ "trials": trials, "version": table::VERSION }).to_string(),
            data: vec![],
        });
    }
    let mut programs = vec![];
    let mut schedules = Tuning::default();
    for (name, options) in options {
        if request.list_schedules {
            let fused = pipeline::fuse_amended(model, &elsewhere, &options, &mut amend, &mut |_, _| {})?;
            schedules.choices.extend(table::of(&pipeline::schedule(fused.kernels, &options)?).choices);
        }
        let made = pipeline::compile_amended(model, &elsewhere, &options, &mut amend, &mut |_, _| {})?;
        programs.push((name, made));
    }
    let bundle = Bundle::new(programs);
    let (recipes, data) = recipes(&bundle, &elsewhere);
    if let Some((file, offset)) = source.failed() {
        return Err(elsewhere.unreadable(file, offset).into());
    }
    let kernels: BTreeMap<&str, &str> = bundle.kernels().iter().map(|(n, k)| (*n, k.wgsl.as_str())).collect();
    let plan = Bundle { weights: Some(recipes), ..bundle.clone() };
    let mut json = json!({ "plan": plan, "kernels": kernels, "read": source.bytes_read() });
    if request.generate && Format::of(model) == Format::Gguf {
        json["beside"] = json!(gguf::beside(&gguf::open(model)?));
    }
    if request.list_schedules {
        let text = schedules.to_json(None).map_err(|e| Errors(vec![Diagnostic::internal(e)]))?;
        json["schedules"] = text.into();
    }
    Ok(Answer { json: json.to_string(), data })
}

/// The place of a stretch of a file.
fn there(s: Stretch<'_>) -> Option<(usize, u64)> {
    match s {
        Stretch::There { file, offset, .. } => Some((file, offset)),
        Stretch::Here(_) => None,
    }
}

/// The places of the bytes of all weights, and the bytes that were computed here.
fn recipes(bundle: &Bundle, elsewhere: &Elsewhere) -> (Recipes, Vec<u8>) {
    let here = elsewhere.files.len();
    let mut data = vec![];
    let mut tensors = BTreeMap::new();
    for (name, tensor) in bundle.store() {
        let recipe = Recipe::find(tensor, LEAST_STRETCH, there);
        let recipe =
            recipe.or_else(|| Recipe::of_blocks(tensor, LEAST_STRETCH, there)).unwrap_or_else(|| {
                let offset = data.len() as u64;
                tensor.read(0..tensor.byte_len().unwrap_or(0), &mut |p| data.extend_from_slice(p));
                Recipe::whole(tensor, here, offset)
            });
        tensors.insert(name.to_owned(), recipe);
    }
    let named =
        elsewhere.files.iter().map(|f| SourceFile { name: f.name.clone(), bytes: f.bytes, sha256: None });
    let own = SourceFile { bytes: data.len() as u64, ..SourceFile::default() };
    (Recipes { files: named.chain([own]).collect(), tensors }, data)
}

/// Diagnostics as data and as text.
pub(super) fn failed(e: &Errors) -> Value {
    let one = |d: &Diagnostic| {
        let l = &d.location;
        let kind = match d.kind {
            Kind::Model => "model",
            Kind::Unsupported => "unsupported",
            Kind::Internal => "internal",
        };
        json!({
            "kind": kind,
            "message": d.message,
            "node": l.node.as_deref(),
            "operator": l.operator.as_deref(),
            "opset": l.opset,
            "part": l.part,
            "source": l.source,
            "help": d.help,
        })
    };
    json!({ "errors": e.0.iter().map(one).collect::<Vec<_>>(), "text": e.to_string() })
}
