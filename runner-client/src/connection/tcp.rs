//! A connection over TCP that a coordinator accepted: TLS with the same certificates, and HTTP/2.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use telemetry_certs::{CertificateRefusal, ServerDistrust};
use telemetry_proto::limits::MAX_CONTROL_BODY_BYTES;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::error::{ConnectError, ConnectErrorKind, SendError};

/// How often a connection is asked whether it lives, and how long its answer may take. TCP itself waits for a quarter of an
/// hour.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));

/// The protocol that TLS has to agree on (RFC 9113 section 3.2).
const ALPN: &[u8] = b"h2";

/// A connection that the coordinator accepted, our certificate included.
pub(super) struct TcpConnection {
    requests: SendRequest<Full<Bytes>>,
    remote: SocketAddr,
    round_trip: Duration,
    /// Ends it at once.
    end: CancellationToken,
    ended: watch::Receiver<Option<ConnectError>>,
    signs: Arc<Signs>,
    _driver: AbortOnDropHandle<()>,
}

impl TcpConnection {
    /// Connects, and waits until the coordinator has accepted our certificate: with TLS 1.3 our own handshake is done before
    /// it looked at it. The caller bounds the wait.
    pub(super) async fn connect(remote: SocketAddr, host: &str, tls: TlsConnector) -> Result<Self, ConnectError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| ConnectError::Broken(Arc::new(error)))?;
        let begun = Instant::now();
        let stream = TcpStream::connect(remote).await.map_err(not_connected)?;
        let round_trip = begun.elapsed();
        let _ = stream.set_nodelay(true);
        let stream = tls.connect(name, stream).await.map_err(|error| handshake_failure(&error))?;
        if stream.get_ref().1.alpn_protocol() != Some(ALPN) {
            return Err(ConnectError::Broken(Arc::new(io::Error::other("the other side does not speak HTTP/2"))));
        }
        let signs = Arc::new(Signs::default());
        let end = CancellationToken::new();
        let io = TokioIo::new(Watched { stream, signs: Arc::clone(&signs) });
        let begun = http2::Builder::new(Tasks { end: end.clone() })
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE.0)
            .keep_alive_timeout(KEEP_ALIVE.1)
            .keep_alive_while_idle(true)
            .handshake(io)
            .await;
        let (requests, connection) = begun.map_err(|error| signs.why(&error))?;
        let (over, mut ended) = watch::channel(None);
        let driver = {
            let signs = Arc::clone(&signs);
            AbortOnDropHandle::new(tokio::spawn(async move {
                let why = match connection.await {
                    // GOAWAY, or the end of the stream. What is under way goes on in tasks of its own.
                    Ok(()) => signs.trouble.get().cloned().unwrap_or(ConnectError::GoingAway),
                    Err(error) => signs.why(&error),
                };
                over.send_replace(Some(why));
            }))
        };
        tokio::select! {
            biased;
            // Whoever refuses our certificate says nothing but the alert.
            () = signs.heard.cancelled() => {}
            error = over_with(&mut ended) => return Err(error),
        }
        Ok(Self { requests, remote, round_trip, end, ended, signs, _driver: driver })
    }

    pub(super) const fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(super) const fn round_trip(&self) -> Duration {
        self.round_trip
    }

    pub(super) fn is_open(&self) -> bool {
        !self.requests.is_closed() && self.ended.borrow().is_none() && !self.end.is_cancelled()
    }

    /// Ends it, with all that is under way.
    pub(super) fn close(&self) {
        self.end.cancel();
    }

    /// Why it ended, once it has.
    pub(super) async fn closed(&self) -> ConnectError {
        over_with(&mut self.ended.clone()).await
    }

    /// Sends `request` and reads the response whole. The caller bounds the wait. A request that is dropped on the way is sent
    /// whole or reset.
    pub(super) async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, SendError> {
        let response = self.requests.clone().send_request(request.map(Full::new)).await;
        let (head, body) = response.map_err(|error| self.failed(error))?.into_parts();
        let body = receive(body).await.map_err(|error| self.failed(error))?;
        Ok(Response::from_parts(head, body))
    }

    fn failed(&self, error: hyper::Error) -> SendError {
        match self.signs.trouble.get() {
            Some(trouble) if trouble.kind() == ConnectErrorKind::Identity => SendError::NotSent(trouble.clone()),
            // hyper still has the request.
            _ if error.is_canceled() => SendError::NotSent(ConnectError::GoingAway),
            _ => SendError::Lost(Arc::new(error)),
        }
    }
}

