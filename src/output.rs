//! Files and folders that are complete or absent.
//!
//! Unfinished output lies in a `Beside`, a temporary folder `.wgfc-…` next to its destination, and is moved there in one
//! step. [`remove_unfinished`] removes all of these folders, for a process that is about to end. Each folder holds a file
//! that its owner keeps locked. If a process is killed, the lock is gone, and the next process that writes in the same place
//! removes its folders.

use crate::Error;
use crate::files::in_words;
use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};
use tempfile::TempDir;

/// The temporary folders that exist. The mutex is held while output is moved to its destination, so that it is not removed
/// meanwhile.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the output that this process has begun to write and not moved to its destination. Threads that write afterwards
/// block for ever: call this as the last action of a process, as when a signal ends it.
///
/// ```no_run
/// // In the thread that handles an interrupt:
/// wgfc::output::remove_unfinished();
/// std::process::exit(130);
/// ```
pub fn remove_unfinished() {
    let folders = unfinished();
    for folder in folders.iter() {
        // The folder is renamed first, so that no thread that still writes finds it or adds to it while it is removed.
        let mut gone = folder.clone().into_os_string();
        gone.push("-removed");
        let found = if fs::rename(folder, &gone).is_ok() { Path::new(&gone) } else { folder };
        // There is nowhere left to report an error.
        let _ = fs::remove_dir_all(found);
    }
    std::mem::forget(folders);
}

/// A temporary folder beside the output's final place. It is removed with its content when dropped.
pub(crate) struct Beside {
    folder: Option<TempDir>,
    /// The locked file of the owner; `None` if the file system has no locks.
    _owner: Option<File>,
}

/// The prefix of the temporary folders' names.
const PREFIX: &str = ".wgfc-";
/// The file in a temporary folder that its owner keeps locked.
const OWNER: &str = ".owner";

