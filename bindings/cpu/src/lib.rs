//! Models on the CPU, as a WebAssembly module for web pages and Node. Requests and answers are those of
//! [`wgfc_compiler::requests::host`].
//!
//! `web/src/cpu` is the page's side. The module's only import is `read` in `bindings/shared/files.rs`, and it has no threads.

pub mod abi;
#[path = "../../shared/files.rs"]
mod files;
#[path = "../../shared/memory.rs"]
mod memory;
#[cfg(test)]
mod tests;
