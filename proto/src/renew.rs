//! What goes over `POST /_identity/certificate`. The request's body is a PKCS #10 request (RFC 2986), DER or PEM.

use serde::{Deserialize, Serialize};

/// The content type of the request (RFC 5967 section 2).
pub const CONTENT_TYPE: &str = "application/pkcs10";

/// A renewed certificate. Nothing in it is secret: the key never left the runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewResponse {
    /// The chain as PEM, leaf first. The root is not in it.
    pub certificate_chain: String,
    /// When the certificate ends.
    #[serde(with = "time::serde::rfc3339")]
    pub not_after: time::OffsetDateTime,
    /// The coordinator's time of day.
    #[serde(with = "time::serde::rfc3339")]
    pub server_time: time::OffsetDateTime,
}
