//! Who and what is refused on the wire: each with its status, verdict and reason, and the store sees nothing of it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{ALLOW, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, Method, StatusCode};
use serde_json::json;
use telemetry_certs::testing::{Leaf, Usage};
use telemetry_certs::{CertificateRefusal, ClusterAuthority, Credentials};
use telemetry_proto::claims::RunnerBinding;
use telemetry_proto::mint::MintResponse;
use telemetry_proto::{Clock, Reason, Route, RunnerId, Signal, header, limits};
use telemetry_relay::gate::SignatureAlgorithm;
use telemetry_relay::issuer::SigningKey;
use telemetry_rig::raw::{RawClient, RawRequest};
use telemetry_rig::rig::{Cluster, Rig};
use telemetry_rig::suite::TestResult;

telemetry_rig::suite! {
    a_good_write_is_delivered;
    certificates_are_refused_in_the_handshake;
    a_request_without_a_token_is_refused;
    tokens_that_break_a_rule_are_refused;
    tokens_signed_by_others_are_refused;
    every_algorithm_of_the_contract_is_accepted_with_its_own_key_only;
    another_runners_token_is_refused;
    a_token_opens_no_signal_that_it_does_not_grant;
    a_removed_runner_is_refused_at_once_and_everywhere;
    a_certificate_that_ends_under_a_connection_is_refused;
    other_paths_and_methods_are_refused;
    query_strings_are_refused;
    content_types_and_encodings_outside_the_contract_are_refused;
    headers_that_are_malformed_or_repeated_are_refused;
    a_body_of_another_length_is_refused;
    an_oversized_body_is_refused_before_it_is_sent;
    tokens_are_minted_for_this_audience_and_workload_only;
    a_runner_that_mints_too_often_is_told_to_wait;
}

const LINE: &str = "up 1\n";

/// A metrics write that is good but for what the test spoils.
fn good(rig: &Rig, client: &RawClient) -> RawRequest {
    client.write(Signal::Metrics).token(&rig.token(0)).body(LINE)
}

fn nothing_reached_the_store(rig: &Rig) {
    let store = rig.built_in_store();
    assert_eq!((store.connections(), store.requests().len()), (0, 0), "{:?}", store.requests());
}

async fn a_good_write_is_delivered() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    good(&rig, &client).send().await?.expect_delivered()?;
    // The tests below may believe their "nothing": the store does record.
    assert_eq!(rig.built_in_store().requests().len(), 1);
    assert_eq!(rig.metrics_store().samples().await?[0].label("miren_runner"), "r1");
    Ok(())
}

async fn certificates_are_refused_in_the_handshake() -> TestResult {
    let rig = Rig::builder().start().await?;
    let ours = rig.cluster().authority();
    let foreign = Cluster::new("foreign")?;
    let issue = |leaf: Leaf, by: &ClusterAuthority| leaf.issued_by(by).credentials();
    let cases: [(&str, Option<Credentials>, CertificateRefusal); 6] = [
        ("none", None, CertificateRefusal::NoCertificate),
        ("foreign CA", Some(issue(Leaf::runner("r1"), foreign.authority())?), CertificateRefusal::UnknownCa),
        ("expired", Some(issue(Leaf::runner("r1").expired(), ours)?), CertificateRefusal::Expired),
        ("not yet valid", Some(issue(Leaf::runner("r1").not_yet_valid(), ours)?), CertificateRefusal::Expired),
        (
            "server usage",
            Some(issue(Leaf::runner("r1").usages(&[Usage::Server]), ours)?),
            CertificateRefusal::WrongUsage,
        ),
        ("the coordinator's own", Some(rig.cluster().coordinator().credentials()?), CertificateRefusal::WrongUsage),
    ];
    for (name, credentials, expected) in cases {
        let attempt = async {
            let client = rig.raw_client_with(credentials.as_ref()).await?;
            good(&rig, &client).send().await
        };
        let Err(error) = attempt.await else { return Err(format!("{name}: accepted").into()) };
        assert_eq!(error.certificate_refusal(), Some(expected), "{name}: {error}");
    }
    nothing_reached_the_store(&rig);
    Ok(())
}

