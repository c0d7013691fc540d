//! How acknowledged batch IDs are written down. No I/O.
//!
//! All numbers are little-endian. Times are milliseconds since 1970, ages whole seconds at that time.
//!
//! ```text
//! header   magic 8 | version 2 | 0 2 | authors 4 | IDs 4 | written at 8        28 bytes
//! author   kind 1 | length 1 | name                                            at most 130 bytes
//! ID       author 4 | signal 1 | age 4 | batch ID 16                           25 bytes, from the oldest
//! end      crc 4, of everything before
//! ```

use std::collections::HashMap;
use std::time::Duration;

use bytes::{Buf, BufMut};
use telemetry_proto::limits::MAX_RUNNER_ID_BYTES;
use telemetry_proto::{RunnerId, Signal, WriterName};

use super::{BatchId, Key};
use crate::gate::Author;

const MAGIC: [u8; 8] = *b"MIRNBIDS";
const VERSION: u16 = 1;
const HEADER: usize = 28;
const ID: usize = 25;
const END: usize = 4;

const RUNNER: u8 = 0;
const WRITER: u8 = 1;

/// An acknowledged batch, and how long ago that was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    pub(crate) author: Author,
    pub(crate) key: Key,
    pub(crate) age: Duration,
}

/// Bytes that are not what `encode` makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// They begin as no file of this kind does.
    #[error("it is no file of batch IDs")]
    Foreign,
    /// A later version of this program wrote them.
    #[error("its format is {0}, and this program knows {VERSION} only: a newer relay wrote it")]
    Newer(u16),
    /// They are cut short, or were changed.
    #[error("it is damaged")]
    Damaged,
}

/// How long an encoding of so many IDs is at most, whoever they are from.
pub(super) const fn max_len(ids: usize) -> u64 {
    (HEADER + END) as u64 + ids as u64 * (ID + 2 + MAX_RUNNER_ID_BYTES) as u64
}

/// Writes down IDs, from the oldest.
pub(crate) fn encode<'a>(written_at_ms: u64, ids: impl Iterator<Item = (&'a Author, Key, Duration)>) -> Vec<u8> {
    let (mut authors, mut entries) = (Vec::new(), Vec::new());
    let mut numbers: HashMap<&Author, u32> = HashMap::new();
    let mut count = 0_u32;
    for (author, (signal, id), age) in ids {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        let number = *numbers.entry(author).or_insert_with(|| {
            put_author(&mut authors, author);
            next
        });
        entries.put_u32_le(number);
        entries.put_u8(signal as u8);
        // Rounded up: it must not be remembered for longer than it would have been.
        entries.put_u32_le(u32::try_from(age.as_millis().div_ceil(1_000)).unwrap_or(u32::MAX));
        entries.put_u128_le(id.0);
        count += 1;
    }
    let mut bytes = Vec::with_capacity(HEADER + authors.len() + entries.len() + END);
    bytes.put_slice(&MAGIC);
    bytes.put_u16_le(VERSION);
    bytes.put_u16_le(0);
    bytes.put_u32_le(u32::try_from(numbers.len()).unwrap_or(u32::MAX));
    bytes.put_u32_le(count);
    bytes.put_u64_le(written_at_ms);
    bytes.append(&mut authors);
    bytes.append(&mut entries);
    bytes.put_u32_le(crc32fast::hash(&bytes));
    bytes
}

fn put_author(out: &mut Vec<u8>, author: &Author) {
    let (kind, name) = match author {
        Author::Runner(runner) => (RUNNER, runner.as_str()),
        Author::Writer(writer) => (WRITER, writer.as_str()),
    };
    out.put_u8(kind);
    // Names have at most 128 bytes.
    out.put_u8(u8::try_from(name.len()).unwrap_or(u8::MAX));
    out.put_slice(name.as_bytes());
}

/// Reads what [`encode`] wrote: when that was, and the youngest `max` of the IDs, from the oldest.
pub(crate) fn decode(bytes: &[u8], max: usize) -> Result<(u64, Vec<Acknowledged>), FormatError> {
    let Some(rest) = bytes.strip_prefix(&MAGIC) else {
        return Err(if MAGIC.starts_with(bytes) { FormatError::Damaged } else { FormatError::Foreign });
    };
    // Only this much is promised of a later version.
    let version = rest.get(..2).map(|mut version| version.get_u16_le()).ok_or(FormatError::Damaged)?;
    if version > VERSION {
        return Err(FormatError::Newer(version));
    }
    let body = checked(bytes).filter(|_| version == VERSION).and_then(|body| body.get(MAGIC.len() + 4..));
    body.and_then(|fields| read(fields, max)).ok_or(FormatError::Damaged)
}

/// What stands before a checksum that is right.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (body, mut crc) = bytes.split_at_checked(bytes.len().checked_sub(END)?)?;
    (crc32fast::hash(body) == crc.get_u32_le()).then_some(body)
}

