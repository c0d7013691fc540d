//! One outbox and one engine per signal.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use parking_lot::Mutex;
use telemetry_proto::Signal;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::engine::{Engine, RetrySettings, Way};
use super::outbox::{Outbox, SignalSettings};

/// How long the end of an engine is waited for. It ends at its next await.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// What became of what had been written when a flush began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlushReport {
    /// Items delivered meanwhile.
    pub delivered: u64,
    /// Items dropped meanwhile.
    pub dropped: u64,
    /// Items that wait still, those among them that were written meanwhile.
    pub waiting: u64,
}

/// What became of what was waiting when a client was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloseReport {
    /// Items delivered meanwhile.
    pub delivered: u64,
    /// Items dropped meanwhile, for other reasons.
    pub dropped: u64,
    /// Items that could not be delivered by the deadline. They are counted as dropped for `shutdown`.
    pub lost: u64,
}

/// Delivery of every signal. When it is dropped delivery ends.
pub(crate) struct Pipelines {
    metrics: Arc<Outbox>,
    logs: Arc<Outbox>,
    engines: Mutex<Vec<AbortOnDropHandle<()>>>,
    closed: OnceCell<CloseReport>,
}

impl Pipelines {
    /// Starts delivery on the runtime that this is called in.
    pub(crate) fn start(metrics: SignalSettings, logs: SignalSettings, retry: &RetrySettings, way: &Way) -> Arc<Self> {
        let outbox = |signal, settings| Outbox::new(signal, settings, way.clock.clone(), way.jitter.clone());
        let (metrics, logs) = (outbox(Signal::Metrics, metrics), outbox(Signal::Logs, logs));
        let engine = |outbox: &Arc<Outbox>| {
            let engine = Engine::new(Arc::clone(outbox), way.clone(), retry.clone());
            AbortOnDropHandle::new(tokio::spawn(engine.run()))
        };
        let engines = Mutex::new(vec![engine(&metrics), engine(&logs)]);
        Arc::new(Self { metrics, logs, engines, closed: OnceCell::new() })
    }

    pub(crate) const fn metrics(&self) -> &Arc<Outbox> {
        &self.metrics
    }

    pub(crate) const fn logs(&self) -> &Arc<Outbox> {
        &self.logs
    }

    /// Waits until all that was written before is settled, for `within` at most.
    pub(crate) async fn flush(&self, within: Duration) -> FlushReport {
        let before = self.sum();
        let _ = timeout(within, join(self.metrics.flush(), self.logs.flush())).await;
        let after = self.sum();
        FlushReport {
            delivered: after.delivered - before.delivered,
            dropped: after.dropped - before.dropped,
            waiting: after.waiting,
        }
    }

    /// Takes no more writes, flushes, and ends delivery. Whoever calls again gets the first report.
    pub(crate) async fn close(&self, within: Duration) -> CloseReport {
        *self
            .closed
            .get_or_init(|| async {
                self.metrics.close();
                self.logs.close();
                let flushed = self.flush(within).await;
                let engines = std::mem::take(&mut *self.engines.lock());
                for engine in engines {
                    engine.abort();
                    let _ = timeout(STOP_TIMEOUT, engine).await;
                }
                let lost = self.metrics.abandon() + self.logs.abandon();
                CloseReport { delivered: flushed.delivered, dropped: flushed.dropped, lost }
            })
            .await
    }

    fn sum(&self) -> FlushReport {
        let (metrics, logs) = (self.metrics.tally(), self.logs.tally());
        FlushReport {
            delivered: metrics.delivered + logs.delivered,
            dropped: metrics.dropped_in_all() + logs.dropped_in_all(),
            waiting: metrics.waiting + logs.waiting,
        }
    }
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        self.engines.get_mut().clear();
        let lost = self.metrics.abandon() + self.logs.abandon();
        if lost > 0 {
            tracing::warn!(items = lost, "the client was dropped with telemetry that was not delivered");
        }
    }
}

#[cfg(test)]
mod tests;
