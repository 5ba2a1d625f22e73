//! The cache that is kept between processes. For each device it holds measured speeds, tuned schedules and compiled
//! pipelines.
//!
//! A cache is a folder: the one that `WGFC_CACHE_DIR` names, else `wgfc` in the user's cache folder (`$XDG_CACHE_HOME` or
//! `~/.cache`; on Windows, the local application data). Files are written whole and renamed. Their names contain the adapter
//! and a hash of its name, driver, backend and features, as each of these may change which schedule is best. Nothing in them
//! is trusted, and all of it can be deleted at any time.

use crate::{Error, output};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wgfc_compiler::device::Speeds;
use wgfc_compiler::schedule::Schedule;
use wgfc_compiler::{DeviceProfile, Tuning};
use wgfc_runtime::{AdapterSummary, Gpu};

/// The folder's name in the user's cache folder.
const FOLDER: &str = "wgfc";
/// The most bytes of a file of the cache; a larger one is refused.
const MOST_BYTES: u64 = 64 << 20;

/// A folder of files for each device. See the [module](self).
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let Some(gpu) = wgfc::runtime::testing::gpus().first().cloned() else { return Ok(()) };
/// # let folder = tempfile::tempdir().unwrap();
/// use wgfc::{Cache, Options};
/// let cache = Cache::at(&folder.path().join("cache"));
/// let adapter = gpu.summary();
/// // Pipelines that are compiled from here on are kept for the next process.
/// let pipelines = cache.pipelines(&gpu);
/// // Schedules that `wgfc tune` measured on this adapter.
/// let options = Options { tuning: cache.tuning(adapter)?, ..Options::default() };
/// // … compile and run …
/// pipelines.save()?;
/// # assert!(options.tuning.choices.is_empty() && cache.speeds(adapter)?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache in this folder, which is created when something is stored.
    pub fn at(folder: &Path) -> Cache {
        Cache { folder: folder.to_owned() }
    }

    /// The cache in the folder that the [module](self) describes; `None` for a user without a home.
    ///
    /// ```
    /// // In the folder that `WGFC_CACHE_DIR` names, or in the user's cache folder.
    /// if let Some(cache) = wgfc::Cache::of_user() {
    ///     println!("{}", cache.folder().display());
    /// }
    /// ```
    pub fn of_user() -> Option<Cache> {
        use etcetera::BaseStrategy;
        if let Some(dir) = std::env::var_os("WGFC_CACHE_DIR").filter(|d| !d.is_empty()) {
            return Some(Cache { folder: dir.into() });
        }
        let strategy = etcetera::choose_base_strategy().ok()?;
        Some(Cache { folder: strategy.cache_dir().join(FOLDER) })
    }

    /// The folder that holds the cache.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of the schedules measured on an adapter, which [`Tuning::from_json`] reads.
    pub fn tuning_file(&self, adapter: &AdapterSummary) -> PathBuf {
        self.file(adapter, "tuning", "json")
    }

    /// The schedules measured on an adapter; empty if nothing was measured.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read or is damaged. The caller may ignore it.
    pub fn tuning(&self, adapter: &AdapterSummary) -> Result<Tuning, Error> {
        let path = self.tuning_file(adapter);
        Ok(match read(&path)? {
            Some(bytes) => Tuning::from_json(&bytes).map_err(|m| unusable(&path, m))?,
            None => Tuning::default(),
        })
    }

    /// Adds measurements by key: a schedule, or that none is better than the compiler's own. Earlier measurements with other
    /// keys stay; a damaged file is replaced.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    ///
    /// ```no_run
    /// # fn add(cache: &wgfc::Cache, gpu: &wgfc::runtime::Gpu, tuned: &wgfc::tune::Tuned) -> Result<(), wgfc::Error> {
    /// let entries = tuned.measured.iter().map(|m| m.entry()).collect();
    /// cache.add_tuning(gpu.summary(), &entries)?;
    /// # Ok(()) }
    /// ```
    pub fn add_tuning(
        &self,
        adapter: &AdapterSummary,
        measured: &BTreeMap<String, Option<Schedule>>,
    ) -> Result<(), Error> {
        let mut table = self.tuning(adapter).unwrap_or_default();
        for (key, choice) in measured {
            match choice {
                Some(c) => table.choices.insert(key.clone(), c.clone()),
                None => table.choices.remove(key),
            };
        }
        let text = table.to_json(Some(&identity(adapter))).map_err(Error::Internal)?;
        output::write_whole(&self.tuning_file(adapter), text.as_bytes())
    }

    /// The file of an adapter's measured speeds: a profile, which [`DeviceProfile::from_json`] reads.
    pub fn speeds_file(&self, adapter: &AdapterSummary) -> PathBuf {
        self.file(adapter, "device", "json")
    }

    /// The speeds measured on an adapter; `None` if nothing was measured.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read or is damaged. The caller may ignore it.
    pub fn speeds(&self, adapter: &AdapterSummary) -> Result<Option<Speeds>, Error> {
        let path = self.speeds_file(adapter);
        let Some(bytes) = read(&path)? else { return Ok(None) };
        let profile = DeviceProfile::from_json(&bytes).map_err(|m| unusable(&path, m))?;
        Ok(Some(profile.speeds))
    }

    /// Stores the speeds measured on a device, with its limits, in place of earlier ones.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let Some(gpu) = wgfc::runtime::testing::gpus().first().cloned() else { return Ok(()) };
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let cache = wgfc::Cache::at(folder.path());
    /// use wgfc::compiler::device::Speeds;
    /// cache.keep_speeds(&gpu, Speeds::SOFTWARE)?;
    /// assert_eq!(cache.speeds(gpu.summary())?, Some(Speeds::SOFTWARE));
    /// # Ok(()) }
    /// ```
    pub fn keep_speeds(&self, gpu: &Gpu, speeds: Speeds) -> Result<(), Error> {
        let adapter = gpu.summary();
        let profile = DeviceProfile { speeds, ..DeviceProfile::default().with_limits(gpu.profile()) };
        let text = profile.to_json(Some(&identity(adapter))).map_err(Error::Internal)?;
        output::write_whole(&self.speeds_file(adapter), text.as_bytes())
    }

    /// Loads the pipelines stored for a device, and collects the ones that it compiles from here on; [`Pipelines::save`]
    /// stores all of them.
    pub fn pipelines(&self, gpu: &Gpu) -> Pipelines {
        let path = self.file(gpu.summary(), "pipelines", "bin");
        let context = format!("{} {}", identity(gpu.summary()), gpu.pipeline_key().unwrap_or_default());
        let mut kept = Pipelines { gpu: gpu.clone(), path, context, before: None, problem: None };
        if gpu.pipeline_key().is_none() {
            return kept;
        }
        let bytes = read(&kept.path).and_then(|b| match b {
            Some(b) => {
                opened(&b, &kept.context).map(|p| Some(p.to_vec())).map_err(|m| unusable(&kept.path, m))
            }
            None => Ok(None),
        });
        let data = bytes.unwrap_or_else(|e| {
            kept.problem = Some(e);
            None
        });
        // SAFETY: the checksum shows that these bytes are the ones that `Pipelines::save` wrote for this adapter and driver,
        // and `Pipelines::save` writes exactly the bytes that the device returned.
        unsafe { gpu.keep_pipelines(data.as_deref()) };
        kept.before = data.map(|d| crc32fast::hash(&d));
        kept
    }

    fn file(&self, adapter: &AdapterSummary, what: &str, extension: &str) -> PathBuf {
        let slug: String = adapter
            .name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
            .take(40)
            .collect();
        let hash = crc32fast::hash(identity(adapter).as_bytes());
        self.folder.join(format!("{what}-{}-{hash:08x}.{extension}", slug.trim_matches('-')))
    }
}

