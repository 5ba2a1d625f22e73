//! wgfc compiles ONNX models into a few fused WGSL kernels, a plan and weights, and runs them on WebGPU.
//!
//! This crate is the facade: it reads and writes files and combines the other crates. These are [`ir`] (graph, types,
//! [`Program`]), [`compiler`] (from a model to a `Program`; accesses neither files nor a GPU) and [`runtime`] (executes a
//! `Program` with wgpu).
//!
//! # Run a model
//! [`Model`] compiles a model, finds a device and runs it there.
//!
//! # Compile for another engine
//! A [`Program`] is plain data: WGSL, bindings, sizes over symbols, dispatches.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
//! let program = wgfc::compile(&std::fs::read(path)?, &wgfc::Options::default())?;
//! for d in &program.dispatches {
//!     let kernel = &program.kernels[d.kernel];
//!     assert!(kernel.wgsl.contains("fn main("));
//!     assert_eq!(kernel.bindings.len(), d.bindings.len());
//! }
//! // Workgroup counts and sizes are expressions over the model's symbols.
//! let batch = |s: &str| (s == "batch").then_some(32);
//! let groups = program.dispatches[0].workgroups[0].eval_syms(&batch);
//! assert!(groups.is_some_and(|n| n > 0));
//! # Ok(()) }
//! ```
//!
//! # Save and load
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
//! # let folder = tempfile::tempdir()?;
//! # let out = folder.path().join("out");
//! let program = wgfc::compile_file(&path, &wgfc::Options::default())?;
//! wgfc::save(&program, &out, &wgfc::SaveOptions::default())?;
//! assert_eq!(wgfc::load(&out)?.dispatches, program.dispatches);
//! # Ok(()) }
//! ```

// The command line refers to this crate as `wgfc`, as every program that uses it does.
#[cfg(feature = "cli")]
extern crate self as wgfc;

pub mod artefact;
pub mod cache;
#[cfg(feature = "cli")]
pub mod cli;
pub mod error;
pub mod files;
pub mod generate;
pub mod hollow;
#[cfg(feature = "hub")]
pub mod hub;
pub mod inspect;
pub mod memory;
pub mod model;
pub mod npy;
pub mod output;
pub mod overflow;
pub mod pb;
pub mod random;
#[cfg(feature = "cli")]
pub mod reduce;
pub mod source;
pub mod speeds;
pub mod suite;
mod tensors;
pub mod train;
pub mod tune;
pub(crate) mod urls;
pub mod value_info;

pub use artefact::{SaveOptions, load, load_bundle, save, save_bundle};
pub use cache::Cache;
pub use error::{Error, ErrorClass, Finding, Problem};
pub use generate::{
    BatchGenerator, ContinuousGenerator, Decoder, Generator, GeneratorOptions, Request, Sampling,
};
pub use model::{Model, Place};
pub use source::ModelFile;
pub use train::{Trainer, Training};
pub use wgfc_compiler as compiler;
pub use wgfc_compiler::{Fusion, LossScale, Options, Tuning};
pub use wgfc_ir as ir;
pub use wgfc_ir::{Bundle, DType, Program, Tensor};
pub use wgfc_runtime as runtime;
pub use wgfc_runtime::wgpu;

/// Compiles a model from its bytes. A model with external data needs [`compile_file`].
///
/// # Errors
/// [`Error::Compile`] with everything in the model that is wrong or unsupported.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let bytes = std::fs::read(&path).unwrap();
/// use wgfc::{Fusion, Options};
/// // Without fusion each operator is a kernel.
/// let plain = wgfc::compile(&bytes, &Options { fusion: Fusion::None, ..Options::default() })?;
/// let fused = wgfc::compile(&bytes, &Options::default())?;
/// assert!(fused.dispatches.len() < plain.dispatches.len());
/// # Ok(()) }
/// ```
pub fn compile(model: &[u8], options: &Options) -> Result<Program, Error> {
    Ok(wgfc_compiler::compile(model, &wgfc_compiler::import::NoExternalData, options)?)
}

/// Compiles a model from a file. Its external data is read from the same folder.
///
/// # Errors
/// [`Error::File`] if the file cannot be read; otherwise as for [`compile`].
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// use wgfc::Options;
/// // The batch is fixed, so that all sizes are numbers.
/// let options = Options { dims: [("batch".to_owned(), 8)].into(), ..Options::default() };
/// let program = wgfc::compile_file(&path, &options)?;
/// assert!(program.symbols.is_empty());
/// # Ok(()) }
/// ```
pub fn compile_file(path: &std::path::Path, options: &Options) -> Result<Program, Error> {
    ModelFile::open(path)?.compile(options)
}

/// Pages whose Rust examples are compiled and run with the documentation's tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/embedding.md")]
    mod embedding {}
}
