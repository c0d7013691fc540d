//! One connection: from the handshake to its end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, ProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

use super::super::ListenerConfig;
use super::super::body::RequestBody;
use super::super::peers::Connected;
use super::super::shared::{Shared, drain_begins, refusal_label};
use super::super::tls::Tls;
use super::super::transport::Handle;
use super::exchange::Exchange;
use super::io::Watched;
use super::vigil::Vigil;

/// How much is read at once, and held of one request before its service reads it, over HTTP/1.1.
const READ_BYTES: usize = 64 * 1024;
/// What HTTP/2 holds of a response that is not taken yet.
const SEND_BYTES: usize = 64 * 1024;
/// Requests that were reset before hyper looked at them, at most at a time; more end the connection (CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 64;
/// Requests that hyper itself resets for their faults, at most in a connection's life (CVE-2025-8671).
const MAX_LOCAL_RESETS: usize = 256;
/// How long an answered peer of HTTP/1.1 may go on sending what nobody wants, so that the answer is not lost with it.
const LINGER: Duration = Duration::from_secs(2);

/// A connection whose peer is known.
pub(super) struct Shaken {
    stream: TlsStream<TcpStream>,
    connected: Connected,
    end: CancellationToken,
}

/// Does the handshake. A peer without an acceptable certificate does not get past it.
pub(super) async fn shake_hands(stream: TcpStream, remote: SocketAddr, tls: &Tls, shared: &Shared) -> Option<Shaken> {
    let refuse = |kind| shared.metrics.count_refused(kind);
    // Answers are small, and must not wait for the acknowledgement of others.
    let _ = stream.set_nodelay(true);
    let stream = match timeout(shared.config.handshake_timeout, tls.tcp().accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            refuse(handshake_failure(&error));
            return None;
        }
        Err(_) => {
            refuse("handshake-timeout");
            return None;
        }
    };
    let (_, session) = stream.get_ref();
    // QUIC has no other version; an embedder's TLS configuration may.
    if session.protocol_version() != Some(ProtocolVersion::TLSv1_3) {
        refuse("tls-version");
        return None;
    }
    let Some(chain) = session.peer_certificates().map(<[CertificateDer<'_>]>::to_vec) else {
        // The TLS configuration requires a certificate; an embedder's may not.
        refuse("no-certificate");
        return None;
    };
    let Some(peer) = shared.identify(&chain, remote) else {
        refuse("no-runner");
        tracing::warn!(%remote, "a certificate of the cluster names no runner");
        return None;
    };
    let end = CancellationToken::new();
    let connected = Connected::new(peer, Arc::new(chain), Handle::Tcp(end.clone()));
    Some(Shaken { stream, connected, end })
}

/// Why a handshake failed, as a label.
fn handshake_failure(error: &std::io::Error) -> &'static str {
    let alert = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::NoCertificatesPresented) => AlertDescription::CertificateRequired,
        Some(rustls::Error::InvalidCertificate(reason)) => AlertDescription::from(reason.clone()),
        Some(rustls::Error::AlertReceived(_)) | None => return "closed-by-peer",
        Some(_) => return "handshake",
    };
    refusal_label(0x100 | u64::from(u8::from(alert)))
}

/// Serves the requests of a connection until it ends or the listener has drained. `tls` is what its handshake was done with.
pub(super) async fn serve<S, B>(shaken: Shaken, tls: &Arc<Tls>, service: S, shared: Shared)
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send,
{
    let Shaken { stream, connected, end } = shaken;
    let _active = shared.metrics.connection();
    let peer = connected.peer.clone();
    let _presence = shared.peers.enter(connected, shared.config.max_connections_per_runner);
    // As over QUIC: whoever reloads did not see a handshake that was under way then.
    if !Arc::ptr_eq(tls, &shared.tls.load()) {
        shared.metrics.count_ended("reloaded");
        return;
    }
    // HTTP/1.1 is what TLS without ALPN carries.
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    tracing::debug!(peer = %peer.author(), remote = %peer.remote(), is_http2, "peer connected over TCP");
    let vigil = Arc::new(Vigil::new(&shared.config, is_http2));
    let exchange = Exchange {
        service: Box::new(service),
        peer: peer.clone(),
        metrics: shared.metrics.clone(),
        vigil: Arc::clone(&vigil),
    };
    let io = TokioIo::new(Watched::new(stream, Arc::clone(&vigil)));
    if is_http2 {
        // Its requests are tasks of their own, and end with it.
        let connection = http2(&shared.config).serve_connection(io, exchange);
        attend(&mut Box::pin(connection), &vigil, &end, &shared).await;
    } else {
        let mut connection = http1(&shared.config).serve_connection(io, exchange);
        if attend(&mut connection, &vigil, &end, &shared).await {
            linger(connection.into_parts().io.into_inner().into_inner(), &end).await;
        }
    }
    tracing::debug!(peer = %peer.author(), remote = %peer.remote(), "peer disconnected");
}

