//! The bytes on disk.
//!
//! All numbers are little-endian. A segment is called `SIGNAL-SEQ-SALT.seg` (decimal, 20 digits; hexadecimal, 16 digits)
//! and holds a header, records and, once nothing more is appended to it, a footer. What was acknowledged in it is in
//! `SIGNAL-SEQ-SALT.ack`, a list of entries.
//!
//! ```text
//! header   magic 8 | version 2 | signal 1 | 0 1 | seq 8 | salt 8 | created 8 | 0 24 | crc 4                 64 bytes
//! record   magic 4 | body length 4 | extra length 2 | encoding 1 | 0 1 | payload crc 4 | seq 8
//!          | items before 8 | items 8 | created 8 | batch ID 16 | crc 4                                     68 bytes
//!          | extra | body
//! footer   magic 8 | end of records 8 | next seq 8 | items 8 | oldest 8 | newest 8 | crc 4                  52 bytes
//! entry    first record 4 | records 4 | items 8 | crc 4                                                     20 bytes
//! ```
//!
//! - The name says all that the header does, so that a damaged header costs nothing. Magic, version and checksum of the
//!   header stay where they are in every version to come.
//! - The checksums of records, footers and entries begin with the salt of their segment, a random number. So nothing
//!   that looks like a record is taken for one: neither in the body of another, nor in what a disk block held before.
//! - `seq` counts the records of a signal, `items before` the items of the segment: across a damaged stretch the
//!   difference says what was lost in it.

use bytes::{Buf, BufMut};
use ulid::Ulid;

use super::record::{BodyEncoding, Record, SpoolSignal};

/// The format that this program writes, and the newest that it reads.
pub(super) const VERSION: u16 = 1;

pub(super) const SEGMENT_HEADER: usize = 64;
pub(super) const RECORD_HEADER: usize = 68;
pub(super) const FOOTER: usize = 52;
pub(super) const ACK_ENTRY: usize = 20;

pub(super) const SEGMENT_HEADER_LEN: u64 = SEGMENT_HEADER as u64;
pub(super) const RECORD_HEADER_LEN: u64 = RECORD_HEADER as u64;
pub(super) const FOOTER_LEN: u64 = FOOTER as u64;
pub(super) const ACK_ENTRY_LEN: u64 = ACK_ENTRY as u64;

/// The largest file that can be a segment: the largest `segment_bytes`, or one record that is larger.
pub(super) const MAX_SEGMENT_FILE: u64 = 1024 * 1024 * 1024 + 64 * 1024 * 1024;

/// More records than fit into a segment.
pub(super) const MAX_SEGMENT_RECORDS: u64 = 1 << 24;

pub(super) const RECORD_MAGIC: [u8; 4] = *b"\xd5Rec";
const SEGMENT_MAGIC: [u8; 8] = *b"\x89TSPOOL\n";
const FOOTER_MAGIC: [u8; 8] = *b"\x89TSPEND\n";

/// The extension of segments.
pub(super) const SEGMENT_EXTENSION: &str = "seg";
/// The extension of acknowledgements.
pub(super) const ACKS_EXTENSION: &str = "ack";

/// What tells segments apart, in the order in which they were begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SegmentName {
    pub(super) signal: SpoolSignal,
    /// The `seq` of its first record.
    pub(super) seq: u64,
    pub(super) salt: u64,
}

impl SegmentName {
    pub(super) fn file(&self, extension: &str) -> String {
        format!("{}-{:020}-{:016x}.{extension}", self.signal, self.seq, self.salt)
    }

    /// Reads a file's name; also says its extension.
    pub(super) fn parse(name: &str) -> Option<(Self, &'static str)> {
        let (stem, extension) = name.split_once('.')?;
        let extension = [SEGMENT_EXTENSION, ACKS_EXTENSION].into_iter().find(|known| *known == extension)?;
        let mut parts = stem.splitn(3, '-');
        let signal = parts.next()?;
        let signal = SpoolSignal::ALL.into_iter().find(|known| known.to_string() == signal)?;
        let seq = parts.next()?.parse().ok()?;
        let salt = u64::from_str_radix(parts.next()?, 16).ok()?;
        let parsed = Self { signal, seq, salt };
        // One segment, one name: no signs, no missing zeros.
        (parsed.file(extension) == name && seq < u64::MAX / 2).then_some((parsed, extension))
    }

