//! Reduces a model that fails to a small one that still fails.
//!
//! [`reduce`] passes candidates, each an ONNX model in a file, to a judge and continues from those that still fail. It first
//! bisects the graph: the shortest prefix of the nodes, then the shortest suffix, whose operands become inputs. Groups of
//! nodes follow (delta debugging), then single nodes, bodies of control flow, and the sizes, attributes and constants of the
//! rest, until no change gives a model that fails. The order of candidates depends only on the model and the judge's
//! answers.
//!
//! A tensor that becomes an input has the type that the importer infers. A tensor whose elements are known at compile time,
//! such as a computed shape, becomes a constant. Weights are replaced by random ones if the model still fails with them.
//!
//! ```
//! use wgfc::ModelFile;
//! use wgfc::compiler::import::decode;
//! use wgfc::reduce::{Task, reduce};
//! # fn main() -> Result<(), wgfc::Error> {
//! # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
//! // The fault: a model with a Softmax.
//! let has_softmax = |m: &std::path::Path| {
//!     let model = decode(&std::fs::read(m).map_err(|e| wgfc::Error::file_help(m, e.to_string(), "make it readable"))?)?;
//!     Ok(model.graph.iter().flat_map(|g| &g.node).any(|n| n.op_type == "Softmax"))
//! };
//! let task = Task { fails: &mut { has_softmax }, observe: &mut |_| {}, over: &|| false };
//! let reduced = reduce(&ModelFile::open(&path)?, &Default::default(), task)?;
//! assert_eq!(reduced.after.nodes, 1);
//! assert!(reduced.own_weights.is_empty());
//! # Ok(()) }
//! ```

mod edits;
mod graph;
mod intake;
mod stages;
mod store;

use crate::{Error, ModelFile};
use intake::{Taken, taken};
use prost::Message;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;
use store::Store;
use wgfc_compiler::Options;
use wgfc_compiler::import::onnx::*;
use wgfc_compiler::import::{Format, NoExternalData};
use wgfc_selftest::{Failure, caught};

/// The size of a model. See the example of the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Nodes, including those in bodies of control flow.
    pub nodes: usize,
    /// Bytes of the model and its weights, including missing ones.
    pub bytes: u64,
}

impl Size {
    fn of(m: &ModelProto) -> Size {
        let Some(g) = &m.graph else { return Size::default() };
        let elsewhere = g.initializer.iter().filter(|t| t.data_location == 1).map(store::bytes).sum::<u64>();
        Size { nodes: graph::count(&g.node), bytes: m.encoded_len() as u64 + elsewhere }
    }
}

/// The progress of a reduction. See the example of the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// The kind of change that is being tried, such as nodes, sizes or values.
    pub stage: &'static str,
    /// The number of candidates that the judge has seen.
    pub attempts: usize,
    /// The smallest model so far that fails.
    pub size: Size,
}

/// The judge of candidates, and the limits of a reduction.
pub struct Task<'a> {
    /// Whether the model in this file fails as the original does. An error ends the reduction.
    pub fails: &'a mut dyn FnMut(&Path) -> Result<bool, Error>,
    /// Called before each attempt.
    pub observe: &'a mut dyn FnMut(&State),
    /// Whether to stop. No attempt begins after this returns true.
    pub over: &'a dyn Fn() -> bool,
}

/// The smallest model that was found to fail. See the example of the [module](self).
#[derive(Clone, Debug)]
pub struct Reduced {
    /// The model with its constants, except those that were missing.
    pub model: ModelProto,
    /// The size of the original.
    pub before: Size,
    /// The size of [`Reduced::model`].
    pub after: Size,
    /// The number of candidates that the judge has seen.
    pub attempts: usize,
    /// Weights that keep the original's values, because the model does not fail with others. Short integer tensors, such as
    /// shapes, are not listed.
    pub own_weights: Vec<String>,
    /// Whether the reduction stopped because of [`Task::over`].
    pub ended_early: bool,
}

