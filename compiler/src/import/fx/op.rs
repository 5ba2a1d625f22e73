//! The contract of an operator, which each file in [`ops`](super::ops) implements.

use super::cx::Cx;
use super::messages::{Argument, Node};
pub use crate::lower::{Lowered, OpError};
use crate::{Diagnostic, Location};

/// An operator of torch and its lowering to core operators.
#[derive(Clone, Copy)]
pub struct OpDef {
    /// The name in graphs, without `torch.ops.`, with all overloads that have this lowering: `aten.add.Scalar|Tensor`,
    /// `higher_order.cond`.
    pub target: &'static str,
    /// Reads the arguments and returns a value for each result, in order. An in-place operator (`add_`) uses the lowering of the
    /// functional one (`add`), and its result is then written to the argument.
    pub lower: fn(&mut Cx) -> Lowered,
    /// Arguments that the operator writes although its schema does not say so.
    pub writes: &'static [&'static str],
    /// A flag; the operator writes its arguments only if it is set.
    pub writes_if: Option<&'static str>,
    /// An argument, a tensor or a list, of which the results may be views although the schema does not say so. A result is a view if its
    /// lowering consists of views.
    pub views: Option<&'static str>,
    /// Whether several elements of a result may be the same element of the tensor that it is a view of.
    pub repeats: bool,
    /// Whether it takes or returns complex numbers, which are pairs along a last axis.
    pub complex: bool,
    /// Whether it applies to the real and imaginary parts of complex numbers independently.
    pub by_parts: bool,
    /// Whether it computes in f32 for narrower floats, and rounds only its results.
    pub in_f32: bool,
    /// The unsupported parts, for `SUPPORTED_OPS.md`; empty when all is supported.
    pub notes: &'static str,
}

impl OpDef {
    /// The names in graphs, one per overload.
    pub fn targets(&self) -> impl Iterator<Item = String> {
        let (name, overloads) = self.target.rsplit_once('.').unwrap_or(("", self.target));
        overloads.split('|').map(move |o| format!("{name}.{o}"))
    }
    /// An operator.
    pub const fn new(target: &'static str, lower: fn(&mut Cx) -> Lowered) -> OpDef {
        OpDef {
            target,
            lower,
            writes: &[],
            writes_if: None,
            views: None,
            repeats: false,
            complex: false,
            by_parts: false,
            in_f32: false,
            notes: "",
        }
    }
    /// Sets the arguments that the operator writes although its schema does not say so.
    pub const fn writes(self, writes: &'static [&'static str]) -> OpDef {
        OpDef { writes, ..self }
    }
    /// Sets the flag without which the operator writes no argument.
    pub const fn writes_if(self, flag: &'static str) -> OpDef {
        OpDef { writes_if: Some(flag), ..self }
    }
    /// Sets the argument, a tensor or a list, of which the results may be views.
    pub const fn views(self, of: &'static str) -> OpDef {
        OpDef { views: Some(of), ..self }
    }
    /// Declares that several elements of a result may be the same element of the tensor that it is a view of.
    pub const fn repeats(self) -> OpDef {
        OpDef { repeats: true, ..self }
    }
    /// Declares that it takes or returns complex numbers.
    pub const fn complex(self) -> OpDef {
        OpDef { complex: true, ..self }
    }
    /// Declares that it applies to the real and imaginary parts of complex numbers independently.
    pub const fn by_parts(self) -> OpDef {
        OpDef { complex: true, by_parts: true, ..self }
    }
    /// Declares that it computes in f32 for narrower floats, and rounds only its results.
    pub const fn in_f32(self) -> OpDef {
        OpDef { in_f32: true, ..self }
    }
    /// Sets the unsupported parts.
    pub const fn notes(self, notes: &'static str) -> OpDef {
        OpDef { notes, ..self }
    }
}

/// The name of an operator in graphs, without the common prefix.
pub fn target(node: &Node) -> &str {
    let t = node.target.as_str();
    t.strip_prefix("torch.ops.").unwrap_or(t)
}

/// Whether all results of a node are symbolic numbers, whose expressions the graph's tables hold.
pub fn makes_sizes(node: &Node) -> bool {
    let size = |a: &Argument| {
        matches!(a, Argument::SymInt(_) | Argument::SymInts(_) | Argument::SymFloat(_) | Argument::SymBool(_))
    };
    !node.outputs.is_empty() && node.outputs.iter().all(size)
}

/// The name of a node: its own, or that of its first result.
pub fn label(node: &Node, index: usize) -> String {
    match (&node.name, node.results().next()) {
        (Some(name), _) if !name.is_empty() => name.clone(),
        (_, Some(name)) => name.to_owned(),
        _ => format!("#{index} ({})", target(node)),
    }
}

/// The location of a node, from its metadata.
pub fn location(node: &Node, index: usize) -> Location {
    Location {
        node: Some(label(node, index).into()),
        operator: Some(target(node).into()),
        source: source(node),
        ..Location::default()
    }
}

/// The module that a node was traced in, and its Python line: `layers.0.mlp, model.py:12: x = self.up(x)`.
pub fn source(node: &Node) -> Option<String> {
    let module = module(node).filter(|m| !m.is_empty()).map(|m| format!("module {m}"));
    let line = node.metadata.get("stack_trace").and_then(|t| {
        let at = t.rfind("File \"")?;
        let mut lines = t[at..].lines();
        let place = lines.next()?.strip_prefix("File \"")?;
        let (file, rest) = place.split_once("\", line ")?;
        let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let file = file.rsplit(['/', '\\']).next().unwrap_or(file);
        let code = lines.next().unwrap_or_default().trim();
        Some(format!("{file}:{number}: {}", code.chars().take(100).collect::<String>()))
    });
    let parts: Vec<String> = [module, line].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The qualified name of the innermost module that a node was traced in.
pub fn module(node: &Node) -> Option<&str> {
    let last = node.metadata.get("nn_module_stack")?.rsplit(';').next()?;
    last.split(',').nth(1)
}

/// The diagnostic for an error at a node.
pub fn diagnostic(e: OpError, at: Location) -> Diagnostic {
    crate::import::diagnostic(e, at, |at| match at.operator.as_deref() {
        Some(o) if o.starts_with("aten.") => {
            let name = o.split('.').nth(1).unwrap_or(o);
            format!(
                "correct the call in the module and export it again; torch's documentation of {name} says what it takes"
            )
        }
        _ => "correct the module, and export it again".into(),
    })
}
