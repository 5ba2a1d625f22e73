//! Errors with messages for the user.

use std::fmt;
use std::path::{Path, PathBuf};
use wgfc_compiler::{Diagnostic, Errors, Kind};

/// All errors of this library and its command line.
///
/// ```
/// use wgfc::{ErrorClass, Options};
/// let e = wgfc::compile(b"no model", &Options::default()).unwrap_err();
/// assert_eq!(e.class(), ErrorClass::Model);
/// for finding in e.findings() {
///     // The message, its place in the model, and what to do.
///     eprintln!("{finding}");
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The compiler refused the model.
    Compile {
        /// The model's file, if it came from one.
        path: Option<PathBuf>,
        /// All errors that the compiler found.
        errors: Errors,
    },
    /// A file or folder that cannot be read or written, or whose content is invalid.
    File {
        /// The file.
        path: PathBuf,
        /// All faults of the file; never empty.
        problems: Vec<String>,
        /// Advice on how to correct it.
        help: Option<String>,
    },
    /// Arguments, or inputs that do not fit the model, with one entry for each fault.
    Usage(Vec<Problem>),
    /// The device: there is no adapter, its limits are too small, its memory is exhausted, or it was lost.
    Device(Problem),
    /// A bug in wgfc.
    Internal(String),
}

/// A fault, with advice on how to correct it.
///
/// ```
/// use wgfc::{Error, Problem};
/// let p = Problem::with_help("the batch is 0", "give 1 or more");
/// assert_eq!(Error::Usage(vec![p]).to_string(), "error: the batch is 0\n  help: give 1 or more");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The fault and its reason.
    pub message: String,
    /// Advice on what to do.
    pub help: Option<String>,
}

impl Problem {
    /// A problem without advice.
    pub fn new(message: impl Into<String>) -> Problem {
        Problem { message: message.into(), help: None }
    }
    /// A problem with advice on what to do.
    pub fn with_help(message: impl Into<String>, help: impl Into<String>) -> Problem {
        Problem { message: message.into(), help: Some(help.into()) }
    }
}

impl From<Diagnostic> for Problem {
    fn from(d: Diagnostic) -> Problem {
        Problem { message: d.message, help: d.help }
    }
}

/// The cause of an [`Error`]. The command line exits with [`ErrorClass::exit_code`].
///
/// ```
/// use wgfc::ErrorClass;
/// assert_eq!((ErrorClass::Unsupported.name(), ErrorClass::Unsupported.exit_code()), ("unsupported", 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorClass {
    /// The model, a file, or the request is wrong.
    Model,
    /// The model is valid, but wgfc does not support it.
    Unsupported,
    /// The device is not capable of it.
    Device,
    /// A bug in wgfc.
    Internal,
}

impl ErrorClass {
    /// The exit code: 1 for a model or usage error, 2 for unsupported, 3 for the device, 4 for an internal error.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorClass::Model => 1,
            ErrorClass::Unsupported => 2,
            ErrorClass::Device => 3,
            ErrorClass::Internal => 4,
        }
    }
    /// The name of the class in JSON.
    pub fn name(self) -> &'static str {
        match self {
            ErrorClass::Model => "model",
            ErrorClass::Unsupported => "unsupported",
            ErrorClass::Device => "device",
            ErrorClass::Internal => "internal",
        }
    }
}

/// One message of an [`Error`] of any kind.
///
/// ```
/// use wgfc::Error;
/// let e = Error::file_help("m.onnx".as_ref(), "is empty", "export it again");
/// let finding = &e.findings()[0];
/// assert_eq!(finding.place(), "m.onnx");
/// assert_eq!(finding.to_string(), "error: is empty\n  --> m.onnx\n  help: export it again");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The class of the error.
    pub class: ErrorClass,
    /// The file that it concerns, if there is one.
    pub path: Option<PathBuf>,
    /// The compiler's diagnostic with its location in the model, or the message of another error with an empty location.
    pub diagnostic: Diagnostic,
}

