//! `runner-agent run` and `runner-agent check`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use telemetry_daemon::ServiceManager;
use telemetry_proto::SystemClock;
use telemetry_runner_client::{
    Client, ClientBuilder, CoordinatorPeer, DeadLetterConfig, DeadLetterFolder, DeadLetters, FileIssuer,
    LateTokenSource, Signal, TokenSource,
};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::config::{IdentityFiles, Settings};
use crate::exit::{Failure, Outcome};
use crate::files::FileWatch;
use crate::server::Service;
use crate::status::Observer;

/// How often the service manager is told how it is, if that has changed.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// How long the disk of rejected batches is waited for at the end.
const DEAD_LETTERS_TIMEOUT: Duration = Duration::from_secs(2);

/// Takes and delivers until it is told to stop.
pub(crate) async fn run(settings: Settings) -> Outcome {
    // The handlers stand before anyone can connect, so that no signal is missed.
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::other)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::other)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(Failure::other)?;
    let mut files = FileWatch::new(settings.identity.all());
    // Bound before the spool is opened: a second agent ends here.
    let tcp = TcpListener::bind(settings.listen.address)
        .await
        .map_err(|error| Failure::Other(format!("can't listen on TCP {}: {error}", settings.listen.address)))?;
    let unix = settings.listen.socket.as_deref().map(bind_unix).transpose()?;
    let dead_letters = settings.dead_letters.clone().map(open_dead_letters).transpose()?;
    let (client, tokens) = start(&settings, |mut builder| {
        if let Some(folder) = &dead_letters {
            builder = builder.dead_letters(Arc::clone(folder) as Arc<dyn DeadLetters>);
        }
        if settings.identity.renew {
            builder = builder.renew_identity(Arc::new(settings.identity.credentials.clone()));
        }
        match settings.spool.clone() {
            Some(spool) => builder.spool(spool),
            None => builder,
        }
    })?;
    let observer = Observer::new(tokens, dead_letters.clone());
    tell_start(&settings, &client, &tcp);
    let service = Service::new(client.clone(), settings.listen.answer, observer.clone());
    let mut tasks = tokio::task::JoinSet::new();
    let mut serving = vec![tasks.spawn(Arc::clone(&service).serve_tcp(tcp))];
    if let Some(unix) = unix {
        serving.push(tasks.spawn(service.serve_unix(unix)));
    }
    tasks.spawn(follow_policy(client.clone()));
    let mut manager = ServiceManager::of_environment();
    manager.ready(&summary(&client));
    let _watchdog = manager.watch(move || serving.iter().all(|task| !task.is_finished()));
    let mut tell = interval(TELL_EVERY);
    tell.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = tell.tick() => {
                manager.status(&summary(&client));
                continue;
            }
            _ = hangup.recv() => {}
            () = files.changed() => {}
        }
        manager.reloading();
        reload_identity(&settings.identity, &client);
        manager.ready(&summary(&client));
    }
    manager.stopping("draining");
    tracing::info!("agent draining");
    let report = client.close(Duration::from_secs(settings.listen.drain_seconds)).await;
    tasks.shutdown().await;
    if let Some(folder) = dead_letters {
        folder.close(DEAD_LETTERS_TIMEOUT).await;
    }
    if let Some(socket) = &settings.listen.socket {
        let _ = std::fs::remove_file(socket);
    }
    tracing::info!(
        delivered = report.delivered,
        dropped = report.dropped,
        lost = report.lost,
        spooled = report.spooled,
        "agent stopped"
    );
    Ok(())
}

/// Says whether settings and files are good, and whether the coordinator accepts this runner.
pub(crate) async fn check(settings: Settings, offline: bool) -> Outcome {
    println!("settings and certificates are good");
    if offline {
        return Ok(());
    }
    let (client, tokens) = start(&settings, |builder| builder)?;
    let checked = async {
        client.connected().await.map_err(|error| Failure::Other(format!("no connection: {error}")))?;
        if let Some(peer) = client.peer() {
            let round_trip = peer.round_trip.as_secs_f64() * 1e3;
            println!("connected to {} over {}, round trip {round_trip:.1} ms", peer.coordinator, peer.carrier);
        }
        tokens.token().await.map_err(|error| Failure::Other(format!("no token: {error}")))?;
        println!("there is a token");
        Ok(())
    };
    let outcome = checked.await;
    client.close(Duration::ZERO).await;
    outcome
}

/// A client by the settings, and where its tokens come from.
pub(crate) fn start(
    settings: &Settings,
    further: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Result<(Client, Arc<dyn TokenSource>), Failure> {
    let tokens = LateTokenSource::new();
    let mut builder = Client::builder()
        .identity(settings.credentials.clone(), settings.roots.clone())
        .tcp_fallback(settings.tcp.fallback())
        .token_source(Arc::new(tokens.clone()));
    for coordinator in &settings.coordinators {
        builder = builder.coordinator(coordinator);
    }
    let client = further(builder).build().map_err(Failure::other)?;
    match &settings.token_file {
        Some(file) => tokens.arm(Arc::new(FileIssuer::new(file))),
        None => tokens.arm(client.issuer()),
    }
    Ok((client, Arc::new(tokens)))
}

fn open_dead_letters(config: DeadLetterConfig) -> Result<Arc<DeadLetterFolder>, Failure> {
    DeadLetterFolder::open(config, Arc::new(SystemClock)).map_err(Failure::other)
}

fn tell_start(settings: &Settings, client: &Client, tcp: &TcpListener) {
    let address = tcp.local_addr().map(|address| address.to_string()).unwrap_or_default();
    let socket = settings.listen.socket.as_ref().map(|socket| socket.display().to_string());
    let recovered =
        client.recovery().map(|recovery| recovery.waiting.values().map(|waiting| waiting.items).sum::<u64>());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), address, socket, recovered, "agent started");
}

/// A socket file that nobody listens at any more is left from an earlier run.
fn bind_unix(path: &Path) -> Result<UnixListener, Failure> {
    use std::os::unix::fs::FileTypeExt as _;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
    UnixListener::bind(path).map_err(|error| Failure::Other(format!("can't listen at {}: {error}", path.display())))
}

/// Compresses while the coordinator takes that. It is asked for its policy from now on.
async fn follow_policy(client: Client) {
    let mut policies = client.policy().watch();
    loop {
        let policy = policies.borrow_and_update().clone();
        client.set_gzip(policy.is_some_and(|policy| policy.encodings.iter().any(|encoding| encoding == "gzip")));
        if policies.changed().await.is_err() {
            return;
        }
    }
}

/// Reads the certificates again and shows them from now on, or says what is wrong with them and keeps those before.
fn reload_identity(files: &IdentityFiles, client: &Client) {
    let loaded = files.load().map_err(|error| error.to_string());
    let set = loaded
        .and_then(|(credentials, roots)| client.set_identity(&credentials, &roots).map_err(|error| error.to_string()));
    match set {
        Ok(()) => tracing::info!("certificates reloaded"),
        Err(fault) => tracing::error!(%fault, "the certificates were not reloaded; those before stay in force"),
    }
}

/// How it is, in one line for the service manager.
fn summary(client: &Client) -> String {
    let connected = |peer: CoordinatorPeer| format!("connected to {} over {}", peer.coordinator, peer.carrier);
    let coordinator = client.peer().map_or_else(|| "no connection".to_owned(), connected);
    let waiting: u64 = Signal::ALL.into_iter().map(|signal| client.tally(signal).waiting).sum();
    if waiting == 0 { coordinator } else { format!("{coordinator}; telemetry waits") }
}
