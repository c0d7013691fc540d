//! Fuzz target: a start with a segment of any content.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use telemetry_proto::SystemClock;
use ulid::Ulid;

use super::format::{ACKS_EXTENSION, RecordHeader, SEGMENT_EXTENSION, SegmentName, payload_crc};
use super::record::{BodyEncoding, Record, SpoolSignal};
use super::{Spool, SpoolConfig, SpoolError};

/// The salt is known to the seeds, so that their checksums fit.
const NAME: SegmentName = SegmentName { signal: SpoolSignal::Logs, seq: 0, salt: 7 };

/// The first byte says what the rest is: the bytes of a segment, those of its acknowledgements beside a good segment, or the
/// fields of records, whose checksums are right whatever they say.
///
/// The start goes on, what is handed out can be acknowledged once, and after that nothing waits and nothing is lost again.
pub(crate) fn segments(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    let folder = Folder::new();
    let (segment, acks) = match choice % 3 {
        0 => (rest.to_vec(), None),
        1 => (segment(), Some(rest)),
        _ => (claimed(rest), None),
    };
    folder.write(SEGMENT_EXTENSION, &segment);
    if let Some(acks) = acks {
        folder.write(ACKS_EXTENSION, acks);
    }
    let Some(mut spool) = folder.open() else { return };
    let mut handed_out = 0;
    while let Ok(Some(stored)) = spool.next(NAME.signal) {
        handed_out += 1;
        assert!(handed_out <= segment.len() + 1, "more records than bytes");
        assert!(
            stored.record.body.len() + stored.record.extra.len() <= segment.len(),
            "a record that is no part of it"
        );
        assert!(spool.acknowledge(&stored.position), "what is handed out waits");
        assert!(!spool.acknowledge(&stored.position), "and is acknowledged once");
    }
    let waiting = spool.stats().waiting;
    assert_eq!(waiting.values().map(|amount| amount.records).sum::<u64>(), 0, "{waiting:?}");
    assert!(spool.close().is_ok());
    let Some(mut again) = folder.open() else { panic!("the second start fails") };
    assert!(matches!(again.next(NAME.signal), Ok(None)), "what was acknowledged comes back");
}

/// A segment with three records.
fn segment() -> Vec<u8> {
    let mut bytes = NAME.header(1_790_000_000_000).to_vec();
    let mut items = 0;
    for number in 0..3_u8 {
        let record = Record {
            signal: NAME.signal,
            batch_id: Ulid::from_parts(1_790_000_000_000, number.into()),
            created_unix_ms: now_ms(),
            items: 10,
            encoding: BodyEncoding::Identity,
            extra: Bytes::from_static(b"x"),
            body: Bytes::from(vec![number; 20]),
        };
        let Some(header) = RecordHeader::of(&record, number.into(), items) else { continue };
        items += record.items;
        bytes.extend(header.write(NAME.salt));
        bytes.extend([&record.extra[..], &record.body[..]].concat());
    }
    bytes
}

/// Records that claim what the input says. 40 bytes of it make a header; the payload is as long as the first of them.
fn claimed(mut input: &[u8]) -> Vec<u8> {
    let mut bytes = NAME.header(1_790_000_000_000).to_vec();
    while let Some((fields, rest)) = input.split_first_chunk::<40>() {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| fields[at + i]));
        let any_length = u32::from_le_bytes(std::array::from_fn(|i| fields[i]));
        let payload = &rest[..rest.len().min(usize::from(fields[0]))];
        let header = RecordHeader {
            // Mostly the payload's own, so that the next one is found.
            body_len: if fields[1] < 200 { u32::try_from(payload.len()).unwrap_or(u32::MAX) } else { any_length },
            extra_len: if fields[2] < 200 { 0 } else { u16::from(fields[3]) },
            encoding: if fields[4] < 128 { BodyEncoding::Identity } else { BodyEncoding::Gzip },
            payload_crc: if fields[5] < 200 { payload_crc(&[payload]) } else { 1 },
            seq: if fields[6] < 200 { fields[7].into() } else { number(8) },
            items_before: number(16),
            items: number(24),
            created_unix_ms: if fields[2] < 128 { now_ms() } else { number(32) },
            batch_id: Ulid::from_parts(1, fields[7].into()),
        };
        bytes.extend(header.write(NAME.salt));
        bytes.extend(payload);
        input = &rest[payload.len()..];
    }
    bytes
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let with = |choice: u8, bytes: Vec<u8>| [vec![choice], bytes].concat();
    let folder = Folder::new();
    folder.write(SEGMENT_EXTENSION, &segment());
    // The footer of a segment that was closed, and acknowledgements.
    let acks = folder.open().and_then(|mut spool| {
        let stored = spool.next(NAME.signal).ok()??;
        spool.acknowledge(&stored.position);
        spool.close().ok()?;
        fs::read(folder.file(ACKS_EXTENSION)).ok()
    });
    let closed = fs::read(folder.file(SEGMENT_EXTENSION)).unwrap_or_default();
    let fields: Vec<u8> = (0..200_u8).map(|byte| byte % 50).collect();
    vec![with(0, segment()), with(0, closed), with(1, acks.unwrap_or_default()), with(2, fields)]
}

/// A folder of one input; in memory where that can be had.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = Self(base.join(format!("telemetry-fuzz-{}-{number}", std::process::id())));
        let made = fs::create_dir_all(folder.0.join("spool"));
        assert!(made.is_ok(), "{made:?}");
        folder
    }

    fn file(&self, extension: &str) -> PathBuf {
        self.0.join("spool").join(NAME.file(extension))
    }

    fn write(&self, extension: &str, bytes: &[u8]) {
        let written = fs::write(self.file(extension), bytes);
        assert!(written.is_ok(), "{written:?}");
    }

    /// `None` for a file of a newer format, which is left alone.
    fn open(&self) -> Option<Spool> {
        match Spool::open(SpoolConfig::new(self.0.join("spool")), Arc::new(SystemClock)) {
            Ok((spool, _)) => Some(spool),
            Err(SpoolError::NewerFormat { .. }) => None,
            Err(error) => panic!("the start does not go on: {error}"),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
