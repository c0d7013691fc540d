//! The file of batch IDs that a stopped relay leaves.

use std::time::Duration;

use telemetry_proto::fuzzing::Target;
use telemetry_proto::{RunnerId, Signal, WriterName};

use crate::gate::Author;
use crate::once::BatchId;
use crate::once::format::{self, Acknowledged, FormatError};

pub(super) const TARGET: Target = Target {
    name: "batch_ids",
    run,
    seeds: || vec![sample(), format::encode(0, std::iter::empty())],
    words: &["MIRNBIDS", "\x01\0\0\0", "\x02\0", "\0\x04edge", "\x01\x04edge", "\0\0\0\0", "~~~~"],
};

/// The most that is read.
const MAX: usize = 4;
const CHECKSUM: usize = 4;

/// Once as it comes, and once under a good checksum. What is read is bounded, from the oldest, and is written and read again as the
/// same.
fn run(data: &[u8]) {
    read(data);
    if let Some((body, _)) = data.split_last_chunk::<CHECKSUM>() {
        let mut sealed = body.to_vec();
        sealed.extend(crc32fast::hash(body).to_le_bytes());
        let outcome = read(&sealed);
        assert!(
            outcome != Some(FormatError::Damaged) || read(data).is_some(),
            "a good checksum is worse than this one"
        );
    }
}

fn read(data: &[u8]) -> Option<FormatError> {
    let (written_at, ids) = match format::decode(data, MAX) {
        Ok(read) => read,
        Err(error) => return Some(error),
    };
    assert!(ids.len() <= MAX, "more than may be remembered");
    assert!(ids.is_sorted_by(|a, b| a.age >= b.age), "not from the oldest");
    let again = format::encode(written_at, ids.iter().map(|id| (&id.author, id.key, id.age)));
    assert_eq!(format::decode(&again, MAX), Ok((written_at, ids)));
    None
}

fn sample() -> Vec<u8> {
    let authors = [RunnerId::new("r7").map(Author::from).ok(), WriterName::new("edge").map(Author::from).ok()];
    let ids: Vec<Acknowledged> = (0_u8..9)
        .zip(authors.iter().flatten().cycle())
        .map(|(n, author)| Acknowledged {
            author: author.clone(),
            key: (Signal::ALL[usize::from(n % 3)], BatchId::from_u128(u128::from(n) << 80)),
            age: Duration::from_secs(3_600 / u64::from(n + 1)),
        })
        .collect();
    format::encode(1_700_000_000_000, ids.iter().map(|id| (&id.author, id.key, id.age)))
}