/// Reduces a model while it fails. Symbolic dimensions in `dims` are replaced by numbers first.
///
/// # Errors
/// A model that cannot be read, that is no ONNX model, or that does not fail; errors of the judge.
pub fn reduce(file: &ModelFile, dims: &BTreeMap<String, i64>, task: Task<'_>) -> Result<Reduced, Error> {
    if file.format() != Format::Onnx {
        let (what, help) = match file.format() {
            Format::Archive => (
                "an archive of torch.export",
                "export the module with torch.onnx.export, or cut the module itself down",
            ),
            Format::Checkpoint => ("a checkpoint", "report the type of the model and its configuration"),
            _ => ("a GGUF file", "report the architecture and the types of its tensors"),
        };
        let message = format!("is {what}; only ONNX models can be reduced");
        return Err(Error::file_help(file.path(), message, help));
    }
    let mut store = Store::new()?;
    let Taken { model, declared, mut own } = taken(file, dims, &mut store)?;
    let before = Size::of(&model);
    let all = model.graph.iter().flat_map(|g| &g.initializer);
    let weights: HashSet<&str> = all.filter(|t| is_weight(t)).map(|t| t.name.as_str()).collect();
    own.retain(|n| weights.contains(n.as_str()));
    let mut r = Reducer {
        best: model,
        known: BTreeMap::new(),
        declared,
        imports: false,
        store,
        task,
        tried: HashSet::new(),
        attempts: 0,
        stage: "the whole model",
        own,
        failed: None,
    };
    let first = r.best.clone();
    let (known, imports) = types(&first);
    (r.known, r.imports) = (known, imports);
    let whole = r.dressed(first, &r.known);
    if !r.judged(&whole)? {
        return Err(Error::usage(
            "the model no longer fails once it is read and written again, so that it cannot be reduced",
            "the fault may depend on parts that are not kept: names of its file, notes in it, the time it takes",
        ));
    }
    r.best = whole;
    r.run();
    match r.failed.take() {
        Some(e) => Err(e),
        None => Ok(r.done(before)),
    }
}

/// Whether a constant may hold learned values, or is a long integer tensor.
fn is_weight(t: &TensorProto) -> bool {
    let n: i64 = t.dims.iter().product();
    let float = data_type::dtype(t.data_type).is_some_and(wgfc_ir::DType::is_float);
    if float { n > 1 } else { n > 64 }
}

/// The time limit for importing a candidate in this process; a slower one is left to the judge.
const IMPORT: Duration = Duration::from_secs(60);

/// The types of a model's tensors, and whether it can be imported. A panic or a hang counts as a failed import.
fn types(m: &ModelProto) -> (BTreeMap<String, Known>, bool) {
    let (send, receive) = channel();
    let m = m.clone();
    let work = move || {
        let found = caught(|| Ok::<_, Failure>(known_types(&m, &NoExternalData, &Options::default())));
        let found = found.map(|(known, result)| (known, result.is_ok()));
        let _ = send.send(found.unwrap_or_default());
    };
    if std::thread::Builder::new().stack_size(8 << 20).spawn(work).is_err() {
        return (BTreeMap::new(), false);
    }
    receive.recv_timeout(IMPORT).unwrap_or_default()
}

struct Reducer<'a> {
    best: ModelProto,
    /// The types of the best model's tensors.
    known: BTreeMap<String, Known>,
    /// The types that the original declares.
    declared: HashMap<String, TypeProto>,
    /// Whether the original can be imported. If so, a candidate that cannot be imported fails for another reason.
    imports: bool,
    store: Store,
    task: Task<'a>,
    /// Hashes of candidates that do not fail.
    tried: HashSet<[u8; 32]>,
    attempts: usize,
    stage: &'static str,
    /// Weights that have the original's values.
    own: BTreeSet<String>,
    /// An error of the judge.
    failed: Option<Error>,
}

