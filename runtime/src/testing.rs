//! The adapters that tests run on.
//!
//! On a machine without a GPU these are the software implementations of Vulkan. The Vulkan loader reads `VK_DRIVER_FILES` when it
//! is first used: set it to the manifests of all drivers, separated by colons, and [`gpus`] opens each of their adapters. A
//! kernel must be correct on all of them.

use crate::gpu::{AdapterChoice, Gpu};
use std::sync::OnceLock;

/// All adapters, or the one that `WGFC_ADAPTER` names, opened once for the whole process. SwiftShader, which takes longest to
/// compile a kernel, comes last: a test that needs only one adapter uses the first.
///
/// If there is no adapter, this prints a message to stderr and returns none, so that the calling test is *skipped*. It panics
/// instead if the environment variable `CI` is set and not empty, so that a skip is not overlooked there.
pub fn gpus() -> &'static [Gpu] {
    static GPUS: OnceLock<Vec<Gpu>> = OnceLock::new();
    let gpus = GPUS.get_or_init(|| {
        let chosen = AdapterChoice::from_env();
        let choices = match chosen {
            AdapterChoice::Best => (0..Gpu::adapters_blocking().len()).map(AdapterChoice::Index).collect(),
            one => vec![one],
        };
        let opened = choices.iter().map(Gpu::request_blocking);
        let mut gpus: Vec<Gpu> =
            opened.filter_map(|g| g.inspect_err(|e| eprintln!("cannot open an adapter: {e}")).ok()).collect();
        gpus.sort_by_key(|g| g.summary().name.contains("SwiftShader"));
        gpus
    });
    if gpus.is_empty() {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let ci = std::env::var("CI").is_ok_and(|v| !v.is_empty());
        assert!(!ci, "{test} needs a GPU adapter, there is none, and CI is set");
        eprintln!("SKIPPED {test}: no GPU adapter (set VK_DRIVER_FILES to a software Vulkan driver)");
    }
    gpus
}
