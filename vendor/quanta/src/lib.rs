//! The part of the crate `quanta` that `egg` uses.
//!
//! `egg` takes the time of its steps for its log. In a web page `quanta` would read it through `web-sys`, which makes a WebAssembly module
//! that only `wasm-bindgen` can load; nothing here asks for the log, so that there the time stands still.

use std::time::Duration;

/// A moment.
#[derive(Clone, Copy, Debug)]
pub struct Instant(#[cfg(not(target_arch = "wasm32"))] std::time::Instant);

impl Instant {
    /// This moment.
    #[must_use]
    pub fn now() -> Instant {
        Instant(
            #[cfg(not(target_arch = "wasm32"))]
            std::time::Instant::now(),
        )
    }

    /// The time since.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        #[cfg(not(target_arch = "wasm32"))]
        return self.0.elapsed();
        #[cfg(target_arch = "wasm32")]
        Duration::ZERO
    }
}
