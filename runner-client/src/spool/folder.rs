//! The folder: one process at a time, readable by its owner only, and entries that survive a power loss.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, DirEntry, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::SpoolError;
use super::format::SegmentName;

/// The lock file. It stays when the spool is closed, and marks the folder as one of a spool.
pub(super) const LOCK_FILE: &str = "spool.lock";
/// Where files go that are no part of the spool.
pub(super) const SET_ASIDE: &str = "set-aside";
const PROBE_FILE: &str = "spool.probe";

const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

const EXCLUSIVE: &str = "spool\nNo file here is meant for anyone else.\n";
const SHARED: &str = "spool, shared\nThere were other files when the spool came; they are left alone.\n";

/// The folder of a spool, locked as long as this value lives.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    directory: File,
    /// Whether files were created or deleted and the folder was not forced to the disk since.
    is_unsynced: AtomicBool,
    is_exclusive: bool,
    lock: File,
}

impl Folder {
    /// Takes the folder, and creates it if it is missing.
    pub(super) fn take(path: &Path) -> Result<Self, SpoolError> {
        let fail = |action, source| refusal(path, action, source);
        match fs::metadata(path) {
            Ok(found) if !found.is_dir() => return Err(SpoolError::NotAFolder(path.to_owned())),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create_folder(path).map_err(|source| fail("create", source))?;
            }
            Err(source) => return Err(fail("look at", source)),
        }
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(path.join(LOCK_FILE))
            .map_err(|source| fail("create a file in", source))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(SpoolError::InUse(path.to_owned())),
            Err(TryLockError::Error(source)) => return Err(fail("lock", source)),
        }
        probe(path).map_err(|source| fail("create a file in", source))?;
        let is_exclusive = is_exclusive(path, &mut lock).map_err(|source| fail("list", source))?;
        if is_exclusive {
            restrict(path);
        }
        let directory = File::open(path).map_err(|source| fail("open", source))?;
        Ok(Self { path: path.to_owned(), directory, is_unsynced: AtomicBool::new(true), is_exclusive, lock })
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether files of unknown names are garbage. They are not where there were other files before the spool came.
    pub(super) const fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    /// The path of a file.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What is in the folder, but for the lock file and what was set aside.
    pub(super) fn entries(&self) -> io::Result<impl Iterator<Item = io::Result<DirEntry>> + use<>> {
        let entries = fs::read_dir(&self.path)?;
        Ok(entries.filter(|entry| entry.as_ref().map_or(true, |entry| !is_furniture(&entry.file_name()))))
    }

    pub(super) fn open(&self, name: &str) -> io::Result<File> {
        File::open(self.path_of(name))
    }

    pub(super) fn create_new(&self, name: &str) -> io::Result<File> {
        self.is_unsynced.store(true, Ordering::Relaxed);
        OpenOptions::new().read(true).write(true).create_new(true).mode(FILE_MODE).open(self.path_of(name))
    }

    pub(super) fn open_or_create(&self, name: &str) -> io::Result<File> {
        self.is_unsynced.store(true, Ordering::Relaxed);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE).open(self.path_of(name))
    }

    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        self.is_unsynced.store(true, Ordering::Relaxed);
        fs::remove_file(self.path_of(name))
    }

    /// Waits until files that were created are in the folder, and files that were deleted are not, after a power loss.
    pub(super) fn sync(&self) -> io::Result<()> {
        if self.is_unsynced.swap(false, Ordering::Relaxed)
            && let Err(error) = self.directory.sync_all()
        {
            self.is_unsynced.store(true, Ordering::Relaxed);
            return Err(error);
        }
        #[cfg(test)]
        super::disk::faults::folder_synced(&self.path);
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Closing is not enough: a process that is just being spawned holds a copy of the descriptor for a moment.
        let _ = self.lock.unlock();
    }
}

/// Creates the folder, and makes sure that it is there after a power loss.
fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)?;
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// Whether files can be created. The lock file says nothing about that once it is there. A full disk is no reason not to
/// start: what waits is delivered, and makes room.
fn probe(path: &Path) -> io::Result<()> {
    let probe = path.join(PROBE_FILE);
    match OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&probe) {
        Ok(_) => fs::remove_file(probe),
        Err(error) if super::disk::is_full(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Reads from the lock file whether the folder was the spool's own from the beginning. Decides it on the first start.
fn is_exclusive(path: &Path, lock: &mut File) -> io::Result<bool> {
    let mut text = Vec::new();
    lock.take(1024).read_to_end(&mut text)?;
    if text == EXCLUSIVE.as_bytes() || text == SHARED.as_bytes() {
        return Ok(text == EXCLUSIVE.as_bytes());
    }
    let is_exclusive = !holds_other_files(path)?;
    let text = if is_exclusive { EXCLUSIVE } else { SHARED };
    // On a full disk it is decided again next time.
    let _ = lock.set_len(0).and_then(|()| lock.write_all_at(text.as_bytes(), 0));
    Ok(is_exclusive)
}

fn holds_other_files(path: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_ours = is_furniture(&name) || name.to_str().is_some_and(|name| SegmentName::parse(name).is_some());
        if !is_ours && !entry.file_type()?.is_dir() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_furniture(name: &OsString) -> bool {
    [LOCK_FILE, SET_ASIDE, PROBE_FILE].iter().any(|known| name == known)
}

/// Takes the folder away from everyone but its owner. Some file systems can't; then the operator is told.
fn restrict(path: &Path) {
    let restricted = fs::metadata(path).and_then(|found| {
        if found.permissions().mode() & 0o077 == 0 {
            return Ok(());
        }
        fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE))
    });
    if let Err(error) = restricted {
        tracing::warn!(%error, "others can look into the spool folder, and that can't be changed");
    }
}

fn refusal(path: &Path, action: &'static str, source: io::Error) -> SpoolError {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            SpoolError::NotWritable { folder: path.to_owned(), source }
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => SpoolError::NotAFolder(path.to_owned()),
        _ => SpoolError::Io { action, path: path.to_owned(), source },
    }
}
