//! The compiler of wgfc for web pages: a model's graph in, plans and kernels out.
//!
//! Weights stay in their files. The page passes the model without the bytes of large tensors, which are external data in numbered
//! files. The compiler reads only tensors whose values it needs, and the answer has the file and offset of all others.
//!
//! `web/src/compiler` is the page's side. The module's only import is `read` in [`abi`], and it has no threads.

pub mod abi;
mod answer;
mod request;
#[cfg(test)]
mod tests;

pub use answer::{Answer, compile};
pub use request::{PlanRequest, Request};
