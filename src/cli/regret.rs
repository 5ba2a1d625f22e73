//! `wgfc bench regret`: judges the compiler's choices by recorded times.

use super::args::BenchRegretArgs;
use super::profile::ns_text;
use super::terminal::Terminal;
use super::timings;
use std::collections::BTreeMap;
use wgfc::Error;
use wgfc::compiler::timings::Timings;
use wgfc::compiler::timings::regret::{Judged, Summary, Varied, judge_all, vary};
use wgfc::inspect::table;

/// The choices for the problems of a file.
struct Report<'t> {
    file: String,
    timings: &'t Timings,
    judged: Vec<Judged<'t>>,
    varied: Vec<Varied>,
}

/// The summaries of the forms of a family's choices.
type Forms = Vec<(&'static str, Summary)>;

/// Judges the choices for the problems of all files that can be read.
pub fn main(a: &BenchRegretArgs, t: &Terminal) -> Result<(), Error> {
    let (mut read, mut ignored) = (vec![], vec![]);
    for file in &a.files {
        match timings::read(file)? {
            Ok(timings) => read.push((file.display().to_string(), timings)),
            Err(why) => ignored.push((file, why)),
        }
    }
    for (file, why) in &ignored {
        t.note(&format!("{} {why}; it is ignored", file.display()));
    }
    if let (true, Some((file, why))) = (read.is_empty(), ignored.first()) {
        return Err(Error::file_help(file, why, "record the times again with `wgfc tune --record`"));
    }
    let mut reports = vec![];
    for (file, timings) in &read {
        let _progress = t.spinner(format!("choosing for {}", timings.device));
        let judged = judge_all(&timings.problems, &timings.profile)?;
        let varied = match a.vary {
            Some(share) => vary(&timings.problems, &timings.profile, share)?,
            None => vec![],
        };
        reports.push(Report { file: file.clone(), timings, judged, varied });
    }
    if t.json {
        let ignored = ignored.iter().map(|(f, why)| serde_json::json!({ "file": f, "why": why }));
        t.print_json(&serde_json::json!({
            "devices": reports.iter().map(Report::json).collect::<Vec<_>>(),
            "ignored": ignored.collect::<Vec<_>>(),
        }));
    } else {
        let texts: Vec<String> = reports.iter().map(|r| r.text(a.worst as usize)).collect();
        t.print(&texts.join("\n"));
    }
    Ok(())
}

impl Report<'_> {
    /// The summaries of each family, and of each form of its choices if there are several.
    fn families(&self) -> Vec<(&'static str, Summary, Forms)> {
        let mut families: BTreeMap<&str, BTreeMap<&str, Vec<&Judged>>> = BTreeMap::new();
        for j in &self.judged {
            families.entry(j.family()).or_default().entry(j.form()).or_default().push(j);
        }
        let forms = |forms: &BTreeMap<&'static str, Vec<&Judged>>| match forms.len() {
            1 => vec![],
            _ => forms.iter().map(|(form, all)| (*form, Summary::of(all.iter().copied()))).collect(),
        };
        families
            .iter()
            .map(|(family, all)| (*family, Summary::of(all.values().flatten().copied()), forms(all)))
            .collect()
    }

    /// The choices that were timed, those with the largest regrets first.
    fn worst(&self) -> Vec<&Judged<'_>> {
        let mut all: Vec<&Judged> = self.judged.iter().filter(|j| j.time.is_some()).collect();
        all.sort_by(|a, b| b.regret().unwrap_or(1.0).total_cmp(&a.regret().unwrap_or(1.0)));
        all
    }

    fn text(&self, most: usize) -> String {
        let Timings { device, driver, .. } = self.timings;
        let mut s = format!("{device}, {driver} ({}): {} problems\n\n", self.file, self.judged.len());
        let heading = ["choices", "problems", "not timed", "mean regret", "worst", "correlation"];
        let mut rows = vec![heading.map(String::from).to_vec()];
        let row = |name: String, s: &Summary| {
            let rank = s.rank.map_or("-".into(), |r| format!("{r:.2}"));
            let [mean, worst] = [s.mean, s.worst].map(|r| format!("{r:.3}"));
            vec![name, s.problems.to_string(), s.not_timed.to_string(), mean, worst, rank]
        };
        for (family, all, forms) in self.families() {
            rows.push(row(family.to_owned(), &all));
            rows.extend(forms.iter().map(|(form, all)| row(format!("  {form}"), all)));
        }
        rows.push(row("all".to_owned(), &Summary::of(&self.judged)));
        s += &table(&rows, &[false, true, true, true, true, true]);

        let mut rows =
            vec![["regret", "problem", "chosen", "time", "fastest", "time"].map(String::from).to_vec()];
        for j in self.worst().into_iter().take(most).filter(|j| j.regret() > Some(1.0)) {
            let (Some(regret), Some(time)) = (j.regret(), &j.time) else { continue };
            rows.push(vec![
                format!("{regret:.2}"),
                j.problem.name.clone(),
                j.chosen.to_string(),
                ns_text(time.ns),
                j.best.schedule.to_string(),
                ns_text(j.best.ns),
            ]);
        }
        if rows.len() > 1 {
            s += &format!("\n{}", table(&rows, &[true, false, false, true, false, true]));
        }
        let not_timed: Vec<&Judged> = self.judged.iter().filter(|j| j.time.is_none()).collect();
        if !not_timed.is_empty() {
            s += &format!("\n  {} choices were not timed:\n", not_timed.len());
            for j in not_timed.iter().take(most) {
                s += &format!("    {}: {}\n", j.problem.name, j.chosen);
            }
            if not_timed.len() > most {
                s += &format!("    and {} more\n", not_timed.len() - most);
            }
        }
        if !self.varied.is_empty() {
            let heading =
                ["speed", "times", "worst regret", "other choices", "of these not timed", "worst", "problem"];
            let mut rows = vec![heading.map(String::from).to_vec()];
            for v in &self.varied {
                rows.push(vec![
                    v.speed.to_owned(),
                    format!("{:.2}", v.factor),
                    format!("{:.3}", v.worst),
                    v.changed.to_string(),
                    v.not_timed.to_string(),
                    format!("{:.3}", v.worst_changed),
                    v.problem.clone(),
                ]);
            }
            s += &format!("\n{}", table(&rows, &[false, true, true, true, true, true, false]));
        }
        s
    }

    fn json(&self) -> serde_json::Value {
        let summary = |name: &str, s: &Summary| {
            serde_json::json!({
                "name": name, "problems": s.problems, "not_timed": s.not_timed, "mean_regret": s.mean,
                "worst_regret": s.worst, "rank_correlation": s.rank,
            })
        };
        let families: Vec<serde_json::Value> = (self.families().iter())
            .map(|(family, all, forms)| {
                let mut v = summary(family, all);
                v["forms"] = forms.iter().map(|(form, all)| summary(form, all)).collect();
                v
            })
            .collect();
        let problem = |j: &Judged| {
            serde_json::json!({
                "name": j.problem.name, "problem": j.title, "chosen": j.chosen, "ns": j.time.as_ref().map(|t| t.ns),
                "fastest": j.best.schedule, "least_ns": j.best.ns, "regret": j.regret(),
                "rank_correlation": j.rank,
            })
        };
        let varied = |v: &Varied| {
            serde_json::json!({
                "speed": v.speed, "factor": v.factor, "worst_regret": v.worst, "other_choices": v.changed,
                "others_not_timed": v.not_timed, "worst_regret_of_others": v.worst_changed, "problem": v.problem,
            })
        };
        serde_json::json!({
            "file": self.file,
            "device": self.timings.device,
            "driver": self.timings.driver,
            "families": families,
            "all": summary("all", &Summary::of(&self.judged)),
            "problems": self.judged.iter().map(problem).collect::<Vec<_>>(),
            "varied": self.varied.iter().map(varied).collect::<Vec<_>>(),
        })
    }
}
