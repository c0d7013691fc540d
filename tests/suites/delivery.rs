//! What runners write is in the stores: all of it, once, under the runner that wrote it, whatever dies on the way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use http::StatusCode;
use telemetry_proto::{Clock, Signal, Verdict, header};
use telemetry_relay::gate::SignatureAlgorithm;
use telemetry_relay::issuer::SigningKey;
use telemetry_rig::rig::{Rig, RigRunner, StoreKind};
use telemetry_rig::stores::Fault;
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use telemetry_runner_client::{DropReason, LogRecord, Point, TokenError, TokenSource};

telemetry_rig::suite! {
    what_three_runners_write_is_stored_once_under_each;
    what_three_runners_write_is_in_the_real_stores_once_under_each needs [VictoriaMetrics, VictoriaLogs];
    what_is_written_before_arming_is_delivered_after_it;
    what_is_written_before_arming_is_in_the_real_stores_after_it needs [VictoriaMetrics, VictoriaLogs];
    a_store_that_is_killed_and_comes_back_loses_nothing;
    real_stores_that_are_killed_and_come_back_lose_nothing needs [VictoriaMetrics, VictoriaLogs];
    lesson_23_a_relay_that_restarts_under_an_idle_client_gets_the_next_batch_within_2_s needs [Relay];
    a_relay_that_is_killed_gets_what_was_written_meanwhile_within_2_s_of_its_return needs [Relay];
    a_relay_that_dies_before_it_answers_gets_the_batch_again_within_2_s_of_its_return needs [Relay];
    a_relay_that_is_killed_under_load_loses_nothing needs [Relay];
    a_relay_that_drains_loses_nothing needs [Relay];
    a_token_that_ends_between_batches_costs_nothing;
    a_key_rotation_costs_nothing;
    a_batch_is_stored_once_however_often_it_is_sent;
    a_batch_that_the_store_rejects_delays_no_other;
    lesson_21_each_request_is_acknowledged_by_its_own_response;
}

/// Written is numbered, so that what is missing and what is there twice can be told.
const DEADLINE: Duration = Duration::from_secs(30);

fn write_points(runner: &RigRunner, numbers: std::ops::Range<u32>) -> TestResult {
    for number in numbers {
        // Claims to be another, which must not matter.
        let point = Point::new("written", f64::from(number)).label("entity", "e").label("miren_runner", "r9");
        runner.client.metrics().write(point)?;
    }
    Ok(())
}

fn write_records(runner: &RigRunner, numbers: std::ops::Range<u32>) -> TestResult {
    for number in numbers {
        let record =
            LogRecord::new("e", "stdout", "written").attribute("number", number).attribute("miren_runner", "r9");
        runner.client.logs().write(&record)?;
    }
    Ok(())
}

fn write_both(runner: &RigRunner, numbers: std::ops::Range<u32>) -> TestResult {
    write_points(runner, numbers.clone())?;
    write_records(runner, numbers)
}

/// How often each number is stored under each runner.
type Counts = BTreeMap<(String, u32), usize>;

fn each_once(runners: &[&str], numbers: std::ops::Range<u32>) -> Counts {
    runners.iter().flat_map(|runner| numbers.clone().map(|number| (((*runner).to_owned(), number), 1))).collect()
}

fn count(stored: impl Iterator<Item = (String, u32)>) -> Counts {
    let mut counts = Counts::new();
    for item in stored {
        *counts.entry(item).or_default() += 1;
    }
    counts
}

/// Compares without printing thousands of lines.
fn assert_same(what: &str, stored: &Counts, expected: &Counts) {
    let missing: Vec<_> = expected.keys().filter(|key| !stored.contains_key(*key)).take(5).collect();
    let wrong: Vec<_> = stored.iter().filter(|(key, times)| expected.get(*key) != Some(times)).take(5).collect();
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "{what}: {} stored, {} expected; missing: {missing:?}; not once: {wrong:?}",
        stored.values().sum::<usize>(),
        expected.len()
    );
}

async fn stored_points(rig: &Rig, at_least: usize) -> Result<Counts, Box<dyn std::error::Error>> {
    let samples = rig.metrics_store().wait_for_samples(at_least).await?;
    assert!(samples.iter().all(|sample| sample.name == "written" && sample.label("entity") == "e"));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of ours")]
    let numbered = samples.iter().map(|sample| (sample.label("miren_runner").to_owned(), sample.value as u32));
    Ok(count(numbered))
}

