//! Why a stream failed, without a word of what went over it.

use h3::error::{Code, StreamError};

use crate::Violation;

/// What the guard reports to h3 when no error of QUIC fits. It comes back out of h3 as [`StreamError::Undefined`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The peer broke the rules.
    #[error("the peer broke the rules: {0}")]
    Violation(#[from] Violation),
    /// We stopped reading this stream before; what follows is unknown, and certainly no clean end.
    #[error("reading was stopped on this side")]
    ReadStopped,
    /// An earlier write was given up half way, so the stream holds a torn frame and was reset.
    #[error("an earlier write was given up half way")]
    WriteAbandoned,
    /// The stream was finished or reset on this side before.
    #[error("the stream is already closed on this side")]
    Closed,
}

/// Why a stream failed.
///
/// h3's own errors quote header names and values, which may be secrets. This says as much as anyone needs and can be
/// logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamFailure {
    /// The stream ended inside a frame: what came before is not the whole message.
    #[error("the stream ended inside a frame")]
    Truncated,
    /// The peer broke the rules in another way.
    #[error("the peer broke the rules: {0}")]
    Violation(Violation),
    /// The peer reset the stream, or asked us to stop sending on it.
    #[error("the peer ended the stream with {0}")]
    Terminated(Code),
    /// The message is malformed, or not what may come here.
    #[error("the message is malformed")]
    Malformed,
    /// A header section is larger than one of the two sides allows.
    #[error("a header section is too large")]
    HeadersTooLarge,
    /// The connection is gone, and the stream with it.
    #[error("the connection is lost")]
    ConnectionLost,
    /// The peer takes no new requests on this connection (GOAWAY).
    #[error("the peer is going away")]
    GoingAway,
    /// This side closed the stream before.
    #[error("the stream is closed on this side")]
    ClosedHere,
}

impl From<&StreamError> for StreamFailure {
    fn from(error: &StreamError) -> Self {
        match error {
            StreamError::RemoteTerminate { code, .. } => Self::Terminated(*code),
            StreamError::ConnectionError { .. } => Self::ConnectionLost,
            StreamError::HeaderTooBig { .. } => Self::HeadersTooLarge,
            StreamError::RemoteClosing { .. } => Self::GoingAway,
            StreamError::Undefined { 0: inner, .. } => match inner.downcast_ref::<GuardError>() {
                Some(GuardError::Violation(Violation::TruncatedFrame)) => Self::Truncated,
                Some(GuardError::Violation(Violation::HeadersTooLarge)) => Self::HeadersTooLarge,
                Some(GuardError::Violation(violation)) => Self::Violation(*violation),
                _ => Self::ClosedHere,
            },
            // A stream error that h3 found itself, and variants of the future.
            _ => Self::Malformed,
        }
    }
}

impl From<StreamError> for StreamFailure {
    fn from(error: StreamError) -> Self {
        Self::from(&error)
    }
}
