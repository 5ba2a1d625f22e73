//! How much time the compiler's choices lose, by recorded times.
//!
//! The *regret* of a choice is its recorded time divided by the least recorded time of the same kernel: 1 where the compiler
//! chose the fastest schedule that was timed. Choices that were not timed have none and are counted, and so are those that were timed once
//! among others that were timed again: a single pass takes up to four times as long as others where something disturbs the device.

use super::{Problem, Timed};
use crate::device::DeviceProfile;
use crate::schedule::table::{Tuning, title};
use crate::schedule::{Context, Schedule, choose};
use crate::tuning::estimates;
use crate::{Diagnostic, Errors};

/// The least number of schedules whose order is compared with that of their estimates.
const RANKED: usize = 3;

/// The rounds of a time that says only that a schedule is no faster.
const ONCE: u32 = 1;

/// The compiler's choice for a recorded kernel.
#[derive(Clone, Debug)]
pub struct Judged<'t> {
    /// The kernel and its times.
    pub problem: &'t Problem,
    /// A description of the computation.
    pub title: String,
    /// The schedule that the compiler chooses.
    pub chosen: Schedule,
    /// Its time; `None` if it was not timed, or once only.
    pub time: Option<Timed>,
    /// The fastest schedule.
    pub best: Timed,
    /// The rank correlation of estimates and times, if the family has estimates.
    pub rank: Option<f64>,
}

impl Judged<'_> {
    /// The time of the choice divided by the least time; `None` if the choice was not timed.
    pub fn regret(&self) -> Option<f64> {
        Some(self.time.as_ref()?.ns / self.best.ns)
    }
    /// The family of the choice.
    pub fn family(&self) -> &'static str {
        self.chosen.family()
    }
    /// The words of the choice, such as `product tiled`.
    pub fn form(&self) -> &'static str {
        self.chosen.fields().0
    }
}

/// Chooses a schedule for a recorded kernel on a device with this profile.
///
/// # Errors
/// As [`choose`].
pub fn judge<'t>(problem: &'t Problem, profile: &DeviceProfile) -> Result<Judged<'t>, Diagnostic> {
    let (chosen, cx) = choice(problem, profile)?;
    let kernel = problem.kernel().ok_or_else(no_kernel)?;
    let estimate = estimates(kernel, cx, &problem.values);
    let pairs: Option<Vec<(f64, f64)>> =
        problem.times.iter().map(|t| Some((estimate(&t.schedule)?, t.ns))).collect();
    let rank = pairs.filter(|p| p.len() >= RANKED).and_then(|p| rank_correlation(&p));
    let time = time(problem, &chosen).cloned();
    let best = problem.times.first().cloned();
    let best = best.ok_or_else(|| Diagnostic::internal("a problem without times"))?;
    Ok(Judged { problem, title: title(kernel), chosen, time, best, rank })
}

fn choice<'a>(
    problem: &'a Problem,
    device: &'a DeviceProfile,
) -> Result<(Schedule, Context<'a>), Diagnostic> {
    let cx = Context { graph: &problem.graph, device, expect: &problem.expect };
    let kernel = problem.kernel().ok_or_else(no_kernel)?;
    Ok((choose(kernel, &cx, &Tuning::default())?, cx))
}

/// The time of a schedule; `None` if it was not timed, or once only.
fn time<'t>(problem: &'t Problem, of: &Schedule) -> Option<&'t Timed> {
    problem.times.iter().find(|t| t.schedule == *of && t.rounds != ONCE)
}

fn no_kernel() -> Diagnostic {
    Diagnostic::internal("a problem without a kernel")
}

/// Chooses schedules for all recorded kernels.
///
/// # Errors
/// As [`choose`], of all kernels.
pub fn judge_all<'t>(problems: &'t [Problem], profile: &DeviceProfile) -> Result<Vec<Judged<'t>>, Errors> {
    let (mut all, mut errors) = (vec![], vec![]);
    for p in problems {
        match judge(p, profile) {
            Ok(j) => all.push(j),
            Err(e) => errors.push(e),
        }
    }
    if errors.is_empty() { Ok(all) } else { Err(Errors(errors)) }
}

