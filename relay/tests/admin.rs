//! What operators are told over HTTP: health, readiness, what ends soon, and the metrics of it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "listener/harness.rs"]
mod harness;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::*;
use telemetry_proto::claims::Expectations;
use telemetry_proto::{Signal, SystemClock};
use telemetry_relay::admin::{AdminConfig, AdminError, AdminHandle, AdminServer, CertificateStatus, Observer};
use telemetry_relay::forward::BackendSettings;
use telemetry_relay::gate::{JwtVerifier, KeySet};
use telemetry_relay::listener::{Listener, ListenerHandle};
use telemetry_relay::{RelayBuilder, RelayService};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const DAY: u64 = 24 * 60 * 60;

struct Relay {
    cluster: Cluster,
    service: RelayService,
    listener: ListenerHandle,
    observer: Arc<Observer>,
    admin: AdminHandle,
}

impl Relay {
    /// With a store at `store`, a certificate that ends in so many seconds, and series of so many runners.
    async fn start(store: SocketAddr, certificate_seconds: u64, runner_series: usize) -> Self {
        let cluster = Cluster::new();
        let verifier = JwtVerifier::new(KeySet::default(), Expectations::new("i"), Arc::new(SystemClock));
        let store = BackendSettings::new(format!("http://{store}").parse().unwrap());
        let service = RelayBuilder::new(Arc::new(verifier)).store(Signal::Metrics, store).build();
        let listener = Listener::bind(loopback(), Arc::new(cluster.server_tls())).unwrap().serve(service.clone());
        let certificate =
            CertificateStatus { subject: "CN=coordinator".to_owned(), expires_at: now() + certificate_seconds };
        let observer = Observer::new(service.clone(), listener.view(), certificate, Arc::new(SystemClock));
        let address = "127.0.0.1:0".parse().unwrap();
        let admin = AdminServer::bind(AdminConfig { address, allow_remote: false, runner_series }).await.unwrap();
        let admin = admin.serve(Arc::clone(&observer));
        Self { cluster, service, listener, observer, admin }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let exchange = async {
            let mut stream = TcpStream::connect(self.admin.local_addr()).await?;
            stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").as_bytes()).await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await?;
            Ok::<_, std::io::Error>(text)
        };
        let text = within(exchange).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// What `/readyz` says once the store was asked.
    async fn readiness(&self) -> (u16, String) {
        within(async {
            loop {
                let (status, said) = self.get("/readyz").await;
                if !said.contains("has not been asked yet") {
                    return (status, said);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    /// The value of a series.
    async fn metric(&self, series: &str) -> Option<String> {
        let (_, text) = self.get("/metrics").await;
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned))
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A store that answers everything with success.
async fn store() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                }
            });
        }
    });
    address
}

fn nobody() -> SocketAddr {
    "127.0.0.1:9".parse().unwrap()
}

