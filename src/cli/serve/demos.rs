//! The programs of the playground's demos, compiled when a page asks for one, as `web/playground/build.mjs` compiles those of the static page.

use super::super::args::{Cli, Command};
use super::super::compile;
use super::super::terminal::Terminal;
use super::page::MODELS;
use clap::Parser;
use std::path::Path;
use std::sync::OnceLock;
use wgfc::Error;

/// A program: the name that it is served by, the files that it is compiled from with their names, the model among these, and options.
struct Demo {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    model: &'static str,
    options: &'static [&'static str],
    made: OnceLock<Result<Vec<u8>, String>>,
}

static DEMOS: [Demo; 4] = [
    Demo::new("models/digits.wgfc", &[("models/digits.onnx", "digits.onnx")], "digits.onnx", &[]),
    Demo::new("models/cartpole.wgfc", &[("models/cartpole.onnx", "cartpole.onnx")], "cartpole.onnx", &[]),
    Demo::new(
        "models/cartpole-50.wgfc",
        &[("models/cartpole.onnx", "cartpole.onnx")],
        "cartpole.onnx",
        &["--fix", "steps=50"],
    ),
    Demo::new(
        "models/stories.wgfc",
        &[
            ("models/stories.onnx", "model.onnx"),
            ("models/tokenizer.json", "tokenizer.json"),
            ("models/generation_config.json", "generation_config.json"),
        ],
        "",
        &["--generate"],
    ),
];

impl Demo {
    const fn new(
        name: &'static str,
        files: &'static [(&'static str, &'static str)],
        model: &'static str,
        options: &'static [&'static str],
    ) -> Demo {
        Demo { name, files, model, options, made: OnceLock::new() }
    }

    fn compiled(&self) -> Result<Vec<u8>, Error> {
        let failed = |e: std::io::Error| {
            Error::usage(
                format!("the demo cannot be compiled: {e}"),
                "make the folder for temporary files writable",
            )
        };
        let folder = tempfile::tempdir().map_err(failed)?;
        for (served, name) in self.files {
            let bytes = MODELS.iter().find(|f| f.0 == *served).map_or(&[][..], |f| f.1);
            std::fs::write(folder.path().join(name), bytes).map_err(failed)?;
        }
        let made = folder.path().join("made.wgfc");
        let paths: [&Path; 2] = [&folder.path().join(self.model), &made];
        let [model, output] = paths.map(|p| p.as_os_str().to_owned());
        let fixed = ["--target", "web", "--quiet"].iter().chain(self.options).map(std::ffi::OsString::from);
        let words = ["wgfc".into(), "compile".into(), model, "-o".into(), output].into_iter().chain(fixed);
        let parsed = Cli::try_parse_from(words).map_err(|e| Error::Internal(e.to_string()))?;
        let Command::Compile(a) = &parsed.command else {
            return Err(Error::Internal("another command".into()));
        };
        compile::main(a, &Terminal::silent())?;
        std::fs::read(&made).map_err(failed)
    }
}

/// The program of this name, if it is a demo's.
pub fn program(name: &str) -> Option<Result<&'static [u8], &'static str>> {
    let demo = DEMOS.iter().find(|d| d.name == name)?;
    let made = demo.made.get_or_init(|| demo.compiled().map_err(|e| e.to_string()));
    Some(made.as_deref().map_err(String::as_str))
}

#[cfg(all(test, feature = "playground"))]
mod tests {
    #[test]
    fn demos_are_compiled() {
        for demo in &super::DEMOS {
            let bytes = super::program(demo.name).unwrap().unwrap();
            assert!(bytes.len() > 1000, "{}", demo.name);
        }
        assert!(super::program("models/other.wgfc").is_none());
    }
}
