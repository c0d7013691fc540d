//! `telemetry-relay serve`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use telemetry_relay::config::{self, ProcessEnv, Settings};
use telemetry_relay::running::{FileWatch, Running};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::Outcome;
use super::exit::Failure;

pub(super) fn run(path: &Path) -> Outcome {
    start_log();
    let settings = config::load(path, &ProcessEnv)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::other)?;
    runtime.block_on(serve(path, settings))
}

async fn serve(path: &Path, settings: Settings) -> Outcome {
    // The handlers stand before anyone can connect, so that no signal is missed.
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::other)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::other)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(Failure::other)?;
    let mut files = FileWatch::new(settings.files.clone());
    let stores: Vec<_> = settings.fixed.stores.iter().map(|(signal, s)| format!("{signal}={}", s.address)).collect();
    let mints = settings.issuer.is_some();
    let running = Running::start(settings).await.map_err(Failure::other)?;
    let admin = running.admin().map(|admin| admin.local_addr().to_string());
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), address = %running.listener().local_addr(), admin, stores = stores.join(" "),
        mints, "relay started"
    );
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => {}
            () = files.changed() => {}
        }
        if let Some(named) = reload(path, &running) {
            files.watch(named);
        }
    }
    tracing::info!("relay draining");
    running.stop().await;
    tracing::info!("relay stopped");
    Ok(())
}

/// Reads everything anew and puts it in force, or says what is wrong and leaves everything as it was. Returns the files that
/// the configuration names now.
fn reload(path: &Path, running: &Running) -> Option<Vec<PathBuf>> {
    let outcome = config::load(path, &ProcessEnv).map_err(|faults| faults.to_string()).and_then(|settings| {
        let files = settings.files.clone();
        running.apply(settings).map(|applied| (files, applied)).map_err(|error| error.to_string())
    });
    running.observer().note_reload(outcome.as_ref().err().cloned());
    match outcome {
        Ok((files, applied)) => {
            let needs_restart = applied.needs_restart.join(" ");
            tracing::info!(closed_connections = applied.closed_connections, needs_restart, "configuration reloaded");
            Some(files)
        }
        Err(fault) => {
            tracing::error!(%fault, "the configuration was not reloaded; the one before stays in force");
            None
        }
    }
}

/// Text for a terminal, JSON for everything else. `RUST_LOG` chooses what is logged.
fn start_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() { log.init() } else { log.json().flatten_event(true).init() }
}
