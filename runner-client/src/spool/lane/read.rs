//! Reading a lane in order, past what is done with, what is too old and what is damaged.

use super::Lane;
use super::reader::Reader;
use crate::spool::error::ReadError;
use crate::spool::format::{AckEntry, SegmentName, Summary};
use crate::spool::record::{Amount, DropCause, Position, Record, Stored};
use crate::spool::scan::{Bounds, Found, Mark};
use crate::spool::segment::Segment;

/// Where reading in order is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor {
    segment: SegmentName,
    mark: Mark,
}

/// What is at the cursor.
enum Step {
    Record(Box<Stored>),
    /// Nothing to hand out. The cursor has moved on.
    Skipped,
    End,
}

impl Lane {
    /// The next record that waits, and was made at `cutoff` or later.
    pub(in crate::spool) fn next(&mut self, cutoff_unix_ms: u64) -> Result<Option<Stored>, ReadError> {
        loop {
            match self.step(cutoff_unix_ms)? {
                Step::Record(stored) => return Ok(Some(*stored)),
                Step::Skipped => {}
                Step::End => return Ok(None),
            }
        }
    }

    /// Begins again with the oldest record that waits.
    pub(in crate::spool) const fn rewind(&mut self) {
        self.cursor = None;
    }

    /// Reads a record that was handed out before; `None` if it does not wait any more, or is damaged.
    pub(in crate::spool) fn read(&mut self, position: &Position) -> Result<Option<Stored>, ReadError> {
        let &Position { segment: name, offset, seq, items } = position;
        let waits = |segment: &Segment| segment.ordinal(seq).is_some_and(|record| !segment.acks.contains(record));
        let Some(summary) = self.segment(name).filter(|segment| waits(segment)).map(|segment| segment.summary) else {
            return Ok(None);
        };
        let stored = match self.rereader.header(name, Mark { offset, seq, items: 0 }, Bounds::of(&summary))? {
            Some(found) => payload(&mut self.rereader, name, &found)?,
            None => None,
        };
        self.rereader.went_on();
        if stored.is_none() {
            self.lose(name, seq, seq + 1, items);
        }
        Ok(stored)
    }

    fn step(&mut self, cutoff_unix_ms: u64) -> Result<Step, ReadError> {
        let Some((Cursor { segment: name, mark }, summary)) = self.place() else { return Ok(Step::End) };
        let Some(found) = self.reader.find(name, mark, Bounds::of(&summary))? else {
            self.reader.went_on();
            self.cursor = Some(Cursor { segment: name, mark: Mark::after_last(&summary) });
            self.lose(name, mark.seq, summary.next_seq, summary.items.saturating_sub(mark.items));
            return Ok(Step::Skipped);
        };
        let (seq, items) = (found.header.seq, found.header.items);
        let waiting = self
            .segment(name)
            .and_then(|segment| segment.ordinal(seq).filter(|record| !segment.acks.contains(*record)));
        // Looked at in any case: the length of a damaged record says nothing about where the next one begins.
        let stored = payload(&mut self.reader, name, &found)?;
        let mark_after = if stored.is_some() {
            self.reader.went_on();
            found.after()
        } else {
            found.after_damage()
        };
        let step = match (waiting, stored) {
            (None, _) => Step::Skipped,
            (Some(record), _) if found.header.created_unix_ms < cutoff_unix_ms => {
                self.give_up(name, AckEntry { first: record, records: 1, items }, DropCause::TooOld);
                Step::Skipped
            }
            (Some(_), Some(stored)) => Step::Record(Box::new(stored)),
            (Some(_), None) => {
                self.lose(name, seq, seq + 1, items);
                Step::Skipped
            }
        };
        self.cursor = Some(Cursor { segment: name, mark: mark_after });
        self.lose(name, mark.seq, seq, found.header.items_before - mark.items);
        Ok(step)
    }

    /// Where reading goes on, and what the segment there holds.
    fn place(&self) -> Option<(Cursor, Summary)> {
        let start =
            |segment: &Segment| (Cursor { segment: segment.name, mark: Mark::first(&segment.name) }, segment.summary);
        let Some(cursor) = self.cursor else { return self.segments().next().map(start) };
        match self.segment(cursor.segment) {
            Some(segment) if cursor.mark.seq < segment.summary.next_seq => Some((cursor, segment.summary)),
            _ => {
                let index = self.sealed.partition_point(|segment| segment.name <= cursor.segment);
                let active = self.active.as_ref().map(|active| &active.segment);
                self.sealed.get(index).or(active).filter(|segment| segment.name > cursor.segment).map(start)
            }
        }
    }

    /// Counts the records from `seq` to `next_seq` as damaged, but for those that are done with. `items` is what all of
    /// them hold.
    pub(super) fn lose(&mut self, name: SegmentName, seq: u64, next_seq: u64, items: u64) {
        if seq == next_seq {
            return;
        }
        let Some(segment) = self.segment(name) else { return };
        let Some(first) = segment.ordinal(seq) else { return };
        let Ok(records) = u32::try_from(next_seq - seq) else { return };
        let missing = segment.acks.missing(first, records);
        let mut items_left = items;
        if missing.iter().map(|(_, records)| records).sum::<u32>() < records {
            // Which items of the stretch are done with is known to the file alone. If it can't be read, none are.
            items_left -= self.items_done(name, first, records).min(items);
        }
        for (first, records) in missing {
            self.give_up(name, AckEntry { first, records, items: std::mem::take(&mut items_left) }, DropCause::Damaged);
        }
    }

    fn items_done(&mut self, name: SegmentName, first: u32, records: u32) -> u64 {
        let Self { sealed, active, acks, .. } = self;
        let index = sealed.partition_point(|segment| segment.name < name);
        let segment = sealed.get(index).or(active.as_ref().map(|active| &active.segment));
        segment.map_or(0, |segment| acks.items(name, &segment.acks, first, records).unwrap_or(0))
    }

    fn give_up(&mut self, name: SegmentName, entry: AckEntry, cause: DropCause) {
        if self.settle(name, entry) {
            self.dropped[cause as usize].add(Amount { records: entry.records.into(), items: entry.items });
        }
    }
}

fn payload(reader: &mut Reader, name: SegmentName, found: &Found) -> Result<Option<Stored>, ReadError> {
    let Found { offset, header } = *found;
    let position = Position { segment: name, offset, seq: header.seq, items: header.items };
    Ok(reader.payload(name, found)?.map(|(extra, body)| Stored {
        position,
        record: Record {
            signal: name.signal,
            batch_id: header.batch_id,
            created_unix_ms: header.created_unix_ms,
            items: header.items,
            encoding: header.encoding,
            extra,
            body,
        },
    }))
}
