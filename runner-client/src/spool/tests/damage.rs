//! Lessons 11 (VictoriaMetrics 11192: a torn tail lost the whole queue) and 12 (vector 17644, 18336: a corrupt buffer
//! looped or stalled).

use super::*;
use crate::spool::SpoolSignal::{Logs, Metrics};
use crate::spool::disk::faults;
use crate::spool::format::{FOOTER, RECORD_HEADER, SEGMENT_HEADER};

const BODY: usize = 40;

/// Nine records in one segment, sealed or as a crash leaves it; record 4 is acknowledged.
fn nine(sealed: bool) -> (Bench, Vec<u8>, Vec<Position>) {
    let bench = Bench::new();
    let mut spool = bench.open();
    let positions = append(&mut spool, Logs, 0..9, BODY);
    assert!(spool.acknowledge(&positions[4]));
    if sealed {
        spool.close().unwrap();
    }
    let bytes = fs::read(bench.only_file("seg")).unwrap();
    (bench, bytes, positions)
}

const WAITING: [u64; 8] = [0, 1, 2, 3, 5, 6, 7, 8];

/// What is delivered and what is counted as lost if the segment holds these bytes.
fn with_segment(original: &Bench, bytes: &[u8]) -> (Vec<u64>, Amount, Recovery) {
    let bench = Bench::new();
    fs::create_dir_all(bench.folder()).unwrap();
    for path in original.files("seg").into_keys().chain(original.files("ack").into_keys()) {
        fs::copy(&path, bench.folder().join(path.file_name().unwrap())).unwrap();
    }
    fs::write(bench.only_file("seg"), bytes).unwrap();
    let (mut spool, recovery) = bench.recover();
    let mut lost = dropped(&recovery.lost, DropCause::Damaged);
    let delivered = drain_positions(&mut spool, Logs);
    lost.add(dropped(&spool.take_dropped(), DropCause::Damaged));
    assert_eq!(spool.stats().waiting.logs.records, delivered.len() as u64);
    // Whatever happened: it can be emptied, and then nothing is left, and nothing is counted twice.
    delivered.iter().for_each(|(_, position)| assert!(spool.acknowledge(position)));
    drop(spool);
    let (mut spool, again) = bench.recover();
    assert_eq!((drain(&mut spool, Logs), again.lost), (vec![], vec![]));
    assert_eq!(bench.files("seg").len() + bench.files("ack").len(), 0);
    (delivered.into_iter().map(|(number, _)| number).collect(), lost, recovery)
}

#[test]
fn lesson_11_a_flipped_bit_loses_that_record_only() {
    for sealed in [true, false] {
        let (bench, bytes, positions) = nine(sealed);
        // Each byte once, each bit in turn.
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let hit = positions.iter().rposition(|position| position.offset <= at as u64);
            let last_end = if sealed { bytes.len() - FOOTER } else { bytes.len() };
            let hit = hit.filter(|_| at < last_end).map(|hit| hit as u64).filter(|hit| *hit != 4);
            let expected: Vec<u64> = WAITING.into_iter().filter(|number| Some(*number) != hit).collect();
            let (delivered, lost, _) = with_segment(&bench, &damaged);
            assert_eq!(delivered, expected, "byte {at}, sealed: {sealed}");
            // Only of a torn tail it is not known that there was a record.
            let is_tail = !sealed && hit == Some(8) && (at as u64) < positions[8].offset + RECORD_HEADER as u64;
            let expected = if hit.is_some() && !is_tail { amount(1, 10) } else { amount(0, 0) };
            assert_eq!(lost, expected, "byte {at}, sealed: {sealed}");
        }
    }
}

#[test]
fn lesson_11_a_truncation_at_any_byte_loses_what_was_cut_only() {
    for sealed in [true, false] {
        let (bench, bytes, positions) = nine(sealed);
        for len in 0..bytes.len() {
            let record_len = bytes_of_a_record();
            let whole = positions.iter().filter(|position| at(position) + record_len <= len).count();
            let expected: Vec<u64> = WAITING.into_iter().filter(|number| *number < whole as u64).collect();
            let (delivered, _, recovery) = with_segment(&bench, &bytes[..len]);
            assert_eq!(delivered, expected, "{len} bytes, sealed: {sealed}");
            if whole > 0 && len < bytes.len() - FOOTER {
                let cut = len - SEGMENT_HEADER - whole * record_len;
                assert_eq!(recovery.torn_bytes, cut as u64);
            }
        }
    }
}

