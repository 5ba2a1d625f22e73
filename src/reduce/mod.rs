//! Making a model that fails smaller while it still fails.
//!
//! [`reduce`] asks a judge about candidates, each an ONNX model in a file, and goes on from those that still fail: first
//! parts of the graph in halves (what the first tensors need; what the last ones need, from tensors that become inputs),
//! then groups of nodes by delta debugging, single nodes, bodies of control flow, and the sizes, attributes and constants of
//! what is left, until no change is left that still fails. The order of candidates depends on the model and on the
//! judge's answers alone.
//!
//! A tensor that becomes an input has the type that the importer infers for it; one whose elements are known while
//! compiling, as a computed shape, becomes a constant. Weights give way to made-up ones where the model fails with them too.
//!
//! ```
//! use wgfc::ModelFile;
//! use wgfc::compiler::import::decode;
//! use wgfc::reduce::{Task, reduce};
//! # fn main() -> Result<(), wgfc::Error> {
//! # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
//! // The fault: a model with a Softmax.
//! let has_softmax = |m: &std::path::Path| {
//!     let model = decode(&std::fs::read(m).map_err(|e| wgfc::Error::file(m, e.to_string()))?)?;
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
mod store;

use crate::selftest::{Failure, caught};
use crate::{Error, ModelFile};
use prost::Message;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;
use store::Store;
use wgfc_compiler::Options;
use wgfc_compiler::import::onnx::*;
use wgfc_compiler::import::{NoExternalData, fx};
use wgfc_ir::{Atom, Poly};

/// How much there is of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Nodes, those in bodies of control flow too.
    pub nodes: usize,
    /// Bytes of the model and its weights, those that are missing too.
    pub bytes: u64,
}

impl Size {
    fn of(m: &ModelProto) -> Size {
        let Some(g) = &m.graph else { return Size::default() };
        let elsewhere = g.initializer.iter().filter(|t| t.data_location == 1).map(store::bytes).sum::<u64>();
        Size { nodes: graph::count(&g.node), bytes: m.encoded_len() as u64 + elsewhere }
    }
}

/// How far a reduction is.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// What is being made less.
    pub stage: &'static str,
    /// Candidates that the judge was asked about.
    pub attempts: usize,
    /// The smallest model so far that fails.
    pub size: Size,
}

/// The judge of candidates, and limits.
pub struct Task<'a> {
    /// Whether the model in this file fails as the original does. An error ends the reduction.
    pub fails: &'a mut dyn FnMut(&Path) -> Result<bool, Error>,
    /// Told before each attempt.
    pub observe: &'a mut dyn FnMut(&State),
    /// Whether to end: no attempt begins after it said so.
    pub over: &'a dyn Fn() -> bool,
}

/// The smallest model that was found to fail.
#[derive(Clone, Debug)]
pub struct Reduced {
    /// The model; its constants are in it, except those that were missing.
    pub model: ModelProto,
    /// The size of the original.
    pub before: Size,
    /// The size of [`Reduced::model`].
    pub after: Size,
    /// Candidates that the judge was asked about.
    pub attempts: usize,
    /// Weights whose values are still the original's, as it does not fail with others. Few integers, as shapes have
    /// them, do not count.
    pub own_weights: Vec<String>,
    /// Whether it ended as [`Task::over`] said so.
    pub ended_early: bool,
}

