//! The contract of an operator: what a file in [`ops`](super::ops) provides.

use super::cx::Cx;
use super::messages::{Argument, Node};
pub use crate::lower::{Lowered, OpError};
use crate::{Diagnostic, Location};

/// How one operator of torch becomes core operators.
#[derive(Clone, Copy)]
pub struct OpDef {
    /// The name in graphs, without `torch.ops.`, with all overloads that are lowered so: `aten.add.Scalar|Tensor`, `higher_order.cond`.
    pub target: &'static str,
    /// Reads the arguments, and lowers. It returns a value for each result, in order. An operator that works in place
    /// (`add_`) is lowered as the one that does not (`add`), and its result written.
    pub lower: fn(&mut Cx) -> Lowered,
    /// Arguments that it writes although its declaration does not say so.
    pub writes: &'static [&'static str],
    /// The flag without which it writes no argument.
    pub writes_if: Option<&'static str>,
    /// The argument, or the list of arguments, of which its results are views where all that it does are views, although its
    /// declaration does not say so.
    pub views: Option<&'static str>,
    /// Whether several elements of a result may be one element of what it is a view of.
    pub repeats: bool,
    /// Whether it takes or makes complex numbers: pairs of numbers along a last axis.
    pub complex: bool,
    /// Whether it does to complex numbers what it does to their parts, each alone.
    pub by_parts: bool,
    /// Whether it computes with narrower floats in f32, and rounds only its results.
    pub in_f32: bool,
    /// The unsupported parts, for `SUPPORTED_OPS.md`; empty when all is supported.
    pub notes: &'static str,
}

impl OpDef {
    /// The names in graphs, one for each overload.
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
    /// Arguments that it writes although its declaration does not say so.
    pub const fn writes(self, writes: &'static [&'static str]) -> OpDef {
        OpDef { writes, ..self }
    }
    /// The flag without which it writes no argument.
    pub const fn writes_if(self, flag: &'static str) -> OpDef {
        OpDef { writes_if: Some(flag), ..self }
    }
    /// The argument, or the list of arguments, of which its results may be views.
    pub const fn views(self, of: &'static str) -> OpDef {
        OpDef { views: Some(of), ..self }
    }
    /// That several elements of a result may be one element of what it is a view of.
    pub const fn repeats(self) -> OpDef {
        OpDef { repeats: true, ..self }
    }
    /// That it takes or makes complex numbers.
    pub const fn complex(self) -> OpDef {
        OpDef { complex: true, ..self }
    }
    /// That it does to complex numbers what it does to their parts, each alone.
    pub const fn by_parts(self) -> OpDef {
        OpDef { complex: true, by_parts: true, ..self }
    }
    /// That it computes with narrower floats in f32, and rounds only its results.
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

/// Whether all that a node makes are numbers of sizes, which stand in its graph's tables.
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

/// Where a node is, in the words of its metadata.
pub fn location(node: &Node, index: usize) -> Location {
    Location {
        node: Some(label(node, index).into()),
        operator: Some(target(node).into()),
        source: source(node),
        ..Location::default()
    }
}

/// The module that a node was traced in, and the line of Python: `layers.0.mlp, model.py:12: x = self.up(x)`.
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

/// An error, of which the part is said in the words of the model, at a node.
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
