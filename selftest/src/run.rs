//! A run: cases in parallel, then repetition of the failures, then reduction of one case of each kind.

use super::failure::Failure;
use super::guard::Device;
use super::report::{Family, Finding, Report};
use super::sequence::{CaseId, Sequence};
use super::shrink::{Smallest, smallest};
use super::subject::{Attempt, Fault, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use wgfc_runtime::{AdapterChoice, Gpu, RunError};

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The adapter to test.
    pub adapter: AdapterChoice,
    /// No case starts after this many seconds. A case that is running then has the usual time limit of 30 s, or of 180 s on
    /// a software adapter, and fails if it exceeds it. If there are failures, cases end a tenth earlier, and failures are
    /// repeated and reduced until a tenth after the given time, but for at least five seconds.
    pub seconds: f64,
    /// The seed that determines the cases.
    pub seed: u64,
    /// Run only cases whose name contains this text.
    pub only: Option<String>,
    /// The number of cases that run at the same time.
    pub threads: usize,
    /// A change of the evaluator's results that makes a difference, for tests.
    #[doc(hidden)]
    pub fault: Option<Fault>,
    /// A time limit of a case that replaces the usual one, for tests.
    #[doc(hidden)]
    pub limit: Option<Duration>,
}

impl Default for Plan {
    /// One minute on the best adapter.
    fn default() -> Plan {
        Plan {
            adapter: AdapterChoice::from_env(),
            seconds: 60.0,
            seed: 1,
            only: None,
            threads: std::thread::available_parallelism().map_or(2, usize::from).min(16),
            fault: None,
            limit: None,
        }
    }
}

/// The reason why no case ran.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRun {
    /// The adapter cannot be opened.
    #[error(transparent)]
    Adapter(#[from] RunError),
    /// No case has a name that contains [`Plan::only`].
    #[error("no operator's name contains `{0}`")]
    NoName(String),
    /// The text names no case.
    #[error("`{0}` is no case")]
    NoCase(String),
}

/// The progress of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Seconds since the run started.
    pub seconds: f64,
    /// The number of cases done.
    pub cases: u64,
    /// The number of cases that failed.
    pub failed: u64,
    /// Whether all cases are done and failures are being reduced.
    pub shrinking: bool,
    /// Kinds of failures found since the last call.
    pub found: Vec<First>,
    /// The cases that are running.
    pub running: Vec<String>,
}

/// The first failure of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct First {
    /// The case, as `--case` takes it.
    pub case: String,
    /// `wrong`, `error`, `panic`, `device lost` or `hang`.
    pub status: &'static str,
    /// The first line of the difference or error.
    pub message: String,
}

/// The outcome of a case.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub outcome: Outcome,
    /// Whether the case could be compiled only with numbers in place of symbolic extents.
    pub unnamed: bool,
}

/// The most kinds of failures that are repeated and reduced.
const KINDS: usize = 40;

/// Runs one case with its own setting.
fn attempt(device: &Device, id: &CaseId, fault: Option<Fault>) -> Result<Done, Failure> {
    let id = id.clone();
    device.run(move |gpu, phase| {
        let setting = id.setting();
        let options = setting.options(gpu.profile());
        id.try_on(gpu, &Attempt { options: &options, cut: setting.cut, fault, phase })
    })
}

impl CaseId {
    /// Runs the case. If it cannot be compiled with symbolic extents, it runs with numbers.
    ///
    /// # Errors
    /// The difference or failure, or a case that does not exist.
    pub fn try_on(&self, gpu: &Gpu, a: &Attempt<'_>) -> Result<Done, Failure> {
        let (subject, plain) =
            self.subjects().ok_or_else(|| Failure::error(format!("there is no case {self}")))?;
        match (subject.try_on(gpu, a), plain) {
            (Ok(Outcome::Refused(_)) | Err(Failure::Error(..)), Some(plain)) => {
                Ok(Done { outcome: plain.try_on(gpu, a)?, unnamed: true })
            }
            (result, _) => Ok(Done { outcome: result?, unnamed: false }),
        }
    }
}

