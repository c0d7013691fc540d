//! A relay that runs from a configuration, and takes another one while it runs.

mod examine;
mod watch;

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rustls::pki_types::UnixTime;
use rustls::server::danger::ClientCertVerifier;
use telemetry_proto::{Clock, SystemClock};

use crate::admin::{AdminError, AdminHandle, AdminServer, Observer};
use crate::config::{ConfigFaults, FixedSettings, IssuerSettings, Life, Settings, check_lives};
use crate::gate::{Author, JwtVerifier, KeySet, KeySetError, RemovedRunners, Writers};
use crate::issuer::{Issuer, IssuerConfigError, KeyRing};
use crate::listener::{Connected, ListenError, Listener, ListenerHandle};
use crate::{RelayBuilder, RelayService};

pub use examine::{Finding, Severity, examine};
pub use watch::FileWatch;

/// A relay that can't be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The runners' address can't be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The operators' address can't be had.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The keys don't go together.
    #[error(transparent)]
    Keys(#[from] KeySetError),
    /// The issuer's settings can't work.
    #[error(transparent)]
    Issuer(#[from] IssuerConfigError),
    /// A certificate without which no runner gets in has ended, or is not valid yet.
    #[error(transparent)]
    Lives(#[from] ConfigFaults),
}

/// Settings that can't be put in force. What is in force stays.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The TLS configuration is of no use for QUIC.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The keys don't go together.
    #[error(transparent)]
    Keys(#[from] KeySetError),
    /// The issuer's settings can't work.
    #[error(transparent)]
    Issuer(#[from] IssuerConfigError),
    /// A new certificate without which no runner gets in has ended, or is not valid yet.
    #[error(transparent)]
    Lives(#[from] ConfigFaults),
}

/// What became of other settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Sections whose changes take effect at the next start only.
    pub needs_restart: Vec<&'static str>,
    /// Connections that were closed: of removed runners, and of those whose certificate is no longer accepted.
    pub closed_connections: usize,
}

/// A relay that runs.
pub struct Running {
    service: RelayService,
    listener: ListenerHandle,
    verifier: Arc<JwtVerifier>,
    removed: Arc<RemovedRunners>,
    writers: Arc<Writers>,
    clock: Arc<dyn Clock>,
    observer: Arc<Observer>,
    admin: Option<AdminHandle>,
    fixed: FixedSettings,
    /// The lives of the certificates in force.
    lives: Mutex<Vec<Life>>,
}

impl Running {
    /// Starts a relay.
    ///
    /// # Errors
    /// [`StartError`]
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        let Settings {
            tls,
            keys,
            expected,
            issuer,
            identity,
            removed,
            tenants,
            writers,
            rules,
            budget,
            operational,
            fixed,
            files: _,
        } = settings;
        check_lives(&tls.lives, SystemTime::now())?;
        let writers = Arc::new(Writers::new(writers));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let removed = Arc::new(RemovedRunners::new(removed));
        let issuer = match issuer {
            Some(IssuerSettings { config, signing, former }) => {
                let ring = KeyRing::new(signing, &former)?;
                Some(Arc::new(Issuer::new(config, ring, Arc::clone(&clock), Arc::clone(&removed) as _)?))
            }
            None => None,
        };
        let keys = with_keys_of(issuer.as_deref(), keys)?;
        let verifier = Arc::new(JwtVerifier::new(keys, expected, Arc::clone(&clock)));
        let mut builder = RelayBuilder::new(Arc::clone(&verifier) as _)
            .registry(Arc::clone(&removed) as _)
            .writers(Arc::clone(&writers))
            .tenants(tenants)
            .budget_limits(budget)
            .rules(rules)
            .operational(operational.points, operational.queues);
        if let Some(issuer) = &issuer {
            builder = builder.issuer(Arc::clone(issuer));
        }
        if let Some(folder) = &fixed.state_folder {
            builder = builder.state_folder(folder);
        }
        for (signal, store) in &fixed.stores {
            builder = builder.store(*signal, store.clone());
        }
        let service = builder.build();
        service.certificates().publish(identity);
        operational.attach_to(&service);
        let listener = Listener::bind(fixed.listener.clone(), tls.server)?
            .with_writers(Arc::clone(&writers))
            .serve(service.clone());
        let observer = Observer::new(service.clone(), listener.view(), tls.certificate, Arc::clone(&clock));
        let admin = match fixed.admin {
            Some(config) => Some(AdminServer::bind(config).await?.serve(Arc::clone(&observer))),
            None => None,
        };
        let lives = Mutex::new(tls.lives);
        Ok(Self { service, listener, verifier, removed, writers, clock, observer, admin, fixed, lives })
    }

    /// The service.
    #[must_use]
    pub const fn service(&self) -> &RelayService {
        &self.service
    }

    /// Where runners connect.
    #[must_use]
    pub const fn listener(&self) -> &ListenerHandle {
        &self.listener
    }

    /// Where operators look, if anywhere.
    #[must_use]
    pub fn admin(&self) -> Option<&AdminHandle> {
        self.admin.as_ref()
    }

    /// What operators see.
    #[must_use]
    pub const fn observer(&self) -> &Arc<Observer> {
        &self.observer
    }

    /// Puts other settings in force: certificates, roots, revocation lists, keys, the issuer, the authority that renews
    /// certificates, removed runners, writers, tenants, limits, what is kept of spans. Connections that would not get in any
    /// more are closed. Requests that run go on.
    ///
    /// # Errors
    /// [`ApplyError`]; nothing has changed then. Whatever could be checked beforehand was, so this is rare.
    pub fn apply(&self, settings: Settings) -> Result<Applied, ApplyError> {
        let Settings {
            tls,
            keys,
            expected,
            issuer,
            identity,
            removed,
            tenants,
            writers,
            rules,
            budget,
            fixed,
            // Compared as a part of `fixed`.
            operational: _,
            files: _,
        } = settings;
        // What may fail comes first; then all of it is published, or nothing was.
        {
            // What is in force and has ended since keeps no other change from being made.
            let in_force = self.lives.lock();
            check_lives(tls.lives.iter().filter(|life| !in_force.contains(life)), SystemTime::now())?;
        }
        let needs_restart = self.fixed.differences(&fixed);
        let server = self.listener.prepare(tls.server)?;
        let issuer = issuer.map(|issuer| self.next_issuer(issuer)).transpose()?;
        let keys = with_keys_of(issuer.as_deref(), keys)?;

        self.listener.publish(server);
        self.observer.set_certificate(tls.certificate);
        *self.lives.lock() = tls.lives;
        // What is minted must be accepted already.
        self.verifier.publish(keys, expected);
        self.service.publish_issuer(issuer);
        self.service.publish_rules(rules, budget);
        self.removed.publish(removed);
        self.service.certificates().publish(identity);
        // A writer that has no tenant yet, or no more, is refused.
        self.writers.publish(writers);
        let connected = self.listener.connected();
        let _ = self.service.tenancy().publish(&tenants, connected.iter().map(|connected| &connected.peer));
        let closed_connections = self.close_unwelcome(tls.clients.as_ref());
        Ok(Applied { needs_restart, closed_connections })
    }

    /// Keys that the settings do not name any more are forgotten with the issuer that had them.
    fn next_issuer(&self, settings: IssuerSettings) -> Result<Arc<Issuer>, ApplyError> {
        let IssuerSettings { mut config, signing, former } = settings;
        // Stores need a restart, and so does what is granted for them.
        config.signals = self.service.signals();
        let ring = KeyRing::new(signing, &former)?;
        let issuer = match self.service.issuer() {
            Some(before) => before.succeeded_by(config, ring)?,
            None => Issuer::new(config, ring, Arc::clone(&self.clock), Arc::clone(&self.removed) as _)?,
        };
        Ok(Arc::new(issuer))
    }

    /// A connection outlives the handshake's answer: the runner may have been removed, or its certificate revoked.
    fn close_unwelcome(&self, clients: &dyn ClientCertVerifier) -> usize {
        let removed = self.removed.snapshot();
        let is_removed = |connected: &Connected| connected.peer.runner().is_some_and(|runner| removed.contains(runner));
        let closed = self.listener.close_peers(is_removed, "this runner was removed");
        let is_gone = |connected: &Connected| match connected.peer.author() {
            Author::Runner(_) => false,
            Author::Writer(_) => !self.writers.is_current(&connected.peer),
        };
        let closed = closed + self.listener.close_peers(is_gone, "this writer is none any more");
        let now =
            UnixTime::since_unix_epoch(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        let is_refused = |connected: &Connected| match connected.chain.split_first() {
            Some((leaf, intermediates)) => clients.verify_client_cert(leaf, intermediates, now).is_err(),
            None => true,
        };
        closed + self.listener.close_peers(is_refused, "this certificate is no longer accepted")
    }

    /// Stops: readiness goes first, then no new requests, running ones finish within the grace period. What is remembered of
    /// batches is written at the end.
    pub async fn stop(self) {
        let FixedSettings { drain_delay, drain, .. } = self.fixed;
        self.service.announce_draining();
        tokio::time::sleep(drain_delay).await;
        self.service.start_draining();
        self.listener.drain(drain).await;
        // Batches on their way to a store finish even if their senders are gone.
        if tokio::time::timeout(drain, self.service.forwarded()).await.is_err() {
            tracing::warn!("some batches were still at a store when the grace period ended");
        }
        match self.service.write_batch_ids().await {
            Ok(Some(batch_ids)) => tracing::info!(batch_ids, "batch IDs are written"),
            Ok(None) => {}
            Err(error) => {
                let remedy = error.remedy();
                tracing::warn!(%error, remedy, "batch IDs were not written, so what comes again may be stored twice");
            }
        }
    }
}

/// The keys that tokens are verified with: these, and the issuer's own.
fn with_keys_of(issuer: Option<&Issuer>, keys: KeySet) -> Result<KeySet, KeySetError> {
    match issuer {
        Some(issuer) => keys.merge(&issuer.public_keys()),
        None => Ok(keys),
    }
}