async fn stored_records(rig: &Rig, at_least: usize) -> Result<Counts, Box<dyn std::error::Error>> {
    let lines = rig.log_store().wait_for_log_lines(at_least).await?;
    for line in &lines {
        let names: Vec<&str> = line.stream.keys().map(String::as_str).collect();
        assert_eq!(names, ["entity", "miren_runner", "stream"]);
        assert_eq!((line.stream["entity"].as_str(), line.stream["stream"].as_str()), ("e", "stdout"));
        assert_eq!(line.stream["miren_runner"], line.field("miren_runner"));
    }
    let numbered = lines
        .iter()
        .map(|line| (line.field("miren_runner").to_owned(), line.field("number").parse().unwrap_or(u32::MAX)));
    Ok(count(numbered))
}

async fn all_is_stored_once(rig: &Rig, runners: &[&str], numbers: std::ops::Range<u32>) -> TestResult {
    let expected = each_once(runners, numbers);
    let points = stored_points(rig, expected.len()).await.map_err(|error| error.to_string())?;
    assert_same("points", &points, &expected);
    let records = stored_records(rig, expected.len()).await.map_err(|error| error.to_string())?;
    assert_same("records", &records, &expected);
    Ok(())
}

async fn flush(runner: &RigRunner) {
    let report = runner.client.flush(DEADLINE).await;
    assert_eq!((report.waiting, report.dropped), (0, 0), "{report:?}");
}

async fn what_three_runners_write_is_stored_once_under_each() -> TestResult {
    three_runners(StoreKind::BuiltIn).await
}

async fn what_three_runners_write_is_in_the_real_stores_once_under_each() -> TestResult {
    three_runners(StoreKind::Real).await
}

async fn three_runners(stores: StoreKind) -> TestResult {
    let rig = Rig::builder().stores(stores).runners(3).start().await?;
    for round in 0..4 {
        for runner in 0..3 {
            rig.runner(runner).arm();
            write_both(rig.runner(runner), round * 500..(round + 1) * 500)?;
        }
    }
    for runner in 0..3 {
        flush(rig.runner(runner)).await;
    }
    all_is_stored_once(&rig, &["r1", "r2", "r3"], 0..2_000).await
}

async fn what_is_written_before_arming_is_delivered_after_it() -> TestResult {
    late_arming(StoreKind::BuiltIn).await
}

async fn what_is_written_before_arming_is_in_the_real_stores_after_it() -> TestResult {
    late_arming(StoreKind::Real).await
}

async fn late_arming(stores: StoreKind) -> TestResult {
    let rig = Rig::builder().stores(stores).start().await?;
    let runner = rig.runner(0);
    write_both(runner, 0..1_000)?;
    assert!(matches!(runner.tokens.token().await, Err(TokenError::Unarmed)));
    let waiting = runner.client.flush(Duration::from_millis(300)).await;
    assert_eq!((waiting.delivered, waiting.dropped, waiting.waiting), (0, 0, 2_000));
    if stores == StoreKind::BuiltIn {
        assert!(rig.built_in_store().requests().is_empty());
    }

    runner.arm();
    flush(runner).await;
    assert!(runner.tokens.token().await.is_ok());
    all_is_stored_once(&rig, &["r1"], 0..1_000).await?;
    for signal in [Signal::Metrics, Signal::Logs] {
        let tally = runner.client.tally(signal);
        assert_eq!((tally.written, tally.delivered, tally.waiting), (1_000, 1_000, 0));
    }
    Ok(())
}

async fn a_store_that_is_killed_and_comes_back_loses_nothing() -> TestResult {
    store_outage(StoreKind::BuiltIn).await
}

async fn real_stores_that_are_killed_and_come_back_lose_nothing() -> TestResult {
    store_outage(StoreKind::Real).await
}

async fn store_outage(stores: StoreKind) -> TestResult {
    let rig = Rig::builder().stores(stores).start().await?;
    let runner = rig.runner(0);
    runner.arm();
    write_both(runner, 0..500)?;
    flush(runner).await;
    // A store that is killed forgets what it acknowledged in its last seconds. That is its own affair: it gets the time to
    // save what it has, and is killed right after.
    for store in [rig.metrics_store(), rig.log_store()] {
        store.stop().await?;
        store.restart().await?;
        store.kill().await?;
    }
    write_both(runner, 500..1_000)?;
    let meanwhile = runner.client.flush(Duration::from_millis(500)).await;
    assert_eq!((meanwhile.delivered, meanwhile.dropped), (0, 0));
    for store in [rig.metrics_store(), rig.log_store()] {
        store.restart().await?;
    }
    flush(runner).await;
    all_is_stored_once(&rig, &["r1"], 0..1_000).await
}

/// Writes a batch and says how long it took to be acknowledged.
async fn next_batch(runner: &RigRunner, numbers: std::ops::Range<u32>) -> Result<Duration, Box<dyn std::error::Error>> {
    let start = tokio::time::Instant::now();
    write_both(runner, numbers).map_err(|error| format!("{error:?}"))?;
    flush(runner).await;
    Ok(start.elapsed())
}

