//! The contract of an operator: what a file in [`ops`](super::ops) provides.

use super::cx::Cx;
use crate::{Diagnostic, Kind, Location};
use wgfc_ir::Value;

/// What [`OpDef::lower`] returns: one value per output, in order. Outputs that the node leaves
/// unnamed may be left out at the end ([`Cx::wants`]).
pub type Lowered = Result<Vec<Value>, OpError>;

/// How one operator of ONNX becomes core operators.
#[derive(Clone, Copy)]
pub struct OpDef {
    /// Its domain; empty is `ai.onnx`.
    pub domain: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The operator's versions that are understood, ascending. The newest that is not above the
    /// model's opset applies ([`Cx::since`]); a model below the first is refused.
    pub since: &'static [i64],
    /// Decodes the attributes, checks, and builds.
    pub lower: fn(&mut Cx) -> Lowered,
    /// Prefixes of the ONNX node tests it answers for: `test_relu`.
    pub cases: &'static [&'static str],
    /// What of it is not supported, for `SUPPORTED_OPS.md`; empty when all is.
    pub notes: &'static str,
}

impl OpDef {
    /// An operator of `ai.onnx`.
    pub const fn new(name: &'static str, since: &'static [i64], lower: fn(&mut Cx) -> Lowered) -> OpDef {
        OpDef { domain: "", name, since, lower, cases: &[], notes: "" }
    }
    /// Of another domain.
    pub const fn domain(self, domain: &'static str) -> OpDef {
        OpDef { domain, ..self }
    }
    /// The node tests it answers for.
    pub const fn cases(self, cases: &'static [&'static str]) -> OpDef {
        OpDef { cases, ..self }
    }
    /// What of it is not supported.
    pub const fn notes(self, notes: &'static str) -> OpDef {
        OpDef { notes, ..self }
    }
    /// The version that applies under an opset.
    pub fn version(&self, opset: i64) -> Option<i64> {
        self.since.iter().copied().filter(|v| *v <= opset).max()
    }
}

/// Why a node cannot be lowered. Strings convert to it: the model is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct OpError {
    /// Whose problem it is.
    pub kind: Kind,
    /// What and why.
    pub message: String,
    /// Which input, output or attribute.
    pub part: Option<String>,
    /// What to do.
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
    pub fn unsupported(message: impl Into<String>) -> OpError {
        OpError { kind: Kind::Unsupported, ..OpError::model(message) }
    }
    /// We are wrong.
    pub fn internal(message: impl Into<String>) -> OpError {
        OpError { kind: Kind::Internal, ..OpError::model(message) }
    }
    /// Something below has already been reported.
    pub fn reported() -> OpError {
        OpError { reported: true, ..OpError::model("") }
    }
    /// Says that an attribute is meant.
    pub fn attribute(mut self, name: &str) -> OpError {
        self.part = Some(format!("attribute `{name}`"));
        self
    }
    /// Says what to do.
    pub fn help(mut self, help: impl Into<String>) -> OpError {
        self.help = Some(help.into());
        self
    }
    /// As a diagnostic at a node.
    pub fn diagnostic(self, mut at: Location) -> Diagnostic {
        let d = match self.kind {
            Kind::Model => Diagnostic::model(self.message),
            Kind::Unsupported => Diagnostic::unsupported(self.message),
            Kind::Internal => Diagnostic::internal(self.message),
        };
        at.part = self.part;
        let help = self.help.or(d.help.clone()).unwrap_or_else(|| advice(self.kind, &at));
        d.at(at).help(help)
    }
}

/// What to do about a node, where its operator says nothing better: by whose problem it is and which part is meant.
fn advice(kind: Kind, at: &Location) -> String {
    let operator = at.operator.as_deref().unwrap_or_default();
    let (domain, name) = operator.rsplit_once('.').unwrap_or(("", operator));
    if kind == Kind::Unsupported {
        let notes = super::ops::find(domain, name).map_or("", |d| d.notes);
        let known = if notes.is_empty() { String::new() } else { format!(" (of {operator}: {notes})") };
        return format!("SUPPORTED_OPS.md lists what is supported{known}; export the model without this");
    }
    let definition = match domain {
        _ if name.is_empty() => String::new(),
        "" => format!("; https://onnx.ai/onnx/operators/onnx__{name}.html says what {name} takes"),
        "com.microsoft" => format!("; ContribOperators.md of ONNX Runtime says what {name} takes"),
        _ => String::new(),
    };
    let what = match at.part.as_deref() {
        Some(_) if name.is_empty() => "correct it, or export the model again",
        Some(p) if p.starts_with("attribute") => "correct the attribute, or export the model again",
        Some(p) if p.starts_with("input") => {
            "mend what is handed to this input (a Cast for its type, a Reshape for its rank), or export the model again"
        }
        _ => "correct the node, or export the model again",
    };
    format!("{what}{definition}")
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
