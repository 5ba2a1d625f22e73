//! Output to stdout and stderr.
//!
//! Results go to stdout, as text or as one JSON object. Progress, notes and errors go to stderr; with `--json`, errors go to
//! stdout as JSON, where the program that parses it finds them. Names come from models and paths and are not trusted:
//! control characters in them are escaped ([`clean`]).

use super::args::Global;
use super::report::fancy;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wgfc::inspect::{clean, is_control};
use wgfc::{Error, ErrorClass, Finding};

/// The most findings of an error that are printed as text.
const FINDINGS: usize = 200;

/// A note after an internal error.
pub const SHOW_IT: &str = "note: `wgfc reduce MODEL` looks for a small model that shows the fault, `wgfc report MODEL` packs what an issue \
                           needs, both without weights";

/// The output of a command.
pub struct Terminal {
    /// Whether the result is one JSON object.
    pub json: bool,
    quiet: bool,
    rich: bool,
    /// The first error of writing to stdout.
    failed: RefCell<Option<std::io::Error>>,
}

impl Terminal {
    /// The terminal with the global options.
    pub fn new(global: &Global) -> Terminal {
        let rich = std::io::stderr().is_terminal();
        Terminal { json: global.json, quiet: global.quiet, rich, failed: RefCell::new(None) }
    }

    /// Whether notes and progress are not shown.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// A terminal that prints no notes.
    pub fn silent() -> Terminal {
        Terminal::new(&Global { json: false, quiet: true })
    }

    /// The error of writing to stdout, if there was one; called once at the end. A closed pipe (`wgfc … | head`) is no
    /// error.
    pub fn finish(&self) -> Result<(), Error> {
        let failed = self.failed.take().filter(|e| e.kind() != std::io::ErrorKind::BrokenPipe);
        failed.map_or(Ok(()), |e| Err(stdout_failed(&e)))
    }

    /// Writes to stdout. Returns whether everything was written.
    fn write(&self, text: &str) -> bool {
        let mut out = std::io::stdout().lock();
        let done = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        let whole = done.is_ok();
        if let Err(e) = done {
            self.failed.borrow_mut().get_or_insert(e);
        }
        whole
    }

    /// Prints a result on stdout.
    pub fn print(&self, text: &str) {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        self.write(&format!("{}{end}", clean(text)));
    }

    /// Prints a piece of a result as it arrives; it is escaped only if stdout is a terminal. Returns whether the reader
    /// still exists.
    pub fn print_piece(&self, text: &str) -> bool {
        match std::io::stdout().is_terminal() {
            true => self.write(&clean(text)),
            false => self.write(text),
        }
    }

    /// Prints a requested text to stderr, so that the result on stdout can be piped.
    pub fn print_to_stderr(&self, text: &str) {
        say(text);
    }

    /// Prints a result as JSON.
    pub fn print_json(&self, value: &serde_json::Value) {
        // Keys are in the same order whether or not another crate asks `serde_json` to keep that of their insertion.
        let mut value = value.clone();
        value.sort_all_objects();
        // `serde_json` leaves control characters from U+0080 on unescaped.
        let mut text = String::new();
        for c in format!("{value:#}").chars() {
            match c {
                c if is_control(c) => text += &format!("\\u{:04x}", c as u32),
                c => text.push(c),
            }
        }
        self.write(&(text + "\n"));
    }

    /// Prints a summary on stdout, except with `--quiet`.
    pub fn result(&self, text: &str) {
        if !self.quiet {
            self.print(text);
        }
    }

