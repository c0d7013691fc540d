//! What can go wrong with an authority.

use crate::cluster::ClusterName;
use crate::load::LoadError;

/// An authority cannot be loaded, or cannot issue what it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// Certificate or key cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The certificate is no authority's.
    #[error("the certificate is no authority's (CA: true and keyCertSign are needed); load the cluster's CA")]
    NotAuthority,
    /// The certificate does not name its cluster.
    #[error("the CA does not name its cluster (SAN URI spiffe://CLUSTER); say which cluster it is for")]
    NoClusterName,
    /// The certificate names another cluster.
    #[error("the CA is of the cluster {found}, not of {expected}")]
    OtherCluster {
        /// The one that it names.
        found: ClusterName,
        /// The one that it was loaded for.
        expected: ClusterName,
    },
    /// The key is not in the form that we write.
    #[error("the CA's key is not PKCS #8; convert it with `openssl pkcs8 -topk8 -nocrypt`")]
    KeyNotPkcs8,
    /// The CA's subject cannot be repeated exactly, so that chains would not match.
    #[error("the CA's subject has a form that is not supported (empty, repeated or multi-valued attributes)")]
    UnsupportedSubject,
    /// The authority's own certificate is over.
    #[error("the CA has expired; create a new one")]
    Expired,
    /// A certificate or list that would not live at all.
    #[error("the lifetime is less than a second")]
    NoLifetime,
    /// A point in time that certificates cannot express.
    #[error("a time is not between the years 1970 and 9999")]
    BadTime,
    /// A coordinator without a name.
    #[error("a coordinator needs at least one DNS name or IP address")]
    NoNames,
    /// Not a DNS name.
    #[error("not a DNS name: {0:?} (no wildcards, no port, no IP address)")]
    BadDnsName(String),
    /// Not an organisation.
    #[error("not an organisation: expected 1 to 64 characters, none of them a control character")]
    BadOrganization,
    /// Not a serial number.
    #[error("not a serial number: {0:?} (expected 2 to 40 hex digits without separators)")]
    BadSerial(String),
    /// The key of a certificate that is to be issued again is of a kind that is not certified.
    #[error("the certificate's key can't be certified again; issue one with a new key")]
    BadKey,
    /// The machine has no randomness to give.
    #[error("the system's random number generator failed")]
    Random,
    /// The certificate library refused.
    #[error("signing failed: {0}")]
    Sign(#[from] rcgen::Error),
}
