//! The client's own metrics, for the embedder's registry.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use telemetry_proto::Signal;

use crate::delivery::{DropReason, Outbox, Tally};

type Labels = [(&'static str, &'static str); 2];

/// Counts requests by what became of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestCounter(Family<Labels, Counter>);

impl RequestCounter {
    pub(crate) fn count(&self, signal: Signal, outcome: &'static str) {
        self.0.get_or_create(&[("signal", signal.as_str()), ("outcome", outcome)]).inc();
    }
}

/// Counts what was cut off items that the store would have dropped silently.
#[derive(Debug, Clone, Default)]
pub(crate) struct CutCounter(Family<Labels, Counter>);

impl CutCounter {
    pub(crate) fn count(&self, signal: Signal, what: &'static str, times: u64) {
        if times > 0 {
            self.0.get_or_create(&[("signal", signal.as_str()), ("what", what)]).inc_by(times);
        }
    }
}

/// Adds the client's metrics to `registry`.
pub(crate) fn register(
    registry: &mut Registry,
    outboxes: Vec<Arc<Outbox>>,
    requests: RequestCounter,
    cuts: CutCounter,
) {
    registry.register("telemetry_requests", "Requests by what became of them", requests.0);
    registry.register("telemetry_cut", "What was cut off since the store would have dropped the item", cuts.0);
    registry.register_collector(Box::new(Accounts(outboxes)));
}

/// Reads the accounts when they are scraped, so that they add up in every scrape.
struct Accounts(Vec<Arc<Outbox>>);

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accounts").finish_non_exhaustive()
    }
}

impl Collector for Accounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let accounts: Vec<(Signal, Tally, u64)> =
            self.0.iter().map(|outbox| (outbox.signal(), outbox.tally(), outbox.queued_bytes() as u64)).collect();
        type Read = fn(&Tally) -> u64;
        let counters: [(&str, &str, Read); 2] = [
            ("telemetry_written", "Items handed to a writer", |tally| tally.written),
            ("telemetry_delivered", "Items acknowledged by the store", |tally| tally.delivered),
        ];
        for (name, help, read) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (signal, tally, _) in &accounts {
                let labels = [("signal", signal.as_str())];
                ConstCounter::new(read(tally)).encode(family.encode_family(&labels)?)?;
            }
        }
        let mut family =
            encoder.encode_descriptor("telemetry_dropped", "Items dropped, by reason", None, MetricType::Counter)?;
        for (signal, tally, _) in &accounts {
            for reason in DropReason::ALL {
                let labels = [("signal", signal.as_str()), ("reason", reason.as_str())];
                ConstCounter::new(tally.dropped(reason)).encode(family.encode_family(&labels)?)?;
            }
        }
        let gauges: [(&str, &str, fn(&Tally, u64) -> u64); 2] = [
            ("telemetry_waiting_items", "Items in memory or under way", |tally, _| tally.waiting),
            ("telemetry_queued_bytes", "Memory taken by closed batches", |_, bytes| bytes),
        ];
        for (name, help, read) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (signal, tally, bytes) in &accounts {
                let labels = [("signal", signal.as_str())];
                ConstGauge::new(read(tally, *bytes)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
