//! The rules for the head of a write request.

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use telemetry_proto::{Reason, Signal, header, limits};

use super::Encoding;
use crate::once::BatchId;
use crate::refusal::Refusal;

/// Settings of the head's rules.
#[derive(Debug, Clone, Copy)]
pub struct HeadRules {
    /// The largest body as received, in bytes.
    pub max_body_bytes: u64,
    /// Whether the store behind this signal reads zstd. Older ones answer success and store garbage.
    pub allow_zstd: bool,
    /// Whether a write may come without `Content-Length`, for writers that can't give one.
    pub allow_unknown_length: bool,
}

/// What is left of the head of a write request once every rule holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteHead {
    /// The length that the body must have, in bytes; `None` only under [`HeadRules::allow_unknown_length`].
    pub content_length: Option<u64>,
    /// How the body is encoded.
    pub encoding: Encoding,
    /// Whether the batch is marked as the runner's own series.
    pub operational: bool,
    /// The batch's ID, if its sender gives it one.
    pub batch_id: Option<BatchId>,
    /// The fields that a log writer names.
    pub log_fields: LogFields,
}

/// The two arguments of the logs route: which fields hold the message and the time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogFields {
    /// `_msg_field`.
    pub message: Option<String>,
    /// `_time_field`.
    pub time: Option<String>,
}

impl WriteHead {
    /// Checks the head of a write of `signal`.
    ///
    /// # Errors
    /// The refusal for the first rule that fails.
    pub fn parse(signal: Signal, parts: &Parts, rules: HeadRules) -> Result<Self, Refusal> {
        let log_fields = LogFields::parse(signal, parts.uri.query())?;
        let headers = &parts.headers;
        if !signal.accepts_content_type(single(headers, &CONTENT_TYPE, Reason::ContentTypeUnsupported)?) {
            return Err(Reason::ContentTypeUnsupported.into());
        }
        let encoding = single(headers, &CONTENT_ENCODING, Reason::ContentEncodingUnsupported)?;
        let encoding = Encoding::parse(encoding, rules.allow_zstd).ok_or(Reason::ContentEncodingUnsupported)?;
        let operational = Self::parse_stream(signal, headers)?;
        let batch_id = BatchId::from_headers(headers)?;
        let content_length = Self::parse_length(headers, rules)?;
        Ok(Self { content_length, encoding, operational, batch_id, log_fields })
    }

    fn parse_stream(signal: Signal, headers: &HeaderMap) -> Result<bool, Refusal> {
        match single(headers, &header::TELEMETRY_STREAM, Reason::HeaderMalformed)? {
            None => Ok(false),
            Some(header::STREAM_OPERATIONAL) if signal == Signal::Metrics => Ok(true),
            Some(_) => Err(Reason::HeaderMalformed.into()),
        }
    }

    fn parse_length(headers: &HeaderMap, rules: HeadRules) -> Result<Option<u64>, Refusal> {
        let Some(text) = single(headers, &CONTENT_LENGTH, Reason::HeaderMalformed)? else {
            return if rules.allow_unknown_length { Ok(None) } else { Err(Reason::LengthRequired.into()) };
        };
        // `u64::from_str` takes a leading plus; RFC 9110 section 8.6 takes digits only.
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(Reason::HeaderMalformed.into());
        }
        match text.parse::<u64>() {
            Ok(length) if length <= rules.max_body_bytes => Ok(Some(length)),
            _ => Err(Reason::BodyTooLarge.into()),
        }
    }
}

impl LogFields {
    fn parse(signal: Signal, query: Option<&str>) -> Result<Self, Refusal> {
        let mut fields = Self::default();
        let Some(query) = query else { return Ok(fields) };
        if signal != Signal::Logs || query.is_empty() {
            return Err(Reason::QueryNotAllowed.into());
        }
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let slot = match &*name {
                "_msg_field" => &mut fields.message,
                "_time_field" => &mut fields.time,
                _ => return Err(Reason::QueryNotAllowed.into()),
            };
            let acceptable = !value.is_empty()
                && value.len() <= limits::MAX_FIELD_NAME_BYTES
                && !value.contains(|c: char| c == ',' || c == char::REPLACEMENT_CHARACTER || c.is_control());
            if slot.is_some() || !acceptable {
                return Err(Refusal::new(Reason::QueryNotAllowed)
                    .with_detail("_msg_field and _time_field take one field name each: at most 128 bytes, no comma"));
            }
            *slot = Some(value.into_owned());
        }
        Ok(fields)
    }
}

