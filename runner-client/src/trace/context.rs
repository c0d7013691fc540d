//! What crosses a process boundary: W3C Trace Context, level 1 (<https://www.w3.org/TR/trace-context/>).

use std::fmt;
use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::id::{SpanId, TraceId};

/// The header in which a caller names its trace and span.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header in which a service names the span that answered.
pub const TRACERESPONSE: HeaderName = HeaderName::from_static("traceresponse");

/// The length of a header of version 00.
const LEN: usize = 55;

/// Names a span of ours, and says whether it is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanContext {
    /// The trace that it belongs to.
    pub trace_id: TraceId,
    /// The span itself.
    pub span_id: SpanId,
    /// Whether it is recorded. Decided once, at the entry.
    pub sampled: bool,
}

/// The caller's trace and span, from its `traceparent`. What else a caller says is not taken: its sampled flag, since a
/// tenant does not decide what the platform records, and `tracestate` and `baggage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    /// The trace to go on with.
    pub trace_id: TraceId,
    /// The caller's span: the parent of ours.
    pub parent_id: SpanId,
}

/// The text is no `traceparent`. It is treated as if it were not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent")]
pub struct TraceParentError;

impl SpanContext {
    /// `00-TRACE-SPAN-FLAGS`: the value of `traceresponse` for whoever answers a request, and of `traceparent` for
    /// whoever makes one.
    #[must_use]
    pub fn header(&self) -> HeaderValue {
        // Hex digits and dashes.
        HeaderValue::from_str(&self.to_string()).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

impl TraceParent {
    /// The one `traceparent` of a request. `None` if it is absent, repeated, or none.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => value.to_str().ok()?.parse().ok(),
            _ => None,
        }
    }
}

/// Of versions of the future the part is read that they share with version 00 (section 3.2.4 of the recommendation).
impl FromStr for TraceParent {
    type Err = TraceParentError;

    fn from_str(text: &str) -> Result<Self, TraceParentError> {
        let bytes = text.as_bytes();
        let (head, rest) = bytes.split_at_checked(LEN).ok_or(TraceParentError)?;
        let version: [u8; 1] = hex(&head[..2])?;
        let is_whole = match version {
            [0] => rest.is_empty(),
            [0xff] => false,
            _ => rest.is_empty() || rest.starts_with(b"-"),
        };
        if !is_whole || head[2] != b'-' || head[35] != b'-' || head[52] != b'-' {
            return Err(TraceParentError);
        }
        let _flags: [u8; 1] = hex(&head[53..])?;
        Ok(Self {
            trace_id: TraceId::from_bytes(hex(&head[3..35])?).ok_or(TraceParentError)?,
            parent_id: SpanId::from_bytes(hex(&head[36..52])?).ok_or(TraceParentError)?,
        })
    }
}

fn hex<const N: usize>(digits: &[u8]) -> Result<[u8; N], TraceParentError> {
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return Err(TraceParentError);
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(bytes)
}

const fn digit(digit: u8) -> Result<u8, TraceParentError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(TraceParentError),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn trace_and_parent_are_taken_and_the_flags_are_not() {
        let parent: TraceParent = EXAMPLE.parse().unwrap();
        assert_eq!(parent.trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(parent.parent_id.to_string(), "00f067aa0ba902b7");
        assert_eq!(EXAMPLE.replace("-01", "-00").parse(), Ok(parent));
        assert_eq!(EXAMPLE.replace("-01", "-ff").parse(), Ok(parent));
    }

    #[test]
    fn versions_of_the_future_are_read_as_far_as_they_are_known() {
        let known: TraceParent = EXAMPLE.parse().unwrap();
        assert_eq!(EXAMPLE.replacen("00", "cc", 1).parse(), Ok(known));
        assert_eq!(format!("{}-what-else", EXAMPLE.replacen("00", "01", 1)).parse(), Ok(known));
    }

    #[test]
    fn what_is_malformed_is_as_good_as_absent() {
        let zero_trace = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        let zero_span = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01";
        for text in [
            "",
            "00",
            zero_trace,
            zero_span,
            &EXAMPLE.to_uppercase(),
            &EXAMPLE.replacen("00", "ff", 1),
            &EXAMPLE.replacen("00", "0x", 1),
            &EXAMPLE.replace('-', "_"),
            &EXAMPLE.replace("-01", "-0g"),
            &format!("{EXAMPLE}-more"),
            &format!("{EXAMPLE} "),
            &format!(" {EXAMPLE}"),
            &EXAMPLE.replacen("00", "01", 1).replace("-01", "-01x"),
            &format!("{}x", EXAMPLE.replacen("00", "cc", 1)),
            &EXAMPLE[..54],
            &"ä".repeat(55),
        ] {
            assert_eq!(text.parse::<TraceParent>(), Err(TraceParentError), "{text}");
        }
    }

    #[test]
    fn a_repeated_header_is_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(TraceParent::from_headers(&headers), None);
        headers.append(TRACEPARENT, HeaderValue::from_static(EXAMPLE));
        assert_eq!(TraceParent::from_headers(&headers), EXAMPLE.parse().ok());
        headers.append(TRACEPARENT, HeaderValue::from_static(EXAMPLE));
        assert_eq!(TraceParent::from_headers(&headers), None);
    }

    #[test]
    fn the_response_names_trace_span_and_flags() {
        let TraceParent { trace_id, parent_id } = EXAMPLE.parse().unwrap();
        let context = SpanContext { trace_id, span_id: parent_id, sampled: true };
        assert_eq!(context.header(), EXAMPLE);
        assert_eq!(SpanContext { sampled: false, ..context }.header(), EXAMPLE.replace("-01", "-00"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*", hex in "[0-9a-f-]{50,60}") {
            let _ = text.parse::<TraceParent>();
            let _ = hex.parse::<TraceParent>();
        }

        #[test]
        fn what_we_write_we_read(sampled: bool) {
            let context = SpanContext { trace_id: TraceId::random(), span_id: SpanId::random(), sampled };
            let expected = TraceParent { trace_id: context.trace_id, parent_id: context.span_id };
            prop_assert_eq!(context.to_string().parse(), Ok(expected));
        }
    }
}
