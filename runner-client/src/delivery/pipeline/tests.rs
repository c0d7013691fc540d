use std::collections::{BTreeMap, HashSet};

use futures_util::future::join;
use proptest::prelude::*;
use telemetry_proto::exposition::Point;
use tokio::time::{Instant, advance};

use super::*;
use crate::MetricsWriter;
use crate::delivery::{DropReason, NotTaken, Tally};
use crate::testing::{Answer, Bench, Script, Seen};

fn write(writer: &MetricsWriter, number: u64) -> u64 {
    writer.write(Point::new(format!("p{number}"), 1.0)).unwrap().displaced
}

#[tokio::test(start_paused = true)]
async fn a_flush_ends_at_its_deadline_and_says_what_waits() {
    let script = Script::new(|_| Answer::Hang);
    let (writer, pipelines) = Bench::new(&script).start();
    assert_eq!((0..3).map(|number| write(&writer, number)).sum::<u64>(), 0);
    let began = Instant::now();
    let report = pipelines.flush(Duration::from_secs(3)).await;
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    assert_eq!(report, FlushReport { delivered: 0, dropped: 0, waiting: 3 });
}

// alloy 4509: retries blocked SIGTERM.
#[tokio::test(start_paused = true)]
async fn closing_ends_at_its_deadline_counts_what_is_lost_and_may_be_repeated() {
    let mut answers = vec![Answer::delivered()].into_iter();
    let script = Script::new(move |_| answers.next().unwrap_or(Answer::Hang));
    let (writer, pipelines) = Bench::new(&script).start();
    assert_eq!((0..5).map(|number| write(&writer, number)).sum::<u64>(), 0);
    let began = Instant::now();
    let (first, second) = join(pipelines.close(Duration::from_secs(3)), pipelines.close(Duration::ZERO)).await;
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    assert_eq!(first, CloseReport { delivered: 2, dropped: 0, lost: 3, spooled: 0 });
    assert_eq!((second, pipelines.close(Duration::MAX).await), (first, first));
    assert_eq!(writer.write(Point::new("late", 1.0)), Err(NotTaken::Closed));
    let tally = pipelines.metrics().tally();
    assert_eq!((tally.written, tally.waiting, tally.dropped(DropReason::Shutdown)), (6, 0, 4));
}

