//! A coordinator that embeds the relay: its own RPC and the telemetry routes share one port, one TLS and one listener.
//!
//! ```sh
//! cargo run --example coordinator -- FOLDER 127.0.0.1:8443 127.0.0.1:8428 127.0.0.1:9428
//! ```
//!
//! FOLDER holds `ca.pem`, `coordinator.pem` and `coordinator.key`. The first address is where it listens, the others are those
//! of VictoriaMetrics and VictoriaLogs on this machine. It prints where it listens, and what becomes of its runners. SIGTERM
//! ends it, in good order.
//!
//! Its RPC, `POST /rpc/...`:
//! - `/rpc/hello` answers with the name of the runner that asks, as its certificate has it;
//! - `/rpc/leave` takes that runner off the registry: its connections end, this one perhaps before
//!   the answer has arrived, and its tokens are worth nothing from then on.

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::collections::HashSet;
use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use telemetry_certs::{Credentials, Roots, ServerTls};
use telemetry_proto::claims::Expectations;
use telemetry_proto::{RunnerId, Signal, SystemClock};
use telemetry_relay::forward::BackendSettings;
use telemetry_relay::gate::{JwtVerifier, KeySet, Peer, RunnerRegistry, SignatureAlgorithm};
use telemetry_relay::issuer::{Issuer, IssuerConfig, KeyRing, SigningKey};
use telemetry_relay::listener::{Listener, ListenerConfig, RequestBody};
use telemetry_relay::operational::{Chunk, OperationalSink, SinkFuture};
use telemetry_relay::{RelayBuilder, RelayService, ResponseBody, end_removed};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tower::{ServiceExt as _, service_fn};

/// Goes into tokens as `iss`.
const ISSUER: &str = "https://coordinator.example";
/// How long requests that run may take when it stops.
const GRACE: Duration = Duration::from_secs(10);

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: coordinator FOLDER ADDRESS METRICS LOGS");
    let (folder, address, metrics, logs) = (PathBuf::from(next()?), next()?, next()?, next()?);
    serve(&folder, address.parse()?, metrics.parse()?, logs.parse()?).await
}

async fn serve(folder: &Path, address: SocketAddr, metrics: SocketAddr, logs: SocketAddr) -> Result<(), Failure> {
    let ended = told_to_end()?;
    let clock = Arc::new(SystemClock);
    let registry = Arc::new(Registry::default());

    // Who mints tokens, and who checks them, in one process: no key is ever fetched. A real coordinator keeps its key in a file
    // (`SigningKey::from_pem`), so that tokens outlive a restart.
    let signing = SigningKey::generate(SignatureAlgorithm::EdDsa)?;
    let keys = KeyRing::new(signing, &KeySet::default())?;
    let issuer = Issuer::new(IssuerConfig::new(ISSUER), keys, Arc::clone(&clock) as _, Arc::clone(&registry) as _)?;
    let issuer = Arc::new(issuer);
    let verifier = JwtVerifier::new(issuer.public_keys(), Expectations::new(ISSUER), clock);

    // The relay is a service like any other.
    let relay = RelayBuilder::new(Arc::new(verifier))
        .store(Signal::Metrics, BackendSettings::new(metrics.into()))
        .store(Signal::Logs, BackendSettings::new(logs.into()))
        .registry(Arc::clone(&registry) as _)
        .issuer(issuer)
        .state_folder(folder)
        .build();
    // Sinks come and go at any time; without any, what runners say of themselves goes to the metrics store.
    relay.operational_sinks().attach("coordinator", Arc::new(Watcher));

    // One listener for everything: QUIC, and a certificate of this cluster from every runner.
    let tls = telemetry_certs::server_config(ServerTls {
        credentials: &Credentials::from_files(folder.join("coordinator.pem"), folder.join("coordinator.key"))?,
        client_roots: &Roots::from_file(folder.join("ca.pem"))?,
        crls: &[],
        alpn: &[b"h3"],
    })?;
    let listener = Listener::bind(ListenerConfig::new(address), Arc::new(tls))?;
    println!("listens on {}", listener.local_addr());
    let router = Router { relay: relay.clone(), registry: Arc::clone(&registry) };
    let listener = listener.serve(service_fn(move |request| router.clone().route(request)));

    // Serves until it is told to end. Whoever is removed meanwhile loses its connections at once.
    tokio::select! {
        () = ended => {}
        // Never completes.
        () = end_removed(&*registry, &listener) => {}
    }

    // First nothing new, then an end for what runs, then what is on its way to a store or a sink.
    relay.start_draining();
    listener.drain(GRACE).await;
    relay.forwarded().await;
    // What runners bring again to the next life of this coordinator is not stored twice.
    if let Err(error) = relay.write_batch_ids().await {
        println!("batch IDs were not written: {error}");
    }
    println!("stopped after {} bytes for the stores", relay.metrics().totals().forwarded_bytes);
    Ok(())
}

/// Ctrl-C, or what a supervisor sends: whatever comes after this call is not missed.
fn told_to_end() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Shares requests out between the coordinator's RPC and the relay. Both see the peer that the handshake proved.
#[derive(Clone)]
struct Router {
    relay: RelayService,
    registry: Arc<Registry>,
}

impl Router {
    async fn route(self, request: Request<RequestBody>) -> Result<Response<ResponseBody>, Infallible> {
        if !request.uri().path().starts_with("/rpc/") {
            return self.relay.oneshot(request).await;
        }
        let (status, text) = self.rpc(&request);
        let mut answer = Response::new(ResponseBody::from(text));
        *answer.status_mut() = status;
        Ok(answer)
    }

    fn rpc(&self, request: &Request<RequestBody>) -> (StatusCode, String) {
        let Some(peer) = request.extensions().get::<Peer>() else {
            return (StatusCode::INTERNAL_SERVER_ERROR, String::new());
        };
        // The relay asks this for its own routes. A removed runner may still be here, until its connection has ended.
        // Only a relay with writers of its own lets others in.
        let Some(runner) = peer.runner().filter(|runner| self.registry.is_registered(runner)) else {
            return (StatusCode::FORBIDDEN, "removed".to_owned());
        };
        match request.uri().path() {
            "/rpc/hello" => (StatusCode::OK, format!("hello {runner}")),
            "/rpc/leave" => {
                self.registry.remove(runner.clone());
                (StatusCode::OK, "goodbye".to_owned())
            }
            _ => (StatusCode::NOT_FOUND, String::new()),
        }
    }
}

/// Who belongs to the cluster. A real coordinator asks its own state, which must answer at once: it is asked at every request.
struct Registry {
    removed: watch::Sender<HashSet<RunnerId>>,
    /// Changes after `removed` has.
    removals: watch::Sender<()>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { removed: watch::Sender::default(), removals: watch::Sender::new(()) }
    }
}

impl Registry {
    fn remove(&self, runner: RunnerId) {
        println!("{runner} is removed");
        self.removed.send_modify(|removed| {
            removed.insert(runner);
        });
        self.removals.send_replace(());
    }
}

impl RunnerRegistry for Registry {
    fn is_registered(&self, runner: &RunnerId) -> bool {
        !self.removed.borrow().contains(runner)
    }

    fn removals(&self) -> Option<watch::Receiver<()>> {
        Some(self.removals.subscribe())
    }
}

/// Sees how its runners do, without asking a store.
struct Watcher;

impl OperationalSink for Watcher {
    fn take(&self, chunk: Arc<Chunk>) -> SinkFuture<'_> {
        Box::pin(async move {
            for point in chunk.points() {
                println!("{} says {} = {}", chunk.runner(), point.name, point.value);
            }
            Ok(())
        })
    }
}