impl Error {
    /// A fault of a file, without advice.
    pub fn file(path: &Path, message: impl Into<String>) -> Error {
        Error::File { path: path.to_owned(), problems: vec![message.into()], help: None }
    }
    /// A fault of a file, with advice.
    pub fn file_help(path: &Path, message: impl Into<String>, help: impl Into<String>) -> Error {
        Error::File { path: path.to_owned(), problems: vec![message.into()], help: Some(help.into()) }
    }
    /// One fault of arguments or inputs.
    pub fn usage(message: impl Into<String>, help: impl Into<String>) -> Error {
        Error::Usage(vec![Problem::with_help(message, help)])
    }
    /// The class of the error. If findings differ, a bug in wgfc takes precedence, then a wrong model.
    ///
    /// ```
    /// use wgfc::{Error, ErrorClass};
    /// let e = Error::usage("the batch is 0", "give 1 or more");
    /// assert_eq!((e.class(), e.class().exit_code()), (ErrorClass::Model, 1));
    /// ```
    pub fn class(&self) -> ErrorClass {
        match self {
            Error::Compile { errors, .. } => {
                let has = |k: Kind| errors.0.iter().any(|d| d.kind == k);
                if has(Kind::Internal) {
                    ErrorClass::Internal
                } else if has(Kind::Model) {
                    ErrorClass::Model
                } else {
                    ErrorClass::Unsupported
                }
            }
            Error::File { .. } | Error::Usage(_) => ErrorClass::Model,
            Error::Device(_) => ErrorClass::Device,
            Error::Internal(_) => ErrorClass::Internal,
        }
    }
    /// All messages of the error.
    pub fn findings(&self) -> Vec<Finding> {
        let ours = |class, path: Option<&PathBuf>, message: &str, help: Option<&String>| Finding {
            class,
            path: path.cloned(),
            diagnostic: Diagnostic { help: help.cloned(), ..Diagnostic::model(message) },
        };
        match self {
            Error::Compile { path, errors } => errors
                .0
                .iter()
                .map(|d| Finding {
                    class: match d.kind {
                        Kind::Model => ErrorClass::Model,
                        Kind::Unsupported => ErrorClass::Unsupported,
                        Kind::Internal => ErrorClass::Internal,
                    },
                    path: path.clone(),
                    diagnostic: d.clone(),
                })
                .collect(),
            Error::File { path, problems, help } => {
                problems.iter().map(|p| ours(ErrorClass::Model, Some(path), p, help.as_ref())).collect()
            }
            Error::Usage(problems) => {
                problems.iter().map(|p| ours(ErrorClass::Model, None, &p.message, p.help.as_ref())).collect()
            }
            Error::Device(p) => vec![ours(ErrorClass::Device, None, &p.message, p.help.as_ref())],
            Error::Internal(m) => {
                let diagnostic = Diagnostic::internal(m.clone());
                vec![Finding { class: ErrorClass::Internal, path: None, diagnostic }]
            }
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = &self.diagnostic;
        match self.class {
            ErrorClass::Model => f.write_str("error: ")?,
            c => write!(f, "error[{}]: ", c.name())?,
        }
        f.write_str(&d.message)?;
        let place = self.place();
        if !place.is_empty() {
            write!(f, "\n  --> {place}")?;
        }
        if let Some(s) = &d.location.source {
            write!(f, "\n  in {s}")?;
        }
        if let Some(h) = &d.help {
            write!(f, "\n  help: {h}")?;
        }
        Ok(())
    }
}

impl Finding {
    /// The location as text, `resnet50.onnx: node "conv1" (Conv, opset 18), input W`; empty if there is none.
    pub fn place(&self) -> String {
        let l = &self.diagnostic.location;
        let mut parts = Vec::new();
        if let Some(n) = &l.node {
            let mut s = format!("node \"{n}\"");
            match (&l.operator, l.opset) {
                (Some(o), Some(v)) => s += &format!(" ({o}, opset {v})"),
                (Some(o), None) => s += &format!(" ({o})"),
                _ => {}
            }
            parts.push(s);
        }
        parts.extend(l.part.clone());
        let inside = parts.join(", ");
        match &self.path {
            Some(p) if inside.is_empty() => p.display().to_string(),
            Some(p) => format!("{}: {inside}", p.display()),
            None => inside,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, x) in self.findings().iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{x}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<Errors> for Error {
    fn from(errors: Errors) -> Error {
        Error::Compile { path: None, errors }
    }
}
