//! The command line `wgfc`; see `wgfc --help`.

mod cli;

use clap::Parser;
use clap::error::ErrorKind;
use cli::terminal::{say, stdout_failed};
use std::io::Write;
use tracing_subscriber::EnvFilter;
use wgfc::inspect::clean;

fn main() {
    let code = command();
    let _ = std::io::stdout().flush();
    #[cfg(unix)]
    if let Some(signal) = cli::signals::asked() {
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    leave(code);
}

/// Ends the process without the code that drivers run at exit: that of NVIDIA's 580 may not return.
fn leave(code: u8) -> ! {
    #[cfg(unix)]
    signal_hook::low_level::exit(code.into());
    #[cfg(not(unix))]
    std::process::exit(code.into());
}

/// Does as the command line asks. Returns the exit code.
fn command() -> u8 {
    quieten_drivers();
    std::panic::set_hook(Box::new(|info| {
        say(&format!(
            "error[internal]: {info}\n  help: this is a bug in wgfc; please report it with the model's graph\n"
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
    match cli::args::Cli::try_parse() {
        Ok(cli) => cli::main(cli),
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

/// Mesa's layer that asks the desktop for its graphics card, on each start of Vulkan, complains on stderr where
/// there is no desktop to ask.
fn quieten_drivers() {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

/// A signal that ends the process takes along what is not completely written.
fn end_cleanly() {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) else { return };
        std::thread::spawn(move || {
            for signal in signals.forever() {
                if !cli::signals::put_off(signal) {
                    wgfc::output::remove_unfinished();
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            }
        });
    }
}