/// Removes the folders in `parent` whose owners are gone. A folder without an owner's file stays: it has just been created,
/// or its file system has no locks.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        if !ours || !entry.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        let owner = entry.path().join(OWNER);
        if !fs::symlink_metadata(&owner).is_ok_and(|m| m.is_file()) {
            continue;
        }
        // Locking succeeds only if the owner is gone.
        if let Ok(file) = File::options().write(true).open(&owner)
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Beside {
    /// Creates a temporary folder in `parent`, which is created too if it does not exist.
    pub fn new(parent: &Path) -> io::Result<Beside> {
        fs::create_dir_all(parent)?;
        let mut all = unfinished();
        remove_abandoned(parent);
        let (folder, owner) = loop {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
            let path = folder.path().join(OWNER);
            let owner = File::create_new(&path)?;
            match owner.try_lock() {
                Ok(()) => break (folder, Some(owner)),
                // Another process has taken the folder for an abandoned one and removes it: create another.
                Err(TryLockError::WouldBlock) => {}
                // Without locks, the owner's file is removed, so that no other process takes the folder for an abandoned
                // one.
                Err(TryLockError::Error(_)) => {
                    fs::remove_file(path)?;
                    break (folder, None);
                }
            }
        };
        all.push(folder.path().to_owned());
        Ok(Beside { folder: Some(folder), _owner: owner })
    }

    /// The path of a file in the folder.
    pub fn join(&self, name: &str) -> PathBuf {
        self.folder.as_ref().map_or_else(PathBuf::new, |f| f.path().join(name))
    }

    /// Moves the file `name` to `place`.
    pub fn put_file(&self, name: &str, place: &Path) -> io::Result<()> {
        let _whole = unfinished();
        fs::rename(self.join(name), place)
    }

    /// Moves the folder `name` to `place`. An existing folder there is replaced, in one step where the system can (Linux,
    /// macOS).
    pub fn put_folder(mut self, name: &str, place: &Path) -> Result<(), NotPut> {
        let put = {
            let _whole = unfinished();
            replace(&self.join(name), place, &|n| self.join(&format!("old-{n}")), &exchange)
        };
        put.map_err(|(cause, old)| {
            let kept = old.filter(|o| o.exists()).inspect(|_| self.forget());
            NotPut { cause, kept }
        })
    }

    /// Keeps the folder on the disk instead of removing it on drop.
    fn forget(&mut self) {
        if let Some(f) = self.folder.take() {
            let path = f.keep();
            unfinished().retain(|p| *p != path);
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(f) = self.folder.take() {
            let path = f.path().to_owned();
            drop(f);
            unfinished().retain(|p| *p != path);
        }
    }
}

/// The error of a folder that could not be moved to its destination.
pub(crate) struct NotPut {
    pub cause: io::Error,
    /// The path of the former content, if it could not be put back.
    pub kept: Option<PathBuf>,
}

/// The most attempts, as other processes may write to the same place in between.
const ATTEMPTS: usize = 100;

/// Moves `new` to `place`; the former content of `place` is then at `new` or at `old(n)`. An error includes the path of the
/// former content if it could not be put back.
fn replace(
    new: &Path,
    place: &Path,
    old: &dyn Fn(usize) -> PathBuf,
    exchange: &dyn Fn(&Path, &Path) -> io::Result<()>,
) -> Result<(), (io::Error, Option<PathBuf>)> {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotFound};
    let mut last = io::Error::from(AlreadyExists);
    for n in 0..ATTEMPTS {
        match exchange(new, place) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == NotFound => {}
            // The file system cannot exchange two paths: the old content is moved aside first.
            Err(_) => match fs::rename(place, old(n)) {
                Err(e) if e.kind() != NotFound => return Err((e, None)),
                _ => {}
            },
        }
        match fs::rename(new, place) {
            Ok(()) => return Ok(()),
            // Another process has written to the place in between.
            Err(e) if matches!(e.kind(), AlreadyExists | DirectoryNotEmpty) => last = e,
            Err(e) => {
                let was = old(n);
                let lost = was.exists() && fs::rename(&was, place).is_err();
                return Err((e, lost.then_some(was)));
            }
        }
    }
    Err((last, None))
}

/// Exchanges two paths in one step.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Writes a file in one step: `path` has all of the new content or none of it.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("report.json");
/// wgfc::output::write_whole(&path, b"{}")?;
/// assert_eq!(std::fs::read(&path).unwrap(), b"{}");
/// # Ok(()) }
/// ```
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let failed = |e: io::Error| Error::unwritable(path, &e);
    let beside = Beside::new(parent(path)).map_err(failed)?;
    let mut file = fs::File::create(beside.join("file")).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    drop(file);
    beside.put_file("file", path).map_err(failed)
}

