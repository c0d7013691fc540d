//! Going back to what is preferred: an earlier coordinator of the list, and QUIC instead of TCP.
//!
//! It is tried now and then beside the connection that stands, and is good for nothing before it has answered a request: networks
//! let handshakes through and nothing after them, and coordinators that start or stop take connections that they do not serve.
//! The order of the coordinators counts more than what a connection runs over: the operator chose it.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::coordinator::Coordinator;
use super::dial::{ASIDE_TIMEOUT, Dialer, resolve};
use super::live::{Carrier, Live};

/// How long a coordinator is used before those before it are tried again, unless that is set.
pub(crate) const RETURN_INTERVAL: Duration = Duration::from_secs(2 * 60);
/// The shortest and the longest pause, whatever is set.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(24 * 60 * 60));

impl Dialer {
    /// Tries what is preferred to `live` again and again, until that has answered a request. Never resolves for what is best.
    pub(super) async fn better_than(&self, live: &Live) -> Live {
        let better = tokio::select! {
            quic = self.quic_instead_of(live) => quic,
            earlier = self.coordinator_before(live) => earlier,
        };
        self.note_taken(&better);
        better
    }

    /// The same coordinator over QUIC, once it can be had.
    async fn quic_instead_of(&self, live: &Live) -> Live {
        if live.carrier() == Carrier::Quic {
            return std::future::pending().await;
        }
        loop {
            self.pause(self.fallback.unwrap_or_default().return_after).await;
            let attempt = self.connect_proved(Carrier::Quic, live.coordinator(), live.remote());
            if let Ok(Ok(quic)) = timeout(ASIDE_TIMEOUT, attempt).await {
                return quic;
            }
        }
    }

    /// A coordinator that is earlier in the list, once one can be had.
    async fn coordinator_before(&self, live: &Live) -> Live {
        let earlier = &self.coordinators[..self.position(live.coordinator())];
        if earlier.is_empty() {
            return std::future::pending().await;
        }
        let mut round = 0;
        loop {
            self.pause(self.return_interval).await;
            for coordinator in earlier {
                if let Some(live) = self.try_coordinator(coordinator, round).await {
                    return live;
                }
            }
            round += 1;
        }
    }

    /// Tries a coordinator once over each carrier. Each round takes another of its addresses.
    async fn try_coordinator(&self, coordinator: &Coordinator, round: usize) -> Option<Live> {
        let carriers: &[Carrier] = if self.fallback.is_some() { &Carrier::ALL } else { &[Carrier::Quic] };
        for &carrier in carriers {
            let attempt = async {
                let address = resolve(coordinator, round).await?;
                self.connect_proved(carrier, coordinator, address).await
            };
            if let Ok(Ok(live)) = timeout(ASIDE_TIMEOUT, attempt).await {
                return Some(live);
            }
        }
        None
    }

    /// Waits for at most `longest`, up to a third less by chance, so that runners part.
    async fn pause(&self, longest: Duration) {
        let longest = longest.clamp(PAUSES.0, PAUSES.1);
        sleep(self.jitter.between(longest - longest / 3, longest)).await;
    }
}
