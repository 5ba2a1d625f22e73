//! `wgfc reduce`.

use super::args::ReduceArgs;
use super::compile::opened_file;
use super::own::Program;
use super::terminal::Terminal;
use super::{shown, signals};
use prost::Message;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use wgfc::Error;
use wgfc::inspect::bytes_text;
use wgfc::output::write_whole;
use wgfc::reduce::{Reduced, State, Task, reduce};

/// The time limit of the first attempt unless --timeout sets one.
const LONGEST: Duration = Duration::from_secs(600);
/// The most bytes of a command's output that are read.
const OUTPUT: u64 = 16 << 20;

/// Reduces a model that fails.
pub fn main(a: &ReduceArgs, t: &Terminal) -> Result<(), Error> {
    let started = Instant::now();
    if let Some(cmd) = a.fails.as_deref().filter(|c| !c.contains("{}")) {
        return Err(Error::usage(
            format!("--fails '{cmd}' does not say where the model's file comes"),
            "write {} in its place, as in --fails 'wgfc run {} --random-inputs'",
        ));
    }
    let output = output(a)?;
    let file = opened_file(&a.model, a.random_weights, t)?;
    if a.fails.is_none() {
        let missing: Vec<String> = file.missing_weights()?.into_keys().collect();
        if !missing.is_empty() && !a.random_weights {
            return Err(Error::usage(
                format!(
                    "weights of {} are missing ({}), without which it cannot run",
                    shown(&a.model),
                    super::some_of(&missing)
                ),
                "put the files beside the model, use random weights (--random-weights), or give a command that needs none with --fails",
            ));
        }
    }
    let name = shown(&a.model);
    let mut trial = Trial::new(a)?;
    // Random weights are not in any file that could be passed to the command.
    if a.fails.is_some() && !a.random_weights {
        let _progress = t.spinner(format!("reducing {name}: does it fail?"));
        trial.fails(&a.model)?;
        if let Some(e) = trial.first_error.take() {
            return Err(e);
        }
    }
    let dims = a.dims.iter().cloned().collect();
    let reduced;
    {
        let _deferral = signals::defer();
        let progress = t.spinner(format!("reducing {name}: does it fail?"));
        let end = started + Duration::from_secs_f64(a.budget);
        let over = || Instant::now() >= end || signals::pending().is_some();
        let mut observe = |s: &State| {
            progress.says(format!(
                "reducing {name}: {}, {} nodes, {}, attempt {}",
                s.stage,
                s.size.nodes,
                bytes_text(s.size.bytes),
                s.attempts + 1
            ));
        };
        let mut fails = |path: &Path| trial.fails(path);
        reduced = reduce(&file, &dims, Task { fails: &mut fails, observe: &mut observe, over: &over });
    }
    let reduced = match (reduced, trial.first_error.take()) {
        (_, Some(e)) => return Err(e),
        (r, None) => r?,
    };
    let bytes = reduced.model.encode_to_vec();
    if bytes.len() >= i32::MAX as usize {
        return Err(Error::usage(
            format!(
                "the smallest model that fails has {} of weights, more than one file of ONNX can have",
                bytes_text(bytes.len() as u64)
            ),
            "make its dimensions smaller with --dim, or give it more time with --budget",
        ));
    }
    write_whole(&output, &bytes)?;
    if signals::pending().is_none() && !trial.fails(&output)? {
        t.note_always(
            "the model that was written did not fail when it was tried once more: the fault comes and goes",
        );
    }
    say(a, t, &trial, &reduced, &output, started.elapsed());
    Ok(())
}

/// The file to write.
fn output(a: &ReduceArgs) -> Result<PathBuf, Error> {
    let output = a.output.clone().unwrap_or_else(|| {
        let stem = a.model.file_stem().unwrap_or_default().to_string_lossy();
        PathBuf::from(format!("{stem}.reduced.onnx"))
    });
    let same = |p: &Path| p.canonicalize().ok();
    if same(&output).is_some() && same(&output) == same(&a.model) {
        return Err(Error::usage(
            format!("{} is the model itself", output.display()),
            "give another file with -o",
        ));
    }
    Ok(output)
}

