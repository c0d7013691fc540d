//! Bodies that are not what they claim: nothing but a whole one reaches a store, and none of them harms anyone else.

#![allow(clippy::print_stderr, reason = "measurements are for people")]

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use telemetry_proto::{Reason, Signal, limits};
use telemetry_rig::raw::{Ending, Frame, Outcome, RequestHead};
use telemetry_rig::rig::{Rig, StoreKind};
use telemetry_rig::suite::TestResult;
use tokio::time::Instant;

telemetry_rig::suite! {
    a_body_cut_off_at_any_byte_never_reaches_the_store;
    a_frame_that_ends_early_is_no_body;
    empty_data_frames_neither_end_a_body_nor_last_for_ever;
    huge_headers_are_refused;
    the_largest_body_is_accepted_and_one_byte_more_is_not;
    eight_of_the_largest_bodies_at_once_are_delivered;
    the_largest_bodies_that_must_be_worked_on_do_not_wait_for_each_other;
}

const BODY: &str = "first{a=\"b\"} 1 1790000000000\nsecond 22222 1790000000000\n";

async fn a_body_cut_off_at_any_byte_never_reaches_the_store() -> TestResult {
    let rig = Rig::builder().start().await?;
    for ending in [Ending::Fin, Ending::Reset, Ending::Close] {
        let mut client = rig.raw_client(0).await?;
        for bytes in 0..BODY.len() {
            let request = client.write(Signal::Metrics).token(&rig.token(0)).body(BODY).cut(bytes, ending);
            match (ending, request.send().await) {
                (Ending::Fin, Ok(answer)) => answer.expect_refusal(Reason::LengthMismatch)?,
                (Ending::Reset, Ok(answer)) => answer.expect_refusal(Reason::BodyIncomplete)?,
                (Ending::Fin, Err(error)) => return Err(format!("{bytes}: {error}").into()),
                (Ending::Reset, Err(_)) => {}
                (Ending::Close, _) => client = rig.raw_client(0).await?,
            }
        }
    }
    assert_eq!(rig.built_in_store().requests().len(), 0);
    let client = rig.raw_client(0).await?;
    client.write(Signal::Metrics).token(&rig.token(0)).body(BODY).send().await?.expect_delivered()?;
    assert_eq!(rig.metrics_store().samples().await?.len(), 2);
    Ok(())
}

async fn a_frame_that_ends_early_is_no_body() -> TestResult {
    let rig = Rig::builder().start().await?;
    let neighbour = rig.raw_client(0).await?;
    let token = rig.token(0);
    let length = BODY.len() as u64;
    for announced in [length, length + 1, 2 * length] {
        let peer = rig.hand_made(0).await?;
        // The DATA frame announces more than comes before the end of the stream; so does Content-Length, or not.
        let head = RequestHead::write(Signal::Metrics, &token, announced).frame();
        let outcome = peer.exchange(&[head, Frame::data(BODY).announcing(2 * length + 1)]).await?;
        assert!(matches!(outcome, Outcome::Reset(_) | Outcome::Closed(_)), "{outcome:?}");
    }
    assert!(rig.built_in_store().requests().is_empty());
    neighbour.write(Signal::Metrics).token(&token).body(BODY).send().await?.expect_delivered()?;
    Ok(())
}

async fn empty_data_frames_neither_end_a_body_nor_last_for_ever() -> TestResult {
    let rig = Rig::builder().start().await?;
    let peer = rig.hand_made(0).await?;
    let head = || RequestHead::write(Signal::Metrics, &rig.token(0), BODY.len() as u64).frame();
    let (first, second) = BODY.split_at(10);
    let frames = [head(), Frame::data(""), Frame::data(first), Frame::data(""), Frame::data(second), Frame::data("")];
    assert!(matches!(peer.exchange(&frames).await?, Outcome::Answered(answer) if !answer.is_empty()));
    assert_eq!(rig.metrics_store().samples().await?.len(), 2);

    let mut frames = vec![head(), Frame::data(first)];
    frames.extend(std::iter::repeat_n(Frame::data(""), 100_000));
    frames.push(Frame::data(second));
    let outcome = peer.exchange(&frames).await?;
    assert!(matches!(outcome, Outcome::Reset(_) | Outcome::Closed(_)), "{outcome:?}");
    assert_eq!(rig.built_in_store().requests().len(), 1);
    Ok(())
}

