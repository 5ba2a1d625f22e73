//! Operators as core operators: what they compute, whatever format a model comes in.
//!
//! A function takes a [`Lowering`], its operands as values of the graph, and its parameters as plain or
//! typed arguments: `conv(cx, x, w, bias, &Conv { … })`. What format a parameter had, which default it has
//! and which version of an operator is meant, the source's importer knows; so it names what an error is
//! about, of which here only the operand or the parameter is known ([`Part`]).

mod context;
mod error;
mod sizes;

pub use context::{Lowering, Notes, Place, axes, axis};
pub use error::{Lowered, OpError, Part, Result};
pub use sizes::check_dims;
