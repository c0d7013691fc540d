//! `telemetry-relay serve`.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

use telemetry_proto::SystemClock;
use telemetry_relay::admin::{AdminServer, Observer};
use telemetry_relay::config::{self, Assembled, ProcessEnv};
use telemetry_relay::listener::Listener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::Outcome;
use super::exit::Failure;

pub(super) fn run(path: &Path) -> Outcome {
    start_log();
    let assembled = config::load(path, &ProcessEnv)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::other)?;
    runtime.block_on(serve(assembled))
}

async fn serve(assembled: Assembled) -> Outcome {
    let Assembled { service, listener, tls, drain, stores, mints, certificate, admin } = assembled;
    // The handlers stand before anyone can connect, so that no signal is missed.
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::other)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::other)?;
    let listener = Listener::bind(listener, tls).map_err(Failure::other)?;
    let address = listener.local_addr();
    let handle = listener.serve(service.clone());
    let observer = Observer::new(service.clone(), handle.view(), certificate, Arc::new(SystemClock));
    let admin = match admin {
        Some(config) => Some(AdminServer::bind(config).await.map_err(Failure::other)?),
        None => None,
    };
    let admin_address = admin.as_ref().map(AdminServer::local_addr);
    let _admin = admin.map(|server| server.serve(observer));
    let stores = stores.iter().map(|(signal, address)| format!("{signal}={address}")).collect::<Vec<_>>().join(" ");
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %address, admin = admin_address.map(display), stores, mints, "relay started");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!(grace_seconds = drain.as_secs(), "relay draining");
    service.start_draining();
    handle.drain(drain).await;
    // Batches on their way to a store finish even if their senders are gone.
    if tokio::time::timeout(drain, service.forwarded()).await.is_err() {
        tracing::warn!("some batches were still at a store when the grace period ended");
    }
    tracing::info!("relay stopped");
    Ok(())
}

/// Text for a terminal, JSON for everything else. `RUST_LOG` chooses what is logged.
fn start_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() { log.init() } else { log.json().flatten_event(true).init() }
}