/// Moves the file that `write` creates to `path` in one step, and waits until the move is on the disk.
pub(crate) fn write_through(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    let failed = |e: io::Error| Error::unwritable(path, &e);
    let parent = parent(path);
    let beside = Beside::new(parent).map_err(failed)?;
    let new = beside.join("file");
    write(&new)?;
    beside.put_file("file", path).map_err(failed)?;
    // The entry of a file in its folder is durable once the folder is synced.
    #[cfg(unix)]
    fs::File::open(parent).and_then(|f| f.sync_all()).map_err(failed)?;
    Ok(())
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Error {
    /// The error of a file or folder that could not be written, with advice that fits the cause.
    pub(crate) fn unwritable(path: &Path, e: &io::Error) -> Error {
        use io::ErrorKind::{IsADirectory, NotADirectory, PermissionDenied, ReadOnlyFilesystem, StorageFull};
        let help = match e.kind() {
            PermissionDenied | ReadOnlyFilesystem => "choose a place that you may write to",
            StorageFull => "free some space there, or choose another place",
            IsADirectory => "there is a folder of this name: choose another one",
            NotADirectory => "a part of the path is a file: choose another place",
            _ => "choose another place",
        };
        Error::file_help(path, format!("cannot be written: {}", in_words(e)), help)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut v: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        v.sort();
        v
    }

    fn folder(beside: &Beside, content: &str) {
        fs::create_dir(beside.join("new")).unwrap();
        fs::write(beside.join("new").join("plan"), content).unwrap();
    }

    #[test]
    fn writers_at_once_all_succeed_and_leave_one_whole_folder() {
        let unsupported = |_: &Path, _: &Path| Err(io::ErrorKind::Unsupported.into());
        for exchange in [&exchange as &(dyn Fn(&Path, &Path) -> io::Result<()> + Sync), &unsupported] {
            let dir = tempfile::tempdir().unwrap();
            let place = dir.path().join("out");
            std::thread::scope(|s| {
                for w in 0..8 {
                    let place = &place;
                    s.spawn(move || {
                        for n in 0..20 {
                            let b = Beside::new(place.parent().unwrap()).unwrap();
                            folder(&b, &format!("{w} {n}"));
                            let old = |n: usize| b.join(&format!("old-{n}"));
                            replace(&b.join("new"), place, &old, exchange).map_err(|e| e.0).unwrap();
                        }
                    });
                }
            });
            assert_eq!(names(dir.path()), ["out"]);
            assert!(fs::read_to_string(place.join("plan")).unwrap().ends_with(" 19"));
        }
    }

    #[test]
    fn a_file_that_is_not_written_to_its_end_leaves_the_former_one() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("deep/file");
        write_through(&place, |new| write_whole(new, b"before")).unwrap();
        let half = |new: &Path| {
            fs::write(new, b"aft").unwrap();
            assert_eq!(fs::read(&place).unwrap(), b"before", "it is written beside the file");
            Err(Error::file(new, "the disk is full"))
        };
        assert!(write_through(&place, half).is_err());
        assert_eq!(fs::read(&place).unwrap(), b"before");
        assert_eq!(names(place.parent().unwrap()), ["file"]);
        write_through(&place, |new| write_whole(new, b"after")).unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"after");
    }

    #[test]
    fn what_fails_leaves_the_former_content() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("out");
        let unsupported = |_: &Path, _: &Path| Err(io::ErrorKind::Unsupported.into());
        fs::create_dir(&place).unwrap();
        fs::write(place.join("plan"), "before").unwrap();
        let b = Beside::new(dir.path()).unwrap();
        let e = replace(&b.join("absent"), &place, &|n| b.join(&format!("old-{n}")), &unsupported);
        assert!(e.is_err_and(|(_, lost)| lost.is_none()));
        assert_eq!(fs::read_to_string(place.join("plan")).unwrap(), "before");
        drop(b);
        write_whole(&dir.path().join("file"), b"x").unwrap();
        let e = write_whole(&dir.path().join("file/below"), b"x").unwrap_err();
        assert!(matches!(e, Error::File { help: Some(_), .. }), "{e}");
        assert_eq!(names(dir.path()), ["file", "out"]);
    }

    #[test]
    fn folders_of_processes_that_are_gone_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let alive = Beside::new(dir.path()).unwrap();
        for name in [".wgfc-dead/plan", ".wgfc-young", ".wgfc-dead-removed", "other/.owner"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        for name in [".wgfc-dead", ".wgfc-dead-removed", "other"] {
            let _ = fs::write(at(name).join(OWNER), "");
        }
        fs::write(at(".wgfc-file"), "").unwrap();
        let _new = Beside::new(dir.path()).unwrap();
        assert!(alive.join(OWNER).is_file());
        for (name, stays) in [
            (".wgfc-dead", false),
            (".wgfc-dead-removed", false),
            (".wgfc-young", true),
            (".wgfc-file", true),
            ("other", true),
        ] {
            assert_eq!(at(name).exists(), stays, "{name}");
        }
    }
}
