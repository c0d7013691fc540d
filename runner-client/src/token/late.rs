//! A token source that may be armed later.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use telemetry_proto::{Clock, SystemClock};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::skew::Skew;
use super::{IssueError, IssuedToken, Token, TokenError, TokenIssuer, TokenSource};
use crate::backoff::{Backoff, Jitter, MAX_RETRY_AFTER};

/// A token that seems to have ended when it is issued is tried for this long all the same: the clock may be wrong, and
/// the relay is the judge.
const BENEFIT_OF_DOUBT: Duration = Duration::from_secs(10);
/// The shortest time from one mint to the renewal.
const MIN_RENEWAL_INTERVAL: Duration = Duration::from_secs(1);
/// A token that served this long before it was refused was a good one: its refusal is no sign of a bad issuer.
const STEADY_SERVICE: Duration = Duration::from_secs(60);
/// The pause after an attempt that failed for want of a connection, at most. The connection has a pace of its own.
const OUTAGE_PAUSE: Duration = Duration::from_millis(250);

/// Times of a [`LateTokenSource`].
#[derive(Debug, Clone)]
pub struct LateTokenSettings {
    /// How long an issuer may take. 30 s.
    pub issue_timeout: Duration,
    /// How long before its end a token is renewed; a third of its life if that is less. 5 min.
    pub renew_ahead: Duration,
    /// The first pause after a failure. 1 s.
    pub retry_floor: Duration,
    /// The longest pause between failures. 1 min.
    pub retry_ceiling: Duration,
}

impl Default for LateTokenSettings {
    fn default() -> Self {
        Self {
            issue_timeout: Duration::from_secs(30),
            renew_ahead: Duration::from_secs(5 * 60),
            retry_floor: Duration::from_secs(1),
            retry_ceiling: Duration::from_secs(60),
        }
    }
}

/// A [`TokenSource`] that has no issuer until it is armed. Writers may be built on it before; what they take waits.
///
/// - One mint at a time, however many ask. It is a task of its own: an asker that goes away ends it for nobody.
/// - A token is renewed ahead of its end, in the background; the old one serves meanwhile, and while renewal fails.
/// - An issuer that tells of news is asked at once, and whoever waits for a token is woken.
/// - Ends are judged by the issuer's clock where the issuer tells its time.
///
/// Cheap to clone; clones are the same source.
#[derive(Clone)]
pub struct LateTokenSource {
    shared: Arc<Shared>,
}

impl LateTokenSource {
    /// An unarmed source with the default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::with(LateTokenSettings::default(), Arc::new(SystemClock), Arc::new(Jitter::new()))
    }

    /// An unarmed source.
    #[must_use]
    pub fn with(settings: LateTokenSettings, clock: Arc<dyn Clock>, jitter: Arc<Jitter>) -> Self {
        let backoff = Backoff::new(settings.retry_floor, settings.retry_ceiling, Arc::clone(&jitter));
        let state = State {
            issuer: None,
            epoch: 0,
            cached: None,
            mint: None,
            news: None,
            hold: None,
            failures: backoff.clone(),
            refusals: Refusals { last: None, suspicious: false, backoff },
            skew: Skew::default(),
        };
        let shared = Shared { state: Mutex::new(state), arming: watch::channel(0).0, clock, jitter, settings };
        Self { shared: Arc::new(shared) }
    }

    /// Sets the issuer and drops the cached token. Whoever waits for the arming is woken. May be called at any time, from
    /// any task, again and again.
    pub fn arm(&self, issuer: Arc<dyn TokenIssuer>) {
        self.replace(Some(issuer));
        self.shared.arming.send_modify(|times| *times += 1);
        tracing::info!("the token source is armed");
    }

    /// Takes the issuer and the cached token away. May be called at any time, from any task.
    pub fn disarm(&self) {
        self.replace(None);
        tracing::info!("the token source is disarmed");
    }

    fn replace(&self, issuer: Option<Arc<dyn TokenIssuer>>) {
        let mut state = self.shared.state.lock();
        // A mint that is under way ends without a result, and those that wait for it look again.
        let mint = (state.mint.take(), state.news.take());
        let former = std::mem::replace(&mut state.issuer, issuer);
        state.epoch += 1;
        state.cached = None;
        state.hold = None;
        state.failures.reset();
        state.refusals.forget();
        // The issuer is foreign code, its destructor too: not under the lock.
        drop(state);
        drop((mint, former));
    }
}

impl Default for LateTokenSource {
    fn default() -> Self {
        Self::new()
    }
}

