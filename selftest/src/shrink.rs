//! Reduces a case that fails to a smaller one that fails in the same way.

mod graphs;
mod models;

use super::failure::Failure;
use super::guard::Device;
use super::run::without_numbers;
use super::sequence::CaseId;
use super::setting::Setting;
use super::subject::{Attempt, Fault, Source, Subject};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Instant;
use wgfc_ir::{Op, Program, Tensor};

/// The most runs that reducing one case may take.
const ATTEMPTS: usize = 250;

/// The smallest case found that fails in the same way.
#[derive(Clone, Debug, Serialize)]
pub struct Smallest {
    /// The case from which it was reduced.
    pub case: String,
    /// How it is compiled.
    pub setting: String,
    /// The operators that it contains.
    pub operators: Vec<String>,
    /// Elements of all inputs and constants.
    pub elements: usize,
    /// The failure.
    pub message: String,
    /// Inputs, constants and nodes.
    pub text: String,
    /// The model or graph.
    #[serde(skip)]
    pub source: Source,
    /// Its inputs, by name.
    #[serde(skip)]
    pub inputs: BTreeMap<String, Tensor>,
    /// The options of `wgfc run` for the setting, each after a space, as far as there are any.
    #[serde(skip)]
    pub arguments: String,
    /// The program and its outputs; `None` if it could not be compiled, or would lose the device.
    #[serde(skip)]
    pub device: Option<OnDevice>,
}

/// The compiled program, and the expected and actual outputs.
#[derive(Clone, Debug)]
pub struct OnDevice {
    /// The program.
    pub program: Program,
    /// The evaluator's results, in the order of the program's outputs.
    pub want: Vec<Tensor>,
    /// The device's results, likewise; empty if the run failed.
    pub got: Vec<Tensor>,
}

impl OnDevice {
    fn run(s: &Subject, gpu: &wgfc_runtime::Gpu, a: &Attempt<'_>) -> Result<OnDevice, Failure> {
        let p = s.prepare(a)?;
        let run =
            |gpu| super::failure::run_session(&mut super::failure::session(gpu, &p.program)?, &s.inputs);
        let got = run(gpu).unwrap_or_default();
        Ok(OnDevice { program: p.program, want: p.want, got })
    }
}

/// Decides whether a subject fails in the same way as the original.
struct Judge<'a> {
    device: &'a Device,
    fault: Option<Fault>,
    status: &'static str,
    text: String,
    left: usize,
    until: Option<Instant>,
}

impl Judge<'_> {
    fn over(&self) -> bool {
        self.left == 0 || self.device.is_over() || self.until.is_some_and(|u| Instant::now() >= u)
    }

    /// The first item that fails in the same way, with its failure.
    fn first<T>(
        &mut self,
        all: impl IntoIterator<Item = T>,
        mut fails: impl FnMut(&mut Self, &T) -> Option<Failure>,
    ) -> Option<(T, Failure)> {
        for x in all {
            if self.over() {
                return None;
            }
            if let Some(f) = fails(self, &x) {
                return Some((x, f));
            }
        }
        None
    }

    /// The failure of the subject, if it fails in the same way.
    fn fails(&mut self, subject: &Subject, setting: &Setting) -> Option<Failure> {
        if self.over() {
            return None;
        }
        self.left -= 1;
        let (s, setting, fault) = (subject.clone(), setting.clone(), self.fault);
        let result = self.device.run(move |gpu, phase| {
            let options = setting.options(gpu.profile());
            s.try_on(gpu, &Attempt { options: &options, cut: setting.cut, fault, phase }).map(drop)
        });
        let failure = result.err()?;
        let same = failure.status() == self.status
            && (self.status == "wrong" || without_numbers(failure.first_line()) == self.text);
        same.then_some(failure)
    }
}

