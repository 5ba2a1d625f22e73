//! What goes to stdout and what to stderr.
//!
//! Results go to stdout, as text or as one JSON object. Progress, notes and errors go to stderr; with
//! `--json` errors go to stdout as JSON, so that whoever parses it learns of them.

use super::args::Global;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode};
use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use wgfc::{Error, ErrorClass, Finding};

/// Where a command prints.
pub struct Terminal {
    /// Results are one JSON object.
    pub json: bool,
    quiet: bool,
    fancy: bool,
}

impl Terminal {
    /// As the options say.
    pub fn new(global: &Global) -> Terminal {
        let fancy = std::io::stderr().is_terminal();
        Terminal { json: global.json, quiet: global.quiet, fancy }
    }

    /// A result.
    pub fn print(&self, text: &str) {
        // A reader that went away (`wgfc … | head`) is no error.
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes());
        if !text.ends_with('\n') {
            let _ = out.write_all(b"\n");
        }
        let _ = out.flush();
    }

    /// A piece of a result, as it arrives. Says whether there is still a reader.
    pub fn piece(&self, text: &str) -> bool {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
    }

    /// What was asked for besides the result, which may be piped elsewhere.
    pub fn beside(&self, text: &str) {
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    /// A result as JSON.
    pub fn print_json(&self, value: &serde_json::Value) {
        self.print(&format!("{value:#}"));
    }

    /// A line that says what was done; not with `--quiet`.
    pub fn result(&self, text: &str) {
        if !self.quiet {
            self.print(text);
        }
    }

    /// Something the user should know; not with `--quiet`.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.note_always(text);
        }
    }

    /// Something the user must know about the results, also with `--quiet`.
    pub fn note_always(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "note: {text}");
    }

    /// The compiler's warnings.
    pub fn warnings(&self, warnings: &[String]) {
        if !self.quiet {
            for w in warnings {
                let _ = writeln!(std::io::stderr(), "warning: {w}");
            }
        }
    }

    /// An error, every finding of it.
    pub fn error(&self, error: &Error) {
        if self.json {
            return self.print_json(&serde_json::json!({ "errors": findings_json(error) }));
        }
        let text: String =
            error
                .findings()
                .iter()
                .map(|f| {
                    if self.fancy {
                        fancy(f, std::env::var_os("NO_COLOR").is_none())
                    } else {
                        format!("{f}\n")
                    }
                })
                .collect();
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn shows_progress(&self) -> bool {
        !self.quiet && std::io::stderr().is_terminal()
    }

    /// Says that something of unknown length goes on, until it is dropped.
    pub fn spinner(&self, what: String) -> Progress {
        let bar = ProgressBar::with_draw_target(None, self.target());
        bar.set_style(ProgressStyle::default_spinner());
        bar.set_message(what);
        if self.shows_progress() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Progress(bar)
    }

    /// A bar; positions in bytes or in steps.
    pub fn bar(&self, what: String, length: u64, bytes: bool) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(length), self.target());
        let template = if bytes {
            "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes} {eta}"
        } else {
            "{msg} [{bar:30}] {pos}/{len} {eta}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what);
        Progress(bar)
    }

    fn target(&self) -> ProgressDrawTarget {
        if self.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
    }
}

