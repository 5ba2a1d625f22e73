//! The command line `wgfc`; see `wgfc --help`.

mod cli;

use clap::Parser;
use clap::error::ErrorKind;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        eprintln!(
            "error[internal]: {info}\n  help: this is a bug in wgfc; please report it with the model's graph"
        );
        std::process::exit(4);
    }));
    if let Ok(filter) = EnvFilter::try_from_env("WGFC_LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    match cli::args::Cli::try_parse() {
        Ok(cli) => ExitCode::from(cli::main(cli)),
        Err(e) => {
            let _ = e.print();
            match e.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(1),
            }
        }
    }
}
