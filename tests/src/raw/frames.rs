//! HTTP/3 written byte by byte (RFC 9114 section 7.1, RFC 9204 section 4.5), for what no library lets one say.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use quinn::{Connection, Endpoint, ReadError, ReadToEndError, RecvStream, SendStream, TransportConfig, VarInt};
use telemetry_certs::{Credentials, Roots};
use telemetry_proto::{Route, Signal, header};

use super::{RawError, bounded, client_config, dial_with};

/// More of a response than this is not read.
const MAX_RESPONSE: usize = 64 * 1024;
const CONTROL_STREAM: u64 = 0x00;
const SETTINGS: u64 = 0x04;

/// A QUIC connection on which HTTP/3 is written by hand.
#[derive(Debug)]
pub struct HandMade {
    connection: Connection,
    // Held open: a control stream must not end.
    control: Option<SendStream>,
    endpoint: Endpoint,
}

/// A request whose end is still to come.
#[derive(Debug)]
pub struct OpenRequest {
    send: SendStream,
    receive: RecvStream,
}

/// A frame to be written. What it announces need not be what it holds.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The type (RFC 9114 section 11.2.1).
    pub kind: u64,
    /// The length that is announced.
    pub announced: u64,
    /// The payload.
    pub payload: Bytes,
}

/// What came of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The relay answered with this many bytes of frames and a clean end.
    Answered(Bytes),
    /// The relay reset the stream with this code.
    Reset(u64),
    /// The relay closed the connection with this code.
    Closed(u64),
}

/// The fields of a request's head.
#[derive(Debug, Clone, Default)]
pub struct RequestHead {
    fields: Vec<(String, Vec<u8>)>,
}

impl RequestHead {
    /// A write of `signal` with this token and announced length.
    #[must_use]
    pub fn write(signal: Signal, token: &str, content_length: u64) -> Self {
        Self::default()
            .field(":method", "POST")
            .field(":scheme", "https")
            .field(":authority", "localhost")
            .field(":path", Route::Write(signal).path())
            .field("content-type", signal.content_type())
            .field("content-length", content_length.to_string())
            .field(header::WORKLOAD_TOKEN.as_str(), token)
    }

    /// Adds a field.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.fields.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// The HEADERS frame: every field a literal, no table, no Huffman code.
    #[must_use]
    pub fn frame(&self) -> Frame {
        let mut block = BytesMut::from(&[0, 0][..]);
        for (name, value) in &self.fields {
            put_prefixed(&mut block, 0b0010_0000, 3, name.len());
            block.put_slice(name.as_bytes());
            put_prefixed(&mut block, 0, 7, value.len());
            block.put_slice(value);
        }
        Frame::headers(block.freeze())
    }
}

impl Frame {
    /// DATA.
    #[must_use]
    pub fn data(payload: impl Into<Bytes>) -> Self {
        Self::new(0x00, payload)
    }

    /// HEADERS with this field section.
    #[must_use]
    pub fn headers(payload: impl Into<Bytes>) -> Self {
        Self::new(0x01, payload)
    }

    /// Announces another length than that of its payload.
    #[must_use]
    pub const fn announcing(mut self, length: u64) -> Self {
        self.announced = length;
        self
    }

    /// A frame of any type that announces what it holds.
    #[must_use]
    pub fn new(kind: u64, payload: impl Into<Bytes>) -> Self {
        let payload = payload.into();
        Self { kind, announced: payload.len() as u64, payload }
    }

    /// Frames as they go over the wire.
    #[must_use]
    pub fn encode(frames: &[Self]) -> Bytes {
        let mut out = BytesMut::new();
        for frame in frames {
            put_varint(&mut out, frame.kind);
            put_varint(&mut out, frame.announced);
            out.put_slice(&frame.payload);
        }
        out.freeze()
    }
}

impl HandMade {
    /// Connects and opens the control stream with empty SETTINGS.
    ///
    /// # Errors
    /// The connection does not come up.
    pub async fn connect(
        address: SocketAddr,
        server_roots: &Roots,
        credentials: &Credentials,
    ) -> Result<Self, RawError> {
        let mut peer = Self::silent(address, server_roots, credentials).await?;
        let settings = Frame::encode(&[Frame::new(SETTINGS, Bytes::new())]);
        peer.control = Some(peer.open_uni(CONTROL_STREAM, &settings).await?);
        Ok(peer)
    }

    /// Connects, and says nothing of HTTP/3.
    ///
    /// # Errors
    /// The connection does not come up.
    pub async fn silent(
        address: SocketAddr,
        server_roots: &Roots,
        credentials: &Credentials,
    ) -> Result<Self, RawError> {
        let mut config = client_config(server_roots, Some(credentials))?;
        config.transport_config(Arc::new(transport()));
        let (endpoint, connection) = dial_with(address, config).await?;
        Ok(Self::over(endpoint, connection))
    }

    /// Goes on with a connection that was made elsewhere, on which nothing of HTTP/3 was said.
    #[must_use]
    pub const fn over(endpoint: Endpoint, connection: Connection) -> Self {
        Self { connection, control: None, endpoint }
    }

