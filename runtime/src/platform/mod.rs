//! What differs between native programs and web pages.
//!
//! The rest of the crate is written once, against the items that [`native`](self) and [`web`](self) both define.

#[cfg(not(target_arch = "wasm32"))]
mod native;
