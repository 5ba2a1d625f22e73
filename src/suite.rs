//! Records of `wgfc bench suite`: the measurements of one device, with every sample, and comparisons between records.
//!
//! The format of the files is `docs/suite.schema.json`.

mod compare;
mod record;

pub use compare::{Comparison, adjusted, compare, mann_whitney};
pub use record::{Better, Device, Found, Host, Measured, Reading, Record, Row, Task, Unit};
