//! Two ways to load a server: as fast as it answers, and at a fixed rate.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use ulid::Ulid;

use super::client::Crowd;
use super::stop::Stop;

/// What became of the requests of a round.
#[derive(Debug, Default, Clone)]
pub(super) struct Volume {
    /// Stored.
    pub(super) stored: u64,
    /// Answered otherwise, or not at all.
    pub(super) refused: u64,
    /// The first of those, in words.
    pub(super) first_refusal: Option<String>,
    /// From the first request to the last answer.
    pub(super) elapsed: Duration,
}

impl Volume {
    fn count(&mut self, outcome: Result<StatusCode, String>) {
        match outcome {
            Ok(status) if status.is_success() => self.stored += 1,
            other => {
                self.refused += 1;
                self.first_refusal
                    .get_or_insert_with(|| other.map_or_else(|problem| problem, |status| status.to_string()));
            }
        }
    }

    fn add(&mut self, other: Self) {
        self.stored += other.stored;
        self.refused += other.refused;
        self.first_refusal = self.first_refusal.take().or(other.first_refusal);
    }
}

/// What a closed loop sends.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) body: Bytes,
    /// Requests under way at a time.
    pub(super) in_flight: usize,
    /// Whether each batch has an ID of its own.
    pub(super) batch_ids: bool,
}

/// When a closed loop ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Until {
    /// After this time; what is under way is finished.
    Elapsed(Duration),
    /// After so many requests.
    Requests(u64),
}

/// Keeps `in_flight` requests under way, each on the next connection of its own turn.
pub(super) async fn closed(crowd: &Arc<Crowd>, work: &Work, until: Until, stop: &Stop) -> Volume {
    let began = Instant::now();
    let mut workers = JoinSet::new();
    for worker in 0..work.in_flight {
        let (crowd, work, stop) = (Arc::clone(crowd), work.clone(), stop.clone());
        workers.spawn(async move {
            let mut volume = Volume::default();
            // Workers share no connection unless there are fewer of those.
            let mut number = worker;
            let share = match until {
                Until::Requests(count) => count.div_ceil(work.in_flight as u64),
                Until::Elapsed(_) => u64::MAX,
            };
            for _ in 0..share {
                if matches!(until, Until::Elapsed(duration) if began.elapsed() >= duration) || stop.is_set() {
                    break;
                }
                let batch = if work.batch_ids { batch_id() } else { None };
                volume.count(crowd.post(number, work.body.clone(), batch).await);
                number += work.in_flight;
            }
            volume
        });
    }
    let mut total = Volume::default();
    while let Some(volume) = workers.join_next().await {
        total.add(volume.unwrap_or_default());
    }
    total.elapsed = began.elapsed();
    total
}

/// Sends at a fixed rate, however long answers take. Times are from when a request was due to its whole answer.
pub(super) async fn paced(
    crowd: &Arc<Crowd>,
    body: &Bytes,
    per_second: u32,
    duration: Duration,
    stop: &Stop,
) -> (Volume, Vec<Duration>) {
    let mut ticks = interval(Duration::from_secs(1) / per_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (began, mut running) = (Instant::now(), JoinSet::new());
    let mut number = 0;
    while began.elapsed() < duration && !stop.is_set() {
        let due = ticks.tick().await;
        let (crowd, body) = (Arc::clone(crowd), body.clone());
        running.spawn(async move { (crowd.post(number, body, None).await, due.elapsed()) });
        number += 1;
    }
    let (mut volume, mut times) = (Volume::default(), Vec::new());
    while let Some(answer) = running.join_next().await {
        if let Ok((outcome, time)) = answer {
            volume.count(outcome);
            times.push(time);
        }
    }
    volume.elapsed = began.elapsed();
    (volume, times)
}

fn batch_id() -> Option<HeaderValue> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_millis();
    HeaderValue::try_from(Ulid::from_parts(now.try_into().ok()?, fastrand::u128(..)).to_string()).ok()
}
