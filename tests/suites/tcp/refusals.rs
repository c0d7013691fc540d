//! What is refused over TCP is what is refused over QUIC, word for word.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request, StatusCode};
use telemetry_certs::testing::{Leaf, Usage};
use telemetry_certs::{CertificateRefusal, Credentials};
use telemetry_proto::{Reason, Route, Signal, header, limits};
use telemetry_rig::raw::RawResponse;
use telemetry_rig::rig::{Cluster, Rig};
use telemetry_rig::suite::{Suite, TestResult};
use telemetry_rig::tcp::{Http, TcpBytes};

pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .test("every_refusal_is_the_same_over_all_transports", &[], every_refusal_is_the_same_over_all_transports)
        .test("certificates_are_refused_over_tcp_too", &[], certificates_are_refused_over_tcp_too)
        .test("a_removed_runner_is_refused_over_tcp_too", &[], a_removed_runner_is_refused_over_tcp_too)
        .test("nothing_that_a_runner_adds_reaches_the_store", &[], nothing_that_a_runner_adds_reaches_the_store)
}

const LINE: &str = "up 1\n";

/// A metrics write that is good but for what is spoilt.
fn good(rig: &Rig) -> Request<Bytes> {
    let request = Request::post(Signal::Metrics.write_path())
        .header(header::WORKLOAD_TOKEN, rig.token(0))
        .header(CONTENT_LENGTH, LINE.len())
        .header(CONTENT_TYPE, "text/plain");
    request.body(Bytes::from_static(LINE.as_bytes())).unwrap_or_default()
}

fn spoilt(rig: &Rig, spoil: impl FnOnce(&mut Request<Bytes>)) -> Request<Bytes> {
    let mut request = good(rig);
    spoil(&mut request);
    request
}

fn set(request: &mut Request<Bytes>, name: impl http::header::IntoHeaderName, value: &str) {
    if let Ok(value) = value.parse() {
        request.headers_mut().insert(name, value);
    }
}

fn add_header(request: &mut Request<Bytes>, name: impl http::header::IntoHeaderName, value: &str) {
    if let Ok(value) = value.parse() {
        request.headers_mut().append(name, value);
    }
}

fn to(request: &mut Request<Bytes>, method: Method, path: &str) {
    *request.method_mut() = method;
    if let Ok(uri) = path.parse() {
        *request.uri_mut() = uri;
    }
}

/// Requests by what is wrong with them.
fn cases(rig: &Rig) -> BTreeMap<&'static str, Request<Bytes>> {
    let write = Signal::Metrics.write_path();
    let stolen = rig.token(1);
    let expired = rig.token_for(&rig.runner(0).id).claim("exp", serde_json::json!(1)).sign(rig.signing_key());
    let for_traces =
        rig.token_for(&rig.runner(0).id).claim("signals", serde_json::json!(["traces"])).sign(rig.signing_key());
    BTreeMap::from([
        ("no token", spoilt(rig, |r| drop(r.headers_mut().remove(header::WORKLOAD_TOKEN)))),
        ("two tokens", spoilt(rig, |r| add_header(r, header::WORKLOAD_TOKEN, &stolen))),
        ("no JWT", spoilt(rig, |r| set(r, header::WORKLOAD_TOKEN, "x"))),
        ("an expired token", spoilt(rig, |r| set(r, header::WORKLOAD_TOKEN, &expired))),
        ("another runner's token", spoilt(rig, |r| set(r, header::WORKLOAD_TOKEN, &stolen))),
        ("a token for traces", spoilt(rig, |r| set(r, header::WORKLOAD_TOKEN, &for_traces))),
        ("another path", spoilt(rig, |r| to(r, Method::POST, "/api/v1/import/prometheus"))),
        ("a longer path", spoilt(rig, |r| to(r, Method::POST, &format!("{write}/")))),
        ("an escaped path", spoilt(rig, |r| to(r, Method::POST, &write.replace("/api", "/%61pi")))),
        ("a path with dots", spoilt(rig, |r| to(r, Method::POST, &write.replace("/import", "/x/../import")))),
        ("another method", spoilt(rig, |r| to(r, Method::PUT, write))),
        ("options", spoilt(rig, |r| to(r, Method::OPTIONS, write))),
        ("a write to the policy", spoilt(rig, |r| to(r, Method::POST, Route::Policy.path()))),
        ("a query", spoilt(rig, |r| to(r, Method::POST, &format!("{write}?extra_label=miren_runner=r2")))),
        ("an empty query", spoilt(rig, |r| to(r, Method::POST, &format!("{write}?")))),
        ("a form", spoilt(rig, |r| set(r, CONTENT_TYPE, "application/x-www-form-urlencoded"))),
        ("an unknown encoding", spoilt(rig, |r| set(r, CONTENT_ENCODING, "zstd"))),
        ("no gzip", spoilt(rig, |r| set(r, CONTENT_ENCODING, "gzip"))),
        ("an unknown stream", spoilt(rig, |r| set(r, header::TELEMETRY_STREAM, "other"))),
        ("a bad batch ID", spoilt(rig, |r| set(r, header::BATCH_ID, "no-ulid"))),
        ("a body for the issuer that is no JSON", spoilt(rig, |r| to(r, Method::POST, Route::MintToken.path()))),
    ])
}