/// Where a record begins.
fn at(position: &Position) -> usize {
    usize::try_from(position.offset).unwrap()
}

fn bytes_of_a_record() -> usize {
    RECORD_HEADER + 1 + BODY
}

#[test]
fn lesson_11_missing_and_additional_bytes_lose_the_records_that_they_touch_only() {
    let (bench, bytes, positions) = nine(true);
    for (number, position) in positions.iter().enumerate() {
        let offset = at(position);
        for (from, take) in [(offset + 3, 9), (offset + RECORD_HEADER + 5, 17)] {
            let expected: Vec<u64> = WAITING.into_iter().filter(|other| *other != number as u64).collect();
            let shorter = [&bytes[..from], &bytes[from + take..]].concat();
            assert_eq!(with_segment(&bench, &shorter).0, expected, "{take} bytes missing at {from}");
            let longer = [&bytes[..from], &vec![0xd5; take][..], &bytes[from..]].concat();
            assert_eq!(with_segment(&bench, &longer).0, expected, "{take} bytes more at {from}");
        }
    }
}

#[test]
fn lesson_11_a_damaged_stretch_is_counted_exactly_next_to_what_was_acknowledged() {
    let (bench, mut bytes, positions) = nine(true);
    let (from, to) = (at(&positions[2]), at(&positions[7]));
    bytes[from..to].fill(0);
    let (delivered, lost, _) = with_segment(&bench, &bytes);
    assert_eq!(delivered, [0, 1, 7, 8]);
    assert_eq!(lost, amount(4, 40), "2 to 6, but for 4, which was acknowledged");
}

#[test]
fn a_flipped_bit_in_the_acknowledgements_delivers_once_more_and_loses_nothing() {
    let (bench, ..) = nine(true);
    let path = bench.only_file("ack");
    let bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, damaged).unwrap();
        assert_eq!(drain(&mut bench.open(), Logs), (0..9).collect::<Vec<_>>());
    }
    fs::write(&path, [&bytes[..], b"torn"].concat()).unwrap();
    assert_eq!(drain(&mut bench.open(), Logs), WAITING);
}

// What a batch holds is chosen by others.
#[test]
fn a_record_in_the_body_of_a_damaged_record_is_not_taken_for_one() {
    let (bench, inner, _) = nine(true);
    let bench_of_outer = Bench::new();
    let mut spool = bench_of_outer.open();
    let nested = Record { body: inner.into(), ..record(Logs, 0, 0) };
    let position = spool.append(&nested).unwrap().position;
    spool.append(&record(Logs, 1, BODY)).unwrap();
    drop((spool, bench));
    let mut bytes = fs::read(bench_of_outer.only_file("seg")).unwrap();
    bytes[at(&position)] ^= 1;
    assert_eq!(with_segment(&bench_of_outer, &bytes).0, [1]);
}

#[test]
fn damage_while_the_spool_is_open_is_noticed_and_counted() {
    let bench = Bench::new();
    let mut spool = bench.open();
    let positions = append(&mut spool, Logs, 0..40, 4_000);
    let segments: Vec<PathBuf> = bench.files("seg").into_keys().collect();
    fs::remove_file(&segments[1]).unwrap();
    let mut last = fs::read(&segments[2]).unwrap();
    last[at(&positions[39]) + 100] ^= 1;
    fs::write(&segments[2], last).unwrap();
    let gone = positions.iter().filter(|position| position.segment == positions[20].segment).count() as u64;
    assert_eq!(spool.read(&positions[39]).unwrap(), None);
    assert_eq!(drain(&mut spool, Logs).len() as u64, 39 - gone);
    assert_eq!(dropped(&spool.take_dropped(), DropCause::Damaged), amount(gone + 1, 10 * (gone + 1)));
    assert_eq!(spool.stats().waiting.logs.records, 39 - gone);
}