/// Makes a model smaller while it fails. Symbolic dimensions in `dims` become numbers first.
///
/// # Errors
/// A model that cannot be read, that is no ONNX model, or that does not fail; errors of the judge.
pub fn reduce(file: &ModelFile, dims: &BTreeMap<String, i64>, task: Task<'_>) -> Result<Reduced, Error> {
    if fx::is_archive(file.bytes()) {
        return Err(Error::file_help(
            file.path(),
            "is an archive of torch.export; only ONNX models can be reduced",
            "export the module with torch.onnx.export, or cut the module itself down",
        ));
    }
    let mut store = Store::new()?;
    let (model, declared) = taken(file, dims, &mut store)?;
    let before = Size::of(&model);
    let own = model.graph.iter().flat_map(|g| &g.initializer);
    let own = own.filter(|t| is_weight(t)).map(|t| t.name.clone()).collect();
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

/// Constants that may be learned, or long.
fn is_weight(t: &TensorProto) -> bool {
    let n: i64 = t.dims.iter().product();
    let float = data_type::dtype(t.data_type).is_some_and(wgfc_ir::DType::is_float);
    if float { n > 1 } else { n > 64 }
}

/// A model ready to be changed: producers first, constants as initialisers in the store, dimensions fixed. And the types that
/// it declares.
fn taken(
    file: &ModelFile,
    dims: &BTreeMap<String, i64>,
    store: &mut Store,
) -> Result<(ModelProto, HashMap<String, TypeProto>), Error> {
    let mut m = decode(file.bytes())?;
    let Some(mut g) = m.graph.take() else {
        return Err(Error::file_help(file.path(), "has no graph", "export the model again"));
    };
    m.metadata_props.clear();
    let mut declared = HashMap::new();
    for v in g.input.iter().chain(&g.output).chain(&g.value_info) {
        declared.extend(v.r#type.clone().map(|t| (v.name.clone(), t)));
    }
    let (constants, nodes) = g.node.into_iter().partition(|n| constant(n).is_some());
    g.node = nodes;
    let constants: Vec<TensorProto> = constants.iter().filter_map(constant).collect();
    g.initializer.extend(constants);
    graph::sort(&mut g.node);
    let names: HashSet<String> = g.initializer.iter().map(|t| t.name.clone()).collect();
    g.input.retain(|i| !names.contains(&i.name));
    g.initializer = g.initializer.iter().map(|t| store.take(t, file)).collect::<Result<_, _>>()?;
    let mut found = BTreeSet::new();
    for v in &mut g.input {
        for d in edits::dims_mut(v) {
            let Some(DimensionValue::Param(p)) = &d.value else { continue };
            let Ok(poly) = Poly::parse(p) else { continue };
            found.extend(poly.symbols().iter().map(ToString::to_string));
            let fixed = poly.subst(
                &|a| match a {
                    Atom::Sym(s) => dims.get(&**s).map(|v| Poly::constant(*v)),
                    _ => None,
                },
                &[],
            );
            d.value = Some(match fixed.as_const() {
                Some(n) => DimensionValue::Value(n),
                None => DimensionValue::Param(fixed.to_string()),
            });
        }
    }
    if let Some(name) = dims.keys().find(|n| !found.contains(*n)) {
        let all: Vec<String> = found.into_iter().collect();
        return Err(Error::usage(
            format!("the model's inputs have no symbolic dimension `{name}`"),
            match all.is_empty() {
                true => "all of its dimensions are numbers: leave out --dim".to_owned(),
                false => format!("it has: {}", all.join(", ")),
            },
        ));
    }
    graph::prune(&mut g);
    m.graph = Some(g);
    Ok((m, declared))
}

/// The constant that a node is.
fn constant(n: &NodeProto) -> Option<TensorProto> {
    use wgfc_ir::Tensor;
    if n.op_type != "Constant" || !matches!(n.domain.as_str(), "" | "ai.onnx") {
        return None;
    }
    let (name, [a]) = (n.output.first()?, n.attribute.as_slice()) else { return None };
    let of = |t: Tensor| Some(TensorProto::of(name, &t));
    match a.name.as_str() {
        "value" => Some(TensorProto { name: name.clone(), ..a.t.clone()? }),
        "value_float" => of(Tensor::from_f32(vec![], &[a.f])),
        "value_floats" => of(Tensor::from_f32(vec![a.floats.len()], &a.floats)),
        "value_int" => of(Tensor::from_i64(vec![], &[a.i])),
        "value_ints" => of(Tensor::from_i64(vec![a.ints.len()], &a.ints)),
        _ => None,
    }
}

/// How long an import of a candidate may take here; one that takes longer is left to the judge.
const IMPORT: Duration = Duration::from_secs(60);

/// The types of a model's tensors, and whether it can be imported, which neither a panic nor a hang keeps from being answered.
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
    /// The types of its tensors.
    known: BTreeMap<String, Known>,
    /// Types that the original declares.
    declared: HashMap<String, TypeProto>,
    /// Whether the original can be imported: then candidates that cannot be fail in another way.
    imports: bool,
    store: Store,
    task: Task<'a>,
    /// Hashes of candidates that do not fail.
    tried: HashSet<[u8; 32]>,
    attempts: usize,
    stage: &'static str,
    /// Weights with the original's values.
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

    /// The best model with another graph.
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

    /// The candidate with the types of its outputs.
    fn dressed(&self, mut m: ModelProto, known: &BTreeMap<String, Known>) -> ModelProto {
        for o in m.graph.iter_mut().flat_map(|g| &mut g.output) {
            if let Some(k) = known.get(&o.name) {
                o.r#type = Some(type_of(k));
            }
        }
        m
    }

    /// Whether a candidate fails too, which is then the best.
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

    /// Tries the changes of the best model that `edits` makes, again from the first of them whenever one fails.
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
        // What follows takes less time for small inputs.
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
            // Missing ones have no values of the original's.
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

    /// The nodes of `g` that are kept and these outputs. What the others make becomes inputs or, where it is known,
    /// constants; `None` where the type of a tensor is not known.
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

    /// The fewest of the first nodes that fail, by halves.
    fn prefix(&mut self) {
        let base = self.graph();
        let (types, n) = (self.known.clone(), base.node.len());
        let (mut low, mut high) = (0, n);
        while high - low > 1 && !self.over() {
            let k = (low + high) / 2;
            let later: HashSet<&str> = base.node[k..].iter().flat_map(graph::reads).collect();
            let is_output = |o: &String| base.output.iter().any(|v| v.name == *o);
            let ends = base.node[..k].iter().flat_map(|n| &n.output);
            let ends = ends.filter(|o| later.contains(o.as_str()) || is_output(o)).cloned().collect();
            let best = std::mem::replace(&mut self.known, types.clone());
            let candidate = self.cut(&base, |i| i < k, ends);
            self.known = best;
            match candidate.is_some_and(|c| self.attempt(c)) {
                true => high = k,
                false => low = k,
            }
        }
    }

    /// The fewest of the last nodes that fail, by halves.
    fn suffix(&mut self) {
        let base = self.graph();
        let (types, n) = (self.known.clone(), base.node.len());
        let outputs: Vec<String> = base.output.iter().map(|o| o.name.clone()).collect();
        let (mut low, mut high) = (0, n);
        while high - low > 1 && !self.over() {
            let k = (low + high) / 2;
            let best = std::mem::replace(&mut self.known, types.clone());
            let candidate = self.cut(&base, |i| i >= k, outputs.clone());
            self.known = best;
            match candidate.is_some_and(|c| self.attempt(c)) {
                true => low = k,
                false => high = k,
            }
        }
    }

    /// Fewer outputs: one alone, then without groups of them.
    fn outputs(&mut self) -> bool {
        let mut helped = false;
        let one = |r: &mut Self| {
            let g = r.graph();
            if g.output.len() < 2 {
                return vec![];
            }
            let each = g.output.iter().rev();
            each.map(|o| r.with(GraphProto { output: vec![o.clone()], ..g.clone() })).collect()
        };
        if self.graph().output.len() <= 16 {
            helped |= self.all(one);
        }
        let mut size = self.graph().output.len() / 2;
        while size > 0 && !self.over() {
            helped |= self.chunks(
                size,
                |r, g, chunk| {
                    let mut g = g.clone();
                    if chunk.len() >= g.output.len() {
                        return None;
                    }
                    g.output.drain(chunk);
                    Some(r.with(g))
                },
                |g| g.output.len(),
            );
            size /= 2;
        }
        helped
    }

    /// Tries the best model without each chunk of so many things, from the last on.
    fn chunks(
        &mut self,
        size: usize,
        without: impl Fn(&mut Self, &GraphProto, std::ops::Range<usize>) -> Option<ModelProto>,
        count: impl Fn(&GraphProto) -> usize,
    ) -> bool {
        let mut helped = false;
        let mut end = count(&self.graph());
        while end > 0 && !self.over() {
            let g = self.graph();
            end = end.min(count(&g));
            let start = end.saturating_sub(size);
            if let Some(m) = without(self, &g, start..end) {
                helped |= self.attempt(m);
            }
            end = start;
        }
        helped
    }

    /// Delta debugging over the nodes.
    fn nodes(&mut self) -> bool {
        let mut helped = false;
        let mut size = self.graph().node.len() / 2;
        while size > 0 && !self.over() {
            let less = self.chunks(
                size,
                |r, g, chunk| {
                    let outputs: Vec<String> = g.output.iter().map(|o| o.name.clone()).collect();
                    let kept = |i: usize| !chunk.contains(&i);
                    r.cut(g, kept, outputs).or_else(|| {
                        // Without the end: what it reads is what comes out.
                        let ends = g.node[chunk.clone()].iter().flat_map(graph::reads);
                        let ends = ends.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect();
                        r.cut(g, kept, ends)
                    })
                },
                |g| g.node.len(),
            );
            helped |= less;
            // Single nodes again, as others may be superfluous now.
            if size > 1 || !less {
                size /= 2;
            }
        }
        helped
    }

    /// Nodes in whose place an operand of the same type stands.
    fn bypass(&mut self) -> bool {
        self.all(|r| {
            let g = r.graph();
            let made: HashSet<&str> = g.node.iter().flat_map(|n| &n.output).map(String::as_str).collect();
            let mut found = vec![];
            for (i, n) in g.node.iter().enumerate().rev() {
                let [o] = n.output.as_slice() else { continue };
                let Some(ty) = r.type_of(o) else { continue };
                for x in n.input.iter().filter(|x| !x.is_empty() && r.type_of(x).as_ref() == Some(&ty)) {
                    let is_output = g.output.iter().any(|v| v.name == *o);
                    if is_output && (!made.contains(x.as_str()) || g.output.iter().any(|v| v.name == *x)) {
                        continue;
                    }
                    let mut g = g.clone();
                    g.node.remove(i);
                    graph::rename_reads(&mut g.node, o, x);
                    g.output.iter_mut().filter(|v| v.name == *o).for_each(|v| v.name.clone_from(x));
                    found.push(r.with(g));
                }
            }
            found
        })
    }

    /// Smaller extents.
    fn sizes(&mut self) -> bool {
        let mut helped = self.all(edits::symbols);
        for from in edits::present(&self.graph()) {
            // Where half of it fails, the next round goes on from there.
            for to in [1, 2, 4, 8, from / 2].into_iter().filter(|to| *to < from) {
                let candidates = edits::smaller(&self.best, from, to, &mut self.store);
                if candidates.into_iter().any(|c| self.attempt(c)) {
                    helped = true;
                    break;
                }
            }
        }
        let count = self.graph().initializer.len() + self.graph().input.len();
        for i in (0..count).rev() {
            for axis in 0..8 {
                if let Some(m) = edits::broadcast(&self.best, i, axis, &mut self.store) {
                    helped |= self.attempt(m);
                }
            }
        }
        helped
    }

    /// All weights made up at once.
    fn made_up_all(&mut self) {
        let g = self.graph();
        let mut new = g.clone();
        for t in &mut new.initializer {
            if let Some(other) = self.made_up(&g, t) {
                *t = other;
            }
        }
        let changed: Vec<String> = changed(&g, &new);
        let m = self.with(new);
        if self.attempt(m) {
            self.own.retain(|n| !changed.contains(n));
        }
    }

    fn made_up(&mut self, g: &GraphProto, t: &TensorProto) -> Option<TensorProto> {
        let float = data_type::dtype(t.data_type).is_some_and(wgfc_ir::DType::is_float);
        let codes = matches!(t.data_type, 2 | 3 | 21 | 22 | 25 | 26);
        if !is_weight(t) || !(float || codes) || store::is_missing(t) {
            return None;
        }
        let x = crate::random::made_up(g, t)?;
        self.store.put(&t.name, &x).ok()
    }

    /// Constants of ones, or of made-up values.
    fn values(&mut self) -> bool {
        let mut helped = false;
        for i in 0..self.graph().initializer.len() {
            let g = self.graph();
            let Some(t) = g.initializer.get(i) else { break };
            let name = t.name.clone();
            let (Some(dtype), false) = (data_type::dtype(t.data_type), edits::is_ones(t, &self.store)) else {
                continue;
            };
            let shape: Option<Vec<usize>> = t.dims.iter().map(|d| usize::try_from(*d).ok()).collect();
            let Some(shape) = shape.filter(|_| is_weight(t) && store::bytes(t) < 1 << 28) else { continue };
            let mut others = vec![];
            if dtype.is_float() {
                others.extend(self.store.put(&name, &store::ones(dtype, shape)).ok());
            }
            if self.own.contains(&name) || store::is_missing(t) {
                let there = TensorProto { data_location: 0, external_data: vec![], ..t.clone() };
                others.extend(self.made_up(&g, &there));
            }
            for other in others {
                let mut g = g.clone();
                g.initializer[i] = other;
                let m = self.with(g);
                if self.attempt(m) {
                    self.own.remove(&name);
                    helped = true;
                    break;
                }
            }
        }
        helped
    }
}

fn changed(before: &GraphProto, after: &GraphProto) -> Vec<String> {
    let pairs = before.initializer.iter().zip(&after.initializer);
    pairs.filter(|(a, b)| a != b).map(|(a, _)| a.name.clone()).collect()
}

/// The functions that nodes call, those in bodies and functions too.
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
