//! How long it takes until a file counts on connections that are open: the program, its files, and a clock.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "listener/harness.rs"]
mod harness;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use harness::*;
use telemetry_certs::testing::Leaf;
use telemetry_certs::{CrlRequest, Issued, PeerIdentity, Revocation};
use telemetry_h3::transport::TransportLimits;
use telemetry_relay::gate::SignatureAlgorithm;
use telemetry_relay::issuer::SigningKey;
use tempfile::TempDir;

const CONFIG: &str = r#"
[listener]
address = "127.0.0.1:0"
[tls]
certificate = "coordinator.pem"
key = "coordinator-key.pem"
client_ca = "ca.pem"
crls = ["crl.pem"]
[tokens]
issuer = "https://coordinator.test"
[issuer]
signing_key = "signing.pem"
[runners]
removed = "removed.txt"
[stores.metrics]
url = "http://127.0.0.1:9"
"#;

/// The promise.
const WITHIN: Duration = Duration::from_secs(1);
/// A loaded machine may be late now and then, but not each time.
const TRIES: usize = 3;

/// The program, until this is dropped.
struct Relay {
    child: Child,
    address: SocketAddr,
    cluster: Cluster,
    dir: TempDir,
}

impl Relay {
    fn start() -> Self {
        let (cluster, dir) = (Cluster::new(), TempDir::new().unwrap());
        let coordinator = Leaf::coordinator(COORDINATOR).issued_by(&cluster.authority);
        let signing = SigningKey::generate(SignatureAlgorithm::EdDsa).unwrap().to_pem().unwrap();
        for (name, text) in [
            ("relay.toml", CONFIG),
            ("ca.pem", &cluster.authority.certificate_pem()),
            ("coordinator.pem", &coordinator.chain_pem),
            ("coordinator-key.pem", &coordinator.key_pem),
            ("signing.pem", &signing),
            ("crl.pem", &crl(&cluster, &[])),
            ("removed.txt", ""),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let mut child = Command::new(env!("CARGO_BIN_EXE_telemetry-relay"))
            .args(["serve", "--config", dir.path().join("relay.toml").to_str().unwrap()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let started = lines.find(|line| line.contains("relay started")).unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        let started: serde_json::Value = serde_json::from_str(&started).unwrap();
        let address = started["address"].as_str().unwrap().parse().unwrap();
        Self { child, address, cluster, dir }
    }

    /// Puts a file in another's place, and says how long the connection of `issued` lives on.
    async fn ends_after(&self, issued: &Issued, name: &str, text: &str) -> Duration {
        let client = Client::dial(self.address, self.cluster.client_tls(issued), TransportLimits::default());
        let client = within(client).await.unwrap();
        client.http().await;
        let next = self.dir.path().join("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, self.dir.path().join(name)).unwrap();
        let replaced = Instant::now();
        within(client.quic.closed()).await;
        replaced.elapsed()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn crl(cluster: &Cluster, revoked: &[Issued]) -> String {
    let serial = |issued: &Issued| PeerIdentity::from_leaf(issued.credentials().unwrap().leaf()).unwrap().serial;
    let revoked = revoked.iter().map(|issued| Revocation { serial: serial(issued), revoked_at: SystemTime::now() });
    let request = CrlRequest { revoked: revoked.collect(), number: 1, lifetime: Duration::from_secs(3_600) };
    cluster.authority.issue_crl(&request).unwrap()
}

fn assert_in_time(took: &[Duration]) {
    let best = took.iter().min().unwrap();
    println!("ended after {took:?}");
    assert!(*best < WITHIN, "ended after {took:?}");
}

#[tokio::test]
async fn the_connection_of_a_removed_runner_ends_within_a_second_of_the_list() {
    let relay = Relay::start();
    let (mut took, mut list) = (Vec::new(), String::new());
    for n in 0..TRIES {
        let name = format!("r{n}");
        list += &format!("{name}\n");
        took.push(relay.ends_after(&relay.cluster.runner(&name), "removed.txt", &list).await);
    }
    assert_in_time(&took);
}

#[tokio::test]
async fn the_connection_of_a_revoked_certificate_ends_within_a_second_of_the_list() {
    let relay = Relay::start();
    let (mut took, mut revoked) = (Vec::new(), Vec::new());
    for n in 0..TRIES {
        revoked.push(relay.cluster.runner(&format!("r{n}")));
        let list = crl(&relay.cluster, &revoked);
        took.push(relay.ends_after(&revoked[n], "crl.pem", &list).await);
    }
    assert_in_time(&took);
}
