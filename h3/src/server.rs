//! The server's side of an h3 connection.

use bytes::Bytes;
use h3::error::ConnectionError;

use crate::GuardLimits;
use crate::guard::{BidiStream, Connection, Monitor};

/// Accepts requests. Dropped, it closes the connection with H3_NO_ERROR, and what is running on it ends.
pub type Acceptor = h3::server::Connection<Connection, Bytes>;

/// A request whose headers have not been read.
pub type RequestResolver = h3::server::RequestResolver<Connection, Bytes>;

/// One request and its response.
pub type RequestStream = h3::server::RequestStream<BidiStream, Bytes>;

/// Begins HTTP/3 on `connection`.
///
/// Waits for the peer to allow three unidirectional streams, which a broken peer may never do: the caller sets a time limit.
///
/// # Errors
/// The connection is lost.
pub async fn begin(connection: quinn::Connection, limits: GuardLimits) -> Result<(Acceptor, Monitor), ConnectionError> {
    let guarded = Connection::new(connection, limits);
    let monitor = guarded.monitor();
    let acceptor = h3::server::builder()
        .max_field_section_size(limits.max_header_frame_bytes as u64)
        // Grease costs a stream and a frame, and h3 loses control frames while it sends it.
        .send_grease(false)
        .build(guarded)
        .await?;
    Ok((acceptor, monitor))
}