/// Compiled pipelines of a device in a [`Cache`].
pub struct Pipelines {
    gpu: Gpu,
    path: PathBuf,
    /// The adapter and driver for which the pipelines are valid.
    context: String,
    /// The checksum of the stored pipelines.
    before: Option<u32>,
    problem: Option<Error>,
}

impl Pipelines {
    /// The reason why the stored pipelines could not be used.
    pub fn problem(&self) -> Option<&Error> {
        self.problem.as_ref()
    }

    /// Stores the pipelines if the device returns any and they differ from the stored ones.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn save(&self) -> Result<(), Error> {
        let Some(data) = self.gpu.pipeline_data() else { return Ok(()) };
        if self.before == Some(crc32fast::hash(&data)) {
            return Ok(());
        }
        // Drivers never remove pipelines: a cache that has grown too large is emptied.
        let data = if data.len() as u64 > MOST_BYTES / 2 { &[][..] } else { &data };
        output::write_whole(&self.path, &sealed(data, &self.context))
    }
}

/// The first bytes of a file of pipelines. A checksum of the context and the payload follows, then the payload.
const MAGIC: &[u8; 12] = b"wgfc pipes 1";

fn sealed(payload: &[u8], context: &str) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(checksum(payload, context).to_le_bytes());
    out.extend(payload);
    out
}

/// The payload of a file of pipelines, whose checksum must be valid for this context.
fn opened<'b>(bytes: &'b [u8], context: &str) -> Result<&'b [u8], String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("is not a file of pipelines that this wgfc reads")?;
    match rest.split_first_chunk::<4>() {
        Some((sum, payload)) if u32::from_le_bytes(*sum) == checksum(payload, context) => Ok(payload),
        _ => Err("is damaged, or of another device".into()),
    }
}

