//! The spool on a disk that is really full, and in a folder that really can't be written. Where no such disk can be had,
//! the test is reported as ignored, with the reason.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use bytes::Bytes;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use telemetry_proto::SystemClock;
use telemetry_runner_client::spool::{
    AppendError, BodyEncoding, DropCause, Record, Spool, SpoolConfig, SpoolError, SpoolSignal, WhenFull,
};
use tempfile::TempDir;
use ulid::Ulid;

type Outcome = Result<Completion, Failed>;

fn main() -> ExitCode {
    let trials = vec![
        Trial::ignorable_test(
            "lesson_15_a_full_disk_refuses_keeps_everything_and_works_on_once_there_is_room",
            refuses,
        ),
        Trial::ignorable_test("lesson_15_a_full_disk_makes_the_oldest_go_and_the_caller_is_told_exactly", drops_oldest),
        Trial::ignorable_test("lesson_15_a_spool_opens_and_is_drained_on_a_full_disk", opens),
        Trial::ignorable_test("a_folder_that_cannot_be_written_is_refused_with_a_remedy", cannot_be_written),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn refuses() -> Outcome {
    let disk = match SmallDisk::mount() {
        Ok(disk) => disk,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let mut spool = open(&disk, WhenFull::Refuse)?;
    let taken = fill(&mut spool)?;
    assert!(taken > 200, "{taken}");
    assert!(spool.take_dropped().is_empty());
    let before: u64 = sizes(disk.path())?;
    assert!(matches!(spool.append(&record(taken)), Err(AppendError::Full)));
    assert_eq!(sizes(disk.path())?, before, "what was written in part is cut off again");

    // Once a segment is settled there is room, though reading has just had it open.
    let mut settled = 0;
    while sizes(disk.path())? > before - 100_000 {
        let stored = spool.next(SpoolSignal::Logs)?.ok_or("a record is missing")?;
        assert_eq!(stored.record, record(settled));
        assert!(spool.acknowledge(&stored.position));
        settled += 1;
    }
    spool.append(&record(taken))?;
    let taken = taken + 1;

    // Everything is there, and goes; nothing needs room to make room.
    for number in settled..taken {
        let stored = spool.next(SpoolSignal::Logs)?.ok_or("a record is missing")?;
        assert_eq!(stored.record, record(number));
        assert!(spool.acknowledge(&stored.position));
    }
    spool.append(&record(taken))?;
    spool.sync()?;
    drop(spool);
    let mut spool = open(&disk, WhenFull::Refuse)?;
    assert_eq!(spool.next(SpoolSignal::Logs)?.map(|stored| stored.record), Some(record(taken)));
    assert!(spool.next(SpoolSignal::Logs)?.is_none());
    Ok(Completion::Completed)
}

fn drops_oldest() -> Outcome {
    let disk = match SmallDisk::mount() {
        Ok(disk) => disk,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let mut spool = open(&disk, WhenFull::DropOldest)?;
    let count = 3_000;
    let mut first = 0;
    for number in 0..count {
        // Reading on the way: the file that is open for it must not keep the space of what was dropped.
        if number % 7 == 0 {
            spool.next(SpoolSignal::Logs)?;
        }
        spool.append(&record(number))?;
        for dropped in spool.take_dropped() {
            assert_eq!((dropped.cause, dropped.amount.items), (DropCause::SpoolFull, 10 * dropped.amount.records));
            first += dropped.amount.records;
        }
    }
    assert!(first > 2_000 && first < count, "{first}");
    drop(spool);
    let mut spool = open(&disk, WhenFull::DropOldest)?;
    for number in first..count {
        assert_eq!(spool.next(SpoolSignal::Logs)?.map(|stored| stored.record), Some(record(number)));
    }
    assert!(spool.next(SpoolSignal::Logs)?.is_none());
    Ok(Completion::Completed)
}

fn opens() -> Outcome {
    let disk = match SmallDisk::mount() {
        Ok(disk) => disk,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let mut spool = open(&disk, WhenFull::Refuse)?;
    (0..50).try_for_each(|number| spool.append(&record(number)).map(drop))?;
    drop(spool);
    let filler = disk.path().join("filler");
    // Ends with an error, when the disk is full.
    let filled = fs::write(&filler, vec![0; 4 * 1024 * 1024]);
    assert!(filled.is_err());
    let mut spool = open(&disk, WhenFull::Refuse)?;
    for number in 0..20 {
        let stored = spool.next(SpoolSignal::Logs)?.ok_or("a record is missing")?;
        assert_eq!(stored.record, record(number));
        assert!(spool.acknowledge(&stored.position));
    }
    fs::remove_file(&filler)?;
    spool.sync()?;
    drop(spool);
    let mut spool = open(&disk, WhenFull::Refuse)?;
    assert_eq!(spool.stats().waiting.logs.records, 30, "what was acknowledged on the full disk");
    assert_eq!(spool.next(SpoolSignal::Logs)?.map(|stored| stored.record), Some(record(20)));
    Ok(Completion::Completed)
}

fn cannot_be_written() -> Outcome {
    // Root may write anywhere, but not on a disk that is read-only.
    let disk = SmallDisk::mount();
    let dir = tempfile::tempdir()?;
    let folder = match &disk {
        Ok(disk) => disk.path().to_owned(),
        Err(_) => dir.path().join("spool"),
    };
    fs::create_dir_all(folder.join("spool"))?;
    drop(Spool::open(SpoolConfig::new(folder.join("spool")), Arc::new(SystemClock))?);
    match &disk {
        Ok(disk) => disk.make_read_only()?,
        Err(_) => fs::set_permissions(folder.join("spool"), Permissions::from_mode(0o500))?,
    }
    for name in ["spool", "spool/below"] {
        match Spool::open(SpoolConfig::new(folder.join(name)), Arc::new(SystemClock)) {
            Err(error @ SpoolError::NotWritable { .. }) => {
                assert!(error.to_string().contains("give this user the right to write there"), "{error}");
            }
            Err(error) => return Err(format!("another error: {error}").into()),
            Ok(_) => return Ok(Completion::ignored_with("there is no folder that this user can't write")),
        }
    }
    Ok(Completion::Completed)
}

/// A disk of 2 MiB.
struct SmallDisk {
    mount_point: TempDir,
}

impl SmallDisk {
    fn mount() -> Result<Self, String> {
        let mount_point = tempfile::tempdir().map_err(|error| error.to_string())?;
        run("mount", &["-t", "tmpfs", "-o", "size=2m", "none"], mount_point.path())?;
        Ok(Self { mount_point })
    }

    fn path(&self) -> &Path {
        self.mount_point.path()
    }

    fn make_read_only(&self) -> Result<(), String> {
        run("mount", &["-o", "remount,ro"], self.path())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A test that failed may still have files open.
        if let Err(error) = run("umount", &["--lazy"], self.path()) {
            eprintln!("{error}");
        }
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) -> Result<(), String> {
    let output =
        Command::new(program).args(arguments).arg(path).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(format!("no small disk: {}", message.lines().next().unwrap_or(program)))
}

/// A spool whose cap is far above the disk.
fn open(disk: &SmallDisk, when_full: WhenFull) -> Result<Spool, SpoolError> {
    let mut config = SpoolConfig::new(disk.path().join("spool"));
    config.segment_bytes = 128 * 1024;
    config.when_full.logs = when_full;
    Spool::open(config, Arc::new(SystemClock)).map(|(spool, _)| spool)
}

/// Appends until the disk is full; says how many records it took.
fn fill(spool: &mut Spool) -> Result<u64, Failed> {
    for number in 0..10_000 {
        match spool.append(&record(number)) {
            Ok(_) => {}
            Err(AppendError::Full) => return Ok(number),
            Err(error) => return Err(error.into()),
        }
    }
    Err("the disk never was full".into())
}

fn record(number: u64) -> Record {
    let created_unix_ms = 4_000_000_000_000;
    Record {
        signal: SpoolSignal::Logs,
        batch_id: Ulid::from_parts(created_unix_ms, number.into()),
        created_unix_ms,
        items: 10,
        encoding: BodyEncoding::Identity,
        extra: Bytes::new(),
        body: Bytes::from(format!("{number} ").repeat(1_000)),
    }
}

fn sizes(folder: &Path) -> Result<u64, std::io::Error> {
    let mut sum = 0;
    for entry in fs::read_dir(folder.join("spool"))? {
        sum += entry?.metadata()?.len();
    }
    Ok(sum)
}