    /// The header of the segment.
    pub(super) fn header(&self, created_unix_ms: u64) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        let mut out = &mut bytes[..];
        out.put_slice(&SEGMENT_MAGIC);
        out.put_u16_le(VERSION);
        out.put_u8(signal_code(self.signal));
        out.put_u8(0);
        out.put_u64_le(self.seq);
        out.put_u64_le(self.salt);
        out.put_u64_le(created_unix_ms);
        seal(&mut bytes, crc32fast::hash)
    }
}

/// What the first bytes of a file say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    /// The header of this segment.
    Segment(SegmentName),
    /// A header of a version that this program does not know.
    Newer(u16),
    /// No whole header.
    Unknown,
}

impl Head {
    pub(super) fn read(bytes: &[u8; SEGMENT_HEADER]) -> Self {
        let Some(mut fields) = checked(bytes, crc32fast::hash) else { return Self::Unknown };
        if !take_magic(&mut fields, SEGMENT_MAGIC) {
            return Self::Unknown;
        }
        let version = fields.get_u16_le();
        if version > VERSION {
            return Self::Newer(version);
        }
        let code = fields.get_u8();
        fields.advance(1);
        match SpoolSignal::ALL.into_iter().find(|signal| signal_code(*signal) == code) {
            Some(signal) if version == VERSION => {
                Self::Segment(SegmentName { signal, seq: fields.get_u64_le(), salt: fields.get_u64_le() })
            }
            _ => Self::Unknown,
        }
    }
}

/// What stands before the payload of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) body_len: u32,
    pub(super) extra_len: u16,
    pub(super) encoding: BodyEncoding,
    pub(super) payload_crc: u32,
    pub(super) seq: u64,
    /// The items of all records before this one in the segment.
    pub(super) items_before: u64,
    pub(super) items: u64,
    pub(super) created_unix_ms: u64,
    pub(super) batch_id: Ulid,
}

impl RecordHeader {
    /// The header of a record; `None` if a length does not fit.
    pub(super) fn of(record: &Record, seq: u64, items_before: u64) -> Option<Self> {
        Some(Self {
            body_len: u32::try_from(record.body.len()).ok()?,
            extra_len: u16::try_from(record.extra.len()).ok()?,
            encoding: record.encoding,
            payload_crc: payload_crc(&[&record.extra, &record.body]),
            seq,
            items_before,
            items: record.items,
            created_unix_ms: record.created_unix_ms,
            batch_id: record.batch_id,
        })
    }

    pub(super) fn write(&self, salt: u64) -> [u8; RECORD_HEADER] {
        let mut bytes = [0; RECORD_HEADER];
        let mut out = &mut bytes[..];
        out.put_slice(&RECORD_MAGIC);
        out.put_u32_le(self.body_len);
        out.put_u16_le(self.extra_len);
        out.put_u8(encoding_code(self.encoding));
        out.put_u8(0);
        out.put_u32_le(self.payload_crc);
        out.put_u64_le(self.seq);
        out.put_u64_le(self.items_before);
        out.put_u64_le(self.items);
        out.put_u64_le(self.created_unix_ms);
        out.put_slice(&self.batch_id.to_bytes());
        seal(&mut bytes, |bytes| salted_crc(salt, bytes))
    }

    pub(super) fn read(bytes: &[u8; RECORD_HEADER], salt: u64) -> Option<Self> {
        // The magic first: it is cheap, and most of what is looked at while searching has none.
        if !bytes.starts_with(&RECORD_MAGIC) {
            return None;
        }
        let mut fields = checked(bytes, |bytes| salted_crc(salt, bytes))?;
        fields.advance(RECORD_MAGIC.len());
        let (body_len, extra_len, encoding) = (fields.get_u32_le(), fields.get_u16_le(), fields.get_u8());
        fields.advance(1);
        Some(Self {
            body_len,
            extra_len,
            encoding: ENCODINGS.into_iter().find(|known| encoding_code(*known) == encoding)?,
            payload_crc: fields.get_u32_le(),
            seq: fields.get_u64_le(),
            items_before: fields.get_u64_le(),
            items: fields.get_u64_le(),
            created_unix_ms: fields.get_u64_le(),
            batch_id: {
                let mut id = [0; 16];
                fields.copy_to_slice(&mut id);
                Ulid::from_bytes(id)
            },
        })
    }

    /// The bytes behind the header.
    pub(super) fn payload_len(&self) -> u64 {
        u64::from(self.extra_len) + u64::from(self.body_len)
    }

    /// The bytes of the whole record.
    pub(super) fn record_len(&self) -> u64 {
        RECORD_HEADER_LEN + self.payload_len()
    }
}

