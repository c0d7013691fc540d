//! What a runner gets through networks of every kind: all of it once, and how fast.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use telemetry_proto::{RunnerId, Signal};
use telemetry_runner_client::{Client, LateTokenSource, RawBatch};
use tokio::time::sleep;

use crate::network::{Network, Weather};
use crate::outcome;
use crate::rig::Rig;
use crate::stores::lost_and_twice;

/// Batches of each signal.
const BATCHES: u64 = 32;
const ITEMS: u64 = 64;
/// About as large, so that a batch has 64 KiB.
const ITEM_BYTES: usize = 1024;
const SIGNALS: [Signal; 2] = [Signal::Metrics, Signal::Logs];
/// How often it is looked how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The same for every run.
const SEED: u64 = 20;

/// A kind of network.
#[derive(Debug, Clone, Copy)]
pub struct Condition {
    /// Its name.
    pub name: &'static str,
    /// What it does, each way.
    pub does: &'static str,
    weather: Weather,
    event: Event,
}

/// What happens in the middle of a transfer.
#[derive(Debug, Clone, Copy)]
enum Event {
    Nothing,
    /// The runner's port changes, that often.
    Rebindings(u64),
    /// Nothing gets through.
    Outage(Duration),
}

/// What came of a transfer.
#[derive(Debug, Clone, Serialize)]
pub struct Transfer {
    /// The batches that were written, of 64 items each.
    pub batches: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From the first write to the last acknowledgement.
    pub seconds: f64,
    /// Items that are in no store.
    pub lost: u64,
    /// Items that are in a store more than once.
    pub twice: u64,
    /// For how long nothing was acknowledged, at worst.
    pub longest_pause: Duration,
}

/// All kinds, with an outage of this length.
#[must_use]
pub fn conditions(outage: Duration) -> Vec<Condition> {
    let millis = Duration::from_millis;
    let of = |name, does, weather| Condition { name, does, weather, event: Event::Nothing };
    let while_it_runs = |name, does, event| {
        // So that there is something to happen in the middle of.
        let weather = Weather { delay: millis(5), ..Weather::CALM };
        Condition { name, does, weather, event }
    };
    vec![
        of("calm", "nothing", Weather::CALM),
        of("loss", "5 % of the packets are lost", Weather { drop: 0.05, ..Weather::CALM }),
        of("delay", "every packet takes 100 ms", Weather { delay: millis(100), ..Weather::CALM }),
        of(
            "reordering",
            "packets take 20 ms, but for 25 % that overtake them",
            Weather { delay: millis(20), ahead: 0.25, ..Weather::CALM },
        ),
        of("duplication", "10 % of the packets come twice", Weather { duplicate: 0.1, ..Weather::CALM }),
        of(
            "small_packets",
            "no datagram over 1,232 bytes, as an MTU of 1,280 allows over IPv6",
            Weather { largest: 1_232, ..Weather::CALM },
        ),
        while_it_runs("rebinding", "the runner's port changes five times", Event::Rebindings(5)),
        while_it_runs("outage", "nothing gets through for a while", Event::Outage(outage)),
        of(
            "all_at_once",
            "2 % lost, 2 % twice, 20 ms, but for 25 % that overtake the others, no datagram over 1,232 bytes",
            Weather { drop: 0.02, duplicate: 0.02, delay: millis(20), ahead: 0.25, largest: 1_232, ..Weather::CALM },
        ),
    ]
}

impl Condition {
    /// Lets a runner write through such a network to a relay and a store of their own.
    ///
    /// # Errors
    /// Something does not start, or the runner gives up.
    ///
    /// # Panics
    /// The condition did not come about.
    pub async fn measure(&self, within: Duration) -> Result<Transfer, Box<dyn Error + Send + Sync>> {
        let rig = Rig::builder().runners(0).start().await?;
        let network = Network::start(rig.relay_address(), SEED).await?;
        let client = client(&rig, &format!("localhost:{}", network.address().port()))?;
        // What the first connection costs is another matter.
        client.connected().await?;
        network.set(self.weather);
        let mut rebound = 0;
        let mut outage = None;
        let total = BATCHES * SIGNALS.len() as u64;
        let transfer = transfer(&rig, &client, within, |batches| match self.event {
            Event::Nothing => {}
            Event::Rebindings(times) => {
                if rebound < times && batches >= (rebound + 1) * total / (times + 1) {
                    rebound += 1;
                    network.rebind();
                }
            }
            Event::Outage(length) => match outage {
                None if batches >= total / 2 => {
                    network.set(Weather::BLOCKED);
                    outage = Some(Some(Instant::now() + length));
                }
                Some(Some(end)) if Instant::now() >= end => {
                    network.set(self.weather);
                    outage = Some(None);
                }
                _ => {}
            },
        })
        .await?;
        match self.event {
            Event::Nothing => {}
            Event::Rebindings(times) => assert!(network.paths() as u64 > times, "{} ports", network.paths()),
            Event::Outage(length) => assert!(transfer.longest_pause >= length, "{transfer:?}"),
        }
        Ok(transfer)
    }
}

