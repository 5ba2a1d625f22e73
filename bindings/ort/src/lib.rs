//! A backend of [`ort`](https://ort.pyke.io), the Rust crate for ONNX Runtime: a program that uses `ort` runs its models on wgfc
//! after one line, and links no ONNX Runtime.
//!
//! ```no_run
//! # use ort::session::Session;
//! # fn run() -> ort::Result<()> {
//! ort::set_api(wgfc_ort::api());
//! let env = ort::init().build()?;
//! let session = Session::builder(&env)?.commit_from_file("model.onnx")?;
//! # Ok(()) }
//! ```
//!
//! `ort` must be built with `default-features = false` and the feature `alternative-backend`. The model is compiled when the session
//! is committed, for the adapter on which it will run; a folder or file that `wgfc compile` has written is opened instead. Without an
//! adapter the reference evaluator runs it on the CPU, slowly.
//!
//! | `ort` | here |
//! |---|---|
//! | sessions from files and from memory, `run`, names, types and shapes of inputs and outputs with the names of open extents | yes |
//! | tensors of every type but strings, borrowed and owned, outputs that the caller provides | yes |
//! | `with_dimension_override` | the compiler's `--dim` |
//! | `with_optimization_level(Disable)` | nothing is fused |
//! | `with_config_entry("wgfc.adapter", …)` | a part of the adapter's name, its number, `software`, or `cpu-evaluator` |
//! | threads, memory patterns, logging, execution providers | no effect, as there is nothing they could change |
//! | strings, sequences, maps, optional values; custom operators; `IoBinding`; `RunAsync`; training; the model editor; metadata | an error that says so |
//!
//! Values are on the host, so an output that is an input of the next run is copied. [`wgfc::runtime::Session`] can keep it on the
//! device.

mod api;
mod memory;
mod session;
mod tensor;

pub use api::api;
