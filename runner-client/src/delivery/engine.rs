//! The task that delivers one signal.
//!
//! It looks at the outbox, waits for what is missing (a pause that is over, a batch, a token), sends the oldest batch and
//! acts on what became of it. A batch is taken out of the queue only when it is settled: ending the task at any point
//! loses nothing.
//!
//! A signal that is not kept (spans) goes the same way with one difference: where others wait, what should have gone is
//! dropped, and after a pause delivery begins anew with what comes then. Nothing is pushed later.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, Uri};
use telemetry_proto::{Clock, header};
use tokio::sync::watch;
use tokio::time::Instant;

use super::accounting::DropReason;
use super::batch::{Batch, Stream};
use super::dead_letter::{DeadLetters, Rejected};
use super::notice::Notice;
use super::outbox::Outbox;
use super::verdict::Outcome;
use crate::backoff::{Backoff, Jitter};
use crate::connection::{ConnectErrorKind, SendError, Transport};
use crate::metrics::RequestCounter;
use crate::policy::PolicyHandle;
use crate::spool::BodyEncoding;
use crate::token::{Token, TokenError, TokenSource};

/// How often a source that can't announce its arming is asked again.
const UNARMED_POLL: Duration = Duration::from_secs(1);

/// How long a `Retry-After` binds, at most, once the connection is lost on which it came: so far do runners part that were all told to
/// stay away by one coordinator.
const AFTER_LOSS: Duration = Duration::from_secs(5);

/// How delivery goes on after something went wrong.
#[derive(Debug, Clone)]
pub struct RetrySettings {
    /// The first pause after a `retry` without `Retry-After`. 1 s.
    pub floor: Duration,
    /// The longest of these pauses. 1 min.
    pub ceiling: Duration,
    /// The pause after `forbidden`. 30 s.
    pub forbidden: Duration,
    /// The first pause after a connection broke. 50 ms.
    pub reconnect_floor: Duration,
    /// The longest pause while there is no connection. 1 s.
    pub reconnect_ceiling: Duration,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            floor: Duration::from_secs(1),
            ceiling: Duration::from_secs(60),
            forbidden: Duration::from_secs(30),
            reconnect_floor: Duration::from_millis(50),
            reconnect_ceiling: Duration::from_secs(1),
        }
    }
}

/// What delivery stands on.
#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) tokens: Arc<dyn TokenSource>,
    pub(crate) dead_letters: Arc<dyn DeadLetters>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) jitter: Arc<Jitter>,
    pub(crate) requests: RequestCounter,
    pub(crate) policy: PolicyHandle,
}

pub(crate) struct Engine {
    outbox: Arc<Outbox>,
    way: Way,
    settings: RetrySettings,
    arming: Option<watch::Receiver<u64>>,
    /// Connections that were lost, where the transport can tell.
    losses: Option<watch::Receiver<u64>>,
    pause: Option<Pause>,
    /// Pauses after answers that say "later".
    backoff: Backoff,
    /// Pauses while there is no connection.
    reconnect: Backoff,
    /// Requests in a row that were lost with their connection.
    lost: u32,
    /// Tokens in a row that were refused.
    refusals: u32,
    troubles: Notice,
}

/// No attempt before its end.
struct Pause {
    /// `None`: until the token source is armed.
    until: Option<Instant>,
    cause: Cause,
}

/// What a pause waits for, besides its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Nothing but the end of the relay's connection: it said how long.
    RetryAfter,
    /// Better times.
    Trouble,
    /// A token or a right, which arming may bring.
    Credential,
}

impl Engine {
    pub(crate) fn new(outbox: Arc<Outbox>, way: Way, settings: RetrySettings) -> Self {
        let jitter = || Arc::clone(&way.jitter);
        Self {
            backoff: Backoff::new(settings.floor, settings.ceiling, jitter()),
            reconnect: Backoff::new(settings.reconnect_floor, settings.reconnect_ceiling, jitter()),
            arming: way.tokens.arming(),
            losses: way.transport.losses(),
            outbox,
            way,
            settings,
            pause: None,
            lost: 0,
            refusals: 0,
            troubles: Notice::default(),
        }
    }

