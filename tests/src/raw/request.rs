//! One request, made by hand.

#![expect(clippy::expect_used, reason = "test support")]

use bytes::{Buf as _, Bytes, BytesMut};
use h3::error::Code;
use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, Method, Request};
use quinn::Connection;
use telemetry_proto::header;

use super::{RawError, RawResponse, SendRequest, bounded, failure};

/// The size of a DATA frame.
const FRAME_BYTES: usize = 256 * 1024;

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// As a whole request ends: FIN.
    #[default]
    Fin,
    /// The sender gives up: RESET_STREAM.
    Reset,
    /// The sender goes away: the connection is closed.
    Close,
}

/// A request to be sent.
#[derive(Clone)]
#[must_use]
pub struct RawRequest {
    requests: SendRequest,
    connection: Connection,
    head: Request<()>,
    body: Bytes,
    content_length: ContentLength,
    ending: Ending,
}

#[derive(Debug, Clone, Copy)]
enum ContentLength {
    OfTheBody,
    Given(u64),
    Absent,
}

impl RawRequest {
    pub(super) fn new(requests: SendRequest, connection: Connection, method: Method, uri: String) -> Self {
        let mut head = Request::new(());
        *head.method_mut() = method;
        *head.uri_mut() = uri.parse().expect("a URI of the test");
        let content_length = ContentLength::OfTheBody;
        Self { requests, connection, head, body: Bytes::new(), content_length, ending: Ending::Fin }
    }

    /// Shows this token.
    pub fn token(self, token: &str) -> Self {
        self.header(header::WORKLOAD_TOKEN, token)
    }

    /// Adds a header, beside those of the same name.
    ///
    /// # Panics
    /// When it can't be a header.
    pub fn header(mut self, name: impl TryInto<HeaderName>, value: impl AsRef<[u8]>) -> Self {
        let name = name.try_into().ok().expect("a header name of the test");
        let value = HeaderValue::from_bytes(value.as_ref()).expect("a header value of the test");
        self.head.headers_mut().append(name, value);
        self
    }

    /// Takes a header away.
    pub fn without(mut self, name: &HeaderName) -> Self {
        self.head.headers_mut().remove(name);
        if name == CONTENT_LENGTH {
            self.content_length = ContentLength::Absent;
        }
        self
    }

    /// With this body, and its length announced.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Announces this length, whatever the body's is.
    pub const fn announce(mut self, length: u64) -> Self {
        self.content_length = ContentLength::Given(length);
        self
    }

    /// Announces the body's length, and ends after its first `bytes`.
    pub fn cut(mut self, bytes: usize, ending: Ending) -> Self {
        self = self.announce_own_length();
        self.body.truncate(bytes);
        self.ending = ending;
        self
    }

    /// Sends it and waits for the whole response. A response may come before the body is sent; the rest of the body is
    /// then not sent.
    ///
    /// # Errors
    /// There is no whole response.
    pub async fn send(self) -> Result<RawResponse, RawError> {
        let connection = self.connection.clone();
        match bounded(self.exchange()).await {
            // The peer's reason for closing may arrive just after the stream has failed.
            Err(RawError::Stream(error)) => {
                let closed = tokio::time::timeout(super::CLOSE_GRACE, connection.closed()).await;
                Err(closed.map_or(RawError::Stream(error), RawError::Closed))
            }
            outcome => outcome,
        }
    }

    fn announce_own_length(self) -> Self {
        let length = self.body.len() as u64;
        self.announce(length)
    }

    async fn exchange(mut self) -> Result<RawResponse, RawError> {
        let length = match self.content_length {
            ContentLength::OfTheBody => Some(self.body.len() as u64),
            ContentLength::Given(length) => Some(length),
            ContentLength::Absent => None,
        };
        if let Some(length) = length.filter(|_| self.head.method() == Method::POST) {
            self.head.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
        }
        let connection = self.connection.clone();
        let failed = |error: &dyn std::fmt::Display| failure(&connection, error);

        let stream = self.requests.send_request(self.head).await.map_err(|e| failed(&e))?;
        let (mut sending, mut receiving) = stream.split();
        let send = async {
            while self.body.has_remaining() {
                let frame = self.body.split_to(self.body.len().min(FRAME_BYTES));
                if sending.send_data(frame).await.is_err() {
                    // Whoever does not want the body says why in the response.
                    return;
                }
            }
            match self.ending {
                Ending::Fin => drop(sending.finish().await),
                Ending::Reset => sending.stop_stream(Code::H3_REQUEST_CANCELLED),
                Ending::Close => self.connection.close(Code::H3_NO_ERROR.value().try_into().unwrap_or_default(), b""),
            }
        };
        let receive = async {
            let head = receiving.recv_response().await.map_err(|e| failed(&e))?;
            let mut body = BytesMut::new();
            while let Some(mut data) = receiving.recv_data().await.map_err(|e| failed(&e))? {
                body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
            }
            let (head, ()) = head.into_parts();
            Ok(RawResponse {
                status: head.status,
                headers: head.headers,
                body: String::from_utf8_lossy(&body).into_owned(),
            })
        };
        let mut receive = std::pin::pin!(receive);
        tokio::select! {
            response = &mut receive => response,
            () = send => receive.await,
        }
    }
}