impl Reducer<'_> {
    fn over(&self) -> bool {
        self.failed.is_some() || self.late()
    }

    fn late(&self) -> bool {
        (self.task.over)()
    }

    fn graph(&self) -> GraphProto {
        self.best.graph.clone().unwrap_or_default()
    }

    /// The best model with a different graph.
    fn with(&self, g: GraphProto) -> ModelProto {
        ModelProto { graph: Some(g), ..self.best.clone() }
    }

    fn judged(&mut self, m: &ModelProto) -> Result<bool, Error> {
        let state = State { stage: self.stage, attempts: self.attempts, size: Size::of(&self.best) };
        (self.task.observe)(&state);
        self.attempts += 1;
        let path = self.store.write(m)?;
        (self.task.fails)(&path)
    }

    /// The candidate with the types of its outputs filled in.
    fn dressed(&self, mut m: ModelProto, known: &BTreeMap<String, Known>) -> ModelProto {
        for o in m.graph.iter_mut().flat_map(|g| &mut g.output) {
            if let Some(k) = known.get(&o.name) {
                o.r#type = Some(type_of(k));
            }
        }
        m
    }

    /// Whether a candidate fails too; if so, it becomes the best model.
    fn attempt(&mut self, mut m: ModelProto) -> bool {
        if self.over() {
            return false;
        }
        if let Some(g) = &mut m.graph {
            graph::prune(g);
            if g.output.is_empty() || g.node.is_empty() {
                return false;
            }
        }
        let called = called(&m);
        m.functions.retain(|f| called.contains(&(f.domain.clone(), f.name.clone())));
        let hash: [u8; 32] = Sha256::digest(m.encode_to_vec()).into();
        if m == self.best || self.tried.contains(&hash) {
            return false;
        }
        let (known, imports) = types(&m);
        if self.imports && !imports {
            self.tried.insert(hash);
            return false;
        }
        let m = self.dressed(m, &known);
        match self.judged(&m) {
            Ok(true) => {
                (self.best, self.known) = (m, known);
                true
            }
            Ok(false) => {
                self.tried.insert(hash);
                false
            }
            Err(e) => {
                self.failed = Some(e);
                false
            }
        }
    }

    /// Tries the changes that `edits` makes to the best model, and starts over with new ones whenever one of them fails.
    fn all(&mut self, edits: impl Fn(&mut Self) -> Vec<ModelProto>) -> bool {
        let mut helped = false;
        loop {
            let candidates = edits(self);
            let mut any = false;
            for c in candidates {
                if self.attempt(c) {
                    any = true;
                    break;
                }
            }
            if !any {
                return helped;
            }
            helped = true;
        }
    }

    fn run(&mut self) {
        self.stage = "weights";
        self.made_up_all();
        self.stage = "symbolic dimensions";
        self.all(edits::symbols);
        // Later attempts are faster with small inputs.
        self.stage = "inputs";
        self.all(edits::inputs);
        self.stage = "what comes after";
        self.prefix();
        self.outputs();
        self.stage = "what comes before";
        self.suffix();
        let mut helped = true;
        while std::mem::take(&mut helped) && !self.over() {
            self.stage = "nodes";
            helped |= self.all(|r| {
                let n = r.graph().node.len();
                (0..n).flat_map(|i| graph::inlined(&r.best, i)).collect()
            });
            helped |= self.nodes();
            helped |= self.outputs();
            helped |= self.bypass();
            self.stage = "bodies";
            helped |= self.all(|r| edits::bodies(&r.best, &|n| r.type_of(n)));
            self.stage = "sizes";
            helped |= self.sizes();
            self.stage = "attributes and optional inputs";
            helped |= self.all(|r| edits::optional(&r.best));
            self.stage = "values";
            helped |= self.values();
        }
    }

    fn done(mut self, before: Size) -> Reduced {
        let ended_early = self.late();
        let mut model = self.best.clone();
        if let Some(g) = &mut model.graph {
            g.name = "reduced".into();
            let left: BTreeSet<&String> = g.initializer.iter().map(|t| &t.name).collect();
            self.own.retain(|n| left.contains(n));
            // Missing weights have no values of the original.
            let missing = g.initializer.iter().filter(|t| store::is_missing(t));
            missing.for_each(|t| {
                self.own.remove(&t.name);
            });
        }
        Reduced {
            model: self.store.whole(&model),
            before,
            after: Size::of(&model),
            attempts: self.attempts,
            own_weights: self.own.into_iter().collect(),
            ended_early,
        }
    }

    /// The type of a value of the best model.
    fn type_of(&self, name: &str) -> Option<TypeProto> {
        if let Some(k) = self.known.get(name) {
            return Some(type_of(k));
        }
        let g = self.best.graph.as_ref()?;
        if let Some(t) = g.initializer.iter().find(|t| t.name == name) {
            let dims = t.dims.iter().map(|d| DimensionValue::Value(*d));
            return Some(TypeProto::tensor(data_type::dtype(t.data_type)?, dims));
        }
        match g.input.iter().find(|i| i.name == name) {
            Some(i) => i.r#type.clone(),
            None => self.declared.get(name).cloned(),
        }
    }

    /// The graph `g` with only the nodes that `keep` selects and with these outputs. Results of removed nodes become inputs
    /// or, if their values are known, constants. `None` if the type of such a tensor is unknown.
    fn cut(
        &mut self,
        g: &GraphProto,
        keep: impl Fn(usize) -> bool,
        outputs: Vec<String>,
    ) -> Option<ModelProto> {
        let mut new = GraphProto { node: vec![], output: vec![], ..g.clone() };
        new.node = g.node.iter().enumerate().filter(|(i, _)| keep(*i)).map(|(_, n)| n.clone()).collect();
        let made: HashSet<&str> = new.node.iter().flat_map(|n| &n.output).map(String::as_str).collect();
        new.output = outputs
            .into_iter()
            .filter(|o| made.contains(o.as_str()))
            .map(|name| ValueInfoProto { r#type: self.type_of(&name), name })
            .collect();
        if new.output.is_empty() {
            return None;
        }
        let mut there: HashSet<&str> = made.clone();
        there.extend(g.input.iter().map(|i| i.name.as_str()));
        there.extend(g.initializer.iter().map(|t| t.name.as_str()));
        let mut needed: BTreeSet<String> =
            new.node.iter().flat_map(graph::reads).map(str::to_owned).collect();
        needed.retain(|n| !there.contains(n.as_str()));
        for name in needed {
            match self.known.get(&name).and_then(|k| k.value.clone()) {
                Some(t) => new.initializer.push(self.store.put(&name, &t).ok()?),
                None => {
                    let r#type = Some(self.type_of(&name)?);
                    new.input.push(ValueInfoProto { name, r#type });
                }
            }
        }
        Some(self.with(new))
    }
}

/// The functions that nodes call, including calls in bodies and in functions.
fn called(m: &ModelProto) -> HashSet<(String, String)> {
    let mut found = HashSet::new();
    let mut open: Vec<&[NodeProto]> = m.graph.iter().map(|g| &g.node[..]).collect();
    while let Some(nodes) = open.pop() {
        for n in nodes {
            open.extend(graph::bodies(n).map(|g| &g.node[..]));
            if found.insert((n.domain.clone(), n.op_type.clone())) {
                let of = |f: &&FunctionProto| f.domain == n.domain && f.name == n.op_type;
                open.extend(m.functions.iter().filter(of).map(|f| &f.node[..]));
            }
        }
    }
    found
}

fn type_of(k: &Known) -> TypeProto {
    let dims = k.ty.shape.iter().map(|d| match d.as_const() {
        Some(n) => DimensionValue::Value(n),
        None => DimensionValue::Param(d.to_string()),
    });
    TypeProto::tensor(k.ty.dtype, dims)
}
