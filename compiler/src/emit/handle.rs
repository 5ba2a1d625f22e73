//! The expressions by which statements name a value.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

/// A value that an expression can be made of: its text, and what holds it.
#[derive(Clone, Debug)]
pub struct Handle {
    text: String,
    held: Held,
}

/// The form in which a value is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// Nothing: a literal or an index.
    Inline,
    /// A `let`.
    Let,
    /// A `var`: the result of a reduction, or what a loop carries. Its value changes.
    Var,
}

impl Handle {
    /// A literal, an index, or anything else that needs no `let`.
    pub fn inline(text: impl Into<String>) -> Handle {
        Handle { text: text.into(), held: Held::Inline }
    }
    /// The name of a `let`.
    pub fn named(text: impl Into<String>) -> Handle {
        Handle { text: text.into(), held: Held::Let }
    }
    /// A `var`, or an element of it.
    pub fn var(text: impl Into<String>) -> Handle {
        Handle { text: text.into(), held: Held::Var }
    }
    /// A component of a vector.
    pub fn component(&self, c: &str) -> Handle {
        Handle { text: format!("{}.{c}", self.text), held: self.held }
    }
    /// Whether it is a `let` or a component of one: no constant expression, and it stays as it is.
    pub fn is_let(&self) -> bool {
        self.held == Held::Let
    }
    /// Whether later statements may change it.
    pub fn is_var(&self) -> bool {
        self.held == Held::Var
    }
}

impl Deref for Handle {
    type Target = str;
    fn deref(&self) -> &str {
        &self.text
    }
}

impl Borrow<str> for Handle {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.text)
    }
}
