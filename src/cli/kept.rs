//! The files that commands keep from run to run.

use super::args::KeptArgs;
use super::terminal::Terminal;
use wgfc::cache::Pipelines;
use wgfc::compiler::device::Speeds;
use wgfc::runtime::Gpu;
use wgfc::speeds::{self, Source};
use wgfc::{Cache, Error, Tuning};

/// The user's cache for a device. A file in it that is no good is only warned of.
pub struct Kept {
    /// Choices measured on it.
    pub tuning: Tuning,
    /// How fast it is.
    pub speeds: Speeds,
    /// Where they come from.
    pub source: Source,
    pipelines: Option<Pipelines>,
}

impl Kept {
    /// The files that there are, less those that the options leave out.
    pub fn open(a: &KeptArgs, gpu: &Gpu, t: &Terminal) -> Kept {
        let cache = Cache::of_user();
        let tuning = cache.as_ref().filter(|_| !a.no_tuning).map(|c| c.tuning(gpu.summary()));
        let (source, speeds) = speeds(cache.as_ref().filter(|_| !a.no_tuning), gpu, t);
        let pipelines = cache.filter(|_| !a.no_cache).map(|c| c.pipelines(gpu));
        if let Some(e) = pipelines.as_ref().and_then(Pipelines::problem) {
            warn(e, t);
        }
        let tuning = tuning.unwrap_or_else(|| Ok(Tuning::default())).unwrap_or_else(|e| {
            warn(&e, t);
            Tuning::default()
        });
        Kept { tuning, speeds, source, pipelines }
    }

    /// Keeps the pipelines that were compiled.
    pub fn save(&self, t: &Terminal) {
        if let Some(Err(e)) = self.pipelines.as_ref().map(Pipelines::save) {
            warn(&e, t);
        }
    }
}

/// The known speeds of a device. A file of measurements that is no good is only warned of.
pub fn speeds(cache: Option<&Cache>, gpu: &Gpu, t: &Terminal) -> (Source, Speeds) {
    speeds::known(cache, gpu.summary()).unwrap_or_else(|e| {
        warn(&e, t);
        speeds::named(gpu.summary())
    })
}

/// Says what is wrong with a file that can be done without.
pub fn warn(e: &Error, t: &Terminal) {
    t.warnings(&[e.to_string().trim_start_matches("error: ").to_owned()]);
}
