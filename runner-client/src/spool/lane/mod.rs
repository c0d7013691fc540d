//! The records of one signal, in the order in which they were appended: sealed segments, and the one that is written.

mod read;
mod reader;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;

use super::acks::AckFiles;
use super::disk;
use super::folder::Folder;
use super::format::{AckEntry, MAX_SEGMENT_RECORDS, RECORD_HEADER_LEN, RecordHeader, SEGMENT_EXTENSION, SegmentName};
use super::record::{Amount, DropCause, Position, Record, SpoolSignal};
use super::recovery::{FoundSegment, Stretch};
use super::segment::Segment;

use self::read::Cursor;
use self::reader::Reader;

/// The records of one signal.
#[derive(Debug)]
pub(super) struct Lane {
    signal: SpoolSignal,
    folder: Arc<Folder>,
    segment_bytes: u64,
    /// Oldest first. Nothing is appended to them.
    sealed: VecDeque<Segment>,
    active: Option<Active>,
    next_seq: u64,
    /// The sum of [`Segment::cost`].
    bytes: u64,
    acks: AckFiles,
    cursor: Option<Cursor>,
    reader: Reader,
    /// For records that were handed out before, so that the two don't get into each other's way.
    rereader: Reader,
    dropped: [Amount; DropCause::ALL.len()],
}

/// The segment that is written.
#[derive(Debug)]
struct Active {
    segment: Segment,
    file: File,
    /// Records that were not forced to the disk.
    unsynced: u64,
    /// Whether something was appended since the last [`Lane::retire_idle`].
    is_busy: bool,
}

impl Lane {
    /// A lane with the segments that were found, oldest first.
    pub(super) fn new(signal: SpoolSignal, folder: &Arc<Folder>, segment_bytes: u64, found: Vec<FoundSegment>) -> Self {
        let (sealed, lost): (VecDeque<_>, Vec<_>) =
            found.into_iter().map(|FoundSegment { segment, lost }| (segment, lost)).unzip();
        let names: Vec<SegmentName> = sealed.iter().map(|segment| segment.name).collect();
        let mut lane = Self {
            signal,
            folder: Arc::clone(folder),
            segment_bytes,
            active: None,
            next_seq: sealed.iter().map(|segment| segment.summary.next_seq).max().unwrap_or(1),
            bytes: sealed.iter().map(Segment::cost).sum(),
            sealed,
            acks: AckFiles::new(Arc::clone(folder)),
            cursor: None,
            reader: Reader::new(Arc::clone(folder)),
            rereader: Reader::new(Arc::clone(folder)),
            dropped: Default::default(),
        };
        for (name, lost) in names.into_iter().zip(lost) {
            for Stretch { seq, next_seq, items } in lost {
                lane.lose(name, seq, next_seq, items);
            }
            let Some(segment) = lane.segment(name) else { continue };
            if segment.waiting().records == 0 {
                lane.remove(name);
            } else if segment.acks.file_len() > 0 {
                lane.acks.found(name);
            }
        }
        lane
    }