/// The regrets of several choices together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// The number of problems.
    pub problems: usize,
    /// The number of problems whose choice was not timed.
    pub not_timed: usize,
    /// The geometric mean of the regrets; 1 if there are none.
    pub mean: f64,
    /// The largest regret; 1 if there is none.
    pub worst: f64,
    /// The mean of the rank correlations, where there are estimates.
    pub rank: Option<f64>,
}

impl Summary {
    /// Summarizes choices.
    pub fn of<'a, 't: 'a>(all: impl IntoIterator<Item = &'a Judged<'t>>) -> Summary {
        let all: Vec<&Judged> = all.into_iter().collect();
        let regrets: Vec<f64> = all.iter().filter_map(|j| j.regret()).collect();
        let ranks: Vec<f64> = all.iter().filter_map(|j| j.rank).collect();
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
        let logs: Vec<f64> = regrets.iter().map(|r| r.ln()).collect();
        Summary {
            problems: all.len(),
            not_timed: all.len() - regrets.len(),
            mean: mean(&logs).exp(),
            worst: regrets.iter().copied().fold(1.0, f64::max),
            rank: (!ranks.is_empty()).then(|| mean(&ranks)),
        }
    }
}

/// The regrets with a speed of the profile changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Varied {
    /// The name of the speed.
    pub speed: &'static str,
    /// The factor by which it is multiplied.
    pub factor: f64,
    /// The largest regret of all choices; 1 if none was timed.
    pub worst: f64,
    /// The number of choices that are not those of the unchanged profile.
    pub changed: usize,
    /// The number of these that were not timed.
    pub not_timed: usize,
    /// The largest regret of these; 1 if none was timed.
    pub worst_changed: f64,
    /// The name of the problem with that regret.
    pub problem: String,
}

/// Changes one speed of the profile after the other by a share, up and down, and judges the choices.
///
/// # Errors
/// As [`choose`].
pub fn vary(problems: &[Problem], profile: &DeviceProfile, share: f64) -> Result<Vec<Varied>, Errors> {
    let own: Vec<Schedule> =
        problems.iter().map(|p| Ok(choice(p, profile)?.0)).collect::<Result<_, Diagnostic>>()?;
    let mut out = vec![];
    for speed in crate::device::file::SPEEDS {
        for factor in [1.0 - share, 1.0 + share] {
            let speeds = profile.speeds.scaled(speed, factor).map_err(Diagnostic::internal)?;
            let other = DeviceProfile { speeds, ..profile.clone() };
            let mut v = Varied {
                speed,
                factor,
                worst: 1.0,
                changed: 0,
                not_timed: 0,
                worst_changed: 1.0,
                problem: String::new(),
            };
            for (p, own) in problems.iter().zip(&own) {
                let (chosen, _) = choice(p, &other)?;
                let regret = time(p, &chosen).zip(p.times.first()).map(|(t, best)| t.ns / best.ns);
                v.worst = v.worst.max(regret.unwrap_or(1.0));
                if chosen == *own {
                    continue;
                }
                v.changed += 1;
                match regret {
                    Some(r) if r > v.worst_changed => {
                        v.worst_changed = r;
                        v.problem.clone_from(&p.name);
                    }
                    Some(_) => {}
                    None => v.not_timed += 1,
                }
            }
            out.push(v);
        }
    }
    Ok(out)
}