/// A runner of the rig that goes to this coordinator, over QUIC or not at all.
///
/// # Errors
/// Something can't be had.
pub fn client(rig: &Rig, coordinator: &str) -> Result<Client, Box<dyn Error + Send + Sync>> {
    let credentials = rig.cluster().issue_runner(&RunnerId::new("r1")?)?;
    let tokens = LateTokenSource::new();
    let client = Client::builder()
        .coordinator(coordinator)
        .identity(credentials, rig.cluster().roots().clone())
        .token_source(Arc::new(tokens.clone()))
        .tcp_fallback(None)
        .build()?;
    tokens.arm(client.issuer());
    Ok(client)
}

/// Writes through the client, waits until all is acknowledged, and compares with what the built-in store has. `progress` is told again
/// and again how many batches are.
///
/// # Errors
/// The client gives up, or is not done in time.
pub async fn transfer(
    rig: &Rig,
    client: &Client,
    within: Duration,
    mut progress: impl FnMut(u64),
) -> Result<Transfer, Box<dyn Error + Send + Sync>> {
    let began = Instant::now();
    let (mut batches, mut bytes) = (0, 0);
    for batch in 0..BATCHES {
        for signal in SIGNALS {
            let body = body(signal, batch * ITEMS..(batch + 1) * ITEMS);
            batches += 1;
            bytes += body.len() as u64;
            client.submit(RawBatch { signal, body, items: ITEMS, query: None }).await?;
        }
    }
    let (mut done, mut last, mut longest_pause) = (0, Instant::now(), Duration::ZERO);
    while done < batches {
        let tallies = SIGNALS.map(|signal| client.tally(signal));
        let now = tallies.iter().map(|tally| tally.delivered / ITEMS).sum();
        if now > done {
            (done, last) = (now, Instant::now());
        }
        longest_pause = longest_pause.max(last.elapsed());
        progress(done);
        if began.elapsed() > within || tallies.iter().any(|tally| tally.written != tally.delivered + tally.waiting) {
            return Err(format!("{done} of {batches} batches after {:?}: {tallies:?}", began.elapsed()).into());
        }
        sleep(LOOK_EVERY).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    let (lost, twice) = compare(rig);
    let transfer = Transfer { batches, bytes, seconds, lost, twice, longest_pause };
    transfer.note();
    Ok(transfer)
}

fn body(signal: Signal, numbers: std::ops::Range<u64>) -> Bytes {
    let pad = "p".repeat(ITEM_BYTES - 80);
    let line = |number: u64| match signal {
        Signal::Metrics => format!("written{{entity=\"e\",pad=\"{pad}\"}} {number} 1790000000000\n"),
        Signal::Logs | Signal::Traces => {
            format!("{{\"_msg\":\"{pad}\",\"_time\":\"2026-09-21T14:13:20Z\",\"entity\":\"e\",\"number\":{number}}}\n")
        }
    };
    numbers.map(line).collect::<String>().into()
}

/// How many items are not there, and how many more than once.
fn compare(rig: &Rig) -> (u64, u64) {
    let store = rig.built_in_store();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of ours")]
    let metrics = store.samples().into_iter().map(|sample| sample.value as u64);
    let logs = store.log_lines().into_iter().map(|line| line.field("number").parse().unwrap_or(u64::MAX));
    let (mut lost, mut twice) = (0, 0);
    for stored in [metrics.collect::<Vec<u64>>(), logs.collect()] {
        let of_signal = lost_and_twice(stored, 0..BATCHES * ITEMS);
        (lost, twice) = (lost + of_signal.0 as u64, twice + of_signal.1 as u64);
    }
    (lost, twice)
}

impl Transfer {
    /// MiB a second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub fn throughput(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20) / self.seconds
    }

    /// For the document of outcomes.
    fn note(&self) {
        let throughput = self.throughput();
        outcome::measured("batches", self.batches);
        outcome::measured("bytes", self.bytes);
        outcome::measured("seconds", format_args!("{:.2}", self.seconds));
        outcome::measured("MiB/s", format_args!("{throughput:.2}"));
        outcome::measured("items lost", self.lost);
        outcome::measured("items twice", self.twice);
        outcome::measured("longest pause, ms", self.longest_pause.as_millis());
    }
}
