//! `certs renew` and `certs revoke`: what becomes of certificates that were issued by hand.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use telemetry_certs::{
    CertificateSummary, Certified, ClusterAuthority, ClusterName, CoordinatorRequest, CredentialFiles, CrlRequest,
    Crls, Issued, KeyKind, PeerIdentity, Revocation, RunnerRequest, WriterRequest, describe, split_writer_uri,
    write_atomically,
};
use telemetry_proto::WriterName;

use super::{authority, certificates};
use crate::cli::Outcome;
use crate::cli::exit::Failure;

/// Whose certificate it is.
enum Holder {
    Runner(RunnerRequest),
    Coordinator(CoordinatorRequest),
    Writer(WriterRequest),
}

/// What a renewed certificate is to be like.
pub(super) struct Renewal<'a> {
    pub(super) certificate: &'a Path,
    pub(super) dir: &'a Path,
    pub(super) lifetime: Option<Duration>,
    /// The kind of a new key and where it goes; `None` keeps the key that there is.
    pub(super) new_key: Option<(KeyKind, Option<PathBuf>)>,
}

/// Issues a certificate for the same holder, and replaces the file.
pub(super) fn renew(renewal: Renewal<'_>) -> Outcome {
    let path = renewal.certificate;
    let leaf = certificates(path)?.swap_remove(0);
    let summary = describe(&leaf).map_err(|error| Failure::Other(format!("{}: {error}", path.display())))?;
    let authority = authority(renewal.dir)?;
    let mut holder =
        Holder::of(&summary, PeerIdentity::from_leaf(&leaf).ok(), authority.cluster()).ok_or_else(|| {
            Failure::Other(format!("{}: neither a runner's nor a coordinator's nor a writer's", path.display()))
        })?;
    if let Some(lifetime) = renewal.lifetime {
        *holder.lifetime() = lifetime;
    }
    let failed = |error: std::io::Error| Failure::Other(format!("{}: {error}; it is left as it was", path.display()));
    match renewal.new_key {
        None => {
            let certified = holder.reissue(&authority, &leaf)?;
            write_atomically(path, &certified.chain_pem, 0o644).map_err(failed)?;
            println!("wrote {}, for the same key", path.display());
        }
        Some((kind, key)) => {
            let key = key.unwrap_or_else(|| key_beside(path));
            let issued = holder.issue(&authority, kind)?;
            let files = CredentialFiles { certificate: path.to_owned(), key };
            files.replace(&issued.chain_pem, &issued.key_pem).map_err(failed)?;
            println!("wrote {} and {}", files.certificate.display(), files.key.display());
        }
    }
    Ok(())
}

/// Adds a certificate to the authority's list and signs that anew.
pub(super) fn revoke(
    certificate: Option<&Path>,
    serial: Option<&str>,
    dir: &Path,
    crl: &Path,
    lifetime: Duration,
) -> Outcome {
    let authority = authority(dir)?;
    let own = describe(authority.certificate()).map_err(Failure::other)?;
    let serial = match (certificate, serial) {
        (Some(path), _) => serial_of(path, &own)?,
        (None, Some(serial)) => serial.to_ascii_lowercase(),
        (None, None) => return Err(Failure::Usage("name a certificate, or --serial".to_owned())),
    };
    let (mut revoked, number) = current(crl, &authority)?;
    if revoked.iter().any(|entry| entry.serial == serial) {
        println!("{serial} is revoked already; {} is left as it was", crl.display());
        return Ok(());
    }
    revoked.push(Revocation { serial: serial.clone(), revoked_at: SystemTime::now() });
    let list = authority.issue_crl(&CrlRequest { revoked, number, lifetime }).map_err(Failure::other)?;
    write_atomically(crl, &list, 0o644).map_err(|error| Failure::Other(format!("{}: {error}", crl.display())))?;
    println!("revoked {serial}: wrote {}, list number {number}", crl.display());
    println!("a relay whose tls.crls names that file takes it within a second");
    Ok(())
}

