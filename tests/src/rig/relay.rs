//! The relay: in this process, where a test can reach into it, or as the real program, which can be killed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telemetry_certs::ServerTls;
use telemetry_relay::RelayService;
use telemetry_relay::listener::{Listener, ListenerConfig, ListenerHandle, Transport};

use super::{Cluster, RelayProgram, RigError};
use crate::wait;

/// How long a closed listener may hold its port.
const BIND_WITHIN: Duration = Duration::from_secs(5);

/// A relay that listens on loopback.
pub enum RigRelay {
    /// In this process.
    InProcess(InProcessRelay),
    /// The program `telemetry-relay`.
    Program(RelayProgram),
}

impl RigRelay {
    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        match self {
            Self::InProcess(relay) => relay.config.address,
            Self::Program(relay) => relay.address(),
        }
    }

    /// Ends it at once. The program is killed without a word to anyone; in this process its connections are closed.
    ///
    /// # Errors
    /// The process can't be ended.
    pub async fn kill(&self) -> Result<(), RigError> {
        match self {
            Self::InProcess(relay) => {
                relay.kill();
                Ok(())
            }
            Self::Program(relay) => Ok(relay.kill().await?),
        }
    }

    /// Ends it in good order: what runs finishes, what comes is refused.
    ///
    /// # Errors
    /// The process does not end in time.
    pub async fn stop(&self) -> Result<(), RigError> {
        match self {
            Self::InProcess(relay) => {
                relay.drain().await;
                Ok(())
            }
            Self::Program(relay) => Ok(relay.stop().await?),
        }
    }

    /// Starts it again on the same port with the same settings, and waits until it takes connections.
    ///
    /// # Errors
    /// It takes none in time.
    pub async fn restart(&self) -> Result<(), RigError> {
        match self {
            Self::InProcess(relay) => relay.restart().await,
            Self::Program(relay) => Ok(relay.restart().await?),
        }
    }
}

/// A relay in this process.
pub struct InProcessRelay {
    config: Box<ListenerConfig>,
    tls: Arc<rustls::ServerConfig>,
    build: Box<dyn Fn() -> RelayService + Send + Sync>,
    running: Mutex<Option<(ListenerHandle, RelayService)>>,
}

impl InProcessRelay {
    pub(super) async fn start(
        config: ListenerConfig,
        cluster: &Cluster,
        build: impl Fn() -> RelayService + Send + Sync + 'static,
    ) -> Result<Self, RigError> {
        let tls = telemetry_certs::server_config(ServerTls {
            credentials: &cluster.coordinator().credentials()?,
            client_roots: cluster.roots(),
            crls: &[],
            alpn: &[b"h3"],
        })?;
        let relay =
            Self { config: Box::new(config), tls: Arc::new(tls), build: Box::new(build), running: Mutex::new(None) };
        relay.restart().await?;
        Ok(relay)
    }

    /// The service that runs now; `None` between a kill and a restart.
    #[must_use]
    pub fn service(&self) -> Option<RelayService> {
        self.running.lock().as_ref().map(|(_, service)| service.clone())
    }

    /// How many requests its listener has under way, and how many connections.
    #[must_use]
    pub fn load(&self) -> (i64, i64) {
        let running = self.running.lock();
        let metrics = running.as_ref().map(|(handle, _)| handle.metrics());
        metrics.map_or((0, 0), |metrics| (metrics.running_requests(), metrics.active_connections()))
    }

    /// How many requests came over this transport since it was started last.
    #[must_use]
    pub fn requests_over(&self, transport: Transport) -> u64 {
        self.running.lock().as_ref().map_or(0, |(handle, _)| handle.metrics().requests_over(transport))
    }

    fn kill(&self) {
        drop(self.running.lock().take());
    }

    async fn drain(&self) {
        let running = self.running.lock().take();
        if let Some((handle, service)) = running {
            service.start_draining();
            handle.drain(Duration::from_secs(10)).await;
        }
    }

    async fn restart(&self) -> Result<(), RigError> {
        self.kill();
        let bind = async || {
            Listener::bind(ListenerConfig::clone(&self.config), Arc::clone(&self.tls))
                .map_err(|error| error.to_string())
        };
        let listener = wait::until("the relay's listener", BIND_WITHIN, bind).await?;
        let service = (self.build)();
        *self.running.lock() = Some((listener.serve(service.clone()), service));
        Ok(())
    }
}
