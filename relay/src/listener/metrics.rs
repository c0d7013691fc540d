//! What the listener counts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Transport;

/// Counters and gauges of the listener, by what connections run over. Cheap to clone; every label set is bounded.
#[derive(Debug, Clone, Default)]
pub struct ListenerMetrics {
    accepted: Family<TransportLabel, Counter>,
    active: Family<TransportLabel, Gauge>,
    handshakes: Family<TransportLabel, Gauge>,
    refused: Family<KindLabel, Counter>,
    ended: Family<KindLabel, Counter>,
    requests: Family<TransportLabel, Counter>,
    requests_running: Family<TransportLabel, Gauge>,
    failed: Family<KindLabel, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransportLabel {
    transport: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    transport: &'static str,
    kind: &'static str,
}

impl ListenerMetrics {
    /// Registers everything under `telemetry_listener_`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("telemetry_listener");
        registry.register(
            "connections_accepted",
            "Connections whose client certificate was accepted, by transport",
            self.accepted.clone(),
        );
        registry.register("connections_active", "Connections that are open, by transport", self.active.clone());
        registry.register("handshakes_running", "Handshakes that are under way, by transport", self.handshakes.clone());
        registry.register("connections_refused", "Connections refused, by transport and kind", self.refused.clone());
        registry.register(
            "connections_ended",
            "Connections ended by this side, by transport and kind",
            self.ended.clone(),
        );
        registry.register("requests", "Requests that came, by transport", self.requests.clone());
        registry.register(
            "requests_running",
            "Requests that are being served, by transport",
            self.requests_running.clone(),
        );
        registry.register(
            "requests_failed",
            "Requests that were not answered whole, by transport and kind",
            self.failed.clone(),
        );
    }

    /// Connections that are open now.
    #[must_use]
    pub fn active_connections(&self) -> i64 {
        Transport::ALL.into_iter().map(|transport| self.active_over(transport)).sum()
    }

    /// Connections that are open now, of one transport.
    #[must_use]
    pub fn active_over(&self, transport: Transport) -> i64 {
        gauge(&self.active, transport)
    }

    /// Requests that are being served now.
    #[must_use]
    pub fn running_requests(&self) -> i64 {
        Transport::ALL.into_iter().map(|transport| gauge(&self.requests_running, transport)).sum()
    }

    /// Requests that came so far, of one transport.
    #[must_use]
    pub fn requests_over(&self, transport: Transport) -> u64 {
        self.requests.get(&TransportLabel { transport: transport.as_str() }).map_or(0, |counter| counter.get())
    }

    /// Connections refused, of one kind.
    #[must_use]
    pub fn refused(&self, kind: &'static str) -> u64 {
        value(&self.refused, kind)
    }

    /// Connections ended by this side, of one kind.
    #[must_use]
    pub fn ended(&self, kind: &'static str) -> u64 {
        value(&self.ended, kind)
    }

    /// Requests that were not answered whole, of one kind.
    #[must_use]
    pub fn failed(&self, kind: &'static str) -> u64 {
        value(&self.failed, kind)
    }

    /// What counts for one transport.
    pub(super) fn meter(&self, transport: Transport) -> Meter {
        let label = TransportLabel { transport: transport.as_str() };
        Meter {
            transport,
            accepted: self.accepted.get_or_create_owned(&label),
            active: self.active.get_or_create_owned(&label),
            handshakes: self.handshakes.get_or_create_owned(&label),
            requests: self.requests.get_or_create_owned(&label),
            requests_running: self.requests_running.get_or_create_owned(&label),
            all: self.clone(),
        }
    }
}

fn gauge(family: &Family<TransportLabel, Gauge>, transport: Transport) -> i64 {
    family.get(&TransportLabel { transport: transport.as_str() }).map_or(0, |gauge| gauge.get())
}

/// Over all transports.
fn value(family: &Family<KindLabel, Counter>, kind: &'static str) -> u64 {
    let of = |transport: Transport| {
        family.get(&KindLabel { transport: transport.as_str(), kind }).map_or(0, |counter| counter.get())
    };
    Transport::ALL.into_iter().map(of).sum()
}

/// Counts for one transport. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Meter {
    transport: Transport,
    accepted: Counter,
    active: Gauge,
    handshakes: Gauge,
    requests: Counter,
    requests_running: Gauge,
    all: ListenerMetrics,
}

impl Meter {
    /// Counts a connection, which is open until the guard is dropped.
    pub(super) fn connection(&self) -> Counted {
        self.accepted.inc();
        Counted::new(&self.active)
    }

    /// What shows the handshakes that are under way.
    pub(super) fn handshakes(&self) -> Gauge {
        self.handshakes.clone()
    }

    /// Counts a request, which runs until the guard is dropped.
    pub(super) fn request(&self) -> Counted {
        self.requests.inc();
        Counted::new(&self.requests_running)
    }

    pub(super) fn count_refused(&self, kind: &'static str) {
        self.count(&self.all.refused, kind);
    }

    pub(super) fn count_ended(&self, kind: &'static str) {
        self.count(&self.all.ended, kind);
    }

    pub(super) fn count_failed(&self, kind: &'static str) {
        self.count(&self.all.failed, kind);
    }

    fn count(&self, family: &Family<KindLabel, Counter>, kind: &'static str) {
        family.get_or_create(&KindLabel { transport: self.transport.as_str(), kind }).inc();
    }
}

/// Counts something from now until it is dropped.
#[derive(Debug)]
pub(super) struct Counted(Gauge);

impl Counted {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