    /// Opens a unidirectional stream of this type and writes these bytes. Dropped, it ends.
    ///
    /// # Errors
    /// The connection is closed, or takes no more streams in time.
    pub async fn open_uni(&self, kind: u64, bytes: &[u8]) -> Result<SendStream, RawError> {
        bounded(async {
            let mut stream = self.connection.open_uni().await?;
            let mut start = BytesMut::new();
            put_varint(&mut start, kind);
            start.put_slice(bytes);
            stream.write_all(&start).await.map_err(|error| RawError::Stream(error.to_string()))?;
            Ok(stream)
        })
        .await
    }

    /// Takes the control stream, to write more on it or to end it.
    pub const fn take_control(&mut self) -> Option<SendStream> {
        self.control.take()
    }

    /// Waits until the peer closes the connection. Returns the code that it gives.
    ///
    /// # Errors
    /// It does not in time.
    pub async fn closed(&self) -> Result<u64, RawError> {
        bounded(async { Ok(close_code(&self.connection.closed().await)) }).await
    }

    /// Writes frames on a stream of their own and ends it with FIN, then waits for what comes of it.
    ///
    /// # Errors
    /// Nothing comes of it in time.
    pub async fn exchange(&self, frames: &[Frame]) -> Result<Outcome, RawError> {
        self.begin(frames).await?.finish().await
    }

    /// Writes frames on a stream of their own and leaves it open.
    ///
    /// # Errors
    /// The connection is closed, or takes no more streams in time.
    pub async fn begin(&self, frames: &[Frame]) -> Result<OpenRequest, RawError> {
        bounded(async {
            let (mut send, receive) = self.connection.open_bi().await?;
            // A peer that has read enough stops the stream; what it answers is what counts.
            let _ = send.write_all(&Frame::encode(frames)).await;
            Ok(OpenRequest { send, receive })
        })
        .await
    }

    /// The QUIC connection.
    #[must_use]
    pub const fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for HandMade {
    fn drop(&mut self) {
        self.endpoint.close(0_u32.into(), b"");
    }
}

impl OpenRequest {
    /// Writes more of it.
    ///
    /// # Errors
    /// The peer has stopped it, or the connection is closed.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), RawError> {
        bounded(async { self.send.write_all(bytes).await.map_err(|error| RawError::Stream(error.to_string())) }).await
    }

    /// Waits for what comes of it, without an end of its own.
    ///
    /// # Errors
    /// Nothing comes of it in time.
    pub async fn wait(self) -> Result<Outcome, RawError> {
        let Self { send: _send, receive } = self;
        bounded(async { Ok(outcome(receive).await) }).await
    }

    /// Ends it with FIN, and waits for what comes of it.
    ///
    /// # Errors
    /// Nothing comes of it in time.
    pub async fn finish(mut self) -> Result<Outcome, RawError> {
        // Stopped already: see above.
        let _ = self.send.finish();
        bounded(async { Ok(outcome(self.receive).await) }).await
    }

    /// Gives it up in both directions: H3_REQUEST_CANCELLED.
    pub fn give_up(mut self) {
        let cancelled = VarInt::from_u32(0x10c);
        // Either may be over already.
        let _ = self.send.reset(cancelled);
        let _ = self.receive.stop(cancelled);
    }
}

/// A peer that is dropped with much under way may not get its farewell out. The relay is to forget it soon all the same.
fn transport() -> TransportConfig {
    let mut config = TransportConfig::default();
    config.max_idle_timeout(Some(VarInt::from_u32(5_000).into())).keep_alive_interval(Some(Duration::from_secs(1)));
    config
}

async fn outcome(mut receive: RecvStream) -> Outcome {
    match receive.read_to_end(MAX_RESPONSE).await {
        Ok(bytes) => Outcome::Answered(bytes.into()),
        Err(ReadToEndError::Read(ReadError::Reset(code))) => Outcome::Reset(code.into()),
        Err(ReadToEndError::Read(ReadError::ConnectionLost(error))) => Outcome::Closed(close_code(&error)),
        Err(_) => Outcome::Answered(Bytes::new()),
    }
}

/// The code that the peer closed with; `u64::MAX` when the connection ended otherwise.
fn close_code(error: &quinn::ConnectionError) -> u64 {
    match error {
        quinn::ConnectionError::ApplicationClosed(close) => close.error_code.into(),
        quinn::ConnectionError::ConnectionClosed(close) => close.error_code.into(),
        _ => u64::MAX,
    }
}

/// A variable-length integer (RFC 9000 section 16), in the longest form.
fn put_varint(out: &mut BytesMut, value: u64) {
    out.put_u64(value | 0b11 << 62);
}

/// An integer with a prefix of `bits` (RFC 7541 section 5.1).
fn put_prefixed(out: &mut BytesMut, pattern: u8, bits: u32, value: usize) {
    let limit = (1_usize << bits) - 1;
    if value < limit {
        out.put_u8(pattern | u8::try_from(value).unwrap_or_default());
        return;
    }
    out.put_u8(pattern | u8::try_from(limit).unwrap_or_default());
    let mut rest = value - limit;
    while rest >= 128 {
        out.put_u8(u8::try_from(rest % 128).unwrap_or_default() | 128);
        rest /= 128;
    }
    out.put_u8(u8::try_from(rest).unwrap_or_default());
}
