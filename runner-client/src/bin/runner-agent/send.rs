//! `runner-agent send`: one shot.

mod progress;
mod source;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use telemetry_runner_client::{Client, DropReason, Keeping, NotTaken, Signal, SignalSettings};
use tokio::signal::unix::{SignalKind, signal as unix_signal};
use tokio::time::{Instant, sleep_until, timeout};

use self::progress::Progress;
use self::source::Source;
use crate::config::Settings;
use crate::exit::{Failure, Outcome};
use crate::intake::{Checked, check, lines, now_ms};
use crate::run::start;

/// How long to wait for room.
const ROOM_PAUSE: Duration = Duration::from_millis(50);
/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);
/// How long the reason is waited for why there is no connection.
const REASON_PATIENCE: Duration = Duration::from_secs(1);
/// Memory for what waits: one of the largest batches of traces is among it.
const MAX_MEMORY: usize = 128 << 20;

/// What is to be sent, and how.
pub(crate) struct Order<'a> {
    pub(crate) signal: Signal,
    /// `-`: standard input.
    pub(crate) file: &'a Path,
    pub(crate) within: Duration,
    pub(crate) json: bool,
}

/// What became of a file.
#[derive(Debug, Serialize)]
struct Report {
    signal: Signal,
    /// Points, records or spans that were read.
    items: u64,
    delivered: u64,
    /// By reason; those that are zero are left out.
    dropped: BTreeMap<&'static str, u64>,
    /// Lines that are no points or records. No store would keep them.
    unreadable_lines: u64,
    /// Whether the file was read to its end.
    read_to_the_end: bool,
    /// Whether all of it was delivered.
    complete: bool,
    /// Why it ended early.
    trouble: Option<String>,
}

/// Delivers a file, in order, and succeeds only if all of it was delivered.
pub(crate) async fn send(settings: Settings, order: Order<'_>) -> Outcome {
    let mut terminate = unix_signal(SignalKind::terminate()).map_err(Failure::other)?;
    let mut interrupt = unix_signal(SignalKind::interrupt()).map_err(Failure::other)?;
    let source = Source::open(order.file, order.signal)?;
    let mut progress = Progress::new(&source, order.json);
    let deadline = Instant::now() + order.within;
    let kept = |settings| SignalSettings { max_memory: MAX_MEMORY, keeping: Keeping::UntilDelivered, ..settings };
    let (client, _) = start(&settings, |builder| builder.traces_settings(kept(SignalSettings::traces())))?;
    let read = Read::default();
    let trouble = {
        let delivery = deliver(&client, order.signal, source, &read);
        tokio::pin!(delivery);
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                delivered = &mut delivery => break delivered.err(),
                _ = interrupt.recv() => break Some("it was interrupted".to_owned()),
                _ = terminate.recv() => break Some("it was told to stop".to_owned()),
                () = sleep_until(deadline) => break Some(late(&client, order.within).await),
                _ = ticks.tick() => progress.show(read.bytes.load(Ordering::Relaxed), &client.tally(order.signal)),
            }
        }
    };
    // What is not delivered by now is counted as dropped.
    client.close(Duration::ZERO).await;
    progress.end();
    tell(&report(&client, order.signal, &read, trouble), order.json)
}

/// How far the file was read.
#[derive(Debug, Default)]
struct Read {
    bytes: AtomicU64,
    unreadable_lines: AtomicU64,
    /// 1: to the end.
    ended: AtomicU64,
}

async fn deliver(client: &Client, signal: Signal, mut source: Source, read: &Read) -> Result<(), String> {
    if signal == Signal::Traces {
        traces_are_taken(client).await?;
    }
    while let Some(chunk) = source.next().await {
        let chunk = chunk?;
        let bytes = chunk.len() as u64;
        match check(signal, chunk.clone(), None, now_ms()) {
            Ok(checked) => submit(client, signal, checked, read).await?,
            Err((_, why)) if signal == Signal::Traces => return Err(why.to_owned()),
            Err(_) => drop(read.unreadable_lines.fetch_add(lines(&chunk).count() as u64, Ordering::Relaxed)),
        }
        read.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    read.ended.store(1, Ordering::Relaxed);
    client.flush(Duration::MAX).await;
    Ok(())
}

async fn submit(client: &Client, signal: Signal, checked: Checked, read: &Read) -> Result<(), String> {
    let Checked { batch, left_out, unreadable, .. } = checked;
    read.unreadable_lines.fetch_add(unreadable, Ordering::Relaxed);
    left_out.into_iter().for_each(|(reason, items)| client.count_dropped(signal, reason, items));
    let Some(batch) = batch else { return Ok(()) };
    loop {
        match client.submit(batch.clone()).await {
            Ok(()) => return Ok(()),
            Err(NotTaken::Full) => tokio::time::sleep(ROOM_PAUSE).await,
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Waits until the coordinator has said what it takes.
async fn traces_are_taken(client: &Client) -> Result<(), String> {
    let mut policies = client.policy().watch();
    let told = policies.wait_for(Option::is_some).await.map_err(|error| error.to_string())?;
    match &*told {
        Some(policy) if policy.takes(Signal::Traces) => Ok(()),
        _ => Err("the coordinator takes no traces".to_owned()),
    }
}

async fn late(client: &Client, within: Duration) -> String {
    let seconds = within.as_secs();
    let why = match client.peer() {
        Some(_) => None,
        None => timeout(REASON_PATIENCE, client.connected()).await.ok().and_then(Result::err),
    };
    match why {
        Some(why) => format!("it took longer than {seconds} s: {why}"),
        None => format!("it took longer than {seconds} s"),
    }
}

fn report(client: &Client, signal: Signal, read: &Read, trouble: Option<String>) -> Report {
    let tally = client.tally(signal);
    let dropped = DropReason::ALL.into_iter().map(|reason| (reason.as_str(), tally.dropped(reason)));
    let unreadable_lines = read.unreadable_lines.load(Ordering::Relaxed);
    let read_to_the_end = read.ended.load(Ordering::Relaxed) == 1;
    Report {
        signal,
        items: tally.written,
        delivered: tally.delivered,
        dropped: dropped.filter(|(_, items)| *items > 0).collect(),
        unreadable_lines,
        read_to_the_end,
        complete: read_to_the_end && unreadable_lines == 0 && tally.delivered == tally.written,
        trouble,
    }
}

fn tell(report: &Report, json: bool) -> Outcome {
    if json {
        println!("{}", serde_json::to_string(report).map_err(Failure::other)?);
    } else {
        println!("{} of {} delivered", report.delivered, report.items);
    }
    if report.complete {
        return Ok(());
    }
    let mut faults: Vec<String> = report.trouble.iter().cloned().collect();
    if report.delivered < report.items {
        let reasons: Vec<String> = report.dropped.iter().map(|(reason, items)| format!("{reason} {items}")).collect();
        faults.push(format!("{} were not delivered ({})", report.items - report.delivered, reasons.join(", ")));
    }
    if report.unreadable_lines > 0 {
        faults.push(format!("{} lines can't be read, and no store keeps them", report.unreadable_lines));
    }
    if !report.read_to_the_end {
        faults.push("the rest of the file was not read".to_owned());
    }
    Err(Failure::Other(faults.join("; ")))
}