async fn over_with(ended: &mut watch::Receiver<Option<ConnectError>>) -> ConnectError {
    let error = ended.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
    error.unwrap_or(ConnectError::Closed)
}

async fn receive(mut body: Incoming) -> Result<Bytes, hyper::Error> {
    let mut received = BytesMut::new();
    while let Some(frame) = body.frame().await.transpose()? {
        let Ok(data) = frame.into_data() else { continue };
        if (received.len() + data.len()) as u64 > MAX_CONTROL_BODY_BYTES {
            // Nothing that we read is this long; status and headers are all that counts of it.
            break;
        }
        received.extend_from_slice(&data);
    }
    Ok(received.freeze())
}

fn not_connected(error: io::Error) -> ConnectError {
    match error.kind() {
        io::ErrorKind::TimedOut => ConnectError::Timeout,
        _ => ConnectError::Broken(Arc::new(error)),
    }
}

fn handshake_failure(error: &io::Error) -> ConnectError {
    trouble(error).unwrap_or_else(|| ConnectError::Broken(Arc::new(io::Error::new(error.kind(), error.to_string()))))
}

/// Who distrusts whom, if that is the trouble.
fn trouble(error: &io::Error) -> Option<ConnectError> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let refused = CertificateRefusal::from_rustls(error).map(ConnectError::Refused);
    refused.or_else(|| ServerDistrust::from_rustls(error).map(ConnectError::UntrustedServer))
}

/// What was seen of the other side.
#[derive(Debug, Default)]
struct Signs {
    /// It said something after the handshake.
    heard: CancellationToken,
    /// It does not trust us.
    trouble: OnceLock<ConnectError>,
}

impl Signs {
    fn note(&self, error: &io::Error) {
        if let Some(trouble) = trouble(error) {
            let _ = self.trouble.set(trouble);
        }
    }

    /// Why a connection ended with this.
    fn why(&self, error: &hyper::Error) -> ConnectError {
        match self.trouble.get() {
            Some(trouble) => trouble.clone(),
            None if error.is_timeout() => ConnectError::Timeout,
            None => ConnectError::Broken(Arc::new(io::Error::other(error.to_string()))),
        }
    }
}

/// Runs hyper's tasks until the connection is closed.
#[derive(Clone)]
struct Tasks {
    end: CancellationToken,
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        let end = self.end.clone();
        tokio::spawn(async move {
            end.run_until_cancelled(task).await;
        });
    }
}

/// The bytes of a connection, and what they tell of the other side.
struct Watched {
    stream: TlsStream<TcpStream>,
    signs: Arc<Signs>,
}

impl Watched {
    /// The other side has closed its end, most likely after it said why: that is to be read before all is lost.
    fn look_for_an_alert(&mut self, cx: &mut Context<'_>) {
        let mut space = [0; 256];
        let mut space = ReadBuf::new(&mut space);
        if let Poll::Ready(Err(error)) = Pin::new(&mut self.stream).poll_read(cx, &mut space) {
            self.signs.note(&error);
        }
    }

    fn note<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &written {
            self.signs.note(error);
            if !self.signs.heard.is_cancelled() {
                self.look_for_an_alert(cx);
            }
        }
        written
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Poll::Ready(Err(error)) = &read {
            self.signs.note(error);
        } else if buf.filled().len() > before && !self.signs.heard.is_cancelled() {
            self.signs.heard.cancel();
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.note(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.note(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.note(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
