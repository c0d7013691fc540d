//! `[operational]`: what becomes of the runners' own series.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use telemetry_certs::ClusterName;
use telemetry_proto::Signal;

use super::ConfigFaults;
use crate::RelayService;
use crate::forward::StoreAddress;
use crate::operational::{PointLimits, PushSink, SinkLimits};

/// `[operational]`: what becomes of the runners' own series (process, host, controllers). Unless they go somewhere by one of
/// the first two keys, they go to `[stores.metrics]` like all other batches, and the rest has no meaning.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct OperationalSection {
    /// Writes them to `[stores.metrics]`, point by point and within these limits. Default false.
    pub to_store: bool,
    /// Ships them to a second address, a vmagent on this machine: `http://HOST:PORT[/PREFIX]` or `unix:/PATH`. Default none.
    pub ship_to: Option<String>,
    /// The `miren_cluster` of what is shipped. Required beside `ship_to`.
    pub cluster: Option<String>,
    /// Allows a `ship_to` that other machines can reach. Default false.
    pub allow_remote: bool,
    /// Points that are taken of one batch. Default 10,000.
    pub max_points: usize,
    /// Labels of a point, `miren_runner` included. Default 37: with the name, `miren_tenant` and `miren_cluster` these are
    /// the 40 that VictoriaMetrics stores.
    pub max_labels: usize,
    /// Bytes of a metric's or label's name. Default 256, as VictoriaMetrics stores.
    pub max_name_bytes: usize,
    /// Bytes of a label's value. Default 4,096, as VictoriaMetrics stores.
    pub max_value_bytes: usize,
    /// How far a timestamp may be in the future. Default 172,800: two days, as VictoriaMetrics stores.
    pub max_future_seconds: u64,
    /// Takes points whose value is NaN, which VictoriaMetrics does not store. Default false.
    pub allow_nan: bool,
    /// Parts of batches that may wait for each of the two ways. Default 1,024.
    pub queue_chunks: usize,
    /// Memory of what may wait for each of the two ways, in bytes. Default 32 MiB.
    pub queue_bytes: usize,
    /// How long each way may take over one part of a batch. Default 10.
    pub timeout_seconds: u64,
}

impl Default for OperationalSection {
    fn default() -> Self {
        let points = PointLimits::default();
        let queues = SinkLimits::default();
        Self {
            to_store: false,
            ship_to: None,
            cluster: None,
            allow_remote: false,
            max_points: points.max_points,
            max_labels: points.max_labels,
            max_name_bytes: points.max_name_bytes,
            max_value_bytes: points.max_value_bytes,
            max_future_seconds: points.max_future.as_secs(),
            allow_nan: points.allow_nan,
            queue_chunks: queues.max_chunks,
            queue_bytes: queues.max_bytes,
            timeout_seconds: queues.timeout.as_secs(),
        }
    }
}

/// The section, validated.
#[derive(Debug)]
pub struct Operational {
    pub(crate) points: PointLimits,
    pub(crate) queues: SinkLimits,
    to_store: bool,
    ship: Option<PushSink>,
}

impl Operational {
    /// Beside a store for metrics, or without one.
    pub(super) fn of(section: &OperationalSection, has_store: bool, faults: &mut ConfigFaults) -> Self {
        check_limits(section, faults);
        faults.require(
            has_store || !section.to_store,
            "operational.to_store",
            "there is no [stores.metrics] to write to",
            "add [stores.metrics] with a url, or remove the key",
        );
        let ship = shipping(section, faults);
        let points = PointLimits {
            max_points: section.max_points,
            max_labels: section.max_labels,
            max_name_bytes: section.max_name_bytes,
            max_value_bytes: section.max_value_bytes,
            max_future: Duration::from_secs(section.max_future_seconds),
            allow_nan: section.allow_nan,
        };
        let queues = SinkLimits {
            max_chunks: section.queue_chunks,
            max_bytes: section.queue_bytes,
            timeout: Duration::from_secs(section.timeout_seconds),
        };
        Self { points, queues, to_store: section.to_store, ship }
    }

    /// Attaches the sinks.
    pub(crate) fn attach_to(self, service: &RelayService) {
        let metrics = service.backends().find(|(signal, _)| *signal == Signal::Metrics && self.to_store);
        let store = metrics.map(|(_, backend)| PushSink::to_store(backend.settings().clone()));
        for (name, sink) in [("store", store), ("ship", self.ship)] {
            if let Some(sink) = sink {
                service.operational_sinks().attach(name, Arc::new(sink));
            }
        }
    }
}

fn shipping(section: &OperationalSection, faults: &mut ConfigFaults) -> Option<PushSink> {
    const CLUSTER_REMEDY: &str = "add cluster = \"NAME\", the name by which this cluster is told from others";
    let Some(address) = &section.ship_to else {
        faults.require(
            section.cluster.is_none() && !section.allow_remote,
            "operational.cluster and operational.allow_remote",
            "say how to ship, but nothing is shipped",
            "add ship_to = \"http://127.0.0.1:8429\", or remove the keys",
        );
        return None;
    };
    let address = faults.take("operational.ship_to", "", address.parse::<StoreAddress>());
    if let Some(address) = &address {
        faults.require(
            section.allow_remote || address.is_loopback(),
            "operational.ship_to",
            &format!("{address} can be reached by other machines, and it has no authentication of its own"),
            "let a vmagent on this machine ship on, or set allow_remote = true if the network is truly closed",
        );
    }
    let cluster = section.cluster.as_deref().unwrap_or_default();
    let cluster = faults.take("operational.cluster", CLUSTER_REMEDY, ClusterName::new(cluster));
    Some(PushSink::ship(address?, cluster?))
}