fn say(a: &ReduceArgs, t: &Terminal, trial: &Trial, r: &Reduced, output: &Path, took: Duration) {
    let operators: Vec<String> =
        r.model.graph.iter().flat_map(|g| &g.node).map(|n| n.op_type.clone()).collect();
    let fault = trial.sign.as_ref().map(Sign::text).unwrap_or_default();
    if t.json {
        t.print_json(&serde_json::json!({
            "model": a.model.display().to_string(),
            "file": output.display().to_string(),
            "fails": fault,
            "nodes": { "before": r.before.nodes, "after": r.after.nodes },
            "bytes": { "before": r.before.bytes, "after": r.after.bytes },
            "operators": operators,
            "attempts": r.attempts,
            "seconds": took.as_secs_f64(),
            "weights_of_the_model": r.own_weights,
            "ended_early": r.ended_early,
        }));
        return;
    }
    let file = output.display();
    let mut s = format!(
        "{} fails: {fault}\n  {}, {}  →  {}, {} in {file}\n  {} attempts in {:.0} s\n",
        shown(&a.model),
        nodes(r.before.nodes),
        bytes_text(r.before.bytes),
        nodes(r.after.nodes),
        bytes_text(r.after.bytes),
        r.attempts,
        took.as_secs_f64(),
    );
    if operators.len() <= 40 {
        s += &format!("  its nodes: {}\n", operators.join(", "));
    }
    s += &match r.own_weights.as_slice() {
        [] => "  no weights of the model are in it; names of nodes and tensors are\n".to_owned(),
        own => format!(
            "  it fails only with the model's own values of {}, which are in it\n",
            super::some_of(own)
        ),
    };
    if r.ended_early {
        s += &match signals::pending() {
            Some(_) => "  it was interrupted: it may become smaller\n".to_owned(),
            None => format!("  it may become smaller with more time than --budget {}\n", a.budget),
        };
    }
    let see = match &a.fails {
        None => format!("wgfc compare {file} --tolerance {} {}", a.tolerance, a.compare.join(" ")),
        Some(cmd) => cmd.replace("{}", &file.to_string()),
    };
    s += &format!("next:\n  {}\n", see.trim_end());
    s += &format!("  wgfc report {file} -o report.zip     # attach it and {file} to an issue\n");
    t.print(&s);
}

fn nodes(n: usize) -> String {
    if n == 1 { "1 node".into() } else { format!("{n} nodes") }
}

/// The way in which an attempt fails.
#[derive(Clone, Debug, PartialEq)]
enum Sign {
    /// The command ended with this exit code.
    Exit(i32),
    /// The command was ended by a signal, or otherwise without an exit code.
    Crash,
    /// The command exceeded the time limit.
    Hang,
    /// Outputs differ from the evaluator's.
    Differs,
    /// An internal error with this message, from which names and numbers are removed.
    Internal(String),
}

impl Sign {
    fn text(&self) -> String {
        match self {
            Sign::Exit(code) => format!("the command exits with {code}"),
            Sign::Crash => "the command is ended by a signal".into(),
            Sign::Hang => "the command does not end in time".into(),
            Sign::Differs => "outputs differ from the reference evaluator's".into(),
            Sign::Internal(m) => format!("an internal error: {m}"),
        }
    }
}

/// Runs the failing command on candidates.
struct Trial<'a> {
    a: &'a ReduceArgs,
    program: Program,
    timeout: Duration,
    /// The way in which the original fails; `None` before the first attempt.
    sign: Option<Sign>,
    /// The error to report if the original does not fail.
    first_error: Option<Error>,
}

/// The result of a command.
struct Ended {
    /// `None` if it exceeded the time limit.
    status: Option<ExitStatus>,
    out: String,
    err: String,
}

