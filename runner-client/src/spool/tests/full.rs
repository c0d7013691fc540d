//! The cap, the full disk, and the folder that shrinks.

use super::*;
use crate::spool::SpoolSignal::{Logs, Metrics};
use crate::spool::disk::faults;

/// What the files take, in blocks, but for the lock file.
fn on_disk(bench: &Bench) -> u64 {
    let blocks = |extension| bench.files(extension).values().map(|len| len.next_multiple_of(4096)).sum::<u64>();
    blocks("seg") + blocks("ack")
}

fn small(when_full: WhenFull) -> Bench {
    let mut bench = Bench::new();
    bench.config.max_bytes = 1024 * 1024;
    bench.config.when_full = PerSignal { metrics: when_full, logs: when_full };
    bench
}

// VictoriaMetrics 6952, VictoriaLogs 1349 (lesson 15): a full queue dropped old data while acknowledging.
#[test]
fn lesson_15_at_the_cap_the_oldest_goes_and_the_caller_is_told_exactly() {
    let bench = small(WhenFull::DropOldest);
    let mut spool = bench.open();
    let mut dropped_records = 0;
    for number in 0..2_000 {
        spool.append(&record(Logs, number, 2_000)).unwrap();
        let dropped = dropped(&spool.take_dropped(), DropCause::SpoolFull);
        assert_eq!(dropped.items, 10 * dropped.records);
        dropped_records += dropped.records;
        assert_eq!(spool.stats().waiting.logs.records, number + 1 - dropped_records);
        assert!(on_disk(&bench) <= spool.stats().bytes && spool.stats().bytes <= bench.config.max_bytes);
    }
    assert!(dropped_records > 1_400, "{dropped_records}");
    assert_eq!(drain(&mut spool, Logs), (dropped_records..2_000).collect::<Vec<_>>());
}

#[test]
fn lesson_15_a_spool_that_must_not_drop_refuses_and_keeps_everything() {
    let bench = small(WhenFull::Refuse);
    let mut spool = bench.open();
    let taken = (0..).take_while(|number| spool.append(&record(Logs, *number, 2_000)).is_ok()).count() as u64;
    assert!(matches!(spool.append(&record(Metrics, 0, 2_000)), Err(AppendError::Full)));
    assert!(taken > 450 && spool.take_dropped().is_empty(), "{taken}");
    let positions = drain_positions(&mut spool, Logs);
    assert_eq!(positions.len() as u64, taken);
    // Acknowledging fits under the cap, and makes room.
    positions.iter().step_by(2).for_each(|(_, position)| assert!(spool.acknowledge(position)));
    assert!(on_disk(&bench) <= bench.config.max_bytes);
    positions.iter().skip(1).step_by(2).for_each(|(_, position)| assert!(spool.acknowledge(position)));
    spool.append(&record(Logs, taken, 2_000)).unwrap();
    assert_eq!(drain(&mut spool, Logs), [taken]);
}

#[test]
fn a_flood_of_one_signal_does_not_push_out_the_other() {
    let bench = small(WhenFull::DropOldest);
    let mut spool = bench.open();
    append(&mut spool, Metrics, 0..100, 2_000);
    append(&mut spool, Logs, 0..2_000, 2_000);
    assert_eq!(spool.stats().waiting.metrics.records, 100);
    // Once the metrics want their half, the logs make room for them.
    append(&mut spool, Metrics, 100..200, 2_000);
    assert_eq!(drain(&mut spool, Metrics), (0..200).collect::<Vec<_>>());
    assert!(spool.take_dropped().iter().all(|dropped| dropped.signal == Logs));
}

#[test]
fn a_signal_that_must_not_be_dropped_is_not() {
    let mut bench = small(WhenFull::DropOldest);
    bench.config.when_full.logs = WhenFull::Refuse;
    let mut spool = bench.open();
    let taken = (0..).take_while(|number| spool.append(&record(Logs, *number, 2_000)).is_ok()).count() as u64;
    assert!(matches!(spool.append(&record(Metrics, 0, 2_000)), Err(AppendError::Full)));
    assert_eq!(drain(&mut spool, Logs).len() as u64, taken);
}

