//! What can be found out about settings before a relay runs from them.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::time::SystemTime;

use serde::Serialize;

use crate::admin::{AdminConfig, ENDS_SOON};
use crate::config::{ConfigFault, Life, Outside};
use crate::forward::Backend;
use crate::once::{BatchIdFile, FOLDER_REMEDY};

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

/// Asks every store, tries the addresses, and looks at the certificate's life.
pub async fn examine(outside: &Outside, now: SystemTime) -> Vec<Finding> {
    let Outside { stores, lives, lists_due, listener, admin, state_folder } = outside;
    let mut findings = Vec::new();
    for (signal, store) in stores {
        if let Err(refusal) = Backend::new(*signal, store.clone()).probe().await {
            findings.push(Finding {
                severity: Severity::Fault,
                at: format!("stores.{signal}.url"),
                problem: format!("{} does not answer: {}", store.address, refusal.reason().text()),
                remedy: "start the store, or correct the url".to_owned(),
            });
        }
    }
    findings.extend(lives.iter().filter_map(|life| of_life(life, now)));
    findings.extend(lists_due.iter().filter_map(|(at, due)| of_list(at, *due, now)));
    findings.extend(state_folder.as_deref().and_then(state));
    if let Some(listener) = listener {
        let address = listener.address;
        let occupied = |protocol, error| occupied("listener.address", protocol, address, &error);
        findings.extend(UdpSocket::bind(address).err().map(|error| occupied("UDP", error)));
        if listener.tcp {
            findings.extend(TcpListener::bind(address).err().map(|error| occupied("TCP", error)));
            findings.extend(descriptors(open_files(), listener.max_connections));
        }
    }
    if let Some(AdminConfig { address, .. }) = admin {
        let occupied = |error| occupied("admin.address", "TCP", *address, &error);
        findings.extend(TcpListener::bind(address).err().map(occupied));
    }
    findings
}

fn occupied(at: &str, protocol: &str, address: SocketAddr, error: &io::Error) -> Finding {
    Finding {
        severity: Severity::Fault,
        at: at.to_owned(),
        problem: format!("{protocol} {address} can't be bound: {error}"),
        remedy: "choose another address, or stop what listens there (it may be the relay itself)".to_owned(),
    }
}

/// A relay starts without it, but forgets at each stop.
fn state(folder: &Path) -> Option<Finding> {
    let error = BatchIdFile::in_folder(folder).probe().err()?;
    Some(Finding {
        severity: Severity::Warning,
        at: "state.folder".to_owned(),
        problem: format!("{} can't be written to: {error}", folder.display()),
        remedy: FOLDER_REMEDY.to_owned(),
    })
}

/// Each connection over TCP takes a descriptor; those over QUIC share one.
fn descriptors(open_files: Option<usize>, max_connections: usize) -> Option<Finding> {
    let open_files = open_files.filter(|limit| *limit < max_connections)?;
    Some(Finding {
        severity: Severity::Warning,
        at: "listener.tcp".to_owned(),
        problem: format!(
            "{open_files} open files are allowed, and {max_connections} connections, each of which takes one over TCP"
        ),
        remedy:
            "raise the limit (LimitNOFILE= in a systemd unit, ulimit -n in a shell), or lower listener.max_connections"
                .to_owned(),
    })
}

/// How many files this process may have open, where the system tells.
fn open_files() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn of_life(life: &Life, now: SystemTime) -> Option<Finding> {
    if let Some(ConfigFault { at, problem, remedy }) = life.fault(now) {
        return Some(Finding { severity: Severity::Fault, at, problem, remedy });
    }
    let left = life.ends.duration_since(now).unwrap_or_default();
    (left < ENDS_SOON).then(|| Finding {
        severity: Severity::Warning,
        at: life.at.clone(),
        problem: format!("ends in {} days", left.as_secs() / 86_400),
        remedy: life.remedy.to_owned(),
    })
}

/// A list that is overdue stays in force: without it those would get in again who were shut out.
fn of_list(at: &str, due: SystemTime, now: SystemTime) -> Option<Finding> {
    let days = now.duration_since(due).ok()?.as_secs() / 86_400;
    Some(Finding {
        severity: Severity::Warning,
        at: at.to_owned(),
        problem: format!("was due to be replaced {days} days ago; it stays in force, and names nobody revoked since"),
        remedy: "put the authority's present list in its place; `telemetry-relay certs revoke` signs one".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_limit_of_open_files_below_the_connections_is_a_warning() {
        assert!(descriptors(Some(1_024), 10_000).is_some());
        assert!(descriptors(Some(65_536), 10_000).is_none() && descriptors(None, 10_000).is_none());
        assert!(!cfg!(target_os = "linux") || open_files().is_some());
    }

    #[test]
    fn a_state_folder_that_can_not_be_written_to_is_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        assert!(state(dir.path()).is_none() && std::fs::read_dir(dir.path()).unwrap().next().is_none());
        let finding = state(&dir.path().join("missing")).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.problem.contains("missing") && finding.remedy.contains("StateDirectory="));
    }

    #[test]
    fn a_revocation_list_is_a_warning_once_it_is_overdue() {
        let due = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        assert_eq!(of_list("tls.crls (crl.pem)", due, due - Duration::from_secs(1)), None);
        let finding = of_list("tls.crls (crl.pem)", due, due + 2 * Duration::from_secs(86_400)).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.problem.contains("2 days ago"), "{}", finding.problem);
    }

    #[test]
    fn a_certificate_is_a_warning_before_it_is_a_fault() {
        const DAY: Duration = Duration::from_secs(86_400);
        let begins = SystemTime::UNIX_EPOCH + 10_000 * DAY;
        let life = Life { at: "tls.certificate (a.pem)".to_owned(), begins, ends: begins + 90 * DAY, remedy: "renew" };
        let severity = |now| of_life(&life, now).map(|finding| finding.severity);
        assert_eq!(severity(begins - DAY), Some(Severity::Fault), "not yet valid");
        assert_eq!(severity(begins), None);
        assert_eq!(severity(begins + 87 * DAY), Some(Severity::Warning));
        assert_eq!(severity(begins + 90 * DAY), Some(Severity::Fault));
    }
}
