//! A removed runner loses its connections at once, whoever keeps the registry.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "listener/harness.rs"]
mod harness;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::*;
use telemetry_proto::RunnerId;
use telemetry_relay::end_removed;
use telemetry_relay::gate::{RemovedRunners, RunnerRegistry};
use tokio::sync::watch;
use tower::service_fn;

fn runner(id: &str) -> RunnerId {
    RunnerId::new(id).unwrap()
}

/// Removes r1 while r1 and r2 are connected.
async fn remove(registry: Arc<dyn RunnerRegistry>, remove: impl FnOnce()) {
    let cluster = Cluster::new();
    let listener = Arc::new(cluster.listen(service_fn(name)));
    let (first, second) = (cluster.connect(&listener, "r1").await, cluster.connect(&listener, "r2").await);
    let (mut _one, mut two) = (first.http().await, second.http().await);
    let ending = tokio::spawn({
        let listener = Arc::clone(&listener);
        async move { end_removed(&*registry, &listener).await }
    });
    tokio::task::yield_now().await;
    assert!(first.quic.close_reason().is_none() && second.quic.close_reason().is_none());

    remove();
    // Well before connections are looked at unasked.
    let reason = tokio::time::timeout(Duration::from_secs(10), first.quic.closed()).await.expect("at once");
    assert!(reason.to_string().contains("this runner was removed"), "{reason}");
    let (_, body) = post(&mut two, "").await.unwrap();
    assert_eq!(&body[..], b"r2", "and nobody else does");
    ending.abort();
}

#[tokio::test]
async fn a_runner_that_the_list_removes_loses_its_connection() {
    let registry = Arc::new(RemovedRunners::default());
    remove(Arc::clone(&registry) as _, move || registry.publish(HashSet::from([runner("r1")]))).await;
}

/// A registry of an embedder's own.
struct Registry {
    has_r1: AtomicBool,
    removals: watch::Sender<()>,
}

impl RunnerRegistry for Registry {
    fn is_registered(&self, id: &RunnerId) -> bool {
        id.as_str() != "r1" || self.has_r1.load(Ordering::SeqCst)
    }

    fn removals(&self) -> Option<watch::Receiver<()>> {
        Some(self.removals.subscribe())
    }
}

#[tokio::test]
async fn a_runner_that_an_embedders_registry_removes_loses_its_connection() {
    let registry = Arc::new(Registry { has_r1: AtomicBool::new(true), removals: watch::Sender::new(()) });
    let removed = Arc::clone(&registry);
    remove(registry, move || {
        removed.has_r1.store(false, Ordering::SeqCst);
        removed.removals.send_replace(());
    })
    .await;
}
