//! What a relay makes of a store that misbehaves, and what it sends to one: nothing transient is permanent, nothing that
//! the store has not acknowledged is delivered, and nothing of the runner's but its body goes upstream.

use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, RETRY_AFTER};
use http::{Method, StatusCode};
use telemetry_proto::{Reason, Signal, Verdict, header};
use telemetry_rig::raw::RawClient;
use telemetry_rig::rig::Rig;
use telemetry_rig::stores::{Cut, Fault, RecordedRequest};
use telemetry_rig::suite::TestResult;

telemetry_rig::suite! {
    a_stores_answer_keeps_its_meaning;
    a_store_that_dies_before_during_or_after_its_answer_has_acknowledged_nothing;
    a_store_that_hangs_is_given_up_with_retry;
    a_store_that_is_away_is_retried_and_written_to_as_soon_as_it_is_back;
    a_redirect_is_not_followed;
    nothing_of_the_runners_but_its_body_goes_upstream;
    the_runners_label_in_the_body_loses_against_the_verified_one;
    a_runner_never_speaks_as_the_coordinator;
    gzip_arrives_as_gzip_and_what_is_none_is_refused;
}

const LINE: &str = "up 1 1790000000000\n";

async fn write(rig: &Rig, client: &RawClient) -> Result<telemetry_rig::raw::RawResponse, telemetry_rig::raw::RawError> {
    client.write(Signal::Metrics).token(&rig.token(0)).body(LINE).send().await
}

async fn a_stores_answer_keeps_its_meaning() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    for (status, reason) in [
        (400, Reason::BackendRejected),
        (429, Reason::BackendThrottled),
        (503, Reason::BackendUnavailable),
        (500, Reason::BackendError),
        (502, Reason::BackendError),
        (504, Reason::BackendError),
        (404, Reason::BackendError),
        (401, Reason::BackendError),
        (413, Reason::BackendError),
    ] {
        rig.built_in_store().script([Fault::Answer(StatusCode::from_u16(status)?)]);
        let answer = write(&rig, &client).await?;
        answer.expect_refusal(reason).map_err(|error| format!("{status}: {error}"))?;
        if reason == Reason::BackendError {
            assert!(answer.body.contains(&format!("backend returned {status}")), "{}", answer.body);
        }
    }
    for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
        rig.built_in_store().script([Fault::AnswerRetryAfter(status, 17)]);
        let answer = write(&rig, &client).await?;
        assert_eq!((answer.status, answer.value(RETRY_AFTER)), (status, Some("17")));
    }
    assert!(rig.metrics_store().samples().await?.is_empty());
    for status in [StatusCode::OK, StatusCode::CREATED, StatusCode::ACCEPTED, StatusCode::NO_CONTENT] {
        rig.built_in_store().script([Fault::Answer(status)]);
        write(&rig, &client).await?.expect_delivered()?;
    }
    Ok(())
}

async fn a_store_that_dies_before_during_or_after_its_answer_has_acknowledged_nothing() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let faults = [
        Fault::CloseAtOnce,
        Fault::StoreThenCut(Cut::BeforeHead),
        Fault::StoreThenCut(Cut::InsideHead),
        Fault::StoreThenCut(Cut::AfterHead),
    ];
    for fault in faults {
        rig.built_in_store().always(Some(fault.clone()));
        let answer = write(&rig, &client).await?;
        assert!(!answer.status.is_success(), "{fault:?}: {answer:?}");
        assert_eq!(answer.verdict(), Some(Verdict::Retry), "{fault:?}: {answer:?}");
    }
    rig.built_in_store().always(None);
    write(&rig, &client).await?.expect_delivered()?;
    Ok(())
}

async fn a_store_that_hangs_is_given_up_with_retry() -> TestResult {
    let rig = Rig::builder().store_timeout(Duration::from_millis(200)).start().await?;
    let client = rig.raw_client(0).await?;
    rig.built_in_store().script([Fault::Hang]);
    write(&rig, &client).await?.expect_refusal(Reason::BackendTimeout)?;
    write(&rig, &client).await?.expect_delivered()?;
    Ok(())
}

async fn a_store_that_is_away_is_retried_and_written_to_as_soon_as_it_is_back() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    write(&rig, &client).await?.expect_delivered()?;
    rig.metrics_store().kill().await?;
    for _ in 0..3 {
        let answer = write(&rig, &client).await?;
        assert_eq!(answer.verdict(), Some(Verdict::Retry), "{answer:?}");
    }
    rig.metrics_store().restart().await?;
    write(&rig, &client).await?.expect_delivered()?;
    assert_eq!(rig.metrics_store().samples().await?.len(), 2);
    Ok(())
}

async fn a_redirect_is_not_followed() -> TestResult {
    let rig = Rig::builder().start().await?;
    let elsewhere = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let place = format!("http://{}/api/v1/import/prometheus", elsewhere.metrics_store().address());
    rig.built_in_store().script([Fault::Redirect(place)]);
    write(&rig, &client).await?.expect_refusal(Reason::BackendError)?;
    assert_eq!(elsewhere.built_in_store().connections(), 0);
    Ok(())
}

