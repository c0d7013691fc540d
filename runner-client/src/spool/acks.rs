//! What is done with in a segment: acknowledged, given up or lost.
//!
//! In memory it is a bit per record, from the first acknowledgement in a segment on. On disk it is a file beside the
//! segment to which entries are added. An entry that can't be written (the disk may be full: the acknowledgement is what
//! makes room) stays in memory and is written with the next one.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use super::disk;
use super::folder::Folder;
use super::format::{ACK_ENTRY, ACK_ENTRY_LEN, ACKS_EXTENSION, AckEntry, MAX_SEGMENT_RECORDS, SegmentName};
use super::record::Amount;

/// The records of one segment that are done with.
#[derive(Debug, Default)]
pub(super) struct Acks {
    bits: Vec<u64>,
    done: Amount,
    /// How long the file is.
    file_len: u64,
    /// What is not in the file yet.
    unsaved: Vec<AckEntry>,
}

impl Acks {
    /// Reads the file of a segment with `records` records. What is damaged in it is skipped, and what is about records that
    /// the segment does not have (any more).
    pub(super) fn load(file: &File, salt: u64, records: u64) -> io::Result<Self> {
        let mut acks = Self::default();
        let mut reader = BufReader::new(file.take(MAX_SEGMENT_RECORDS * ACK_ENTRY_LEN));
        let mut bytes = [0; ACK_ENTRY];
        while read_entry(&mut reader, &mut bytes)? {
            acks.file_len += ACK_ENTRY_LEN;
            if let Some(entry) = AckEntry::read(&bytes, salt)
                && u64::from(entry.first) + u64::from(entry.records) <= records
            {
                acks.mark(entry);
            }
        }
        Ok(acks)
    }

    /// How much is done with.
    pub(super) const fn done(&self) -> Amount {
        self.done
    }

    /// The length of the file.
    pub(super) const fn file_len(&self) -> u64 {
        self.file_len
    }

    pub(super) fn contains(&self, record: u32) -> bool {
        self.bits.get(word(record)).is_some_and(|word| word & bit(record) != 0)
    }

    /// Adds records. Says whether they were not done with before; if any of them was, nothing is added.
    pub(super) fn insert(&mut self, entry: AckEntry) -> bool {
        let is_new = self.mark(entry);
        if is_new {
            self.unsaved.push(entry);
        }
        is_new
    }

    /// The stretches of `records` records from `first` that are not done with.
    pub(super) fn missing(&self, first: u32, records: u32) -> Vec<(u32, u32)> {
        let mut stretches: Vec<(u32, u32)> = Vec::new();
        for record in first..first.saturating_add(records) {
            if self.contains(record) {
                continue;
            }
            match stretches.last_mut() {
                Some((start, len)) if *start + *len == record => *len += 1,
                _ => stretches.push((record, 1)),
            }
        }
        stretches
    }

    /// Whether there is something to write.
    pub(super) fn is_unsaved(&self) -> bool {
        !self.unsaved.is_empty()
    }

    /// Writes what is not in the file yet.
    pub(super) fn save(&mut self, file: &File, salt: u64) -> io::Result<()> {
        let bytes: Vec<u8> = self.unsaved.iter().flat_map(|entry| entry.write(salt)).collect();
        disk::write(file, self.file_len, &[&bytes]).map_err(|error| error.source)?;
        self.file_len += bytes.len() as u64;
        self.unsaved = Vec::new();
        Ok(())
    }

    fn mark(&mut self, entry: AckEntry) -> bool {
        let Some(end) = entry.first.checked_add(entry.records).filter(|_| entry.records > 0) else { return false };
        let mut records = entry.first..end;
        if records.clone().any(|record| self.contains(record)) {
            return false;
        }
        let words = word(end - 1) + 1;
        if self.bits.len() < words {
            self.bits.resize(words, 0);
        }
        records.by_ref().for_each(|record| self.bits[word(record)] |= bit(record));
        self.done.add(Amount { records: entry.records.into(), items: entry.items });
        true
    }
}

/// The acknowledgement files of one signal. One of them is kept open.
#[derive(Debug)]
pub(super) struct AckFiles {
    folder: Arc<Folder>,
    open: Option<(SegmentName, File)>,
    /// Segments whose files were written and not forced to the disk since.
    unsynced: BTreeSet<SegmentName>,
}

impl AckFiles {
    pub(super) const fn new(folder: Arc<Folder>) -> Self {
        Self { folder, open: None, unsynced: BTreeSet::new() }
    }

    /// Writes what is not in the file of the segment yet.
    pub(super) fn save(&mut self, name: SegmentName, acks: &mut Acks) -> io::Result<()> {
        if !acks.is_unsaved() {
            return Ok(());
        }
        self.unsynced.insert(name);
        acks.save(self.file(name)?, name.salt)
    }

    /// The items of those of `records` records from `first` that are done with, as the file says.
    pub(super) fn items(&mut self, name: SegmentName, acks: &Acks, first: u32, records: u32) -> io::Result<u64> {
        let range = first..first.saturating_add(records);
        let mut items: u64 = acks.unsaved.iter().filter(|entry| range.contains(&entry.first)).map(|e| e.items).sum();
        let mut reader = BufReader::new(self.folder.open(&name.file(ACKS_EXTENSION))?);
        let mut bytes = [0; ACK_ENTRY];
        while read_entry(&mut reader, &mut bytes)? {
            let entry = AckEntry::read(&bytes, name.salt);
            items += entry.filter(|entry| range.contains(&entry.first)).map_or(0, |entry| entry.items);
        }
        Ok(items)
    }

    /// There is a file that another process wrote. It may be neither on the disk nor lost.
    pub(super) fn found(&mut self, name: SegmentName) {
        self.unsynced.insert(name);
    }

    /// Whether something was written and not forced to the disk since.
    pub(super) fn is_unsynced(&self) -> bool {
        !self.unsynced.is_empty()
    }

    /// Waits until everything that was written is on the disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        while let Some(name) = self.unsynced.first().copied() {
            disk::sync(self.file(name)?)?;
            self.unsynced.remove(&name);
        }
        Ok(())
    }

    /// Deletes the file of a segment that is gone.
    pub(super) fn remove(&mut self, name: SegmentName) {
        // An open file would keep its space.
        self.open.take_if(|(open, _)| *open == name);
        self.unsynced.remove(&name);
        // If it stays behind, the next start removes it.
        let _ = self.folder.remove(&name.file(ACKS_EXTENSION));
    }

    fn file(&mut self, name: SegmentName) -> io::Result<&File> {
        let file = match self.open.take() {
            Some((open, file)) if open == name => file,
            _ => self.folder.open_or_create(&name.file(ACKS_EXTENSION))?,
        };
        Ok(&self.open.insert((name, file)).1)
    }
}

/// Reads a whole entry; `false` at the end, and for the rest that a torn write left.
fn read_entry(reader: &mut impl Read, bytes: &mut [u8; ACK_ENTRY]) -> io::Result<bool> {
    match reader.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

const fn word(record: u32) -> usize {
    (record / u64::BITS) as usize
}

const fn bit(record: u32) -> u64 {
    1 << (record % u64::BITS)
}