    /// Delivers for ever.
    pub(crate) async fn run(mut self) {
        loop {
            let now = Instant::now();
            let (wake, has_due) = self.outbox.tidy(now);
            let is_over = |pause: &mut Pause| pause.until.is_some_and(|until| until <= now);
            if self.pause.take_if(is_over).is_some() && !self.outbox.keeps() {
                self.outbox.give_up_due();
                continue;
            }
            if self.pause.is_some() || !has_due {
                self.rest(wake).await;
                continue;
            }
            if let Some(token) = self.token().await
                && let Some(batch) = self.outbox.claim()
            {
                let result = self.way.transport.send(self.request(&batch, &token)).await;
                self.act(&batch, &token, result);
            }
        }
    }

    /// Waits until there may be something to do, at most until `wake`.
    async fn rest(&mut self, wake: Option<Instant>) {
        let until = [wake, self.pause.as_ref().and_then(|pause| pause.until)].into_iter().flatten().min();
        let time = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let arming = async {
            match &mut self.arming {
                Some(arming) => arming.changed().await,
                None => std::future::pending().await,
            }
        };
        let loss = async {
            match &mut self.losses {
                Some(losses) => losses.changed().await,
                None => std::future::pending().await,
            }
        };
        let over: fn(Cause) -> bool = tokio::select! {
            () = time => |_| false,
            () = self.outbox.work() => |_| false,
            () = self.outbox.hurry() => |cause| cause != Cause::RetryAfter,
            Ok(()) = arming => |cause| cause == Cause::Credential,
            Ok(()) = loss => return self.hasten(),
        };
        if self.pause.as_ref().is_some_and(|pause| over(pause.cause)) {
            self.pause = None;
        }
    }

    /// Whoever said how long to wait is gone, and whoever comes next has asked for nothing. Not all runners at the same moment.
    fn hasten(&mut self) {
        if let Some(Pause { until: Some(until), cause: Cause::RetryAfter }) = &mut self.pause {
            let soon = Instant::now() + self.way.jitter.between(Duration::ZERO, AFTER_LOSS);
            *until = soon.min(*until);
        }
    }

    /// A token, or else a pause.
    async fn token(&mut self) -> Option<Token> {
        // Before the question, so that an arming after it is not missed.
        if let Some(arming) = &mut self.arming {
            arming.mark_unchanged();
        }
        let error = match self.way.tokens.token().await {
            Ok(token) => return Some(token),
            Err(error) => error,
        };
        self.outbox.set_lacks_credential(true);
        if !self.outbox.keeps() {
            // The source has its own pace of asking; there is nothing to wait for.
            self.outbox.give_up_due();
            return None;
        }
        let wait = match &error {
            TokenError::Unarmed => self.arming.is_none().then_some(UNARMED_POLL),
            TokenError::Unavailable { retry_in, .. } => Some(*retry_in),
        };
        let until = wait.and_then(|wait| Instant::now().checked_add(wait));
        self.pause = Some(Pause { until, cause: Cause::Credential });
        None
    }

