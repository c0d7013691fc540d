//! What the peer of a connection owes, since when, and how much it did to no effect.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::ListenerConfig;
use super::frames::FrameScan;

/// Frames without effect that are forgiven for each request: a client opens windows and answers pings.
const USELESS_PER_REQUEST: u32 = 4;
/// After how long one frame without effect is forgiven.
const USELESS_FORGIVEN_AFTER: Duration = Duration::from_millis(20);

/// Watches one connection. Its parts tell it what happens; who serves the connection asks it now and then.
#[derive(Debug)]
pub(super) struct Vigil {
    patience: Patience,
    state: Mutex<State>,
    /// Something is wrong that can't wait for the next look.
    alarm: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Patience {
    headers: Duration,
    write: Duration,
    idle: Duration,
}

#[derive(Debug)]
struct State {
    /// When the peer was heard last.
    heard: Instant,
    /// HTTP/2 only.
    frames: Option<FrameScan>,
    /// HTTP/1.1 only: since when a request's headers are begun.
    head_begun: Option<Instant>,
    /// Since when the peer takes nothing of what is written.
    blocked: Option<Instant>,
    requests: usize,
    /// Responses that are under way: since when each waits for the peer, if it does.
    responses: HashMap<u64, Option<Instant>>,
    next_response: u64,
    unanswered: Allowance,
    useless: Allowance,
    flood: Option<Fault>,
}

/// Why a connection is ended, as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The rest of headers, or of a frame, did not come.
    SlowHeaders,
    /// A response was not taken.
    NotTaken,
    /// Nothing was heard, and nothing runs.
    Idle,
    /// Too many requests were given up.
    Resets,
    /// Too many frames had no effect.
    Useless,
}

impl Fault {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::SlowHeaders => "slow-headers",
            Self::NotTaken => "response-not-taken",
            Self::Idle => "idle",
            Self::Resets => "too-many-unanswered",
            Self::Useless => "too-many-useless-frames",
        }
    }
}

impl Vigil {
    pub(super) fn new(config: &ListenerConfig, is_http2: bool) -> Self {
        let now = Instant::now();
        let guard = &config.guard;
        Self {
            patience: Patience {
                headers: config.header_timeout,
                write: config.write_timeout,
                idle: config.transport.idle_timeout,
            },
            state: Mutex::new(State {
                heard: now,
                frames: is_http2.then(|| FrameScan::new(now)),
                head_begun: None,
                blocked: None,
                requests: 0,
                responses: HashMap::new(),
                next_response: 0,
                unanswered: Allowance::new(guard.max_unanswered_streams, guard.unanswered_stream_forgiven_after, now),
                useless: Allowance::new(guard.max_control_frames, USELESS_FORGIVEN_AFTER, now),
                flood: None,
            }),
            alarm: Notify::new(),
        }
    }

    /// How often to look.
    pub(super) fn look_every(&self) -> Duration {
        let shortest = self.patience.headers.min(self.patience.write).min(self.patience.idle);
        (shortest / 4).max(Duration::from_millis(10))
    }

    /// What is wrong by now.
    pub(super) fn fault(&self) -> Option<Fault> {
        let now = Instant::now();
        let state = self.state.lock();
        let over = |since: Option<Instant>, patience| since.is_some_and(|since| now - since > patience);
        let owed = state.frames.as_ref().and_then(FrameScan::unfinished_since).or(state.head_begun);
        if state.flood.is_some() {
            state.flood
        } else if over(owed, self.patience.headers) {
            Some(Fault::SlowHeaders)
        } else if over(state.blocked, self.patience.write)
            || state.responses.values().any(|waits| over(*waits, self.patience.write))
        {
            Some(Fault::NotTaken)
        } else if state.requests == 0 && state.responses.is_empty() && over(Some(state.heard), self.patience.idle) {
            Some(Fault::Idle)
        } else {
            None
        }
    }

    /// Completes when something is wrong that can't wait for the next look.
    pub(super) async fn alarmed(&self) {
        self.alarm.notified().await;
    }

