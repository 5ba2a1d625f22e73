//! The compiler of wgfc for web pages: a model's graph in, plans and kernels out.
//!
//! Weights stay where they are. The model comes without the bytes of large tensors, which are external data of numbered files; what
//! the compiler computes with, it asks for. The answer says where the others are.
//!
//! `web/src/compiler` has the other side. The module has no imports but [`abi`]'s `read`, and no threads.

pub mod abi;
mod answer;
mod request;
#[cfg(test)]
mod tests;

pub use answer::{Answer, compile};
pub use request::{PlanRequest, Request};