async fn nothing_of_the_runners_but_its_body_goes_upstream() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    for signal in [Signal::Metrics, Signal::Logs] {
        let (body, batch) = match signal {
            Signal::Metrics => (LINE, "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
            _ => ("{\"_msg\":\"m\"}\n", "01ARZ3NDEKTSV4RRFFQ69G5FAW"),
        };
        let request = client
            .write(signal)
            .token(&rig.token(0))
            .header(AUTHORIZATION, "Bearer x")
            .header(COOKIE, "a=b")
            .header("AccountID".to_ascii_lowercase(), "7")
            .header("ProjectID".to_ascii_lowercase(), "7")
            .header("projectid", "8")
            .header("vl-extra-fields", "miren_runner=r2")
            .header("vl-stream-fields", "x")
            .header("vl-debug", "1")
            .header("x-forwarded-for", "10.0.0.1")
            .header("forwarded", "for=10.0.0.1")
            .header(header::BATCH_ID, batch)
            .body(body);
        request.send().await?.expect_delivered()?;
    }
    let requests = rig.built_in_store().requests();
    let [metrics, logs] = &requests[..] else { panic!("{requests:?}") };
    let allowed = [HOST, CONTENT_TYPE, http::header::CONTENT_LENGTH];
    for (request, signal) in [(metrics, Signal::Metrics), (logs, Signal::Logs)] {
        assert_eq!((&request.method, request.path.as_str()), (&Method::POST, signal.store_path()));
        let others: Vec<_> = request.headers.keys().filter(|name| !allowed.contains(name)).collect();
        assert!(others.is_empty(), "{others:?}");
        assert_eq!(request.headers[CONTENT_TYPE], signal.content_type());
    }
    assert_eq!(decoded(metrics), "extra_label=miren_runner=r1");
    assert_eq!(decoded(logs), "extra_fields=miren_runner=r1&_stream_fields=miren_runner,entity,stream");
    Ok(())
}

fn decoded(request: &RecordedRequest) -> String {
    request.query.replace("%3D", "=").replace("%2C", ",")
}

async fn the_runners_label_in_the_body_loses_against_the_verified_one() -> TestResult {
    let rig = Rig::builder().runners(2).start().await?;
    let client = rig.raw_client(0).await?;
    let body = "up{miren_runner=\"r2\"} 1\nup{miren_runner=\"\",miren_runner=\"r2\"} 2\nup 3\n";
    client.write(Signal::Metrics).token(&rig.token(0)).body(body).send().await?.expect_delivered()?;
    let body = "{\"_msg\":\"a\",\"miren_runner\":\"r2\"}\n{\"_msg\":\"b\"}\n";
    client.write(Signal::Logs).token(&rig.token(0)).body(body).send().await?.expect_delivered()?;
    let samples = rig.metrics_store().samples().await?;
    let lines = rig.log_store().log_lines().await?;
    assert_eq!((samples.len(), lines.len()), (3, 2));
    assert!(samples.iter().all(|sample| sample.label("miren_runner") == "r1"), "{samples:?}");
    assert!(lines.iter().all(|line| line.stream["miren_runner"] == "r1"), "{lines:?}");
    Ok(())
}

async fn a_runner_never_speaks_as_the_coordinator() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let body = "a{entity=\"miren/control\"} 1\nb{entity = \"miren/control\",} 2\nc{entity=\"e\"} 3\nd{x=\"miren/control\"} 4\n";
    for (operational, encoding) in [(false, "identity"), (true, "identity"), (false, "gzip"), (true, "gzip")] {
        let bytes = if encoding == "gzip" { gzip(body.as_bytes())? } else { body.as_bytes().to_vec() };
        let mut request =
            client.write(Signal::Metrics).token(&rig.token(0)).header("content-encoding", encoding).body(bytes);
        if operational {
            request = request.header(header::TELEMETRY_STREAM, header::STREAM_OPERATIONAL);
        }
        request.send().await?.expect_delivered()?;
    }
    let mut names: Vec<String> = rig.metrics_store().samples().await?.into_iter().map(|sample| sample.name).collect();
    names.sort();
    assert_eq!(names, ["c", "c", "c", "c", "d", "d", "d", "d"]);
    Ok(())
}

async fn gzip_arrives_as_gzip_and_what_is_none_is_refused() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let send = async |body: Vec<u8>| {
        client.write(Signal::Metrics).token(&rig.token(0)).header("content-encoding", "gzip").body(body).send().await
    };
    let whole = gzip(LINE.as_bytes())?;
    send(whole.clone()).await?.expect_delivered()?;
    assert_eq!(rig.metrics_store().samples().await?.len(), 1);
    assert_eq!(rig.built_in_store().requests()[0].body, whole);

    let truncated = whole[..whole.len() - 4].to_vec();
    for body in [LINE.as_bytes().to_vec(), truncated] {
        send(body).await?.expect_refusal(Reason::BodyMalformed)?;
    }
    // A bomb: 200 KB that decode to 200 MB.
    let bomb = gzip(&vec![b'\n'; 200_000_000])?;
    send(bomb).await?.expect_refusal(Reason::DecodedTooLarge)?;
    assert_eq!(rig.built_in_store().requests().len(), 1);
    Ok(())
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}