    /// The peer sent this.
    pub(super) fn heard(&self, bytes: &[u8]) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.heard = now;
        let Some(frames) = &mut state.frames else {
            if state.requests == 0 && state.responses.is_empty() {
                state.head_begun.get_or_insert(now);
            }
            return;
        };
        let seen = frames.feed(bytes, now);
        state.useless.forgive(seen.headers * USELESS_PER_REQUEST);
        if !state.useless.take(seen.useless, now) {
            self.raise(&mut state, Fault::Useless);
        }
    }

    /// Whether the peer takes what is written.
    pub(super) fn wrote(&self, is_blocked: bool) {
        let mut state = self.state.lock();
        if !is_blocked {
            state.blocked = None;
        } else if state.blocked.is_none() {
            state.blocked = Some(Instant::now());
        }
    }

    /// The headers of a request are here.
    pub(super) fn request_begins(&self) {
        let mut state = self.state.lock();
        state.requests += 1;
        state.head_begun = None;
    }

    /// A request is answered, or given up.
    pub(super) fn request_ends(&self, was_answered: bool) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.requests = state.requests.saturating_sub(1);
        if !was_answered && !state.unanswered.take(1, now) {
            self.raise(&mut state, Fault::Resets);
        }
    }

    /// A response waits for the peer from now on.
    pub(super) fn response_begins(&self) -> u64 {
        let mut state = self.state.lock();
        let id = state.next_response;
        state.next_response += 1;
        state.responses.insert(id, Some(Instant::now()));
        id
    }

    /// A response goes on: it waits for the peer, or for its own service.
    pub(super) fn response_goes_on(&self, id: u64, waits_for_peer: bool) {
        self.state.lock().responses.insert(id, waits_for_peer.then(Instant::now));
    }

    /// A response is out of hyper's hands.
    pub(super) fn response_ends(&self, id: u64) {
        self.state.lock().responses.remove(&id);
    }

    fn raise(&self, state: &mut State, fault: Fault) {
        state.flood.get_or_insert(fault);
        self.alarm.notify_one();
    }
}

/// So many at once, and one more after each time.
#[derive(Debug)]
struct Allowance {
    used: u32,
    max: u32,
    forgiven_after: Duration,
    counted_to: Instant,
}

impl Allowance {
    const fn new(max: u32, forgiven_after: Duration, now: Instant) -> Self {
        Self { used: 0, max, forgiven_after, counted_to: now }
    }

    fn forgive(&mut self, count: u32) {
        self.used = self.used.saturating_sub(count);
    }

    /// Whether that many more are within the allowance.
    fn take(&mut self, count: u32, now: Instant) -> bool {
        let every = self.forgiven_after.as_nanos().max(1);
        let forgiven = (now - self.counted_to).as_nanos() / every;
        match u32::try_from(forgiven) {
            Ok(forgiven) if forgiven < self.used => {
                self.used -= forgiven;
                self.counted_to += self.forgiven_after * forgiven;
            }
            _ => (self.used, self.counted_to) = (0, now),
        }
        self.used = self.used.saturating_add(count);
        self.used <= self.max
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn vigil(is_http2: bool) -> Vigil {
        Vigil::new(&ListenerConfig::new(([127, 0, 0, 1], 0).into()), is_http2)
    }

    async fn pass(seconds: u64) {
        advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn headers_that_trickle_in_are_a_fault_however_often_something_comes() {
        let http1 = vigil(false);
        let http2 = vigil(true);
        for second in 0..=10 {
            assert_eq!((http1.fault(), http2.fault()), (None, None), "after {second} s");
            http1.heard(b"x");
            http2.heard(b"P");
            pass(1).await;
        }
        assert_eq!((http1.fault(), http2.fault()), (Some(Fault::SlowHeaders), Some(Fault::SlowHeaders)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_runs_is_neither_idle_nor_slow() {
        let vigil = vigil(false);
        vigil.heard(b"POST");
        vigil.request_begins();
        pass(1_000).await;
        vigil.heard(b"body");
        pass(1_000).await;
        assert_eq!(vigil.fault(), None);
        vigil.request_ends(true);
        assert_eq!(vigil.fault(), Some(Fault::Idle));
        vigil.heard(b"P");
        assert_eq!(vigil.fault(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_not_taken_is_a_fault_and_one_that_its_service_delays_is_none() {
        let vigil = vigil(true);
        vigil.request_begins();
        vigil.request_ends(true);
        let response = vigil.response_begins();
        vigil.response_goes_on(response, false);
        pass(1_000).await;
        assert_ne!(vigil.fault(), Some(Fault::NotTaken));
        vigil.response_goes_on(response, true);
        pass(31).await;
        vigil.heard(b"");
        assert_eq!(vigil.fault(), Some(Fault::SlowHeaders), "of the preface");
        let vigil = self::vigil(false);
        let _response = vigil.response_begins();
        pass(31).await;
        assert_eq!(vigil.fault(), Some(Fault::NotTaken));
        let vigil = self::vigil(false);
        vigil.wrote(true);
        pass(20).await;
        vigil.wrote(true);
        pass(11).await;
        vigil.heard(b"");
        assert_eq!(vigil.fault(), Some(Fault::NotTaken), "not even the packets");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_given_up_are_counted_and_forgiven_slowly() {
        let vigil = vigil(true);
        let give_up = || {
            vigil.request_begins();
            vigil.request_ends(false);
        };
        (0..512).for_each(|_| give_up());
        pass(20).await;
        give_up();
        give_up();
        assert_ne!(vigil.fault(), Some(Fault::Resets));
        give_up();
        assert_eq!(vigil.fault(), Some(Fault::Resets));
        vigil.alarmed().await;
    }
}
