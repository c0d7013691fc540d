//! Certificates: cluster authority, identities, TLS configurations.
//!
//! - [`PeerIdentity`] is what a runner's certificate says; [`looks_like_runner`] is the client's tolerant opposite;
//!   [`WriterIdentity`] is what the certificate of a writer says that is no runner.
//! - [`ClusterAuthority`] issues certificates and revocation lists for one cluster.
//! - [`Credentials`], [`Roots`] and [`Crls`] are loaded and validated before anything is built from them.
//! - [`server_config`] and [`client_config`] build the only two TLS configurations of this project.
//! - [`CertificateRefusal`] and [`ServerDistrust`] read the TLS alerts of a handshake that failed.
//!
//! The feature `testing` adds a module of certificates that no one should issue.

mod authority;
mod cluster;
mod credentials;
mod crl;
mod csr;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod identity;
mod inspect;
mod load;
mod pair;
mod parse;
mod refusal;
mod roots;
mod summary;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tls;
mod writer;

pub use authority::{
    AUTHORITY_LIFETIME, AuthorityError, BACKDATE, COORDINATOR_LIFETIME, CRL_LIFETIME, Certified, ClusterAuthority,
    CoordinatorRequest, CrlRequest, Issued, KeyKind, RUNNER_LIFETIME, RunnerRequest, WriterRequest,
};
pub use cluster::{ClusterName, ClusterNameError};
pub use credentials::Credentials;
pub use crl::{Crls, Revocation, RevocationList};
pub use csr::{CertificateRequest, CertificateRequestError, MAX_CERTIFICATE_REQUEST_BYTES, PendingKey};
pub use identity::{IdentityError, IdentitySource, PeerIdentity, looks_like_runner};
pub use inspect::{KeySummary, PemItem, inspect_file};
pub use load::{LoadError, LoadFault, Origin, read_certificates};
pub use pair::{CredentialFiles, write_atomically};
pub use refusal::{CertificateRefusal, ServerDistrust};
pub use roots::Roots;
pub use summary::{CertificateSummary, describe};
pub use tls::{ClientTls, RunnerAsServer, ServerTls, TlsError, client_config, client_verifier, server_config};
pub use writer::{WriterIdentity, split_writer_uri, writer_uri};