/// What must be the same.
type Essence = (StatusCode, Option<String>, Option<String>, Option<String>, Option<String>, String);

fn essence(answer: &RawResponse) -> Essence {
    let value = |name| answer.value(name).map(str::to_owned);
    let (verdict, reason) = (value(header::VERDICT), value(header::REASON));
    (answer.status, verdict, reason, value(RETRY_AFTER), value(ALLOW), answer.body.clone())
}

async fn every_refusal_is_the_same_over_all_transports() -> TestResult {
    let rig = Rig::builder().runners(2).tcp().start().await?;
    let quic = rig.raw_client(0).await?;
    for (what, request) in cases(&rig) {
        let path = request.uri().to_string();
        let mut over_quic = quic.request(request.method().clone(), &path);
        for (name, value) in request.headers() {
            over_quic = over_quic.header(name, value);
        }
        let expected = over_quic.body(request.body().clone()).send().await?;
        let reason = expected.reason().ok_or_else(|| format!("{what}: {expected:?}"))?;
        expected.expect_refusal(reason)?;
        for http in Http::BOTH {
            let answer = rig.tcp_client(0, http).await?.send(request.clone()).await?;
            assert_eq!(essence(&answer), essence(&expected), "{what} over {http:?}");
        }
    }
    for http in Http::BOTH {
        for length in [limits::MAX_BODY_BYTES + 1, u64::MAX] {
            an_announced_length_is_refused_at_once(&rig, http, length).await?;
        }
    }
    assert_eq!(rig.built_in_store().requests().len(), 0);
    for http in Http::BOTH {
        rig.tcp_client(0, http).await?.send(good(&rig)).await?.expect_delivered()?;
    }
    assert_eq!(rig.built_in_store().requests().len(), 2, "the store does record");
    Ok(())
}

/// No body is sent. hyper's client would not announce what it does not send.
async fn an_announced_length_is_refused_at_once(rig: &Rig, http: Http, length: u64) -> TestResult {
    let mut client = rig.tcp_bytes(0, http).await?;
    client.send(&crate::bodies::head(http, &rig.token(0), length)).await?;
    let mut answer = Vec::new();
    let reason = Reason::BodyTooLarge.as_str();
    // Over HTTP/2 the fields are compressed, but the line for people is not.
    let wanted = match http {
        Http::One => reason,
        Http::Two => Reason::BodyTooLarge.text(),
    };
    loop {
        let more = client.receive().await?;
        answer.extend_from_slice(&more);
        let text = String::from_utf8_lossy(&answer);
        if text.contains(wanted) {
            return Ok(());
        }
        // hyper itself can't count to the largest number over HTTP/1.1, and h2 refuses lengths that no window can hold.
        if more.is_empty() || crate::bodies::is_reset(http, &answer) || text.starts_with("HTTP/1.1 4") {
            assert!(length == u64::MAX, "{text}");
            return Ok(());
        }
    }
}

