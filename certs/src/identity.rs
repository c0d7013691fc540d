//! Who a certificate says its holder is.

use std::time::SystemTime;

use telemetry_proto::RunnerId;

/// The identity of a runner, as its verified client certificate states it. Parsed once per connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The runner.
    pub runner: RunnerId,
    /// Where in the certificate the runner's ID was found.
    pub source: IdentitySource,
    /// The subject's organisation (O), if there is one.
    pub organization: Option<String>,
    /// Start of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
    /// The serial number, in lowercase hex without separators.
    pub serial: String,
    /// SHA-256 of the certificate's DER.
    pub fingerprint: [u8; 32],
}

/// Where in the certificate the runner's ID was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentitySource {
    /// SAN URI `spiffe://CLUSTER/runner/ID`.
    SanUri,
    /// CN `runner-ID`, of older issuers.
    CommonName,
}