#[tokio::test]
async fn a_relay_is_ready_until_it_is_told_to_go_and_healthy_all_the_while() {
    let relay = Relay::start(store().await, 90 * DAY, 0).await;
    assert_eq!(relay.readiness().await, (200, "ready\n".to_owned()));
    assert_eq!(relay.metric("telemetry_relay_ready").await.unwrap(), "1");
    relay.service.announce_draining();
    assert_eq!(relay.get("/readyz").await, (503, "the relay is shutting down\n".to_owned()));
    assert_eq!(relay.get("/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(relay.metric("telemetry_relay_ready").await.unwrap(), "0");
    assert_eq!(relay.metric("telemetry_relay_draining").await.unwrap(), "1");
}

#[tokio::test]
async fn a_relay_whose_store_is_down_or_whose_certificate_has_ended_is_not_ready() {
    let relay = Relay::start(nobody(), 90 * DAY, 0).await;
    let (status, said) = relay.readiness().await;
    assert!(status == 503 && said.contains("the store for metrics does not answer"), "{said}");
    assert_eq!(relay.metric("telemetry_relay_store_up{signal=\"metrics\"}").await.unwrap(), "0");
    let relay = Relay::start(store().await, 0, 0).await;
    assert_eq!(relay.readiness().await, (503, "the coordinator's certificate has expired\n".to_owned()));
    assert_eq!(relay.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn a_certificate_that_ends_soon_is_a_warning_and_a_gauge() {
    let ends = now() + 3 * DAY;
    let relay = Relay::start(nobody(), 3 * DAY, 0).await;
    let (_, status) = relay.get("/status").await;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let warning = status["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("the coordinator's certificate ends in "), "{status}");
    let gauge: u64 =
        relay.metric("telemetry_relay_certificate_expiry_timestamp_seconds").await.unwrap().parse().unwrap();
    assert!((ends..=ends + 60).contains(&gauge), "{gauge}");
}

#[tokio::test]
async fn a_broken_configuration_is_a_gauge_a_counter_and_a_warning() {
    let relay = Relay::start(nobody(), 90 * DAY, 0).await;
    assert_eq!(relay.metric("telemetry_relay_config_broken").await.unwrap(), "0");
    relay.observer.note_reload(Err("ca.pem: cut".to_owned()));
    assert_eq!(relay.metric("telemetry_relay_config_broken").await.unwrap(), "1");
    let failed = "telemetry_relay_config_reloads_total{outcome=\"failed\"}";
    assert_eq!(relay.metric(failed).await.unwrap(), "1");
    let (_, status) = relay.get("/status").await;
    assert!(status.contains("ca.pem: cut") && status.contains("could not be put in force"), "{status}");
    relay.observer.note_reload(Ok(vec!["[listener]"]));
    assert_eq!(relay.metric("telemetry_relay_config_broken").await.unwrap(), "0");
    assert_eq!(relay.metric("telemetry_relay_config_reloads_total{outcome=\"applied\"}").await.unwrap(), "1");
    let (_, status) = relay.get("/status").await;
    assert!(status.contains("changes of [listener] take effect at the next start"), "{status}");
}

#[tokio::test]
async fn runners_have_series_of_their_own_only_while_they_are_few() {
    let relay = Relay::start(nobody(), 90 * DAY, 2).await;
    let connect = |runner: &'static str| async {
        let client = relay.cluster.connect(&relay.listener, runner).await;
        client.http().await;
        client
    };
    let connected = |n| {
        eventually("the connections", {
            let view = relay.listener.view();
            move || view.connected().len() == n
        })
    };
    let _first = connect("r1").await;
    let second = connect("r2").await;
    connected(2).await;
    let series = |runner: &str| format!("telemetry_relay_runner_connections{{runner=\"{runner}\"}}");
    assert_eq!(relay.metric(&series("r1")).await.unwrap(), "1");
    assert_eq!(relay.metric(&series("r2")).await.unwrap(), "1");
    let third = connect("r3").await;
    connected(3).await;
    let (_, text) = relay.get("/metrics").await;
    assert!(!text.contains("{runner=") && text.ends_with("# EOF\n"), "{text}");
    assert_eq!(relay.metric("telemetry_relay_runners_connected").await.unwrap(), "3");
    drop((second, third));
    connected(1).await;
    assert_eq!(relay.metric(&series("r1")).await.unwrap(), "1");
    assert_eq!(relay.metric(&series("r2")).await, None, "who goes leaves nothing behind");
}

#[tokio::test]
async fn runners_are_found_by_a_part_of_their_id() {
    let relay = Relay::start(nobody(), 90 * DAY, 0).await;
    let mut clients = Vec::new();
    for runner in ["alpha-1", "alpha-2", "beta-1"] {
        let client = relay.cluster.connect(&relay.listener, runner).await;
        clients.push(client.http().await);
    }
    eventually("the connections", {
        let view = relay.listener.view();
        move || view.connected().len() == 3
    })
    .await;
    let found = async |query: &str| {
        let (_, status) = relay.get(&format!("/status{query}")).await;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status["runners_connected"], 3);
        let ids = status["runners"].as_array().unwrap().iter().map(|runner| runner["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(found("?find=ALPHA-").await, ["alpha-1", "alpha-2"]);
    assert_eq!(found("?find=a%2D1").await, ["alpha-1", "beta-1"]);
    assert_eq!(found("?find=nobody").await, [""; 0]);
    assert_eq!(found("").await.len(), 3);
    drop(clients);
}

#[tokio::test]
async fn an_address_that_others_can_reach_takes_consent() {
    let config = |allow_remote| AdminConfig { address: "0.0.0.0:0".parse().unwrap(), allow_remote, runner_series: 0 };
    assert!(matches!(AdminServer::bind(config(false)).await, Err(AdminError::Remote(_))));
    assert!(AdminServer::bind(config(true)).await.is_ok());
}
