//! A restart of the relay under load costs runners a pause, and no batch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use telemetry_rig::rig::Rig;
use telemetry_rig::suite::TestResult;
use telemetry_runner_client::{Client, LogRecord};

telemetry_rig::suite! {
    a_restart_under_load_loses_repeats_and_refuses_nothing needs [Relay];
}

const RUNNERS: usize = 4;
const RESTARTS: u32 = 3;
const DEADLINE: Duration = Duration::from_secs(30);
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
        "{} batches of {RUNNERS} runners over {RESTARTS} restarts, refused 0; longest pause {} ms, relay away for {} ms at most",
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
