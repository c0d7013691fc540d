//! What an attacker would try, and what becomes of it.

use http::Method;
use http::header::CONTENT_TYPE;
use serde::Serialize;
use telemetry_certs::{CertificateRefusal, Credentials};
use telemetry_proto::{Reason, Signal, limits};

use crate::raw::{RawClient, RawError, RawRequest, RawResponse};
use crate::rig::{Cluster, Rig, RigError};

/// The name of the metric that every attack tries to get into a store.
pub(super) const ATTACK_METRIC: &str = "demo_attack";

/// One attempt: what should have become of it, and what did.
#[derive(Debug, Clone, Serialize)]
pub struct Attempt {
    /// What was tried.
    pub name: &'static str,
    /// The expected outcome.
    pub expected: String,
    /// The outcome.
    pub got: String,
    /// Whether they are the same.
    pub ok: bool,
}

/// Tries everything, and calls `done` after each attempt.
pub(super) async fn try_all(rig: &Rig, mut done: impl FnMut(&Attempt)) -> Result<Vec<Attempt>, RigError> {
    let mut attempts = Vec::new();
    let mut note = |attempt: Attempt| {
        done(&attempt);
        attempts.push(attempt);
    };
    let foreign = Cluster::new("foreign")?.issue_runner(&rig.runner(0).id)?;
    note(handshake(rig, "no certificate", None, CertificateRefusal::NoCertificate).await);
    note(handshake(rig, "a foreign CA's certificate", Some(&foreign), CertificateRefusal::UnknownCa).await);
    for (name, expected, spoil) in REQUESTS {
        note(request(rig, name, *expected, *spoil).await);
    }
    Ok(attempts)
}

/// Makes a bad request of a good one.
type Spoil = fn(&Rig, &RawClient) -> RawRequest;

/// Every attack that gets past the handshake, with the reason that it is refused for.
const REQUESTS: &[(&str, Reason, Spoil)] = &[
    ("no token", Reason::TokenMissing, |_, client| write(client)),
    ("a token for another audience", Reason::TokenWrongAudience, |rig, client| {
        let token = rig.token_for(&rig.runner(0).id).claim("aud", "miren-registry");
        write(client).token(&token.sign(rig.signing_key()))
    }),
    ("a token for another workload", Reason::TokenWrongWorkload, |rig, client| {
        let token = rig.token_for(&rig.runner(0).id).claim("system_workload", "imagebuilder");
        write(client).token(&token.sign(rig.signing_key()))
    }),
    ("another runner's token", Reason::TokenRunnerMismatch, |rig, client| write(client).token(&rig.token(1))),
    ("an expired token", Reason::TokenExpired, |rig, client| {
        let token = rig.token_for(&rig.runner(0).id).shifted(-7_200);
        write(client).token(&token.sign(rig.signing_key()))
    }),
    ("a read path", Reason::RouteUnknown, |rig, client| {
        client.request(Method::GET, "/_telemetry/metrics/api/v1/export").token(&rig.token(0))
    }),
    ("the delete-series path", Reason::RouteUnknown, |rig, client| {
        let path = "/_telemetry/metrics/api/v1/admin/tsdb/delete_series";
        client.request(Method::POST, path).token(&rig.token(0))
    }),
    ("a form content type", Reason::ContentTypeUnsupported, |rig, client| {
        let request = write(client).without(&CONTENT_TYPE).token(&rig.token(0));
        request.header(CONTENT_TYPE, "application/x-www-form-urlencoded")
    }),
    ("a query string", Reason::QueryNotAllowed, |rig, client| {
        let path = format!("{}?extra_label=miren_runner=r9", Signal::Metrics.write_path());
        client.request(Method::POST, &path).token(&rig.token(0)).body(LINE)
    }),
    ("an oversized body", Reason::BodyTooLarge, |rig, client| {
        write(client).token(&rig.token(0)).announce(limits::MAX_BODY_BYTES + 1)
    }),
];

const LINE: &str = "demo_attack 1\n";

fn write(client: &RawClient) -> RawRequest {
    client.write(Signal::Metrics).body(LINE)
}

async fn request(rig: &Rig, name: &'static str, expected: Reason, spoil: Spoil) -> Attempt {
    let exchange = async {
        let client = rig.raw_client(0).await?;
        spoil(rig, &client).send().await
    };
    let got = match exchange.await {
        Ok(response) => describe(&response),
        Err(error) => error.to_string(),
    };
    let (status, verdict) = (expected.status().as_u16(), expected.verdict());
    attempt(name, format!("{status} {verdict} {expected}"), got)
}

fn describe(response: &RawResponse) -> String {
    let verdict = response.verdict().map_or("no verdict".to_owned(), |verdict| verdict.to_string());
    let reason = response.reason().map_or("no reason".to_owned(), |reason| reason.to_string());
    format!("{} {verdict} {reason}", response.status.as_u16())
}

async fn handshake(
    rig: &Rig,
    name: &'static str,
    credentials: Option<&Credentials>,
    expected: CertificateRefusal,
) -> Attempt {
    let exchange = async {
        let client = rig.raw_client_with(credentials).await?;
        write(&client).token(&rig.token(0)).send().await
    };
    let got = match exchange.await {
        Ok(response) => describe(&response),
        Err(error) => refused_handshake(&error),
    };
    attempt(name, format!("handshake refused: {}", refusal_name(expected)), got)
}

fn refused_handshake(error: &RawError) -> String {
    match error.certificate_refusal() {
        Some(refusal) => format!("handshake refused: {}", refusal_name(refusal)),
        None => error.to_string(),
    }
}

const fn refusal_name(refusal: CertificateRefusal) -> &'static str {
    match refusal {
        CertificateRefusal::NoCertificate => "no certificate",
        CertificateRefusal::UnknownCa => "unknown CA",
        CertificateRefusal::Expired => "expired",
        CertificateRefusal::Revoked => "revoked",
        CertificateRefusal::WrongUsage => "wrong usage",
        _ => "bad certificate",
    }
}

fn attempt(name: &'static str, expected: String, got: String) -> Attempt {
    let ok = expected == got;
    Attempt { name, expected, got, ok }
}