// vector 17644, 18336 (lesson 12).
#[test]
fn lesson_12_random_segments_are_searched_in_bounded_time_and_delivery_goes_on() {
    let mut rng = fastrand::Rng::with_seed(12);
    for round in 0..60 {
        let bench = Bench::new();
        bench.fill(Logs, 100, 2_000);
        let mut touched = 0;
        for path in bench.files("seg").into_keys() {
            let mut bytes = fs::read(&path).unwrap();
            match rng.u8(0..5) {
                0 => continue,
                1 => rng.fill(&mut bytes),
                // What a search for records finds most.
                2 => bytes.iter_mut().zip(b"\xd5Rec".iter().cycle()).for_each(|(byte, magic)| *byte = *magic),
                3 => (0..20).for_each(|_| {
                    let at = rng.usize(..bytes.len());
                    bytes[at] = rng.u8(..);
                }),
                _ => {
                    let from = rng.usize(..bytes.len());
                    let to = rng.usize(from..bytes.len());
                    rng.fill(&mut bytes[from..to]);
                }
            }
            touched += 1;
            fs::write(&path, bytes).unwrap();
        }
        let (mut spool, recovery) = bench.recover();
        spool.append(&record(Logs, 100, 10)).unwrap();
        let delivered = drain_positions(&mut spool, Logs);
        assert!(delivered.is_sorted_by_key(|(number, _)| *number), "round {round}");
        assert_eq!(delivered.last().unwrap().0, 100);
        assert!(delivered.len() == 101 || touched > 0);
        let mut lost = dropped(&recovery.lost, DropCause::Damaged);
        lost.add(dropped(&spool.take_dropped(), DropCause::Damaged));
        assert!(delivered.len() as u64 + lost.records <= 101 && lost.items == 10 * lost.records);
        delivered.iter().for_each(|(_, position)| assert!(spool.acknowledge(position)));
        assert_eq!(spool.stats().waiting, PerSignal::default());
    }
}

#[test]
fn a_damaged_signal_does_not_touch_the_other() {
    let bench = Bench::new();
    bench.fill(Logs, 10, 100);
    fs::write(bench.only_file("seg"), [0; 500]).unwrap();
    bench.fill(Metrics, 10, 100);
    assert_eq!(drain(&mut bench.open(), Metrics).len(), 10);
}

// Found by the model.
#[test]
fn acknowledgements_of_records_that_were_cut_off_do_not_hide_those_of_others() {
    let (bench, bytes, positions) = nine(false);
    let mut spool = bench.open();
    [8, 7, 0].into_iter().for_each(|number: usize| assert!(spool.acknowledge(&positions[number])));
    drop(spool);
    let cut = at(&positions[2]);
    assert_eq!(with_segment(&bench, &bytes[..cut]).0, [1]);
}

#[test]
fn a_disk_that_is_away_for_a_moment_loses_nothing() {
    let bench = Bench::new();
    bench.fill(Logs, 10, 100);
    let mut spool = bench.open();
    let first = spool.next(Logs).unwrap().unwrap();
    faults::set_bad(0..u64::MAX);
    for _ in 0..3 {
        let error = spool.next(Logs).unwrap_err();
        assert_eq!(error.file, bench.only_file("seg"));
        assert!(spool.read(&first.position).is_err());
    }
    faults::set_bad(0..0);
    assert_eq!(drain(&mut spool, Logs), (1..10).collect::<Vec<_>>());
    assert!(spool.take_dropped().is_empty());
}

#[test]
fn a_block_that_stays_bad_stops_delivery_for_some_attempts_and_then_counts_as_damaged() {
    let bench = Bench::new();
    let positions = bench.fill(Logs, 10, 10_000);
    let mut spool = bench.open();
    let bad = positions[4].offset + 5_000;
    faults::set_bad(bad..bad + 512);
    let mut delivered = Vec::new();
    let mut failures = 0;
    // More calls than it takes, so that a spool that never gives up fails here.
    for _ in 0..50 {
        match spool.next(Logs) {
            Ok(Some(stored)) => delivered.push(number(&stored)),
            Ok(None) => break,
            Err(_) => failures += 1,
        }
    }
    faults::set_bad(0..0);
    assert_eq!(failures, 10);
    assert!(delivered.iter().all(|number| *number != 4) && delivered.len() == 9, "{delivered:?}");
    assert_eq!(dropped(&spool.take_dropped(), DropCause::Damaged), amount(1, 10));
}

#[test]
fn a_bad_block_in_a_segment_that_is_searched_costs_what_is_in_it() {
    let bench = Bench::new();
    let positions = bench.fill(Logs, 6, 10_000);
    let bad = positions[2].offset + 20;
    faults::set_bad(bad..bad + 512);
    let (_, recovery) = bench.recover();
    faults::set_bad(0..0);
    assert_eq!(dropped(&recovery.lost, DropCause::Damaged), amount(1, 10));
    assert_eq!(drain(&mut bench.open(), Logs), [0, 1, 3, 4, 5]);
}
