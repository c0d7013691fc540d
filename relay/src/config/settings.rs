//! A configuration that was read and checked whole: every file opened, every key parsed.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::server::danger::ClientCertVerifier;
use telemetry_proto::claims::Expectations;
use telemetry_proto::{RunnerId, Signal};

use super::{Life, Operational, OperationalSection};
use crate::admin::{AdminConfig, CertificateStatus};
use crate::admission::BudgetLimits;
use crate::forward::{Attribution, BackendSettings};
use crate::gate::{KeySet, WriterSet};
use crate::issuer::{IssuerConfig, SigningKey};
use crate::listener::ListenerConfig;
use crate::renewal::Issuing;
use crate::rules::WriteRules;
use crate::tenancy::TenantSet;

/// Everything that a relay runs from. Nothing in it can fail any more but for what the system refuses (a port in use).
pub struct Settings {
    /// Which certificates are shown and accepted.
    pub tls: TlsSettings,
    /// The keys that tokens are verified with, beside the issuer's own.
    pub keys: KeySet,
    /// What tokens are checked against.
    pub expected: Expectations,
    /// How tokens are minted, if they are minted here.
    pub issuer: Option<IssuerSettings>,
    /// With what runners' certificates are renewed, if they are renewed here.
    pub identity: Option<Issuing>,
    /// Runners that are no longer part of the cluster.
    pub removed: HashSet<RunnerId>,
    /// The tenants and their limits.
    pub tenants: TenantSet,
    /// The writers that are no runners.
    pub writers: WriterSet,
    /// What holds for every write.
    pub rules: WriteRules,
    /// The memory for bodies.
    pub budget: BudgetLimits,
    /// Where the runners' own series go.
    pub operational: Operational,
    /// What only a restart changes.
    pub fixed: FixedSettings,
    /// The files that all this came from.
    pub files: Vec<PathBuf>,
}

impl Settings {
    /// What of a relay is off by these settings, for the operator to see at the start.
    #[must_use]
    pub fn disabled(&self) -> Vec<&'static str> {
        let fixed = &self.fixed;
        let stored = |signal| fixed.stores.iter().any(|(stored, _)| *stored == signal);
        let parts = [
            ("metrics", stored(Signal::Metrics)),
            ("logs", stored(Signal::Logs)),
            ("traces", stored(Signal::Traces)),
            ("minting", self.issuer.is_some()),
            ("admin", fixed.admin.is_some()),
            ("reset-key", fixed.listener.reset_key.is_some()),
            ("state", fixed.state_folder.is_some()),
            ("attribution", fixed.stores.iter().all(|(_, store)| store.attribution == Attribution::Pinned)),
        ];
        parts.into_iter().filter(|(_, on)| !on).map(|(part, _)| part).collect()
    }
}

/// What of a configuration can be tried out: as much of it as could be read.
#[derive(Debug, Clone, Default)]
pub struct Outside {
    /// The stores, to ask them.
    pub stores: Vec<(Signal, BackendSettings)>,
    /// The lives of certificates without which no runner gets in.
    pub lives: Vec<Life>,
    /// When each revocation list was to be replaced by another, and where it is named.
    pub lists_due: Vec<(String, SystemTime)>,
    /// Where to listen, to bind it.
    pub listener: Option<ListenerConfig>,
    /// Where operators look, likewise.
    pub admin: Option<AdminConfig>,
    /// Where what the relay remembers outlives a stop, to write there.
    pub state_folder: Option<PathBuf>,
}

/// Which certificates are shown and accepted.
pub struct TlsSettings {
    /// The coordinator's side of TLS.
    pub server: Arc<rustls::ServerConfig>,
    /// What it verifies runners with; to ask again about connections that are open.
    pub clients: Arc<dyn ClientCertVerifier>,
    /// The certificate that the coordinator shows.
    pub certificate: CertificateStatus,
    /// The lives of certificates without which no runner gets in.
    pub lives: Vec<Life>,
}

/// How tokens are minted.
pub struct IssuerSettings {
    /// For whom, and how long they live.
    pub config: IssuerConfig,
    /// The key that signs.
    pub signing: SigningKey,
    /// Keys of before, whose tokens are accepted until they end.
    pub former: KeySet,
}

/// What only a restart changes.
#[derive(Debug, Clone, PartialEq)]
pub struct FixedSettings {
    /// Where and how to listen.
    pub listener: ListenerConfig,
    /// Where operators look, if anywhere.
    pub admin: Option<AdminConfig>,
    /// How long the relay serves on after it is told to stop, without being ready.
    pub drain_delay: Duration,
    /// How long running requests may take after that.
    pub drain: Duration,
    /// The stores of the signals that are taken.
    pub stores: Vec<(Signal, BackendSettings)>,
    /// What becomes of the runners' own series.
    pub operational: OperationalSection,
    /// Where what the relay remembers outlives a stop, if anywhere.
    pub state_folder: Option<PathBuf>,
}

impl FixedSettings {
    /// The sections that differ, and so take effect at the next start only.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        // Each field is named, so that a new one is not forgotten.
        let Self { listener, admin, drain_delay, drain, stores, operational, state_folder } = self;
        let sections = [
            ("[listener]", *listener == other.listener && *drain_delay == other.drain_delay && *drain == other.drain),
            ("[admin]", *admin == other.admin),
            ("[stores]", *stores == other.stores),
            ("[operational]", *operational == other.operational),
            ("[state]", *state_folder == other.state_folder),
        ];
        sections.into_iter().filter(|(_, same)| !same).map(|(section, _)| section).collect()
    }
}
