//! Finding records in a segment, whatever became of it.
//!
//! Records follow one another; the next one begins where the last one ended. Where there is none, a bit has flipped,
//! bytes are missing, or a block was never written: then the next whole header is searched for, byte by byte, and the walk
//! goes on from there. It never goes back, so that the work is bounded by the size of the file.

use std::fs::File;
use std::io;

use bytes::Bytes;
use memchr::memmem;

use super::disk;
use super::format::{
    self, MAX_SEGMENT_RECORDS, RECORD_HEADER, RECORD_HEADER_LEN, RECORD_MAGIC, RecordHeader, SEGMENT_HEADER_LEN,
    SegmentName, Summary,
};
use super::record::{MAX_EXTRA_BYTES, MAX_RECORD_BODY_BYTES};

/// How much is read at once while searching: little at first, as the next record is mostly near.
const FIRST_CHUNK: usize = 4 * 1024;
const LAST_CHUNK: usize = 64 * 1024;
/// The unit in which a disk fails.
const BLOCK: usize = 4096;

/// Where bytes are read from.
pub(super) trait Source {
    /// Reads from `offset`; short only at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl Source for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        disk::read(self, buffer, offset)
    }
}

/// Reads zeros where the disk fails: what is there is lost, what is behind it is not.
pub(super) struct Lossy<'a>(pub(super) &'a File);

impl Source for Lossy<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Ok(read) = self.0.read_at(buffer, offset) {
            return Ok(read);
        }
        let mut filled = 0;
        for block in buffer.chunks_mut(BLOCK) {
            match self.0.read_at(block, offset + filled as u64) {
                Ok(read) if read < block.len() => return Ok(filled + read),
                Ok(_) => {}
                Err(_) => block.fill(0),
            }
            filled += block.len();
        }
        Ok(filled)
    }
}

/// Where the next record should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) offset: u64,
    pub(super) seq: u64,
    /// The items of all records before it in the segment.
    pub(super) items: u64,
}

impl Mark {
    /// Where the first record of a segment should be.
    pub(super) const fn first(name: &SegmentName) -> Self {
        Self { offset: SEGMENT_HEADER_LEN, seq: name.seq, items: 0 }
    }

    /// Behind the last record of a segment.
    pub(super) const fn after_last(summary: &Summary) -> Self {
        Self { offset: summary.end, seq: summary.next_seq, items: summary.items }
    }
}

/// A record whose header is whole. Records between the mark and this one are lost: the differences of `seq` and of the
/// items say how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) offset: u64,
    pub(super) header: RecordHeader,
}

impl Found {
    /// Where the next record should be.
    pub(super) fn after(&self) -> Mark {
        self.before_next(self.end())
    }

    /// Where to search on if the payload is damaged. Not behind it: if bytes are missing, the next record begins in it.
    pub(super) fn after_damage(&self) -> Mark {
        self.before_next(self.offset + RECORD_HEADER_LEN)
    }

    /// Where the record ends.
    pub(super) fn end(&self) -> u64 {
        self.offset + self.header.record_len()
    }

    fn before_next(&self, offset: u64) -> Mark {
        let items = self.header.items_before.saturating_add(self.header.items);
        Mark { offset, seq: self.header.seq + 1, items }
    }
}

/// What is known about the records of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Where the last one ends at the latest.
    pub(super) end: u64,
    /// The `seq` that none of them reaches.
    pub(super) next_seq: u64,
}

impl Bounds {
    /// Of a segment whose summary is known.
    pub(super) const fn of(summary: &Summary) -> Self {
        Self { end: summary.end, next_seq: summary.next_seq }
    }

    /// Nothing is known but the length of the file.
    pub(super) const fn of_file(name: &SegmentName, file_len: u64) -> Self {
        Self { end: file_len, next_seq: name.seq.saturating_add(MAX_SEGMENT_RECORDS) }
    }
}

/// The record that begins at the mark, or one that came to be there.
pub(super) fn at(source: &dyn Source, salt: u64, mark: Mark, bounds: Bounds) -> io::Result<Option<Found>> {
    let mut header = [0; RECORD_HEADER];
    if source.read_at(&mut header, mark.offset)? < header.len() {
        return Ok(None);
    }
    Ok(candidate(&header, salt, mark.offset, mark, bounds))
}

/// The first record that begins at or behind the mark.
pub(super) fn find(source: &dyn Source, salt: u64, mark: Mark, bounds: Bounds) -> io::Result<Option<Found>> {
    match at(source, salt, mark, bounds)? {
        Some(found) => Ok(Some(found)),
        None => search(source, salt, Mark { offset: mark.offset + 1, ..mark }, bounds),
    }
}

/// Extra and body of a record; `None` if they are damaged.
pub(super) fn payload(source: &dyn Source, found: &Found) -> io::Result<Option<(Bytes, Bytes)>> {
    let Ok(len) = usize::try_from(found.header.payload_len()) else { return Ok(None) };
    let mut payload = vec![0; len];
    let read = source.read_at(&mut payload, found.offset + RECORD_HEADER_LEN)?;
    if read < len || format::payload_crc(&[&payload]) != found.header.payload_crc {
        return Ok(None);
    }
    let mut extra = Bytes::from(payload);
    let body = extra.split_off(found.header.extra_len.into());
    Ok(Some((extra, body)))
}

fn search(source: &dyn Source, salt: u64, mark: Mark, bounds: Bounds) -> io::Result<Option<Found>> {
    let mut chunk = vec![0; FIRST_CHUNK];
    let mut offset = mark.offset;
    while offset < bounds.end {
        let read = source.read_at(&mut chunk, offset)?;
        let bytes = &chunk[..read];
        for at in memmem::find_iter(bytes, &RECORD_MAGIC) {
            let Some(header) = bytes[at..].first_chunk() else { break };
            if let Some(found) = candidate(header, salt, offset + at as u64, mark, bounds) {
                return Ok(Some(found));
            }
        }
        if read < chunk.len() {
            break;
        }
        // A header that the end of the chunk cuts is whole in the next one.
        offset += (read - (RECORD_HEADER - 1)) as u64;
        chunk.resize(LAST_CHUNK.min(2 * chunk.len()), 0);
    }
    Ok(None)
}

fn candidate(bytes: &[u8; RECORD_HEADER], salt: u64, offset: u64, mark: Mark, bounds: Bounds) -> Option<Found> {
    let header = RecordHeader::read(bytes, salt)?;
    let found = Found { offset, header };
    let is_plausible = (mark.seq..bounds.next_seq).contains(&header.seq)
        && header.items_before >= mark.items
        && header.items <= u64::MAX - header.items_before
        && header.payload_len() <= MAX_RECORD_BODY_BYTES + MAX_EXTRA_BYTES as u64
        && found.end() <= bounds.end;
    is_plausible.then_some(found)
}
