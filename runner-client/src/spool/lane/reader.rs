//! Reads from segments, one of which is open, and knows for how long a failing disk is waited for.

use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::spool::error::ReadError;
use crate::spool::folder::Folder;
use crate::spool::format::{SEGMENT_EXTENSION, SegmentName};
use crate::spool::scan::{self, Bounds, Found, Lossy, Mark, Source};

/// How often reading the same place may fail before what is there counts as damaged. The caller waits in between: a disk
/// that is away for a moment loses nothing, and a bad block stops nothing for ever.
const ATTEMPTS: u32 = 10;

/// Reads from the segments of a lane.
#[derive(Debug)]
pub(super) struct Reader {
    folder: Arc<Folder>,
    open: Option<(SegmentName, File)>,
    /// Failures in a row at the same place.
    failures: u32,
}

impl Reader {
    pub(super) const fn new(folder: Arc<Folder>) -> Self {
        Self { folder, open: None, failures: 0 }
    }

    /// The place at which reading failed is past.
    pub(super) const fn went_on(&mut self) {
        self.failures = 0;
    }

    /// Lets go of a segment that is about to be deleted: an open file would keep its space.
    pub(super) fn forget(&mut self, name: SegmentName) {
        self.open.take_if(|(open, _)| *open == name);
    }

    /// The first record at or behind the mark.
    pub(super) fn find(&mut self, name: SegmentName, mark: Mark, bounds: Bounds) -> Result<Option<Found>, ReadError> {
        self.with_file(name, |file| scan::find(file, name.salt, mark, bounds))
    }

    /// The record at the mark.
    pub(super) fn header(&mut self, name: SegmentName, mark: Mark, bounds: Bounds) -> Result<Option<Found>, ReadError> {
        let found = self.with_file(name, |file| scan::at(file, name.salt, mark, bounds))?;
        Ok(found.filter(|found| found.header.seq == mark.seq))
    }

    /// Extra and body of a record.
    pub(super) fn payload(&mut self, name: SegmentName, found: &Found) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        self.with_file(name, |file| scan::payload(file, found))
    }

    /// Reads something from a segment. A file that is gone holds nothing.
    fn with_file<T>(
        &mut self,
        name: SegmentName,
        read: impl FnOnce(&dyn Source) -> io::Result<Option<T>>,
    ) -> Result<Option<T>, ReadError> {
        let file_name = name.file(SEGMENT_EXTENSION);
        let failed = |source| ReadError { file: self.folder.path_of(&file_name), source };
        let file = match self.open.take() {
            Some((open, file)) if open == name => file,
            _ => match self.folder.open(&file_name) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(failed(error)),
            },
        };
        let (_, file) = self.open.insert((name, file));
        let outcome = if self.failures < ATTEMPTS { read(file) } else { read(&Lossy(file)) };
        outcome.map_err(|error| {
            self.failures += 1;
            failed(error)
        })
    }
}
