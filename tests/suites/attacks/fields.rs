//! Fields of a request's head (RFC 9114 section 4.2 and 4.3, RFC 9110).

use h3::error::Code;
use telemetry_proto::{Reason, Route, Signal, header, limits};
use telemetry_rig::raw::{Frame, RequestHead};
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::Suite;

use crate::arena::{ATTACKER, LINE};
use crate::expected::Expected::{self, Delivered, Refused, Reset};
use crate::expected::{Case, add_cases, good_head};

const MALFORMED: Expected = Reset(Code::H3_MESSAGE_ERROR);

/// A good write with these fields after it.
macro_rules! with {
    ($name:literal, $expected:expr, [$(($field:expr, $value:expr)),+ $(,)?]) => {
        Case {
            name: $name,
            expected: $expected,
            frames: |rig| vec![good_head(rig)$(.field($field, $value))+.frame(), Frame::data(LINE)],
        }
    };
}

/// A good write whose field of this name has this value, or several, or none.
macro_rules! instead {
    ($name:literal, $expected:expr, $field:expr, [$($value:expr),*]) => {
        Case {
            name: $name,
            expected: $expected,
            frames: |rig| {
                let values: Vec<Vec<u8>> = vec![$(Vec::from($value)),*];
                vec![replaced(rig, $field, &values).frame(), Frame::data(LINE)]
            },
        }
    };
}

pub(crate) fn add(suite: Suite) -> Suite {
    let suite = add_cases(suite, "fields", names_and_values());
    let suite = add_cases(suite, "fields", pseudo());
    let suite = add_cases(suite, "fields", paths());
    let suite = add_cases(suite, "fields", lengths());
    let suite = add_cases(suite, "fields", tokens());
    add_cases(suite, "fields", many())
}

fn names_and_values() -> Vec<Case> {
    vec![
        with!("name_in_upper_case", MALFORMED, [("X-Shout", "x")]),
        with!("name_empty", MALFORMED, [("", "x")]),
        with!("name_with_a_blank", MALFORMED, [("a b", "x")]),
        with!("name_with_a_colon", MALFORMED, [("a:b", "x")]),
        with!("name_with_nul", MALFORMED, [("a\0b", "x")]),
        with!("name_with_a_line_break", MALFORMED, [("a\r\nb", "x")]),
        with!("name_beyond_ascii", MALFORMED, [("\u{e4}", "x")]),
        with!("value_with_nul", MALFORMED, [("x-a", "a\0b")]),
        with!("value_with_a_line_break", MALFORMED, [("x-a", "a\r\nmiren-workload-token: x")]),
        with!("value_with_a_line_feed", MALFORMED, [("x-a", "a\nb")]),
        with!("value_beyond_ascii", Delivered, [("x-a", b"\xff\xfe")]),
        with!("connection", MALFORMED, [("connection", "close")]),
        with!("keep_alive", MALFORMED, [("keep-alive", "timeout=5")]),
        with!("proxy_connection", MALFORMED, [("proxy-connection", "close")]),
        with!("transfer_encoding", MALFORMED, [("transfer-encoding", "chunked")]),
        with!("upgrade", MALFORMED, [("upgrade", "h2c")]),
        with!("te_gzip", MALFORMED, [("te", "gzip")]),
        with!("te_trailers", Delivered, [("te", "trailers")]),
        with!("expect_continue", Delivered, [("expect", "100-continue")]),
        with!("expect_something_else", Delivered, [("expect", "miracles")]),
        with!(
            "headers_of_the_stores",
            Delivered,
            [("accountid", "7"), ("projectid", "7"), ("vl-extra-fields", "miren_runner=r9"), ("vl-debug", "1"),]
        ),
        with!(
            "batch_id_twice",
            Refused(Reason::HeaderMalformed),
            [("miren-batch-id", "01ARZ3NDEKTSV4RRFFQ69G5FAV"), ("miren-batch-id", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),]
        ),
        with!("batch_id_that_is_none", Refused(Reason::HeaderMalformed), [("miren-batch-id", "../../etc")]),
        with!("content_type_twice", Refused(Reason::ContentTypeUnsupported), [("content-type", "text/plain")]),
        instead!(
            "content_type_of_a_form",
            Refused(Reason::ContentTypeUnsupported),
            "content-type",
            ["application/x-www-form-urlencoded"]
        ),
        with!(
            "content_encoding_twice",
            Refused(Reason::ContentEncodingUnsupported),
            [("content-encoding", "gzip"), ("content-encoding", "gzip"),]
        ),
        with!("gzip_that_is_none", Refused(Reason::BodyMalformed), [("content-encoding", "gzip")]),
    ]
}

