//! Fields that no HTTP/3 message may have.

use http::HeaderMap;
use http::header::{CONNECTION, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Whether there are fields that belong to one HTTP/1.1 connection, which make a message malformed (RFC 9114 section 4.2):
/// its stream ends with H3_MESSAGE_ERROR. h3 hands them on.
#[must_use]
pub fn are_malformed(fields: &HeaderMap) -> bool {
    let of_connections = [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TRANSFER_ENCODING, UPGRADE];
    of_connections.iter().any(|name| fields.contains_key(name))
        || fields.get_all(TE).iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"trailers"))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn fields_of_a_connection_are_malformed() {
        let malformed = |name, value| {
            let mut fields = HeaderMap::new();
            fields.insert("content-type", HeaderValue::from_static("text/plain"));
            fields.append(HeaderName::from_static(name), HeaderValue::from_static(value));
            are_malformed(&fields)
        };
        for name in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"] {
            assert!(malformed(name, "x"), "{name}");
        }
        assert!(malformed("te", "gzip") && malformed("te", "trailers, gzip"));
        assert!(!malformed("te", "trailers") && !malformed("te", "Trailers") && !malformed("x-te", "gzip"));
    }
}
