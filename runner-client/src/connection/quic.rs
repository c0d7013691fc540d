//! A connection over QUIC that a coordinator accepted.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::{Request, Response};
use telemetry_h3::client::{self, SendRequest};
use telemetry_h3::guard::{Monitor, RecvStream};
use telemetry_h3::transport::TransportLimits;
use telemetry_h3::{Code, GuardLimits, StreamFailure};
use telemetry_proto::limits::MAX_CONTROL_BODY_BYTES;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::error::{ConnectError, ConnectErrorKind, H3_NO_ERROR, SendError};

/// Between looks for the end of the handshake, at first and at most.
const CONFIRMATION_POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// How often traffic is looked at while a request is under way.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Looks in a row without an acknowledgement, after which one is asked for.
const PROBE_AFTER: u32 = 3;
/// The shortest time without an acknowledgement that is suspicious.
const MIN_PATIENCE: Duration = Duration::from_millis(500);

/// A connection that the coordinator accepted, our certificate included.
pub(super) struct QuicConnection {
    quic: quinn::Connection,
    requests: SendRequest,
    suspicion: Notify,
    /// What had been heard when the suspicion arose.
    suspected_at: AtomicU64,
    _driver: AbortOnDropHandle<()>,
}

/// What went over a connection so far: frames that have to be acknowledged, and acknowledgements.
#[derive(Debug, Clone, Copy)]
struct Traffic {
    asked: u64,
    heard: u64,
}

impl QuicConnection {
    /// Begins HTTP/3 and waits until the coordinator has accepted our certificate: with TLS 1.3 our own handshake is done
    /// before it looked at it. The caller bounds the wait.
    pub(super) async fn begin(quic: quinn::Connection) -> Result<Self, ConnectError> {
        let begun = client::begin(quic.clone(), GuardLimits::default()).await;
        let (mut driver, requests, monitor) = begun.map_err(|error| why_closed(&quic, error))?;
        let driver = AbortOnDropHandle::new(tokio::spawn(async move {
            driver.wait_idle().await;
        }));
        accepted(&quic, &monitor).await?;
        Ok(Self { quic, requests, suspicion: Notify::new(), suspected_at: AtomicU64::new(0), _driver: driver })
    }

    pub(super) fn remote(&self) -> SocketAddr {
        self.quic.remote_address()
    }

    /// The present estimate of the round trip.
    pub(super) fn round_trip(&self) -> Duration {
        self.quic.rtt()
    }

    pub(super) fn is_open(&self) -> bool {
        self.quic.close_reason().is_none()
    }

    /// Ends it, with all that is under way.
    pub(super) fn close(&self) {
        self.quic.close(H3_NO_ERROR, b"");
    }

    /// Why it ended, once it has.
    pub(super) async fn closed(&self) -> ConnectError {
        self.quic.closed().await.into()
    }

    /// Says that nothing more was heard, though there was something to acknowledge.
    fn suspect(&self, heard: u64) {
        self.suspected_at.store(heard, Ordering::Relaxed);
        self.suspicion.notify_one();
    }

    /// Resolves when the other side seems dead.
    pub(super) async fn suspected(&self) {
        loop {
            self.suspicion.notified().await;
            if !self.spoke_since_suspicion() {
                return;
            }
        }
    }

    /// Whether the other side was heard after it was suspected.
    pub(super) fn spoke_since_suspicion(&self) -> bool {
        self.traffic().heard != self.suspected_at.load(Ordering::Relaxed)
    }

    /// Watches, while a request is under way, whether what is sent is acknowledged.
    pub(super) async fn mind_silence(&self) -> Infallible {
        let mut last = self.traffic();
        let mut silent_since: Option<Instant> = None;
        let mut quiet_ticks = 0;
        loop {
            sleep(TICK).await;
            let traffic = self.traffic();
            quiet_ticks += 1;
            if traffic.heard != last.heard {
                silent_since = None;
                quiet_ticks = 0;
            } else if traffic.asked != last.asked {
                silent_since.get_or_insert_with(Instant::now);
            } else if quiet_ticks >= PROBE_AFTER && silent_since.is_none() {
                self.ask_for_a_sign_of_life();
                quiet_ticks = 0;
            }
            last = traffic;
            if silent_since.is_some_and(|since| since.elapsed() >= self.patience()) {
                silent_since = None;
                self.suspect(traffic.heard);
            }
        }
    }