/// Where h3 is lenient, one of two values counts or something is not looked at. That is harmless here: nobody stands between
/// a peer and the relay who could see it otherwise, and nothing of a head is handed on.
fn pseudo() -> Vec<Case> {
    vec![
        instead!("method_missing", MALFORMED, ":method", []),
        instead!("method_twice", Delivered, ":method", ["POST", "POST"]),
        instead!("method_empty", MALFORMED, ":method", [""]),
        instead!("method_with_a_blank", MALFORMED, ":method", ["PO ST"]),
        instead!("method_in_lower_case", Refused(Reason::MethodNotAllowed), ":method", ["post"]),
        instead!("method_unknown", Refused(Reason::MethodNotAllowed), ":method", ["DELETE_EVERYTHING"]),
        instead!("method_trace", Refused(Reason::MethodNotAllowed), ":method", ["TRACE"]),
        instead!("connect_with_a_path", Refused(Reason::MethodNotAllowed), ":method", ["CONNECT"]),
        Case {
            name: "connect",
            expected: Refused(Reason::RouteUnknown),
            frames: |_| {
                let head = RequestHead::default().field(":method", "CONNECT").field(":authority", "10.0.0.1:80");
                vec![head.frame(), Frame::data("GET / HTTP/1.1\r\n\r\n")]
            },
        },
        Case {
            name: "connect_extended",
            expected: MALFORMED,
            frames: |rig| {
                let head = replaced(rig, ":method", &["CONNECT"]).field(":protocol", "websocket");
                vec![head.frame(), Frame::data(LINE)]
            },
        },
        instead!("scheme_missing", MALFORMED, ":scheme", []),
        instead!("scheme_twice", Delivered, ":scheme", ["https", "http"]),
        instead!("scheme_http", Delivered, ":scheme", ["http"]),
        instead!("scheme_that_is_none", MALFORMED, ":scheme", ["ht tps"]),
        instead!("authority_missing", MALFORMED, ":authority", []),
        instead!("authority_twice", Delivered, ":authority", ["localhost", "localhost"]),
        instead!("authority_empty", MALFORMED, ":authority", [""]),
        instead!("authority_with_user", Delivered, ":authority", ["user:secret@localhost"]),
        with!("host_beside_another_authority", MALFORMED, [("host", "elsewhere.example")]),
        with!("host_twice", Delivered, [("host", "localhost"), ("host", "localhost")]),
        instead!("path_missing", MALFORMED, ":path", []),
        instead!("path_twice", Delivered, ":path", [WRITE, WRITE]),
        with!("pseudo_after_fields", Delivered, [(":path", WRITE)]),
        with!("pseudo_unknown", MALFORMED, [(":elsewhere", "x")]),
        with!("status_in_a_request", Delivered, [(":status", "200")]),
    ]
}

const WRITE: &str = "/_telemetry/metrics/api/v1/import/prometheus";

