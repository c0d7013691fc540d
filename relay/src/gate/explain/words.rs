//! What is expected, what is found, and what to do, in words. Whatever a token says is cut and escaped: it may be hostile.

use serde_json::Value;
use telemetry_proto::claims::{self, Audience, ClaimCheck, Claims, Expectations, RunnerBinding};
use telemetry_proto::{Reason, limits};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Question, Shown};
use crate::gate::authenticate::FormCheck;
use crate::gate::keys::KeySet;

/// The most characters that are shown of one thing that a token says.
const MAX_SHOWN: usize = 120;

/// Name, expectation and finding of a check.
type Words = (&'static str, String, String);

/// Of a check of form and signature.
pub(super) fn form(
    check: FormCheck,
    outcome: Option<Result<(), Reason>>,
    token: &str,
    shown: &Shown,
    keys: &KeySet,
) -> Words {
    let member = |name: &str| shown.header.as_ref().and_then(|header| header.get(name)).map_or_else(absent, value);
    match check {
        FormCheck::Size => {
            ("size", format!("at most {} bytes", limits::MAX_TOKEN_BYTES), format!("{} bytes", token.len()))
        }
        FormCheck::Characters => {
            let other = token.bytes().filter(|byte| !byte.is_ascii_graphic()).count();
            let found = if other == 0 { "nothing else".to_owned() } else { format!("{other} other bytes") };
            ("characters", "visible ASCII".to_owned(), found)
        }
        FormCheck::Segments => {
            let segments = token.split('.').count();
            ("segments", "three, with dots between".to_owned(), segments.to_string())
        }
        FormCheck::Header => {
            let found = match (&shown.header, outcome) {
                (Some(header), Some(Ok(()))) => format!("algorithm {}", header.get("alg").map_or_else(absent, value)),
                (Some(_), _) => "JSON, but not a header of a signed token".to_owned(),
                (None, _) => "no base64url of JSON".to_owned(),
            };
            ("header", "JSON with `alg`, in base64url".to_owned(), found)
        }
        FormCheck::Extensions => ("extensions", "no `crit`".to_owned(), member("crit")),
        FormCheck::KeyName => ("key-name", "`kid`, the name of a key".to_owned(), member("kid")),
        FormCheck::Key => {
            let known: Vec<_> = keys.iter().map(|(kid, _)| kid).collect();
            let known = if known.is_empty() { "no key is known".to_owned() } else { known.join(", ") };
            ("key-known", format!("one of the known keys: {known}"), member("kid"))
        }
        FormCheck::Algorithm => {
            let kid = shown.header.as_ref().and_then(|header| header.get("kid")).and_then(Value::as_str);
            let pinned = kid.and_then(|kid| keys.get(kid)).map(|key| key.algorithm().as_str());
            let expected = pinned.map_or_else(|| "the key's".to_owned(), |name| format!("{name}, which is the key's"));
            ("algorithm", expected, member("alg"))
        }
        FormCheck::Signature => {
            let found = match outcome {
                None => "not looked at",
                Some(Ok(())) => "it verifies",
                Some(Err(Reason::TokenBadSignature)) => "it does not verify",
                Some(Err(_)) => "it can't be decoded",
            };
            ("signature", "verifies with the key".to_owned(), found.to_owned())
        }
        FormCheck::Shape => {
            let found = if shown.claims.is_some() { "all are there".to_owned() } else { printable(&shown.trouble) };
            ("claims-shape", "iss, sub, aud, exp, nbf, iat in their types, no name twice".to_owned(), found)
        }
    }
}

/// Of a rule about claims.
pub(super) fn claim(check: ClaimCheck, claims: Option<&Claims>, question: &Question<'_>) -> Words {
    let expected = question.expected;
    let found = |read: &dyn Fn(&Claims) -> String| claims.map_or_else(|| "no claims to read".to_owned(), read);
    let leeway = expected.leeway.as_secs();
    match check {
        ClaimCheck::Issuer => ("issuer", expected.issuers.join(" or "), found(&|c| printable(&c.iss))),
        ClaimCheck::Audience => ("audience", format!("holds {}", claims::AUDIENCE), found(&|c| audience(&c.aud))),
        ClaimCheck::End => {
            let expected = format!("ends after {}, give or take {leeway} s", time_of_day(question.now));
            ("not-expired", expected, found(&|c| relative(c.exp, question.now)))
        }
        ClaimCheck::Start => {
            let expected = format!("begins before {}, give or take {leeway} s", time_of_day(question.now));
            ("already-valid", expected, found(&|c| relative(c.valid_from(), question.now)))
        }
        ClaimCheck::Lifetime => {
            let longest = span(limits::MAX_TOKEN_LIFETIME.as_secs());
            ("lifetime", format!("at most {longest}"), found(&|c| span(c.lifetime())))
        }
        ClaimCheck::IdentityType => (
            "identity-type",
            claims::IDENTITY_TYPE_SYSTEM.to_owned(),
            found(&|c| c.identity_type.as_deref().map_or_else(absent, printable)),
        ),
        ClaimCheck::Workload => (
            "workload",
            claims::WORKLOAD.to_owned(),
            found(&|c| c.system_workload.as_deref().map_or_else(absent, printable)),
        ),
        ClaimCheck::Runner => {
            let may_miss = if expected.runner_binding == RunnerBinding::IfPresent { ", or nothing" } else { "" };
            let rule = format!("a runner's ID in `{}`{may_miss}", expected.runner_id_claim);
            ("runner-named", rule, named_runner(claims, expected))
        }
    }
}

/// The runner that the token names.
pub(super) fn named_runner(claims: Option<&Claims>, expected: &Expectations) -> String {
    claims.and_then(|claims| claims.extra.get(&expected.runner_id_claim)).map_or_else(absent, value)
}

/// The signals that the token lists.
pub(super) fn granted(claims: Option<&Claims>) -> String {
    match claims.map(|claims| &claims.signals) {
        None => "no claims to read".to_owned(),
        Some(None) => "no list, which grants metrics and logs".to_owned(),
        Some(Some(names)) if names.is_empty() => "an empty list".to_owned(),
        Some(Some(names)) => printable(&names.join(", ")),
    }
}

/// What to do about a check that fails.
pub(super) fn remedy(reason: Reason, check: &'static str) -> &'static str {
    match (reason, check) {
        (Reason::TokenMalformed, "size" | "characters" | "segments" | "header" | "signature") => {
            "hand over the token alone, whole: no `Bearer`, no quotes, no line break in it"
        }
        (Reason::TokenMalformed, "extensions" | "key-name") => {
            "let the issuer write a plain JWT header: alg and kid, no crit"
        }
        (Reason::TokenMalformed, _) => {
            "let the issuer write the contract's claims; where it names the runner by another claim, set \
             tokens.runner_id_claim, and where it names none, tokens.runner_binding = \"if-present\""
        }
        (Reason::TokenUnknownKey, _) => {
            "add the issuer's JWKS to tokens.keys, or keep the key of before in issuer.previous_keys until its tokens end"
        }
        (Reason::TokenBadSignature, "algorithm") => {
            "let the issuer sign with the key's own algorithm; a token that says otherwise is forged, or its kid is wrong"
        }
        (Reason::TokenBadSignature, _) => {
            "the token was changed, or another key has this name: compare the issuer's JWKS"
        }
        (Reason::TokenExpired, _) => "mint a new one; if it should still live, compare the clocks",
        (Reason::TokenNotYetValid, _) => "compare the clocks of issuer and relay",
        (Reason::TokenTooLongLived, _) => "mint one that lives 24 h or less",
        (Reason::TokenWrongIssuer, _) => {
            "correct tokens.issuer, or add the issuer of before to tokens.previous_issuers; every character counts"
        }
        (Reason::TokenWrongAudience, _) => "mint it for the audience miren-telemetry",
        (Reason::TokenNotSystem, _) => "it is a user's token or another's: mint a system token",
        (Reason::TokenWrongWorkload, _) => "mint it for the workload telemetrywriter",
        (Reason::TokenRunnerMismatch, _) => {
            "each runner needs its own; if it was copied, find out how, and remove the runner if it was stolen"
        }
        (Reason::TokenSignalNotGranted, _) => "mint it with this signal, or without a list for metrics and logs",
        (Reason::RunnerRemoved, _) => "take the runner off the list of removed runners, if it is to come back",
        _ => "see the relay's log",
    }
}

fn absent() -> String {
    "none".to_owned()
}

fn value(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text),
        other => printable(&other.to_string()),
    }
}