fn http2(config: &ListenerConfig) -> http2::Builder<TokioExecutor> {
    let limits = &config.transport;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .max_concurrent_streams(limits.max_requests)
        .initial_stream_window_size(limits.stream_window)
        .initial_connection_window_size(limits.connection_window)
        .max_header_list_size(u32::try_from(config.guard.max_header_frame_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(SEND_BYTES)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_LOCAL_RESETS);
    builder
}

fn http1(config: &ListenerConfig) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .max_header_size(config.guard.max_header_frame_bytes)
        .max_buf_size(READ_BYTES.max(config.guard.max_header_frame_bytes))
        // The vigil sees to it, over both versions alike.
        .header_read_timeout(None);
    builder
}

/// A connection of hyper's.
trait Drive {
    /// Goes on until there is no more to do.
    fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>>;
    /// Lets running requests finish, and takes no more.
    fn wind_down(&mut self);
}

impl<S, B> Drive for http1::Connection<TokioIo<Watched<TlsStream<TcpStream>>>, Exchange<S>>
where
    Exchange<S>: hyper::service::Service<
            Request<hyper::body::Incoming>,
            Response = Response<B>,
            Error: Into<BoxError>,
            Future: Send + Unpin,
        > + Unpin,
    B: Body<Error: Into<BoxError>> + Unpin + 'static,
{
    fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.poll_without_shutdown(cx)
    }

    fn wind_down(&mut self) {
        Pin::new(self).graceful_shutdown();
    }
}

impl<I, S, B> Drive for Pin<Box<http2::Connection<I, S, TokioExecutor>>>
where
    http2::Connection<I, S, TokioExecutor>: Future<Output = hyper::Result<()>>,
    S: hyper::service::HttpService<hyper::body::Incoming, ResBody = B, Error: Into<BoxError>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    B: Body<Error: Into<BoxError>> + 'static,
    TokioExecutor: hyper::rt::bounds::Http2ServerConnExec<S::Future, B>,
{
    fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.as_mut().poll(cx)
    }

    fn wind_down(&mut self) {
        self.as_mut().graceful_shutdown();
    }
}

/// Drives a connection to its end. Returns whether that was a good one, after which the peer may still have to read.
async fn attend(connection: &mut impl Drive, vigil: &Vigil, end: &CancellationToken, shared: &Shared) -> bool {
    let mut draining = shared.draining.clone();
    let mut drains = false;
    let mut looks = interval(vigil.look_every());
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = end.cancelled() => return false,
            () = drain_begins(&mut draining), if !drains => {
                drains = true;
                connection.wind_down();
            }
            () = vigil.alarmed() => {}
            _ = looks.tick() => {}
            ended = poll_fn(|cx| connection.poll_drive(cx)) => {
                if let Err(error) = &ended
                    && let Some(kind) = violation(error)
                {
                    shared.metrics.count_ended(kind);
                }
                return ended.is_ok() || ended.is_err_and(|error| error.is_parse());
            }
        }
        if let Some(fault) = vigil.fault() {
            shared.metrics.count_ended(fault.as_str());
            return false;
        }
    }
}

/// What the peer did wrong, if it did; most connections just break.
fn violation(error: &hyper::Error) -> Option<&'static str> {
    let is_lost = |error: &(dyn std::error::Error + 'static)| error.is::<std::io::Error>();
    if error.is_parse() {
        Some("malformed")
    } else if error.is_incomplete_message()
        || error.is_closed()
        || std::error::Error::source(error).is_some_and(is_lost)
    {
        None
    } else {
        Some("protocol")
    }
}

/// To close a connection that holds unread bytes is to reset it, and the reset may overtake the answer (RFC 9112 section
/// 9.6).
async fn linger(mut stream: TlsStream<TcpStream>, end: &CancellationToken) {
    let rest = async {
        stream.shutdown().await?;
        // The rest is not even decrypted.
        let (tcp, _) = stream.get_mut();
        let mut unwanted = [0; 4096];
        while tcp.read(&mut unwanted).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    let _ = end.run_until_cancelled(timeout(LINGER, rest)).await;
}
