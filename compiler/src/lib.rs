//! The compiler of wgfc: from a model's bytes to a [`Program`](wgfc_ir::Program).
//!
//! [`pipeline::compile`] lists the stages in order; each stage is a public function that can be called on its own.
//! This crate does no file input or output and does not use a GPU.
//!
//! Programs use it through the crate `wgfc`: [`compile`], [`Options`] and the other types that are exported here, and
//! [`import`]. Everything else is internal: it is public for `wgfc`'s own crates and tests, may change in every version, and
//! has no examples.
//!
//! ```
//! use wgfc_compiler::{Options, pipeline::compile_graph};
//! use wgfc_ir::{Border, Builder, DType, Dim, Graph, TensorType, program::Stats};
//! // A graph that was built, not imported: y = x·w.
//! let mut graph = Graph::new();
//! let x = graph.add_input("x", TensorType::new(DType::F32, [Dim::sym("batch"), Dim::constant(13)]));
//! let w = graph.add_input("w", TensorType::new(DType::F32, [Dim::constant(13), Dim::constant(5)]));
//! let y = Builder::new(&mut graph, "product").matmul(x, w)?;
//! graph.outputs.push(Border { name: "y".into(), value: y });
//! let program = compile_graph(graph, Stats::default(), &Options::default(), &mut |_, _| {})?;
//! assert_eq!(program.kernels.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod assemble;
pub mod budget;
pub mod cost;
pub mod decoding;
pub mod device;
pub mod emit;
pub mod error;
pub mod fuse;
pub mod import;
pub mod kernel;
pub mod layout;
pub mod loss_scale;
pub mod lower;
pub mod nest;
pub mod options;
pub mod passes;
pub mod pipeline;
pub mod precision;
pub mod quotients;
pub mod requests;
pub mod rewrite;
pub mod schedule;
pub mod shape_eval;
pub mod states;
pub mod timings;
pub mod training;
pub mod tuning;
pub mod value_info;
pub mod weights;

pub use device::DeviceProfile;
pub use error::{Diagnostic, Errors, Kind, Location, json_in_words};
pub use options::{
    Activations, CacheType, Fusion, LossScale, Options, Precision, States, Technique, WeightBits,
};
pub use pipeline::compile;
pub use schedule::table::Tuning;
pub use value_info::ValueInfo;
