use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::super::testing::{Endless, Panicking, Recording, Refusing, chunk};
use super::super::{SinkFuture, SinkOutcome};
use super::*;

fn sinks(limits: SinkLimits) -> OperationalSinks {
    OperationalSinks::new(limits, &OperationalMetrics::default())
}

fn offer(sinks: &OperationalSinks, sizes: impl IntoIterator<Item = usize>) {
    let attached = sinks.attached().expect("a sink");
    sizes.into_iter().for_each(|points| attached.offer(chunk(points)));
}

/// Points at this sink: taken, refused, timed out, panicked, dropped.
fn outcomes(sinks: &OperationalSinks, name: &str) -> [u64; 5] {
    use SinkOutcome::{Panicked, QueueFull, Refused, Taken, TimedOut};
    [Taken, Refused, TimedOut, Panicked, QueueFull].map(|outcome| sinks.metrics().at_sink(name, outcome))
}

#[tokio::test]
async fn each_sink_gets_every_chunk_in_order_even_when_others_refuse_or_panic() {
    let sinks = sinks(SinkLimits::default());
    let (first, mut seen_first) = Recording::new();
    let (last, mut seen_last) = Recording::new();
    sinks.attach("first", first);
    sinks.attach("refusing", Arc::new(Refusing));
    sinks.attach("panicking", Arc::new(Panicking { at_once: false }));
    sinks.attach("panicking at once", Arc::new(Panicking { at_once: true }));
    sinks.attach("last", last);
    offer(&sinks, 1..=4);
    sinks.close().await;
    assert_eq!(seen_first.sizes(), [1, 2, 3, 4]);
    assert_eq!(seen_last.sizes(), [1, 2, 3, 4]);
    assert_eq!(outcomes(&sinks, "first"), [10, 0, 0, 0, 0]);
    assert_eq!(outcomes(&sinks, "refusing"), [0, 10, 0, 0, 0]);
    assert_eq!(outcomes(&sinks, "panicking"), [0, 0, 0, 10, 0]);
    assert_eq!(outcomes(&sinks, "panicking at once"), [0, 0, 0, 10, 0]);
    assert_eq!(outcomes(&sinks, "last"), [10, 0, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_sink_loses_what_does_not_fit_its_queue_and_costs_the_others_nothing() {
    let sinks = sinks(SinkLimits { max_chunks: 2, ..SinkLimits::default() });
    let (recording, mut seen) = Recording::new();
    let endless = Arc::new(Endless::default());
    sinks.attach("endless", Arc::clone(&endless) as _);
    sinks.attach("recording", recording);
    let started = Instant::now();
    for points in 1..=5 {
        offer(&sinks, [points]);
        assert_eq!(seen.next().await.points().len(), points);
    }
    assert_eq!(started.elapsed(), Duration::ZERO, "nobody waited for the slow one");
    assert_eq!(endless.begun.load(Ordering::SeqCst), 1, "it is given one chunk at a time");
    sinks.close().await;
    // The first is with the sink while two wait.
    assert_eq!(outcomes(&sinks, "endless"), [0, 0, 1 + 2 + 3, 0, 4 + 5]);
    assert_eq!(outcomes(&sinks, "recording"), [15, 0, 0, 0, 0]);
    assert_eq!(started.elapsed(), 3 * SinkLimits::default().timeout, "each chunk was given up in time");
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_bounded_in_memory_too() {
    let sinks = sinks(SinkLimits { max_bytes: 0, ..SinkLimits::default() });
    sinks.attach("endless", Arc::new(Endless::default()));
    let large = || {
        let point = telemetry_proto::exposition::Point::new("up", 1.0);
        let mut chunk = chunk(0);
        chunk.push(point.label("a", "x".repeat(SinkLimits::MIN_BYTES / 2 - 1_000)));
        chunk
    };
    (0..5).for_each(|_| sinks.attached().unwrap().offer(large()));
    assert_eq!(outcomes(&sinks, "endless"), [0, 0, 0, 0, 3]);
    sinks.close().await;
    assert_eq!(outcomes(&sinks, "endless"), [0, 0, 2, 0, 3]);
}

#[tokio::test]
async fn a_sink_that_comes_late_gets_what_comes_later_and_one_that_goes_gets_what_came_before() {
    let sinks = sinks(SinkLimits::default());
    let (early, mut seen_early) = Recording::new();
    let early = sinks.attach("early", early);
    offer(&sinks, [1]);
    let (late, mut seen_late) = Recording::new();
    sinks.clone().attach("late", late);
    assert_eq!(sinks.names(), ["early".into(), "late".into()]);
    offer(&sinks, [2]);
    assert!(sinks.detach(early));
    assert!(!sinks.detach(early));
    offer(&sinks, [3]);
    sinks.close().await;
    assert_eq!((seen_early.sizes(), seen_late.sizes()), (vec![1, 2], vec![2, 3]));
    assert!(sinks.attached().is_none());
}

#[tokio::test]
async fn a_batch_goes_to_the_sinks_that_were_there_when_it_came() {
    let sinks = sinks(SinkLimits::default());
    let (leaving, mut seen_leaving) = Recording::new();
    let id = sinks.attach("leaving", leaving);
    let batch = sinks.attached().unwrap();
    let (late, mut seen_late) = Recording::new();
    sinks.attach("late", late);
    sinks.detach(id);
    batch.offer(chunk(1));
    drop(batch);
    sinks.close().await;
    assert_eq!((seen_leaving.sizes(), seen_late.sizes()), (vec![1], vec![]));
}

#[test]
fn attaching_needs_no_runtime() {
    let sinks = sinks(SinkLimits::default());
    let id = sinks.attach("recording", Recording::new().0);
    assert!(sinks.detach(id));
}

/// Holds its thread until it is let go.
struct Blocking {
    begun: tokio::sync::mpsc::UnboundedSender<()>,
    let_go: Mutex<Receiver<()>>,
}

impl OperationalSink for Blocking {
    fn take(&self, _chunk: Arc<Chunk>) -> SinkFuture<'_> {
        let _ = self.begun.send(());
        Box::pin(async {
            let _ = self.let_go.lock().unwrap().recv();
            Ok(())
        })
    }
}

// More threads than chunks: were each chunk to hold one, the test would still see it.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_sink_that_blocks_holds_one_thread_and_no_more() {
    let sinks = sinks(SinkLimits { timeout: Duration::from_millis(1), ..SinkLimits::default() });
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let (go, let_go) = channel();
    let (recording, mut seen) = Recording::new();
    sinks.attach("blocking", Arc::new(Blocking { begun, let_go: Mutex::new(let_go) }));
    sinks.attach("recording", recording);
    offer(&sinks, [1, 1]);
    begins.recv().await.unwrap();
    for _ in 0..3 {
        offer(&sinks, [1]);
        timeout(Duration::from_secs(10), seen.next()).await.expect("the other sink goes on");
    }
    // Time for all of them, if it were given them.
    let another = timeout(Duration::from_millis(100), begins.recv()).await;
    assert!(another.is_err(), "the blocked sink was given another chunk");
    drop(go);
    timeout(Duration::from_secs(10), sinks.close()).await.expect("it ends once it is let go");
}
