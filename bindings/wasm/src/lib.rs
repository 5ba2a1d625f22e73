//! The compiler of wgfc as a WebAssembly module for web pages. Requests and answers are those of [`wgfc_compiler::requests`].
//!
//! `web/src/compiler` is the page's side. The module's only import is `read` in `bindings/shared/files.rs`, and it has no threads.

pub mod abi;
#[path = "../../shared/files.rs"]
mod files;
#[path = "../../shared/memory.rs"]
mod memory;
#[cfg(test)]
mod tests;
