//! Batch IDs over a stop: taken from their file when a relay is built, and written to it at its end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::file::{BatchIdError, BatchIdFile, FOLDER_REMEDY, unix_ms};
use super::format::{self, Acknowledged};
use super::memory::Memory;
use super::{Once, OnceLimits};

/// How long the disk may take. Half a million IDs are 12.5 MB.
const WRITE_WITHIN: Duration = Duration::from_secs(5);

impl Once {
    /// A memory of what the file holds. A file that can't be read is moved out of the way and costs no more than its IDs.
    pub(crate) fn of_file(limits: OnceLimits, file: &BatchIdFile, now: SystemTime) -> Arc<Self> {
        if let Err(error) = file.probe() {
            let (file, remedy) = (file.path().display(), FOLDER_REMEDY);
            tracing::warn!(%file, %error, remedy, "the state folder can't be written to, so batch IDs will not outlive a stop");
        }
        let ids = file.read(limits.total, now).unwrap_or_else(|error| {
            let aside = file.set_aside(&error).map(|aside| aside.display().to_string());
            tracing::warn!(
                file = %file.path().display(),
                %error,
                remedy = error.remedy(),
                aside,
                "batch IDs of before can't be read, so what comes again may be stored twice"
            );
            Vec::new()
        });
        let once = Self::with_acknowledged(limits, &ids);
        if !ids.is_empty() {
            tracing::info!(batch_ids = once.remembered(), "batch IDs of before are remembered");
        }
        Arc::new(once)
    }

    /// A memory of these, from the oldest.
    fn with_acknowledged(limits: OnceLimits, ids: &[Acknowledged]) -> Self {
        let mut memory = Memory::new(limits.per_runner, limits.total, limits.max_age);
        let now = Instant::now();
        for id in ids.iter().filter(|id| id.age < limits.max_age) {
            // A machine may have started later than that; its clock need not go back so far.
            memory.remember(&id.author, id.key, now.checked_sub(id.age).unwrap_or(now));
        }
        Self { limits, memory: Mutex::new(memory) }
    }

    /// Writes down what is remembered, in bounded time. Claims wait while it is put together, some 30 ms for half a million.
    pub(crate) async fn write_to(self: &Arc<Self>, file: &BatchIdFile, now: SystemTime) -> Result<usize, BatchIdError> {
        let (once, file, instant) = (Arc::clone(self), file.clone(), Instant::now());
        let (done, outcome) = oneshot::channel();
        // A thread of its own: the end of a runtime waits for its blocking tasks, and would wait for a disk that hangs.
        std::thread::Builder::new().name("batch-ids".to_owned()).spawn(move || {
            let (count, content) = once.written(now, instant);
            // Nobody waits any more if it took too long.
            let _ = done.send(file.write(&content).map(|()| count));
        })?;
        match timeout(WRITE_WITHIN, outcome).await {
            Ok(Ok(written)) => Ok(written?),
            Ok(Err(_)) => Err(BatchIdError::Io(std::io::Error::other("the thread that writes ended early"))),
            Err(_) => Err(BatchIdError::Slow(WRITE_WITHIN)),
        }
    }

    fn written(&self, now: SystemTime, instant: Instant) -> (usize, Vec<u8>) {
        let memory = self.memory.lock();
        let mut count = 0;
        let ids = memory.acknowledged(instant).inspect(|_| count += 1);
        let content = format::encode(unix_ms(now), ids);
        (count, content)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::UNIX_EPOCH;

    use telemetry_proto::Signal;

    use super::*;
    use crate::gate::fixtures::author;
    use crate::once::{BatchId, Claim};

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
    }

    async fn bring(once: &Arc<Once>, name: &str, n: u128) -> bool {
        match once.claim(&author(name), Signal::Logs, BatchId::from_u128(n)).await.unwrap() {
            Claim::First(lease) => {
                lease.acknowledge();
                false
            }
            Claim::Duplicate => true,
        }
    }

    async fn is_known(once: &Arc<Once>, name: &str, n: u128) -> bool {
        let claim = once.claim(&author(name), Signal::Logs, BatchId::from_u128(n)).await.unwrap();
        matches!(claim, Claim::Duplicate)
    }

    fn folder() -> (tempfile::TempDir, BatchIdFile) {
        let folder = tempfile::tempdir().unwrap();
        let file = BatchIdFile::in_folder(folder.path());
        (folder, file)
    }

    #[tokio::test]
    async fn what_was_acknowledged_before_a_stop_is_a_duplicate_after_it() {
        let (_folder, file) = folder();
        let once = Once::of_file(OnceLimits::default(), &file, at(0));
        for n in 0..100 {
            assert!(!bring(&once, "a", n).await && !bring(&once, "b", n).await);
        }
        let failed = once.claim(&author("a"), Signal::Logs, BatchId::from_u128(500)).await.unwrap();
        assert_eq!(once.write_to(&file, at(10)).await.unwrap(), 200);
        drop(failed);
        assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);

