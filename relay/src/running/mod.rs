//! A relay that runs from a configuration, and takes another one while it runs.

mod examine;
mod watch;

use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::UnixTime;
use rustls::server::danger::ClientCertVerifier;
use telemetry_proto::{Clock, SystemClock};

use crate::admin::{AdminError, AdminHandle, AdminServer, Observer};
use crate::config::{FixedSettings, IssuerSettings, Settings};
use crate::gate::{Author, JwtVerifier, KeySet, KeySetError, RemovedRunners, Writers};
use crate::issuer::{Issuer, IssuerConfigError, KeyRing, RotationError};
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
    /// The signing key can't be changed to the new one.
    #[error(transparent)]
    Rotation(#[from] RotationError),
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
    issuer: Option<Arc<Issuer>>,
    observer: Arc<Observer>,
    admin: Option<AdminHandle>,
    fixed: FixedSettings,
}

impl Running {
    /// Starts a relay.
    ///
    /// # Errors
    /// [`StartError`]
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        let Settings { tls, keys, expected, issuer, identity, removed, tenants, writers, operational, fixed, files: _ } =
            settings;
        let writers = Arc::new(Writers::new(writers));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let removed = Arc::new(RemovedRunners::new(removed));
        let issuer = issuer.map(|issuer| start_issuer(issuer, &clock, &removed)).transpose()?;
        let keys = match &issuer {
            Some(issuer) => keys.merge(&issuer.public_keys())?,
            None => keys,
        };
        let verifier = Arc::new(JwtVerifier::new(keys, expected, Arc::clone(&clock)));
        let mut builder = RelayBuilder::new(Arc::clone(&verifier) as _)
            .registry(Arc::clone(&removed) as _)
            .writers(Arc::clone(&writers))
            .tenants(tenants)
            .budget_limits(fixed.budget)
            .body_limits(fixed.body)
            .traces(fixed.traces.clone())
            .operational(operational.points, operational.queues)
            .allow_unknown_length(fixed.allow_unknown_length);
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
        let observer = Observer::new(service.clone(), listener.view(), tls.certificate, clock);
        let admin = match fixed.admin {
            Some(config) => Some(AdminServer::bind(config).await?.serve(Arc::clone(&observer))),
            None => None,
        };
        Ok(Self { service, listener, verifier, removed, writers, issuer, observer, admin, fixed })
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

    /// Puts other settings in force: certificates, roots, revocation lists, keys, the authority that renews certificates,
    /// removed runners, writers, tenants. Connections that
    /// would not get in any more are closed. Requests that run go on.
    ///
    /// # Errors
    /// [`ApplyError`]; whatever could be checked beforehand was, so this is rare.
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
            fixed,
            operational: _,
            files: _,
        } = settings;
        if let Some(next) = &issuer {
            // Whether the keys go together is found out before anything changes.
            keys.merge(&next.former)?.merge(&KeySet::of(next.signing.kid(), next.signing.public().clone())?)?;
        }
        let mut needs_restart = self.fixed.differences(&fixed);
        if issuer.is_some() != self.issuer.is_some() {
            needs_restart.push("[issuer]");
        }
        self.listener.reload(tls.server)?;
        self.observer.set_certificate(tls.certificate);
        let keys = match (&self.issuer, issuer) {
            // Verifiers accept the new key before anything is signed by it.
            (Some(running), Some(next)) => {
                let all = keys.merge(&next.former)?;
                rotate(running, next, |public| {
                    if let Ok(keys) = all.merge(public) {
                        self.verifier.publish(keys, expected.clone());
                    }
                })?;
                keys.merge(&running.public_keys())?
            }
            (Some(running), None) => keys.merge(&running.public_keys())?,
            (None, _) => keys,
        };
        self.verifier.publish(keys, expected);
        self.removed.publish(removed);
        self.service.certificates().publish(identity);
        // A writer that has no tenant yet, or no more, is refused.
        self.writers.publish(writers);
        let _ = self.service.tenancy().publish(&tenants);
        let closed_connections = self.close_unwelcome(tls.clients.as_ref());
        Ok(Applied { needs_restart, closed_connections })
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
        let drain = self.fixed.drain;
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

fn start_issuer(
    settings: IssuerSettings,
    clock: &Arc<dyn Clock>,
    removed: &Arc<RemovedRunners>,
) -> Result<Arc<Issuer>, StartError> {
    let ring = KeyRing::new(settings.signing, &settings.former)?;
    Ok(Arc::new(Issuer::new(settings.config, ring, Arc::clone(clock), Arc::clone(removed) as _)?))
}

/// Signs with another key if the settings name another one, and forgets the keys that they no longer name.
fn rotate(issuer: &Issuer, next: IssuerSettings, publish: impl FnOnce(&KeySet)) -> Result<(), RotationError> {
    let IssuerSettings { signing, former, config: _ } = next;
    let kid = signing.kid().to_owned();
    if issuer.keys().signing().kid() != kid {
        if issuer.public_keys().get(&kid).is_some() {
            // Back to a key of before. Verifiers know it all the while.
            issuer.retire(&kid)?;
        }
        issuer.rotate(signing, publish)?;
    }
    let public = issuer.public_keys();
    for (known, _) in public.iter().filter(|(known, _)| *known != kid && former.get(known).is_none()) {
        issuer.retire(known)?;
    }
    Ok(())
}