fn paths() -> Vec<Case> {
    vec![
        instead!("path_empty", MALFORMED, ":path", [""]),
        instead!("path_star", Refused(Reason::RouteUnknown), ":path", ["*"]),
        instead!(
            "path_absolute",
            MALFORMED,
            ":path",
            ["https://localhost/_telemetry/metrics/api/v1/import/prometheus"]
        ),
        instead!("path_without_slash", MALFORMED, ":path", ["_telemetry/metrics/api/v1/import/prometheus"]),
        instead!("path_with_nul", MALFORMED, ":path", ["/_telemetry/metrics/api/v1/import/prometheus\0"]),
        instead!("path_with_a_blank", MALFORMED, ":path", ["/_telemetry/metrics/api/v1/import/prometheus x"]),
        instead!("path_with_a_fragment", Delivered, ":path", ["/_telemetry/metrics/api/v1/import/prometheus#x"]),
        instead!(
            "path_with_a_backslash",
            Refused(Reason::RouteUnknown),
            ":path",
            ["/_telemetry/metrics\\api/v1/import/prometheus"]
        ),
        instead!(
            "path_with_percent",
            Refused(Reason::RouteUnknown),
            ":path",
            ["/_telemetry/metrics/api/v1/import/%70rometheus"]
        ),
        instead!(
            "path_with_an_encoded_slash",
            Refused(Reason::RouteUnknown),
            ":path",
            ["/_telemetry/metrics%2fapi/v1/import/prometheus"]
        ),
        instead!(
            "path_with_dots",
            Refused(Reason::RouteUnknown),
            ":path",
            ["/_telemetry/metrics/../metrics/api/v1/import/prometheus"]
        ),
        instead!(
            "path_with_encoded_dots",
            Refused(Reason::RouteUnknown),
            ":path",
            ["/_telemetry/metrics/%2e%2e/metrics/api/v1/import/prometheus"]
        ),
        instead!(
            "path_with_two_slashes",
            Refused(Reason::RouteUnknown),
            ":path",
            ["//_telemetry/metrics/api/v1/import/prometheus"]
        ),
        instead!(
            "path_with_more_below",
            Refused(Reason::RouteUnknown),
            ":path",
            ["/_telemetry/metrics/api/v1/import/prometheus/metrics/job/x"]
        ),
        instead!("path_that_reads", Refused(Reason::RouteUnknown), ":path", ["/_telemetry/metrics/api/v1/export"]),
        instead!(
            "path_with_an_empty_query",
            Refused(Reason::QueryNotAllowed),
            ":path",
            ["/_telemetry/metrics/api/v1/import/prometheus?"]
        ),
        instead!("path_of_10_000_bytes", Refused(Reason::RouteUnknown), ":path", [vec![b'/'; 10_000]]),
    ]
}

fn lengths() -> Vec<Case> {
    vec![
        instead!("length_missing", Refused(Reason::LengthRequired), "content-length", []),
        instead!("length_too_short", Refused(Reason::LengthMismatch), "content-length", ["1"]),
        instead!("length_too_long", Refused(Reason::LengthMismatch), "content-length", ["1000"]),
        instead!("length_of_nothing", Refused(Reason::LengthMismatch), "content-length", ["0"]),
        instead!("length_with_a_sign", Refused(Reason::HeaderMalformed), "content-length", ["+19"]),
        instead!("length_negative", Refused(Reason::HeaderMalformed), "content-length", ["-19"]),
        instead!("length_hexadecimal", Refused(Reason::HeaderMalformed), "content-length", ["0x13"]),
        instead!("length_with_a_fraction", Refused(Reason::HeaderMalformed), "content-length", ["19.0"]),
        instead!("length_empty", Refused(Reason::HeaderMalformed), "content-length", [""]),
        instead!("length_as_a_list", Refused(Reason::HeaderMalformed), "content-length", ["19, 19"]),
        instead!("length_twice", Refused(Reason::HeaderMalformed), "content-length", ["19", "19"]),
        instead!("length_twice_and_different", Refused(Reason::HeaderMalformed), "content-length", ["19", "0"]),
        instead!("length_of_2_64", Refused(Reason::BodyTooLarge), "content-length", ["18446744073709551616"]),
        instead!("length_of_1_GiB", Refused(Reason::BodyTooLarge), "content-length", ["1073741824"]),
        instead!("length_with_leading_zeros", Delivered, "content-length", ["00019"]),
    ]
}

