//! Threads for work that others must not wait for.

use std::sync::{Arc, Once};
use std::thread::{Builder, available_parallelism};

use telemetry_proto::Reason;
use tokio::sync::{Semaphore, oneshot};

/// Up to so many bytes are worked on where they are: less than a millisecond, and less than it costs to hand them over.
const AT_ONCE_BYTES: u64 = 256 * 1024;
/// How much a worker steps back: the most there is, about a seventieth of the share of a thread at 0.
#[cfg(target_os = "linux")]
const NICE: i32 = 19;

/// Lets so many threads work at a time that a core is left for everything else, first come first served. What waits holds
/// its memory, and so is as bounded as that is.
///
/// A thread is started for each piece of work, which costs far less than the smallest piece, and steps back: where cores
/// are scarce, whoever serves connections goes first.
#[derive(Debug)]
pub struct Workers {
    places: Arc<Semaphore>,
}

impl Default for Workers {
    fn default() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self::with_places(cores.saturating_sub(1).max(1))
    }
}

impl Workers {
    pub(crate) fn with_places(places: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(places)) }
    }

    /// Does work on `bytes` bytes: [apart](Self::apart) if those are many.
    ///
    /// # Errors
    /// [`Reason::InternalError`]: the work panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        bytes: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Reason> {
        if bytes <= AT_ONCE_BYTES {
            return Ok(work());
        }
        self.apart(work).await
    }

    /// Does work on a thread of its own. Whoever stops waiting does not stop the work, so it must own all that it holds.
    ///
    /// # Errors
    /// [`Reason::InternalError`]: the work panicked, or there is no thread to be had.
    pub(crate) async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Reason> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| Reason::InternalError)?;
        let (sender, result) = oneshot::channel();
        let work = move || {
            let _place = place;
            step_back();
            let _ = sender.send(work());
        };
        Builder::new().name("relay-worker".to_owned()).spawn(work).map_err(|_| Reason::InternalError)?;
        // A panic drops the sender.
        result.await.map_err(|_| Reason::InternalError)
    }
}

/// Lets the other threads of the process go first. On Linux a nice value belongs to the thread that calls, see setpriority(2).
/// Elsewhere it would be the whole process's.
fn step_back() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        static SAID: Once = Once::new();
        SAID.call_once(|| tracing::warn!(%error, "worker threads keep the priority of their process"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn little_work_is_done_here_and_much_elsewhere() {
        let workers = Workers::default();
        let here = thread::current().id();
        let place = || thread::current().id();
        assert_eq!(workers.run(AT_ONCE_BYTES, place).await, Ok(here));
        assert_ne!(workers.run(AT_ONCE_BYTES + 1, place).await, Ok(here));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_worker_steps_back_and_nobody_else_does() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        assert_eq!(Workers::default().run(u64::MAX, nice).await, Ok(NICE));
        assert_eq!(nice(), before);
    }

    #[tokio::test]
    async fn no_more_work_than_places_and_a_panic_is_no_end() {
        let workers = Workers::with_places(2);
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let all = join_all((0..20).map(|i| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            workers.run(u64::MAX, move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
                assert!(i != 3, "a panic of the test");
            })
        }));
        let results = all.await;
        assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1);
        assert!(most.load(Ordering::SeqCst) <= 2);
    }
}
