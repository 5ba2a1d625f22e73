//! Compilation for web pages, as data: a model's graph and a request in JSON in, plans, kernels and places of weights out.
//!
//! Weights stay in their files. The page passes the model without the bytes of large tensors, which are external data in numbered
//! files. The compiler reads only tensors whose values it needs, and the answer has the file and offset of all others.
//!
//! A page asks the compiler's WebAssembly module (`bindings/wasm`), or the server that it came from (`wgfc serve`).
//! `web/src/compiler` is the page's side.

mod answer;
pub mod host;
mod request;
mod trials;

pub use answer::{Answer, compile};
pub use request::{File, PlanRequest, Request, TrainingRequest};
pub use trials::TrialsRequest;
