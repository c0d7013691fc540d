//! Proof that the event loop turns.
//!
//! The watchdog is told from a task of the runtime that does the work, and only after that runtime has shown all that the work
//! needs: its timer went off, a worker took up a new task, and a datagram came through its I/O driver. A thread of our own
//! would go on telling while nothing else moves.

use std::io;
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// The task that tells the watchdog. Dropped, it ends, and the watchdog goes off.
#[derive(Debug)]
pub struct Watchdog(Option<JoinHandle<()>>);

impl Watchdog {
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    pub(crate) fn start(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(tokio::spawn(task)))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Tells the watchdog twice in `within`, as sd_watchdog_enabled(3) recommends, while everything turns and `serves` holds.
pub(crate) async fn run(within: Duration, serves: impl Fn() -> bool, tell: impl Fn()) {
    let every = (within / 2).max(Duration::from_millis(1));
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silent = false;
    loop {
        ticks.tick().await;
        let turns = matches!(timeout(every, turn()).await, Ok(Ok(())));
        if turns && serves() {
            tell();
            silent = false;
        } else if !silent {
            silent = true;
            tracing::error!(turns, "the watchdog is not told that all is well");
        }
    }
}

/// One turn of the event loop, through the workers and the I/O driver.
async fn turn() -> io::Result<()> {
    let turned = tokio::spawn(async {
        let (one, other) = UnixDatagram::pair()?;
        let mut byte = [0];
        // It waits for the datagram before that is sent, so that the driver must wake it.
        let (received, sent) = tokio::join!(biased; other.recv(&mut byte), one.send(&[1]));
        received.and(sent).map(drop)
    });
    turned.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    const WITHIN: Duration = Duration::from_millis(40);
    const PATIENCE: Duration = Duration::from_secs(20);

    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    }

    fn telling() -> (impl Fn(), mpsc::Receiver<()>) {
        let (tell, told) = mpsc::channel();
        (move || _ = tell.send(()), told)
    }

    #[test]
    fn a_runtime_whose_workers_hang_tells_nothing() {
        let runtime = runtime();
        let (tell, told) = telling();
        runtime.spawn(run(WITHIN, || true, tell));
        for _ in 0..3 {
            told.recv_timeout(PATIENCE).unwrap();
        }
        let (hangs, hung) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(parking_lot::Mutex::new(released));
        for _ in 0..2 {
            let (hangs, released) = (hangs.clone(), Arc::clone(&released));
            runtime.spawn(async move {
                hangs.send(()).unwrap();
                let _ = released.lock().recv();
            });
        }
        (0..2).for_each(|_| hung.recv_timeout(PATIENCE).unwrap());
        while told.try_recv().is_ok() {}
        assert!(told.recv_timeout(WITHIN * 10).is_err(), "told while nothing turned");
        drop(release);
        told.recv_timeout(PATIENCE).unwrap();
    }

    #[test]
    fn a_program_that_does_not_serve_any_more_tells_nothing() {
        let runtime = runtime();
        let (tell, told) = telling();
        let serves = Arc::new(AtomicBool::new(true));
        let serving = Arc::clone(&serves);
        runtime.spawn(run(WITHIN, move || serving.load(Ordering::SeqCst), tell));
        told.recv_timeout(PATIENCE).unwrap();
        serves.store(false, Ordering::SeqCst);
        // One that was under way may still come.
        let _ = told.recv_timeout(WITHIN * 2);
        assert!(told.recv_timeout(WITHIN * 10).is_err(), "told while nothing serves");
    }

    #[test]
    fn a_watchdog_that_is_dropped_tells_nothing() {
        let runtime = runtime();
        let (tell, told) = telling();
        let guard = runtime.enter();
        let watchdog = Watchdog::start(run(WITHIN, || true, tell));
        drop(guard);
        told.recv_timeout(PATIENCE).unwrap();
        drop(watchdog);
        // It ends, and drops what it tells with. Some that it told before may come first.
        let ended = (0..100).any(|_| told.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Disconnected));
        assert!(ended, "told without end");
    }
}
