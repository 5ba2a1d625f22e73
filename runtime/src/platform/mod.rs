//! Everything in which native programs and web pages differ.
//!
//! `native` and `web` both define the items listed here, and the rest of the crate is written once against them. The public API that
//! exists natively alone is in `native/blocking.rs` and in the modules that the crate's root names.

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
/// Runs two futures, the first on a thread of its own where there are threads.
pub(crate) use here::both;
/// What is wrong with a kernel's text, or in it contradicts the plan, where nobody else checks that.
pub(crate) use here::check_text;
/// Compiles kernels, on all cores where there are threads.
pub(crate) use here::compile_each;
/// A copy of bytes that the device wrote.
pub(crate) use here::copied;
/// Whether a device is lost, as far as a look at it tells.
pub(crate) use here::is_lost;
/// The clock; `None` where std has none.
pub(crate) use here::now;
/// Has the callbacks called of all work up to a submission, or of all, and waits for it where callbacks come from polling.
pub(crate) use here::poll;
/// Copies pieces of tensors into buffers. What is submitted afterwards finds them there.
pub(crate) use here::upload;
/// A kernel's text as the shader compiler takes it.
pub(crate) use here::wgsl;