/// Failures with equal values are counted together: the case's name, the status, and the text of an error without its
/// numbers.
type Kind = (String, &'static str, String);

fn kind(id: &CaseId, f: &Failure) -> Kind {
    let text = match f {
        Failure::Error(..) | Failure::Panic(_) => without_numbers(f.first_line()),
        _ => String::new(),
    };
    (id.name.clone(), f.status(), text)
}

/// The text with each number replaced by `#`, up to 200 characters.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(200) {
        match c.is_ascii_digit() {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(c),
        }
    }
    out
}

#[derive(Default)]
struct Found {
    known: BTreeSet<Kind>,
    news: Vec<First>,
    running: BTreeSet<CaseId>,
    families: BTreeMap<&'static str, Family>,
    failures: Vec<(u64, CaseId, Failure)>,
}

/// Runs cases until the time is up. `progress` is called about ten times a second.
///
/// # Errors
/// There is no adapter, or no case has a name that contains [`Plan::only`].
pub fn run(plan: &Plan, progress: &mut dyn FnMut(Progress)) -> Result<Report, NotRun> {
    let sequence = Sequence::new(plan.seed, plan.only.as_deref());
    if sequence.is_empty() {
        return Err(NotRun::NoName(plan.only.clone().unwrap_or_default()));
    }
    let device = Device::open(plan.adapter.clone(), plan.limit)?;
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(plan.seconds.clamp(0.0, 1e6));
    let share = Duration::from_secs_f64(plan.seconds.clamp(0.0, 1e6) / 10.0);
    let [next, cases, failed] = [const { AtomicU64::new(0) }; 3];
    let at = |shrinking: bool| Progress {
        seconds: start.elapsed().as_secs_f64(),
        cases: cases.load(Ordering::Relaxed),
        failed: failed.load(Ordering::Relaxed),
        shrinking,
        found: vec![],
        running: vec![],
    };
    let running = AtomicUsize::new(plan.threads.max(1));
    let found = Mutex::<Found>::default();
    let lock = || found.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        loop {
            let any = failed.load(Ordering::Relaxed) > 0;
            if Instant::now() >= if any { end - share } else { end } || device.is_gone() {
                break;
            }
            let i = next.fetch_add(1, Ordering::Relaxed);
            let id = sequence.case(i);
            lock().running.insert(id.clone());
            let result = attempt(&device, &id, plan.fault);
            let mut found = lock();
            found.running.remove(&id);
            cases.fetch_add(1, Ordering::Relaxed);
            failed.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
            let family = found.families.entry(id.family()).or_insert_with(|| Family::new(id.family()));
            family.count(&result);
            if let Err(f) = result {
                if found.known.insert(kind(&id, &f)) {
                    found.news.push(First {
                        case: id.to_string(),
                        status: f.status(),
                        message: f.first_line().to_owned(),
                    });
                }
                found.failures.push((i, id, f));
            }
        }
        running.fetch_sub(1, Ordering::Release);
    };
    std::thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            scope.spawn(work);
        }
        while running.load(Ordering::Acquire) > 0 {
            let (news, under_way) = {
                let mut found = lock();
                (std::mem::take(&mut found.news), found.running.iter().map(CaseId::to_string).collect())
            };
            progress(Progress { found: news, running: under_way, ..at(false) });
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    // If waiting for a hanging case has used up the time, five seconds remain for reduction.
    let last = (end + share).max(Instant::now() + Duration::from_secs(5));
    device.ends_at(last);
    let seconds = start.elapsed().as_secs_f64();
    let mut found = std::mem::take(&mut *lock());
    progress(Progress { found: std::mem::take(&mut found.news), ..at(true) });
    found.failures.sort_by_key(|(i, ..)| *i);
    let mut report = Report::new(device.summary(), plan.seed, seconds, cases.load(Ordering::Relaxed));
    let mut kinds: Vec<(Kind, Vec<(CaseId, Failure)>)> = vec![];
    for (_, id, f) in found.failures {
        let k = kind(&id, &f);
        match kinds.iter_mut().find(|(known, _)| *known == k) {
            Some((_, cases)) => cases.push((id, f)),
            None => kinds.push((k, vec![(id, f)])),
        }
    }
    let looked = Mutex::new(BTreeMap::new());
    let (taken, threads) = (AtomicUsize::new(0), plan.threads.clamp(1, kinds.len().max(1)));
    let running = AtomicUsize::new(threads);
    let look = || {
        loop {
            let n = taken.fetch_add(1, Ordering::Relaxed);
            let Some((_, cases)) = kinds.get(n) else { break };
            // The remaining time is divided among the remaining kinds.
            let rounds = (kinds.len().min(KINDS).saturating_sub(n)).div_ceil(threads).max(1) as u32;
            let until = Instant::now() + last.saturating_duration_since(Instant::now()) / rounds;
            let l = looked_into(&device, cases.clone(), n < KINDS, plan.fault, until);
            looked.lock().unwrap_or_else(PoisonError::into_inner).insert(n, l);
        }
        running.fetch_sub(1, Ordering::Release);
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(look);
        }
        while running.load(Ordering::Acquire) > 0 {
            progress(at(true));
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    for (n, (finding, fine)) in looked.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let family = kinds.get(n).and_then(|(_, c)| c.first()).map(|(id, _)| id.family());
        if let Some(f) = family.and_then(|f| found.families.get_mut(f)) {
            f.failed -= fine as u64;
        }
        report.lost_with_others += fine;
        if let Some(finding) = finding {
            report.add(finding);
        }
    }
    report.stopped = device.is_gone();
    report.families = found.families.into_values().collect();
    Ok(report)
}

