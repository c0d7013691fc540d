//! One sink's queue, and the task that empties it.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::{Chunk, OperationalMetrics, OperationalSink, SinkLimits, SinkOutcome};

/// At most one log line in this time per sink.
const QUIET: Duration = Duration::from_secs(10);

/// The way to one sink. When it is dropped, the sink is given what was queued, and its task ends.
pub(super) struct Lane {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Queued>,
    /// Memory for what is queued.
    room: Arc<Semaphore>,
    /// Until the first chunk comes: attaching needs no runtime.
    worker: Mutex<Option<Worker>>,
}

/// What both ends of the queue know.
struct Shared {
    name: Arc<str>,
    metrics: OperationalMetrics,
    /// Whether chunks were dropped since the worker last looked.
    overflowed: AtomicBool,
}

struct Queued {
    chunk: Arc<Chunk>,
    _room: OwnedSemaphorePermit,
}

/// Gives chunks to the sink, one at a time.
struct Worker {
    sink: Arc<dyn OperationalSink>,
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Queued>,
    patience: Duration,
    complaints: Complaints,
}

impl Lane {
    pub(super) fn new(
        name: Arc<str>,
        sink: Arc<dyn OperationalSink>,
        limits: SinkLimits,
        metrics: OperationalMetrics,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(limits.max_chunks.clamp(1, Semaphore::MAX_PERMITS));
        let bytes = limits.max_bytes.clamp(SinkLimits::MIN_BYTES, Semaphore::MAX_PERMITS);
        let shared = Arc::new(Shared { name, metrics, overflowed: AtomicBool::new(false) });
        let worker = Worker {
            sink,
            shared: Arc::clone(&shared),
            queue: receiver,
            patience: limits.timeout,
            complaints: Complaints::default(),
        };
        Self { shared, queue: sender, room: Arc::new(Semaphore::new(bytes)), worker: Mutex::new(Some(worker)) }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.shared.name
    }

    /// Queues a chunk, or drops and counts it. Never waits.
    pub(super) fn offer(&self, chunk: &Arc<Chunk>, tasks: &TaskTracker) {
        if let Some(worker) = self.worker.lock().take() {
            tasks.spawn(worker.run());
        }
        if !self.enqueue(chunk) {
            self.shared.count(SinkOutcome::QueueFull, chunk);
            self.shared.overflowed.store(true, Ordering::Relaxed);
        }
    }

    fn enqueue(&self, chunk: &Arc<Chunk>) -> bool {
        let Ok(bytes) = u32::try_from(chunk.bytes()) else { return false };
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(bytes) else { return false };
        self.queue.try_send(Queued { chunk: Arc::clone(chunk), _room: room }).is_ok()
    }
}

impl Shared {
    fn count(&self, outcome: SinkOutcome, chunk: &Chunk) {
        self.metrics.end_at_sink(&self.name, outcome, chunk.points().len());
    }
}

impl Worker {
    async fn run(mut self) {
        while let Some(Queued { chunk, _room }) = self.queue.recv().await {
            let outcome = self.give(Arc::clone(&chunk)).await;
            self.shared.count(outcome, &chunk);
            if self.shared.overflowed.swap(false, Ordering::Relaxed) {
                self.complaints.note(&self.shared.name, SinkOutcome::QueueFull, &"more waits for it than may wait");
            }
        }
    }

    /// The sink runs in a task of its own, so that a panic ends that and nothing else.
    async fn give(&mut self, chunk: Arc<Chunk>) -> SinkOutcome {
        let sink = Arc::clone(&self.sink);
        let mut task = tokio::spawn(async move { sink.take(chunk).await });
        let ended = timeout(self.patience, &mut task).await;
        let name = &self.shared.name;
        match ended {
            Ok(Ok(Ok(()))) => SinkOutcome::Taken,
            Ok(Ok(Err(error))) => self.complaints.note(name, SinkOutcome::Refused, &error),
            // The panic's own words may hold something of the points.
            Ok(Err(_)) => self.complaints.note(name, SinkOutcome::Panicked, &"it panicked"),
            Err(elapsed) => {
                // One that blocks its thread ends when it ends. Until then it is given nothing else, or it would soon
                // hold every thread.
                task.abort();
                let _ = task.await;
                self.complaints.note(name, SinkOutcome::TimedOut, &elapsed)
            }
        }
    }
}

/// One log line for what goes wrong at a sink, but not for each of a flood.
#[derive(Default)]
struct Complaints {
    last_line: Option<Instant>,
    suppressed: u64,
}

impl Complaints {
    fn note(&mut self, sink: &str, outcome: SinkOutcome, cause: &dyn Display) -> SinkOutcome {
        if self.last_line.is_some_and(|at| at.elapsed() < QUIET) {
            self.suppressed += 1;
            return outcome;
        }
        self.last_line = Some(Instant::now());
        let suppressed = std::mem::take(&mut self.suppressed);
        let outcome_code = outcome.as_str();
        tracing::warn!(sink, outcome = outcome_code, %cause, suppressed, "an operational sink did not take its points");
        outcome
    }
}
