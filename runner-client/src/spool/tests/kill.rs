//! A process that is killed while it appends (lesson 11), at whatever point.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::spool::SpoolSignal::{Logs, Metrics};

const FOLDER: &str = "SPOOL_TEST_FOLDER";
const ROUNDS: u64 = 8;

fn bench_in(folder: PathBuf) -> Bench {
    let mut bench = Bench::new();
    bench.config.folder = folder;
    bench.config.sync = SyncPolicy { every_records: 8, every: Duration::from_secs(1) };
    bench
}

/// Runs in the child process: appends for ever, and says how far it is. It does nothing in an ordinary run.
#[test]
fn child_that_appends_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut spool = bench_in(folder.into()).open();
    let mut out = std::io::stdout();
    for number in 0.. {
        let appended = spool.append(&record(Logs, number, 1_000)).unwrap();
        // One acknowledgement for every second record of another signal, as delivery does.
        let metrics = spool.append(&record(Metrics, number, 300)).unwrap().position;
        let acknowledged = number % 2 == 0 && spool.acknowledge(&metrics);
        writeln!(out, "progress {number} {} {acknowledged}", appended.is_synced).unwrap();
    }
}

fn child(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "spool::tests::kill::child_that_appends_until_it_is_killed",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn lesson_11_after_kill_9_everything_that_was_taken_is_there() {
    for round in 0..ROUNDS {
        let bench = bench_in(tempfile::tempdir().unwrap().keep());
        let mut child = child(bench.folder());
        let mut progress = BufReader::new(child.stdout.take().unwrap()).lines();
        // A different moment each round: in the first segment, around a new one, after many.
        let until = 3 + 37 * round;
        let numbers = std::iter::from_fn(|| progress.next()?.ok())
            .filter_map(|line| line.strip_prefix("progress ")?.split(' ').next()?.parse::<u64>().ok());
        let reached = numbers.take_while(|number| *number < until).last();
        assert_eq!(reached, Some(until - 1), "the child did not get that far");
        child.kill().unwrap();
        child.wait().unwrap();
        // What it said before it was killed counts as well.
        let said = std::iter::from_fn(|| progress.next()?.ok()).filter(|line| line.starts_with("progress ")).count();
        let taken = until + 1 + said as u64;

        let (mut spool, recovery) = bench.recover();
        assert_eq!((&recovery.lost[..], recovery.set_aside_files), (&[][..], 0), "{recovery:?}");
        assert!(recovery.searched_segments <= 2);
        let logs = drain(&mut spool, Logs);
        assert!(logs.len() as u64 >= taken, "{} of {taken}", logs.len());
        assert!(logs.iter().copied().eq(0..logs.len() as u64), "in order, without gaps");
        let metrics = drain(&mut spool, Metrics);
        let unacknowledged = |number: &u64| number % 2 == 1;
        assert!((0..taken).filter(unacknowledged).all(|number| metrics.contains(&number)));
        assert!(
            !metrics.iter().any(|number| *number < taken - 1 && !unacknowledged(number)),
            "no acknowledgement is lost"
        );
        drop(spool);
        fs::remove_dir_all(bench.folder()).unwrap();
    }
}
