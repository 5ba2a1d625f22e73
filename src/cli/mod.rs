//! The command line: one file a command, and what they share.

mod adapter;
pub mod args;
mod axes;
mod bench;
mod check;
mod compare;
mod compile;
mod curve;
mod decode;
mod device;
mod drawing;
mod generate;
#[cfg_attr(not(feature = "image"), path = "without_images.rs")]
mod image;
mod indices;
mod inputs;
mod inside;
mod inspect;
mod kept;
mod kernels;
mod layout;
mod like;
mod loops;
mod profile;
mod repeats;
mod report;
mod roofline;
mod run;
mod selftest;
mod serve;
pub mod signals;
pub mod terminal;
mod train;
mod tune;

use args::{Cli, Command};
use clap::CommandFactory;
use std::path::Path;
use terminal::Terminal;

/// Runs a parsed command line; `Ok` holds the exit code (`check` has one of its own).
pub fn main(cli: Cli) -> u8 {
    let terminal = Terminal::new(&cli.global);
    let done = match &cli.command {
        Command::Compile(a) => compile::main(a, &terminal),
        Command::Run(a) => run::main(a, &terminal),
        Command::Bench(a) => return finish(bench::main(a, &terminal), &terminal),
        Command::Compare(a) => compare::main(a, &terminal),
        Command::Generate(a) => generate::main(a, &terminal),
        Command::Train(a) => train::main(a, &terminal),
        Command::Tune(a) => tune::main(a, &terminal),
        Command::Inspect(a) => inspect::main(a, &terminal),
        Command::Check(a) => return finish(check::main(a, &terminal), &terminal),
        Command::Device(a) => device::main(a, &terminal),
        Command::Selftest(a) => return finish(selftest::main(a, &terminal), &terminal),
        Command::Serve(a) => serve::main(a, &terminal),
        Command::Completions(a) => {
            let mut script = Vec::new();
            clap_complete::generate(a.shell, &mut Cli::command(), "wgfc", &mut script);
            terminal.print(&String::from_utf8_lossy(&script));
            Ok(())
        }
    };
    let code = match done {
        Ok(()) => 0,
        Err(e) => {
            terminal.error(&e);
            e.class().exit_code()
        }
    };
    finish(code, &terminal)
}

/// The exit code, after all; what could not be printed is an error too.
fn finish(code: u8, terminal: &Terminal) -> u8 {
    match terminal.finish() {
        Err(e) if code == 0 => {
            terminal::say(&format!("{e}\n"));
            e.class().exit_code()
        }
        _ => code,
    }
}

/// Whether `path` is to be read as a compiled program.
fn is_program(path: &Path) -> bool {
    wgfc::artefact::is_program(path)
}

/// Names for a message, the first of many.
fn some_of(names: &[String]) -> String {
    match names {
        [a, b, c, rest @ ..] if rest.len() > 1 => format!("{a}, {b}, {c} and {} more", rest.len()),
        _ => names.join(", "),
    }
}

/// A model's name for messages: the file's name.
fn shown(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}
