use std::time::{Duration, SystemTime};

use super::*;
use crate::trace::{Journey, Settlement};

#[test]
fn trace_and_root_follow_from_the_command_alone() {
    // printf command-1 | sha256sum
    let journey = Journey::of("command-1");
    assert_eq!(journey, Journey::of("command-1"));
    assert_eq!(journey.root().trace_id.to_string(), "e12c157c0051f399d6ecb3c03a191d6d");
    assert_eq!(journey.root().span_id.to_string(), "d199f58abcb4cf18");
    assert_ne!(journey.root().trace_id, Journey::of("command-2").root().trace_id);
}

#[tokio::test(start_paused = true)]
async fn a_journey_is_one_root_its_attempts_and_the_callers_link() {
    let coordinator = Coordinator::taking();
    // Three processes that share nothing but the command's ID.
    let clients = [coordinator.ready().await, coordinator.ready().await, coordinator.ready().await];
    let accepted = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
    let mut caller = clients[0].1.entry(Entry::Control, "create volume", None);
    caller.link(Journey::of("c-7").root());
    let callers_trace = caller.context().unwrap().trace_id;
    drop(caller);
    for attempt in 1..=2 {
        Journey::of("c-7").attempt(&clients[1].1, "attach", attempt).end();
    }
    let settlement = Settlement { code: "done", failed: false };
    Journey::of("c-7").settle(&clients[2].1, "volume", accepted, settlement).unwrap();
    for (client, _) in &clients {
        client.flush(Duration::from_secs(1)).await;
    }

    let root = Journey::of("c-7").root();
    let spans: Vec<Stored> = coordinator.written().into_iter().flatten().collect();
    let (journey, others): (Vec<_>, Vec<_>) = spans.iter().partition(|span| span.trace_id == root.trace_id.to_bytes());
    assert_eq!(journey.len(), 3);
    let roots: Vec<_> = journey.iter().filter(|span| span.parent_span_id.is_empty()).collect();
    assert_eq!((roots.len(), &roots[0].span_id[..]), (1, &root.span_id.to_bytes()[..]));
    assert_eq!(roots[0].start_time_unix_nano, 1_900_000_000_000_000_000);
    assert_eq!(journey.iter().filter(|span| span.parent_span_id == root.span_id.to_bytes()).count(), 2);
    let [caller] = others[..] else { panic!("{others:?}") };
    assert_eq!(caller.trace_id, callers_trace.to_bytes());
    assert_eq!(
        (&caller.links[0].trace_id[..], &caller.links[0].span_id[..]),
        (&root.trace_id.to_bytes()[..], &root.span_id.to_bytes()[..])
    );
}
