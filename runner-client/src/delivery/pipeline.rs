//! One outbox and one engine per signal.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join3;
use parking_lot::Mutex;
use telemetry_proto::Signal;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::batch::Frame;
use super::engine::{Engine, RetrySettings, Way};
use super::keeper::{Bell, Keeper, KeeperHandle};
use super::outbox::{Outbox, SignalSettings};
use crate::spool::{Recovery, Spool};
use crate::token::TokenSource;

/// How long the end of an engine is waited for. It ends at its next await.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the spool is waited for at the end. A disk that hangs for longer must not keep the process.
const SPOOL_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// Items that the spool keeps for the next start. They are counted as waiting.
    pub spooled: u64,
}

/// What is delivered, and how.
pub(crate) struct Plan {
    pub(crate) metrics: SignalSettings,
    pub(crate) logs: SignalSettings,
    pub(crate) traces: SignalSettings,
    /// What goes around the spans of a batch.
    pub(crate) spans_frame: Frame,
    pub(crate) retry: RetrySettings,
}

/// Delivery of every signal. When it is dropped delivery ends.
pub(crate) struct Pipelines {
    metrics: Arc<Outbox>,
    logs: Arc<Outbox>,
    traces: Arc<Outbox>,
    /// The engines, and what else ends with them.
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
    keeper: Option<KeeperHandle>,
    closed: OnceCell<CloseReport>,
}

impl Pipelines {
    /// Starts delivery on the runtime that this is called in. Spans go their way with other tokens than the rest, and
    /// never through the spool. The other tasks end with it.
    ///
    /// # Errors
    /// There is no thread for the spool.
    pub(crate) fn start(
        plan: Plan,
        way: &Way,
        trace_tokens: &Arc<dyn TokenSource>,
        others: impl IntoIterator<Item = AbortOnDropHandle<()>>,
        spool: Option<(Spool, &Recovery)>,
    ) -> io::Result<Arc<Self>> {
        let (bell, rings) = Bell::new();
        let stored = spool.is_some().then(|| bell.clone());
        let outbox = |signal, settings, frame, bell| {
            Outbox::new(signal, settings, frame, way.clock.clone(), way.jitter.clone(), bell)
        };
        let metrics = outbox(Signal::Metrics, plan.metrics, None, stored.clone());
        let logs = outbox(Signal::Logs, plan.logs, None, stored);
        let traces = outbox(Signal::Traces, plan.traces, Some(plan.spans_frame), None);
        let keeper = match spool {
            Some((spool, recovery)) => {
                let outboxes = vec![Arc::clone(&metrics), Arc::clone(&logs)];
                let keeper = Keeper::new(spool, recovery, outboxes, way.clock.clone(), way.jitter.run());
                Some(keeper.start(bell, rings)?)
            }
            None => None,
        };
        let engine = |outbox: &Arc<Outbox>, tokens: &Arc<dyn TokenSource>| {
            let way = Way { tokens: Arc::clone(tokens), ..way.clone() };
            let engine = Engine::new(Arc::clone(outbox), way, plan.retry.clone());
            AbortOnDropHandle::new(tokio::spawn(engine.run()))
        };
        let engines = [engine(&metrics, &way.tokens), engine(&logs, &way.tokens), engine(&traces, trace_tokens)];
        let tasks = Mutex::new(engines.into_iter().chain(others).collect());
        Ok(Arc::new(Self { metrics, logs, traces, tasks, keeper, closed: OnceCell::new() }))
    }

    pub(crate) const fn metrics(&self) -> &Arc<Outbox> {
        &self.metrics
    }

    pub(crate) const fn logs(&self) -> &Arc<Outbox> {
        &self.logs
    }

    pub(crate) const fn keeper(&self) -> Option<&KeeperHandle> {
        self.keeper.as_ref()
    }

    pub(crate) const fn traces(&self) -> &Arc<Outbox> {
        &self.traces
    }

    /// Every signal's.
    pub(crate) const fn all(&self) -> [&Arc<Outbox>; 3] {
        [&self.metrics, &self.logs, &self.traces]
    }

    /// Waits until all that was written before is settled, for `within` at most.
    pub(crate) async fn flush(&self, within: Duration) -> FlushReport {
        let before = self.sum();
        let _ = timeout(within, join3(self.metrics.flush(), self.logs.flush(), self.traces.flush())).await;
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
                self.all().into_iter().for_each(|outbox| outbox.close());
                let flushed = self.flush(within).await;
                let tasks = std::mem::take(&mut *self.tasks.lock());
                for task in tasks {
                    task.abort();
                    let _ = timeout(STOP_TIMEOUT, task).await;
                }
                if let Some(keeper) = &self.keeper {
                    keeper.stop();
                    if !keeper.ended(SPOOL_TIMEOUT).await {
                        tracing::warn!("the disk of the spool does not answer; what it did not take is given up");
                    }
                }
                let lost = self.abandon();
                let spooled = self.sum().waiting;
                CloseReport { delivered: flushed.delivered, dropped: flushed.dropped, lost, spooled }
            })
            .await
    }

    fn sum(&self) -> FlushReport {
        self.all().into_iter().map(|outbox| outbox.tally()).fold(FlushReport::default(), |sum, tally| FlushReport {
            delivered: sum.delivered + tally.delivered,
            dropped: sum.dropped + tally.dropped_in_all(),
            waiting: sum.waiting + tally.waiting,
        })
    }

    fn abandon(&self) -> u64 {
        self.all().into_iter().map(|outbox| outbox.abandon()).sum()
    }
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        self.tasks.get_mut().clear();
        if let Some(keeper) = self.keeper.as_ref().filter(|_| !self.closed.initialized()) {
            // Its thread stores what is left, and nobody waits for the disk here.
            self.metrics.stage_rest();
            self.logs.stage_rest();
            keeper.stop();
            self.traces.abandon();
            return;
        }
        let lost = self.abandon();
        if lost > 0 {
            tracing::warn!(items = lost, "the client was dropped with telemetry that was not delivered");
        }
    }
}

#[cfg(test)]
mod tests;