    /// The request may have arrived, and its receiver died before it answered: then nothing is left to be acknowledged.
    /// quinn has no ping. It tells the other side when we allow it more data, which must be acknowledged; one byte more
    /// and less again is no change but for that.
    fn ask_for_a_sign_of_life(&self) {
        let window = TransportLimits::default().connection_window;
        self.quic.set_receive_window(window.saturating_add(1).into());
        self.quic.set_receive_window(window.into());
    }

    fn traffic(&self) -> Traffic {
        let stats = self.quic.stats();
        // What a client sends and wants acknowledged: requests, and what quinn sends in turn when no acknowledgement comes:
        // once more the request, a PING, or IMMEDIATE_ACK to a peer that knows it. Not the probes for a larger MTU, whose
        // loss is what they are for; those have a PING, and an IMMEDIATE_ACK for such a peer.
        let (sent, probes) = (stats.frame_tx, stats.path.sent_plpmtud_probes);
        let signs_of_life = sent.ping.saturating_sub(probes) + sent.immediate_ack.saturating_sub(probes);
        Traffic { asked: sent.stream + sent.max_data + signs_of_life, heard: stats.frame_rx.acks }
    }

    /// How long the other side may take to acknowledge.
    fn patience(&self) -> Duration {
        MIN_PATIENCE.max(4 * self.quic.rtt())
    }

    /// Sends `request` and reads the response whole. The caller bounds the wait.
    pub(super) async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, SendError> {
        let (head, body) = request.into_parts();
        let head = Request::from_parts(head, ());
        let stream = self.requests.clone().send_request(head).await;
        let (mut upload, mut download) = stream.map_err(|error| self.failed(error.into()))?.split();

        // The coordinator may answer before it has the whole body, and stop the upload: what it says counts, and not that
        // it stopped. What is left of the upload is dropped with the response, which resets the stream.
        let upload = async {
            if upload.send_data(body).await.is_ok() && upload.finish().await.is_ok() {
                tracing::trace!("a request was sent whole");
            }
            std::future::pending().await
        };
        tokio::select! {
            response = receive(&mut download) => response.map_err(|failure| self.failed(failure)),
            never = upload => never,
        }
    }

    fn failed(&self, failure: StreamFailure) -> SendError {
        match failure {
            StreamFailure::GoingAway | StreamFailure::Terminated(Code::H3_REQUEST_REJECTED) => {
                SendError::NotSent(ConnectError::GoingAway)
            }
            StreamFailure::ConnectionLost => match self.quic.close_reason().map(ConnectError::from) {
                Some(error) if error.kind() == ConnectErrorKind::Identity => SendError::NotSent(error),
                Some(error) => SendError::Lost(Arc::new(error)),
                None => SendError::Lost(Arc::new(failure)),
            },
            _ => SendError::Lost(Arc::new(failure)),
        }
    }
}

/// SETTINGS are an event, but a server may send them before it has looked at our certificate (RFC 9001 section 5.7). What
/// comes only after it has is HANDSHAKE_DONE (section 4.1.2), of which quinn keeps no more than a count.
async fn accepted(quic: &quinn::Connection, monitor: &Monitor) -> Result<(), ConnectError> {
    let confirmed = async {
        monitor.settings().await;
        let (mut pause, longest) = CONFIRMATION_POLL;
        while quic.stats().frame_rx.handshake_done == 0 {
            sleep(pause).await;
            pause = longest.min(2 * pause);
        }
    };
    tokio::select! {
        () = confirmed => Ok(()),
        error = quic.closed() => Err(error.into()),
    }
}

async fn receive(stream: &mut h3::client::RequestStream<RecvStream, Bytes>) -> Result<Response<Bytes>, StreamFailure> {
    let (head, ()) = stream.recv_response().await?.into_parts();
    let mut body = BytesMut::new();
    while let Some(mut chunk) = stream.recv_data().await? {
        if (body.len() + chunk.remaining()) as u64 > MAX_CONTROL_BODY_BYTES {
            // Nothing that we read is this long; status and headers are all that counts of it.
            break;
        }
        body.put(chunk.copy_to_bytes(chunk.remaining()));
    }
    Ok(Response::from_parts(head, body.freeze()))
}

fn why_closed(quic: &quinn::Connection, error: h3::error::ConnectionError) -> ConnectError {
    quic.close_reason().map_or_else(|| ConnectError::Broken(Arc::new(error)), ConnectError::from)
}
