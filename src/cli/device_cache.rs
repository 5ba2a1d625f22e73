//! The files of a device in the user's cache: measured schedules, speeds, compiled pipelines.

use super::args::CacheArgs;
use super::terminal::Terminal;
use wgfc::cache::Pipelines;
use wgfc::compiler::device::Speeds;
use wgfc::runtime::Gpu;
use wgfc::speeds::{self, Source};
use wgfc::{Cache, Error, Tuning};

/// The user's cache for a device. A file that cannot be used is ignored with a warning.
pub struct DeviceCache {
    /// Schedules measured on the device.
    pub tuning: Tuning,
    /// The speeds of the device, measured or assumed.
    pub speeds: Speeds,
    /// The origin of the speeds.
    pub source: Source,
    pipelines: Option<Pipelines>,
}

impl DeviceCache {
    /// Reads the files, except those that the options exclude.
    pub fn open(a: &CacheArgs, gpu: &Gpu, t: &Terminal) -> DeviceCache {
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
        DeviceCache { tuning, speeds, source, pipelines }
    }

    /// Stores the pipelines that have been compiled since.
    pub fn save(&self, t: &Terminal) {
        if let Some(Err(e)) = self.pipelines.as_ref().map(Pipelines::save) {
            warn(&e, t);
        }
    }
}

/// The measured or assumed speeds of a device. A file of measurements that cannot be used is ignored with a warning.
pub fn speeds(cache: Option<&Cache>, gpu: &Gpu, t: &Terminal) -> (Source, Speeds) {
    speeds::known(cache, gpu.summary()).unwrap_or_else(|e| {
        warn(&e, t);
        speeds::named(gpu.summary())
    })
}

/// Warns about a file that is not essential.
pub fn warn(e: &Error, t: &Terminal) {
    t.warnings(&[e.to_string().trim_start_matches("error: ").to_owned()]);
}