    /// Prints a note, except with `--quiet`.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.note_always(text);
        }
    }

    /// Prints a note that matters for the results, even with `--quiet`.
    pub fn note_always(&self, text: &str) {
        say(&format!("note: {text}\n"));
    }

    /// Prints the compiler's warnings on stderr, except with `--quiet`.
    pub fn warnings(&self, warnings: &[String]) {
        if !self.quiet {
            for w in warnings {
                say(&format!("warning: {w}\n"));
            }
        }
    }

    /// Prints an error: as JSON with all of its findings, or as text with the first `FINDINGS` of them.
    pub fn error(&self, error: &Error) {
        if self.json && self.failed.borrow().is_none() {
            self.print_json(&serde_json::json!({ "errors": findings_json(error) }));
            if self.failed.borrow().is_none() {
                return;
            }
        }
        let colour = std::env::var_os("NO_COLOR").is_none();
        let findings = error.findings();
        let more = findings.len().saturating_sub(FINDINGS);
        for f in findings.into_iter().take(FINDINGS) {
            match self.rich {
                true => drop(std::io::stderr().write_all(fancy(&cleaned(f), colour).as_bytes())),
                false => say(&format!("{f}\n")),
            }
        }
        if more > 0 {
            say(&format!("and {more} more, which --json lists\n"));
        }
        if error.class() == ErrorClass::Internal {
            say(&format!("{SHOW_IT}\n"));
        }
    }

    /// Whether progress is shown.
    pub fn shows_progress(&self) -> bool {
        !self.quiet && std::io::stderr().is_terminal()
    }

    /// Shows a spinner for an action of unknown length, until it is dropped.
    pub fn spinner(&self, what: String) -> Progress {
        let bar = ProgressBar::with_draw_target(None, self.target());
        bar.set_style(ProgressStyle::default_spinner());
        bar.set_message(clean(&what).into_owned());
        if self.shows_progress() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Progress { bar, watcher: None }
    }

    /// A spinner that also shows the text that `text` returns.
    pub fn watch_text(&self, what: String, text: impl Fn() -> Option<String> + Send + 'static) -> Progress {
        let mut progress = self.spinner(what.clone());
        if self.shows_progress() {
            let (bar, ended) = (progress.bar.clone(), Arc::new(AtomicBool::new(false)));
            let end = ended.clone();
            let what = clean(&what).into_owned();
            let thread = std::thread::spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    if let Some(text) = text() {
                        bar.set_message(format!("{what}: {text}"));
                    }
                    std::thread::park_timeout(Duration::from_millis(100));
                }
            });
            progress.watcher = Some((ended, thread));
        }
        progress
    }

    /// A progress bar, counted in bytes or in steps.
    pub fn bar(&self, what: String, length: u64, bytes: bool) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(length), self.target());
        let template = if bytes {
            "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes} {eta}"
        } else {
            "{spinner} {msg} [{bar:30}] {pos}/{len}, {elapsed} so far"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(clean(&what).into_owned());
        if self.shows_progress() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Progress { bar, watcher: None }
    }

    /// A progress bar of steps with their rate, of which `done` have been done before.
    pub fn steps(&self, what: String, done: u64, length: u64) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(length), self.target());
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len}, {per_sec}, {eta} left")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(clean(&what).into_owned());
        bar.set_position(done);
        bar.reset_eta();
        if self.shows_progress() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Progress { bar, watcher: None }
    }

    fn target(&self) -> ProgressDrawTarget {
        if self.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
    }
}

/// Writes to stderr; errors are ignored.
pub fn say(text: &str) {
    let _ = std::io::stderr().write_all(clean(text).as_bytes());
}

/// The error of writing to stdout.
pub fn stdout_failed(e: &std::io::Error) -> Error {
    let text = e.to_string();
    let why = text.split(" (os error").next().unwrap_or(&text);
    Error::usage(
        format!("the result cannot be written to stdout: {why}"),
        "the printed text is not complete; free some space, or write it elsewhere",
    )
}

fn cleaned(f: Finding) -> Finding {
    let text = |s: String| clean(&s).into_owned();
    let d = f.diagnostic;
    let l = d.location;
    let location = wgfc::compiler::Location {
        node: l.node.map(|n| clean(&n).into()),
        operator: l.operator.map(|o| clean(&o).into()),
        part: l.part.map(text),
        source: l.source.map(text),
        ..l
    };
    Finding {
        class: f.class,
        path: f.path.map(|p| text(p.display().to_string()).into()),
        diagnostic: wgfc::compiler::Diagnostic {
            message: text(d.message),
            help: d.help.map(text),
            location,
            ..d
        },
    }
}

/// A spinner or progress bar, which disappears when dropped.
pub struct Progress {
    bar: ProgressBar,
    watcher: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Progress {
    /// Replaces the text of the action.
    pub fn says(&self, what: String) {
        self.bar.set_message(clean(&what).into_owned());
    }
    /// Sets the position.
    pub fn at(&self, position: u64) {
        self.bar.set_position(position);
    }
    /// Sets the position and the length.
    pub fn at_of(&self, position: u64, length: u64) {
        self.bar.set_length(length);
        self.bar.set_position(position);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.watcher.take() {
            end.store(true, Ordering::Relaxed);
            thread.thread().unpark();
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

/// The findings of an error as JSON.
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
            "source": l.source,
            "help": f.diagnostic.help,
        })
    };
    error.findings().iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc::Problem;
    use wgfc::compiler::{Diagnostic, Errors, Location};

    /// One error of each kind, with all of its fields set.
    fn errors() -> Vec<(&'static str, Error)> {
        let at = Location {
            node: Some("encoder/0/attn/MatMul".into()),
            operator: Some("MatMul".into()),
            opset: Some(13),
            part: Some("input B".into()),
            source: None,
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
                    source: Some("module layers.0.mlp, model.py:12: x = whirl(x)".into()),
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
            let mut json = findings_json(&e);
            json.sort_all_objects();
            all += &format!("-- json\n{json}\n\n");
        }
        insta::assert_snapshot!(all);
    }
}