fn check_limits(section: &OperationalSection, faults: &mut ConfigFaults) {
    let least_queue = SinkLimits::MIN_BYTES as u64;
    for (key, value, least, why) in [
        ("max_points", section.max_points as u64, 1, "no point would ever be taken"),
        ("max_labels", section.max_labels as u64, 1, "every point has the label miren_runner"),
        ("max_name_bytes", section.max_name_bytes as u64, 12, "every point has the label miren_runner"),
        ("max_value_bytes", section.max_value_bytes as u64, 128, "a runner's ID may be that long"),
        ("queue_chunks", section.queue_chunks as u64, 1, "nothing would ever go anywhere"),
        ("queue_bytes", section.queue_bytes as u64, least_queue, "the largest part of a batch must fit"),
        ("timeout_seconds", section.timeout_seconds, 1, "every part of a batch would time out"),
    ] {
        let problem = format!("is {value}, but {why}");
        faults.require(value >= least, &format!("operational.{key}"), &problem, &format!("set it to {least} or more"));
    }
}

#[cfg(test)]
mod tests {
    use telemetry_proto::Reason;
    use telemetry_proto::claims::VerifiedClaims;

    use super::*;
    use crate::RelayBuilder;
    use crate::forward::BackendSettings;
    use crate::gate::TokenVerifier;

    fn check(text: &str, has_store: bool) -> (Operational, Vec<String>) {
        let section: OperationalSection = toml::from_str(text).unwrap();
        let mut faults = ConfigFaults::default();
        let operational = Operational::of(&section, has_store, &mut faults);
        (operational, faults.as_slice().iter().map(|fault| fault.at.clone()).collect())
    }

    /// The names of the sinks of a service that was put together with this section.
    fn sinks(text: &str) -> Vec<Arc<str>> {
        let (operational, faults) = check(text, true);
        assert!(faults.is_empty(), "{faults:?}");
        let store = BackendSettings::new("http://127.0.0.1:8428".parse().unwrap());
        let service = RelayBuilder::new(Arc::new(NoTokens)).store(Signal::Metrics, store).build();
        operational.attach_to(&service);
        service.operational_sinks().names()
    }

    struct NoTokens;

    impl TokenVerifier for NoTokens {
        fn verify(&self, _token: &str) -> Result<Arc<VerifiedClaims>, Reason> {
            Err(Reason::TokenMalformed)
        }
    }

    #[test]
    fn what_is_not_said_is_as_the_library_has_it_and_goes_nowhere_else() {
        let (operational, faults) = check("", false);
        assert!(faults.is_empty() && sinks("").is_empty());
        assert_eq!((operational.points, operational.queues), (PointLimits::default(), SinkLimits::default()));
    }

    #[test]
    fn each_way_is_a_sink() {
        assert_eq!(sinks("to_store = true"), ["store".into()]);
        assert_eq!(sinks("ship_to = 'http://127.0.0.1:8429'\ncluster = 'prod'"), ["ship".into()]);
        assert_eq!(
            sinks("to_store = true\nship_to = 'unix:/run/a.sock'\ncluster = 'prod'"),
            ["store".into(), "ship".into()]
        );
        assert_eq!(sinks("ship_to = 'http://10.0.0.1:8429'\ncluster = 'prod'\nallow_remote = true"), ["ship".into()]);
    }

    #[test]
    fn what_would_lose_points_is_named() {
        assert_eq!(check("to_store = true", false).1, ["operational.to_store"]);
        for (text, at) in [
            ("ship_to = 'http://10.0.0.1:8429'\ncluster = 'prod'", "operational.ship_to"),
            ("ship_to = 'https://127.0.0.1:8429'\ncluster = 'prod'", "operational.ship_to"),
            ("ship_to = 'http://127.0.0.1:8429'", "operational.cluster"),
            ("ship_to = 'http://127.0.0.1:8429'\ncluster = 'No Name'", "operational.cluster"),
            ("cluster = 'prod'", "operational.cluster and operational.allow_remote"),
            ("allow_remote = true", "operational.cluster and operational.allow_remote"),
            ("max_points = 0", "operational.max_points"),
            ("max_labels = 0", "operational.max_labels"),
            ("max_name_bytes = 11", "operational.max_name_bytes"),
            ("max_value_bytes = 127", "operational.max_value_bytes"),
            ("queue_chunks = 0", "operational.queue_chunks"),
            ("queue_bytes = 1000", "operational.queue_bytes"),
            ("timeout_seconds = 0", "operational.timeout_seconds"),
        ] {
            assert_eq!(check(text, true).1, [at], "{text}");
        }
        let (_, faults) = check("ship_to = 'x'\nmax_points = 0\nto_store = true", false);
        assert_eq!(faults.len(), 4, "every fault is named: {faults:?}");
    }
}
