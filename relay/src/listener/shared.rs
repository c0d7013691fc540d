//! What the connections of a listener share.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::CertificateDer;
use telemetry_certs::CertificateRefusal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinError;

use super::handshakes::Handshakes;
use super::metrics::{ListenerMetrics, Meter};
use super::peers::Peers;
use super::tls::Tls;
use super::{ListenerConfig, Transport};
use crate::gate::{Peer, Writers};

/// What the connections of one transport share, with each other and with those of the other transport.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) config: Arc<ListenerConfig>,
    /// What the next handshake is done with.
    pub(super) tls: Arc<ArcSwap<Tls>>,
    pub(super) metrics: Meter,
    pub(super) peers: Peers,
    /// Who else than runners may connect.
    writers: Arc<Writers>,
    /// Those of one transport.
    pub(super) handshakes: Handshakes,
    /// Places for connections, from before their handshake to their end.
    places: Arc<Semaphore>,
    /// True once the listener drains.
    pub(super) draining: watch::Receiver<bool>,
}

impl Shared {
    /// For QUIC.
    pub(super) fn new(
        config: Arc<ListenerConfig>,
        tls: Arc<ArcSwap<Tls>>,
        metrics: &ListenerMetrics,
        writers: Arc<Writers>,
        draining: watch::Receiver<bool>,
    ) -> Self {
        let metrics = metrics.meter(Transport::Quic);
        Self {
            handshakes: handshakes(&config, &metrics),
            places: Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS))),
            metrics,
            peers: Peers::default(),
            writers,
            config,
            tls,
            draining,
        }
    }

    /// The same for TCP, with handshakes and counters of its own: a silent TCP socket costs a stranger less than anything, and
    /// must take no place from those who come over QUIC.
    pub(super) fn over_tcp(&self, metrics: &ListenerMetrics) -> Self {
        let metrics = metrics.meter(Transport::Tcp);
        Self { handshakes: handshakes(&self.config, &metrics), metrics, ..self.clone() }
    }

    /// Who showed this chain: the runner that its leaf names, or the writer that is known by it.
    pub(super) fn identify(&self, chain: &[CertificateDer<'static>], remote: SocketAddr) -> Option<Peer> {
        chain.first().and_then(|leaf| self.writers.peer_of(leaf, remote).ok())
    }

    /// A place for one more connection, if there is one.
    pub(super) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }
}

fn handshakes(config: &ListenerConfig, metrics: &Meter) -> Handshakes {
    Handshakes::new(config.max_handshakes, config.max_handshakes_per_network, metrics.handshakes())
}

/// Why a handshake failed, as a label, by the alert that it failed with as a QUIC code (RFC 9001 section 4.8).
pub(super) const fn refusal_label(quic_code: u64) -> &'static str {
    match CertificateRefusal::from_quic_code(quic_code) {
        Some(CertificateRefusal::NoCertificate) => "no-certificate",
        Some(CertificateRefusal::UnknownCa) => "unknown-ca",
        Some(CertificateRefusal::Expired) => "certificate-expired",
        Some(CertificateRefusal::Revoked) => "certificate-revoked",
        Some(CertificateRefusal::WrongUsage) => "certificate-wrong-usage",
        Some(CertificateRefusal::Bad) => "certificate-bad",
        None => "handshake",
    }
}

/// Completes when the listener drains, or when its handle is gone.
pub(super) async fn drain_begins(draining: &mut watch::Receiver<bool>) {
    let _ = draining.wait_for(|drain| *drain).await;
}

/// The runtime catches panics; nobody would hear of them.
pub(super) fn notice_panic(error: &JoinError) {
    if error.is_panic() {
        tracing::error!("a task of the listener panicked; this is a bug");
    }
}
