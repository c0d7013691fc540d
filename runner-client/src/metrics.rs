//! The client's own metrics, for the embedder's registry.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use telemetry_proto::Signal;

use crate::connection::Carrier;
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

/// Counts connections, and says what the present one runs over.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConnectionMetrics {
    made: Family<[(&'static str, &'static str); 1], Counter>,
    present: Family<[(&'static str, &'static str); 1], Gauge>,
}

impl ConnectionMetrics {
    /// There is a connection now, or none.
    pub(crate) fn connected(&self, over: Option<Carrier>) {
        for carrier in Carrier::ALL {
            let label = [("transport", carrier.as_str())];
            let is_it = over == Some(carrier);
            self.present.get_or_create(&label).set(is_it.into());
            if is_it {
                self.made.get_or_create(&label).inc();
            }
        }
    }
}

/// Adds the client's metrics to `registry`.
pub(crate) fn register(
    registry: &mut Registry,
    outboxes: Vec<Arc<Outbox>>,
    requests: RequestCounter,
    cuts: CutCounter,
    connections: ConnectionMetrics,
) {
    registry.register("telemetry_connections", "Connections to coordinators, by transport", connections.made);
    let help = "Whether a coordinator is connected, by transport";
    registry.register("telemetry_connected", help, connections.present);
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

/// One signal at the moment of the scrape.
struct Account {
    signal: Signal,
    tally: Tally,
    bytes: u64,
}

/// Name, help and value of what has one value per signal.
type Reading = (&'static str, &'static str, fn(&Account) -> u64);

const COUNTERS: [Reading; 2] = [
    ("telemetry_written", "Items handed to a writer", |account| account.tally.written),
    ("telemetry_delivered", "Items acknowledged by the store", |account| account.tally.delivered),
];

const GAUGES: [Reading; 2] = [
    ("telemetry_waiting_items", "Items in memory or under way", |account| account.tally.waiting),
    ("telemetry_queued_bytes", "Memory taken by closed batches", |account| account.bytes),
];

impl Collector for Accounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let read = |outbox: &Arc<Outbox>| Account {
            signal: outbox.signal(),
            tally: outbox.tally(),
            bytes: outbox.queued_bytes() as u64,
        };
        let accounts: Vec<Account> = self.0.iter().map(read).collect();
        for (name, help, read) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for account in &accounts {
                let labels = [("signal", account.signal.as_str())];
                ConstCounter::new(read(account)).encode(family.encode_family(&labels)?)?;
            }
        }
        for (name, help, read) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for account in &accounts {
                let labels = [("signal", account.signal.as_str())];
                ConstGauge::new(read(account)).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Items dropped, by reason";
        let mut family = encoder.encode_descriptor("telemetry_dropped", help, None, MetricType::Counter)?;
        for account in &accounts {
            for reason in DropReason::ALL {
                let labels = [("signal", account.signal.as_str()), ("reason", reason.as_str())];
                ConstCounter::new(account.tally.dropped(reason)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::encoding::text::encode;
    use telemetry_proto::exposition::Point;

    use crate::testing::{Answer, Script};
    use crate::{Client, LogRecord, NotTaken};

    #[tokio::test(start_paused = true)]
    async fn a_scrape_shows_every_account_and_its_reasons() {
        let client = Client::builder()
            .transport(Script::new(|_| Answer::verdict(400, "reject")))
            .token_source(std::sync::Arc::new(crate::testing::FixedTokens::default()))
            .build()
            .unwrap();
        let mut registry = prometheus_client::registry::Registry::default();
        client.register_metrics(&mut registry);
        client.metrics().write(Point::new("p", 1.0)).unwrap();
        client.logs().write(&LogRecord::new("e", "s", "x".repeat(1 << 20))).unwrap();
        client.close(Duration::from_secs(60)).await;
        assert_eq!(client.metrics().write(Point::new("p", 1.0)), Err(NotTaken::Closed));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "telemetry_written_total{signal=\"metrics\"} 2",
            "telemetry_delivered_total{signal=\"logs\"} 0",
            "telemetry_dropped_total{signal=\"metrics\",reason=\"rejected\"} 1",
            "telemetry_dropped_total{signal=\"metrics\",reason=\"shutdown\"} 1",
            "telemetry_dropped_total{signal=\"logs\",reason=\"queue_full\"} 0",
            "telemetry_waiting_items{signal=\"logs\"} 0",
            "telemetry_requests_total{signal=\"logs\",outcome=\"reject\"} 1",
            "telemetry_cut_total{signal=\"logs\",what=\"line\"} 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
