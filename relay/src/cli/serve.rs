//! `telemetry-relay serve`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use telemetry_daemon::{ServiceManager, start_log};
use telemetry_relay::config::{self, ProcessEnv, Reading, Settings};
use telemetry_relay::running::{Applied, FileWatch, Running};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use super::Outcome;
use super::exit::Failure;

/// How often the service manager is told how it is, if that has changed.
const TELL_EVERY: Duration = Duration::from_secs(5);

pub(super) fn run(path: &Path) -> Outcome {
    start_log("info");
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
    let start = Start::of(&settings);
    let running = Running::start(settings).await?;
    start.log(&running);
    let mut manager = ServiceManager::of_environment();
    manager.ready(&running.observer().summary());
    let view = running.listener().view();
    let _watchdog = manager.watch(move || view.is_serving());
    let mut tell = interval(TELL_EVERY);
    tell.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = tell.tick() => {
                manager.status(&running.observer().summary());
                continue;
            }
            _ = hangup.recv() => {}
            () = files.changed() => {}
        }
        manager.reloading();
        match reload(path, &running) {
            (Ok(()), named) => files.watch(named),
            // The broken configuration may want a file that is still to come; the one in force is still to be kept up with.
            (Err(()), named) => files.watch_also(named),
        }
        manager.ready(&running.observer().summary());
    }
    manager.stopping("draining");
    tracing::info!("relay draining");
    running.stop().await;
    tracing::info!("relay stopped");
    Ok(())
}

/// Reads everything anew and puts it in force, or says what is wrong and leaves everything as it was. Returns the files that
/// the configuration names now, in either case.
fn reload(path: &Path, running: &Running) -> (Result<(), ()>, Vec<PathBuf>) {
    let Reading { settings, files, .. } = config::read(path, &ProcessEnv);
    let applied = settings.map_err(|faults| faults.to_string()).and_then(|settings| {
        let applied = running.apply(settings);
        applied.map_err(|error| error.to_string())
    });
    running.observer().note_reload(applied.as_ref().map(|done| done.needs_restart.clone()).map_err(Clone::clone));
    let outcome = match applied {
        Ok(Applied { needs_restart, closed_connections }) => {
            let needs_restart = needs_restart.join(" ");
            tracing::info!(closed_connections, needs_restart, "configuration reloaded");
            Ok(())
        }
        Err(fault) => {
            tracing::error!(%fault, "the configuration was not reloaded; the one before stays in force");
            Err(())
        }
    };
    (outcome, files)
}

/// What the first line of the log says, beside addresses that are known only once they are bound.
struct Start {
    stores: String,
    disabled: String,
}

impl Start {
    fn of(settings: &Settings) -> Self {
        let stores = settings.fixed.stores.iter().map(|(signal, store)| format!("{signal}={}", store.address));
        Self { stores: stores.collect::<Vec<_>>().join(" "), disabled: settings.disabled().join(" ") }
    }

    fn log(&self, running: &Running) {
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            address = %running.listener().local_addr(),
            tcp = running.listener().view().has_tcp(),
            admin = running.admin().map(|admin| admin.local_addr().to_string()),
            stores = self.stores,
            disabled = self.disabled,
            "relay started"
        );
    }
}