/// What the list names by now, and the number of the next one.
fn current(crl: &Path, authority: &ClusterAuthority) -> Result<(Vec<Revocation>, u64), Failure> {
    if !crl.try_exists().map_err(|error| Failure::Other(format!("{}: {error}", crl.display())))? {
        return Ok((Vec::new(), 1));
    }
    let lists = Crls::from_file(crl).map_err(Failure::other)?;
    let refuse = |problem: &str| Failure::Other(format!("{}: {problem}", crl.display()));
    if !lists.are_issued_by(authority.certificate()) {
        return Err(refuse("holds another authority's list; name a file for this one's with --crl"));
    }
    let mut lists = lists.read();
    let (Some(list), true) = (lists.pop(), lists.is_empty()) else {
        return Err(refuse("holds several lists; leave the youngest"));
    };
    let next = list.number.unwrap_or(0).checked_add(1);
    Ok((list.revoked, next.ok_or_else(|| refuse("its number can't grow any more"))?))
}

fn serial_of(path: &Path, authority: &CertificateSummary) -> Result<String, Failure> {
    let leaf = certificates(path)?.swap_remove(0);
    let summary = describe(&leaf).map_err(|error| Failure::Other(format!("{}: {error}", path.display())))?;
    if summary.issuer != authority.subject {
        let (found, ours) = (&summary.issuer, &authority.subject);
        return Err(Failure::Other(format!(
            "{}: issued by {found}, and only that authority can revoke it, not {ours}; name its folder with --dir",
            path.display()
        )));
    }
    Ok(summary.serial)
}

impl Holder {
    fn of(summary: &CertificateSummary, peer: Option<PeerIdentity>, cluster: &ClusterName) -> Option<Self> {
        if let Some(peer) = peer {
            return Some(Self::Runner(RunnerRequest {
                organization: peer.organization,
                ..RunnerRequest::new(peer.runner)
            }));
        }
        if let Some(writer) = writer(summary, cluster) {
            return Some(Self::Writer(WriterRequest::new(writer)));
        }
        let of_kind = |kind: &'static str| summary.san.iter().filter_map(move |name| name.strip_prefix(kind));
        let mut request = CoordinatorRequest::new(of_kind("DNS:"));
        request.ip_addresses = of_kind("IP:").filter_map(|ip| ip.parse::<IpAddr>().ok()).collect();
        let has_names = !request.dns_names.is_empty() || !request.ip_addresses.is_empty();
        (has_names && !summary.is_authority).then_some(Self::Coordinator(request))
    }

    const fn lifetime(&mut self) -> &mut Duration {
        match self {
            Self::Runner(request) => &mut request.lifetime,
            Self::Coordinator(request) => &mut request.lifetime,
            Self::Writer(request) => &mut request.lifetime,
        }
    }

    fn reissue(
        &self,
        authority: &ClusterAuthority,
        leaf: &rustls::pki_types::CertificateDer<'_>,
    ) -> Result<Certified, Failure> {
        match self {
            Self::Runner(request) => authority.reissue_runner(request, leaf),
            Self::Coordinator(request) => authority.reissue_coordinator(request, leaf),
            Self::Writer(request) => authority.reissue_writer(request, leaf),
        }
        .map_err(Failure::other)
    }

    fn issue(&mut self, authority: &ClusterAuthority, kind: KeyKind) -> Result<Issued, Failure> {
        match self {
            Self::Runner(request) => {
                request.key_kind = kind;
                authority.issue_runner(request)
            }
            Self::Coordinator(request) => {
                request.key_kind = kind;
                authority.issue_coordinator(request)
            }
            Self::Writer(request) => {
                request.key_kind = kind;
                authority.issue_writer(request)
            }
        }
        .map_err(Failure::other)
    }
}

/// The writer of this cluster that a certificate is for, if it is one's that `certs issue` made.
fn writer(summary: &CertificateSummary, cluster: &ClusterName) -> Option<WriterName> {
    let [san] = &summary.san[..] else { return None };
    let (of, name) = split_writer_uri(san.strip_prefix("URI:")?)?;
    WriterName::new(name).ok().filter(|_| of == cluster.as_str())
}

/// `runner-r7.pem` has its key in `runner-r7-key.pem`, as `certs issue` writes them.
fn key_beside(certificate: &Path) -> PathBuf {
    let stem = certificate.file_stem().unwrap_or_default().to_string_lossy();
    certificate.with_file_name(format!("{stem}-key.pem"))
}
