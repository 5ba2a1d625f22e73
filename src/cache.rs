//! What is kept between processes, for each device: measured choices.
//!
//! A cache is a folder: the one that `WGFC_CACHE_DIR` names, else `wgfc` in the user's cache folder
//! (`$XDG_CACHE_HOME` or `~/.cache`; on Windows, the local application data). Files are written whole and
//! renamed. They are named after the adapter with its driver, backend and features: whatever may change
//! the best choice. Nothing in them is trusted, and all of it can be deleted at any time.

use crate::files::in_words;
use crate::{Error, npy};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wgfc_compiler::Tuning;
use wgfc_compiler::tuning::Choice;
use wgfc_runtime::AdapterSummary;

/// The folder's name in the user's cache folder.
const FOLDER: &str = "wgfc";
/// Larger files are not ours.
const MOST_BYTES: u64 = 64 << 20;

/// A folder of files for each device. See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// In this folder, which is made when something is kept.
    pub fn at(folder: &Path) -> Cache {
        Cache { folder: folder.to_owned() }
    }

    /// Where the [module](self) says; `None` for a user without a home.
    pub fn of_user() -> Option<Cache> {
        use etcetera::BaseStrategy;
        if let Some(dir) = std::env::var_os("WGFC_CACHE_DIR").filter(|d| !d.is_empty()) {
            return Some(Cache { folder: dir.into() });
        }
        let strategy = etcetera::choose_base_strategy().ok()?;
        Some(Cache { folder: strategy.cache_dir().join(FOLDER) })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of an adapter's measured choices, which [`Tuning::from_json`] reads.
    pub fn tuning_file(&self, adapter: &AdapterSummary) -> PathBuf {
        self.file(adapter, "tuning", "json")
    }

    /// The choices measured on an adapter; none where nothing was measured.
    ///
    /// # Errors
    /// [`Error::File`] where the file cannot be read or is damaged. It can be ignored.
    pub fn tuning(&self, adapter: &AdapterSummary) -> Result<Tuning, Error> {
        let path = self.tuning_file(adapter);
        Ok(match read(&path)? {
            Some(bytes) => Tuning::from_json(&bytes).map_err(|m| unusable(&path, m))?,
            None => Tuning::default(),
        })
    }

    /// Adds what was measured now, by key: a choice, or that there is none better than the compiler's
    /// own. What was measured before stays otherwise; a damaged file is replaced.
    ///
    /// # Errors
    /// [`Error::File`] where the file cannot be written.
    pub fn add_tuning(
        &self,
        adapter: &AdapterSummary,
        measured: &BTreeMap<String, Option<Choice>>,
    ) -> Result<(), Error> {
        let mut table = self.tuning(adapter).unwrap_or_default();
        for (key, choice) in measured {
            match choice {
                Some(c) => table.choices.insert(key.clone(), *c),
                None => table.choices.remove(key),
            };
        }
        let text = table.to_json(Some(&identity(adapter))).map_err(Error::Internal)?;
        npy::write_whole(&self.tuning_file(adapter), text.as_bytes())
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

/// Reads a file of measured choices that must be there.
///
/// # Errors
/// [`Error::File`] where it is not, or is damaged.
pub fn read_tuning(path: &Path) -> Result<Tuning, Error> {
    let bytes = read(path)?.ok_or_else(|| Error::file(path, "no such file"))?;
    Tuning::from_json(&bytes).map_err(|m| Error::file_help(path, m, "`wgfc tune` makes such files"))
}

/// What a device is, as far as it may matter to what runs well on it.
fn identity(a: &AdapterSummary) -> String {
    let AdapterSummary { name, driver, backend, limits, .. } = a;
    let f16 = if limits.f16 { ", f16" } else { "" };
    let subgroup = limits.subgroup.map_or(String::new(), |(a, b)| format!(", subgroups of {a} to {b}"));
    let matrices = if limits.cooperative_matrix { ", matrix units" } else { "" };
    format!("{name}, {driver}, {backend}{f16}{subgroup}{matrices}")
}

/// The bytes of a file; `None` where there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match std::fs::metadata(path) {
        Ok(m) if m.len() > MOST_BYTES => return Err(unusable(path, format!("has {} bytes", m.len()))),
        _ => {}
    }
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::file(path, in_words(&e))),
    }
}

fn unusable(path: &Path, message: String) -> Error {
    Error::file_help(path, message, "it is ignored; `wgfc tune` replaces it, or delete it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_compiler::emit::row::Geometry;
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
        let row = |threads, lanes| Some(Choice::Row(Geometry { threads, lanes }));
        let of = |all: &[(&str, Option<Choice>)]| all.iter().map(|(k, c)| (k.to_string(), *c)).collect();
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
