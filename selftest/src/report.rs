//! The findings of a run.

use super::failure::Failure;
use super::run::Done;
use super::sequence::CaseId;
use super::shrink::Smallest;
use super::subject::Outcome;
use serde::Serialize;
use std::collections::BTreeMap;
use wgfc_runtime::AdapterSummary;

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The adapter's name.
    pub device: String,
    /// Its driver.
    pub driver: String,
    /// Its API.
    pub backend: String,
    /// The features that kernels may use beyond those of every WebGPU device.
    pub features: Vec<String>,
    /// The seed.
    pub seed: u64,
    /// The seconds for which cases ran.
    pub seconds: f64,
    /// The number of cases that ran.
    pub cases: u64,
    /// The number of cases that failed only because another case lost the device, and that pass when repeated.
    pub lost_with_others: usize,
    /// Whether the device was lost and could not be opened again.
    pub stopped: bool,
    /// The counts for each family of operators.
    pub families: Vec<Family>,
    /// The differences and failures, grouped by cause as far as it can be told.
    pub findings: Vec<Finding>,
}

/// The counts for a family of operators.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// The number of cases that ran.
    pub cases: u64,
    /// The number of cases that failed.
    pub failed: u64,
    /// The number of cases that were refused as unsupported.
    pub skipped: u64,
    /// The reasons for refusals, with the number of cases for each.
    pub reasons: BTreeMap<String, u64>,
    /// The number of cases that could be compiled only with numbers in place of symbolic extents.
    pub unnamed: u64,
    /// The largest ‖a − b‖ / ‖b‖ of an output in f32.
    pub error: f64,
}

impl Family {
    pub(crate) fn new(name: &'static str) -> Family {
        Family { name, ..Family::default() }
    }
    pub(crate) fn count(&mut self, result: &Result<Done, Failure>) {
        self.cases += 1;
        match result {
            Err(_) => self.failed += 1,
            Ok(done) => {
                self.unnamed += u64::from(done.unnamed);
                match &done.outcome {
                    Outcome::Same(e) => self.error = self.error.max(*e),
                    Outcome::Refused(why) => {
                        self.skipped += 1;
                        let why = why.lines().next().unwrap_or_default().to_owned();
                        *self.reasons.entry(super::run::without_numbers(&why)).or_default() += 1;
                    }
                }
            }
        }
    }
}

/// Failures of the same cause, as far as it can be told.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The operator, `graph` or `loop`; several operators if their smallest cases use the same ones.
    pub name: String,
    /// `wrong`, `error`, `panic`, `device lost` or `hang`.
    pub status: &'static str,
    /// The message of the first case.
    pub message: String,
    /// The number of cases that fail in this way.
    pub cases: usize,
    /// Some of these cases, as `--case` takes them.
    pub cases_named: Vec<String>,
    /// Whether the first case fails again when it runs alone.
    pub repeats: bool,
    /// The reason why it was not repeated or not reduced completely, if this is so.
    pub cut_short: Option<String>,
    /// The smallest case that fails in this way.
    pub smallest: Option<Smallest>,
}

impl Finding {
    pub(crate) fn new(id: &CaseId, failure: &Failure, cases: usize) -> Finding {
        Finding {
            name: id.name.clone(),
            status: failure.status(),
            message: failure.message().to_owned(),
            cases,
            cases_named: vec![],
            repeats: true,
            cut_short: None,
            smallest: None,
        }
    }
}

impl Report {
    pub(crate) fn new(a: AdapterSummary, seed: u64, seconds: f64, cases: u64) -> Report {
        let l = &a.limits;
        let mut features = vec![];
        if l.f16 {
            features.push("f16".to_owned());
        }
        if let Some((least, most)) = l.subgroup {
            let range = if least == most { least.to_string() } else { format!("{least} to {most}") };
            features.push(format!("subgroups of {range}"));
        }
        if l.cooperative_matrix {
            features.push("matrix units".to_owned());
        }
        if let Some(n) = l.loop_iterations {
            features.push(format!("loops of at most {n} iterations"));
        }
        Report {
            device: a.name,
            driver: a.driver,
            backend: a.backend,
            features,
            seed,
            seconds,
            cases,
            lost_with_others: 0,
            stopped: false,
            families: vec![],
            findings: vec![],
        }
    }

    /// Whether there is no failure.
    pub fn passed(&self) -> bool {
        self.findings.is_empty() && !self.stopped
    }

    /// Adds a finding, merging it with another one whose smallest case uses the same operators.
    pub(crate) fn add(&mut self, mut finding: Finding) {
        let same = |f: &&mut Finding| {
            f.status == finding.status
                && f.smallest.is_some()
                && f.smallest.as_ref().map(|s| &s.operators)
                    == finding.smallest.as_ref().map(|s| &s.operators)
        };
        let Some(known) = self.findings.iter_mut().find(same) else {
            return self.findings.push(finding);
        };
        known.cases += finding.cases;
        if !known.name.split(", ").any(|n| n == finding.name) {
            known.name += &format!(", {}", finding.name);
        }
        known.cases_named.append(&mut finding.cases_named);
        known.cases_named.truncate(5);
        let size = |f: &Finding| f.smallest.as_ref().map_or(usize::MAX, |s| s.elements);
        if size(&finding) < size(known) {
            known.smallest = finding.smallest;
        }
    }
}