async fn huge_headers_are_refused() -> TestResult {
    let rig = Rig::builder().start().await?;
    let neighbour = rig.raw_client(0).await?;
    let token = rig.token(0);
    let peer = rig.hand_made(0).await?;
    let head = RequestHead::write(Signal::Metrics, &token, 0).field("x-large", vec![b'x'; 1_000_000]).frame();
    let outcome = peer.exchange(&[head]).await?;
    assert!(!matches!(&outcome, Outcome::Answered(answer) if answer.is_empty()), "{outcome:?}");
    // Announced only: nothing is held for what does not come.
    let peer = rig.hand_made(0).await?;
    let outcome = peer.exchange(&[Frame::headers(Bytes::from_static(b"\0\0")).announcing(1 << 40)]).await?;
    assert!(matches!(outcome, Outcome::Reset(_) | Outcome::Closed(_)), "{outcome:?}");
    assert!(rig.built_in_store().requests().is_empty());
    neighbour.write(Signal::Metrics).token(&token).body(BODY).send().await?.expect_delivered()?;
    Ok(())
}

/// Comment lines, which the store reads and skips, and one sample.
fn body_of(bytes: usize) -> Bytes {
    let mut body = b"up 1 1790000000000\n".to_vec();
    let line = [&[b'#'; 1_023][..], b"\n"].concat();
    while body.len() + line.len() <= bytes {
        body.extend_from_slice(&line);
    }
    body.resize(bytes, b'#');
    body.into()
}

async fn the_largest_body_is_accepted_and_one_byte_more_is_not() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let largest = usize::try_from(limits::MAX_BODY_BYTES)?;
    let write = |bytes| client.write(Signal::Metrics).token(&rig.token(0)).body(body_of(bytes));
    write(largest).send().await?.expect_delivered()?;
    write(largest + 1).send().await?.expect_refusal(Reason::BodyTooLarge)?;
    let requests = rig.built_in_store().requests();
    assert_eq!((requests.len(), requests[0].body.len()), (1, largest));
    assert_eq!(rig.metrics_store().samples().await?.len(), 1);
    Ok(())
}

async fn eight_of_the_largest_bodies_at_once_are_delivered() -> TestResult {
    let rig = Rig::builder().runners(2).start().await?;
    let body = body_of(usize::try_from(limits::MAX_BODY_BYTES)?);
    let clients = [rig.raw_client(0).await?, rig.raw_client(1).await?];
    let writes = (0..8).map(|number| {
        let runner = number % 2;
        clients[runner].write(Signal::Metrics).token(&rig.token(runner)).body(body.clone()).send()
    });
    for answer in futures_util::future::join_all(writes).await {
        answer?.expect_delivered()?;
    }
    assert_eq!(rig.metrics_store().samples().await?.len(), 8);
    Ok(())
}

/// Two of one runner would use up its share of the memory, and six of several the whole.
async fn the_largest_bodies_that_must_be_worked_on_do_not_wait_for_each_other() -> TestResult {
    let rig = Rig::builder().runners(3).traces(StoreKind::BuiltIn).start().await?;
    let clients = [rig.raw_client(0).await?, rig.raw_client(1).await?, rig.raw_client(2).await?];
    let largest = usize::try_from(limits::MAX_BODY_BYTES)?;
    let marked = [b"up{entity=\"miren/control\"} 1\n", &body_of(largest - 30)[..]].concat();
    let deliver = async |signal: Signal, runner: usize, body: Vec<u8>| {
        let traces = rig.token_for(&rig.runner(runner).id).claim("signals", vec!["traces"]).sign(rig.signing_key());
        let token = if signal == Signal::Traces { traces } else { rig.token(runner) };
        let began = Instant::now();
        let answer = clients[runner].write(signal).token(&token).body(body).send().await?;
        answer.expect_delivered()?;
        eprintln!("{signal} of {runner}: {:?}", began.elapsed());
        TestResult::Ok(())
    };
    let of_one = (0..2).map(|_| deliver(Signal::Traces, 0, spans_of(largest)));
    let of_one: TestResult = futures_util::future::join_all(of_one).await.into_iter().collect();
    of_one?;
    let of_three = (0..6).map(|number| deliver(Signal::Metrics, number % 3, marked.clone()));
    futures_util::future::join_all(of_three).await.into_iter().collect()
}

/// Spans with names as long as they may be.
fn spans_of(bytes: usize) -> Vec<u8> {
    const NAME: usize = 1 << 20;
    let span = Span { trace_id: vec![1; 16], span_id: vec![2; 8], name: "n".repeat(NAME), ..Span::default() };
    let scope_spans = vec![ScopeSpans { spans: vec![span; bytes / NAME - 1], ..Default::default() }];
    let resource_spans = vec![ResourceSpans { scope_spans, ..Default::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}