fn audience(audience: &Audience) -> String {
    match audience {
        Audience::One(one) => printable(one),
        Audience::Many(many) if many.is_empty() => "an empty list".to_owned(),
        Audience::Many(many) => printable(&many.join(", ")),
    }
}

/// Cut, and without control characters.
fn printable(text: &str) -> String {
    if text.is_empty() {
        return "empty".to_owned();
    }
    let escape = |out: String, c: char| {
        if c.is_control() { out + &c.escape_default().to_string() } else { out + c.encode_utf8(&mut [0; 4]) }
    };
    let cut = text.chars().take(MAX_SHOWN).fold(String::new(), escape);
    if text.chars().nth(MAX_SHOWN).is_some() { cut + " ..." } else { cut }
}

fn time_of_day(unix: u64) -> String {
    let time = i64::try_from(unix).ok().and_then(|unix| OffsetDateTime::from_unix_timestamp(unix).ok());
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{unix} s after 1970"))
}

fn relative(unix: u64, now: u64) -> String {
    let distance = span(unix.abs_diff(now));
    let relation = if unix >= now { format!("in {distance}") } else { format!("{distance} ago") };
    format!("{} ({relation})", time_of_day(unix))
}

fn span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{minutes} min {} s", seconds % 60),
        3_600..86_400 => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}