impl<'a> Trial<'a> {
    fn new(a: &'a ReduceArgs) -> Result<Trial<'a>, Error> {
        let program = Program::this()?;
        let timeout = a.timeout.map_or(LONGEST, Duration::from_secs_f64);
        Ok(Trial { a, program, timeout, sign: None, first_error: None })
    }

    /// Whether the model in the file fails in the same way as the first one, which must fail.
    fn fails(&mut self, path: &Path) -> Result<bool, Error> {
        let started = Instant::now();
        let ended = self.run(path)?;
        if signals::pending().is_some() {
            return Ok(false);
        }
        let sign = match &self.a.fails {
            Some(_) => self.of_command(&ended),
            None => self.of_compare(&ended),
        };
        if self.sign.is_some() {
            return Ok(sign == self.sign);
        }
        let Some(sign) = sign else {
            self.first_error = Some(self.does_not_fail(&ended));
            return Ok(false);
        };
        self.sign = Some(sign);
        if self.a.timeout.is_none() {
            self.timeout = Duration::from_secs(10) + started.elapsed() * 10;
        }
        Ok(true)
    }

    /// The way in which the user's command fails; `None` if it does not fail.
    fn of_command(&self, e: &Ended) -> Option<Sign> {
        let sign = match &e.status {
            None => Sign::Hang,
            Some(s) => s.code().map_or(Sign::Crash, Sign::Exit),
        };
        let wanted = match (&sign, self.a.exit_code) {
            (Sign::Exit(code), Some(n)) => *code == n,
            (_, Some(_)) => false,
            (sign, None) => *sign != Sign::Exit(0),
        };
        let said = self.a.message.as_ref().is_none_or(|m| e.out.contains(m) || e.err.contains(m));
        (wanted && said).then_some(sign)
    }

    /// The way in which `wgfc compare` fails; `None` if it does not fail.
    fn of_compare(&self, e: &Ended) -> Option<Sign> {
        let Some(status) = &e.status else { return Some(Sign::Hang) };
        match status.code() {
            None => Some(Sign::Crash),
            Some(4) => {
                let json: Option<serde_json::Value> = serde_json::from_str(&e.out).ok();
                let said = json.as_ref().and_then(|v| v["errors"][0]["message"].as_str());
                match json.as_ref().and_then(|v| v["differs_first"].as_str()) {
                    Some(_) => Some(Sign::Differs),
                    None => Some(Sign::Internal(plain(said.unwrap_or(&e.err)))),
                }
            }
            Some(_) => None,
        }
    }

    fn does_not_fail(&self, e: &Ended) -> Error {
        let code = e.status.and_then(|s| s.code());
        let json: Option<serde_json::Value> = serde_json::from_str(&e.out).ok();
        let errors = json.as_ref().and_then(|v| v["errors"].as_array()).into_iter().flatten();
        let errors: Vec<&str> = errors.filter_map(|e| e["message"].as_str()).collect();
        let last = match (errors.is_empty(), e.err.trim().is_empty()) {
            (false, _) => last_lines(&errors.join("\n")),
            (true, false) => last_lines(&e.err),
            (true, true) => last_lines(&e.out),
        };
        match (&self.a.fails, code) {
            (None, Some(0)) => Error::usage(
                format!(
                    "{} does not fail: its outputs are those of the reference evaluator",
                    shown(&self.a.model)
                ),
                "give the options with which it fails behind --, a smaller --tolerance, or a command with --fails",
            ),
            (None, _) => Error::usage(
                format!("`wgfc compare` cannot say whether {} fails:\n{last}", shown(&self.a.model)),
                "give what it needs behind --, --dim for dimensions, or a command of your own with --fails",
            ),
            (Some(_), code) => {
                let code = code.map_or("without an exit code".into(), |c| format!("with exit code {c}"));
                let wanted = match (&self.a.exit_code, &self.a.message) {
                    (Some(n), Some(m)) => format!(", not with {n} and the text `{m}`"),
                    (Some(n), None) => format!(", not with {n}"),
                    (None, Some(m)) => format!("; failing is another code than 0 and the text `{m}`"),
                    (None, None) => "; failing is another code than 0".into(),
                };
                Error::usage(
                    format!("with {} the command ends {code}{wanted}:\n{last}", shown(&self.a.model)),
                    "give a command that fails while the fault is there; --random-weights makes up weights that are missing",
                )
            }
        }
    }

    fn run(&self, path: &Path) -> Result<Ended, Error> {
        let failed = |e: std::io::Error| {
            Error::usage(format!("the command cannot be started: {e}"), "give one that the shell can run")
        };
        let mut command = match &self.a.fails {
            Some(cmd) => shell(&cmd.replace("{}", &quoted(path))),
            None => {
                let mut c = self.program.command();
                c.arg("compare").arg(path).args(["--outputs-only", "--json", "--quiet", "--tolerance"]);
                c.arg(self.a.tolerance.to_string()).args(&self.a.compare);
                c
            }
        };
        let (out, err) = (tempfile::tempfile().map_err(failed)?, tempfile::tempfile().map_err(failed)?);
        command.stdin(Stdio::null());
        command.stdout(out.try_clone().map_err(failed)?).stderr(err.try_clone().map_err(failed)?);
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(failed)?;
        let status = wait(&mut child, self.timeout);
        Ok(Ended { status, out: text(out), err: text(err) })
    }
}

/// Waits for a command. One that exceeds the time limit is killed with its process group.
fn wait(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        let elapsed = started.elapsed();
        if elapsed > timeout || signals::pending().is_some() {
            #[cfg(unix)]
            let _ = shell(&format!("kill -s KILL -- -{}", child.id())).stderr(Stdio::null()).status();
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        let pause = (elapsed / 20).clamp(Duration::from_millis(1), Duration::from_millis(50));
        std::thread::sleep(pause);
    }
}

/// The text of a file from its beginning.
fn text(mut f: File) -> String {
    let mut bytes = vec![];
    if f.seek(SeekFrom::Start(0)).is_ok() {
        let _ = f.take(OUTPUT).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

#[cfg(unix)]
fn shell(line: &str) -> Command {
    let mut c = Command::new("sh");
    c.arg("-c").arg(line);
    c
}

#[cfg(windows)]
fn shell(line: &str) -> Command {
    use std::os::windows::process::CommandExt;
    let mut c = Command::new("cmd");
    c.arg("/C").raw_arg(line);
    c
}

/// A path quoted for the shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    match cfg!(windows) {
        true => format!("\"{text}\""),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The first line of a message with quoted names and numbers replaced, as these vary between parts of a model.
fn plain(message: &str) -> String {
    let line = message.lines().find(|l| !l.trim().is_empty()).unwrap_or_default();
    let mut out = String::new();
    for (i, part) in line.split(['"', '`']).enumerate() {
        match i % 2 {
            0 => {
                let mut digits = false;
                for c in part.chars() {
                    match c.is_ascii_digit() {
                        true if digits => {}
                        true => out.push('N'),
                        false => out.push(c),
                    }
                    digits = c.is_ascii_digit();
                }
            }
            _ => out += "\"…\"",
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_same_fault_are_equal() {
        let a = "after fuse: kernel 13 of node \"encoder/0\" reads 4.5 of `x`";
        let b = "after fuse: kernel 2 of node \"n 7\" reads 12.25 of `long name`\nmore";
        assert_eq!(plain(a), plain(b));
        assert_eq!(plain(a), "after fuse: kernel N of node \"…\" reads N.N of \"…\"");
        assert_eq!(
            quoted(Path::new("a b/it's")),
            if cfg!(windows) { "\"a b/it's\"" } else { "'a b/it'\\''s'" }
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_command_that_takes_too_long_is_ended_with_what_it_started() {
        let d = tempfile::tempdir().unwrap();
        let mark = d.path().join("mark");
        let mut c = shell(&format!("(sleep 0.4; touch {}) & sleep 100", quoted(&mark)));
        std::os::unix::process::CommandExt::process_group(&mut c, 0);
        let mut child = c.spawn().unwrap();
        assert_eq!(wait(&mut child, Duration::from_millis(30)), None);
        std::thread::sleep(Duration::from_millis(700));
        assert!(!mark.exists());
        let mut quick = shell("exit 3").spawn().unwrap();
        assert_eq!(wait(&mut quick, Duration::from_secs(60)).and_then(|s| s.code()), Some(3));
    }
}
