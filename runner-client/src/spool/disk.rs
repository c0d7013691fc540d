//! The operations whose failure must be survived: writing at the end of a file, forcing it to the disk, and reading.
//!
//! In tests a thread can make them fail at will; see [`faults`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Writes `parts` one after another from `offset`. If that fails, whatever was written behind `offset` is cut off again.
///
/// # Errors
/// What the system says, and whether the file may still be written to.
pub(super) fn write(file: &File, offset: u64, parts: &[&[u8]]) -> Result<(), WriteError> {
    let mut at = offset;
    for part in parts {
        if let Err(source) = write_part(file, at, part) {
            let is_usable = file.set_len(offset).is_ok();
            return Err(WriteError { source, is_usable });
        }
        at += part.len() as u64;
    }
    Ok(())
}

/// Waits until everything that was written to the file is on the disk.
pub(super) fn sync(file: &File) -> io::Result<()> {
    #[cfg(test)]
    faults::before_sync()?;
    file.sync_data()?;
    #[cfg(test)]
    faults::synced(file);
    Ok(())
}

/// Reads from `offset`; short only at the end of the file.
pub(super) fn read(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    #[cfg(test)]
    faults::before_read(offset, buffer.len())?;
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Why nothing was written.
#[derive(Debug)]
pub(super) struct WriteError {
    pub(super) source: io::Error,
    /// Whether the file is as it was before.
    pub(super) is_usable: bool,
}

/// Whether there is no room: the disk, a quota or a limit on the size of files is reached.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

fn write_part(file: &File, offset: u64, part: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    if let Some(fits) = faults::before_write(part.len()) {
        file.write_all_at(&part[..fits], offset)?;
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.write_all_at(part, offset)
}

/// Faults of the disk as this thread sees it, and what a power loss would leave of it.
#[cfg(test)]
pub(super) mod faults {
    use std::cell::{Cell, RefCell};
    use std::collections::{HashMap, HashSet};
    use std::fs::{self, File};
    use std::io;
    use std::ops::Range;
    use std::os::unix::fs::{DirEntryExt, MetadataExt};
    use std::path::Path;

    thread_local! {
        static SPACE: Cell<Option<usize>> = const { Cell::new(None) };
        static FAILING_SYNCS: Cell<usize> = const { Cell::new(0) };
        static BAD: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
        static SYNCED: RefCell<HashMap<u64, u64>> = RefCell::default();
        static LISTED: RefCell<HashSet<u64>> = RefCell::default();
    }

    /// How much of a file was forced to the disk; `None` if that there is such a file was not.
    pub(in crate::spool) fn durable(path: &Path) -> Option<u64> {
        let found = fs::metadata(path).ok()?;
        let is_listed = LISTED.with_borrow(|listed| listed.contains(&found.ino()));
        let len = SYNCED.with_borrow(|synced| synced.get(&found.ino()).copied().unwrap_or(0));
        is_listed.then(|| len.min(found.len()))
    }

    pub(super) fn synced(file: &File) {
        let found = file.metadata().unwrap();
        SYNCED.with_borrow_mut(|synced| synced.insert(found.ino(), found.len()));
    }

    pub(in crate::spool) fn folder_synced(path: &Path) {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().ino());
        LISTED.with_borrow_mut(|listed| listed.extend(entries));
    }

    /// The disk takes as many more bytes; `None`: any number.
    pub(in crate::spool) fn set_space(bytes: Option<usize>) {
        SPACE.set(bytes);
    }

    /// As many syncs fail.
    pub(in crate::spool) fn fail_syncs(count: usize) {
        FAILING_SYNCS.set(count);
    }

    /// These bytes of any file can't be read.
    pub(in crate::spool) fn set_bad(bytes: Range<u64>) {
        BAD.set((bytes.start, bytes.end));
    }

    pub(super) fn before_read(offset: u64, len: usize) -> io::Result<()> {
        let (from, to) = BAD.get();
        let is_hit = offset < to && from < offset + len as u64;
        if is_hit { Err(io::Error::other("a block that is bad for the test")) } else { Ok(()) }
    }

    /// How much of a write fits, if not all of it does.
    pub(super) fn before_write(len: usize) -> Option<usize> {
        let space = SPACE.get()?;
        SPACE.set(Some(space.saturating_sub(len)));
        (len > space).then_some(space)
    }

    pub(super) fn before_sync() -> io::Result<()> {
        match FAILING_SYNCS.get() {
            0 => Ok(()),
            count => {
                FAILING_SYNCS.set(count - 1);
                Err(io::Error::other("a sync that fails for the test"))
            }
        }
    }
}
