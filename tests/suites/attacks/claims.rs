//! Tokens that are signed by the issuer's own key and say what no issuer of ours would.

use telemetry_proto::Reason;
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::Suite;

use crate::forge::{Forgery, add_forgeries, also, claims, header, sign, with};

/// A claim with this raw text as its value.
macro_rules! claim {
    ($name:literal, $reason:ident, $claim:literal, $raw:expr) => {
        Forgery { name: $name, reason: Reason::$reason, token: |rig| claim(rig, $claim, $raw) }
    };
}

/// A claim that is there twice, the second time with this raw text.
macro_rules! twice {
    ($name:literal, $claim:literal, $raw:expr) => {
        Forgery {
            name: $name,
            reason: Reason::TokenMalformed,
            token: |rig| sign(rig, &header(rig), also(&claims(rig), $claim, $raw)),
        }
    };
}

/// Claims that are this text.
macro_rules! text {
    ($name:literal, $claims:expr) => {
        Forgery { name: $name, reason: Reason::TokenMalformed, token: |rig| sign(rig, &header(rig), $claims) }
    };
}

pub(crate) fn add(suite: Suite) -> Suite {
    let forgeries = [
        twice!("exp_twice", "exp", "4000000000"),
        twice!("runner_id_twice", "runner_id", "\"r2\""),
        twice!("aud_twice", "aud", "[\"miren-telemetry\"]"),
        twice!("sub_twice", "sub", "\"system:telemetrywriter\""),
        claim!("exp_as_a_string", TokenMalformed, "exp", "\"4000000000\""),
        claim!("exp_as_a_fraction", TokenMalformed, "exp", "4000000000.5"),
        claim!("exp_with_an_exponent", TokenMalformed, "exp", "4e9"),
        claim!("exp_beyond_all_numbers", TokenMalformed, "exp", "1e400"),
        claim!("exp_negative", TokenMalformed, "exp", "-1"),
        claim!("exp_null", TokenMalformed, "exp", "null"),
        claim!("exp_true", TokenMalformed, "exp", "true"),
        claim!("exp_as_a_list", TokenMalformed, "exp", "[4000000000]"),
        claim!("exp_of_2_64", TokenMalformed, "exp", "18446744073709551616"),
        claim!("exp_of_2_64_less_one", TokenTooLongLived, "exp", "18446744073709551615"),
        claim!("exp_zero", TokenExpired, "exp", "0"),
        claim!("nbf_as_a_string", TokenMalformed, "nbf", "\"0\""),
        claim!("nbf_negative", TokenMalformed, "nbf", "-1"),
        claim!("nbf_of_2_64_less_one", TokenNotYetValid, "nbf", "18446744073709551615"),
        claim!("iat_as_a_string", TokenMalformed, "iat", "\"0\""),
        claim!("iat_in_the_beginning", TokenTooLongLived, "iat", "0"),
        claim!("iss_as_a_list", TokenMalformed, "iss", "[\"https://coordinator.test\"]"),
        claim!("iss_with_a_slash", TokenWrongIssuer, "iss", "\"https://coordinator.test/\""),
        claim!("iss_in_capitals", TokenWrongIssuer, "iss", "\"HTTPS://coordinator.test\""),
        claim!("iss_with_nul", TokenWrongIssuer, "iss", "\"https://coordinator.test\\u0000\""),
        claim!("aud_nested", TokenMalformed, "aud", "[[\"miren-telemetry\"]]"),
        claim!("aud_as_an_object", TokenMalformed, "aud", "{\"miren-telemetry\":1}"),
        claim!("aud_null", TokenMalformed, "aud", "null"),
        claim!("aud_as_a_number", TokenMalformed, "aud", "1"),
        claim!("aud_empty", TokenWrongAudience, "aud", "[]"),
        claim!("aud_in_capitals", TokenWrongAudience, "aud", "[\"Miren-Telemetry\"]"),
        claim!("aud_that_begins_alike", TokenWrongAudience, "aud", "[\"miren-telemetry-x\"]"),
        claim!("aud_with_a_blank", TokenWrongAudience, "aud", "[\"miren-telemetry \"]"),
        claim!("aud_as_a_list_in_a_string", TokenWrongAudience, "aud", "\"miren-telemetry,miren-registry\""),
        claim!("sub_as_a_list", TokenMalformed, "sub", "[\"system:telemetrywriter\"]"),
        claim!("identity_type_as_a_list", TokenMalformed, "identity_type", "[\"system\"]"),
        claim!("identity_type_in_capitals", TokenNotSystem, "identity_type", "\"System\""),
        claim!("identity_type_null", TokenNotSystem, "identity_type", "null"),
        claim!("workload_as_a_list", TokenMalformed, "system_workload", "[\"telemetrywriter\"]"),
        claim!("workload_with_a_blank", TokenWrongWorkload, "system_workload", "\"telemetrywriter \""),
        claim!("runner_as_a_number", TokenMalformed, "runner_id", "1"),
        claim!("runner_as_a_list", TokenMalformed, "runner_id", "[\"r1\",\"r2\"]"),
        claim!("runner_as_an_object", TokenMalformed, "runner_id", "{\"id\":\"r1\"}"),
        claim!("runner_null", TokenMalformed, "runner_id", "null"),
        claim!("runner_empty", TokenMalformed, "runner_id", "\"\""),
        claim!("runner_with_nul", TokenMalformed, "runner_id", "\"r1\\u0000\""),
        claim!("runner_with_a_blank", TokenMalformed, "runner_id", "\"r1 \""),
        claim!("runner_with_a_comma", TokenMalformed, "runner_id", "\"r1,extra_label=x\""),
        claim!("runner_with_a_path", TokenMalformed, "runner_id", "\"../r1\""),
        claim!("runner_beyond_ascii", TokenMalformed, "runner_id", "\"r\u{661}\""),
        claim!("runner_star", TokenMalformed, "runner_id", "\"*\""),
        claim!("runner_too_long", TokenMalformed, "runner_id", &format!("\"{}\"", "r".repeat(129))),
        claim!("runner_in_capitals", TokenRunnerMismatch, "runner_id", "\"R1\""),
        claim!("runner_of_another", TokenRunnerMismatch, "runner_id", "\"r2\""),
        claim!("signals_as_a_string", TokenMalformed, "signals", "\"metrics\""),
        claim!("signals_as_an_object", TokenMalformed, "signals", "{\"metrics\":true}"),
        claim!("signals_nested", TokenMalformed, "signals", "[[\"metrics\"]]"),
        claim!("signals_of_numbers", TokenMalformed, "signals", "[1]"),
        claim!("signals_empty", TokenSignalNotGranted, "signals", "[]"),
        claim!("signals_unknown", TokenSignalNotGranted, "signals", "[\"Metrics\",\"*\",\"all\"]"),
        text!("claims_as_a_list", "[]"),
        text!("claims_as_a_string", "\"exp\""),
        text!("claims_null", "null"),
        text!("claims_empty", ""),
        text!("claims_that_are_no_json", "exp=4000000000"),
        text!("claims_beyond_utf_8", b"{\"iss\":\"\xff\"}"),
        Forgery {
            name: "claims_with_more_behind_them",
            reason: Reason::TokenMalformed,
            token: |rig| sign(rig, &header(rig), claims(rig) + "{}"),
        },
        Forgery {
            name: "claims_after_a_byte_order_mark",
            reason: Reason::TokenMalformed,
            token: |rig| sign(rig, &header(rig), format!("\u{feff}{}", claims(rig))),
        },
        claim!("claims_of_nested_lists", TokenMalformed, "x", &"[".repeat(4_000)),
        claim!(
            "claims_of_closed_nested_lists",
            TokenMalformed,
            "x",
            &format!("{}{}", "[".repeat(2_000), "]".repeat(2_000))
        ),
    ];
    add_forgeries(suite, "claims", forgeries)
}

fn claim(rig: &Rig, name: &str, raw: &str) -> String {
    sign(rig, &header(rig), with(&claims(rig), name, raw))
}
