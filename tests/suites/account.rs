//! What a relay says about what it refuses: a counter and a log line now and then, and never a word of payload or token.

use http::header::CONTENT_TYPE;
use telemetry_proto::{Reason, Signal};
use telemetry_rig::rig::{Rig, RigRelay};
use telemetry_rig::suite::TestResult;

telemetry_rig::suite! {
    every_refusal_is_counted;
    a_flood_of_refusals_is_a_few_lines_of_log needs [Relay];
    nothing_of_payload_and_token_is_logged_at_any_level needs [Relay];
}

async fn every_refusal_is_counted() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let RigRelay::InProcess(relay) = rig.relay() else { return Err("the relay is elsewhere".into()) };
    let Some(service) = relay.service() else { return Err("the relay is down".into()) };
    for round in 1..=3 {
        client.write(Signal::Metrics).body("up 1\n").send().await?.expect_refusal(Reason::TokenMissing)?;
        let form = client
            .write(Signal::Metrics)
            .without(&CONTENT_TYPE)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        form.token(&rig.token(0)).body("a=b").send().await?.expect_refusal(Reason::ContentTypeUnsupported)?;
        for reason in [Reason::TokenMissing, Reason::ContentTypeUnsupported] {
            assert_eq!(service.metrics().refused(reason), round, "{reason}");
        }
    }
    assert_eq!(service.metrics().refused(Reason::TokenExpired), 0);
    Ok(())
}

async fn a_flood_of_refusals_is_a_few_lines_of_log() -> TestResult {
    let rig = Rig::builder().relay_program("").start().await?;
    let client = rig.raw_client(0).await?;
    for _ in 0..1_000 {
        client.write(Signal::Metrics).body("up 1\n").send().await?.expect_refusal(Reason::TokenMissing)?;
    }
    let log = rig.relay_program().log()?;
    let lines = log.lines().filter(|line| line.contains("token-missing")).count();
    assert!((1..=10).contains(&lines), "{lines} lines");
    Ok(())
}

async fn nothing_of_payload_and_token_is_logged_at_any_level() -> TestResult {
    const SECRET: &str = "s3cr3t-payload";
    let rig = Rig::builder().runners(2).relay_program("").start().await?;
    let client = rig.raw_client(0).await?;
    let tokens = [
        rig.token(0),
        rig.token(1),
        rig.token_for(&rig.runner(0).id).shifted(-7_200).sign(rig.signing_key()),
        format!("{SECRET}.{SECRET}.{SECRET}"),
        SECRET.to_owned(),
    ];
    for token in &tokens {
        for signal in [Signal::Metrics, Signal::Logs] {
            let body = format!("{SECRET} {{\"{SECRET}\n{{\"_msg\":\"{SECRET}\"}}\n");
            let write = || client.write(signal).token(token).body(body.clone());
            let path = format!("{}?{SECRET}={SECRET}", signal.write_path());
            let requests = [
                write(),
                write().announce(3),
                write().header("content-encoding", "gzip"),
                write().header("content-encoding", SECRET),
                write().header("authorization", SECRET).header("miren-batch-id", SECRET),
                write().header("miren-telemetry-stream", SECRET),
                client.request(http::Method::POST, &path).token(token).body(body.clone()),
                client.request(http::Method::POST, &format!("/{SECRET}")).token(token).body(body.clone()),
                client.request(http::Method::POST, "/_identity/token").token(token).body(body.clone()),
            ];
            for request in requests {
                // Whatever the answer is, the log is what counts.
                let answer = request.send().await?;
                assert!(!answer.body.contains(SECRET), "{answer:?}");
            }
        }
    }
    rig.metrics_store().kill().await?;
    client
        .write(Signal::Metrics)
        .token(&tokens[0])
        .body(SECRET)
        .send()
        .await?
        .expect_refusal(Reason::BackendUnreachable)?;

    let log = rig.relay_program().log()?;
    assert!(log.contains("request refused") || log.contains("refused"), "there is no log to look at");
    let said = |secret: &str| log.lines().find(|line| line.contains(secret)).map(str::to_owned);
    assert_eq!(said(SECRET), None);
    for token in &tokens {
        // Nor any part of one: header, claims, signature.
        for part in token.split('.').filter(|part| part.len() > 20) {
            assert_eq!(said(part), None);
        }
    }
    assert_eq!(said("PRIVATE KEY"), None);
    Ok(())
}