// The same with a real disk is in `tests/spool_disk.rs`.
#[test]
fn lesson_15_a_full_disk_takes_nothing_half_and_works_on_once_there_is_room() {
    let bench = small(WhenFull::Refuse);
    let mut spool = bench.open();
    append(&mut spool, Logs, 0..10, 2_000);
    for space in [0, 1, 60, 68, 70, 500, 2_000, 2_069] {
        let before = bench.files("seg");
        faults::set_space(Some(space));
        assert!(matches!(spool.append(&record(Logs, 10, 2_000)), Err(AppendError::Full)), "{space}");
        assert_eq!(bench.files("seg"), before, "what was written in part is cut off again");
    }
    faults::set_space(None);
    spool.append(&record(Logs, 10, 2_000)).unwrap();
    assert_eq!(drain(&mut spool, Logs), (0..11).collect::<Vec<_>>());
    drop(spool);
    let (mut spool, recovery) = bench.recover();
    assert_eq!((recovery.torn_bytes, drain(&mut spool, Logs).len()), (0, 11));
}

#[test]
fn lesson_15_on_a_full_disk_acknowledgements_are_kept_in_mind_and_written_later() {
    let bench = small(WhenFull::Refuse);
    let positions = bench.fill(Logs, 10, 2_000);
    let mut spool = bench.open();
    faults::set_space(Some(30));
    positions[..5].iter().for_each(|position| assert!(spool.acknowledge(position)));
    assert_eq!(drain(&mut spool, Logs), (5..10).collect::<Vec<_>>());
    faults::set_space(None);
    spool.sync().unwrap();
    drop(spool);
    assert_eq!(drain(&mut bench.open(), Logs), (5..10).collect::<Vec<_>>());
}

#[test]
fn lesson_15_a_full_disk_makes_the_oldest_go_where_that_is_allowed() {
    let bench = small(WhenFull::DropOldest);
    let mut spool = bench.open();
    append(&mut spool, Logs, 0..100, 2_000);
    faults::set_space(Some(0));
    // The thread's disk stays full, so that everything goes in the end; a real one gets room.
    assert!(matches!(spool.append(&record(Logs, 100, 2_000)), Err(AppendError::Full)));
    faults::set_space(None);
    assert_eq!(dropped(&spool.take_dropped(), DropCause::SpoolFull), amount(100, 1_000));
    assert_eq!(spool.stats(), SpoolStats::default());
    spool.append(&record(Logs, 101, 2_000)).unwrap();
    assert_eq!(drain(&mut spool, Logs), [101]);
}

// opentelemetry-collector-contrib 26256, 38620 (lesson 16): the disk never shrank.
#[test]
fn lesson_16_the_folder_shrinks_as_it_is_drained_and_ends_empty() {
    let bench = Bench::new();
    let mut spool = bench.open();
    for number in 0..1_000 {
        spool.append(&record(if number % 2 == 0 { Logs } else { Metrics }, number, 4_000)).unwrap();
    }
    let full = on_disk(&bench);
    assert!(full > 4_000_000);
    let mut sizes = Vec::new();
    for signal in SpoolSignal::ALL {
        for (_, position) in drain_positions(&mut spool, signal) {
            spool.acknowledge(&position);
            sizes.push(on_disk(&bench));
        }
    }
    assert!(sizes[500] < full * 6 / 10 && sizes[990] < full / 20, "{full} {} {}", sizes[500], sizes[990]);
    spool.maintain().unwrap();
    spool.maintain().unwrap();
    assert_eq!((spool.stats(), on_disk(&bench)), (SpoolStats::default(), 0));
    spool.append(&record(Logs, 1_000, 10)).unwrap();
    assert_eq!(drain(&mut spool, Logs), [1_000]);
}

#[test]
fn a_segment_goes_as_soon_as_nothing_in_it_waits() {
    let bench = Bench::new();
    let positions = bench.fill(Logs, 40, 4_000);
    let mut spool = bench.open();
    assert_eq!(bench.files("seg").len(), 3);
    positions[1..39].iter().rev().for_each(|position| assert!(spool.acknowledge(position)));
    assert_eq!((bench.files("seg").len(), bench.files("ack").len()), (2, 2), "the one in the middle");
    assert!(spool.acknowledge(&positions[39]) && spool.acknowledge(&positions[0]));
    assert_eq!((bench.files("seg").len(), bench.files("ack").len()), (0, 0));
}

#[test]
fn the_cap_may_be_lowered_between_starts() {
    let mut bench = Bench::new();
    bench.fill(Logs, 1_000, 4_000);
    bench.config.max_bytes = 1024 * 1024;
    let mut spool = bench.open();
    assert_eq!(spool.stats().waiting.logs.records, 1_000, "nothing is lost by opening");
    spool.append(&record(Logs, 1_000, 4_000)).unwrap();
    assert!(on_disk(&bench) <= 1024 * 1024);
}