    /// The disk that it takes at most, in bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.sealed.iter().chain(self.active.as_ref().map(|active| &active.segment))
    }

    /// What waits to be acknowledged.
    pub(super) fn waiting(&self) -> Amount {
        let mut waiting = Amount::default();
        self.segments().for_each(|segment| waiting.add(segment.waiting()));
        waiting
    }

    /// By how much one more record of `record_len` bytes makes [`bytes`](Self::bytes) grow.
    pub(super) fn growth(&self, record_len: u64) -> u64 {
        match &self.active {
            Some(active) if self.has_room(active, record_len) => {
                active.segment.cost_with(record_len) - active.segment.cost()
            }
            _ => Segment::new(self.next_name()).cost_with(record_len),
        }
    }

    /// Adds a record.
    pub(super) fn append(&mut self, record: &Record, now_unix_ms: u64) -> io::Result<Position> {
        let record_len = RECORD_HEADER_LEN + record.extra.len() as u64 + record.body.len() as u64;
        let active = match self.active.take() {
            Some(active) if self.has_room(&active, record_len) => active,
            full => {
                full.map_or(Ok(()), |full| self.seal(full))?;
                self.begin(now_unix_ms)?
            }
        };
        self.write(active, record)
    }

    /// Takes a record off. Says whether it was still waiting.
    pub(super) fn acknowledge(&mut self, position: &Position) -> bool {
        let Some(ordinal) = self.segment(position.segment).and_then(|segment| segment.ordinal(position.seq)) else {
            return false;
        };
        self.settle(position.segment, AckEntry { first: ordinal, records: 1, items: position.items })
    }

    /// Whether the record's segment is still there.
    pub(super) fn holds(&self, position: &Position) -> bool {
        self.segment(position.segment).is_some()
    }

    /// Gives up the oldest segment. Says whether there was one.
    pub(super) fn drop_oldest(&mut self, cause: DropCause) -> bool {
        let Some((name, waiting)) = self.segments().next().map(|oldest| (oldest.name, oldest.waiting())) else {
            return false;
        };
        self.dropped[cause as usize].add(waiting);
        self.remove(name);
        true
    }

    /// Gives up the oldest segments as long as all in them was made before `cutoff`.
    pub(super) fn expire(&mut self, cutoff_unix_ms: u64) {
        while self.segments().next().is_some_and(|oldest| oldest.summary.newest_unix_ms < cutoff_unix_ms) {
            self.drop_oldest(DropCause::TooOld);
        }
    }

    /// What was given up since the last call.
    pub(super) fn take_dropped(&mut self) -> impl Iterator<Item = (DropCause, Amount)> + use<> {
        DropCause::ALL.into_iter().zip(std::mem::take(&mut self.dropped)).filter(|(_, amount)| amount.records > 0)
    }

    /// When the oldest record of the oldest segment was made.
    pub(super) fn oldest_unix_ms(&self) -> Option<u64> {
        self.segments().find(|segment| segment.records() > 0).map(|segment| segment.summary.oldest_unix_ms)
    }

    /// Whether a record that was appended is on the disk.
    pub(super) fn is_synced(&self, position: &Position) -> bool {
        match &self.active {
            Some(active) if active.segment.name == position.segment => active.unsynced == 0,
            _ => self.segment(position.segment).is_some_and(|segment| !segment.is_suspect),
        }
    }

    /// Records that were not forced to the disk yet.
    pub(super) fn unsynced(&self) -> u64 {
        self.active.as_ref().map_or(0, |active| active.unsynced)
    }

    /// Whether acknowledgements were not forced to the disk yet.
    pub(super) fn has_unsynced_acks(&self) -> bool {
        self.acks.is_unsynced()
    }

    /// Records that could not be forced to the disk, and still wait.
    pub(super) fn at_risk(&self) -> u64 {
        self.segments().filter(|segment| segment.is_suspect).map(|segment| segment.waiting().records).sum()
    }

    /// Waits until all records are on the disk.
    pub(super) fn sync_records(&mut self) -> io::Result<()> {
        let Some(active) = self.active.as_mut().filter(|active| active.unsynced > 0) else { return Ok(()) };
        match disk::sync(&active.file) {
            Ok(()) => active.unsynced = 0,
            Err(error) => {
                // A second attempt would report success without having written anything.
                self.active.take().into_iter().for_each(|active| self.retire(active.segment, true));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until all acknowledgements are on the disk.
    pub(super) fn sync_acks(&mut self) -> io::Result<()> {
        let segments = self.sealed.iter_mut().chain(self.active.as_mut().map(|active| &mut active.segment));
        for segment in segments.filter(|segment| segment.acks.is_unsaved()) {
            self.acks.save(segment.name, &mut segment.acks)?;
        }
        self.acks.sync()
    }

    /// Deletes the segment that is written if nothing waits in it and nothing was appended since the last call.
    pub(super) fn retire_idle(&mut self) {
        let Some(active) = &mut self.active else { return };
        let was_busy = std::mem::replace(&mut active.is_busy, false);
        if !was_busy && active.segment.waiting().records == 0 {
            let name = active.segment.name;
            self.remove(name);
        }
    }

    /// Nothing more is appended for now: the next start has nothing to search.
    pub(super) fn close(&mut self) -> io::Result<()> {
        match self.active.take() {
            Some(active) => self.seal(active),
            None => Ok(()),
        }
    }

    fn has_room(&self, active: &Active, record_len: u64) -> bool {
        active.segment.has_room(record_len, self.segment_bytes) && active.segment.records() < MAX_SEGMENT_RECORDS
    }

    fn next_name(&self) -> SegmentName {
        SegmentName { signal: self.signal, seq: self.next_seq, salt: fastrand::u64(..) }
    }

    fn begin(&mut self, now_unix_ms: u64) -> io::Result<Active> {
        let name = self.next_name();
        let file_name = name.file(SEGMENT_EXTENSION);
        let file = self.folder.create_new(&file_name)?;
        if let Err(error) = disk::write(&file, 0, &[&name.header(now_unix_ms)]) {
            // If it stays behind, the next start removes it.
            let _ = self.folder.remove(&file_name);
            return Err(error.source);
        }
        let segment = Segment::new(name);
        self.bytes += segment.cost();
        Ok(Active { segment, file, unsynced: 0, is_busy: true })
    }

    fn write(&mut self, mut active: Active, record: &Record) -> io::Result<Position> {
        let segment = &mut active.segment;
        let (offset, seq) = (segment.summary.end, self.next_seq);
        let header = RecordHeader::of(record, seq, segment.summary.items).ok_or(io::ErrorKind::InvalidInput)?;
        let written =
            disk::write(&active.file, offset, &[&header.write(segment.name.salt), &record.extra, &record.body]);
        match written {
            Ok(()) => {
                self.bytes -= segment.cost();
                segment.push(&header);
                self.bytes += segment.cost();
                self.next_seq += 1;
                active.unsynced += 1;
                active.is_busy = true;
                let position = Position { segment: segment.name, offset, seq, items: record.items };
                self.active = Some(active);
                Ok(position)
            }
            Err(error) => {
                if error.is_usable {
                    self.active = Some(active);
                } else {
                    self.retire(active.segment, active.unsynced > 0);
                }
                Err(error.source)
            }
        }
    }

    /// Ends a segment: footer, and all of it on the disk, its name in the folder too.
    fn seal(&mut self, active: Active) -> io::Result<()> {
        let Active { segment, file, .. } = active;
        // Without a footer the segment is searched at the next start.
        let _ = disk::write(&file, segment.summary.end, &[&segment.summary.write(segment.name.salt)]);
        let synced = disk::sync(&file).and_then(|()| self.folder.sync());
        self.retire(segment, synced.is_err());
        synced
    }

    /// Puts a segment among those that nothing is appended to.
    fn retire(&mut self, mut segment: Segment, is_suspect: bool) {
        segment.is_suspect = is_suspect;
        let (name, is_done) = (segment.name, segment.waiting().records == 0);
        self.sealed.push_back(segment);
        if is_done {
            self.remove(name);
        }
    }

    fn segment(&self, name: SegmentName) -> Option<&Segment> {
        let index = self.sealed.partition_point(|segment| segment.name < name);
        let active = self.active.as_ref().map(|active| &active.segment);
        self.sealed.get(index).or(active).filter(|segment| segment.name == name)
    }

    fn segment_mut(&mut self, name: SegmentName) -> Option<&mut Segment> {
        let index = self.sealed.partition_point(|segment| segment.name < name);
        let active = self.active.as_mut().map(|active| &mut active.segment);
        self.sealed.get_mut(index).or(active).filter(|segment| segment.name == name)
    }

    /// Marks records as done with. Says whether they still waited.
    fn settle(&mut self, name: SegmentName, entry: AckEntry) -> bool {
        let Some(segment) = self.segment_mut(name) else { return false };
        if !segment.acks.insert(entry) {
            return false;
        }
        let (is_done, end) = (segment.waiting().records == 0, segment.summary.end);
        let is_active = self.active.as_ref().is_some_and(|active| active.segment.name == name);
        // The segment that is written is kept while it is small: a spool that is emptied after every record would
        // create and delete a file for each.
        if is_done && (!is_active || end > self.segment_bytes / 2) {
            self.remove(name);
        } else {
            self.save_acks(name);
        }
        true
    }

    fn save_acks(&mut self, name: SegmentName) {
        let Self { sealed, active, acks, .. } = self;
        let index = sealed.partition_point(|segment| segment.name < name);
        let active = active.as_mut().map(|active| &mut active.segment);
        if let Some(segment) = sealed.get_mut(index).or(active)
            && let Err(error) = acks.save(name, &mut segment.acks)
        {
            // It is tried again with the next one, and at the next sync.
            tracing::debug!(%error, "an acknowledgement of the spool can't be written yet");
        }
    }

    /// Deletes the files of a segment: first the records, and what was acknowledged only when they can't come back.
    fn remove(&mut self, name: SegmentName) {
        let index = self.sealed.partition_point(|segment| segment.name < name);
        let removed = match self.sealed.get(index) {
            Some(segment) if segment.name == name => self.sealed.remove(index),
            _ => self.active.take_if(|active| active.segment.name == name).map(|active| active.segment),
        };
        let Some(segment) = removed else { return };
        self.bytes -= segment.cost();
        self.reader.forget(name);
        self.rereader.forget(name);
        let deleted = self.folder.remove(&name.file(SEGMENT_EXTENSION)).and_then(|()| self.folder.sync());
        match deleted {
            Ok(()) => self.acks.remove(name),
            Err(error) => tracing::warn!(%error, "a segment of the spool can't be deleted"),
        }
    }
}
