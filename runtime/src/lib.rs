//! Executes a [`wgfc_program::Program`] with wgpu, natively or in a browser.
//!
//! A [`Gpu`] is an adapter and its device. A [`Session`] is a program on a GPU: pipelines made,
//! weights uploaded. Running it binds the program's symbols to the shapes of the inputs, packs the
//! arenas, and records the whole plan as one compute pass in one submission. Bind groups and arenas are kept from run to run.
//! Tensors come from and go to host memory ([`Session::run`]) or stay on the device ([`Session::run_on_device`]). An application
//! that has a wgpu device shares it ([`Gpu::from_wgpu`]) and its buffers ([`Gpu::adopt`]), and records runs into its own encoders
//! ([`Session::encode`]). [`Plans`] are several programs of one model: a run uses the first one that accepts its inputs.
//!
//! This crate knows no operators, only kernels, buffers and workgroup counts. Every function that can fail returns a
//! [`RunError`].
//!
//! ```no_run
//! # fn run(program: wgfc_program::Program) -> Result<(), wgfc_runtime::RunError> {
//! use wgfc_program::Tensor;
//! use wgfc_runtime::{AdapterChoice, Gpu, Session};
//! let gpu = Gpu::request_blocking(&AdapterChoice::from_env())?;
//! let mut session = Session::new_blocking(&gpu, &program)?;
//! let outputs = session.run_blocking(&[("x", Tensor::from_f32(vec![3], &[1.0, 2.0, 3.0]))])?;
//! # Ok(()) }
//! ```

pub mod bind;
pub mod check;
pub mod error;
pub mod gpu;
pub mod kernel;
#[cfg(not(target_arch = "wasm32"))]
mod measuring;
pub mod plans;
mod platform;
pub mod profile;
mod requirements;
pub mod session;
pub mod state;
pub mod stats;
pub mod tensor;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
pub mod timeline;
mod timestamps;
mod upload;
mod wait;

pub use error::{BadInput, NotTaken, RunError};
pub use gpu::{AdapterChoice, AdapterSummary, Gpu, Uploads};
#[cfg(not(target_arch = "wasm32"))]
pub use measuring::{measure, overhead, primitives, together, transfers, trial};
pub use plans::Plans;
pub use profile::{DispatchProfile, Profile};
pub use requirements::Requirements;
pub use session::Session;
pub use stats::Estimate;
pub use tensor::DeviceTensor;
pub use wgfc_program::DeviceLimits;
pub use wgfc_program::suggest::Relation;
pub use wgpu;
