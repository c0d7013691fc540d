//! With what runners' certificates are renewed.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::pki_types::UnixTime;
use rustls::server::danger::ClientCertVerifier;
use telemetry_certs::{ClusterAuthority, ClusterName, Credentials, RunnerRequest};
use telemetry_proto::RunnerId;

use super::{ConfigFaults, IdentitySection};
use crate::renewal::Issuing;

/// The outer `None` says that certificates are to be renewed and can't be.
pub(super) fn identity(
    section: Option<&IdentitySection>,
    base: &Path,
    clients: Option<&dyn ClientCertVerifier>,
    faults: &mut ConfigFaults,
) -> Option<Option<Issuing>> {
    let Some(section) = section else { return Some(None) };
    const AT: &str = "identity.ca_certificate and identity.ca_key";
    faults.require(
        section.certificate_lifetime_seconds > 0,
        "identity.certificate_lifetime_seconds",
        "is 0, so every certificate would have ended at once",
        "leave it out for 30 days",
    );
    let cluster = match &section.cluster {
        None => None,
        Some(name) => Some(faults.take("identity.cluster", "", ClusterName::new(name))?),
    };
    let files = (base.join(&section.ca_certificate), base.join(&section.ca_key));
    let authority = faults.take(AT, "", ClusterAuthority::load_files(cluster.as_ref(), files.0, files.1))?;
    if let Some(clients) = clients {
        const REMEDY: &str =
            "add the authority, or the CA above it, to tls.client_ca, and where there are tls.crls, its list";
        faults.take(AT, REMEDY, try_out(&authority, clients));
    }
    Some(Some(Issuing { authority, lifetime: Duration::from_secs(section.certificate_lifetime_seconds) }))
}

/// Whether the relay itself would accept what this authority issues. The certificate is thrown away.
fn try_out(authority: &ClusterAuthority, clients: &dyn ClientCertVerifier) -> Result<(), String> {
    let runner = RunnerId::new("probe").map_err(|error| error.to_string())?;
    let issued = authority.issue_runner(&RunnerRequest::new(runner)).map_err(|error| error.to_string())?;
    let credentials =
        Credentials::from_pem(issued.chain_pem.as_bytes(), issued.key_pem.as_bytes()).map_err(|e| e.to_string())?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let Some((leaf, above)) = credentials.chain().split_first() else { return Ok(()) };
    let verified = clients.verify_client_cert(leaf, above, UnixTime::since_unix_epoch(now));
    verified.map(drop).map_err(|error| format!("this relay would not accept what it issues: {error}"))
}
