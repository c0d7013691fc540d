//! Certificates end, and begin: those without which no runner gets in.

use std::path::Path;
use std::time::SystemTime;

use telemetry_certs::{CertificateSummary, Roots};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::assemble::at;
use super::{ConfigFault, ConfigFaults};

/// The life of a certificate without which no runner gets in, or of several of which one is enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// The key of the configuration, and the file.
    pub at: String,
    /// When it begins.
    pub begins: SystemTime,
    /// When it ends.
    pub ends: SystemTime,
    /// What to do when it has ended, or will soon.
    pub remedy: &'static str,
}

impl Life {
    /// That of the certificate that is shown.
    pub(super) fn of_coordinator(summary: &CertificateSummary, file: &Path) -> Self {
        Self {
            at: at("tls.certificate", file),
            begins: summary.not_before,
            ends: summary.not_after,
            remedy: "renew it: `telemetry-relay certs renew FILE --dir FOLDER`; a running relay takes it by itself",
        }
    }

    /// That of the authorities that runners' certificates may come from: one that has ended is in nobody's way.
    pub(super) fn of_roots(roots: &Roots, file: &Path) -> Option<Self> {
        let lives: Vec<_> =
            roots.certificates().iter().filter_map(|root| telemetry_certs::describe(root).ok()).collect();
        Some(Self {
            at: at("tls.client_ca", file),
            begins: lives.iter().map(|root| root.not_before).min()?,
            ends: lives.iter().map(|root| root.not_after).max()?,
            remedy: "put a new CA beside it and issue all certificates from that: docs/operating.md, \"The CA\"",
        })
    }

    /// What is wrong with it at this moment, if anything is.
    #[must_use]
    pub fn fault(&self, now: SystemTime) -> Option<ConfigFault> {
        if self.ends <= now {
            let problem = format!("has ended ({}); no runner will connect", date(self.ends));
            return Some(ConfigFault::new(&self.at, problem, self.remedy));
        }
        (now < self.begins).then(|| {
            let problem = format!("is not valid before {}; no runner will connect", date(self.begins));
            ConfigFault::new(&self.at, problem, "set this machine's clock, or issue it on one whose clock is right")
        })
    }
}

/// Everything of these that is wrong at this moment.
///
/// # Errors
/// There is something.
pub fn check_lives<'a>(lives: impl IntoIterator<Item = &'a Life>, now: SystemTime) -> Result<(), ConfigFaults> {
    let mut faults = ConfigFaults::default();
    lives.into_iter().filter_map(|life| life.fault(now)).for_each(|fault| faults.push(fault));
    faults.into_result(Some(()))
}

fn date(time: SystemTime) -> String {
    OffsetDateTime::from(time).format(&Rfc3339).unwrap_or_default()
}