// VictoriaMetrics 6952, VictoriaLogs 1349: whoever writes is told.
#[tokio::test(start_paused = true)]
async fn when_memory_is_used_up_the_oldest_goes_and_the_writer_is_told() {
    let script = Script::new(|_| Answer::NotSent);
    let mut bench = Bench::new(&script);
    bench.settings.batch.max_bytes = 1_000;
    bench.settings.max_memory = 10_000;
    let (writer, pipelines) = bench.start();
    let displaced: u64 = (0..1_000).map(|number| write(&writer, number)).sum();
    let tally = pipelines.metrics().tally();
    assert_eq!(tally.dropped(DropReason::QueueFull), displaced);
    assert!((40..100).contains(&tally.waiting), "{tally:?}");
    assert!(pipelines.metrics().queued_bytes() <= 9_000);
    let oldest = script.saw(1).await[0].names();
    assert_eq!(oldest, [format!("p{displaced}"), format!("p{}", displaced + 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_item_that_no_store_takes_is_refused_and_counted() {
    let script = Script::of(Vec::new());
    let (writer, pipelines) = Bench::new(&script).start();
    let point = Point::new("p", 1.0).label("l", "x".repeat(256 * 1024));
    assert_eq!(writer.write(point), Err(NotTaken::Oversize));
    assert_eq!(pipelines.metrics().tally().dropped(DropReason::Oversize), 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_no_number_is_refused_and_counted_and_infinities_are_delivered() {
    let script = Script::of(Vec::new());
    let (writer, pipelines) = Bench::new(&script).start();
    assert_eq!(writer.write(Point::new("p", f64::NAN)), Err(NotTaken::NotANumber));
    for value in [f64::INFINITY, f64::NEG_INFINITY] {
        writer.write(Point::new("p", value)).unwrap();
    }
    pipelines.flush(Duration::from_secs(60)).await;
    let tally = pipelines.metrics().tally();
    assert_eq!((tally.written, tally.delivered, tally.dropped(DropReason::NotANumber)), (3, 2, 1));
}

#[derive(Debug, Clone)]
enum Step {
    Write(u8),
    WriteNaN,
    Wait(u16),
    Flush(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1..12_u8).prop_map(Step::Write),
        1 => Just(Step::WriteNaN),
        2 => (0..20_000_u16).prop_map(Step::Wait),
        1 => (0..10_u8).prop_map(Step::Flush),
    ];
    prop::collection::vec(step, 1..40)
}

/// Codes of answers: the weights make most batches arrive in the end.
fn answer(code: u8) -> Answer {
    match code {
        0..40 => Answer::delivered(),
        40..45 => Answer::verdict(204, "duplicate"),
        45..55 => Answer::verdict(400, "reject"),
        55..65 => Answer::verdict(503, "retry"),
        65..70 => Answer::retry_after(2),
        70..75 => Answer::verdict(401, "refresh-token"),
        75..78 => Answer::verdict(403, "forbidden"),
        78..84 => Answer::NotSent,
        84..90 => Answer::Lost,
        90..96 => Answer::unmarked(404),
        96..98 => Answer::verdict(502, "delivered"),
        _ => Answer::Hang,
    }
}

fn adds_up(tally: &Tally) -> bool {
    tally.written == tally.delivered + tally.dropped_in_all() + tally.waiting
}

/// What the model says became of a batch by its last answer.
fn is_settled(code: u8) -> Option<bool> {
    match code {
        0..45 => Some(true),
        45..55 => Some(false),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_item_is_delivered_dropped_or_waiting_at_any_moment(
        steps in steps(), codes in prop::collection::vec(0..100_u8, 1..60), tight: bool, seed: u64
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(play(steps, codes, tight, seed));
    }
}

async fn play(steps: Vec<Step>, codes: Vec<u8>, tight: bool, seed: u64) {
    let answered = Arc::new(Mutex::new(Vec::new()));
    let script = {
        let (answered, mut codes) = (Arc::clone(&answered), codes.into_iter().cycle());
        Script::new(move |seen: &Seen| {
            let code = codes.next().unwrap();
            answered.lock().push((seen.clone(), code));
            answer(code)
        })
    };
    let mut bench = Bench::new(&script);
    bench.settings.batch.max_items = 4;
    bench.settings.batch.max_bytes = 500;
    bench.settings.max_memory = if tight { 2_500 } else { 1 << 20 };
    bench.settings.max_wait = Duration::from_secs(120);
    bench.seed = seed;
    let (writer, pipelines) = bench.start();
    let check = || {
        let tally = pipelines.metrics().tally();
        assert!(adds_up(&tally), "{tally:?}");
        assert!(pipelines.metrics().queued_bytes() <= bench.settings.max_memory - 500);
    };

    let (mut written, mut no_numbers) = (0, 0);
    for step in steps {
        match step {
            Step::Write(points) => {
                for _ in 0..points {
                    write(&writer, written);
                    written += 1;
                    check();
                }
            }
            Step::WriteNaN => {
                assert_eq!(writer.write(Point::new("p", f64::NAN)), Err(NotTaken::NotANumber));
                no_numbers += 1;
            }
            Step::Wait(millis) => advance(Duration::from_millis(millis.into())).await,
            Step::Flush(seconds) => drop(pipelines.flush(Duration::from_secs(seconds.into())).await),
        }
        tokio::task::yield_now().await;
        check();
    }
    let report = pipelines.close(Duration::from_secs(30)).await;
    check();

    // The model: a batch is what its answers say.
    let tally = pipelines.metrics().tally();
    let answered = answered.lock();
    let mut bodies = BTreeMap::new();
    let (mut delivered, mut rejected) = (HashSet::new(), HashSet::new());
    for (seen, code) in answered.iter() {
        assert_eq!(bodies.entry(&seen.id).or_insert(&seen.body), &&seen.body, "a retry changed its batch");
        assert!(!delivered.contains(&seen.id) && !rejected.contains(&seen.id), "a settled batch was sent again");
        match is_settled(*code) {
            Some(true) => delivered.insert(seen.id.clone()),
            Some(false) => rejected.insert(seen.id.clone()),
            None => false,
        };
    }
    let names = |ids: &HashSet<String>| -> Vec<String> {
        let settled = answered.iter().filter(|(seen, code)| ids.contains(&seen.id) && is_settled(*code).is_some());
        settled.flat_map(|(seen, _)| seen.names()).collect()
    };
    let (delivered, rejected) = (names(&delivered), names(&rejected));
    assert_eq!((tally.written, tally.waiting), (written + no_numbers, 0));
    assert_eq!(tally.dropped(DropReason::NotANumber), no_numbers);
    assert_eq!(tally.delivered, delivered.len() as u64);
    assert_eq!(tally.dropped(DropReason::Rejected), rejected.len() as u64);
    assert_eq!(tally.dropped(DropReason::Shutdown), report.lost);
    let once: HashSet<&String> = delivered.iter().chain(&rejected).collect();
    assert_eq!(once.len(), delivered.len() + rejected.len(), "an item was in two batches");
}