/// Examines failures of one kind until `until`. Returns the finding, and the number of failures that were caused by another
/// case that lost the device.
fn looked_into(
    device: &Device,
    mut cases: Vec<(CaseId, Failure)>,
    closely: bool,
    fault: Option<Fault>,
    until: Instant,
) -> (Option<Finding>, usize) {
    let over = || device.is_over() || Instant::now() >= until;
    let before = cases.len();
    // A lost device fails all cases that run on it, so each of them is repeated.
    if cases.first().is_some_and(|(_, f)| matches!(f, Failure::Lost(_) | Failure::Hang(_))) {
        cases.retain(|(id, _)| device.is_gone() || over() || attempt(device, id, fault).is_err());
    }
    let fine = before - cases.len();
    let Some((id, failure)) = cases.first() else { return (None, fine) };
    let mut finding = Finding::new(id, failure, cases.len());
    finding.cases_named = cases.iter().take(5).map(|(id, _)| id.to_string()).collect();
    if device.is_gone() {
        finding.cut_short = Some("the device could not be opened again".into());
    } else if !closely {
        finding.cut_short = Some(format!("only the first {KINDS} kinds of failures are"));
    } else {
        finding.smallest = smallest(device, id, failure, fault, Some(until));
        finding.cut_short = over().then(|| "time was up".into());
        finding.repeats = finding.smallest.is_some() || finding.cut_short.is_some();
    }
    (Some(finding), fine)
}

/// Runs one case, and reduces it if it fails.
///
/// # Errors
/// There is no adapter, or no such case.
pub fn run_case(plan: &Plan, case: &str) -> Result<Report, NotRun> {
    let id = CaseId::parse(case).ok_or_else(|| NotRun::NoCase(case.to_owned()))?;
    let device = Device::open(plan.adapter.clone(), plan.limit)?;
    let start = Instant::now();
    let result = attempt(&device, &id, plan.fault);
    let mut report = Report::new(device.summary(), plan.seed, start.elapsed().as_secs_f64(), 1);
    let mut family = Family::new(id.family());
    family.count(&result);
    report.families.push(family);
    if let Err(f) = result {
        let mut finding = Finding::new(&id, &f, 1);
        finding.cases_named.push(id.to_string());
        finding.smallest = smallest(&device, &id, &f, plan.fault, None);
        finding.repeats = finding.smallest.is_some();
        report.add(finding);
    }
    Ok(report)
}

/// The text of a case: its setting, inputs, constants and nodes. `None` if there is no such case.
pub fn describe_case(case: &str) -> Option<String> {
    let id = CaseId::parse(case)?;
    let (subject, _) = id.subjects()?;
    Some(Smallest::text_of(&subject, &id.setting()))
}