impl TokenSource for LateTokenSource {
    fn token(&self) -> BoxFuture<'_, Result<Token, TokenError>> {
        async {
            loop {
                let mut mint = match self.shared.look() {
                    Look::Done(result) => return result,
                    Look::Minting(mint) => mint,
                };
                // An error: the mint was called off, since the source was armed or disarmed meanwhile.
                if let Ok(result) = mint.wait_for(Option::is_some).await
                    && let Some(result) = result.clone()
                {
                    return result;
                }
            }
        }
        .boxed()
    }

    fn refused(&self, token: &Token) {
        let mut state = self.shared.state.lock();
        let Some(served) = state.cached.as_ref().filter(|c| c.token.is_same(token)).map(|c| c.since.elapsed()) else {
            // Another request with this token was refused before, or the token was replaced: nothing to drop.
            return;
        };
        state.cached = None;
        if let Some(pause) = state.refusals.note(token, served) {
            tracing::warn!(pause_ms = millis(pause), "the relay refuses the tokens of this issuer");
            state.hold = Some(Hold { until: Instant::now() + pause, cause: IssueError::TokensRefused });
        }
    }

    fn arming(&self) -> Option<watch::Receiver<u64>> {
        Some(self.shared.arming.subscribe())
    }
}

struct Shared {
    state: Mutex<State>,
    arming: watch::Sender<u64>,
    clock: Arc<dyn Clock>,
    jitter: Arc<Jitter>,
    settings: LateTokenSettings,
}

struct State {
    issuer: Option<Arc<dyn TokenIssuer>>,
    /// Counts changes of the issuer: a mint of an earlier epoch is not kept.
    epoch: u64,
    cached: Option<Cached>,
    mint: Option<Mint>,
    /// Waits for news of the issuer, since the first mint.
    news: Option<AbortOnDropHandle<()>>,
    /// No mint before its end.
    hold: Option<Hold>,
    failures: Backoff,
    refusals: Refusals,
    skew: Skew,
}

struct Cached {
    token: Token,
    since: Instant,
    /// By the issuer's clock, as the next.
    ends: Option<SystemTime>,
    renew_at: Option<SystemTime>,
    check_at: Option<Instant>,
}

struct Hold {
    until: Instant,
    cause: IssueError,
}

type MintResult = Option<Result<Token, TokenError>>;

struct Mint {
    result: watch::Receiver<MintResult>,
    task: AbortOnDropHandle<()>,
}

enum Look {
    Done(Result<Token, TokenError>),
    Minting(watch::Receiver<MintResult>),
}

impl Shared {
    /// Looks for a token, and begins to mint where one is missing or should be renewed.
    fn look(self: &Arc<Self>) -> Look {
        let mut state = self.state.lock();
        let Some(issuer) = state.issuer.clone() else { return Look::Done(Err(TokenError::Unarmed)) };
        let now = Instant::now();
        let issuer_now = state.skew.issuer_time(self.clock.now());
        // The sender is gone without a result only if the runtime that minted is.
        let minting = state.mint.as_ref().map(|mint| &mint.result).filter(|r| r.has_changed().is_ok()).cloned();
        let hold = state.hold.as_ref().filter(|hold| hold.until > now);
        if let Some(cached) = state.cached.as_ref().filter(|cached| cached.serves(issuer_now)) {
            let token = cached.token.clone();
            if cached.is_due(now, issuer_now) && minting.is_none() && hold.is_none() {
                self.mint(&mut state, issuer);
            }
            return Look::Done(Ok(token));
        }
        if let Some(minting) = minting {
            return Look::Minting(minting);
        }
        if let Some(hold) = hold {
            let retry_in = hold.until - now;
            return Look::Done(Err(TokenError::Unavailable { cause: hold.cause.clone(), retry_in }));
        }
        Look::Minting(self.mint(&mut state, issuer))
    }

    /// Asks again when the issuer has news: a pause was for the issuer as it was before.
    fn follow_news(self: &Arc<Self>, state: &mut State, issuer: &Arc<dyn TokenIssuer>) {
        if state.news.is_some() || issuer.news().is_none() {
            return;
        }
        let (shared, issuer, epoch) = (Arc::downgrade(self), Arc::clone(issuer), state.epoch);
        let task = tokio::spawn(async move {
            while let Some(news) = issuer.news() {
                news.await;
                let Some(shared) = shared.upgrade() else { return };
                let mut state = shared.state.lock();
                if state.epoch != epoch {
                    return;
                }
                state.hold = None;
                state.failures.reset();
                if state.mint.is_none() {
                    shared.mint(&mut state, Arc::clone(&issuer));
                }
                drop(state);
                shared.arming.send_modify(|times| *times += 1);
            }
        });
        state.news = Some(AbortOnDropHandle::new(task));
    }