async fn certificates_are_refused_over_tcp_too() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    let ours = rig.cluster().authority();
    let foreign = Cluster::new("foreign")?;
    let issue = |leaf: Leaf| leaf.issued_by(ours).credentials();
    let cases: [(&str, Option<Credentials>, CertificateRefusal); 6] = [
        ("none", None, CertificateRefusal::NoCertificate),
        (
            "foreign CA",
            Some(Leaf::runner("r1").issued_by(foreign.authority()).credentials()?),
            CertificateRefusal::UnknownCa,
        ),
        ("expired", Some(issue(Leaf::runner("r1").expired())?), CertificateRefusal::Expired),
        ("not yet valid", Some(issue(Leaf::runner("r1").not_yet_valid())?), CertificateRefusal::Expired),
        ("server usage", Some(issue(Leaf::runner("r1").usages(&[Usage::Server]))?), CertificateRefusal::WrongUsage),
        ("the coordinator's own", Some(rig.cluster().coordinator().credentials()?), CertificateRefusal::WrongUsage),
    ];
    for (what, credentials, expected) in cases {
        for http in Http::BOTH {
            // By hand: h2 keeps no more of an error than its text.
            let attempt = async {
                let credentials = credentials.as_ref();
                let roots = rig.cluster().roots();
                let mut client = TcpBytes::connect(rig.relay_address(), roots, credentials, http).await?;
                // A request as early as a client can send it.
                let _ = client.send(&crate::bodies::head(http, &rig.token(0), 0)).await;
                client.receive().await
            };
            match attempt.await {
                Ok(answer) => return Err(format!("{what}: {answer:?}").into()),
                Err(error) => assert_eq!(error.refusal(), Some(expected), "{what} over {http:?}: {error:?}"),
            }
        }
    }
    assert_eq!(rig.built_in_store().requests().len(), 0);
    Ok(())
}

async fn a_removed_runner_is_refused_over_tcp_too() -> TestResult {
    let rig = Rig::builder().runners(2).tcp().start().await?;
    for http in Http::BOTH {
        let mut removed = rig.tcp_client(0, http).await?;
        removed.send(good(&rig)).await?.expect_delivered()?;
        rig.removed().publish([rig.runner(0).id.clone()].into());
        removed.send(good(&rig)).await?.expect_refusal(Reason::RunnerRemoved)?;
        rig.removed().publish([].into());
    }
    Ok(())
}

/// Whatever stands in between, and whatever a runner says of itself: the request to the store is the relay's own.
async fn nothing_that_a_runner_adds_reaches_the_store() -> TestResult {
    let rig = Rig::builder().tcp().start().await?;
    for http in Http::BOTH {
        let request = spoilt(&rig, |request| {
            for (name, value) in [
                ("accountid", "7"),
                ("projectid", "7"),
                ("x-forwarded-for", "127.0.0.1"),
                ("x-forwarded-host", "store"),
                ("forwarded", "for=127.0.0.1"),
                ("authorization", "Basic eDp5"),
                ("x-http-method-override", "DELETE"),
                ("x-original-url", "/api/v1/admin/tsdb/delete_series"),
                ("vl-extra-fields", "miren_runner=r2"),
                ("miren-runner", "r2"),
                ("cookie", "a=b"),
            ] {
                add_header(request, name, value);
            }
            if http == Http::One {
                add_header(request, "connection", "miren-workload-token, keep-alive");
                add_header(request, "te", "trailers, deflate");
            }
        });
        rig.tcp_client(0, http).await?.send(request).await?.expect_delivered()?;
    }
    let requests = rig.built_in_store().requests();
    assert_eq!(requests.len(), 2);
    let shown = format!("{requests:?}").to_ascii_lowercase();
    for foreign in ["accountid", "forwarded", "authorization", "override", "original-url", "vl-extra", "cookie", "r2"] {
        assert!(!shown.contains(foreign), "{foreign}: {shown}");
    }
    assert!(rig.metrics_store().samples().await?.iter().all(|sample| sample.label("miren_runner") == "r1"));
    Ok(())
}
