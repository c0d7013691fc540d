//! Lesson 13 (opentelemetry-collector-contrib 35899: a corrupt database stopped the start): whatever is in the folder,
//! the spool starts, sets aside, and says so.

use std::os::unix::fs::symlink;

use super::*;
use crate::spool::SpoolSignal::{Logs, Metrics};
use crate::spool::format::{Head, SegmentName, VERSION};

fn aside(bench: &Bench) -> Vec<String> {
    let entries = fs::read_dir(bench.folder().join("set-aside")).into_iter().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const OTHER: SegmentName = SegmentName { signal: Metrics, seq: 5, salt: 7 };

#[test]
fn lesson_13_garbage_is_set_aside_and_said() {
    let bench = Bench::new();
    bench.fill(Logs, 5, 100);
    let own = bench.only_file("seg");
    let put = |name: &str, bytes: &[u8]| fs::write(bench.folder().join(name), bytes).unwrap();
    put("notes \u{1b}[31m\n.txt", b"hello");
    put(&OTHER.file("seg"), &[0x55; 100_000]);
    put(&SegmentName { seq: 6, ..OTHER }.file("seg"), &fs::read(&own).unwrap());
    put(&SegmentName { seq: 7, ..OTHER }.file("seg"), b"short");
    put(&SegmentName { seq: 8, ..OTHER }.file("ack"), b"an orphan");
    put(&SegmentName { seq: 9, ..OTHER }.file("seg"), b"");
    put("core", &[0; 10_000]);
    symlink("/etc/passwd", bench.folder().join(SegmentName { seq: 10, ..OTHER }.file("seg"))).unwrap();
    fs::create_dir(bench.folder().join("lost+found")).unwrap();
    fs::create_dir(bench.folder().join(SegmentName { seq: 11, ..OTHER }.file("seg"))).unwrap();

    let (mut spool, recovery) = bench.recover();
    assert_eq!(drain(&mut spool, Logs), [0, 1, 2, 3, 4]);
    assert_eq!((recovery.set_aside_files, recovery.ignored_entries), (6, 2), "{recovery:?}");
    let mut faults: Vec<&str> = recovery.set_aside.iter().map(|aside| aside.fault).collect();
    faults.sort_unstable();
    assert_eq!(
        faults,
        [
            "not a file of the spool",
            "not a file of the spool",
            "not a regular file",
            "not a segment",
            "not a segment",
            "the header is of another segment"
        ]
    );
    let mut named: Vec<String> = recovery.set_aside.into_iter().map(|aside| aside.name).collect();
    named.sort();
    assert_eq!(aside(&bench), named);
    assert!(named.iter().any(|name| name.ends_with("-notes___31m_.txt")), "{named:?}");
    drop(spool);
    let (mut spool, recovery) = bench.recover();
    assert_eq!((recovery.set_aside_files, drain(&mut spool, Logs).len()), (0, 5), "once is enough");
}

#[test]
fn lesson_13_every_file_of_a_spool_may_be_garbage() {
    let bench = Bench::new();
    let positions = bench.fill(Logs, 40, 4_000);
    bench.open().acknowledge(&positions[3]);
    for entry in fs::read_dir(bench.folder()).unwrap() {
        fs::write(entry.unwrap().path(), [0xa5; 70_000]).unwrap();
    }
    let (mut spool, recovery) = bench.recover();
    assert_eq!((recovery.set_aside_files, recovery.waiting), (3, PerSignal::default()));
    spool.append(&record(Logs, 1, 10)).unwrap();
    assert_eq!(drain(&mut spool, Logs), [1]);
}

#[test]
fn what_is_set_aside_is_bounded_and_the_oldest_goes() {
    let mut bench = Bench::new();
    bench.config.max_set_aside_bytes = 100_000;
    drop(bench.open());
    for round in 0..10 {
        fs::write(bench.folder().join(format!("garbage-{round}")), [0; 30_000]).unwrap();
        drop(bench.open());
        bench.clock.advance(Duration::from_secs(1));
    }
    let kept: Vec<char> = aside(&bench).iter().filter_map(|name| name.chars().last()).collect();
    assert_eq!(kept, ['7', '8', '9']);
}

#[test]
fn files_that_were_there_before_the_spool_are_left_alone_for_ever() {
    let bench = Bench::new();
    fs::create_dir(bench.folder()).unwrap();
    fs::write(bench.folder().join("letter.txt"), "dear").unwrap();
    for _ in 0..2 {
        bench.fill(Logs, 1, 10);
        let (_, recovery) = bench.recover();
        assert_eq!((recovery.ignored_entries, recovery.set_aside_files), (1, 0));
    }
    fs::write(bench.folder().join(OTHER.file("seg")), "garbage").unwrap();
    assert_eq!(bench.recover().1.set_aside_files, 1, "what poses as a segment is no letter");
    assert_eq!(fs::read_to_string(bench.folder().join("letter.txt")).unwrap(), "dear");
}

#[test]
fn where_nothing_can_be_set_aside_garbage_is_left_alone() {
    let bench = Bench::new();
    drop(bench.open());
    fs::write(bench.folder().join("set-aside"), "a file where the folder should be").unwrap();
    fs::write(bench.folder().join("garbage"), "").unwrap();
    let (_, recovery) = bench.recover();
    assert_eq!((recovery.set_aside_files, recovery.ignored_entries), (0, 1));
}

#[test]
fn a_newer_format_stops_the_start_and_nothing_is_touched() {
    let bench = Bench::new();
    bench.fill(Logs, 5, 100);
    fs::write(bench.folder().join("garbage"), "left where it is").unwrap();
    fs::write(bench.folder().join(OTHER.file("ack")), "an orphan").unwrap();
    let newer = bench.folder().join("metrics-of-the-future.log");
    let mut header = OTHER.header(START_MS);
    header[8] = 2;
    let crc = crc32fast::hash(&header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!((Head::read(&header), VERSION), (Head::Newer(2), 1));
    fs::write(&newer, header).unwrap();
    let listing = || {
        let entries = fs::read_dir(bench.folder()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries.map(|path| (fs::read(&path).unwrap(), path)).collect();
        files.sort();
        files
    };
    let before = listing();
    let error = bench.try_open().unwrap_err();
    assert!(matches!(error, SpoolError::NewerFormat { found: 2, supported: 1, .. }), "{error}");
    assert!(error.to_string().contains("metrics-of-the-future.log") && !error.is_retryable(), "{error}");
    assert_eq!(listing(), before);
    fs::remove_file(newer).unwrap();
    assert_eq!(drain(&mut bench.open(), Logs).len(), 5);
}