    fn mint(self: &Arc<Self>, state: &mut State, issuer: Arc<dyn TokenIssuer>) -> watch::Receiver<MintResult> {
        self.follow_news(state, &issuer);
        let (done, result) = watch::channel(None);
        let (shared, epoch) = (Arc::clone(self), state.epoch);
        let task = tokio::spawn(async move {
            let asked = shared.clock.now();
            let issuing = AssertUnwindSafe(async { issuer.issue().await }).catch_unwind();
            let answer = match tokio::time::timeout(shared.settings.issue_timeout, issuing).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(IssueError::Panicked),
                Err(_) => Err(IssueError::Timeout),
            };
            if let Some(outcome) = shared.settle(epoch, asked, answer) {
                done.send_replace(Some(outcome));
            }
        });
        state.mint = Some(Mint { result: result.clone(), task: AbortOnDropHandle::new(task) });
        result
    }

    /// Keeps what was minted. `None` if the issuer is another one by now.
    fn settle(&self, epoch: u64, asked: SystemTime, answer: Result<IssuedToken, IssueError>) -> MintResult {
        let answered = self.clock.now();
        let mut state = self.state.lock();
        if state.epoch != epoch {
            return None;
        }
        if let Some(mint) = state.mint.take() {
            mint.task.detach();
        }
        Some(match answer {
            Ok(issued) => {
                if let Some(server_time) = issued.server_time {
                    state.skew.learn(server_time, asked, answered);
                }
                state.failures.reset();
                state.hold = None;
                let token = issued.token.clone();
                let cached = self.cache(issued, state.cached.take(), state.skew.issuer_time(answered));
                state.cached = Some(cached);
                Ok(token)
            }
            Err(cause) => {
                let retry_in = self.pause_after(&cause, &mut state.failures);
                tracing::warn!(error = %cause, retry_in_ms = millis(retry_in), "no token was minted");
                state.hold = Some(Hold { until: Instant::now() + retry_in, cause: cause.clone() });
                Err(TokenError::Unavailable { cause, retry_in })
            }
        })
    }

    fn cache(&self, issued: IssuedToken, former: Option<Cached>, issuer_now: SystemTime) -> Cached {
        let ends = issued.token.expires_at().map(|end| end.max(issuer_now + BENEFIT_OF_DOUBT));
        let renew_at = ends.map(|end| {
            let left = end.duration_since(issuer_now).unwrap_or_default();
            // A third, with jitter, is less than half; and runners that were armed together part.
            let ahead = self.settings.renew_ahead.min(left / 3);
            let ahead = self.jitter.between(ahead, ahead.mul_f64(1.25));
            (end - ahead).max(issuer_now + MIN_RENEWAL_INTERVAL)
        });
        let now = Instant::now();
        let since = former.filter(|former| former.token.is_same(&issued.token)).map_or(now, |former| former.since);
        let check_at = issued.check_again.and_then(|after| now.checked_add(after.max(MIN_RENEWAL_INTERVAL)));
        Cached { token: issued.token, since, ends, renew_at, check_at }
    }

    fn pause_after(&self, cause: &IssueError, failures: &mut Backoff) -> Duration {
        if cause.is_outage() {
            return self.jitter.between(OUTAGE_PAUSE / 2, OUTAGE_PAUSE);
        }
        failures.next().max(cause.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER))
    }
}

impl Cached {
    fn serves(&self, issuer_now: SystemTime) -> bool {
        self.ends.is_none_or(|end| issuer_now < end)
    }

    fn is_due(&self, now: Instant, issuer_now: SystemTime) -> bool {
        self.renew_at.is_some_and(|at| at <= issuer_now) || self.check_at.is_some_and(|at| at <= now)
    }
}

/// The relay's refusals of our tokens. The first one costs a mint; those that follow at once cost a pause as well.
struct Refusals {
    last: Option<Token>,
    suspicious: bool,
    backoff: Backoff,
}

impl Refusals {
    fn note(&mut self, token: &Token, served: Duration) -> Option<Duration> {
        let again = self.last.as_ref().is_some_and(|last| last.is_same(token));
        self.last = Some(token.clone());
        if served >= STEADY_SERVICE && !again {
            self.suspicious = false;
            self.backoff.reset();
        }
        std::mem::replace(&mut self.suspicious, true).then(|| self.backoff.next())
    }

    fn forget(&mut self) {
        self.last = None;
        self.suspicious = false;
        self.backoff.reset();
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
