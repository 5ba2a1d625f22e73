//! What commands keep from run to run.

use super::args::KeptArgs;
use super::terminal::Terminal;
use wgfc::runtime::Gpu;
use wgfc::{Cache, Tuning};

/// The choices measured on the device, unless they shall be left out. A file that is no good is only
/// warned of.
pub fn tuning(a: &KeptArgs, gpu: &Gpu, t: &Terminal) -> Tuning {
    let Some(cache) = Cache::of_user().filter(|_| !a.no_tuning) else { return Tuning::default() };
    cache.tuning(gpu.summary()).unwrap_or_else(|e| {
        t.warnings(&[e.to_string().trim_start_matches("error: ").to_owned()]);
        Tuning::default()
    })
}
