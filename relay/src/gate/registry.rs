//! Which runners still belong to the cluster.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use telemetry_proto::RunnerId;
use tokio::sync::watch;

/// Says whether a runner still belongs to the cluster. Asked at every request, so that a removal takes effect at once and
/// not when the token or the certificate ends. It must neither block nor wait.
pub trait RunnerRegistry: Send + Sync + 'static {
    /// Whether the runner is registered.
    fn is_registered(&self, runner: &RunnerId) -> bool;

    /// Changes each time after runners were removed, so that their connections can be ended: see
    /// [`end_removed`](crate::end_removed). `None` for a registry that can't tell.
    fn removals(&self) -> Option<watch::Receiver<()>> {
        None
    }
}

impl<R: RunnerRegistry + ?Sized> RunnerRegistry for Arc<R> {
    fn is_registered(&self, runner: &RunnerId) -> bool {
        (**self).is_registered(runner)
    }

    fn removals(&self) -> Option<watch::Receiver<()>> {
        (**self).removals()
    }
}

/// Every runner with a valid certificate is registered.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllRegistered;

impl RunnerRegistry for AllRegistered {
    fn is_registered(&self, _: &RunnerId) -> bool {
        true
    }
}

/// Every runner is registered but those of a list, which can be replaced at any time.
#[derive(Debug, Default)]
pub struct RemovedRunners {
    removed: watch::Sender<Arc<HashSet<RunnerId>>>,
    /// Changes after `removed` has.
    changes: watch::Sender<()>,
}

/// The largest list of removed runners that is read: 8 MiB, some 60,000 of the longest IDs.
pub const MAX_REMOVED_BYTES: u64 = 8 * 1024 * 1024;

/// Why a list of removed runners is refused. A list with one bad line is refused whole: a misspelt ID would stay in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemovedRunnersError {
    /// The file can't be read.
    #[error("the list of removed runners can't be read: {0}")]
    Read(#[from] std::io::Error),
    /// The file is larger than [`MAX_REMOVED_BYTES`].
    #[error("the list of removed runners is larger than {MAX_REMOVED_BYTES} bytes")]
    TooLarge,
    /// These lines, counted from 1, hold no runner ID. At most [`MAX_BAD_LINES`](Self::MAX_BAD_LINES) are named.
    #[error("no runner ID on line {}", .lines.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Lines {
        /// The numbers of the lines.
        lines: Vec<usize>,
    },
}

impl RemovedRunnersError {
    /// How many bad lines an error names at most.
    pub const MAX_BAD_LINES: usize = 20;
}

impl RemovedRunners {
    /// The registry that lacks these runners.
    #[must_use]
    pub fn new(removed: HashSet<RunnerId>) -> Self {
        Self { removed: watch::Sender::new(Arc::new(removed)), changes: watch::Sender::new(()) }
    }

    /// Replaces the list.
    pub fn publish(&self, removed: HashSet<RunnerId>) {
        self.removed.send_replace(Arc::new(removed));
        self.changes.send_replace(());
    }

    /// The list as it is now.
    #[must_use]
    pub fn snapshot(&self) -> Arc<HashSet<RunnerId>> {
        Arc::clone(&self.removed.borrow())
    }

    /// Follows the list: for whoever must end the connections of a runner when it is removed.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<HashSet<RunnerId>>> {
        self.removed.subscribe()
    }

    /// Reads a list: one ID a line; blank lines, and what follows a `#`, are skipped.
    ///
    /// # Errors
    /// [`RemovedRunnersError::Lines`] names the lines that hold something else.
    pub fn parse(text: &str) -> Result<HashSet<RunnerId>, RemovedRunnersError> {
        let mut removed = HashSet::new();
        let mut lines = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let id = line.split('#').next().unwrap_or_default().trim();
            if id.is_empty() {
                continue;
            }
            match RunnerId::new(id) {
                Ok(runner) => drop(removed.insert(runner)),
                Err(_) if lines.len() < RemovedRunnersError::MAX_BAD_LINES => lines.push(index + 1),
                Err(_) => {}
            }
        }
        if lines.is_empty() { Ok(removed) } else { Err(RemovedRunnersError::Lines { lines }) }
    }

    /// Reads a list from a file, in the form that [`parse`](Self::parse) takes. Blocks on the disk.
    ///
    /// # Errors
    /// [`RemovedRunnersError`].
    pub fn load(path: &Path) -> Result<HashSet<RunnerId>, RemovedRunnersError> {
        use std::io::Read;
        let mut text = String::new();
        std::fs::File::open(path)?.take(MAX_REMOVED_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MAX_REMOVED_BYTES {
            return Err(RemovedRunnersError::TooLarge);
        }
        Self::parse(&text)
    }
}

impl RunnerRegistry for RemovedRunners {
    fn is_registered(&self, runner: &RunnerId) -> bool {
        !self.removed.borrow().contains(runner)
    }

    fn removals(&self) -> Option<watch::Receiver<()>> {
        Some(self.changes.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::fixtures::runner;

    #[test]
    fn a_removal_takes_effect_at_once_and_followers_hear_of_it() {
        let registry = RemovedRunners::default();
        let mut follower = registry.subscribe();
        assert!(registry.is_registered(&runner("r7")));
        assert!(!follower.has_changed().unwrap());
        registry.publish(HashSet::from([runner("r7")]));
        assert!(!registry.is_registered(&runner("r7")) && registry.is_registered(&runner("r8")));
        assert!(follower.has_changed().unwrap());
        assert!(follower.borrow_and_update().contains(&runner("r7")));
        registry.publish(HashSet::new());
        assert!(registry.is_registered(&runner("r7")));
        assert!(AllRegistered.is_registered(&runner("r7")));
    }

    #[test]
    fn a_list_holds_an_id_a_line_and_comments() {
        let text = "# removed\n\nr7\n  r8  \t# stolen\r\nr7\n#r9\n";
        let expected = HashSet::from([runner("r7"), runner("r8")]);
        assert_eq!(RemovedRunners::parse(text).unwrap(), expected);
        assert!(RemovedRunners::parse("").unwrap().is_empty());
    }

    #[test]
    fn a_bad_line_is_named_by_its_number_and_the_list_is_refused() {
        let error = RemovedRunners::parse("r7\nr 8\n\n-r9\nr10,r11\n").unwrap_err();
        assert_eq!(error.to_string(), "no runner ID on line 2, 4, 5");
        let many = "!\n".repeat(1_000);
        let Err(RemovedRunnersError::Lines { lines }) = RemovedRunners::parse(&many) else { panic!("refused") };
        assert_eq!(lines.len(), RemovedRunnersError::MAX_BAD_LINES);
    }

    #[test]
    fn a_list_is_read_from_a_file_within_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("removed");
        assert!(matches!(RemovedRunners::load(&path), Err(RemovedRunnersError::Read(_))));
        std::fs::write(&path, "r7\n").unwrap();
        assert_eq!(RemovedRunners::load(&path).unwrap(), HashSet::from([runner("r7")]));
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(RemovedRunners::load(&path), Err(RemovedRunnersError::Read(_))));
        let large = "#".repeat(usize::try_from(MAX_REMOVED_BYTES).unwrap() + 1);
        std::fs::write(&path, large).unwrap();
        assert!(matches!(RemovedRunners::load(&path), Err(RemovedRunnersError::TooLarge)));
    }
}
