//! A restart of the relay under load costs runners a pause, and no batch; and what it had stored before is known after it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use telemetry_proto::{Signal, Verdict, header};
use telemetry_rig::raw::RawResponse;
use telemetry_rig::rig::Rig;
use telemetry_rig::stores::Fault;
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use telemetry_runner_client::{Client, LogRecord};

telemetry_rig::suite! {
    a_restart_under_load_loses_repeats_and_refuses_nothing needs [Relay];
    a_batch_that_was_acknowledged_before_a_stop_is_a_duplicate_after_it needs [Relay];
    a_batch_that_was_at_its_store_at_the_stop_is_a_duplicate_after_it needs [Relay];
    batch_ids_that_can_not_be_read_are_set_aside_and_the_relay_starts needs [Relay];
}

const RUNNERS: usize = 4;
const RESTARTS: u32 = 3;
const DEADLINE: Duration = Duration::from_secs(30);
/// The batch IDs go beside the configuration.
const STATE: &str = "[state]\nfolder = \".\"\n";
const BATCH_IDS: &str = "batch-ids";
/// The load before each restart and after the last.
const BETWEEN: Duration = Duration::from_secs(1);

async fn a_restart_under_load_loses_repeats_and_refuses_nothing() -> TestResult {
    let rig = Rig::builder().runners(RUNNERS).relay_program("").start().await?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..RUNNERS {
        let runner = rig.runner(number);
        runner.arm();
        writers.spawn(write(runner.id.to_string(), runner.client.clone(), Arc::clone(&stop)));
    }
    let mut away = Duration::ZERO;
    for _ in 0..RESTARTS {
        tokio::time::sleep(BETWEEN).await;
        let began = Instant::now();
        rig.relay_program().stop().await?;
        rig.relay_program().restart().await?;
        away = away.max(began.elapsed());
    }
    tokio::time::sleep(BETWEEN).await;
    stop.store(true, Ordering::SeqCst);

    let mut expected = BTreeMap::new();
    let mut longest = Duration::ZERO;
    while let Some(written) = writers.join_next().await {
        let (runner, batches, pause) = written??;
        longest = longest.max(pause);
        expected.extend((0..batches).map(|number| ((runner.clone(), number), 1)));
    }
    let mut stored = BTreeMap::new();
    for line in rig.log_store().wait_for_log_lines(expected.len()).await? {
        let number: u32 = line.field("number").parse()?;
        *stored.entry((line.field("miren_runner").to_owned(), number)).or_insert(0) += 1;
    }
    assert!(stored == expected, "{} written, {} stored, or some twice", expected.len(), stored.len());
    println!(
        "{} batches of {RUNNERS} runners over {RESTARTS} restarts, each stored once; longest pause {} ms, relay away for {} ms at most",
        expected.len(),
        longest.as_millis(),
        away.as_millis()
    );
    Ok(())
}

/// Writes batch after batch, each acknowledged before the next. Says how many, and how long one took at most.
async fn write(runner: String, client: Client, stop: Arc<AtomicBool>) -> Result<(String, u32, Duration), String> {
    let (mut number, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::SeqCst) {
        let began = Instant::now();
        let record = LogRecord::new("e", "stdout", "written").attribute("number", number);
        client.logs().write(&record).map_err(|error| error.to_string())?;
        let report = client.flush(DEADLINE).await;
        if (report.waiting, report.dropped) != (0, 0) {
            return Err(format!("batch {number} of {runner}: {report:?}"));
        }
        longest = longest.max(began.elapsed());
        number += 1;
    }
    Ok((runner, number, longest))
}

/// Brings the batch of this number, on a connection of its own.
async fn bring(rig: &Rig, number: u8) -> Result<RawResponse, Box<dyn std::error::Error>> {
    let id = format!("01ARZ3NDEKTSV4RRFFQ69G5FA{number}");
    let client = rig.raw_client(0).await?;
    let body = format!("{{\"_msg\":\"m\",\"number\":\"{number}\"}}\n");
    let request = client.write(Signal::Logs).token(&rig.token(0)).header(header::BATCH_ID, &id).body(body);
    Ok(request.send().await?)
}

async fn a_batch_that_was_acknowledged_before_a_stop_is_a_duplicate_after_it() -> TestResult {
    let rig = Rig::builder().relay_program(STATE).start().await?;
    let verdict =
        async |number| bring(&rig, number).await.map(|response| response.verdict()).map_err(|e| e.to_string());
    assert_eq!(verdict(1).await?, Some(Verdict::Delivered));
    rig.relay().stop().await?;
    rig.relay().restart().await?;
    assert_eq!(verdict(1).await?, Some(Verdict::Duplicate));
    assert_eq!(verdict(2).await?, Some(Verdict::Delivered));
    // A kill forgets what came since the last stop, and nothing from before it.
    rig.relay().kill().await?;
    rig.relay().restart().await?;
    assert_eq!(verdict(1).await?, Some(Verdict::Duplicate));
    rig.relay().stop().await?;
    rig.relay().restart().await?;
    assert_eq!(verdict(1).await?, Some(Verdict::Duplicate));
    let stored: Vec<_> =
        rig.log_store().log_lines().await?.iter().map(|line| line.field("number").to_owned()).collect();
    assert_eq!(stored, ["1", "2"]);
    Ok(())
}

async fn a_batch_that_was_at_its_store_at_the_stop_is_a_duplicate_after_it() -> TestResult {
    let rig = Rig::builder().relay_program(STATE).start().await?;
    rig.built_in_store().script([Fault::Delay(BETWEEN)]);
    {
        let under_way = wait::until("the request at the store", DEADLINE, async || {
            let came = rig.built_in_store().requests().iter().any(|request| request.path == Signal::Logs.store_path());
            if came { Ok(()) } else { Err("none".to_owned()) }
        });
        // The runner goes away before it is answered.
        tokio::select! {
            answer = bring(&rig, 1) => return Err(format!("answered before the store was: {:?}", answer.is_ok()).into()),
            came = under_way => came?,
        }
    }
    rig.relay().stop().await?;
    rig.relay().restart().await?;
    let again = bring(&rig, 1).await.map_err(|error| error.to_string())?;
    assert_eq!(again.verdict(), Some(Verdict::Duplicate));
    assert_eq!(rig.log_store().log_lines().await?.len(), 1);
    Ok(())
}

async fn batch_ids_that_can_not_be_read_are_set_aside_and_the_relay_starts() -> TestResult {
    let rig = Rig::builder().relay_program(STATE).start().await?;
    bring(&rig, 1).await.map_err(|error| error.to_string())?;
    let file = rig.relay_program().folder().join(BATCH_IDS);
    for garbage in [&b"not a file of batch IDs"[..], b"MIRNBIDS", b"MIRNBIDS\x02\0", b""] {
        rig.relay().stop().await?;
        std::fs::write(&file, garbage)?;
        rig.relay().restart().await?;
        assert!(!file.exists());
        assert_eq!(std::fs::read(file.with_extension("unreadable"))?, garbage);
        let answer = bring(&rig, 2).await.map_err(|error| error.to_string())?;
        assert!(matches!(answer.status, StatusCode::OK | StatusCode::NO_CONTENT), "{}", answer.status);
    }
    let log = rig.relay_program().log()?;
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("batch IDs of before can't be read")).collect();
    assert_eq!(warnings.len(), 4);
    assert!(warnings.iter().all(|line| line.contains("remedy")), "{warnings:?}");
    Ok(())
}