    fn request(&self, batch: &Batch, token: &Token) -> Request<Bytes> {
        let signal = self.outbox.signal();
        let mut request = Request::new(batch.body.clone());
        *request.method_mut() = Method::POST;
        let with_query =
            batch.query.as_deref().and_then(|query| format!("{}?{query}", signal.write_path()).parse().ok());
        *request.uri_mut() = with_query.unwrap_or_else(|| Uri::from_static(signal.write_path()));
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(signal.content_type()));
        headers.insert(CONTENT_LENGTH, batch.body.len().into());
        match batch.encoding {
            BodyEncoding::Identity => {}
            BodyEncoding::Gzip => drop(headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"))),
            BodyEncoding::Zstd => drop(headers.insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"))),
        }
        if batch.stream == Stream::Operational {
            headers.insert(header::TELEMETRY_STREAM, HeaderValue::from_static(header::STREAM_OPERATIONAL));
        }
        headers.insert(header::WORKLOAD_TOKEN, token.header());
        if let Ok(id) = HeaderValue::from_str(&batch.id.to_string()) {
            headers.insert(header::BATCH_ID, id);
        }
        request
    }

    fn act(&mut self, batch: &Batch, token: &Token, result: Result<Response<Bytes>, SendError>) {
        let signal = self.outbox.signal();
        let response = match result {
            Ok(response) => response,
            Err(error) => return self.act_on_silence(&error),
        };
        // What was lost before is not the connection that this came on.
        if let Some(losses) = &mut self.losses {
            losses.mark_unchanged();
        }
        let outcome = Outcome::read(response.status(), response.headers());
        self.way.requests.count(signal, outcome.as_str());
        self.reconnect.reset();
        self.lost = 0;
        if !matches!(outcome, Outcome::RefreshToken(_)) {
            self.refusals = 0;
        }
        self.outbox.set_lacks_credential(matches!(outcome, Outcome::RefreshToken(_) | Outcome::Forbidden(_)));
        match outcome {
            Outcome::Delivered { .. } => {
                self.outbox.settle(None);
                self.backoff.reset();
            }
            Outcome::Reject(reason) => {
                self.outbox.settle(Some(DropReason::Rejected));
                self.backoff.reset();
                self.put_aside(batch, response.status().as_u16(), reason);
            }
            Outcome::Retry { after, suspect } => {
                self.keep(suspect);
                match after {
                    // Never earlier, and not all runners at the same moment.
                    Some(after) => {
                        self.rest_for(self.way.jitter.between(after, after.mul_f64(1.25)), Cause::RetryAfter)
                    }
                    None => self.back_off(Cause::Trouble),
                }
                self.tell("the relay asks to try a batch again later", response.status().as_str());
            }
            Outcome::RefreshToken(reason) => {
                self.way.tokens.refused(token);
                self.refusals = self.refusals.saturating_add(1);
                if self.refusals == 1 {
                    self.outbox.release(false);
                } else {
                    self.keep(false);
                    self.back_off(Cause::Credential);
                    self.tell("the relay refuses the runner's tokens", reason.map_or("unknown", |r| r.as_str()));
                }
            }
            Outcome::Forbidden(reason) => {
                self.keep(false);
                self.way.policy.ask_again();
                let pause = self.settings.forbidden;
                self.rest_for(self.way.jitter.between(pause, pause.mul_f64(1.25)), Cause::Credential);
                self.tell("the relay does not let this runner write", reason.map_or("unknown", |r| r.as_str()));
            }
        }
    }

    /// A batch was not delivered, and is not settled.
    fn keep(&self, suspect: bool) {
        if self.outbox.keeps() {
            self.outbox.release(suspect);
        } else {
            self.outbox.give_up_due();
        }
    }

    /// There is no response: the batch stays.
    fn act_on_silence(&mut self, error: &SendError) {
        self.way.requests.count(self.outbox.signal(), error.as_str());
        let lacks_credential = matches!(error, SendError::NotSent(error) if error.kind() == ConnectErrorKind::Identity);
        self.outbox.set_lacks_credential(lacks_credential);
        match error {
            SendError::NotSent(_) if lacks_credential => {
                self.keep(false);
                self.back_off(Cause::Trouble);
            }
            // The connection has its own pace of redialling, and tells as soon as it is back.
            SendError::NotSent(_) => {
                self.keep(false);
                let pause = self.reconnect.next();
                self.rest_for(pause, Cause::Trouble);
            }
            SendError::Lost(_) | SendError::Timeout => {
                self.keep(true);
                self.lost = self.lost.saturating_add(1);
                // Once is an outage, which a new connection may end. Again and again is a reason to slow down.
                let pause = if self.lost > 1 { self.backoff.next() } else { self.reconnect.next() };
                self.rest_for(pause, Cause::Trouble);
            }
        }
        self.tell("a batch could not be sent", error);
    }

    fn back_off(&mut self, cause: Cause) {
        let pause = self.backoff.next();
        self.rest_for(pause, cause);
    }

    fn rest_for(&mut self, pause: Duration, cause: Cause) {
        self.pause = Some(Pause { until: Some(Instant::now() + pause), cause });
    }

    /// Tells of a rejected batch, and puts it aside. What is not kept (spans) is not put aside either: that would be a disk.
    fn put_aside(&mut self, batch: &Batch, status: u16, reason: Option<telemetry_proto::Reason>) {
        self.tell("the relay rejected a batch for good", reason.map_or("unknown", |r| r.as_str()));
        if !self.outbox.keeps() {
            return;
        }
        let rejected = Rejected {
            at: self.way.clock.now(),
            signal: self.outbox.signal(),
            batch_id: batch.id,
            items: batch.items,
            bytes: batch.body.len(),
            encoding: batch.encoding,
            query: batch.query.clone(),
            status,
            reason,
        };
        self.way.dead_letters.put_aside(rejected, batch.body.clone());
    }

    fn tell(&mut self, what: &'static str, detail: impl std::fmt::Display) {
        if let Some(times) = self.troubles.count(1, Instant::now()) {
            let signal = self.outbox.signal();
            tracing::warn!(%signal, what, %detail, troubles = times, "delivery has trouble");
        }
    }
}

#[cfg(test)]
mod tests;
