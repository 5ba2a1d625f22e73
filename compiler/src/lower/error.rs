//! The reasons for which an operator cannot be lowered.

use crate::Kind;
use wgfc_ir::Value;

/// The results, in order, of lowering an operator with several results.
pub type Lowered = Result<Vec<Value>>;

/// The result of lowering an operator with one result.
pub type Result<T = Value> = std::result::Result<T, OpError>;

/// The part of an operator that an error is about. The importer of a source format translates it.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// The operand with that value.
    Operand(Value),
    /// A parameter, by the name of its argument or field in this module.
    Param(&'static str),
    /// A part in the words of the source format.
    Source(String),
}

/// The reason for which an operator cannot be lowered. Strings convert to an error of [`Kind::Model`].
#[derive(Clone, Debug, PartialEq)]
pub struct OpError {
    /// Whether the model is wrong, it is not supported, or the compiler is wrong.
    pub kind: Kind,
    /// The problem and its reason.
    pub message: String,
    /// The part of the operator that the error is about.
    pub part: Option<Part>,
    /// Advice.
    pub help: Option<String>,
    /// Whether the cause has already been reported, so that this error is not shown.
    pub reported: bool,
}

impl OpError {
    /// The model is wrong.
    pub fn model(message: impl Into<String>) -> OpError {
        OpError { kind: Kind::Model, message: message.into(), part: None, help: None, reported: false }
    }
    /// The compiler does not support it.
    ///
    /// `help` says what a user can do.
    pub fn unsupported(message: impl Into<String>, help: impl Into<String>) -> OpError {
        OpError { kind: Kind::Unsupported, ..OpError::model(message) }.help(help)
    }
    /// A value that must be known while compiling depends on symbolic dimensions.
    pub fn symbolic(message: impl Into<String>) -> OpError {
        OpError::unsupported(message, "fix the dimension with --dim NAME=VALUE")
    }
    /// The compiler is wrong.
    pub fn internal(message: impl Into<String>) -> OpError {
        OpError { kind: Kind::Internal, ..OpError::model(message) }
    }
    /// An error that follows from one already reported.
    pub fn reported() -> OpError {
        OpError { reported: true, ..OpError::model("") }
    }
    /// Sets the operand that the error is about.
    pub fn operand(self, v: Value) -> OpError {
        OpError { part: Some(Part::Operand(v)), ..self }
    }
    /// Sets the parameter that the error is about.
    pub fn param(self, name: &'static str) -> OpError {
        OpError { part: Some(Part::Param(name)), ..self }
    }
    /// Sets the part that the error is about, in the words of the source format.
    pub fn at(self, part: impl Into<String>) -> OpError {
        OpError { part: Some(Part::Source(part.into())), ..self }
    }
    /// Sets the advice.
    pub fn help(mut self, help: impl Into<String>) -> OpError {
        self.help = Some(help.into());
        self
    }
}

impl From<String> for OpError {
    fn from(s: String) -> OpError {
        OpError::model(s)
    }
}
impl From<&str> for OpError {
    fn from(s: &str) -> OpError {
        OpError::model(s)
    }
}