async fn a_request_without_a_token_is_refused() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    for signal in [Signal::Metrics, Signal::Logs, Signal::Traces] {
        client.write(signal).body("{}").send().await?.expect_refusal(Reason::TokenMissing)?;
    }
    // Not a place for a token, however good that is.
    let bearer = format!("Bearer {}", rig.token(0));
    let request = client.write(Signal::Metrics).header(AUTHORIZATION, bearer).body(LINE);
    request.send().await?.expect_refusal(Reason::TokenMissing)?;
    nothing_reached_the_store(&rig);
    Ok(())
}

async fn tokens_that_break_a_rule_are_refused() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let token = || rig.token_for(&rig.runner(0).id);
    let cases = [
        (token().shifted(-7_200), Reason::TokenExpired),
        (token().shifted(7_200), Reason::TokenNotYetValid),
        (token().claim("exp", 4_000_000_000_u64), Reason::TokenTooLongLived),
        (token().claim("iss", "https://coordinator.test/"), Reason::TokenWrongIssuer),
        (token().claim("aud", "miren-registry"), Reason::TokenWrongAudience),
        (token().claim("aud", json!(["miren-registry", "miren-telemetry2"])), Reason::TokenWrongAudience),
        (token().claim("identity_type", "user"), Reason::TokenNotSystem),
        (token().claim("system_workload", "imagebuilder"), Reason::TokenWrongWorkload),
        (token().without("aud"), Reason::TokenMalformed),
        (token().without("exp"), Reason::TokenMalformed),
        (token().without("nbf"), Reason::TokenMalformed),
        (token().without("iat"), Reason::TokenMalformed),
        (token().without("iss"), Reason::TokenMalformed),
        (token().without("sub"), Reason::TokenMalformed),
        (token().without("runner_id"), Reason::TokenMalformed),
        (token().without("identity_type"), Reason::TokenNotSystem),
        (token().without("system_workload"), Reason::TokenWrongWorkload),
    ];
    for (token, reason) in cases {
        let token = token.sign(rig.signing_key());
        client.write(Signal::Metrics).token(&token).body(LINE).send().await?.expect_refusal(reason)?;
    }
    let good_token = rig.token(0);
    for text in ["", "x", "a.b", "a.b.c.d", &"x".repeat(limits::MAX_TOKEN_BYTES + 1), &format!("{good_token} ")] {
        let answer = client.write(Signal::Metrics).token(text).body(LINE).send().await?;
        // HTTP/3 strips no blanks: a token with one is another token.
        answer.expect_refusal(Reason::TokenMalformed)?;
    }
    let twice = good(&rig, &client).token(&good_token).send().await?;
    twice.expect_refusal(Reason::TokenMalformed)?;
    nothing_reached_the_store(&rig);
    Ok(())
}

async fn tokens_signed_by_others_are_refused() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let write = async |token: String| client.write(Signal::Metrics).token(&token).body(LINE).send().await;
    let token = || rig.token_for(&rig.runner(0).id);
    let ours = rig.signing_key();
    let other = SigningKey::generate(SignatureAlgorithm::EdDsa)?;

    write(token().sign(&other)).await?.expect_refusal(Reason::TokenUnknownKey)?;
    write(token().kid("").sign(&other)).await?.expect_refusal(Reason::TokenUnknownKey)?;
    write(token().kid(ours.kid()).sign(&other)).await?.expect_refusal(Reason::TokenBadSignature)?;
    let (genuine, other) = (token().sign(ours), token().claim("jti", "x").sign(ours));
    let (Some((signed, signature)), Some((_, foreign_signature))) = (genuine.rsplit_once('.'), other.rsplit_once('.'))
    else {
        return Err("no JWT".into());
    };
    assert_ne!(signature, foreign_signature);
    write(format!("{signed}.{foreign_signature}")).await?.expect_refusal(Reason::TokenBadSignature)?;
    let unsigned = write(format!("{signed}.")).await?;
    assert!(matches!(unsigned.reason(), Some(Reason::TokenBadSignature | Reason::TokenMalformed)), "{unsigned:?}");
    nothing_reached_the_store(&rig);
    Ok(())
}

