//! Helpers of the unit tests: a clock, a scripted transport and a source of fixed tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use parking_lot::Mutex;
use telemetry_proto::{Clock, header};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::connection::{ConnectError, SendError, Transport};
use crate::delivery::{DeadLetters, Pipelines, Plan, RecentRejections, RetrySettings, SignalSettings, Way};
use crate::token::{Token, TokenError, TokenSource};
use crate::{Jitter, MetricsWriter};

/// A time of day that passes as tokio's time does, paused or not.
pub(crate) struct TestClock {
    start: Instant,
    at_start: SystemTime,
}

impl TestClock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), at_start: SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000) }
    }

    /// A clock that is this much behind [`TestClock::new`].
    pub(crate) fn behind(self, by: Duration) -> Self {
        Self { at_start: self.at_start - by, ..self }
    }
}

impl Clock for TestClock {
    fn now(&self) -> SystemTime {
        self.at_start + self.start.elapsed()
    }
}

/// A request that arrived at a [`Script`].
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) id: String,
    pub(crate) body: Bytes,
}

impl Seen {
    /// The names of the points.
    pub(crate) fn names(&self) -> Vec<String> {
        let text = std::str::from_utf8(&self.body).unwrap();
        text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }
}

/// What a [`Script`] answers.
pub(crate) enum Answer {
    Respond(u16, Vec<(&'static str, String)>),
    NotSent,
    Lost,
    Hang,
}

impl Answer {
    pub(crate) fn verdict(status: u16, verdict: &'static str) -> Self {
        Self::Respond(status, vec![("miren-telemetry-verdict", verdict.to_owned())])
    }

    pub(crate) fn delivered() -> Self {
        Self::verdict(204, "delivered")
    }

    pub(crate) fn retry_after(seconds: u32) -> Self {
        let headers = vec![("miren-telemetry-verdict", "retry".to_owned()), ("retry-after", seconds.to_string())];
        Self::Respond(503, headers)
    }

    pub(crate) fn unmarked(status: u16) -> Self {
        Self::Respond(status, Vec::new())
    }
}

type Play = Box<dyn FnMut(&Seen) -> Answer + Send>;

/// A transport that answers by a script and remembers what it saw.
pub(crate) struct Script {
    play: Mutex<Play>,
    seen: Mutex<Vec<Seen>>,
    count: watch::Sender<usize>,
    losses: watch::Sender<u64>,
}

impl Script {
    pub(crate) fn new(play: impl FnMut(&Seen) -> Answer + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            play: Mutex::new(Box::new(play)),
            seen: Mutex::new(Vec::new()),
            count: watch::channel(0).0,
            losses: watch::channel(0).0,
        })
    }

    /// Answers `first` in turn, and then that everything is delivered.
    pub(crate) fn of(first: Vec<Answer>) -> Arc<Self> {
        let mut first = first.into_iter();
        Self::new(move |_| first.next().unwrap_or_else(Answer::delivered))
    }

    /// Its connection is lost.
    pub(crate) fn lose(&self) {
        self.losses.send_modify(|losses| *losses += 1);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    /// Waits until this many requests came.
    pub(crate) async fn saw(&self, requests: usize) -> Vec<Seen> {
        let mut count = self.count.subscribe();
        let waiting = count.wait_for(|count| *count >= requests);
        tokio::time::timeout(Duration::from_secs(100_000), waiting).await.expect("no such request came").unwrap();
        self.seen()
    }
}

impl Transport for Script {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, SendError>> {
        async move {
            let id = request.headers()[header::BATCH_ID].to_str().unwrap().to_owned();
            assert!(request.headers().contains_key(header::WORKLOAD_TOKEN));
            assert_eq!(request.headers()["content-length"], request.body().len().to_string());
            let seen = Seen { at: Instant::now(), id, body: request.into_body() };
            let answer = (self.play.lock())(&seen);
            self.seen.lock().push(seen);
            self.count.send_modify(|count| *count += 1);
            match answer {
                Answer::Respond(status, headers) => {
                    let mut response = Response::builder().status(status);
                    for (name, value) in headers {
                        response = response.header(name, value);
                    }
                    Ok(response.body(Bytes::new()).unwrap())
                }
                Answer::NotSent => Err(SendError::NotSent(ConnectError::Timeout)),
                Answer::Lost => Err(SendError::Lost(Arc::new(std::io::Error::other("lost")))),
                Answer::Hang => std::future::pending().await,
            }
        }
        .boxed()
    }

    fn losses(&self) -> Option<watch::Receiver<u64>> {
        Some(self.losses.subscribe())
    }
}

/// A source that always has a token, and counts those that were refused.
#[derive(Default)]
pub(crate) struct FixedTokens {
    pub(crate) refused: AtomicU32,
}

impl TokenSource for FixedTokens {
    fn token(&self) -> BoxFuture<'_, Result<Token, TokenError>> {
        std::future::ready(Ok(Token::new("token", None).unwrap())).boxed()
    }

    fn refused(&self, _: &Token) {
        self.refused.fetch_add(1, Ordering::SeqCst);
    }
}

/// Delivery of metrics over a script, in small batches.
pub(crate) struct Bench {
    pub(crate) script: Arc<Script>,
    pub(crate) tokens: Arc<dyn TokenSource>,
    pub(crate) settings: SignalSettings,
    pub(crate) retry: RetrySettings,
    pub(crate) rejections: Arc<RecentRejections>,
    pub(crate) seed: u64,
}

impl Bench {
    pub(crate) fn new(script: &Arc<Script>) -> Self {
        let mut settings = SignalSettings::metrics();
        settings.batch.max_items = 2;
        Self {
            script: Arc::clone(script),
            tokens: Arc::new(FixedTokens::default()),
            settings,
            retry: RetrySettings::default(),
            rejections: Arc::default(),
            seed: 1,
        }
    }

    pub(crate) fn start(&self) -> (MetricsWriter, Arc<Pipelines>) {
        let clock: Arc<dyn Clock> = Arc::new(TestClock::new());
        let way = Way {
            transport: Arc::clone(&self.script) as Arc<dyn Transport>,
            tokens: Arc::clone(&self.tokens),
            dead_letters: Arc::clone(&self.rejections) as Arc<dyn DeadLetters>,
            clock: Arc::clone(&clock),
            jitter: Arc::new(Jitter::seeded(self.seed)),
            requests: crate::metrics::RequestCounter::default(),
            policy: crate::policy::PolicyHandle::new().0,
        };
        let plan = Plan {
            metrics: self.settings.clone(),
            logs: SignalSettings::logs(),
            traces: SignalSettings::traces(),
            spans_frame: crate::trace::frame("test", None),
            retry: self.retry.clone(),
        };
        let pipelines = Pipelines::start(plan, &way, &self.tokens, [], None).unwrap();
        (MetricsWriter::new(Arc::clone(&pipelines), clock), pipelines)
    }
}