fn checksum(payload: &[u8], context: &str) -> u32 {
    let mut h = crc32fast::Hasher::new();
    h.update(&(context.len() as u64).to_le_bytes());
    h.update(context.as_bytes());
    h.update(payload);
    h.finalize()
}

/// Reads a file of measured schedules.
///
/// # Errors
/// [`Error::File`] if it does not exist or is damaged.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("tuning.json");
/// # std::fs::write(&path, wgfc::Tuning::default().to_json(None).unwrap()).unwrap();
/// use wgfc::Options;
/// use wgfc::cache::read_tuning;
/// // The table that `wgfc tune --out tuning.json` wrote.
/// let options = Options { tuning: read_tuning(&path)?, ..Options::default() };
/// # drop(options);
/// # Ok(()) }
/// ```
pub fn read_tuning(path: &Path) -> Result<Tuning, Error> {
    let bytes = read(path)?.ok_or_else(|| crate::files::unreadable(path, "no such file".into()))?;
    Tuning::from_json(&bytes).map_err(|m| Error::file_help(path, m, "`wgfc tune` makes such files"))
}

/// Reads a file of schedules that was written by hand.
///
/// # Errors
/// [`Error::File`] if it does not exist, is damaged or has an invalid schedule; the message names the kernel and the reason.
///
/// ```
/// use wgfc::cache::read_schedules;
/// let e = read_schedules("absent.json".as_ref()).unwrap_err();
/// assert!(e.to_string().contains("no such file"));
/// ```
pub fn read_schedules(path: &Path) -> Result<Tuning, Error> {
    let bytes = read(path)?.ok_or_else(|| crate::files::unreadable(path, "no such file".into()))?;
    let help = "`wgfc inspect --schedule --json` writes such files";
    Tuning::from_json(&bytes).map_err(|m| Error::file_help(path, m, help))
}

/// The device profile of this name, or the one in the file at this path.
///
/// # Errors
/// [`Error::File`] if there is neither, or the file is damaged.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// use wgfc::Options;
/// use wgfc::cache::read_profile;
/// // A name, or the path of a profile in JSON.
/// let options = Options { profile: read_profile("discrete")?, ..Options::default() };
/// assert!(read_profile("no-such-device").is_err());
/// # drop(options);
/// # Ok(()) }
/// ```
pub fn read_profile(name: &str) -> Result<DeviceProfile, Error> {
    if let Some(p) = DeviceProfile::named(name) {
        return Ok(p);
    }
    let help = format!(
        "name a file that `wgfc device --measure` stored, or one of {}",
        DeviceProfile::NAMES.join(", ")
    );
    let path = Path::new(name);
    let bytes = match read(path) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(Error::file_help(path, "no such file, and no profile of this name", help)),
        Err(e) => return Err(e),
    };
    DeviceProfile::from_json(&bytes).map_err(|m| Error::file_help(path, m, help))
}

/// The identity of a device: everything that may affect how fast programs run on it.
fn identity(a: &AdapterSummary) -> String {
    let AdapterSummary { name, driver, backend, limits, .. } = a;
    let f16 = if limits.f16 { ", f16" } else { "" };
    let subgroup = limits.subgroup.map_or(String::new(), |(a, b)| format!(", subgroups of {a} to {b}"));
    let matrices = if limits.cooperative_matrix { ", matrix units" } else { "" };
    format!("{name}, {driver}, {backend}{f16}{subgroup}{matrices}")
}

/// The bytes of a file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match std::fs::metadata(path) {
        Ok(m) if m.len() > MOST_BYTES => return Err(unusable(path, format!("has {} bytes", m.len()))),
        _ => {}
    }
    if let Err(e) = std::fs::metadata(path)
        && e.kind() == std::io::ErrorKind::NotFound
    {
        return Ok(None);
    }
    crate::files::read(path).map(Some).map_err(|m| unusable(path, m))
}