/// A checksum is no proof of anything but luck: each field is looked at, and nothing is reserved for a mere number.
fn read(mut fields: &[u8], max: usize) -> Option<(u64, Vec<Acknowledged>)> {
    let authors = fields.try_get_u32_le().ok()?;
    let ids = usize::try_from(fields.try_get_u32_le().ok()?).ok()?;
    let written_at_ms = fields.try_get_u64_le().ok()?;
    let mut names = Vec::new();
    for _ in 0..authors {
        names.push(take_author(&mut fields)?);
    }
    if fields.len() != ids.checked_mul(ID)? {
        return None;
    }
    let youngest = fields.get(ids.saturating_sub(max) * ID..)?;
    let mut acknowledged = youngest.chunks_exact(ID).map(|entry| take_id(entry, &names)).collect::<Option<Vec<_>>>()?;
    acknowledged.sort_by_key(|id| std::cmp::Reverse(id.age));
    Some((written_at_ms, acknowledged))
}

fn take_author(fields: &mut &[u8]) -> Option<Author> {
    let (kind, length) = (fields.try_get_u8().ok()?, fields.try_get_u8().ok()?);
    let (name, rest) = fields.split_at_checked(length.into())?;
    *fields = rest;
    let name = std::str::from_utf8(name).ok()?;
    match kind {
        RUNNER => RunnerId::new(name).ok().map(Author::from),
        WRITER => WriterName::new(name).ok().map(Author::from),
        _ => None,
    }
}

fn take_id(mut entry: &[u8], names: &[Author]) -> Option<Acknowledged> {
    let author = names.get(usize::try_from(entry.try_get_u32_le().ok()?).ok()?)?.clone();
    let signal = *Signal::ALL.get(usize::from(entry.try_get_u8().ok()?))?;
    let age = Duration::from_secs(entry.try_get_u32_le().ok()?.into());
    let id = BatchId(entry.try_get_u128_le().ok()?);
    Some(Acknowledged { author, key: (signal, id), age })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gate::fixtures::author;

    fn sample() -> Vec<Acknowledged> {
        let writer = Author::from(WriterName::new("edge").unwrap());
        let id = |author: &Author, signal, n, seconds| Acknowledged {
            author: author.clone(),
            key: (signal, BatchId(n)),
            age: Duration::from_secs(seconds),
        };
        vec![
            id(&author("a"), Signal::Metrics, 1, 90),
            id(&writer, Signal::Traces, u128::MAX, 60),
            id(&author("edge"), Signal::Logs, 2, 60),
            id(&author("a"), Signal::Metrics, 3, 0),
        ]
    }

    fn encoded(ids: &[Acknowledged]) -> Vec<u8> {
        encode(1_700_000_000_123, ids.iter().map(|id| (&id.author, id.key, id.age)))
    }

    #[test]
    fn what_is_written_is_read_as_the_same_and_a_runner_is_no_writer() {
        assert_eq!(decode(&encoded(&sample()), 100), Ok((1_700_000_000_123, sample())));
        assert_eq!(decode(&encoded(&[]), 100), Ok((1_700_000_000_123, Vec::new())));
        assert!(encoded(&sample()).len() as u64 <= max_len(sample().len()));
    }

    #[test]
    fn of_more_than_may_be_remembered_the_youngest_are_read() {
        assert_eq!(decode(&encoded(&sample()), 3).unwrap().1, sample()[1..]);
        assert_eq!(decode(&encoded(&sample()), 0).unwrap().1, []);
    }

    #[test]
    fn ages_are_rounded_up() {
        let a = author("a");
        let bytes = encode(0, [(&a, (Signal::Logs, BatchId(1)), Duration::from_millis(1_001))].into_iter());
        assert_eq!(decode(&bytes, 1).unwrap().1[0].age, Duration::from_secs(2));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_seen() {
        let whole = encoded(&sample());
        for len in 0..whole.len() {
            assert_eq!(decode(&whole[..len], 100), Err(FormatError::Damaged), "cut to {len}");
        }
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                0..8 => FormatError::Foreign,
                8..10 if u16::from_le_bytes([bytes[8], bytes[9]]) > VERSION => {
                    FormatError::Newer(u16::from_le_bytes([bytes[8], bytes[9]]))
                }
                _ => FormatError::Damaged,
            };
            assert_eq!(decode(&bytes, 100), Err(expected), "bit {bit}");
        }
        assert_eq!(decode(b"[listener]\naddress = \"[::]:8443\"\n", 100), Err(FormatError::Foreign));
    }

    proptest! {
        /// Whatever stands under a good checksum is read or refused, and is never more than the bytes can hold.
        #[test]
        fn nothing_under_a_good_checksum_is_believed(body in prop::collection::vec(any::<u8>(), 0..300), max in 0_usize..20) {
            let mut bytes = MAGIC.to_vec();
            bytes.put_u16_le(VERSION);
            bytes.extend(body);
            let crc = crc32fast::hash(&bytes);
            bytes.put_u32_le(crc);
            if let Ok((_, ids)) = decode(&bytes, max) {
                prop_assert!(ids.len() <= max && ids.len() * ID <= bytes.len());
            }
        }
    }
}
