//! Graphs as text: printed for inspection, parsed for tests.
//!
//! ```text
//! graph (x: %0) -> (y: %3) {
//!   require past + seq == total @ "add"
//!   %0 = input : f32[n, 7] as "x"
//!   %1 = const [0.5] : f32[]
//!   %2 = map [n, 7] { let t0 = exp(a0); mul(t0, add(t0, a1)) } (%0, %1) : f32[n, 7] @ "act"
//!   %3 = view [7, n] reads [%1, %0] (%2) : f32[7, n] @ "transpose"
//! }
//! ```
//!
//! `state cache: %0 -> %7 axis 2 from past by seq` declares a tensor that is kept from run to run, with its old and
//! new contents and, if it grows along an axis, the symbol for its length and the number of positions added per run.
//! `state total: %0 -> %7 initial [0.5, 1.0]` has contents before the first run, printed like a constant.
//!
//! Each line is a node: its results, the operator with its attributes, its operands, the types of the results, their
//! names in the model (`as "x"`, `_` for none), and the model's nodes from which it was made (`@`). Inside brackets
//! and braces `%0` is a variable of the domain; elsewhere it is a value.
//!
//! - In a body `a0` is an operand, `t0` a shared node, `1.5:f32` a constant, `index(%0 + 1)` a position.
//! - `contract [bmk, bkn -> bmn]` names axes by letters.
//! - `gather [n, 7] reads [%0, $1[%1]]` reads index operand 1.
//! - Constants of up to 64 elements are printed in full; a larger one prints as `const hash …` and one
//!   without values as `const absent`; both are parsed as absent. `//` begins a comment.
//!
//! Nodes are printed in topological order and numbered from 0, so that the text depends only on the meaning.

mod body;
mod parse;
mod parser;
mod print;
#[cfg(test)]
mod tests;

pub use parse::parse;
pub use parser::{Parsed, Parser};
pub use print::{constant, print, quoted, scalar};

use std::fmt;

/// The maximum number of elements of a constant that are printed.
pub const INLINE_ELEMENTS: usize = 64;

/// The position and the reason of a syntax error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// Line, counted from 1.
    pub line: usize,
    /// Column in bytes, counted from 1.
    pub column: usize,
    /// The text expected there, or the part that does not fit.
    pub message: String,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}
impl std::error::Error for TextError {}

impl fmt::Display for crate::graph::Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}
