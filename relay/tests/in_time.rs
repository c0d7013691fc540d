//! How long it takes until a file counts on connections that are open: the program, its files, and a clock.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "support/files.rs"]
mod files;
#[path = "listener/harness.rs"]
mod harness;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use files::{CONFIG, crl};
use harness::*;
use telemetry_certs::Issued;
use telemetry_h3::transport::TransportLimits;
use tempfile::TempDir;

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
        files::write_all(dir.path(), &cluster, CONFIG);
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
        let list = crl(&relay.cluster, &revoked.iter().collect::<Vec<_>>());
        took.push(relay.ends_after(&revoked[n], "crl.pem", &list).await);
    }
    assert_in_time(&took);
}