/// Something on its way; it leaves the screen when dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// How far it is.
    pub fn at(&self, position: u64) {
        self.0.set_position(position);
    }
    /// How far it is, of a length that may have been unknown before.
    pub fn at_of(&self, position: u64, length: u64) {
        self.0.set_length(length);
        self.0.set_position(position);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// What `--json` prints for an error.
pub fn findings_json(error: &Error) -> serde_json::Value {
    let one = |f: &Finding| {
        let l = &f.diagnostic.location;
        serde_json::json!({
            "kind": f.class.name(),
            "message": f.diagnostic.message,
            "file": f.path.as_ref().map(|p| p.display().to_string()),
            "node": l.node.as_deref(),
            "operator": l.operator.as_deref(),
            "opset": l.opset,
            "part": l.part,
            "help": f.diagnostic.help,
        })
    };
    error.findings().iter().map(one).collect()
}

/// One finding for a terminal.
pub fn fancy(finding: &Finding, colour: bool) -> String {
    let theme = if colour { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let report = Report::new(finding);
    let mut text = String::new();
    match GraphicalReportHandler::new_themed(theme).with_width(100).render_report(&mut text, &report) {
        // The source is one line of ours: its position in the file would be an invention.
        Ok(()) => match (&report.source, report.label) {
            (Some(s), Some((column, _))) => {
                text.replacen(&format!("[{}:1:{}]", s.name(), column + 1), &format!("[{}]", s.name()), 1)
            }
            _ => text,
        },
        Err(_) => format!("{finding}\n"),
    }
}

/// A finding as miette sees it: its source is the node, written on one line.
#[derive(Debug)]
struct Report<'f> {
    finding: &'f Finding,
    source: Option<NamedSource<String>>,
    label: Option<(usize, usize)>,
}

impl Report<'_> {
    fn new(finding: &Finding) -> Report<'_> {
        let l = &finding.diagnostic.location;
        let file = finding.path.as_ref().map(|p| p.display().to_string());
        let mut line = String::new();
        if let Some(n) = &l.node {
            line += &format!("node \"{n}\"");
            match (&l.operator, l.opset) {
                (Some(o), Some(v)) => line += &format!(" ({o}, opset {v})"),
                (Some(o), None) => line += &format!(" ({o})"),
                _ => {}
            }
        }
        let mut label = (0, line.len());
        if let Some(p) = &l.part {
            if !line.is_empty() {
                line += ", ";
            }
            label = (line.len(), p.len());
            line += p;
        }
        if line.is_empty() {
            return Report { finding, source: None, label: None };
        }
        let source = NamedSource::new(file.unwrap_or_else(|| "model".into()), line);
        Report { finding, source: Some(source), label: Some(label) }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.source, &self.finding.path) {
            (None, Some(p)) => write!(f, "{}: {}", p.display(), self.finding.diagnostic.message),
            _ => f.write_str(&self.finding.diagnostic.message),
        }
    }
}

impl std::error::Error for Report<'_> {}

impl miette::Diagnostic for Report<'_> {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        match self.finding.class {
            ErrorClass::Model => None,
            c => Some(Box::new(c.name())),
        }
    }
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.finding.diagnostic.help.as_ref().map(|h| Box::new(h) as Box<dyn fmt::Display>)
    }
    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_ref().map(|s| s as &dyn SourceCode)
    }
    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let (offset, len) = self.label?;
        Some(Box::new(std::iter::once(LabeledSpan::new(Some("here".into()), offset, len))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc::Problem;
    use wgfc::compiler::{Diagnostic, Errors, Location};

    /// One error of each kind, with all that it can say.
    fn errors() -> Vec<(&'static str, Error)> {
        let at = Location {
            node: Some("encoder/0/attn/MatMul".into()),
            operator: Some("MatMul".into()),
            opset: Some(13),
            part: Some("input B".into()),
        };
        let in_model =
            |d: Diagnostic| Error::Compile { path: Some("bert.onnx".into()), errors: Errors(vec![d]) };
        vec![
            (
                "model",
                in_model(
                    Diagnostic::model("MatMul inner dimensions differ: 512 and 768")
                        .at(at.clone())
                        .help("the weight may be transposed"),
                ),
            ),
            (
                "unsupported",
                in_model(Diagnostic::unsupported("operator com.acme.Whirl is not supported").at(Location {
                    node: Some("#12 (Whirl)".into()),
                    operator: Some("com.acme.Whirl".into()),
                    ..Location::default()
                })),
            ),
            (
                "internal",
                in_model(Diagnostic::internal("after fuse: kernel 3 reads what nobody writes").at(at)),
            ),
            (
                "file",
                Error::File {
                    path: "out/plan.json".into(),
                    problems: vec![
                        "buffer 3: the weight \"w\" is missing".into(),
                        "symbol listed twice".into(),
                    ],
                    help: Some("compile the model again".into()),
                },
            ),
            (
                "usage",
                Error::Usage(vec![
                    Problem::with_help(
                        "input `ids` is i64[batch, seq] and was not given",
                        "--input ids=FILE.npy",
                    ),
                    Problem::new("the model has no input `idx`"),
                ]),
            ),
            (
                "device",
                Error::Device(Problem::with_help(
                    "weight \"embed\" needs 544669696, and this device has 134217728",
                    "choose another adapter",
                )),
            ),
        ]
    }

    #[test]
    fn each_kind_of_error_reads_well() {
        let mut all = String::new();
        for (kind, e) in errors() {
            all +=
                &format!("== {kind}, exit code {}\n-- plain\n{e}\n-- on a terminal\n", e.class().exit_code());
            all.extend(e.findings().iter().map(|f| fancy(f, false)));
            all += &format!("-- json\n{}\n\n", findings_json(&e));
        }
        insta::assert_snapshot!(all);
    }
}