/// What a segment holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Summary {
    /// Where the records end.
    pub(super) end: u64,
    /// The `seq` after the last record.
    pub(super) next_seq: u64,
    /// The items of all records.
    pub(super) items: u64,
    /// The earliest `created`.
    pub(super) oldest_unix_ms: u64,
    /// The latest `created`.
    pub(super) newest_unix_ms: u64,
}

impl Summary {
    /// The summary of a segment without records.
    pub(super) const fn empty(name: &SegmentName) -> Self {
        Self { end: SEGMENT_HEADER_LEN, next_seq: name.seq, items: 0, oldest_unix_ms: u64::MAX, newest_unix_ms: 0 }
    }

    /// Counts a record that ends at `end`.
    pub(super) fn push(&mut self, header: &RecordHeader, end: u64) {
        self.end = end;
        self.next_seq = header.seq + 1;
        self.items = header.items_before.saturating_add(header.items);
        self.oldest_unix_ms = self.oldest_unix_ms.min(header.created_unix_ms);
        self.newest_unix_ms = self.newest_unix_ms.max(header.created_unix_ms);
    }

    /// The footer of the segment.
    pub(super) fn write(&self, salt: u64) -> [u8; FOOTER] {
        let mut bytes = [0; FOOTER];
        let mut out = &mut bytes[..];
        out.put_slice(&FOOTER_MAGIC);
        out.put_u64_le(self.end);
        out.put_u64_le(self.next_seq);
        out.put_u64_le(self.items);
        out.put_u64_le(self.oldest_unix_ms);
        out.put_u64_le(self.newest_unix_ms);
        seal(&mut bytes, |bytes| salted_crc(salt, bytes))
    }

    /// Reads the last bytes of a file of `file_len` bytes.
    pub(super) fn read(bytes: &[u8; FOOTER], name: &SegmentName, file_len: u64) -> Option<Self> {
        let mut fields = checked(bytes, |bytes| salted_crc(name.salt, bytes))?;
        if !take_magic(&mut fields, FOOTER_MAGIC) {
            return None;
        }
        let summary = Self {
            end: fields.get_u64_le(),
            next_seq: fields.get_u64_le(),
            items: fields.get_u64_le(),
            oldest_unix_ms: fields.get_u64_le(),
            newest_unix_ms: fields.get_u64_le(),
        };
        let records = summary.next_seq.checked_sub(name.seq)?;
        (summary.end.checked_add(FOOTER_LEN) == Some(file_len) && records <= MAX_SEGMENT_RECORDS).then_some(summary)
    }
}

/// Records of a segment that are done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AckEntry {
    /// Counted from the first record of the segment.
    pub(super) first: u32,
    pub(super) records: u32,
    /// The items of these records.
    pub(super) items: u64,
}

impl AckEntry {
    pub(super) fn write(&self, salt: u64) -> [u8; ACK_ENTRY] {
        let mut bytes = [0; ACK_ENTRY];
        let mut out = &mut bytes[..];
        out.put_u32_le(self.first);
        out.put_u32_le(self.records);
        out.put_u64_le(self.items);
        seal(&mut bytes, |bytes| salted_crc(salt, bytes))
    }

    pub(super) fn read(bytes: &[u8; ACK_ENTRY], salt: u64) -> Option<Self> {
        let mut fields = checked(bytes, |bytes| salted_crc(salt, bytes))?;
        Some(Self { first: fields.get_u32_le(), records: fields.get_u32_le(), items: fields.get_u64_le() })
    }
}

/// The checksum over extra and body.
pub(super) fn payload_crc(parts: &[&[u8]]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    parts.iter().for_each(|part| crc.update(part));
    crc.finalize()
}

fn salted_crc(salt: u64, bytes: &[u8]) -> u32 {
    payload_crc(&[&salt.to_le_bytes(), bytes])
}

/// Puts the checksum into the last four bytes.
fn seal<const N: usize>(bytes: &mut [u8; N], crc: impl Fn(&[u8]) -> u32) -> [u8; N] {
    if let Some((content, stored)) = bytes.split_last_chunk_mut::<4>() {
        *stored = crc(content).to_le_bytes();
    }
    *bytes
}

/// What stands before the checksum, if it is right.
fn checked<const N: usize>(bytes: &[u8; N], crc: impl Fn(&[u8]) -> u32) -> Option<&[u8]> {
    let (content, stored) = bytes.split_last_chunk::<4>()?;
    (crc(content) == u32::from_le_bytes(*stored)).then_some(content)
}

fn take_magic(fields: &mut &[u8], magic: [u8; 8]) -> bool {
    let is_there = fields.starts_with(&magic);
    fields.advance(magic.len());
    is_there
}

