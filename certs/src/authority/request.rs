//! What an authority is asked for, and what it hands out.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use telemetry_proto::{RunnerId, WriterName};

use crate::credentials::Credentials;
use crate::crl::Revocation;
use crate::load::LoadError;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long an authority lives: ten years. Replacing it means touching every machine.
pub const AUTHORITY_LIFETIME: Duration = Duration::from_secs(3650 * DAY.as_secs());
/// How long a coordinator's certificate lives unless asked otherwise: 90 days.
pub const COORDINATOR_LIFETIME: Duration = Duration::from_secs(90 * DAY.as_secs());
/// How long a runner's certificate lives unless asked otherwise: 30 days.
pub const RUNNER_LIFETIME: Duration = Duration::from_secs(30 * DAY.as_secs());
/// When the next revocation list is announced for unless asked otherwise: in 30 days.
pub const CRL_LIFETIME: Duration = Duration::from_secs(30 * DAY.as_secs());
/// How far before its issue a certificate begins to be valid, for peers whose clocks are behind: 5 minutes.
pub const BACKDATE: Duration = Duration::from_secs(5 * 60);

/// The kind of a key pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KeyKind {
    /// Ed25519 (RFC 8410): small and fast.
    Ed25519,
    /// ECDSA on P-256 with SHA-256: understood by everything.
    #[default]
    P256,
}

/// A certificate for a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoordinatorRequest {
    /// The DNS names that runners dial. No wildcards.
    pub dns_names: Vec<String>,
    /// The addresses that runners dial.
    pub ip_addresses: Vec<IpAddr>,
    /// How long it is valid, at most as long as the authority.
    pub lifetime: Duration,
    /// The kind of its key.
    pub key_kind: KeyKind,
}

impl CoordinatorRequest {
    /// For these DNS names, with the defaults.
    #[must_use]
    pub fn new<S: Into<String>>(dns_names: impl IntoIterator<Item = S>) -> Self {
        Self {
            dns_names: dns_names.into_iter().map(Into::into).collect(),
            ip_addresses: Vec::new(),
            lifetime: COORDINATOR_LIFETIME,
            key_kind: KeyKind::default(),
        }
    }
}

/// A certificate for a runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerRequest {
    /// The runner.
    pub runner: RunnerId,
    /// How long it is valid, at most as long as the authority.
    pub lifetime: Duration,
    /// The kind of its key.
    pub key_kind: KeyKind,
    /// The subject's organisation (O): 1 to 64 characters, no control characters.
    pub organization: Option<String>,
}

impl RunnerRequest {
    /// For this runner, with the defaults.
    #[must_use]
    pub fn new(runner: RunnerId) -> Self {
        Self { runner, lifetime: RUNNER_LIFETIME, key_kind: KeyKind::default(), organization: None }
    }
}

/// A certificate for a writer that is no runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterRequest {
    /// The writer.
    pub writer: WriterName,
    /// How long it is valid, at most as long as the authority.
    pub lifetime: Duration,
    /// The kind of its key.
    pub key_kind: KeyKind,
}

impl WriterRequest {
    /// For this writer, with the defaults: it lives as long as a runner's.
    #[must_use]
    pub fn new(writer: WriterName) -> Self {
        Self { writer, lifetime: RUNNER_LIFETIME, key_kind: KeyKind::default() }
    }
}

/// A revocation list. It replaces the one before, so it must name all that stays revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrlRequest {
    /// All that is revoked.
    pub revoked: Vec<Revocation>,
    /// The list's number; one more than the last.
    pub number: u64,
    /// When the next list is announced for, from now.
    pub lifetime: Duration,
}

/// A certificate for a key that stays where it is.
#[derive(Debug, Clone)]
pub struct Certified {
    /// The chain as PEM, leaf first. The root is not in it.
    pub chain_pem: String,
    /// The leaf.
    pub leaf: CertificateDer<'static>,
    /// When it ends.
    pub not_after: SystemTime,
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Issued {
    /// The chain, leaf first. The root is not in it.
    pub chain_pem: String,
    /// The private key (PKCS #8). Secret.
    pub key_pem: String,
}

impl Issued {
    /// Both as an endpoint uses them.
    ///
    /// # Errors
    /// [`LoadError`], if they were tampered with.
    pub fn credentials(&self) -> Result<Credentials, LoadError> {
        Credentials::from_pem(self.chain_pem.as_bytes(), self.key_pem.as_bytes())
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("chain_pem", &self.chain_pem).finish_non_exhaustive()
    }
}