fn tokens() -> Vec<Case> {
    const TOKEN: &str = "miren-workload-token";
    vec![
        instead!("token_missing", Refused(Reason::TokenMissing), TOKEN, []),
        instead!("token_empty", Refused(Reason::TokenMalformed), TOKEN, [""]),
        instead!("token_blank", Refused(Reason::TokenMalformed), TOKEN, [" "]),
        instead!("token_too_large", Refused(Reason::TokenMalformed), TOKEN, [vec![b'a'; limits::MAX_TOKEN_BYTES + 1]]),
        instead!("token_beyond_ascii", Refused(Reason::TokenMalformed), TOKEN, [b"\xc3\xa4.b.c"]),
        Case {
            name: "token_twice",
            expected: Refused(Reason::TokenMalformed),
            frames: |rig| {
                let head = good_head(rig).field(header::WORKLOAD_TOKEN.as_str(), rig.token(ATTACKER));
                vec![head.frame(), Frame::data(LINE)]
            },
        },
        Case {
            name: "token_before_a_blank",
            expected: Refused(Reason::TokenMalformed),
            frames: |rig| {
                let padded = format!("{} ", rig.token(ATTACKER));
                vec![replaced(rig, TOKEN, &[padded]).frame(), Frame::data(LINE)]
            },
        },
        Case {
            name: "token_as_a_bearer_only",
            expected: Refused(Reason::TokenMissing),
            frames: |rig| {
                let bearer = format!("Bearer {}", rig.token(ATTACKER));
                vec![replaced(rig, TOKEN, &[""; 0]).field("authorization", bearer).frame(), Frame::data(LINE)]
            },
        },
        Case {
            name: "token_in_the_trailers",
            expected: Refused(Reason::TokenMissing),
            frames: |rig| {
                let trailers = RequestHead::default().field(TOKEN, rig.token(ATTACKER));
                vec![replaced(rig, TOKEN, &[""; 0]).frame(), Frame::data(LINE), trailers.frame()]
            },
        },
    ]
}

fn many() -> Vec<Case> {
    vec![
        Case {
            name: "10_000_fields",
            expected: Reset(Code::H3_EXCESSIVE_LOAD),
            frames: |rig| vec![with_fields(rig, 10_000).frame(), Frame::data(LINE)],
        },
        Case {
            name: "2_000_small_fields",
            expected: Reset(Code::H3_REQUEST_CANCELLED),
            frames: |rig| vec![with_fields(rig, 2_000).frame(), Frame::data(LINE)],
        },
        Case {
            name: "200_fields",
            expected: Delivered,
            frames: |rig| vec![with_fields(rig, 200).frame(), Frame::data(LINE)],
        },
        Case {
            name: "trailers_with_pseudo_fields",
            expected: Delivered,
            frames: |rig| {
                let trailers = RequestHead::default().field(":path", Route::Policy.path());
                vec![good_head(rig).frame(), Frame::data(LINE), trailers.frame()]
            },
        },
        Case {
            name: "trailers_too_large",
            expected: Refused(Reason::BodyIncomplete),
            frames: |rig| {
                let trailers = RequestHead::default().field("x", vec![b'x'; 100_000]);
                vec![good_head(rig).frame(), Frame::data(LINE), trailers.frame()]
            },
        },
    ]
}

fn with_fields(rig: &Rig, count: usize) -> RequestHead {
    (0..count).fold(good_head(rig), |head, _| head.field("x", ""))
}

/// A good head, where the field of this name has these values.
fn replaced(rig: &Rig, field: &str, values: &[impl AsRef<[u8]>]) -> RequestHead {
    let length = LINE.len().to_string();
    let token = (header::WORKLOAD_TOKEN, rig.token(ATTACKER));
    let good: [(&str, &[u8]); 7] = [
        (":method", b"POST"),
        (":scheme", b"https"),
        (":authority", b"localhost"),
        (":path", Signal::Metrics.write_path().as_bytes()),
        ("content-type", b"text/plain"),
        ("content-length", length.as_bytes()),
        (token.0.as_str(), token.1.as_bytes()),
    ];
    good.into_iter().fold(RequestHead::default(), |head, (name, value)| match name == field {
        true => values.iter().fold(head, |head, value| head.field(name, value)),
        false => head.field(name, value),
    })
}
