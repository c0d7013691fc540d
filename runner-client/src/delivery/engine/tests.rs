use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use telemetry_proto::exposition::Point;
use tokio::time::advance;

use super::*;
use crate::testing::{Answer, Bench, FixedTokens, Script, Seen};
use crate::{IssuedToken, LateTokenSource, MetricsWriter, Reason};

const LONG: Duration = Duration::from_secs(1_000);

/// Writes points `p0`, `p1`, ...; the bench makes batches of two.
fn write(writer: &MetricsWriter, points: std::ops::Range<u32>) {
    for number in points {
        writer.write(Point::new(format!("p{number}"), 1.0)).unwrap();
    }
}

/// The first points of the batches, in the order in which they were sent.
fn order(seen: &[Seen]) -> Vec<String> {
    seen.iter().map(|seen| seen.names()[0].clone()).collect()
}

fn gaps(seen: &[Seen]) -> Vec<Duration> {
    seen.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}

#[tokio::test(start_paused = true)]
async fn a_batch_keeps_its_place_its_bytes_and_its_id_over_retries() {
    let script = Script::of((0..4).map(|_| Answer::verdict(503, "retry")).collect());
    let (writer, pipelines) = Bench::new(&script).start();
    write(&writer, 0..2);
    script.saw(1).await;
    write(&writer, 2..6);
    assert_eq!(pipelines.flush(LONG).await.delivered, 6);
    let seen = script.seen();
    assert_eq!(order(&seen), ["p0", "p0", "p0", "p0", "p0", "p2", "p4"]);
    assert!(seen[..5].iter().all(|again| again.body == seen[0].body && again.id == seen[0].id));
    assert_ne!(seen[5].id, seen[6].id);
    assert_eq!(seen[0].id.len(), 26);
}

