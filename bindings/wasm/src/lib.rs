//! The compiler of wgfc as a WebAssembly module for web pages. Requests and answers are those of [`wgfc_compiler::requests`].
//!
//! `web/src/compiler` is the page's side. The module's only import is `read` in [`abi`], and it has no threads.

pub mod abi;
#[cfg(test)]
mod tests;