async fn lesson_23_a_relay_that_restarts_under_an_idle_client_gets_the_next_batch_within_2_s() -> TestResult {
    let rig = Rig::builder().relay_program("").start().await?;
    let runner = rig.runner(0);
    runner.arm();
    next_batch(runner, 0..100).await.map_err(|error| error.to_string())?;
    rig.relay().kill().await?;
    rig.relay().restart().await?;
    let took = next_batch(runner, 100..200).await.map_err(|error| error.to_string())?;
    assert!(took < Duration::from_secs(2), "{took:?}");
    all_is_stored_once(&rig, &["r1"], 0..200).await
}

async fn a_relay_that_is_killed_gets_what_was_written_meanwhile_within_2_s_of_its_return() -> TestResult {
    let rig = Rig::builder().relay_program("").start().await?;
    let runner = rig.runner(0);
    runner.arm();
    next_batch(runner, 0..100).await.map_err(|error| error.to_string())?;
    rig.relay().kill().await?;
    write_both(runner, 100..200)?;
    let meanwhile = runner.client.flush(Duration::from_secs(3)).await;
    assert_eq!((meanwhile.delivered, meanwhile.dropped), (0, 0));
    rig.relay().restart().await?;
    let report = runner.client.flush(Duration::from_secs(2)).await;
    assert_eq!((report.waiting, report.dropped), (0, 0), "{report:?}");
    all_is_stored_once(&rig, &["r1"], 0..200).await
}

async fn a_relay_that_dies_before_it_answers_gets_the_batch_again_within_2_s_of_its_return() -> TestResult {
    let rig = Rig::builder().relay_program("").start().await?;
    let runner = rig.runner(0);
    runner.arm();
    write_points(runner, 0..100)?;
    flush(runner).await;
    // The relay has the whole batch, and the runner knows; then nothing is in flight that could be missed.
    let store = rig.built_in_store();
    store.script([Fault::Hang]);
    write_points(runner, 100..200)?;
    let asked = runner.client.flush(Duration::from_secs(1));
    let at_the_store = wait::until("the batch at the store", DEADLINE, async || {
        if store.requests().len() == 2 { Ok(()) } else { Err("no request".to_owned()) }
    });
    let (_, arrived) = tokio::join!(asked, at_the_store);
    arrived?;
    rig.relay().kill().await?;
    rig.relay().restart().await?;
    let report = runner.client.flush(Duration::from_secs(2)).await;
    assert_eq!((report.waiting, report.dropped), (0, 0), "{report:?}");
    let stored = stored_points(&rig, 200).await.map_err(|error| error.to_string())?;
    assert_same("points", &stored, &each_once(&["r1"], 0..200));
    Ok(())
}

async fn a_relay_that_is_killed_under_load_loses_nothing() -> TestResult {
    let rig = Rig::builder().runners(3).relay_program("").start().await?;
    for runner in 0..3 {
        rig.runner(runner).arm();
    }
    let mut number = 0;
    for _ in 0..3 {
        for runner in 0..3 {
            write_both(rig.runner(runner), number..number + 1_000)?;
        }
        number += 1_000;
        // What is under way now breaks off; some of it the store has, without the runner knowing.
        rig.relay().kill().await?;
        rig.relay().restart().await?;
    }
    for runner in 0..3 {
        flush(rig.runner(runner)).await;
    }
    // At least once over a crash: which batches a relay stored is forgotten with it.
    let expected = each_once(&["r1", "r2", "r3"], 0..number);
    for stored in [stored_points(&rig, expected.len()).await, stored_records(&rig, expected.len()).await] {
        let stored = stored.map_err(|error| error.to_string())?;
        let missing = expected.keys().filter(|key| !stored.contains_key(*key)).count();
        assert_eq!((missing, stored.len()), (0, expected.len()));
    }
    Ok(())
}

async fn a_relay_that_drains_loses_nothing() -> TestResult {
    let rig = Rig::builder().relay_program("").start().await?;
    let runner = rig.runner(0);
    runner.arm();
    for round in 0..3 {
        write_both(runner, round * 1_000..(round + 1) * 1_000)?;
        rig.relay().stop().await?;
        rig.relay().restart().await?;
    }
    flush(runner).await;
    all_is_stored_once(&rig, &["r1"], 0..3_000).await
}

/// A clock that is ahead by what the test says.
#[derive(Default)]
struct Ahead(AtomicU64);

