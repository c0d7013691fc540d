//! The ID of a batch.

use std::fmt;

use http::HeaderMap;
use telemetry_proto::{Reason, header};
use ulid::Ulid;

/// A ULID that the runner chose once for a batch and keeps over retries and restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchId(pub(super) u128);

impl BatchId {
    /// The ID with this value.
    #[must_use]
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    /// Reads `Miren-Batch-Id`; `None` without the header.
    ///
    /// # Errors
    /// [`Reason::HeaderMalformed`] for two values, or one that is no ULID.
    pub fn from_headers(headers: &HeaderMap) -> Result<Option<Self>, Reason> {
        let mut values = headers.get_all(header::BATCH_ID).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let text = value.to_str().map_err(|_| Reason::HeaderMalformed)?;
        if values.next().is_some() {
            return Err(Reason::HeaderMalformed);
        }
        Ulid::from_string(text).map(|ulid| Some(Self(ulid.0))).map_err(|_| Reason::HeaderMalformed)
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ulid(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[&str]) -> Result<Option<BatchId>, Reason> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::BATCH_ID, value.parse().unwrap());
        }
        BatchId::from_headers(&headers)
    }

    #[test]
    fn one_ulid_or_none() {
        assert_eq!(parse(&[]), Ok(None));
        let id = parse(&["01ARZ3NDEKTSV4RRFFQ69G5FAV"]).unwrap().unwrap();
        assert_eq!(id.to_string(), "01ARZ3NDEKTSV4RRFFQ69G5FAV");
        for bad in [&[""][..], &["01ARZ3NDEKTSV4RRFFQ69G5FA"], &["x"], &["01ARZ3NDEKTSV4RRFFQ69G5FAV"; 2]] {
            assert_eq!(parse(bad), Err(Reason::HeaderMalformed), "{bad:?}");
        }
    }
}
