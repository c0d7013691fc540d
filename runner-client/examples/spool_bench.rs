//! Measures the spool beside redb: appending with a sync per 32 records, draining, and starting with 1 GiB; and the memory
//! that spools of several sizes take.
//!
//! `cargo run --release --example spool_bench -p telemetry-runner-client [FOLDER]`. The folder says which disk is measured;
//! it takes 2 GiB there.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use redb::{Database, ReadableDatabase, TableDefinition};
use telemetry_proto::{Clock, SystemClock};
use telemetry_runner_client::spool::{BodyEncoding, Record, Spool, SpoolConfig, SpoolSignal, SyncPolicy};
use ulid::Ulid;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const BODY: usize = 4096;
const BATCH: u64 = 32;
const ROUNDS: u64 = 3;
const RECORDS: u64 = 65_536;
const GIB_OF_RECORDS: u64 = 262_144;

fn main() -> Outcome {
    let parent = std::env::args_os().nth(1).unwrap_or_else(|| std::env::temp_dir().into_os_string());
    let dir = tempfile::tempdir_in(parent)?;
    println!("records of {BODY} bytes, a sync per {BATCH}, {RECORDS} records a round\n");
    println!("{:<34} {:>12} {:>10} {:>14}", "", "records/s", "MiB/s", "MiB on disk");
    for round in 0..ROUNDS {
        let folder = dir.path().join(format!("spool-{round}"));
        row("plain file: append", measure_plain_file(&dir.path().join("plain"))?, 0);
        let (append, drain) = measure_spool(&folder)?;
        row("spool: append", append.0, append.1);
        row("spool: read and acknowledge", drain.0, drain.1);
        let file = dir.path().join(format!("redb-{round}"));
        let (append, drain) = measure_redb(&file)?;
        row("redb: append", append.0, append.1);
        row("redb: read and remove, 32 a time", drain.0, drain.1);
    }
    println!();
    start_with_a_gibibyte(&dir.path().join("gib"))?;
    println!();
    println!("{:<34} {:>12} {:>14}", "memory of an open spool", "KiB more", "waiting");
    for records in [1_024, 16_384, GIB_OF_RECORDS] {
        memory(&dir.path().join(format!("memory-{records}")), records)?;
    }
    Ok(())
}

/// What the disk can do at this moment: the same bytes and syncs, and nothing else.
fn measure_plain_file(path: &Path) -> Outcome<Duration> {
    let mut file = File::create(path)?;
    let body = body();
    let began = Instant::now();
    for number in 1..=RECORDS {
        file.write_all(&body)?;
        if number % BATCH == 0 {
            file.sync_data()?;
        }
    }
    let took = began.elapsed();
    std::fs::remove_file(path)?;
    Ok(took)
}

/// Time for appending and for draining, and bytes on disk afterwards.
fn measure_spool(folder: &Path) -> Outcome<((Duration, u64), (Duration, u64))> {
    let mut spool = open(folder)?;
    let began = Instant::now();
    fill(&mut spool, RECORDS)?;
    let append = (began.elapsed(), size(folder)?);
    let began = Instant::now();
    while let Some(stored) = spool.next(SpoolSignal::Logs)? {
        spool.acknowledge(&stored.position);
    }
    spool.sync()?;
    let drain = began.elapsed();
    // Twice: the segment that is written goes once it has been idle.
    spool.maintain()?;
    spool.maintain()?;
    Ok((append, (drain, size(folder)?)))
}

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("batches");

fn measure_redb(file: &Path) -> Outcome<((Duration, u64), (Duration, u64))> {
    let database = Database::create(file)?;
    let body = body();
    let began = Instant::now();
    for batch in 0..RECORDS / BATCH {
        let write = database.begin_write()?;
        {
            let mut table = write.open_table(TABLE)?;
            for number in batch * BATCH..(batch + 1) * BATCH {
                table.insert(number, &body[..])?;
            }
        }
        write.commit()?;
    }
    let append = (began.elapsed(), file.metadata()?.len());
    let began = Instant::now();
    for batch in 0..RECORDS / BATCH {
        let range = batch * BATCH..(batch + 1) * BATCH;
        let read = database.begin_read()?.open_table(TABLE)?;
        for entry in read.range(range.clone())? {
            std::hint::black_box(entry?.1.value().to_vec());
        }
        let write = database.begin_write()?;
        {
            let mut table = write.open_table(TABLE)?;
            for number in range {
                table.remove(number)?;
            }
        }
        write.commit()?;
    }
    let drain = began.elapsed();
    drop(database);
    Ok((append, (drain, file.metadata()?.len())))
}

fn start_with_a_gibibyte(folder: &Path) -> Outcome {
    let mut spool = open(folder)?;
    fill(&mut spool, GIB_OF_RECORDS)?;
    // As a crash leaves it.
    drop(spool);
    println!("{:<34} {:>12} {:>10} {:>14}", "start with 1 GiB", "ms", "searched", "waiting");
    for name in ["after a crash", "after a close"] {
        let began = Instant::now();
        let (spool, recovery) = Spool::open(config(folder), clock())?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        let (searched, waiting) = (recovery.searched_segments, recovery.waiting.logs.records);
        println!("{name:<34} {took:>12.1} {searched:>10} {waiting:>14}");
        spool.close()?;
    }
    Ok(())
}

/// What is resident more with a spool of so many records that was opened, read in part and written to.
fn memory(folder: &Path, records: u64) -> Outcome {
    let mut spool = open(folder)?;
    fill(&mut spool, records)?;
    spool.close()?;
    let before = resident_kib()?;
    let mut spool = open(folder)?;
    for _ in 0..1_000 {
        spool.next(SpoolSignal::Logs)?;
    }
    fill(&mut spool, 32)?;
    let more = resident_kib()?.saturating_sub(before);
    println!("{:<34} {more:>12} {:>14}", format!("{} MiB", records * 4 / 1024), spool.stats().waiting.logs.records);
    drop(spool);
    Ok(std::fs::remove_dir_all(folder)?)
}

/// `VmRSS` of proc(5).
fn resident_kib() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

fn config(folder: &Path) -> SpoolConfig {
    let mut config = SpoolConfig::new(folder);
    config.max_bytes = 4 * 1024 * 1024 * 1024;
    config.sync = SyncPolicy { every_records: BATCH, every: Duration::from_secs(1) };
    config
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

fn open(folder: &Path) -> Outcome<Spool> {
    Ok(Spool::open(config(folder), clock())?.0)
}

fn fill(spool: &mut Spool, records: u64) -> Outcome {
    let body = Bytes::from(body());
    let now = clock().unix_seconds() * 1_000;
    for number in 0..records {
        spool.append(&Record {
            signal: SpoolSignal::Logs,
            batch_id: Ulid::from_parts(now, number.into()),
            created_unix_ms: now,
            items: 10,
            encoding: BodyEncoding::Identity,
            extra: Bytes::new(),
            body: body.clone(),
        })?;
    }
    Ok(())
}

/// Bytes that nothing can compress.
fn body() -> Vec<u8> {
    std::iter::repeat_with(|| fastrand::u8(..)).take(BODY).collect()
}

fn row(name: &str, took: Duration, bytes: u64) {
    let per_second = f64::from(u32::try_from(RECORDS).unwrap_or(u32::MAX)) / took.as_secs_f64();
    let mib = per_second * 4096.0 / (1024.0 * 1024.0);
    println!("{name:<34} {per_second:>12.0} {mib:>10.0} {:>14}", bytes / (1024 * 1024));
}

fn size(folder: &Path) -> Outcome<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        sum += entry?.metadata()?.len();
    }
    Ok(sum)
}