        let once = Once::of_file(OnceLimits::default(), &file, at(20));
        assert_eq!(once.remembered(), 200);
        for n in 0..100 {
            assert!(is_known(&once, "a", n).await && is_known(&once, "b", n).await);
        }
        assert!(!is_known(&once, "a", 500).await, "one that was under way is not acknowledged");
        // A relay that is killed now starts from the same file.
        assert_eq!(Once::of_file(OnceLimits::default(), &file, at(30)).remembered(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn an_id_is_forgotten_at_its_time_however_often_the_relay_stops() {
        let (_folder, file) = folder();
        // In this thread: time that stands still runs ahead while another one writes.
        let stop = |once: &Once, now| file.write(&once.written(now, Instant::now()).1).unwrap();
        let limits = OnceLimits { max_age: Duration::from_secs(100), ..OnceLimits::default() };
        let once = Once::of_file(limits, &file, at(0));
        bring(&once, "a", 1).await;
        tokio::time::advance(Duration::from_secs(30)).await;
        bring(&once, "a", 2).await;
        stop(&once, at(30));

        // 40 s in which no relay runs, then 20 s in which one does; 1 is 90 s old, and 2 is 60.
        let once = Once::of_file(limits, &file, at(70));
        tokio::time::advance(Duration::from_secs(20)).await;
        assert!(is_known(&once, "a", 1).await && is_known(&once, "a", 2).await);
        stop(&once, at(90));

        let once = Once::of_file(limits, &file, at(101));
        assert_eq!(once.remembered(), 1);
        assert!(!is_known(&once, "a", 1).await && is_known(&once, "a", 2).await);
        // The clock was set back by a year: what is left counts on from where it was.
        let once = Once::of_file(limits, &file, at(0));
        tokio::time::advance(Duration::from_secs(39)).await;
        assert!(is_known(&once, "a", 2).await);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!is_known(&once, "a", 2).await);
        // And forward by a year.
        assert_eq!(Once::of_file(limits, &file, at(31_536_000)).remembered(), 0);
    }

    #[tokio::test]
    async fn bounds_hold_for_what_is_read() {
        let (_folder, file) = folder();
        let once = Once::of_file(OnceLimits::default(), &file, at(0));
        bring(&once, "honest", 1).await;
        for n in 0..50 {
            bring(&once, "flooder", n).await;
        }
        once.write_to(&file, at(0)).await.unwrap();
        let limits = OnceLimits { per_runner: 10, total: 51, ..OnceLimits::default() };
        let once = Once::of_file(limits, &file, at(0));
        assert_eq!(once.remembered(), 11);
        assert!(is_known(&once, "honest", 1).await);
        assert!(is_known(&once, "flooder", 49).await && !is_known(&once, "flooder", 39).await);
        let limits = OnceLimits { total: 30, ..limits };
        assert_eq!(Once::of_file(limits, &file, at(0)).remembered(), 10, "the youngest 30, and 10 of a runner");
    }

    #[tokio::test]
    async fn what_is_no_file_of_batch_ids_is_set_aside_and_stops_nobody() {
        let (folder, file) = folder();
        let once = Once::of_file(OnceLimits::default(), &file, at(0));
        bring(&once, "a", 1).await;
        once.write_to(&file, at(0)).await.unwrap();
        let good = fs::read(file.path()).unwrap();
        let mut newer = good.clone();
        newer[8] = 2;
        let torn = good[..good.len() - 1].to_vec();
        let large = vec![0; usize::try_from(format::max_len(1)).unwrap() + 1];
        for (what, content) in [("newer", newer), ("torn", torn), ("large", large), ("foreign", b"text".to_vec())] {
            fs::write(file.path(), &content).unwrap();
            let limits = OnceLimits { total: 1, ..OnceLimits::default() };
            let once = Once::of_file(limits, &file, at(0));
            assert_eq!(once.remembered(), 0, "{what}");
            let aside = folder.path().join("batch-ids.unreadable");
            assert_eq!(fs::read(aside).unwrap(), content, "{what}: nothing is deleted");
            assert!(!bring(&once, "a", 2).await);
            assert_eq!(once.write_to(&file, at(0)).await.unwrap(), 1, "{what}: the next stop is remembered");
        }
        fs::remove_file(file.path()).unwrap();
        fs::remove_file(folder.path().join("batch-ids.unreadable")).unwrap();
        fs::create_dir(file.path()).unwrap();
        assert_eq!(Once::of_file(OnceLimits::default(), &file, at(0)).remembered(), 0);
        assert!(folder.path().join("batch-ids.unreadable").is_dir());
    }

    #[tokio::test]
    async fn a_folder_that_is_gone_is_an_error_at_the_end_and_none_at_the_start() {
        let (folder, file) = folder();
        drop(folder);
        let once = Once::of_file(OnceLimits::default(), &file, at(0));
        assert!(file.probe().is_err());
        let error = once.write_to(&file, at(0)).await.unwrap_err();
        assert!(matches!(error, BatchIdError::Io(_)), "{error}");
    }
}
