//! The differences between native programs and web pages.
//!
//! `native` and `web` both define the items listed here, and the rest of the crate uses only these. Public API that exists only
//! natively is in `native/blocking.rs`, `measuring/` and `testing.rs`.

#[cfg(not(target_arch = "wasm32"))]
mod native;
#[cfg(target_arch = "wasm32")]
mod web;

#[cfg(not(target_arch = "wasm32"))]
use native as here;
#[cfg(target_arch = "wasm32")]
use web as here;

/// Replacement pipelines for kernels whose loops have more iterations than the driver allows.
pub(crate) use here::Longer;
/// The size in bytes of the pieces into which an upload is split, a multiple of 4.
pub(crate) use here::PIECE;
/// The pool of staging buffers for uploads.
pub(crate) use here::Pool;
/// All adapters.
pub(crate) use here::adapters;
/// The results of compiling kernels and of other work, done concurrently if the platform has threads.
pub(crate) use here::both;
/// The errors of a kernel's WGSL text, including contradictions to the plan. Always empty on web pages, where the browser
/// validates kernels.
pub(crate) use here::check_text;
/// Compiles kernels, on all cores if the platform has threads.
pub(crate) use here::compile_each;
/// A copy of bytes that the device wrote.
pub(crate) use here::copied;
/// Whether a device is lost; `false` if that cannot be found out without waiting.
pub(crate) use here::is_lost;
/// The bytes of a device's own memory, if the platform says it.
pub(crate) use here::memory;
/// The time; `None` if std has no clock on this platform.
pub(crate) use here::now;
/// Waits for all work up to a submission, or for all submitted work, and calls its callbacks. Returns at once on platforms that
/// call them without polling.
pub(crate) use here::poll;
/// Copies pieces of tensors into buffers. Work that is submitted afterwards sees the bytes.
pub(crate) use here::upload;
/// A kernel's WGSL text in the form that the shader compiler accepts.
pub(crate) use here::wgsl;
