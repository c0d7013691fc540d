//! The header that carries the token.

use http::HeaderMap;
use telemetry_proto::{Reason, header, limits};

/// The token of a request: the one value of `Miren-Workload-Token`, visible ASCII and at most 8 KiB.
///
/// # Errors
/// [`Reason::TokenMissing`] without the header; [`Reason::TokenMalformed`] when there are two, or when the value can be no
/// token.
pub fn workload_token(headers: &HeaderMap) -> Result<&str, Reason> {
    let mut values = headers.get_all(header::WORKLOAD_TOKEN).iter();
    let value = values.next().ok_or(Reason::TokenMissing)?;
    if values.next().is_some() || value.is_empty() || value.len() > limits::MAX_TOKEN_BYTES {
        return Err(Reason::TokenMalformed);
    }
    let token = value.to_str().map_err(|_| Reason::TokenMalformed)?;
    if token.bytes().all(|byte| byte.is_ascii_graphic()) { Ok(token) } else { Err(Reason::TokenMalformed) }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn with(values: &[&[u8]]) -> HeaderMap {
        let value = |value: &&[u8]| (header::WORKLOAD_TOKEN, HeaderValue::from_bytes(value).unwrap());
        values.iter().map(value).fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(name, value);
            headers
        })
    }

    #[test]
    fn there_is_exactly_one_token() {
        assert_eq!(workload_token(&with(&[b"a.b.c"])), Ok("a.b.c"));
        assert_eq!(workload_token(&with(&[])), Err(Reason::TokenMissing));
        assert_eq!(workload_token(&with(&[b"a.b.c", b"a.b.c"])), Err(Reason::TokenMalformed));
        let mut elsewhere = HeaderMap::new();
        elsewhere.insert(http::header::AUTHORIZATION, HeaderValue::from_static("Bearer a.b.c"));
        assert_eq!(workload_token(&elsewhere), Err(Reason::TokenMissing));
    }

    #[test]
    fn a_value_that_can_be_no_token_is_malformed() {
        let longest = vec![b'a'; limits::MAX_TOKEN_BYTES];
        assert!(workload_token(&with(&[&longest])).is_ok());
        let too_long = vec![b'a'; limits::MAX_TOKEN_BYTES + 1];
        for value in [&b""[..], b" ", b"a b", b" a", b"a\t", b"\xc3\xa4", b"a\xff", &too_long] {
            assert_eq!(workload_token(&with(&[value])), Err(Reason::TokenMalformed), "{value:?}");
        }
    }
}
