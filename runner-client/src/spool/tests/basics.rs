//! Order, acknowledgement, restart, age, syncs, and who may use the folder.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::spool::SpoolSignal::{Logs, Metrics};

#[test]
fn records_come_back_as_they_were_and_in_order_per_signal() {
    let bench = Bench::new();
    let mut spool = bench.open();
    for number in 0..40 {
        let signal = if number % 3 == 0 { Logs } else { Metrics };
        spool.append(&record(signal, number, 5_000)).unwrap();
    }
    let first = spool.next(Metrics).unwrap().unwrap();
    assert_eq!(first.record, record(Metrics, 1, 5_000));
    assert_eq!(drain(&mut spool, Logs), (0..40).filter(|n| n % 3 == 0).collect::<Vec<_>>());
    assert_eq!(drain(&mut spool, Metrics), (2..40).filter(|n| n % 3 != 0).collect::<Vec<_>>());
    spool.append(&record(Logs, 40, 0)).unwrap();
    assert_eq!(drain(&mut spool, Logs), [40], "the end is not for ever");
    assert_eq!(spool.read(&first.position).unwrap(), Some(first));
}

#[test]
fn what_was_acknowledged_never_comes_back_in_any_order_and_over_any_restart() {
    let bench = Bench::new();
    let mut spool = bench.open();
    append(&mut spool, Metrics, 0..60, 3_000);
    let mut positions = drain_positions(&mut spool, Metrics);
    fastrand::Rng::with_seed(7).shuffle(&mut positions);
    let (acknowledged, kept) = positions.split_at(25);
    for (_, position) in acknowledged {
        assert!(spool.acknowledge(position));
        assert!(!spool.acknowledge(position), "a second time it does not count");
        assert_eq!(spool.read(position).unwrap(), None);
    }
    let mut expected: Vec<u64> = kept.iter().map(|(number, _)| *number).collect();
    expected.sort_unstable();
    assert_eq!(spool.stats().waiting.metrics, amount(35, 350));

    spool.rewind(Metrics);
    assert_eq!(drain(&mut spool, Metrics), expected);
    drop(spool);
    let (mut spool, recovery) = bench.recover();
    assert_eq!((recovery.waiting.metrics, recovery.searched_segments), (amount(35, 350), 1), "as after a crash");
    assert_eq!(drain(&mut spool, Metrics), expected);
    spool.close().unwrap();
    let (mut spool, recovery) = bench.recover();
    assert_eq!((recovery.searched_segments, recovery.torn_bytes, recovery.lost.len()), (0, 0, 0), "after a close");
    assert_eq!(drain(&mut spool, Metrics), expected);
    assert!(spool.acknowledge(&kept[0].1), "positions are good over restarts");
}

#[test]
fn a_restart_goes_on_behind_what_is_there() {
    let bench = Bench::new();
    for round in 0..5 {
        let mut spool = bench.open();
        append(&mut spool, Logs, 3 * round..3 * round + 3, 100);
        if round % 2 == 0 {
            spool.close().unwrap();
        }
    }
    assert_eq!(drain(&mut bench.open(), Logs), (0..15).collect::<Vec<_>>());
}

#[test]
fn what_is_too_old_is_passed_over_and_counted_once() {
    let mut bench = Bench::new();
    bench.config.max_age = Duration::from_secs(100);
    let mut spool = bench.open();
    let aged =
        |number, seconds: u64| Record { created_unix_ms: START_MS + 1_000 * seconds, ..record(Logs, number, 100) };
    for (number, seconds) in [(0, 0), (1, 50), (2, 0), (3, 60), (4, 60)] {
        spool.append(&aged(number, seconds)).unwrap();
    }
    let (_, in_flight) = drain_positions(&mut spool, Logs).remove(1);
    spool.rewind(Logs);
    bench.clock.advance(Duration::from_secs(101));
    assert_eq!(drain(&mut spool, Logs), [1, 3, 4]);
    assert_eq!(dropped(&spool.take_dropped(), DropCause::TooOld), amount(2, 20));
    drop(spool);
    let mut spool = bench.open();
    assert_eq!(spool.stats().waiting.logs, amount(3, 30), "a restart does not count them again");
    bench.clock.advance(Duration::from_secs(100));
    spool.maintain().unwrap();
    assert_eq!(dropped(&spool.take_dropped(), DropCause::TooOld), amount(3, 30), "whole segments, unread");
    assert!(!spool.acknowledge(&in_flight), "it was counted as dropped");
    assert_eq!((spool.stats().segments, bench.files("seg").len()), (0, 0));
}

