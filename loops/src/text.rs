//! The text form, as the front page of the [crate] defines it. [`parse()`] reads what `Display` of a [`Kernel`](crate::Kernel) prints, and
//! printing it again gives the same text.

mod parse;
mod print;

pub use parse::parse;
pub use print::{expr, statement};

/// A text that is no kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct TextError {
    /// The line, from 1.
    pub line: usize,
    /// The reason why the line is refused.
    pub message: String,
}

/// Operators between their operands: those of one line bind equally strongly, later lines more strongly than earlier ones.
const INFIX: [&[(&str, wgfc_ir::BinaryOp)]; 3] = {
    use wgfc_ir::BinaryOp::{Add, Div, Eq, Ge, Gt, Le, Lt, Mul, Ne, Sub};
    [
        &[("<=", Le), (">=", Ge), ("==", Eq), ("!=", Ne), ("<", Lt), (">", Gt)],
        &[("+", Add), ("-", Sub)],
        &[("*", Mul), ("/", Div)],
    ]
};
