//! Random operators, graphs and loops, compiled for an adapter and compared with the reference evaluator.
//!
//! [`run`] tries cases until the time is up: operators with random shapes, types and attributes, random graphs, and loops.
//! Each is compiled with a random degree of fusion, set of techniques, set of device features, and choice of schedules. A
//! case is determined by its name and its number, on every machine. A case that differs is reduced to the smallest one that
//! still differs. Findings are plain data; this crate reads and writes no files.
//!
//! Tests share its parts: [`run_operator`] runs one case of an operator, [`plain_cases`] draws models of single nodes,
//! [`caught`] and [`run_session`] turn panics and errors into [`Failure`]s, and [`equal`] compares tensors.
//!
//! ```no_run
//! # fn main() -> Result<(), wgfc_selftest::NotRun> {
//! use wgfc_selftest::{Plan, run};
//! let report = run(&Plan { seconds: 10.0, ..Plan::default() }, &mut |_| {})?;
//! assert!(report.passed(), "{:?}", report.findings);
//! # Ok(()) }
//! ```

mod algebra;
mod around;
mod compare;
mod draw;
mod failure;
mod guard;
mod operators;
mod report;
mod run;
mod sequence;
mod setting;
mod shrink;
mod special;
mod subject;
#[cfg(test)]
mod tests;

pub use compare::{Tolerance, equal, relative_error};
pub use failure::{Failure, caught, run_session, session};
pub use operators::{Ran, describe, family, operators, plain_cases, run_hollow, run_operator};
pub use report::{Family, Finding, Report};
pub use run::{First, NotRun, Plan, Progress, describe_case, run, run_case};
pub use shrink::{OnDevice, Smallest};
#[doc(hidden)]
pub use subject::Fault;
pub use subject::Source;
