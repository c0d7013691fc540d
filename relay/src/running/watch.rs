//! Noticing that files changed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// How often files are looked at. Revocations and removals are to take effect within a second.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// Watches a set of files by looking at them now and then. A dozen calls of stat(2) cost nothing, and unlike notifications
/// of the kernel they see a replaced symbolic link, a mounted secret and a network file system alike.
#[derive(Debug)]
pub struct FileWatch {
    files: Vec<PathBuf>,
    seen: Vec<Option<Fingerprint>>,
}

/// What tells a file's content from its content before. Not the time alone: two writes may share a tick.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fingerprint {
    modified: Option<SystemTime>,
    len: u64,
    inode: u64,
}

impl FileWatch {
    /// Begins to watch: what is there now is what was seen.
    #[must_use]
    pub fn new(files: Vec<PathBuf>) -> Self {
        let seen = look(&files);
        Self { files, seen }
    }

    /// Watches these files from now on. What was seen of a file stays; one that is new counts as changed, since nobody knows
    /// whether it is still as it was when it was read.
    pub fn watch(&mut self, files: Vec<PathBuf>) {
        let seen =
            |file: &PathBuf| self.files.iter().position(|known| known == file).and_then(|at| self.seen[at].clone());
        self.seen = files.iter().map(seen).collect();
        self.files = files;
    }

    /// Watches these files as well.
    pub fn watch_also(&mut self, files: Vec<PathBuf>) {
        let more = files.into_iter().filter(|file| !self.files.contains(file));
        self.watch(self.files.iter().cloned().chain(more).collect());
    }

    /// Completes when a file has changed and has not changed again for one look, so that a file that is being written, or
    /// the second of a pair, is not taken for the whole.
    pub async fn changed(&mut self) {
        let mut before = self.seen.clone();
        loop {
            tokio::time::sleep(LOOK_EVERY / 2).await;
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
    let fingerprint = |path: &PathBuf| {
        let metadata = fs::metadata(path).ok()?;
        Some(Fingerprint { modified: metadata.modified().ok(), len: metadata.len(), inode: metadata.ino() })
    };
    files.iter().map(fingerprint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_between_two_lists_is_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::write(&old, "a").unwrap();
        fs::write(&new, "a").unwrap();
        let mut watch = FileWatch::new(vec![old.clone()]);
        fs::write(&old, "changed while the list was read").unwrap();
        watch.watch(vec![old.clone()]);
        tokio::time::timeout(Duration::from_secs(5), watch.changed()).await.unwrap();
        watch.watch(vec![old, new]);
        tokio::time::timeout(Duration::from_secs(5), watch.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn writing_replacing_and_removing_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "a").unwrap();
        let mut watch = FileWatch::new(vec![path.clone()]);
        let unchanged = tokio::time::timeout(LOOK_EVERY * 2, watch.changed()).await;
        assert!(unchanged.is_err(), "nothing happened");
        for change in 0..3 {
            match change {
                0 => fs::write(&path, "other").unwrap(),
                1 => {
                    fs::write(dir.path().join("next"), "other").unwrap();
                    fs::rename(dir.path().join("next"), &path).unwrap();
                }
                _ => fs::remove_file(&path).unwrap(),
            }
            tokio::time::timeout(Duration::from_secs(5), watch.changed()).await.unwrap();
        }
    }
}
