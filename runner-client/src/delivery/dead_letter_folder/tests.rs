use std::os::unix::fs::PermissionsExt as _;

use telemetry_proto::{Reason, Signal};
use tempfile::TempDir;
use ulid::Ulid;

use super::*;
use crate::spool::BodyEncoding;

/// A time of day that is set by hand, in seconds since 1970.
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

const NOW: u64 = 1_900_000_000;

struct Bench {
    dir: TempDir,
    clock: Arc<HandClock>,
    config: DeadLetterConfig,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = DeadLetterConfig::new(dir.path().join("letters"));
        Self { dir, clock: Arc::new(HandClock(AtomicU64::new(NOW))), config }
    }

    fn open(&self) -> Arc<DeadLetterFolder> {
        DeadLetterFolder::open(self.config.clone(), Arc::clone(&self.clock) as Arc<dyn Clock>).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.config.folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn rejected(&self, number: u64) -> Rejected {
        Rejected {
            at: self.clock.now() + Duration::from_millis(number),
            signal: Signal::Logs,
            batch_id: Ulid::from_parts(number, 0),
            items: 2,
            bytes: 1_000,
            encoding: BodyEncoding::Identity,
            query: Some("_msg_field=m".into()),
            status: 400,
            reason: Some(Reason::BodyTooLarge),
        }
    }

    /// Puts letters aside, one after the other, and waits for the disk.
    async fn put(&self, numbers: std::ops::Range<u64>) -> DeadLetterStats {
        let folder = self.open();
        numbers.for_each(|number| folder.put_aside(self.rejected(number), vec![b'x'; 1_000].into()));
        folder.close(Duration::from_secs(20)).await;
        folder.stats()
    }
}

#[tokio::test]
async fn a_letter_says_what_when_and_why_and_has_the_body_as_it_was_sent() {
    let bench = Bench::new();
    let stats = bench.put(0..1).await;
    let names = bench.names();
    assert_eq!(names, [format!("{NOW}000-{}-logs.letter", Ulid::from_parts(0, 0))]);
    let path = bench.config.folder.join(&names[0]);
    let letter = fs::read(&path).unwrap();
    let end = letter.iter().position(|byte| *byte == b'\n').unwrap();
    let head: serde_json::Value = serde_json::from_slice(&letter[..end]).unwrap();
    assert_eq!(
        head,
        serde_json::json!({
            "at": "2030-03-17T17:46:40Z", "signal": "logs", "batch_id": Ulid::from_parts(0, 0).to_string(), "items": 2,
            "bytes": 1000, "encoding": "identity", "query": "_msg_field=m", "status": 400, "reason": "body-too-large",
        })
    );
    assert_eq!(letter[end + 1..], [b'x'; 1_000]);
    assert_eq!(stats, DeadLetterStats { files: 1, bytes: letter.len() as u64, kept: 1, removed: 0, lost: 0 });
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&bench.config.folder)), (0o600, 0o700));
}

#[tokio::test]
async fn files_bytes_and_age_are_bounded_and_the_oldest_goes() {
    let mut bench = Bench::new();
    bench.config.max_files = 5;
    let stats = bench.put(0..8).await;
    assert_eq!((stats.files, stats.kept, stats.removed), (5, 8, 3));
    bench.config.max_bytes = 4_000;
    let stats = bench.put(8..9).await;
    assert!(stats.bytes <= 4_000 && stats.files == 3, "{stats:?}");
    let names = bench.names();
    assert!(names.iter().zip(6_u64..).all(|(name, number)| name.contains(&Ulid::from_parts(number, 0).to_string())));
    bench.clock.0.fetch_add(7 * 24 * 60 * 60 + 1, Ordering::SeqCst);
    let stats = bench.put(9..10).await;
    assert_eq!((stats.files, stats.removed, bench.names().len()), (1, 3, 1));
}

#[tokio::test]
async fn what_does_not_fit_is_counted_and_costs_no_other() {
    let mut bench = Bench::new();
    bench.config.max_bytes = 2_000;
    bench.put(0..1).await;
    let folder = bench.open();
    folder.put_aside(bench.rejected(1), vec![b'x'; 3_000].into());
    folder.close(Duration::from_secs(20)).await;
    folder.put_aside(bench.rejected(2), Bytes::new());
    let stats = folder.stats();
    assert_eq!((stats.files, stats.kept, stats.lost), (1, 0, 2));
}

#[tokio::test]
async fn files_of_others_are_left_alone_and_what_a_crash_cut_off_goes() {
    let bench = Bench::new();
    fs::create_dir_all(bench.config.folder.join("1-a.letter")).unwrap();
    for name in ["notes.txt", "x-y.letter", "1900000000000-A-logs.letter.partial"] {
        fs::write(bench.config.folder.join(name), "text").unwrap();
    }
    assert_eq!(bench.put(0..0).await.files, 0);
    assert_eq!(bench.names(), ["1-a.letter", "notes.txt", "x-y.letter"]);
}

#[test]
fn a_folder_that_can_not_be_is_told_with_a_remedy() {
    let bench = Bench::new();
    fs::write(bench.dir.path().join("letters"), "a file").unwrap();
    let error = DeadLetterFolder::open(bench.config.clone(), Arc::clone(&bench.clock) as Arc<dyn Clock>).unwrap_err();
    assert!(error.to_string().contains("name another folder"), "{error}");
}
