//! The two TLS configurations of this project.
//!
//! Both speak TLS 1.3 only and never resume: resumption skips the verification of the peer's certificate, so a runner
//! that was removed would come back with an old ticket. For the same reason there is no early data, which moreover can
//! be replayed. The crypto provider is named here and never the process's default, which any crate may set.

mod server_verifier;

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::CertificateRevocationListDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::credentials::Credentials;
use crate::crl;
use crate::parse;
use crate::roots::Roots;
use server_verifier::CoordinatorVerifier;

pub use server_verifier::RunnerAsServer;

/// What a server's TLS configuration is made of.
#[derive(Debug, Clone, Copy)]
pub struct ServerTls<'a> {
    /// What the server shows.
    pub credentials: &'a Credentials,
    /// Whose clients are accepted.
    pub client_roots: &'a Roots,
    /// Revocation lists; see [`client_verifier`]. None: nothing is revoked.
    pub crls: &'a [CertificateRevocationListDer<'static>],
    /// The application protocols, best first (RFC 7301), such as `h3`.
    pub alpn: &'a [&'a [u8]],
}

/// What a client's TLS configuration is made of.
#[derive(Debug, Clone, Copy)]
pub struct ClientTls<'a> {
    /// What the client shows.
    pub credentials: &'a Credentials,
    /// Whose servers are accepted.
    pub server_roots: &'a Roots,
    /// The application protocols, best first (RFC 7301), such as `h3`.
    pub alpn: &'a [&'a [u8]],
}

/// A TLS configuration cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A root has no revocation list while others have one, so that none of its certificates would be accepted.
    #[error(
        "there are revocation lists, but none is issued and signed by the root {root}: all of its certificates would \
         be refused; issue a list (an empty one will do) or remove the root"
    )]
    RootWithoutCrl {
        /// The root's subject.
        root: String,
    },
    /// A revocation list cannot be used.
    #[error("a revocation list cannot be used: {0}; issue it again")]
    BadCrl(String),
    /// There is no root.
    #[error("there is no root certificate, so that no peer could be accepted; configure the cluster's CA")]
    NoRoots,
    /// The crypto provider cannot do what we ask of it.
    #[error("the TLS library refuses the configuration: {0}")]
    Rustls(#[from] rustls::Error),
}

impl From<VerifierBuilderError> for TlsError {
    fn from(error: VerifierBuilderError) -> Self {
        match error {
            VerifierBuilderError::NoRootAnchors => Self::NoRoots,
            other => Self::BadCrl(other.to_string()),
        }
    }
}

/// The server's configuration: a client certificate is required, TLS 1.3 only, no tickets, no stored sessions, no early
/// data.
///
/// # Errors
/// [`TlsError`].
pub fn server_config(parts: ServerTls<'_>) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(client_verifier(parts.client_roots, parts.crls)?)
        .with_cert_resolver(parts.credentials.resolver());
    config.alpn_protocols = owned(parts.alpn);
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(config)
}

/// The client's configuration: TLS 1.3 only, no resumption, no early data. A server that shows a runner's certificate
/// is refused ([`RunnerAsServer`]), however valid that is: certificates of older issuers have server usage, and names
/// that the runner chose.
///
/// # Errors
/// [`TlsError`].
pub fn client_config(parts: ClientTls<'_>) -> Result<ClientConfig, TlsError> {
    let verifier = CoordinatorVerifier::new(parts.server_roots, provider())?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(parts.credentials.resolver());
    config.alpn_protocols = owned(parts.alpn);
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    Ok(config)
}

/// What [`server_config`] verifies clients with. By itself it serves to ask again about the chain of a connection that
/// outlives a change of roots or lists.
///
/// Without lists nothing is revoked. With lists, each certificate of a chain is looked up in those of its issuer, and
/// one whose issuer has none is refused: a list that got lost must not let a revoked runner in. A list past its
/// `nextUpdate` stays in force: it is the operator's own file, and its being late must not turn the whole fleet away.
///
/// # Errors
/// [`TlsError`].
pub fn client_verifier(
    roots: &Roots,
    crls: &[CertificateRevocationListDer<'static>],
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    check_coverage(roots, crls)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots.store()), provider())
        .with_crls(crls.iter().cloned())
        .build()?;
    Ok(verifier)
}

/// The one crypto provider.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Every root must have a list if any has: better refused here, with its name, than every runner at its handshake.
fn check_coverage(roots: &Roots, crls: &[CertificateRevocationListDer<'static>]) -> Result<(), TlsError> {
    if crls.is_empty() {
        return Ok(());
    }
    let lists = crls
        .iter()
        .map(|der| crl::parse(der).ok_or_else(|| TlsError::BadCrl("it cannot be read".to_owned())))
        .collect::<Result<Vec<_>, _>>()?;
    for root in roots.certificates().iter().filter_map(|der| parse::certificate(der)) {
        if !lists.iter().any(|list| is_signed_by(list, &root)) {
            return Err(TlsError::RootWithoutCrl { root: parse::printable(&root.subject().to_string()) });
        }
    }
    Ok(())
}

/// Whether the list carries this issuer's name and signature. Which algorithm it claims to be signed with does not
/// matter here; the WebPKI looks at that in each handshake.
pub(crate) fn is_signed_by(list: &CertificateRevocationList<'_>, issuer: &X509Certificate<'_>) -> bool {
    let key = &issuer.public_key().subject_public_key.data;
    list.issuer().as_raw() == issuer.subject().as_raw()
        && provider().signature_verification_algorithms.all.iter().any(|algorithm| {
            algorithm.verify_signature(key, list.tbs_cert_list.as_ref(), &list.signature_value.data).is_ok()
        })
}

fn owned(alpn: &[&[u8]]) -> Vec<Vec<u8>> {
    alpn.iter().map(|protocol| protocol.to_vec()).collect()
}