fn unusable(path: &Path, message: String) -> Error {
    Error::file_help(path, message, "it is ignored, and replaced the next time; it can be deleted")
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_compiler::schedule::rows::Row;
    use wgfc_runtime::DeviceLimits;

    pub(crate) fn adapter(name: &str) -> AdapterSummary {
        let limits = DeviceLimits {
            storage_buffers: 8,
            binding_bytes: 1 << 27,
            buffer_bytes: 1 << 28,
            workgroup_bytes: 16384,
            invocations: 256,
            workgroup_size: [256, 256, 64],
            workgroups: 65535,
            f16: false,
            subgroup: None,
            cooperative_matrix: false,
            loop_iterations: None,
            timestamps: false,
            timestamps_in_pass: false,
        };
        AdapterSummary {
            name: name.into(),
            backend: "vulkan".into(),
            driver: "d 1.2".into(),
            kind: "discrete".into(),
            is_software: false,
            limits,
        }
    }

    #[test]
    fn measurements_are_merged_by_adapter() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(&dir.path().join("not/there/yet"));
        let (a, b) = (adapter("Card (A)"), AdapterSummary { driver: "d 1.3".into(), ..adapter("Card (A)") });
        assert_ne!(cache.tuning_file(&a), cache.tuning_file(&b));
        assert_eq!(cache.tuning(&a).unwrap(), Tuning::default());
        let row = |threads, lanes| {
            Some(Schedule::Row(Row {
                threads,
                lanes,
                rows_first: false,
                width: 1,
                steps: 0,
                kept: false,
                subgroup: 1,
            }))
        };
        let of =
            |all: &[(&str, Option<Schedule>)]| all.iter().map(|(k, c)| (k.to_string(), c.clone())).collect();
        cache.add_tuning(&a, &of(&[("x", row(64, 8)), ("y", row(64, 4))])).unwrap();
        cache.add_tuning(&a, &of(&[("y", row(128, 2)), ("z", None)])).unwrap();
        let table = cache.tuning(&a).unwrap();
        assert_eq!(
            table.choices,
            [("x", row(64, 8)), ("y", row(128, 2))].map(|(k, c)| (k.into(), c.unwrap())).into()
        );
        cache.add_tuning(&a, &of(&[("x", None)])).unwrap();
        assert_eq!(cache.tuning(&a).unwrap().choices.len(), 1);
        assert_eq!(cache.tuning(&b).unwrap(), Tuning::default());
        assert_eq!(std::fs::read_dir(cache.folder()).unwrap().count(), 1);
    }

    #[test]
    fn pipelines_are_opened_undamaged_or_not_at_all() {
        let payload: Vec<u8> = (0..=255).collect();
        for payload in [&payload[..], &[]] {
            let file = sealed(payload, "a card");
            assert_eq!(opened(&file, "a card").unwrap(), payload);
            assert!(opened(&file, "a car").is_err() && opened(&file, "another").is_err());
            for i in 0..file.len() {
                assert!(opened(&file[..i], "a card").is_err(), "{i}");
                let mut damaged = file.clone();
                damaged[i] ^= 0x40;
                assert!(opened(&damaged, "a card").is_err(), "{i}");
            }
            assert!(opened(&[&file[..], b"x"].concat(), "a card").is_err());
        }
    }

    #[test]
    fn pipelines_are_kept_where_the_backend_gives_them() {
        for gpu in wgfc_runtime::testing::gpus() {
            let dir = tempfile::tempdir().unwrap();
            let cache = Cache::at(dir.path());
            let kept = cache.pipelines(gpu);
            assert!(kept.problem().is_none());
            if gpu.pipeline_key().is_none() {
                kept.save().unwrap();
                assert!(!kept.path.exists());
                continue;
            }
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
            let file = crate::ModelFile::open(&path).unwrap();
            let run = |gpu: &Gpu| {
                let mut m = crate::Model::compile_for(gpu.clone(), &file, &Default::default()).unwrap();
                let x = crate::Tensor::from_f32(vec![2, 13], &[0.5; 26]);
                m.run(&[("x".to_owned(), x)].into()).unwrap()
            };
            let first = run(gpu);
            kept.save().unwrap();
            let anew = || {
                let all = wgfc_runtime::Gpu::adapters_blocking();
                let i = all.iter().position(|a| a == gpu.summary()).unwrap();
                Gpu::request_blocking(&wgfc_runtime::AdapterChoice::Index(i)).unwrap()
            };
            let second = anew();
            let kept = cache.pipelines(&second);
            assert!(kept.problem().is_none() && kept.before.is_some(), "{:?}", kept.problem());
            assert_eq!(run(&second), first);
            kept.save().unwrap();
            std::fs::write(&kept.path, "nonsense").unwrap();
            let third = anew();
            let kept = cache.pipelines(&third);
            assert!(kept.problem().unwrap().to_string().contains("pipelines-"));
            assert_eq!(run(&third), first);
            kept.save().unwrap();
            assert!(cache.pipelines(&anew()).problem().is_none());
        }
    }

    #[test]
    fn damaged_files_are_named_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, a) = (Cache::at(dir.path()), adapter("Card"));
        for text in
            ["", "{", "[]", r#"{"version":9,"choices":{}}"#, r#"{"version":1,"choices":{"x":{"y":1}}}"#]
        {
            std::fs::write(cache.tuning_file(&a), text).unwrap();
            let e = cache.tuning(&a).unwrap_err().to_string();
            assert!(e.contains("tuning-card-") && e.contains("ignored"), "{e}");
        }
        cache.add_tuning(&a, &BTreeMap::new()).unwrap();
        assert_eq!(cache.tuning(&a).unwrap(), Tuning::default());
    }
}
