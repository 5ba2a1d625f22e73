//! The contract of an operator, which each file in [`ops`](super::ops) implements.

use super::cx::Cx;
pub use crate::lower::{Lowered, OpError};
use crate::{Diagnostic, Location};

/// An operator of ONNX and its lowering to core operators.
#[derive(Clone, Copy)]
pub struct OpDef {
    /// Its domain; empty for `ai.onnx`.
    pub domain: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The supported versions of the operator, ascending. The newest one that is at most the model's opset applies ([`Cx::since`]); a
    /// model below the first is refused.
    pub since: &'static [i64],
    /// Decodes inputs and attributes, and returns one value per output, in order. Trailing outputs that the node does not name may be
    /// left out ([`Cx::wants`]).
    pub lower: fn(&mut Cx) -> Lowered,
    /// Prefixes of the ONNX node tests that cover it: `test_relu`.
    pub cases: &'static [&'static str],
    /// The unsupported parts, for `SUPPORTED_OPS.md`; empty when all is supported.
    pub notes: &'static str,
}

impl OpDef {
    /// An operator of `ai.onnx`.
    pub const fn new(name: &'static str, since: &'static [i64], lower: fn(&mut Cx) -> Lowered) -> OpDef {
        OpDef { domain: "", name, since, lower, cases: &[], notes: "" }
    }
    /// Sets the domain.
    pub const fn domain(self, domain: &'static str) -> OpDef {
        OpDef { domain, ..self }
    }
    /// Sets the node tests that cover it.
    pub const fn cases(self, cases: &'static [&'static str]) -> OpDef {
        OpDef { cases, ..self }
    }
    /// Sets the unsupported parts.
    pub const fn notes(self, notes: &'static str) -> OpDef {
        OpDef { notes, ..self }
    }
    /// The version that applies under an opset.
    pub fn version(&self, opset: i64) -> Option<i64> {
        self.since.iter().copied().filter(|v| *v <= opset).max()
    }
}

/// Errors about attributes.
pub trait AtAttribute {
    /// Adds to an error that it is about an attribute.
    fn attribute(self, name: &str) -> Self;
}

impl AtAttribute for OpError {
    fn attribute(self, name: &str) -> OpError {
        self.at(format!("attribute `{name}`"))
    }
}

/// The diagnostic for an error at a node.
pub fn diagnostic(e: OpError, at: Location) -> Diagnostic {
    crate::import::diagnostic(e, at, advice)
}

/// Default advice for an error at a node, by the part that it is about.
fn advice(at: &Location) -> String {
    let operator = at.operator.as_deref().unwrap_or_default();
    let (domain, name) = operator.rsplit_once('.').unwrap_or(("", operator));
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
            "correct the value of this input (a Cast for its type, a Reshape for its rank), or export the model again"
        }
        _ => "correct the node, or export the model again",
    };
    format!("{what}{definition}")
}
