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