/// The one value of a header as visible ASCII. Two values, or other bytes, are refused for `reason`.
fn single<'h>(headers: &'h HeaderMap, name: &HeaderName, reason: Reason) -> Result<Option<&'h str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(reason.into());
    }
    value.to_str().map(|text| Some(text.trim())).map_err(|_| reason.into())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const RULES: HeadRules = HeadRules { max_body_bytes: 100, allow_zstd: false, allow_unknown_length: false };

    fn parse(signal: Signal, query: &str, headers: &[(&str, &str)]) -> Result<WriteHead, Reason> {
        parse_with(RULES, signal, query, headers)
    }

    fn parse_with(
        rules: HeadRules,
        signal: Signal,
        query: &str,
        headers: &[(&str, &str)],
    ) -> Result<WriteHead, Reason> {
        let mut request = Request::post(format!("https://c{}{query}", signal.write_path()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        WriteHead::parse(signal, &parts, rules).map_err(|refusal| refusal.reason())
    }

    #[test]
    fn a_plain_write_needs_a_length_and_nothing_else() {
        let head = parse(Signal::Metrics, "", &[("content-length", "100")]).unwrap();
        assert_eq!((head.content_length, head.encoding, head.operational), (Some(100), Encoding::Identity, false));
        assert_eq!(parse(Signal::Metrics, "", &[]), Err(Reason::LengthRequired));
        let rules = HeadRules { allow_unknown_length: true, ..RULES };
        assert_eq!(parse_with(rules, Signal::Metrics, "", &[]).unwrap().content_length, None);
    }

    #[test]
    fn lengths_are_digits_once_and_within_the_limit() {
        for (values, reason) in [
            (vec!["101"], Reason::BodyTooLarge),
            (vec!["99999999999999999999999"], Reason::BodyTooLarge),
            (vec!["+5"], Reason::HeaderMalformed),
            (vec!["-5"], Reason::HeaderMalformed),
            (vec!["5, 5"], Reason::HeaderMalformed),
            (vec![""], Reason::HeaderMalformed),
            (vec!["0x10"], Reason::HeaderMalformed),
            (vec!["5", "5"], Reason::HeaderMalformed),
        ] {
            let headers: Vec<_> = values.iter().map(|v| ("content-length", *v)).collect();
            assert_eq!(parse(Signal::Logs, "", &headers), Err(reason), "{values:?}");
        }
    }

    #[test]
    fn a_query_is_refused_but_for_the_two_field_names_on_logs() {
        let length = [("content-length", "1")];
        for query in ["?", "?extra_label=a=b", "?_msg_field=m"] {
            assert_eq!(parse(Signal::Metrics, query, &length), Err(Reason::QueryNotAllowed), "{query}");
        }
        let long = format!("?_msg_field={}", "m".repeat(129));
        for query in [
            "?",
            "?debug=1",
            "?_msg_field=a&_msg_field=b",
            "?_msg_field=a,b",
            "?_msg_field=a%2Cb",
            "?_msg_field=",
            "?_time_field=t&extra_fields=x=y",
            "?_MSG_FIELD=m",
            "?_msg_field=%ff",
            "?_msg_field=%00",
            &long,
        ] {
            assert_eq!(parse(Signal::Logs, query, &length), Err(Reason::QueryNotAllowed), "{query}");
        }
        let head = parse(Signal::Logs, "?_msg_field=log.message&_time_field=%40timestamp", &length).unwrap();
        assert_eq!(head.log_fields.message.as_deref(), Some("log.message"));
        assert_eq!(head.log_fields.time.as_deref(), Some("@timestamp"));
    }

    #[test]
    fn types_and_encodings_outside_the_contract_are_415() {
        let with = |name, value| parse(Signal::Metrics, "", &[("content-length", "1"), (name, value)]);
        assert_eq!(with("content-type", "application/x-www-form-urlencoded"), Err(Reason::ContentTypeUnsupported));
        assert_eq!(with("content-type", "text/plain; charset=utf-8").unwrap().encoding, Encoding::Identity);
        assert_eq!(with("content-encoding", "gzip").unwrap().encoding, Encoding::Gzip);
        for encoding in ["zstd", "br", "deflate", "snappy", "gzip, gzip", "x-gzip", ""] {
            assert_eq!(with("content-encoding", encoding), Err(Reason::ContentEncodingUnsupported), "{encoding}");
        }
        let two = [("content-length", "1"), ("content-type", "text/plain"), ("content-type", "text/plain")];
        assert_eq!(parse(Signal::Metrics, "", &two), Err(Reason::ContentTypeUnsupported));
    }

    #[test]
    fn only_metrics_have_an_operational_stream() {
        let headers = [("content-length", "1"), ("miren-telemetry-stream", "operational")];
        assert!(parse(Signal::Metrics, "", &headers).unwrap().operational);
        assert_eq!(parse(Signal::Logs, "", &headers), Err(Reason::HeaderMalformed));
        let other = [("content-length", "1"), ("miren-telemetry-stream", "Operational")];
        assert_eq!(parse(Signal::Metrics, "", &other), Err(Reason::HeaderMalformed));
    }
}
