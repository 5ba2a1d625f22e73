//! Random operators, compiled for an adapter and compared with the reference evaluator.
//!
//! What a case is follows from its name and its seed, on every machine.

mod compare;
mod draw;
mod failure;
mod operators;

pub use compare::{Tolerance, equal, relative_error};
pub use failure::{Failure, caught, run_session, session};
pub use operators::{Ran, describe, family, operators, plain_cases, run_operator};
