//! Noticing that files changed, by looking: that sees a replaced link and a mounted secret alike.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What tells a file's content from its content before: time of change, its nanoseconds, length, inode.
type Fingerprint = (i64, i64, u64, u64);

/// Files that are watched.
pub(crate) struct FileWatch {
    files: Vec<PathBuf>,
    seen: Vec<Option<Fingerprint>>,
}

impl FileWatch {
    /// What is there now is what was seen.
    pub(crate) fn new(files: Vec<PathBuf>) -> Self {
        let seen = look(&files);
        Self { files, seen }
    }

    /// Completes when a file has changed and then not for one look, so that half a pair is not taken for the whole.
    pub(crate) async fn changed(&mut self) {
        let mut before = self.seen.clone();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = look(&self.files);
            if now != self.seen && now == before {
                self.seen = now;
                return;
            }
            before = now;
        }
    }
}

fn look(files: &[PathBuf]) -> Vec<Option<Fingerprint>> {
    let fingerprint = |path: &PathBuf| fs::metadata(path).ok().map(|m| (m.mtime(), m.mtime_nsec(), m.len(), m.ino()));
    files.iter().map(fingerprint).collect()
}