#[tokio::test(start_paused = true)]
async fn retries_without_retry_after_back_off_from_a_second_to_a_minute() {
    let script = Script::new(|_| Answer::verdict(503, "retry"));
    let (writer, _pipelines) = Bench::new(&script).start();
    write(&writer, 0..2);
    let gaps = gaps(&script.saw(12).await);
    assert!(gaps.iter().all(|gap| (1_000..=60_001).contains(&gap.as_millis())), "{gaps:?}");
    assert!(gaps[0] < Duration::from_millis(1_502) && gaps[10] >= Duration::from_secs(40), "{gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_kept_even_when_someone_waits() {
    let script = Script::of(vec![Answer::retry_after(7)]);
    let (writer, pipelines) = Bench::new(&script).start();
    write(&writer, 0..2);
    script.saw(1).await;
    pipelines.flush(LONG).await;
    let gap = gaps(&script.seen())[0];
    assert!((7_000..8_760).contains(&gap.as_millis()), "{gap:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_does_not_outlive_its_connection_by_much_and_runners_part() {
    let mut gaps_seen = Vec::new();
    for seed in 0..20 {
        let script = Script::of(vec![Answer::retry_after(200)]);
        let mut bench = Bench::new(&script);
        bench.seed = seed;
        let (writer, _pipelines) = bench.start();
        write(&writer, 0..2);
        script.saw(1).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        script.lose();
        gaps_seen.push(gaps(&script.saw(2).await)[0] - Duration::from_secs(60));
    }
    gaps_seen.sort();
    assert!(gaps_seen[19] <= AFTER_LOSS, "{gaps_seen:?}");
    assert!(gaps_seen[19] - gaps_seen[0] > AFTER_LOSS / 2, "all at once: {gaps_seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_that_came_over_a_new_connection_is_kept_whatever_was_lost_before() {
    let losing = Arc::new(OnceLock::<Arc<Script>>::new());
    let script = Script::new({
        let losing = Arc::clone(&losing);
        // The request waited for the connection that brings the answer.
        move |_| {
            losing.get().map_or_else(Answer::delivered, |script| {
                script.lose();
                Answer::retry_after(60)
            })
        }
    });
    assert!(losing.set(Arc::clone(&script)).is_ok());
    let (writer, _pipelines) = Bench::new(&script).start();
    write(&writer, 0..2);
    assert!(gaps(&script.saw(2).await)[0] >= Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_delivery_ends_a_backoff() {
    let script = Script::of((0..8).map(|_| Answer::verdict(503, "retry")).collect());
    let (writer, pipelines) = Bench::new(&script).start();
    write(&writer, 0..2);
    script.saw(8).await;
    let report = pipelines.flush(Duration::from_millis(1)).await;
    assert_eq!((report.delivered, report.waiting), (2, 0));
}

// quic-go 3372: a restarted relay gets the next batch in under 2 s.
#[tokio::test(start_paused = true)]
async fn after_an_outage_of_whatever_length_delivery_goes_on_within_two_seconds() {
    let script = Script::of((0..1_000).map(|_| Answer::NotSent).collect());
    let (writer, _pipelines) = Bench::new(&script).start();
    write(&writer, 0..2);
    let gaps = gaps(&script.saw(1_001).await);
    assert!(gaps.iter().all(|gap| gap.as_millis() <= 1_001), "{:?}", gaps.iter().max());
    assert!(gaps[0] <= Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_lost_again_and_again_slow_down() {
    let script = Script::of((0..8).map(|_| Answer::Lost).collect());
    let (writer, pipelines) = Bench::new(&script).start();
    write(&writer, 0..2);
    let gaps = gaps(&script.saw(8).await);
    assert!(gaps[0] <= Duration::from_millis(100) && gaps[6] >= Duration::from_secs(30), "{gaps:?}");
    assert_eq!(pipelines.flush(LONG).await.delivered, 2);
}

// VictoriaMetrics 11581, 1952: one poisoned batch in a thousand.
#[tokio::test(start_paused = true)]
async fn a_rejected_batch_is_put_aside_and_delays_nobody() {
    let script = Script::new(|seen| match seen.names()[0].as_str() {
        "p1000" => Answer::Respond(
            413,
            vec![
                ("miren-telemetry-verdict", "reject".to_owned()),
                ("miren-telemetry-reason", "body-too-large".to_owned()),
            ],
        ),
        _ => Answer::delivered(),
    });
    let bench = Bench::new(&script);
    let (writer, pipelines) = bench.start();
    let began = Instant::now();
    write(&writer, 0..2_000);
    pipelines.flush(LONG).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    let tally = pipelines.metrics().tally();
    assert_eq!((tally.delivered, tally.dropped(DropReason::Rejected)), (1_998, 2));
    let rejected = &bench.rejections.list()[0];
    assert_eq!((rejected.items, rejected.status, rejected.reason), (2, 413, Some(Reason::BodyTooLarge)));
}

// VictoriaLogs 1499: an unmarked 404 is kept. VictoriaMetrics 11581: and does not stall what is behind it.
#[tokio::test(start_paused = true)]
async fn a_batch_that_something_in_between_refuses_is_kept_and_holds_up_the_others_for_seconds_only() {
    let script = Script::new(|seen| match seen.names()[0].as_str() {
        "p0" if seen.at.elapsed() == Duration::ZERO => Answer::unmarked(413),
        _ => Answer::delivered(),
    });
    let (writer, pipelines) = Bench::new(&script).start();
    let began = Instant::now();
    write(&writer, 0..2_000);
    script.saw(3 + 999).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(pipelines.flush(Duration::from_secs(1)).await.waiting, 2, "kept");
    assert_eq!(pipelines.metrics().tally().delivered, 1_998);
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_is_replaced_at_once_and_again_only_after_a_pause() {
    let refusal = || Answer::verdict(401, "refresh-token");
    let script = Script::of(vec![refusal(), refusal(), Answer::delivered(), refusal(), Answer::delivered()]);
    let tokens = Arc::new(FixedTokens::default());
    let mut bench = Bench::new(&script);
    bench.tokens = Arc::clone(&tokens) as Arc<dyn TokenSource>;
    let (writer, _pipelines) = bench.start();
    write(&writer, 0..4);
    let seen = script.saw(5).await;
    assert_eq!(order(&seen), ["p0", "p0", "p0", "p2", "p2"]);
    let gaps = gaps(&seen);
    assert!(gaps[0].is_zero() && gaps[1] >= Duration::from_secs(1) && gaps[3].is_zero(), "{gaps:?}");
    assert_eq!(tokens.refused.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_may_not_write_keeps_its_batches_and_tries_at_a_slow_pace() {
    let script = Script::new(|_| Answer::verdict(403, "forbidden"));
    let mut bench = Bench::new(&script);
    bench.settings.max_wait = Duration::from_secs(3_600);
    let (writer, pipelines) = bench.start();
    write(&writer, 0..4);
    let gaps = gaps(&script.saw(20).await);
    assert!(gaps.iter().all(|gap| (30_000..37_502).contains(&gap.as_millis())), "{gaps:?}");
    assert_eq!(pipelines.metrics().tally().waiting, 4);
    pipelines.flush(Duration::from_secs(3_600)).await;
    let tally = pipelines.metrics().tally();
    assert_eq!((tally.waiting, tally.dropped(DropReason::NoCredential)), (0, 4));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_before_arming_and_delivery_begins_the_moment_it_comes() {
    let script = Script::of(Vec::new());
    let source = LateTokenSource::new();
    let mut bench = Bench::new(&script);
    bench.tokens = Arc::new(source.clone());
    let (writer, pipelines) = bench.start();
    write(&writer, 0..1_000);
    advance(Duration::from_secs(3_600)).await;
    assert_eq!(pipelines.flush(LONG).await.waiting, 1_000);
    let armed = Instant::now();
    source.arm(Arc::new(|| async { Ok(IssuedToken::from(crate::Token::new("t", None)?)) }));
    // Not a flush: that would ask for an attempt by itself.
    let names: Vec<String> = script.saw(500).await.iter().flat_map(Seen::names).collect();
    assert_eq!(armed.elapsed(), Duration::ZERO);
    assert_eq!(names, (0..1_000).map(|number| format!("p{number}")).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_too_long_is_dropped_and_counted() {
    let script = Script::new(|_| Answer::NotSent);
    let mut bench = Bench::new(&script);
    bench.settings.max_wait = Duration::from_secs(60);
    let (writer, pipelines) = bench.start();
    write(&writer, 0..2);
    advance(Duration::from_secs(30)).await;
    write(&writer, 2..4);
    script.saw(1).await;
    tokio::time::sleep(Duration::from_secs(31)).await;
    let tally = pipelines.metrics().tally();
    assert_eq!((tally.waiting, tally.dropped(DropReason::TooOld)), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn batches_close_by_count_by_size_and_by_age() {
    let script = Script::of(Vec::new());
    let mut bench = Bench::new(&script);
    bench.settings.batch.max_items = 100;
    bench.settings.batch.max_bytes = 1_000;
    let (writer, _pipelines) = bench.start();
    write(&writer, 0..130);
    let seen = script.saw(2).await;
    assert!(seen.iter().all(|seen| (980..=1_000).contains(&seen.body.len())));
    let waited = Instant::now();
    script.saw(3).await;
    assert_eq!(waited.elapsed(), Duration::from_secs(5));
    write(&writer, 0..1);
    script.saw(4).await;
    assert_eq!(waited.elapsed(), Duration::from_secs(10));
    assert_eq!(script.seen()[3].names(), ["p0"]);
}
