//! The client's side of an h3 connection.

use bytes::Bytes;
use h3::error::ConnectionError;

use crate::GuardLimits;
use crate::guard::{BidiStream, Connection, Monitor, OpenStreams};

/// Drives the connection: poll its `poll_close` (or await `wait_idle`) until it ends, in a task of its own.
pub type Driver = h3::client::Connection<Connection, Bytes>;

/// Sends requests; clone it to send several at a time. The connection is closed when the last clone is dropped.
pub type SendRequest = h3::client::SendRequest<OpenStreams, Bytes>;

/// One request and its response. Dropped before it was finished, the request is cancelled.
pub type RequestStream = h3::client::RequestStream<BidiStream, Bytes>;

/// Begins HTTP/3 on `connection`.
///
/// Waits for the peer to allow three unidirectional streams, which a broken peer may never do: the caller sets a time limit.
///
/// # Errors
/// The connection is lost.
pub async fn begin(
    connection: quinn::Connection,
    limits: GuardLimits,
) -> Result<(Driver, SendRequest, Monitor), ConnectionError> {
    let guarded = Connection::new(connection, limits);
    let monitor = guarded.monitor();
    let (driver, send_request) = h3::client::builder()
        .max_field_section_size(limits.max_header_frame_bytes as u64)
        // Grease costs a stream and a frame, and h3 loses control frames while it sends it.
        .send_grease(false)
        .build(guarded)
        .await?;
    Ok((driver, send_request, monitor))
}