async fn every_algorithm_of_the_contract_is_accepted_with_its_own_key_only() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let token = || rig.token_for(&rig.runner(0).id);
    let mut keys = Vec::new();
    for algorithm in [SignatureAlgorithm::Rs256, SignatureAlgorithm::Es256, SignatureAlgorithm::EdDsa] {
        let key = SigningKey::generate(algorithm)?;
        rig.issuer().rotate(key, |public| rig.verifier().publish_keys(public))?;
        keys.push(rig.issuer().keys().signing());
    }
    for key in &keys {
        let delivered = client.write(Signal::Metrics).token(&token().sign(key)).body(LINE).send().await?;
        delivered.expect_delivered()?;
        for other in keys.iter().filter(|other| other.kid() != key.kid()) {
            let confused = token().kid(other.kid()).sign(key);
            let refused = client.write(Signal::Metrics).token(&confused).body(LINE).send().await?;
            refused.expect_refusal(Reason::TokenBadSignature)?;
        }
    }
    assert_eq!(rig.built_in_store().requests().len(), keys.len());
    Ok(())
}

async fn another_runners_token_is_refused() -> TestResult {
    for binding in [RunnerBinding::Required, RunnerBinding::IfPresent] {
        let rig = Rig::builder().runners(2).runner_binding(binding).start().await?;
        let client = rig.raw_client(0).await?;
        let stolen = client.write(Signal::Metrics).token(&rig.token(1)).body(LINE).send().await?;
        stolen.expect_refusal(Reason::TokenRunnerMismatch)?;
        nothing_reached_the_store(&rig);
    }
    Ok(())
}

async fn a_token_opens_no_signal_that_it_does_not_grant() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let write = async |signal: Signal, grants: Option<&[&str]>| {
        let mut token = rig.token_for(&rig.runner(0).id);
        if let Some(grants) = grants {
            token = token.claim("signals", json!(grants));
        }
        client.write(signal).token(&token.sign(rig.signing_key())).body("{}\n").send().await
    };
    let refused: [(Signal, Option<&[&str]>); 6] = [
        (Signal::Metrics, Some(&["traces"])),
        (Signal::Metrics, Some(&["logs"])),
        (Signal::Metrics, Some(&[])),
        (Signal::Logs, Some(&["metrics", "traces", "profiles"])),
        (Signal::Traces, Some(&["metrics", "logs"])),
        (Signal::Traces, None),
    ];
    for (signal, grants) in refused {
        write(signal, grants).await?.expect_refusal(Reason::TokenSignalNotGranted)?;
    }
    // Granted, but this coordinator has no store for it.
    write(Signal::Traces, Some(&["traces"])).await?.expect_refusal(Reason::SignalDisabled)?;
    nothing_reached_the_store(&rig);
    Ok(())
}

async fn a_removed_runner_is_refused_at_once_and_everywhere() -> TestResult {
    let rig = Rig::builder().runners(2).start().await?;
    let (removed, other) = (rig.raw_client(0).await?, rig.raw_client(1).await?);
    good(&rig, &removed).send().await?.expect_delivered()?;
    rig.removed().publish([rig.runner(0).id.clone()].into());
    let requests = [
        good(&rig, &removed),
        removed.request(Method::POST, Route::MintToken.path()).body("{}"),
        removed.request(Method::GET, Route::Policy.path()),
    ];
    for request in requests {
        // The relay may close the connection of a removed runner.
        match request.send().await {
            Ok(answer) => answer.expect_refusal(Reason::RunnerRemoved)?,
            Err(error) => assert!(removed.connection().close_reason().is_some(), "{error}"),
        }
    }
    other.write(Signal::Metrics).token(&rig.token(1)).body(LINE).send().await?.expect_delivered()?;
    assert_eq!(rig.built_in_store().requests().len(), 2);
    Ok(())
}

async fn a_certificate_that_ends_under_a_connection_is_refused() -> TestResult {
    struct Future(Duration);
    impl Clock for Future {
        fn now(&self) -> SystemTime {
            SystemTime::now() + self.0
        }
    }
    let a_year = Duration::from_secs(365 * 24 * 3_600);
    let rig = Rig::builder().relay(move |relay| relay.clock(Arc::new(Future(a_year)))).start().await?;
    let client = rig.raw_client(0).await?;
    good(&rig, &client).send().await?.expect_refusal(Reason::CertificateExpired)?;
    nothing_reached_the_store(&rig);
    Ok(())
}

