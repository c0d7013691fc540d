//! What the coordinator wants from this runner: asked at start, every 5 minutes, and when the coordinator forbids something.
//!
//! Nobody asks before someone wants to know: a client that only writes metrics and logs does without.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri};
use telemetry_proto::Route;
use telemetry_proto::limits::MAX_CONTROL_BODY_BYTES;
use telemetry_proto::policy::{Policy, TracesPolicy};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::{Backoff, Jitter, retry_after};
use crate::connection::{SendError, Transport};

/// How often the coordinator is asked.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The shortest time between two questions.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
/// Pauses after failures.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long the first answer is worth waiting for. A coordinator that is away longer is away.
const AWAITED: Duration = Duration::from_secs(30);
/// Bounds a transport that does not bound itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The coordinator's policy as it was last told. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PolicyHandle {
    policy: watch::Receiver<Option<Arc<Policy>>>,
    wake: Arc<Wake>,
}

#[derive(Debug, Default)]
struct Wake {
    /// Someone wants to know.
    wanted: Notify,
    /// What is known may be wrong.
    doubted: Notify,
    /// When someone wanted to know first.
    wanted_since: OnceLock<Instant>,
    /// The coordinator has answered, whatever it said.
    heard: AtomicBool,
}

/// The task's side of the handle.
pub(crate) struct Poller {
    policy: watch::Sender<Option<Arc<Policy>>>,
    wake: Arc<Wake>,
}

impl PolicyHandle {
    pub(crate) fn new() -> (Self, Poller) {
        let (sender, policy) = watch::channel(None);
        let wake = Arc::<Wake>::default();
        (Self { policy, wake: Arc::clone(&wake) }, Poller { policy: sender, wake })
    }

    /// The policy. `None` until the coordinator has told it, and if it is too old a coordinator to have one.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Policy>> {
        self.policy.borrow().clone()
    }

    /// Whether the coordinator's first answer is still to be expected: at most for 30 s since someone wanted to know. Until then, that there is no [policy](Self::current) says nothing about what the coordinator wants.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        let is_young = self.wake.wanted_since.get().is_none_or(|since| since.elapsed() < AWAITED);
        is_young && !self.wake.heard.load(Ordering::Relaxed)
    }

    /// Changes with the policy.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Option<Arc<Policy>>> {
        self.policy.clone()
    }

    /// Asks as soon as may be, instead of at the next time it is due. Nobody asks more often than every 5 s.
    pub fn ask_again(&self) {
        self.wake.doubted.notify_one();
    }

    /// Begins to ask.
    pub(crate) fn want(&self) {
        self.wake.wanted_since.get_or_init(Instant::now);
        self.wake.wanted.notify_one();
    }
}

impl Poller {
    /// Asks for ever, once someone wants to know.
    pub(crate) async fn run(self, transport: Arc<dyn Transport>, interval: Duration, jitter: Arc<Jitter>) {
        self.wake.wanted.notified().await;
        let mut backoff = Backoff::new(RETRY.0, RETRY.1, Arc::clone(&jitter));
        loop {
            let pause = match timeout(ANSWER_WITHIN, ask(&*transport)).await.unwrap_or(Err(AskError::Late)) {
                Ok(policy) => {
                    self.publish(policy);
                    self.wake.heard.store(true, Ordering::Relaxed);
                    backoff.reset();
                    jitter.between(interval.mul_f64(0.8), interval)
                }
                Err(error) => {
                    let pause = backoff.next().max(error.retry_after()).min(interval);
                    tracing::debug!(%error, "the coordinator does not tell its policy");
                    pause
                }
            };
            let doubted = async {
                sleep(MIN_INTERVAL).await;
                self.wake.doubted.notified().await;
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = doubted => {}
            }
        }
    }

    fn publish(&self, policy: Option<Policy>) {
        let changed = self.policy.send_if_modified(|known| {
            let same = match (&*known, &policy) {
                (None, None) => true,
                // The time of day is no part of what is wanted.
                (Some(known), Some(new)) => **known == Policy { server_time: known.server_time, ..new.clone() },
                _ => false,
            };
            if !same {
                *known = policy.map(Arc::new);
            }
            !same
        });
        if changed {
            let policy = self.policy.borrow();
            let signals = policy.as_ref().map(|policy| &policy.signals);
            let ratio = policy.as_ref().and_then(|policy| policy.traces).map(|traces| traces.sample_ratio);
            tracing::info!(?signals, sample_ratio = ratio, "the coordinator told its policy");
        }
    }
}

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Send(#[from] SendError),
    #[error("status {status}")]
    Refused { status: StatusCode, retry_after: Option<Duration> },
    #[error("the answer can't be read")]
    Unreadable,
    #[error("no answer in time")]
    Late,
}

impl AskError {
    fn retry_after(&self) -> Duration {
        match self {
            Self::Refused { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }
}

async fn ask(transport: &dyn Transport) -> Result<Option<Policy>, AskError> {
    let mut request = Request::new(Bytes::new());
    *request.method_mut() = Route::Policy.method();
    *request.uri_mut() = Uri::from_static(Route::Policy.path());
    read(&transport.send(request).await?)
}

/// Fuzz target: a status of three digits alone, or the body of a 200.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(data: &[u8]) {
    let status = StatusCode::from_bytes(data);
    let body = if status.is_ok() { Bytes::new() } else { Bytes::copy_from_slice(data) };
    let mut response = Response::new(body);
    *response.status_mut() = status.unwrap_or(StatusCode::OK);
    if let Ok(Some(policy)) = read(&response) {
        let ratio = policy.traces.map(|traces| traces.sample_ratio);
        assert!(ratio.is_none_or(|ratio| (0.0..=1.0).contains(&ratio)), "{ratio:?} is no share");
    }
}

/// A coordinator that has no such path is an older one, without a policy.
fn read(response: &Response<Bytes>) -> Result<Option<Policy>, AskError> {
    match response.status() {
        StatusCode::OK if response.body().len() as u64 <= MAX_CONTROL_BODY_BYTES => {
            let policy: Policy = serde_json::from_slice(response.body()).map_err(|_| AskError::Unreadable)?;
            let is_share = |traces: TracesPolicy| (0.0..=1.0).contains(&traces.sample_ratio);
            if policy.traces.is_none_or(is_share) { Ok(Some(policy)) } else { Err(AskError::Unreadable) }
        }
        StatusCode::OK => Err(AskError::Unreadable),
        StatusCode::NOT_FOUND => Ok(None),
        status => Err(AskError::Refused { status, retry_after: retry_after(response.headers()) }),
    }
}
