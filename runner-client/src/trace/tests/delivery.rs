use std::time::{Duration, SystemTime};

use tokio::time::{Instant, advance, sleep};

use super::*;
use crate::token::{IssueError, Token};
use crate::{IssuedToken, LateTokenSource, NotTaken, RecentRejections};

#[tokio::test(start_paused = true)]
async fn a_batch_goes_at_512_spans_or_after_5_s() {
    let coordinator = Coordinator::taking();
    let (client, writer) = coordinator.ready().await;
    let began = Instant::now();
    write(&writer, 0..512);
    assert_eq!(coordinator.wrote(1).await[0].len(), 512);
    assert_eq!(began.elapsed(), Duration::ZERO);
    write(&writer, 512..515);
    assert_eq!(names(&coordinator.wrote(2).await[1]), ["s512", "s513", "s514"]);
    assert_eq!(began.elapsed(), Duration::from_secs(5));
    client.flush(Duration::from_secs(1)).await;
    assert_eq!(tally(&client).delivered, 515);
}

#[tokio::test(start_paused = true)]
async fn at_most_2_048_wait_and_the_newest_are_dropped_and_counted() {
    let coordinator = Coordinator::new(ALL, |number| if number == 0 { Answer::Hang } else { Answer::delivered() });
    let (client, writer) = coordinator.ready().await;
    write(&writer, 0..5_000);
    coordinator.wrote(1).await;
    assert_eq!((tally(&client).waiting, drops(&client)), (2_048, [5_000 - 2_048, 0, 0]));
    let span = writer.entry(Entry::Control, "late", None).context().unwrap();
    let record = super::super::SpanRecord {
        context: span,
        parent: None,
        name: "late".into(),
        kind: super::super::SpanKind::Internal,
        start: SystemTime::UNIX_EPOCH,
        end: SystemTime::UNIX_EPOCH,
        attributes: Vec::new(),
        links: Vec::new(),
        status: super::super::SpanStatus::Unset,
    };
    assert_eq!(writer.write(&record), Err(NotTaken::QueueFull), "the writer is told");
    assert_eq!(names(&coordinator.written()[0])[0], "s0");
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_in_bytes_too() {
    let coordinator = Coordinator::new(ALL, |_| Answer::Hang);
    let (client, writer) = coordinator.ready().await;
    for number in 0..2_000_u32 {
        let mut span = writer.entry(Entry::Control, "large", None);
        (0..64).for_each(|key| span.set(format!("k{key}-{number}"), "x".repeat(1_024)));
    }
    let tally = tally(&client);
    assert!((64..100).contains(&tally.waiting), "{tally:?}");
    assert_eq!(tally.dropped(DropReason::QueueFull) + tally.waiting, 2_000);
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_delivered_is_dropped_and_never_pushed_later() {
    for failure in [|| Answer::NotSent, || Answer::Lost, || Answer::verdict(503, "retry"), || Answer::unmarked(502)] {
        let coordinator =
            Coordinator::new(ALL, move |number| if number < 20 { failure() } else { Answer::delivered() });
        let (client, writer) = coordinator.ready().await;
        let mut number = 0;
        while coordinator.written().len() < 21 {
            write(&writer, number..number + 100);
            number += 100;
            sleep(Duration::from_secs(1)).await;
        }
        let lost: Vec<Vec<String>> = coordinator.written()[..20].iter().map(|batch| names(batch)).collect();
        sleep(Duration::from_secs(60)).await;
        let written = coordinator.written();
        let mut seen = std::collections::HashSet::new();
        assert!(written.iter().flatten().all(|span| seen.insert(span.name.clone())), "a span was sent twice");
        assert!(written[20].len() <= 600, "a burst of {}", written[20].len());
        // The first that arrive are of the last 5 s, which is how long a batch is open.
        let first: u32 = written[20][0].name[1..].parse().unwrap();
        let outage = Duration::from_secs((number / 100).into());
        assert!(first >= number - 700, "{first} of {number} is old, after {outage:?}");
        assert!(lost.iter().flatten().all(|name| name != &written[20][0].name));
        let [_, unreachable, no_credential] = drops(&client);
        assert!(unreachable > 0 && no_credential == 0, "{:?}", drops(&client));
        assert_eq!(tally(&client).waiting, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn when_a_store_returns_there_is_no_burst_after_the_rest_was_dropped_as_queue_full() {
    // The relay asks for 4 minutes of patience: whoever writes meanwhile fills the queue.
    let coordinator =
        Coordinator::new(ALL, |number| if number == 0 { Answer::retry_after(240) } else { Answer::delivered() });
    let (client, writer) = coordinator.ready().await;
    write(&writer, 0..512);
    coordinator.wrote(1).await;
    write(&writer, 512..10_000);
    sleep(Duration::from_secs(1)).await;
    assert_eq!((tally(&client).waiting, drops(&client)), (2_048, [10_000 - 512 - 2_048, 512, 0]));
    sleep(Duration::from_secs(400)).await;
    assert_eq!(coordinator.written().len(), 1, "nothing that waited is pushed");
    assert_eq!((tally(&client).waiting, drops(&client)[1]), (0, 512 + 2_048));
    write(&writer, 10_000..10_003);
    assert_eq!(names(&coordinator.wrote(2).await[1]), ["s10000", "s10001", "s10002"]);
    client.flush(Duration::from_secs(1)).await;
    assert_eq!(tally(&client).delivered, 3);
}

#[tokio::test(start_paused = true)]
async fn a_poisoned_batch_is_rejected_and_delays_nobody() {
    let coordinator =
        Coordinator::new(ALL, |number| if number == 0 { Answer::verdict(400, "reject") } else { Answer::delivered() });
    let (client, writer) = coordinator.ready().await;
    write(&writer, 0..1_024);
    coordinator.wrote(2).await;
    client.flush(Duration::from_secs(1)).await;
    assert_eq!((tally(&client).delivered, tally(&client).dropped(DropReason::Rejected)), (512, 512));
}

#[tokio::test(start_paused = true)]
async fn rejected_spans_are_counted_and_put_aside_nowhere() {
    let coordinator = Coordinator::new(ALL, |_| Answer::verdict(400, "reject"));
    let rejections = Arc::new(RecentRejections::default());
    let client = coordinator.client().dead_letters(Arc::clone(&rejections) as _).build().unwrap();
    enabled(&client.spans()).await;
    write(&client.spans(), 0..512);
    client.flush(Duration::from_secs(1)).await;
    assert_eq!(tally(&client).dropped(DropReason::Rejected), 512);
    assert!(rejections.list().is_empty(), "{:?}", rejections.list());
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_costs_nothing_once_and_spans_the_second_time() {
    let refused = [true, false, true, true, false];
    let coordinator = Coordinator::new(ALL, move |number| match refused[number] {
        true => Answer::verdict(401, "refresh-token"),
        false => Answer::delivered(),
    });
    let (client, writer) = coordinator.ready().await;
    write(&writer, 0..512);
    let writes = coordinator.wrote(2).await;
    assert_eq!(writes[0], writes[1]);
    assert_eq!(drops(&client), [0, 0, 0]);
    write(&writer, 512..1_024);
    coordinator.wrote(4).await;
    sleep(Duration::from_millis(1)).await;
    assert_eq!((drops(&client), tally(&client).delivered), ([0, 0, 512], 512));
    sleep(Duration::from_secs(2)).await;
    write(&writer, 1_024..1_536);
    coordinator.wrote(5).await;
}

#[tokio::test(start_paused = true)]
async fn a_token_in_hand_serves_until_it_ends_and_after_that_spans_end_as_no_credential() {
    let coordinator = Coordinator::taking();
    let clock = Arc::new(TestClock::new());
    let tokens = LateTokenSource::with(crate::LateTokenSettings::default(), clock.clone(), Arc::default());
    let first = std::sync::atomic::AtomicBool::new(true);
    let ends = telemetry_proto::Clock::now(&*clock) + Duration::from_secs(3_600);
    tokens.arm(Arc::new(move || {
        // The coordinator goes away after the first token.
        let answer = match first.swap(false, std::sync::atomic::Ordering::SeqCst) {
            true => Token::new("t", Some(ends)).map(IssuedToken::from).map_err(IssueError::from),
            false => Err(IssueError::Timeout),
        };
        std::future::ready(answer)
    }));
    let client = coordinator.client().clock(clock).trace_token_source(Arc::new(tokens)).build().unwrap();
    let writer = client.spans();
    enabled(&writer).await;
    let mut number = 0;
    for _ in 0..60 {
        write(&writer, number..number + 10);
        number += 10;
        sleep(Duration::from_secs(59)).await;
    }
    assert_eq!((tally(&client).delivered, tally(&client).dropped_in_all()), (600, 0), "as nothing at all before");
    sleep(Duration::from_secs(120)).await;
    for _ in 0..10 {
        write(&writer, number..number + 10);
        number += 10;
        sleep(Duration::from_secs(60)).await;
    }
    assert_eq!((tally(&client).delivered, drops(&client)), (600, [0, 0, 100]));
}

#[tokio::test(start_paused = true)]
async fn without_any_token_spans_end_as_no_credential_and_none_waits_for_one() {
    let coordinator = Coordinator::taking();
    let tokens = LateTokenSource::new();
    let client = coordinator.client().trace_token_source(Arc::new(tokens.clone())).build().unwrap();
    let writer = client.spans();
    enabled(&writer).await;
    write(&writer, 0..3_000);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(drops(&client)[2], tally(&client).dropped_in_all() - drops(&client)[0]);
    assert_eq!((tally(&client).waiting, tally(&client).dropped_in_all()), (0, 3_000));
    tokens.arm(Arc::new(|| async { Ok(IssuedToken::from(Token::new("t", None)?)) }));
    sleep(Duration::from_secs(60)).await;
    assert!(coordinator.written().is_empty(), "arming brings nothing back");
    write(&writer, 0..1);
    coordinator.wrote(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_may_not_write_spans_drops_them_and_asks_for_the_policy() {
    let coordinator = Coordinator::new(ALL, |_| Answer::verdict(403, "forbidden"));
    let (client, writer) = coordinator.ready().await;
    sleep(Duration::from_secs(10)).await;
    *coordinator.policy.lock() = r#""metrics"]"#.to_owned();
    let began = Instant::now();
    write(&writer, 0..512);
    coordinator.asked(2).await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    advance(Duration::from_millis(1)).await;
    sleep(Duration::from_millis(1)).await;
    assert_eq!(drops(&client), [0, 0, 512]);
    assert!(!writer.is_enabled());
}

#[tokio::test(start_paused = true)]
async fn a_flush_sends_what_waits_and_closing_counts_what_is_lost() {
    let coordinator = Coordinator::new(ALL, |number| if number == 0 { Answer::delivered() } else { Answer::Hang });
    let (client, writer) = coordinator.ready().await;
    write(&writer, 0..3);
    assert_eq!(client.flush(Duration::from_secs(1)).await.delivered, 3);
    write(&writer, 3..7);
    assert_eq!(client.close(Duration::from_secs(1)).await.lost, 4);
    assert!(!writer.is_enabled());
    assert!(writer.entry(Entry::Control, "late", None).context().is_none());
    assert_eq!(tally(&client).dropped(DropReason::Shutdown), 4);
}
