//! Lesson 23 (quic-go 3372): a client notices at once that the listener it was connected to is no more.
//!
//! Each listener lives in a runtime of its own, which is torn down under it: like a process that is killed, it says nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "listener/harness.rs"]
mod harness;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use harness::*;
use telemetry_relay::listener::{Listener, ListenerConfig, ListenerHandle};
use tokio::runtime::Runtime;
use tower::service_fn;

struct Process {
    runtime: Runtime,
    listener: ListenerHandle,
}

impl Process {
    fn start(cluster: &Cluster, address: SocketAddr, reset_key: [u8; 64]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(async {
            let config = ListenerConfig { reset_key: Some(reset_key), ..ListenerConfig::new(address) };
            let bind = || Listener::bind(config.clone(), Arc::new(cluster.server_tls()));
            let listener = within(async {
                loop {
                    match bind() {
                        Ok(listener) => break listener,
                        // The killed one may hold its port for a moment.
                        Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                }
            });
            listener.await.serve(service_fn(name))
        });
        Self { runtime, listener }
    }

    fn kill(self) {
        // Without its runtime the listener can't say goodbye any more.
        self.runtime.shutdown_timeout(Duration::from_secs(5));
        drop(self.listener);
    }
}

#[test]
fn an_idle_client_notices_a_restart_with_its_next_request() {
    let cluster = Cluster::new();
    let first = Process::start(&cluster, loopback().address, [7; 64]);
    let address = first.listener.local_addr();
    let clients = tokio::runtime::Runtime::new().unwrap();
    let (client, mut requests) = clients.block_on(async {
        let client = cluster.connect(&first.listener, "r7").await;
        let mut requests = client.http().await;
        post(&mut requests, "x").await.unwrap();
        (client, requests)
    });
    first.kill();
    let _second = Process::start(&cluster, address, [7; 64]);
    clients.block_on(async {
        assert_eq!(client.quic.close_reason(), None);
        let noticed = tokio::time::timeout(Duration::from_secs(2), post(&mut requests, "x")).await;
        assert!(noticed.expect("in time").is_err());
        assert_eq!(client.quic.close_reason(), Some(quinn::ConnectionError::Reset));
    });
}

/// What the key is for.
#[test]
fn with_another_key_it_would_have_to_wait() {
    let cluster = Cluster::new();
    let first = Process::start(&cluster, loopback().address, [7; 64]);
    let address = first.listener.local_addr();
    let clients = tokio::runtime::Runtime::new().unwrap();
    let (client, mut requests) = clients.block_on(async {
        let client = cluster.connect(&first.listener, "r7").await;
        let requests = client.http().await;
        (client, requests)
    });
    first.kill();
    let _second = Process::start(&cluster, address, [8; 64]);
    clients.block_on(async {
        let waiting = tokio::time::timeout(Duration::from_secs(2), post(&mut requests, "x")).await;
        assert!(waiting.is_err());
        assert_eq!(client.quic.close_reason(), None);
    });
}