#[test]
fn records_are_forced_to_the_disk_by_count_and_by_time() {
    let mut bench = Bench::new();
    bench.config.sync = SyncPolicy { every_records: 4, every: Duration::from_secs(5) };
    let mut spool = bench.open();
    let synced: Vec<bool> = (0..8).map(|n| spool.append(&record(Logs, n, 10)).unwrap().is_synced).collect();
    assert_eq!(synced, [false, false, false, true, false, false, false, true]);
    spool.append(&record(Metrics, 8, 10)).unwrap();
    bench.clock.advance(Duration::from_secs(4));
    spool.maintain().unwrap();
    assert_eq!(spool.stats().unsynced_records, 1);
    bench.clock.advance(Duration::from_secs(1));
    spool.maintain().unwrap();
    assert_eq!(spool.stats().unsynced_records, 0);

    let position = spool.next(Logs).unwrap().unwrap().position;
    spool.acknowledge(&position);
    assert!(spool.stats().has_unsynced_acknowledgements);
    bench.clock.advance(Duration::from_secs(5));
    spool.maintain().unwrap();
    assert!(!spool.stats().has_unsynced_acknowledgements);
}

#[test]
fn a_failed_sync_is_told_until_nothing_is_at_risk_any_more() {
    let bench = Bench::new();
    let mut spool = bench.open();
    append(&mut spool, Logs, 0..3, 100);
    disk::faults::fail_syncs(1);
    assert_eq!(spool.sync().unwrap_err().records, 3);
    assert!(spool.append(&record(Logs, 3, 100)).is_ok(), "into a new segment");
    assert_eq!(spool.sync().unwrap_err().records, 3, "a second attempt proves nothing");
    assert_eq!((spool.stats().records_at_risk, spool.stats().unsynced_records), (3, 0));
    let positions = drain_positions(&mut spool, Logs);
    assert_eq!(positions.len(), 4, "they can be delivered");
    positions[..3].iter().for_each(|(_, position)| assert!(spool.acknowledge(position)));
    spool.sync().unwrap();
}

#[test]
fn files_are_the_owners_alone() {
    let bench = Bench::new();
    let positions = bench.fill(Logs, 3, 100);
    let mut spool = bench.open();
    spool.acknowledge(&positions[0]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(bench.folder()), 0o700);
    let files: Vec<_> = fs::read_dir(bench.folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 3, "{files:?}");
    files.iter().for_each(|file| assert_eq!(mode(file), 0o600, "{}", file.display()));

    drop(spool);
    fs::set_permissions(bench.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    drop(bench.open());
    assert_eq!(mode(bench.folder()), 0o700);
}

#[test]
fn a_folder_in_use_and_a_file_in_its_place_are_refused_with_a_remedy() {
    let mut bench = Bench::new();
    let spool = bench.open();
    let error = bench.try_open().unwrap_err();
    assert!(matches!(error, SpoolError::InUse(_)) && error.is_retryable(), "{error}");
    assert!(error.to_string().contains("stop it, or name another folder"), "{error}");
    drop(spool);
    bench.open();

    bench.config.folder = bench.dir.path().join("file");
    fs::write(&bench.config.folder, "").unwrap();
    assert!(matches!(bench.try_open(), Err(SpoolError::NotAFolder(_))));
    bench.config.folder = bench.dir.path().join("file/below");
    assert!(matches!(bench.try_open(), Err(SpoolError::NotAFolder(_))));
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let refused = |change: fn(&mut SpoolConfig)| {
        let mut bench = Bench::new();
        change(&mut bench.config);
        assert!(matches!(bench.try_open(), Err(SpoolError::Config(_))));
        assert!(!bench.folder().exists());
    };
    refused(|config| config.segment_bytes = 1_000);
    refused(|config| config.max_bytes = 7 * config.segment_bytes);
    refused(|config| config.sync.every_records = 0);
    refused(|config| config.max_age = Duration::ZERO);
}

#[test]
fn a_record_that_is_too_large_is_refused_and_one_larger_than_a_segment_is_taken() {
    let bench = Bench::new();
    let mut spool = bench.open();
    let large = record(Logs, 0, 1_000_000);
    spool.append(&large).unwrap();
    let too_large = Record { body: Bytes::from(vec![0; 4 * 1024 * 1024]), ..large.clone() };
    assert!(matches!(spool.append(&too_large), Err(AppendError::TooLarge { limit: 4_194_304, .. })));
    let too_much = Record { extra: Bytes::from(vec![0; 1025]), ..large.clone() };
    assert!(matches!(spool.append(&too_much), Err(AppendError::TooLarge { limit: 1024, .. })));
    spool.append(&record(Logs, 1, 10)).unwrap();
    assert_eq!(drain(&mut spool, Logs), [0, 1]);
}

#[test]
fn debug_output_shows_no_payload() {
    let shown = format!("{:?}", Record { body: Bytes::from_static(b"secret"), ..record(Logs, 4711, 0) });
    assert!(!shown.contains("secret") && shown.contains("body_bytes: 6"), "{shown}");
}
