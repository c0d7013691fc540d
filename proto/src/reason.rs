//! Why a request is refused: stable codes for programs, words for people.

use std::fmt;

use http::StatusCode;

use crate::Verdict;

/// Declares the reasons once: code, status, verdict and the sentence for people can't drift apart.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $status:ident, $verdict:ident, $text:literal;)*) => {
        /// Why a request was refused: the value of `Miren-Telemetry-Reason`, a stable code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Reason {
            $(#[doc = concat!("`", $code, "`: ", $text, ".")] $(#[$doc])* $name,)*
        }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable code.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            /// The status that a refusal for this reason carries.
            #[must_use]
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$status,)* }
            }

            /// The verdict that a refusal for this reason carries.
            #[must_use]
            pub const fn verdict(self) -> Verdict {
                match self { $(Self::$name => Verdict::$verdict,)* }
            }

            /// One line for people: what was wrong and, where it helps, what to do.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    // 400
    QueryNotAllowed = "query-not-allowed", BAD_REQUEST, Reject,
        "a query string is not allowed here; the relay sets every argument of the store itself";
    HeaderMalformed = "header-malformed", BAD_REQUEST, Reject, "a header of the contract is malformed or repeated";
    LengthMismatch = "length-mismatch", BAD_REQUEST, Reject, "the body does not have the length that Content-Length gives";
    BodyMalformed = "body-malformed", BAD_REQUEST, Reject, "the body can't be read";
    CertificateRequestMalformed = "certificate-request-malformed", BAD_REQUEST, Reject,
        "the body is no PKCS #10 request, in DER or in PEM";
    CertificateRequestUnproven = "certificate-request-unproven", BAD_REQUEST, Reject,
        "the certificate request is not signed by the key that it is for";
    CertificateRequestKey = "certificate-request-key", BAD_REQUEST, Reject,
        "the key is none of Ed25519, ECDSA P-256, RSA of 2048 to 4096 bits";
    BackendRejected = "backend-rejected", BAD_REQUEST, Reject, "the store rejected the batch";
    // 401
    TokenMissing = "token-missing", UNAUTHORIZED, RefreshToken, "the header Miren-Workload-Token is missing";
    TokenMalformed = "token-malformed", UNAUTHORIZED, RefreshToken,
        "the workload token is not one well-formed JWT with the required claims";
    TokenUnknownKey = "token-unknown-key", UNAUTHORIZED, RefreshToken,
        "the workload token is signed by a key that this relay does not know";
    TokenBadSignature = "token-bad-signature", UNAUTHORIZED, RefreshToken,
        "the signature of the workload token does not verify";
    TokenExpired = "token-expired", UNAUTHORIZED, RefreshToken, "the workload token has expired";
    TokenNotYetValid = "token-not-yet-valid", UNAUTHORIZED, RefreshToken,
        "the workload token is not valid yet; compare the clocks";
    TokenTooLongLived = "token-too-long-lived", UNAUTHORIZED, RefreshToken,
        "the workload token lives longer than a relay accepts";
    TokenWrongIssuer = "token-wrong-issuer", UNAUTHORIZED, RefreshToken,
        "the workload token comes from another issuer";
    TokenWrongAudience = "token-wrong-audience", UNAUTHORIZED, RefreshToken,
        "the workload token is for another audience than miren-telemetry";
    TokenNotSystem = "token-not-system", UNAUTHORIZED, RefreshToken, "the workload token is no system token";
    TokenWrongWorkload = "token-wrong-workload", UNAUTHORIZED, RefreshToken,
        "the workload token is for another workload than telemetrywriter";
    TokenWrongWriter = "token-wrong-writer", UNAUTHORIZED, RefreshToken,
        "the token is not that of the writer whose certificate comes with it";
    // 403
    TokenRunnerMismatch = "token-runner-mismatch", FORBIDDEN, Forbidden,
        "the workload token and the client certificate name different runners";
    TokenSignalNotGranted = "token-signal-not-granted", FORBIDDEN, Forbidden,
        "the workload token does not grant this signal";
    RunnerRemoved = "runner-removed", FORBIDDEN, Forbidden, "this runner was removed from the cluster";
    WriterUnknown = "writer-unknown", FORBIDDEN, Forbidden,
        "the client certificate belongs to no writer of this relay any more";
    CertificateExpired = "certificate-expired", FORBIDDEN, Forbidden, "the client certificate has expired";
    TenantUnknown = "tenant-unknown", FORBIDDEN, Forbidden, "no tenant is configured for this runner";
    SignalDisabled = "signal-disabled", FORBIDDEN, Forbidden, "this coordinator does not take this signal";
    MintNotAllowed = "mint-not-allowed", FORBIDDEN, Forbidden,
        "tokens for this workload, audience or signal are not minted here";
    CertificateRequestMismatch = "certificate-request-mismatch", FORBIDDEN, Forbidden,
        "the certificate request names someone else than the runner whose certificate asks";
    // 404, 405, 408, 411, 413, 415
    RouteUnknown = "route-unknown", NOT_FOUND, Reject, "there is nothing at this path";
    RenewalNotOffered = "renewal-not-offered", NOT_FOUND, Reject,
        "this coordinator does not renew certificates; the operator issues them";
    MethodNotAllowed = "method-not-allowed", METHOD_NOT_ALLOWED, Reject, "this path takes another method";
    BodyTooSlow = "body-too-slow", REQUEST_TIMEOUT, Retry, "the body came too slowly";
    BodyIncomplete = "body-incomplete", REQUEST_TIMEOUT, Retry, "the body broke off before its end";
    LengthRequired = "length-required", LENGTH_REQUIRED, Reject, "Content-Length is required";
    BodyTooLarge = "body-too-large", PAYLOAD_TOO_LARGE, Reject, "the body is larger than 32 MiB";
    DecodedTooLarge = "decoded-too-large", PAYLOAD_TOO_LARGE, Reject, "the body decompresses to more than is allowed";
    ContentTypeUnsupported = "content-type-unsupported", UNSUPPORTED_MEDIA_TYPE, Reject,
        "this Content-Type is not accepted here";
    ContentEncodingUnsupported = "content-encoding-unsupported", UNSUPPORTED_MEDIA_TYPE, Reject,
        "this Content-Encoding is not accepted here";
    // 429
    TenantBusy = "tenant-busy", TOO_MANY_REQUESTS, Retry, "too many requests of this tenant are under way";
    RateLimited = "rate-limited", TOO_MANY_REQUESTS, Retry, "this tenant or runner sends faster than it may";
    MemoryShareExhausted = "memory-share-exhausted", TOO_MANY_REQUESTS, Retry,
        "the bodies under way use up this sender's share of memory";
    MintRateLimited = "mint-rate-limited", TOO_MANY_REQUESTS, Retry, "this runner asks for tokens too often";
    RenewalRateLimited = "renewal-rate-limited", TOO_MANY_REQUESTS, Retry,
        "this runner asks for certificates too often";
    BackendThrottled = "backend-throttled", TOO_MANY_REQUESTS, Retry, "the store asks to slow down";
    // 5xx
    InternalError = "internal-error", INTERNAL_SERVER_ERROR, Retry, "the relay failed; see its log";
    BackendError = "backend-error", BAD_GATEWAY, Retry, "the store answered with an error";
    BackendUnreachable = "backend-unreachable", SERVICE_UNAVAILABLE, Retry, "the store can't be reached";
    BackendUnavailable = "backend-unavailable", SERVICE_UNAVAILABLE, Retry, "the store is not available";
    Draining = "draining", SERVICE_UNAVAILABLE, Retry, "the relay is shutting down";
    MemoryExhausted = "memory-exhausted", SERVICE_UNAVAILABLE, Retry, "the relay's memory for bodies is used up";
    BackendTimeout = "backend-timeout", GATEWAY_TIMEOUT, Retry, "the store did not answer in time";
}

impl Reason {
    /// Reads the header's value; `None` for a reason that we do not know.
    #[must_use]
    pub fn from_header(value: &[u8]) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str().as_bytes() == value)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_unique_kebab_case_and_round_trip() {
        let mut seen = HashSet::new();
        for &reason in Reason::ALL {
            let code = reason.as_str();
            assert!(seen.insert(code), "{code} twice");
            assert!(code.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{code}");
            assert_eq!(Reason::from_header(code.as_bytes()), Some(reason));
        }
        assert_eq!(Reason::from_header(b"no-such-reason"), None);
    }

    #[test]
    fn a_status_has_one_verdict_and_nothing_transient_is_permanent() {
        for &reason in Reason::ALL {
            let expected = match reason.status().as_u16() {
                400 | 404 | 405 | 411 | 413 | 415 => Verdict::Reject,
                401 => Verdict::RefreshToken,
                403 => Verdict::Forbidden,
                408 | 429 | 500..=599 => Verdict::Retry,
                other => panic!("{reason}: status {other} is not in the contract"),
            };
            assert_eq!(reason.verdict(), expected, "{reason}");
        }
    }
}
