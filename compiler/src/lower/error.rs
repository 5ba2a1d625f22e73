//! Why an operator cannot be lowered.

use crate::Kind;
use wgfc_ir::Value;

/// The results of lowering an operator of several results: its values, in order.
pub type Lowered = Result<Vec<Value>>;

/// The result of lowering an operator of one result.
pub type Result<T = Value> = std::result::Result<T, OpError>;

/// Which part of an operator an error is about. A source format says it in its own words.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// The operand of that value.
    Operand(Value),
    /// A parameter, by the name of the argument or field that it is here.
    Param(&'static str),
    /// In the words of the source format.
    Source(String),
}

/// Why an operator cannot be lowered. Strings convert to it: the model is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct OpError {
    /// Whose problem it is.
    pub kind: Kind,
    /// The fault and its reason.
    pub message: String,
    /// The part of the operator that is meant.
    pub part: Option<Part>,
    /// Advice.
    pub help: Option<String>,
    /// Already reported elsewhere: say nothing more.
    pub reported: bool,
}

impl OpError {
    /// The model is wrong.
    pub fn model(message: impl Into<String>) -> OpError {
        OpError { kind: Kind::Model, message: message.into(), part: None, help: None, reported: false }
    }
    /// We do not support it.
    ///
    /// `help` says what a user can do: there is no advice that fits all of these.
    pub fn unsupported(message: impl Into<String>, help: impl Into<String>) -> OpError {
        OpError { kind: Kind::Unsupported, ..OpError::model(message) }.help(help)
    }
    /// A value that must be known when compiling depends on dimensions that are not.
    pub fn symbolic(message: impl Into<String>) -> OpError {
        OpError::unsupported(message, "fix the dimension with --dim NAME=VALUE")
    }
    /// We are wrong.
    pub fn internal(message: impl Into<String>) -> OpError {
        OpError { kind: Kind::Internal, ..OpError::model(message) }
    }
    /// Something below has already been reported.
    pub fn reported() -> OpError {
        OpError { reported: true, ..OpError::model("") }
    }
    /// Says that an operand is meant.
    pub fn operand(self, v: Value) -> OpError {
        OpError { part: Some(Part::Operand(v)), ..self }
    }
    /// Says that a parameter is meant.
    pub fn param(self, name: &'static str) -> OpError {
        OpError { part: Some(Part::Param(name)), ..self }
    }
    /// Says what is meant in the words of the source format.
    pub fn at(self, part: impl Into<String>) -> OpError {
        OpError { part: Some(Part::Source(part.into())), ..self }
    }
    /// Says what to do.
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
