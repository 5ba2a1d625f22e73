//! The compiler of wgfc: from a model's bytes to a [`Program`](wgfc_ir::Program).
//!
//! [`pipeline::compile`] lists the stages in order; each stage is a public function that can be called on its own.
//! This crate does no file input or output and does not use a GPU.

pub mod assemble;
pub mod budget;
pub mod device;
pub mod emit;
pub mod error;
pub mod fuse;
pub mod import;
pub mod kernel;
pub mod layout;
pub mod lower;
pub mod options;
pub mod pipeline;
pub mod precision;
pub mod quotients;
pub mod rewrite;
pub mod schedule;
pub mod shape_eval;
pub mod states;
pub mod tuning;
pub mod weights;

pub use device::DeviceProfile;
pub use error::{Diagnostic, Errors, Kind, Location, json_in_words};
pub use options::{Fusion, Options, Precision, States, Technique, WeightBits};
pub use pipeline::compile;
pub use schedule::table::Tuning;