impl Clock for Ahead {
    fn now(&self) -> SystemTime {
        SystemTime::now() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

async fn a_token_that_ends_between_batches_costs_nothing() -> TestResult {
    let clock = Arc::new(Ahead::default());
    let rig = Rig::builder().clock(Arc::clone(&clock) as _).start().await?;
    let runner = rig.runner(0);
    runner.arm();
    write_both(runner, 0..100)?;
    flush(runner).await;
    let first = runner.tokens.token().await?;
    // Two hours later by the coordinator's clock; the runner's own has not noticed.
    clock.0.store(2 * 3_600, Ordering::SeqCst);
    write_both(runner, 100..200)?;
    flush(runner).await;
    assert_ne!(runner.tokens.token().await?.header(), first.header());
    all_is_stored_once(&rig, &["r1"], 0..200).await
}

async fn a_key_rotation_costs_nothing() -> TestResult {
    let rig = Rig::builder().start().await?;
    let runner = rig.runner(0);
    runner.arm();
    write_both(runner, 0..100)?;
    flush(runner).await;
    let old = rig.issuer().keys().signing().kid().to_owned();
    let first = runner.tokens.token().await?;

    rig.issuer().rotate(SigningKey::generate(SignatureAlgorithm::Es256)?, |keys| rig.verifier().publish_keys(keys))?;
    write_both(runner, 100..200)?;
    flush(runner).await;
    assert_eq!(runner.tokens.token().await?.header(), first.header(), "the old key's token is still good");

    rig.verifier().publish_keys(&rig.issuer().retire(&old)?);
    write_both(runner, 200..300)?;
    flush(runner).await;
    assert_ne!(runner.tokens.token().await?.header(), first.header(), "the new key's token is fetched");
    all_is_stored_once(&rig, &["r1"], 0..300).await
}

async fn a_batch_is_stored_once_however_often_it_is_sent() -> TestResult {
    let rig = Rig::builder().start().await?;
    // Two connections, as after the first broke under the answer.
    let clients = [rig.raw_client(0).await?, rig.raw_client(0).await?];
    let send = |client: usize| {
        let request = clients[client].write(Signal::Metrics).token(&rig.token(0));
        request.header(header::BATCH_ID, "01ARZ3NDEKTSV4RRFFQ69G5FAV").body("written{entity=\"e\"} 0\n").send()
    };
    // The store takes its time: the repeats come while the first is under way.
    rig.built_in_store().script([Fault::Delay(Duration::from_millis(200))]);
    let (first, second) = tokio::try_join!(send(0), send(1))?;
    let third = send(1).await?;
    let mut verdicts = [first.verdict(), second.verdict(), third.verdict()];
    verdicts.sort();
    assert_eq!(verdicts, [Some(Verdict::Delivered), Some(Verdict::Duplicate), Some(Verdict::Duplicate)]);
    let stored = stored_points(&rig, 1).await.map_err(|error| error.to_string())?;
    assert_same("points", &stored, &each_once(&["r1"], 0..1));
    Ok(())
}

async fn a_batch_that_the_store_rejects_delays_no_other() -> TestResult {
    let rig = Rig::builder().start().await?;
    let runner = rig.runner(0);
    runner.arm();
    rig.built_in_store().script([Fault::Answer(StatusCode::BAD_REQUEST)]);
    write_points(runner, 0..100)?;
    let report = runner.client.flush(DEADLINE).await;
    assert_eq!((report.dropped, report.waiting), (100, 0));
    write_points(runner, 100..200)?;
    flush(runner).await;
    let tally = runner.client.tally(Signal::Metrics);
    assert_eq!((tally.written, tally.delivered, tally.waiting), (200, 100, 0));
    assert_eq!(tally.dropped(DropReason::Rejected), 100);
    let stored = stored_points(&rig, 100).await.map_err(|error| error.to_string())?;
    assert_same("points", &stored, &each_once(&["r1"], 100..200));
    Ok(())
}

async fn lesson_21_each_request_is_acknowledged_by_its_own_response() -> TestResult {
    let rig = Rig::builder().start().await?;
    let runner = rig.runner(0);
    runner.arm();
    // Points and records are sent at the same moment over one connection; the store takes one request and refuses the other.
    for refused in 0..4 {
        let late = Fault::AnswerRetryAfter(StatusCode::TOO_MANY_REQUESTS, 1);
        let good = Fault::Delay(Duration::from_millis(50));
        rig.built_in_store().script(if refused % 2 == 0 { [late, good] } else { [good, late] });
        write_both(runner, refused * 100..(refused + 1) * 100)?;
        flush(runner).await;
        assert_eq!(runner.client.tally(Signal::Metrics).delivered, u64::from(refused + 1) * 100);
        assert_eq!(runner.client.tally(Signal::Logs).delivered, u64::from(refused + 1) * 100);
        all_is_stored_once(&rig, &["r1"], 0..(refused + 1) * 100).await?;
    }
    let refusals = rig.built_in_store().requests().len() - 8;
    assert!(refusals >= 4, "{refusals} of the requests were refused");
    Ok(())
}
