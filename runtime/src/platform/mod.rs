//! Everything in which native programs and web pages differ.
//!
//! `native` and `web` both define the items listed here, and the rest of the crate is written once against them. Public API that exists
//! natively alone is in `native/blocking.rs`, `measuring/` and `testing.rs`.

#[cfg(not(target_arch = "wasm32"))]
mod native;
#[cfg(target_arch = "wasm32")]
mod web;

#[cfg(not(target_arch = "wasm32"))]
use native as here;
#[cfg(target_arch = "wasm32")]
use web as here;

/// Pipelines for kernels whose loops have more iterations than the driver allows.
pub(crate) use here::Longer;
/// Memory that uploads go through, kept from one to the next.
pub(crate) use here::Pool;
/// The adapters that there are.
pub(crate) use here::adapters;
/// The results of compiling kernels and of other work, at the same time where there are threads.
pub(crate) use here::both;
/// The faults of a kernel's text, and where it contradicts the plan; none where the browser checks kernels.
pub(crate) use here::check_text;
/// Compiles kernels, on all cores where there are threads.
pub(crate) use here::compile_each;
/// A copy of bytes that the device wrote.
pub(crate) use here::copied;
/// Whether a device is found to be lost; `false` where that cannot be found out without waiting.
pub(crate) use here::is_lost;
/// The time; `None` where std has no clock.
pub(crate) use here::now;
/// Waits for all work up to a submission, or for all that was submitted, and calls its callbacks; returns at once where they are called
/// without polling.
pub(crate) use here::poll;
/// Copies pieces of tensors into buffers. What is submitted afterwards finds them there.
pub(crate) use here::upload;
/// A kernel's text as the shader compiler takes it.
pub(crate) use here::wgsl;