/// The smallest case, found before `until`, that fails as `id` does; `None` if that one does not fail again.
pub(crate) fn smallest(
    device: &Device,
    id: &CaseId,
    failure: &Failure,
    fault: Option<Fault>,
    until: Option<Instant>,
) -> Option<Smallest> {
    let (mut subject, plain) = id.subjects()?;
    let mut setting = id.setting();
    if matches!(failure, Failure::Lost(_) | Failure::Hang(_)) {
        // Every attempt would lose the device again.
        return Some(Smallest::new(id, subject, &setting, failure.clone(), None));
    }
    let text = without_numbers(failure.first_line());
    let mut judge = Judge { device, fault, status: failure.status(), text, left: ATTEMPTS, until };
    let mut failure = judge.fails(&subject, &setting);
    if let Some(plain) = plain {
        // The case without symbolic extents is simpler, and it may be the one that failed.
        let without = judge.fails(&plain, &setting);
        if without.is_some() {
            (subject, failure) = (plain, without);
        }
    }
    let mut failure = failure?;
    while let Some((s, f)) = judge.first(setting.simpler(), |j, s| j.fails(&subject, s)) {
        (setting, failure) = (s, f);
    }
    let shorter = if judge.over() { vec![] } else { id.shorter() };
    if let Some((s, f)) = judge.first(shorter, |j, s| j.fails(s, &setting)) {
        (subject, failure) = (s, f);
    }
    // Tries one kind of change after another, and starts over until no kind helps.
    let mut helped = true;
    while std::mem::take(&mut helped) {
        for kind in 0..KINDS {
            loop {
                let next = judge.first(edits(&subject, kind), |j, s| j.fails(s, &setting));
                let Some((s, f)) = next else { break };
                (subject, failure, helped) = (s, f, true);
            }
        }
    }
    let (s, set) = (subject.clone(), setting.clone());
    let on_device = device.run(move |gpu, phase| {
        let options = set.options(gpu.profile());
        OnDevice::run(&s, gpu, &Attempt { options: &options, cut: set.cut, fault, phase })
    });
    Some(Smallest::new(id, subject, &setting, failure, on_device.ok()))
}

/// The number of kinds of changes.
const KINDS: usize = 7;

/// Variants of the subject that are smaller in one way, those that remove most first.
fn edits(s: &Subject, kind: usize) -> Box<dyn Iterator<Item = Subject> + '_> {
    match &s.source {
        Source::Model(m) => models::edits(m, s, kind),
        Source::Graph(g) => graphs::edits(g, s, kind),
    }
}

impl Smallest {
    fn new(
        id: &CaseId,
        subject: Subject,
        setting: &Setting,
        failure: Failure,
        device: Option<OnDevice>,
    ) -> Smallest {
        let numel = |t: &Tensor| t.shape.iter().product::<usize>();
        let given: usize = subject.inputs.values().map(numel).sum();
        let (operators, constants) = match &subject.source {
            Source::Model(m) => {
                let graph = m.graph.as_ref();
                let nodes = graph.iter().flat_map(|g| &g.node).map(|n| n.op_type.clone());
                let constants = graph.iter().flat_map(|g| &g.initializer);
                (
                    nodes.collect::<BTreeSet<_>>(),
                    constants.map(|t| t.dims.iter().product::<i64>()).sum::<i64>(),
                )
            }
            Source::Graph(g) => {
                let ops = || g.node_ids().map(|n| &g.node(n).op);
                let constant = |o: &Op| if let Op::Const(t) = o { numel(t) as i64 } else { 0 };
                let names =
                    ops().filter(|o| !matches!(o, Op::Input | Op::Const(_))).map(|o| o.name().to_owned());
                (names.collect(), ops().map(constant).sum())
            }
        };
        Smallest {
            case: id.to_string(),
            setting: setting.to_string(),
            operators: operators.into_iter().collect(),
            elements: given + usize::try_from(constants).unwrap_or(0),
            message: failure.message().to_owned(),
            text: Smallest::text_of(&subject, setting),
            arguments: setting.arguments(),
            source: subject.source,
            inputs: subject.inputs,
            device,
        }
    }

    /// The text of a case: its setting, inputs, constants and nodes.
    pub(crate) fn text_of(subject: &Subject, setting: &Setting) -> String {
        let mut text = format!("{setting}\n");
        match &subject.source {
            Source::Model(m) => text += &super::draw::model_text(m, &subject.inputs),
            Source::Graph(g) => {
                for (name, t) in &subject.inputs {
                    let _ = writeln!(text, "{name}: {}", super::draw::tensor_text(t));
                }
                text += &wgfc_ir::text::print(g);
            }
        }
        text
    }
}
