//! Operators as core operators: what they compute, whatever format a model comes in.
//!
//! A function takes a [`Lowering`], its operands as values of the graph, and its parameters as plain or
//! typed arguments: `conv(cx, x, w, bias, &Conv { … })`. What format a parameter had, which default it has
//! and which version of an operator is meant, the source's importer knows; so it names what an error is
//! about, of which here only the operand or the parameter is known ([`Part`]).

pub mod activation;
pub mod arg;
pub mod cast;
pub mod chosen;
mod context;
pub mod elementwise;
mod error;
pub mod gates;
pub mod linalg;
pub mod matmul;
pub mod norm;
pub mod placed;
pub mod random;
pub mod range;
pub mod reduce;
pub mod shape;
mod sizes;
pub mod slice;
pub mod softmax;
pub mod split;
pub mod unique;
pub mod window;

pub use context::{Lowering, Notes, Place, Size, axes, axis};
pub use error::{Lowered, OpError, Part, Result};
pub use sizes::check_dims;
