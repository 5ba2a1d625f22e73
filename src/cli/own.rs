//! This program, started again for a part of its work in a process of its own.

use std::path::PathBuf;
use std::process::Command;
use wgfc::Error;

/// The file of this program, or of the interpreter that runs it.
pub struct Program {
    file: PathBuf,
    /// Whether the file is a Python interpreter.
    interpreted: bool,
}

impl Program {
    /// The program that runs.
    ///
    /// # Errors
    /// The system does not tell its file.
    pub fn this() -> Result<Program, Error> {
        let file = std::env::current_exe()
            .map_err(|e| Error::Internal(format!("this program's file is unknown: {e}")))?;
        // The command line of the Python package runs in an interpreter, which finds its packages by the path with which it
        // was started.
        let name = file.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
        let interpreted = name.starts_with("python");
        let file = if interpreted { std::env::args_os().next().map_or(file, PathBuf::from) } else { file };
        Ok(Program { file, interpreted })
    }

    /// A command line without arguments.
    pub fn command(&self) -> Command {
        let mut c = Command::new(&self.file);
        if self.interpreted {
            c.args(["-m", "wgfc"]);
        }
        c
    }
}
