use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::*;
use crate::LogRecord;
use crate::trace::TraceParent;

const OFF: &str = r#""metrics","logs"]"#;

#[tokio::test(start_paused = true)]
async fn where_the_coordinator_takes_no_traces_there_are_no_spans() {
    // Without the section, with the section and without the signal, and older than any policy.
    for policy in [OFF, r#""metrics"], "traces": {"sample_ratio": 1.0}"#, r#""traces"]"#, "404", "500"] {
        let coordinator = Coordinator::new(policy, |_| Answer::delivered());
        let client = coordinator.client().build().unwrap();
        let writer = client.spans();
        coordinator.asked(1).await;
        sleep(Duration::from_secs(1)).await;
        let span = writer.entry(Entry::Control, "s", None);
        assert!(span.context().is_none() && span.child("c").context().is_none(), "{policy}");
        drop(span);
        sleep(Duration::from_secs(30)).await;
        assert_eq!((tally(&client).written, coordinator.written().len()), (0, 0), "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn spans_flow_within_the_polling_time_of_being_switched_on_and_stop_when_switched_off() {
    let coordinator = Coordinator::new(OFF, |_| Answer::delivered());
    let client = coordinator.client().build().unwrap();
    let writer = client.spans();
    coordinator.asked(1).await;
    *coordinator.policy.lock() = ALL.to_owned();
    let switched = Instant::now();
    enabled(&writer).await;
    assert!(switched.elapsed() <= Duration::from_secs(5 * 60), "{:?}", switched.elapsed());
    write(&writer, 0..512);
    coordinator.wrote(1).await;

    *coordinator.policy.lock() = OFF.to_owned();
    sleep(Duration::from_secs(5 * 60)).await;
    write(&writer, 512..2_000);
    assert_eq!((writer.is_enabled(), tally(&client).written), (false, 512));
}

#[tokio::test(start_paused = true)]
async fn the_ratio_follows_the_policy() {
    let coordinator = Coordinator::new(&ALL.replace("1.0", "0.0"), |_| Answer::delivered());
    let (_client, writer) = coordinator.ready().await;
    let sampled = || writer.entry(Entry::DataPath, "s", None).context().unwrap().sampled;
    assert!(!sampled());
    *coordinator.policy.lock() = ALL.to_owned();
    sleep(Duration::from_secs(5 * 60)).await;
    assert!(sampled());
}

#[tokio::test(start_paused = true)]
async fn what_is_known_holds_while_the_coordinator_is_away() {
    let coordinator = Coordinator::taking();
    let (client, writer) = coordinator.ready().await;
    for trouble in ["500", "403", r#""nonsense"#, &ALL.replace("1.0", "1.01"), &ALL.replace("1.0", "-0.5")] {
        *coordinator.policy.lock() = trouble.to_owned();
        let asked = *coordinator.asked.borrow();
        coordinator.asked(asked + 3).await;
        assert!(writer.is_enabled() && client.policy().current().unwrap().takes(Signal::Traces), "{trouble}");
    }
    *coordinator.policy.lock() = OFF.to_owned();
    sleep(Duration::from_secs(5 * 60)).await;
    assert!(!writer.is_enabled());
}

#[tokio::test(start_paused = true)]
async fn whoever_has_no_use_for_the_policy_does_not_ask() {
    let coordinator = Coordinator::taking();
    let client = coordinator.client().build().unwrap();
    let _writers = (client.metrics(), client.logs());
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(*coordinator.asked.borrow(), 0);
    let mut policy = client.policy().watch();
    policy.changed().await.unwrap();
    assert_eq!(policy.borrow().as_ref().unwrap().signals, Signal::ALL);
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_is_awaited_until_it_comes_or_is_30_s_late() {
    for told in [ALL, OFF, "404"] {
        let coordinator = Coordinator::new(told, |_| Answer::delivered());
        let client = coordinator.client().build().unwrap();
        let policy = client.policy();
        assert!(policy.is_awaited() && policy.current().is_none(), "{told}");
        coordinator.asked(1).await;
        sleep(Duration::from_secs(1)).await;
        assert!(!policy.is_awaited(), "{told}");
    }
    let coordinator = Coordinator::new("500", |_| Answer::delivered());
    let client = coordinator.client().build().unwrap();
    let policy = client.policy();
    sleep(Duration::from_secs(29)).await;
    assert!(policy.is_awaited());
    sleep(Duration::from_secs(2)).await;
    assert!(!policy.is_awaited(), "given up");
    *coordinator.policy.lock() = ALL.to_owned();
    policy.watch().changed().await.unwrap();
    assert!(!policy.is_awaited() && policy.current().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_policy_is_asked_for_every_5_minutes_and_no_more_often_than_every_5_s_on_demand() {
    let coordinator = Coordinator::taking();
    let (client, _writer) = coordinator.ready().await;
    sleep(Duration::from_secs(3_600)).await;
    let asked = *coordinator.asked.borrow();
    assert!((13..=16).contains(&asked), "{asked}");
    for _ in 0..100 {
        client.policy().ask_again();
        sleep(Duration::from_millis(100)).await;
    }
    assert!(*coordinator.asked.borrow() - asked <= 3);
}

#[tokio::test(start_paused = true)]
async fn a_caller_gives_trace_and_parent_and_does_not_decide_what_is_recorded() {
    let coordinator = Coordinator::new(&ALL.replace("1.0", "0.5"), |_| Answer::delivered());
    let (client, writer) = coordinator.ready().await;
    let mut sampled = 0;
    for _ in 0..1_000 {
        let id = super::super::TraceId::random();
        let with_flags = |flags: &str| -> TraceParent { format!("00-{id}-00f067aa0ba902b7-{flags}").parse().unwrap() };
        let contexts = ["00", "01", "ff"]
            .map(|flags| writer.entry(Entry::DataPath, "s", Some(with_flags(flags))).context().unwrap());
        assert!(contexts.iter().all(|context| context.trace_id == id && context.sampled == contexts[0].sampled));
        sampled += usize::from(contexts[0].sampled);
    }
    assert!((400..600).contains(&sampled), "{sampled}");
    client.flush(Duration::from_secs(1)).await;
    let stored: Vec<Stored> = coordinator.written().into_iter().flatten().collect();
    assert_eq!(stored.len(), 3 * sampled);
    assert!(stored.iter().all(|span| span.parent_span_id == [0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]));
}

#[tokio::test(start_paused = true)]
async fn log_records_in_a_span_name_it_sampled_or_not_and_outside_they_name_nothing() {
    let coordinator = Coordinator::new(&ALL.replace("1.0", "0.0"), |_| Answer::delivered());
    let (_client, writer) = coordinator.ready().await;
    for entry in [Entry::Control, Entry::DataPath, Entry::Background] {
        let span = writer.entry(entry, "s", None);
        let context = span.child("c").context().unwrap();
        assert_eq!(context.trace_id, span.context().unwrap().trace_id);
        let record = LogRecord::new("e", "s", "m").in_span(Some(context));
        let text = format!("{record:?}");
        assert!(text.contains(&format!("trace_id: Some(\"{}\")", context.trace_id)), "{text}");
        assert!(text.contains(&format!("span_id: Some(\"{}\")", context.span_id)), "{text}");
        assert_eq!(span.is_recorded(), entry == Entry::Control);
    }
    assert_eq!(LogRecord::new("e", "s", "m").in_span(None), LogRecord::new("e", "s", "m"));
}