/// Spearman's rank correlation; `None` if all values on one side are equal.
fn rank_correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let ranks = |of: &dyn Fn(&(f64, f64)) -> f64| -> Vec<f64> {
        // Equal values share the mean of their ranks.
        let rank = |v: f64| {
            let less = pairs.iter().filter(|p| of(p) < v).count() as f64;
            let equal = pairs.iter().filter(|p| of(p) == v).count() as f64;
            less + (equal - 1.0) / 2.0
        };
        pairs.iter().map(|p| rank(of(p))).collect()
    };
    let (a, b) = (ranks(&|p| p.0), ranks(&|p| p.1));
    let mean = (pairs.len() as f64 - 1.0) / 2.0;
    let product = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    let size = (product(&a, &a) * product(&b, &b)).sqrt();
    (size > 0.0).then(|| product(&a, &b) / size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;
    use crate::schedule::candidates;
    use crate::schedule::cost::Expected;
    use crate::tuning::Values;

    /// A row kernel whose candidates take 10, 11, 12, … ns in their order, except that `first` takes other times.
    fn problem(first: f64) -> Problem {
        let graph = kernel::parse(
            "t0: f32[99, 700] input 0\nt1: f32[99] output 0\n\nkernel 0 row [99, 700]\n  e0: f32 = t0[700*%0 + %1]\n  \
             e1: f32 = acc0\n  acc0 = sum(e0): f32\n  row t1[%0] = e1\n",
        )
        .unwrap();
        let expect = Expected::default();
        let device = DeviceProfile::default();
        let cx = Context { graph: &graph, device: &device, expect: &expect };
        let own = choose(&graph.kernels[0], &cx, &Tuning::default()).unwrap();
        let mut all = candidates(&graph.kernels[0], &cx).unwrap();
        all.retain(|s| *s != own);
        all.insert(0, own);
        let ns = |i: usize| if i == 0 { first } else { 10.0 + i as f64 };
        let timed =
            |(i, s): (usize, &Schedule)| Timed { schedule: s.clone(), ns: ns(i), rounds: 3, spread: 0.0 };
        let mut times: Vec<Timed> = all.iter().enumerate().map(timed).collect();
        times.sort_by(|a, b| a.ns.total_cmp(&b.ns));
        Problem { name: format!("{first}"), graph, values: Values::new(), expect, times }
    }

    #[test]
    fn regrets_are_those_of_the_choice() {
        let mut untimed = problem(10.0);
        untimed.times.remove(0);
        let mut once = problem(44.0);
        once.times.iter_mut().for_each(|t| t.rounds = if t.ns == 44.0 { ONCE } else { t.rounds });
        let problems = [problem(10.0), problem(22.0), untimed, once];
        let all = judge_all(&problems, &DeviceProfile::default()).unwrap();
        let regrets: Vec<Option<f64>> = all.iter().map(Judged::regret).collect();
        assert_eq!(regrets, [Some(1.0), Some(2.0), None, None]);
        let s = Summary::of(&all);
        assert_eq!((s.problems, s.not_timed, s.worst), (4, 2, 2.0));
        assert!(s.rank.is_some_and(|r| r > 0.5), "{:?}", s.rank);
        assert!((s.mean - 2f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn every_speed_is_varied() {
        let all = vary(&[problem(22.0)], &DeviceProfile::default(), 0.2).unwrap();
        assert_eq!(all.len(), 2 * crate::device::file::SPEEDS.len());
        assert!(all.iter().all(|v| v.worst >= v.worst_changed && (v.changed > 0 || v.worst == 2.0)));
    }

    #[test]
    fn ranks_are_compared() {
        let of = |b: [f64; 4]| rank_correlation(&[1.0, 2.0, 3.0, 4.0].map(|a| (a, b[a as usize - 1])));
        assert_eq!(of([1.0, 5.0, 6.0, 70.0]), Some(1.0));
        assert_eq!(of([9.0, 5.0, 4.0, 1.0]), Some(-1.0));
        assert_eq!(of([1.0, 1.0, 1.0, 1.0]), None);
        assert!((of([2.0, 1.0, 3.0, 4.0]).unwrap() - 0.8).abs() < 1e-12);
    }
}