async fn other_paths_and_methods_are_refused() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let ask = |method: Method, path: &str| client.request(method, path).token(&rig.token(0)).body(LINE);
    let write = Signal::Metrics.write_path();
    let paths = [
        "/".to_owned(),
        "/_telemetry/metrics/api/v1/query".to_owned(),
        "/_telemetry/metrics/api/v1/export".to_owned(),
        "/_telemetry/metrics/api/v1/admin/tsdb/delete_series".to_owned(),
        "/_telemetry/logs/select/logsql/query".to_owned(),
        "/_telemetry/logs/delete/run_task".to_owned(),
        "/api/v1/import/prometheus".to_owned(),
        "/api/v1/admin/tsdb/delete_series".to_owned(),
        "/internal/force_flush".to_owned(),
        "/metrics".to_owned(),
        format!("{write}/"),
        format!("{write}/metrics/job/x"),
        write.replace("/api", "//api"),
        write.replace("/api", "/%61pi"),
        write.replace("/api", "%2fapi"),
        write.replace("/import", "/x/../import"),
        write.to_uppercase(),
    ];
    for path in &paths {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            ask(method, path).send().await?.expect_refusal(Reason::RouteUnknown)?;
        }
    }
    for route in Route::ALL {
        for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::HEAD, Method::OPTIONS] {
            if method == route.method() {
                continue;
            }
            let answer = ask(method.clone(), route.path()).send().await?;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {}", route.path());
            assert_eq!(answer.reason(), Some(Reason::MethodNotAllowed));
            assert_eq!(answer.value(ALLOW), Some(route.method().as_str()));
        }
    }
    nothing_reached_the_store(&rig);
    Ok(())
}

async fn query_strings_are_refused() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let long = format!("_msg_field={}", "x".repeat(limits::MAX_FIELD_NAME_BYTES + 1));
    let of_logs = ["_msg_field=a,b", "_msg_field=", "_msg_field=a&_msg_field=b", "_stream_fields=x", "debug=1", &long];
    let of_both =
        ["", "extra_label=miren_runner=r2", "extra_fields=miren_runner%3Dr2", "timestamp=1", "_msg_field=a&x=1"];
    let of_metrics = ["_msg_field=a", "_time_field=a"];
    let cases = [
        (Signal::Metrics, &of_metrics[..]),
        (Signal::Metrics, &of_both),
        (Signal::Logs, &of_both),
        (Signal::Logs, &of_logs),
    ];
    for (signal, queries) in cases {
        for query in queries {
            let path = format!("{}?{query}", signal.write_path());
            let request = client.request(Method::POST, &path).token(&rig.token(0)).body("{\"_msg\":\"x\"}\n");
            request
                .send()
                .await?
                .expect_refusal(Reason::QueryNotAllowed)
                .map_err(|e| format!("{signal} {query:?}: {e}"))?;
        }
    }
    nothing_reached_the_store(&rig);

    let path = format!("{}?_msg_field=message&_time_field=at", Signal::Logs.write_path());
    let body = "{\"message\":\"m\",\"at\":\"2026-09-01T00:00:00Z\",\"miren_runner\":\"r2\"}\n";
    client.request(Method::POST, &path).token(&rig.token(0)).body(body).send().await?.expect_delivered()?;
    let lines = rig.log_store().log_lines().await?;
    assert_eq!((lines[0].field("_msg"), lines[0].field("_time")), ("m", "2026-09-01T00:00:00Z"));
    assert_eq!(lines[0].field("miren_runner"), "r1");
    Ok(())
}

async fn content_types_and_encodings_outside_the_contract_are_refused() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let with = |signal: Signal, name: HeaderName, value: &str| {
        client.write(signal).without(&name).header(name, value).token(&rig.token(0)).body(LINE)
    };
    for signal in [Signal::Metrics, Signal::Logs] {
        for form in [
            "application/x-www-form-urlencoded",
            "APPLICATION/X-WWW-FORM-URLENCODED; a=b",
            "multipart/form-data; boundary=x",
        ] {
            with(signal, CONTENT_TYPE, form).send().await?.expect_refusal(Reason::ContentTypeUnsupported)?;
        }
        let twice = with(signal, CONTENT_TYPE, "application/x-www-form-urlencoded").header(CONTENT_TYPE, "text/plain");
        twice.send().await?.expect_refusal(Reason::ContentTypeUnsupported)?;
        for encoding in ["zstd", "snappy", "deflate", "br", "gzip, gzip", "x"] {
            with(signal, CONTENT_ENCODING, encoding)
                .send()
                .await?
                .expect_refusal(Reason::ContentEncodingUnsupported)?;
        }
    }
    with(Signal::Metrics, CONTENT_TYPE, "application/json")
        .send()
        .await?
        .expect_refusal(Reason::ContentTypeUnsupported)?;
    nothing_reached_the_store(&rig);
    Ok(())
}

