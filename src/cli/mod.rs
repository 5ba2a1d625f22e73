//! The command line `wgfc`: one file for each command, and what they share.

mod adapter;
#[cfg(feature = "api")]
mod api;
mod args;
mod axes;
mod bench;
mod bisect;
mod chat;
mod check;
mod compare;
mod compile;
mod connections;
mod crossover;
mod curve;
mod decode;
mod device;
mod device_cache;
mod drawing;
mod expected;
mod generate;
mod given_dims;
#[cfg_attr(not(feature = "image"), path = "without_images.rs")]
mod image;
mod indices;
mod inputs;
mod inside;
mod inspect;
mod issue;
mod kernels;
mod layout;
mod load;
mod loops;
mod own;
mod passes;
mod perplexity;
mod pictures;
mod profile;
mod reduce;
mod regret;
mod repeats;
mod report;
mod results;
mod roofline;
mod run;
mod selftest;
mod serve;
mod signals;
mod speculation;
mod suite;
mod terminal;
mod timings;
mod trace;
mod train;
mod tune;

use args::{Cli, Command};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use terminal::{Terminal, say, stdout_failed};
use tracing_subscriber::EnvFilter;
use wgfc::inspect::clean;

/// Runs the command line and ends the process with the exit code. The first argument is the name of the program.
///
/// This function installs handlers for signals and panics of the whole process, so the calling program must do nothing else.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ! {
    let code = command(arguments);
    let _ = std::io::stdout().flush();
    #[cfg(unix)]
    if let Some(signal) = signals::pending() {
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    leave(code);
}

/// Ends the process without running drivers' exit handlers: those of NVIDIA's driver 580 may not return.
fn leave(code: u8) -> ! {
    #[cfg(unix)]
    signal_hook::low_level::exit(code.into());
    #[cfg(not(unix))]
    std::process::exit(code.into());
}

/// Parses and runs the command line. Returns the exit code.
fn command(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    std::panic::set_hook(Box::new(|info| {
        say(&format!(
            "error[internal]: {info}\n  help: this is a bug in wgfc; please report it with the model's graph\n{}\n",
            terminal::SHOW_IT
        ));
        leave(4);
    }));
    end_cleanly();
    match EnvFilter::try_from_env("WGFC_LOG") {
        Ok(filter) => tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init(),
        Err(e) if std::env::var_os("WGFC_LOG").is_some() => say(&format!(
            "warning: WGFC_LOG cannot be understood ({e}); write as in WGFC_LOG=wgfc_compiler=debug,wgfc_runtime=debug\n"
        )),
        Err(_) => {}
    }
    match Cli::try_parse_from(arguments) {
        Ok(cli) => run_command(&cli),
        Err(e) => {
            let text = e.render().to_string();
            let shown = match clean(&text) {
                _ if e.use_stderr() && clean(&text) != text => {
                    say(&text);
                    Ok(())
                }
                _ => e.print(),
            };
            match e.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match shown {
                    Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                        say(&format!("{}\n", stdout_failed(&e)));
                        1
                    }
                    _ => 0,
                },
                _ => 1,
            }
        }
    }
}

/// Installs signal handlers that remove unfinished output before the process ends.
fn end_cleanly() {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) else { return };
        std::thread::spawn(move || {
            for signal in signals.forever() {
                if !signals::record(signal) {
                    wgfc::output::remove_unfinished();
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            }
        });
    }
}

/// Runs a parsed command line. Returns the exit code, of which some commands have their own.
fn run_command(cli: &Cli) -> u8 {
    let terminal = Terminal::new(&cli.global);
    let done = match &cli.command {
        Command::Compile(a) => compile::main(a, &terminal),
        Command::Run(a) => run::main(a, &terminal),
        Command::Bench(a) => return finish(bench::main(a, &terminal), &terminal),
        Command::Compare(a) => return finish(compare::main(a, &terminal), &terminal),
        Command::Bisect(a) => return finish(bisect::main(a, &terminal), &terminal),
        Command::Reduce(a) => reduce::main(a, &terminal),
        Command::Report(a) => issue::main(a, &terminal),
        Command::Generate(a) => generate::main(a, &terminal),
        Command::Chat(a) => chat::main(a, &terminal),
        #[cfg(feature = "api")]
        Command::Api(a) => api::main(a, &terminal),
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

/// The final exit code: output that could not be written is an error too.
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

/// Names as text; of many, only the first ones.
fn some_of(names: &[String]) -> String {
    match names {
        [a, b, c, rest @ ..] if rest.len() > 1 => format!("{a}, {b}, {c} and {} more", rest.len()),
        _ => names.join(", "),
    }
}

/// The file name of a model, for messages.
fn shown(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}
