//! The two operations whose failure must be survived: writing at the end of a file, and forcing it to the disk.
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
    file.sync_data()
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

/// Faults of the disk as this thread sees it.
#[cfg(test)]
pub(super) mod faults {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        static SPACE: Cell<Option<usize>> = const { Cell::new(None) };
        static FAILING_SYNCS: Cell<usize> = const { Cell::new(0) };
    }

    /// The disk takes as many more bytes; `None`: any number.
    pub(in crate::spool) fn set_space(bytes: Option<usize>) {
        SPACE.set(bytes);
    }

    /// As many syncs fail.
    pub(in crate::spool) fn fail_syncs(count: usize) {
        FAILING_SYNCS.set(count);
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
