//! When attempts to connect start, and how long each may take.
//!
//! A packet to a coordinator that is away is repeated by QUIC after 1, 3, 7, ... seconds. So fresh attempts start beside
//! those under way: whenever a coordinator comes back it gets a packet within a second. One attempt among them may take
//! long, for paths so slow that a handshake takes seconds.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use crate::backoff::{Backoff, Jitter};

/// How long an attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the one patient attempt may take.
const PATIENT_TIMEOUT: Duration = Duration::from_secs(12);
/// Attempts before the first patient one.
const HASTY_AT_FIRST: usize = 2;
/// How long an attempt is waited for before the next one starts beside it, at most.
const HEAD_START: Duration = Duration::from_secs(1);
/// The same after a coordinator has said goodbye: it may be back at any moment, and what it gets before is lost.
const HEAD_START_AFTER_GOODBYE: Duration = Duration::from_millis(200);
/// How many attempts start after that little.
const EARLY_AFTER_GOODBYE: usize = 2;
/// Attempts under way at the same time, at most.
const MAX_PARALLEL: usize = 4;
/// Pauses after attempts that fail at once.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How far runners that lost the same coordinator at the same moment part.
const SPREAD: Duration = Duration::from_millis(100);

/// Starts attempts until one succeeds, or one fails in a way that `is_final`. An attempt is told its number and how long
/// it may take. `after_goodbye`: whoever is dialled has just gone away in good order.
pub(super) async fn race<T, E, F>(
    jitter: &Arc<Jitter>,
    after_goodbye: bool,
    attempt: impl Fn(usize, Duration) -> F,
    mut is_final: impl FnMut(&E) -> bool,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut pauses = Backoff::new(PAUSES.0, PAUSES.1, Arc::clone(jitter));
    let mut running = FuturesUnordered::new();
    let (mut started, mut has_patient) = (0, false);
    let mut next_start = Instant::now() + jitter.between(Duration::ZERO, SPREAD);
    loop {
        tokio::select! {
            () = sleep_until(next_start), if running.len() < MAX_PARALLEL => {
                let is_patient = started >= HASTY_AT_FIRST && !has_patient;
                has_patient |= is_patient;
                let attempt = attempt(started, if is_patient { PATIENT_TIMEOUT } else { ATTEMPT_TIMEOUT });
                running.push(async move { (is_patient, attempt.await) });
                let is_early = after_goodbye && started < EARLY_AFTER_GOODBYE;
                let head_start = if is_early { HEAD_START_AFTER_GOODBYE } else { HEAD_START };
                started += 1;
                next_start = Instant::now() + jitter.between(head_start / 2, head_start);
            }
            Some((was_patient, result)) = running.next(), if !running.is_empty() => {
                has_patient &= !was_patient;
                let error = match result {
                    Ok(success) => return Ok(success),
                    Err(error) if is_final(&error) => return Err(error),
                    Err(error) => error,
                };
                drop(error);
                next_start = next_start.min(Instant::now() + pauses.next());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::time::{sleep, timeout};

    use super::*;

    /// When QUIC sends the first packet of an attempt again, in seconds (RFC 9002 section 6.2, from an RTT of 333 ms).
    const REPEATS: [u64; 4] = [0, 1, 3, 7];

    #[tokio::test(start_paused = true)]
    async fn a_coordinator_that_is_back_gets_a_packet_within_a_second_however_long_it_was_away() {
        for seed in 0..20 {
            let packets = Mutex::new(Vec::new());
            let attempt = |_, limit: Duration| {
                let start = Instant::now();
                let sent = REPEATS.map(Duration::from_secs).into_iter().filter(|after| *after < limit);
                packets.lock().extend(sent.map(|after| start + after));
                async move {
                    sleep(limit).await;
                    Err::<(), ()>(())
                }
            };
            let began = Instant::now();
            let end = Duration::from_secs(600);
            assert!(timeout(end, race(&Arc::new(Jitter::seeded(seed)), false, attempt, |()| false)).await.is_err());
            let mut packets = packets.into_inner();
            packets.retain(|at| *at < began + end);
            packets.sort();
            let gap = packets.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            assert!(gap <= Duration::from_millis(1_010), "{gap:?} with seed {seed}");
            assert!(packets.len() < 600 * 4, "{} packets", packets.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_coordinator_that_said_goodbye_is_tried_thrice_within_half_a_second_and_then_as_ever() {
        let starts = Mutex::new(Vec::new());
        let attempt = |_, limit: Duration| {
            starts.lock().push(Instant::now());
            async move {
                sleep(limit).await;
                Err::<(), ()>(())
            }
        };
        let (began, end) = (Instant::now(), Duration::from_secs(60));
        assert!(timeout(end, race(&Arc::new(Jitter::seeded(1)), true, attempt, |()| false)).await.is_err());
        let starts = starts.into_inner();
        assert!(starts[2] - began <= Duration::from_millis(500), "{starts:?}");
        assert!(starts[3] - starts[2] >= HEAD_START / 2 && starts.len() < 60 * 2, "{starts:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_path_on_which_a_handshake_takes_ten_seconds_connects() {
        let attempt = |number, limit: Duration| async move {
            let handshake = Duration::from_secs(10);
            sleep(limit.min(handshake)).await;
            if limit > handshake { Ok(number) } else { Err(()) }
        };
        let began = Instant::now();
        assert!(race(&Arc::new(Jitter::seeded(1)), false, attempt, |()| false).await.is_ok());
        assert!(began.elapsed() < Duration::from_secs(13));
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_that_fail_at_once_slow_down_and_a_final_failure_ends_them() {
        let starts = Mutex::new(Vec::new());
        let attempt = |number, _| {
            starts.lock().push(Instant::now());
            std::future::ready(Err::<(), usize>(number))
        };
        assert_eq!(race(&Arc::new(Jitter::seeded(1)), false, attempt, |number| *number == 20).await, Err(20));
        let starts = starts.into_inner();
        assert!(starts[1] - starts[0] <= Duration::from_millis(100));
        assert!(starts[20] - starts[19] >= Duration::from_millis(500));
    }
}
