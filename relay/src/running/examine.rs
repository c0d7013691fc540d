//! What can be found out about settings before a relay runs from them.

use std::net::UdpSocket;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::config::Settings;
use crate::forward::Backend;

/// A certificate that ends sooner than this is worth a word.
const SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Something that is in the way, or soon will be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Whether a relay could not do its work now.
    pub severity: Severity,
    /// What it is about.
    pub at: String,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A relay could not do its work now.
    Fault,
    /// It could, but not for ever.
    Warning,
}

/// Asks every store, tries the address, and looks at the certificate's life. The settings themselves are sound: they could
/// not have been loaded otherwise.
pub async fn examine(settings: &Settings, now: SystemTime) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (signal, store) in &settings.fixed.stores {
        if let Err(refusal) = Backend::new(*signal, store.clone()).probe().await {
            findings.push(Finding {
                severity: Severity::Fault,
                at: format!("stores.{signal}.url"),
                problem: format!("{} does not answer: {}", store.address, refusal.reason().text()),
                remedy: "start the store, or correct the url".to_owned(),
            });
        }
    }
    findings.extend(certificate(settings.tls.certificate.expires_at, now));
    let address = settings.fixed.listener.address;
    if let Err(error) = UdpSocket::bind(address) {
        findings.push(Finding {
            severity: Severity::Fault,
            at: "listener.address".to_owned(),
            problem: format!("UDP {address} can't be bound: {error}"),
            remedy: "choose another address, or stop what listens there (it may be the relay itself)".to_owned(),
        });
    }
    findings
}

fn certificate(expires_at: u64, now: SystemTime) -> Option<Finding> {
    let left = (UNIX_EPOCH + Duration::from_secs(expires_at)).duration_since(now).unwrap_or_default();
    let (severity, problem) = if left.is_zero() {
        (Severity::Fault, "has ended; no runner will connect".to_owned())
    } else if left < SOON {
        (Severity::Warning, format!("ends in {} days", left.as_secs() / 86_400))
    } else {
        return None;
    };
    let remedy =
        "issue a new one: `telemetry-relay certs issue coordinator --force`; a running relay takes it by itself";
    Some(Finding { severity, at: "tls.certificate".to_owned(), problem, remedy: remedy.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_a_warning_before_it_is_a_fault() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let severity =
            |days: i64| certificate((1_000_000_000 + days * 86_400).cast_unsigned(), now).map(|f| f.severity);
        assert_eq!(severity(30), None);
        assert_eq!(severity(3), Some(Severity::Warning));
        assert_eq!(severity(-1), Some(Severity::Fault));
    }
}