async fn headers_that_are_malformed_or_repeated_are_refused() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    good(&rig, &client).without(&CONTENT_LENGTH).send().await?.expect_refusal(Reason::LengthRequired)?;
    let malformed = [
        good(&rig, &client).header(header::TELEMETRY_STREAM, "other"),
        good(&rig, &client)
            .header(header::TELEMETRY_STREAM, "operational")
            .header(header::TELEMETRY_STREAM, "operational"),
        client.write(Signal::Logs).header(header::TELEMETRY_STREAM, "operational").token(&rig.token(0)).body("{}"),
    ];
    for request in malformed {
        request.send().await?.expect_refusal(Reason::HeaderMalformed)?;
    }
    nothing_reached_the_store(&rig);
    Ok(())
}

async fn a_body_of_another_length_is_refused() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    for length in [0, 1, LINE.len() as u64 - 1] {
        good(&rig, &client).announce(length).send().await?.expect_refusal(Reason::LengthMismatch)?;
    }
    for length in [LINE.len() as u64 + 1, 1_000_000] {
        good(&rig, &client).announce(length).send().await?.expect_refusal(Reason::LengthMismatch)?;
    }
    nothing_reached_the_store(&rig);
    Ok(())
}

async fn an_oversized_body_is_refused_before_it_is_sent() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    for length in [limits::MAX_BODY_BYTES + 1, u64::MAX] {
        good(&rig, &client).announce(length).send().await?.expect_refusal(Reason::BodyTooLarge)?;
    }
    nothing_reached_the_store(&rig);
    Ok(())
}

async fn tokens_are_minted_for_this_audience_and_workload_only() -> TestResult {
    let rig = Rig::builder().runners(2).start().await?;
    let client = rig.raw_client(0).await?;
    let mint = |body: serde_json::Value| {
        client
            .request(Method::POST, Route::MintToken.path())
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string())
    };
    for body in [
        json!({"system_workload": "telemetrywriter", "audience": ["miren-registry"]}),
        json!({"system_workload": "telemetrywriter", "audience": ["miren-telemetry", "miren-registry"]}),
        json!({"system_workload": "telemetrywriter", "audience": []}),
        json!({"system_workload": "imagebuilder", "audience": ["miren-telemetry"]}),
    ] {
        mint(body).send().await?.expect_refusal(Reason::MintNotAllowed)?;
    }
    for body in ["", "{", "[]", "{\"system_workload\":1}"] {
        let request = client.request(Method::POST, Route::MintToken.path()).body(body);
        request.send().await?.expect_refusal(Reason::BodyMalformed)?;
    }

    // Whoever asks for another runner's name gets his own.
    let answer =
        mint(json!({"system_workload": "telemetrywriter", "audience": ["miren-telemetry"], "runner_id": "r2"}))
            .send()
            .await?;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let minted: MintResponse = serde_json::from_str(&answer.body)?;
    client.write(Signal::Metrics).token(&minted.token).body(LINE).send().await?.expect_delivered()?;
    let other = rig.raw_client(1).await?;
    let stolen = other.write(Signal::Metrics).token(&minted.token).body(LINE).send().await?;
    stolen.expect_refusal(Reason::TokenRunnerMismatch)?;
    assert_eq!(rig.metrics_store().samples().await?.len(), 1);
    Ok(())
}

async fn a_runner_that_mints_too_often_is_told_to_wait() -> TestResult {
    let rig = Rig::builder().runners(2).mint_rate(1, 2).start().await?;
    let mint = async |client: &RawClient| {
        let body = json!({"system_workload": "telemetrywriter", "audience": ["miren-telemetry"]}).to_string();
        client.request(Method::POST, Route::MintToken.path()).body(body).send().await
    };
    let (eager, other) = (rig.raw_client(0).await?, rig.raw_client(1).await?);
    for _ in 0..2 {
        assert_eq!(mint(&eager).await?.status, StatusCode::OK);
    }
    mint(&eager).await?.expect_refusal(Reason::MintRateLimited)?;
    assert_eq!(mint(&other).await?.status, StatusCode::OK);
    let runner = RunnerId::new("r1")?;
    assert!(rig.issuer().retry_after(&runner) > Duration::from_secs(30));
    Ok(())
}
