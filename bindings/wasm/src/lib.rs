//! The compiler of wgfc for web pages: a model's graph in, plans and kernels out.
//!
//! Weights stay in their files. The page passes the model without the bytes of large tensors, as external data in numbered files. The compiler
//! reads only the tensors that it computes with, and the answer says at which places of which files the others are.
//!
//! The page's side is `web/src/compiler`. The module has no imports but [`abi`]'s `read`, and no threads.

pub mod abi;
mod answer;
mod request;
#[cfg(test)]
mod tests;

pub use answer::{Answer, compile};
pub use request::{PlanRequest, Request};
