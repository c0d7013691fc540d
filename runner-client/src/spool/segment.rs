//! A segment as memory knows it: a constant size, and a bit per record once something in it was acknowledged.

use super::acks::Acks;
use super::format::{ACK_ENTRY_LEN, FOOTER_LEN, RecordHeader, SegmentName, Summary};
use super::record::Amount;

/// What a file system gives out at once.
const BLOCK: u64 = 4096;

/// A segment.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) name: SegmentName,
    pub(super) summary: Summary,
    pub(super) acks: Acks,
    /// The length that the file of acknowledgements can reach.
    acks_reserve: u64,
    /// Whether forcing it to the disk failed: what the system says afterwards is not to be trusted.
    pub(super) is_suspect: bool,
}

impl Segment {
    pub(super) fn new(name: SegmentName) -> Self {
        Self::with(name, Summary::empty(&name), Acks::default())
    }

    /// A segment that was there before.
    pub(super) fn with(name: SegmentName, summary: Summary, acks: Acks) -> Self {
        let mut segment = Self { name, summary, acks, acks_reserve: 0, is_suspect: false };
        segment.acks_reserve = segment.acks.file_len() + segment.waiting().records * ACK_ENTRY_LEN;
        segment
    }

    /// Counts a record that was written to the end of the file.
    pub(super) fn push(&mut self, header: &RecordHeader) {
        self.summary.push(header, self.summary.end + header.record_len());
        self.acks_reserve += ACK_ENTRY_LEN;
    }

    /// How many records it was given.
    pub(super) const fn records(&self) -> u64 {
        self.summary.next_seq - self.name.seq
    }

    /// What is not done with.
    pub(super) const fn waiting(&self) -> Amount {
        let done = self.acks.done();
        Amount {
            records: self.records().saturating_sub(done.records),
            items: self.summary.items.saturating_sub(done.items),
        }
    }

    /// The disk that its files take at most, in bytes.
    pub(super) const fn cost(&self) -> u64 {
        cost(self.summary.end, self.acks_reserve)
    }

    /// The same after one more record of `record_len` bytes.
    pub(super) const fn cost_with(&self, record_len: u64) -> u64 {
        cost(self.summary.end + record_len, self.acks_reserve + ACK_ENTRY_LEN)
    }

    /// Whether a record fits that is `record_len` bytes long. The first one always does.
    pub(super) const fn has_room(&self, record_len: u64, segment_bytes: u64) -> bool {
        self.records() == 0 || self.summary.end + record_len + FOOTER_LEN <= segment_bytes
    }

    /// The place of a record in the segment, counted from 0; `None` if it is not in it.
    pub(super) fn ordinal(&self, seq: u64) -> Option<u32> {
        if seq >= self.summary.next_seq {
            return None;
        }
        u32::try_from(seq.checked_sub(self.name.seq)?).ok()
    }
}

const fn cost(end: u64, acks_reserve: u64) -> u64 {
    (end + FOOTER_LEN).next_multiple_of(BLOCK) + acks_reserve.next_multiple_of(BLOCK)
}
