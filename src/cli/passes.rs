//! The passes of a compilation, as `wgfc inspect --passes` and `wgfc bisect` list them.

use serde_json::{Value, json};
use std::time::Duration;
use wgfc::Options;
use wgfc::compiler::passes::{After, PASSES, Pass, Scope};
use wgfc::inspect::table;

/// The remark about a pass after which the graph is as it was before.
pub const UNCHANGED: &str = "unchanged";

/// A pass that ran, on the model or on bodies inside of it.
pub struct Line {
    /// The pass.
    pub pass: &'static Pass,
    /// The bodies that it ran on; 0 for the model.
    pub bodies: usize,
    /// The number of nodes before, or of kernels.
    pub before: usize,
    /// The number after it.
    pub after: usize,
    /// The time that it took.
    pub time: Duration,
    /// The largest difference of the results, and other remarks, in words.
    pub says: String,
}

/// The passes that ran. Consecutive passes on bodies are one line for each pass.
#[derive(Default)]
pub struct Ran {
    /// In the order in which they ran.
    pub lines: Vec<Line>,
}

impl Ran {
    /// Adds a pass that has run.
    pub fn add(&mut self, a: &After<'_>) {
        self.say(a, String::new());
    }

    /// Adds a pass that has run, with a remark.
    pub fn say(&mut self, a: &After<'_>, says: String) {
        let inside = !a.body.is_empty();
        let of_bodies = self.lines.iter().rposition(|l| l.bodies == 0).map_or(0, |i| i + 1);
        let found = self.lines[of_bodies..].iter_mut().find(|l| inside && std::ptr::eq(l.pass, a.pass));
        match found {
            Some(l) => {
                l.bodies += 1;
                l.before += a.before;
                l.after += a.after;
                l.time += a.time;
                if l.says.is_empty() || !says.is_empty() {
                    l.says = says;
                }
            }
            None => self.lines.push(Line {
                pass: a.pass,
                bodies: usize::from(inside),
                before: a.before,
                after: a.after,
                time: a.time,
                says,
            }),
        }
    }

    /// The passes that did not run, each with the reason.
    fn left_out(options: &Options) -> Vec<(&'static str, String)> {
        let scopes = [Scope::Model, Scope::Body];
        let all = PASSES.iter().filter(|p| scopes.iter().any(|s| p.on.contains(s)));
        let mut out: Vec<(&str, String)> = vec![];
        for p in all.filter(|p| !scopes.iter().any(|s| p.runs(options, *s))) {
            let why = match p.technique {
                _ if options.without_passes.contains(p.name) => "--without-pass".to_owned(),
                _ if options.fusion < p.fusion => "--fusion".to_owned(),
                _ => "--without".to_owned(),
            };
            if !out.iter().any(|o| o.0 == p.name) {
                out.push((p.name, why));
            }
        }
        out
    }

    /// A table with a sentence for each pass.
    pub fn text(&self, options: &Options) -> String {
        self.table(options, |_| true, ("what it does", |l| l.pass.about.to_owned()))
    }

    /// A table of the passes that changed something, with the largest difference of results after each.
    pub fn differences(&self, options: &Options) -> String {
        let mut text = self.table(options, |l| l.says != UNCHANGED, ("difference", |l| l.says.clone()));
        let unchanged = self.lines.iter().filter(|l| l.says == UNCHANGED).count();
        if unchanged > 0 {
            text += &format!("\n  {unchanged} other passes changed nothing\n");
        }
        text
    }

    fn table(
        &self,
        options: &Options,
        shown: impl Fn(&Line) -> bool,
        (title, last): (&str, impl Fn(&Line) -> String),
    ) -> String {
        let mut rows = vec![["pass", "before", "after", "ms", title].map(String::from).to_vec()];
        let mut section = None;
        for l in self.lines.iter().filter(|l| shown(l)) {
            if section.replace(l.pass.section) != Some(l.pass.section) {
                let mut row = vec![format!("{}:", l.pass.section.name())];
                row.resize(5, String::new());
                rows.push(row);
            }
            let inside = match l.bodies {
                0 => String::new(),
                1 => " (in a body)".to_owned(),
                n => format!(" (in {n} bodies)"),
            };
            rows.push(vec![
                format!("  {}{inside}", l.pass.name),
                l.before.to_string(),
                l.after.to_string(),
                format!("{:.1}", l.time.as_secs_f64() * 1e3),
                last(l),
            ]);
        }
        let mut text = table(&rows, &[false, true, true, true, false]);
        let left: Vec<String> =
            Ran::left_out(options).iter().map(|(n, why)| format!("{n} ({why})")).collect();
        if !left.is_empty() {
            text += &format!("\n  left out: {}\n", left.join(", "));
        }
        text
    }

    /// The passes as JSON.
    pub fn json(&self, options: &Options) -> Value {
        let one = |l: &Line| {
            json!({
                "name": l.pass.name,
                "section": l.pass.section.name(),
                "about": l.pass.about,
                "bodies": l.bodies,
                "before": l.before,
                "after": l.after,
                "ms": l.time.as_secs_f64() * 1e3,
                "can_be_left_out": l.pass.needed.is_none(),
            })
        };
        let left: Vec<Value> =
            Ran::left_out(options).iter().map(|(n, why)| json!({ "name": n, "because": why })).collect();
        json!({ "passes": self.lines.iter().map(one).collect::<Vec<_>>(), "left_out": left })
    }
}
