//! The files that a relay runs from, and reads again while it runs.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::path::Path;
use std::time::{Duration, SystemTime};

use telemetry_certs::testing::Leaf;
use telemetry_certs::{CrlRequest, Issued, PeerIdentity, Revocation};
use telemetry_relay::config::{self, ConfigFaults, Settings};
use telemetry_relay::gate::SignatureAlgorithm;
use telemetry_relay::issuer::SigningKey;

use crate::harness::{COORDINATOR, Cluster};

/// A configuration that names them all. Its store is away.
pub(crate) const CONFIG: &str = r#"
[listener]
address = "127.0.0.1:0"
[tls]
certificate = "coordinator.pem"
key = "coordinator-key.pem"
client_ca = "ca.pem"
crls = ["crl.pem"]
[tokens]
issuer = "https://coordinator.test"
[issuer]
signing_key = "signing.pem"
[runners]
removed = "removed.txt"
[stores.metrics]
url = "http://127.0.0.1:9"
"#;

/// Writes what [`CONFIG`] names, and `config` itself.
pub(crate) fn write_all(dir: &Path, cluster: &Cluster, config: &str) {
    for (name, text) in [
        ("relay.toml", config),
        ("ca.pem", &cluster.authority.certificate_pem()),
        ("removed.txt", "# nobody\n"),
        ("signing.pem", &signing_key()),
        ("crl.pem", &crl(cluster, &[])),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    write_certificate(dir, cluster);
}

/// Writes a new certificate of the coordinator, and its key.
pub(crate) fn write_certificate(dir: &Path, cluster: &Cluster) {
    let issued = Leaf::coordinator(COORDINATOR).issued_by(&cluster.authority);
    std::fs::write(dir.join("coordinator.pem"), issued.chain_pem).unwrap();
    std::fs::write(dir.join("coordinator-key.pem"), issued.key_pem).unwrap();
}

pub(crate) fn signing_key() -> String {
    SigningKey::generate(SignatureAlgorithm::EdDsa).unwrap().to_pem().unwrap()
}

/// A revocation list with these certificates in it.
pub(crate) fn crl(cluster: &Cluster, revoked: &[&Issued]) -> String {
    let serial = |issued: &&Issued| PeerIdentity::from_leaf(issued.credentials().unwrap().leaf()).unwrap().serial;
    let revoked = revoked.iter().map(|issued| Revocation { serial: serial(issued), revoked_at: SystemTime::now() });
    let request = CrlRequest { revoked: revoked.collect(), number: 1, lifetime: Duration::from_secs(3_600) };
    cluster.authority.issue_crl(&request).unwrap()
}

/// Reads `relay.toml` and what it names.
pub(crate) fn load(dir: &Path) -> Result<Settings, ConfigFaults> {
    config::load(&dir.join("relay.toml"), &[("", ""); 0])
}