const fn signal_code(signal: SpoolSignal) -> u8 {
    match signal {
        SpoolSignal::Metrics => 1,
        SpoolSignal::Logs => 2,
    }
}

const ENCODINGS: [BodyEncoding; 3] = [BodyEncoding::Identity, BodyEncoding::Gzip, BodyEncoding::Zstd];

const fn encoding_code(encoding: BodyEncoding) -> u8 {
    match encoding {
        BodyEncoding::Identity => 0,
        BodyEncoding::Gzip => 1,
        BodyEncoding::Zstd => 2,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const NAME: SegmentName = SegmentName { signal: SpoolSignal::Logs, seq: 42, salt: 0x9f86_d081_884c_7d65 };

    fn header() -> RecordHeader {
        let record = Record {
            signal: SpoolSignal::Logs,
            batch_id: Ulid::from_parts(1_790_000_000_000, 7),
            created_unix_ms: 1_790_000_000_000,
            items: 3,
            encoding: BodyEncoding::Gzip,
            extra: Bytes::from_static(b"extra"),
            body: Bytes::from_static(b"body"),
        };
        RecordHeader::of(&record, 43, 9).unwrap()
    }

    #[test]
    fn everything_reads_back_as_it_was_written() {
        assert_eq!(Head::read(&NAME.header(5)), Head::Segment(NAME));
        assert_eq!(RecordHeader::read(&header().write(NAME.salt), NAME.salt), Some(header()));
        let mut summary = Summary::empty(&NAME);
        summary.push(&header(), 500);
        assert_eq!(Summary::read(&summary.write(NAME.salt), &NAME, 552), Some(summary));
        let entry = AckEntry { first: 1, records: 2, items: 3 };
        assert_eq!(AckEntry::read(&entry.write(NAME.salt), NAME.salt), Some(entry));
        for extension in [SEGMENT_EXTENSION, ACKS_EXTENSION] {
            assert_eq!(SegmentName::parse(&NAME.file(extension)), Some((NAME, extension)));
        }
        assert_eq!(NAME.file("seg"), "logs-00000000000000000042-9f86d081884c7d65.seg");
    }

    #[test]
    fn one_flipped_bit_is_noticed_everywhere() {
        fn flips<const N: usize>(bytes: [u8; N]) -> impl Iterator<Item = [u8; N]> {
            (0..8 * N).map(move |bit| {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                flipped
            })
        }
        let summary = Summary { end: 500, next_seq: 44, items: 12, oldest_unix_ms: 1, newest_unix_ms: 2 };
        let entry = AckEntry { first: 1, records: 2, items: 3 };
        assert!(flips(NAME.header(5)).all(|bytes| Head::read(&bytes) == Head::Unknown));
        assert!(flips(header().write(7)).all(|bytes| RecordHeader::read(&bytes, 7).is_none()));
        assert!(
            flips(summary.write(7)).all(|bytes| Summary::read(&bytes, &SegmentName { salt: 7, ..NAME }, 552).is_none())
        );
        assert!(flips(entry.write(7)).all(|bytes| AckEntry::read(&bytes, 7).is_none()));
    }

    #[test]
    fn what_belongs_to_another_segment_is_not_taken() {
        assert_eq!(RecordHeader::read(&header().write(7), 8), None);
        assert_eq!(AckEntry::read(&AckEntry { first: 1, records: 2, items: 3 }.write(7), 8), None);
        assert_eq!(RecordHeader::read(&[0; RECORD_HEADER], 0), None);
        assert_eq!(AckEntry::read(&[0; ACK_ENTRY], 0), None);
    }

    #[test]
    fn a_newer_version_is_told_from_a_damaged_header() {
        let mut bytes = NAME.header(5);
        bytes[8] = 2;
        assert_eq!(Head::read(&bytes), Head::Unknown, "the checksum does not fit");
        assert_eq!(Head::read(&seal(&mut bytes, crc32fast::hash)), Head::Newer(2));
    }

    #[test]
    fn names_of_other_files_are_no_segments() {
        for name in [
            "",
            "logs-42-9f86d081884c7d65.seg",
            "logs-+0000000000000000042-9f86d081884c7d65.seg",
            "logs-00000000000000000042-9F86D081884C7D65.seg",
            "logs-00000000000000000042-9f86d081884c7d65.seg.old",
            "logs-00000000000000000042-9f86d081884c7d65 (copy).seg",
            "traces-00000000000000000042-9f86d081884c7d65.seg",
            "logs-18446744073709551615-9f86d081884c7d65.seg",
        ] {
            assert_eq!(SegmentName::parse(name), None, "{name}");
        }
    }
}
