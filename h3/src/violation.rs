//! What a peer did against the rules.

use h3::error::Code;
use quinn::VarInt;

/// What a peer did against the rules of HTTP/3 or beyond our [limits](crate::GuardLimits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A stream ended inside a frame (RFC 9114 section 7.1).
    #[error("a stream ended inside a frame")]
    TruncatedFrame,
    /// A frame's payload does not have the layout of its type (RFC 9114 section 7.1).
    #[error("the payload of a frame is malformed")]
    MalformedFrame,
    /// A frame came where its type is not allowed (RFC 9114 section 7.2).
    #[error("a frame is not allowed on this stream")]
    UnexpectedFrame,
    /// A push is named that was never made, or the allowance for pushes shrinks (RFC 9114 sections 7.2.3 and 7.2.7). h3 does
    /// not look.
    #[error("a frame names a push that can't be")]
    BadPushId,
    /// The control stream does not begin with SETTINGS (RFC 9114 section 6.2.1).
    #[error("the control stream does not begin with SETTINGS")]
    MissingSettings,
    /// A control, encoder or decoder stream ended (RFC 9114 section 6.2.1, RFC 9204 section 4.2).
    #[error("a critical stream was closed")]
    ClosedCriticalStream,
    /// A second stream of a type that may exist once, or a push stream (RFC 9114 section 6.2).
    #[error("a stream of this type is not accepted")]
    UnexpectedStream,
    /// A header or trailer section is larger than [`max_header_frame_bytes`](crate::GuardLimits::max_header_frame_bytes).
    #[error("a header section is too large")]
    HeadersTooLarge,
    /// A control frame is larger than [`max_control_frame_bytes`](crate::GuardLimits::max_control_frame_bytes).
    #[error("a control frame is too large")]
    ControlFrameTooLarge,
    /// A frame of unknown type is larger than [`max_unknown_frame_bytes`](crate::GuardLimits::max_unknown_frame_bytes).
    #[error("a frame of unknown type is too large")]
    UnknownFrameTooLarge,
    /// More than [`max_useless_frames`](crate::GuardLimits::max_useless_frames) on a request stream.
    #[error("too many frames without effect")]
    TooManyUselessFrames,
    /// More than [`max_control_frames`](crate::GuardLimits::max_control_frames).
    #[error("too many control frames")]
    TooManyControlFrames,
    /// More than [`max_unknown_streams`](crate::GuardLimits::max_unknown_streams).
    #[error("too many streams of unknown type")]
    TooManyUnknownStreams,
    /// More than [`max_qpack_bytes`](crate::GuardLimits::max_qpack_bytes).
    #[error("too much on the QPACK streams")]
    TooMuchQpack,
    /// More than [`max_unanswered_streams`](crate::GuardLimits::max_unanswered_streams).
    #[error("too many requests were given up before a response")]
    TooManyUnanswered,
}

impl Violation {
    /// The error code that the stream or connection ends with (RFC 9114 section 8.1).
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Self::TruncatedFrame | Self::MalformedFrame => Code::H3_FRAME_ERROR,
            Self::UnexpectedFrame => Code::H3_FRAME_UNEXPECTED,
            Self::BadPushId => Code::H3_ID_ERROR,
            Self::MissingSettings => Code::H3_MISSING_SETTINGS,
            Self::ClosedCriticalStream => Code::H3_CLOSED_CRITICAL_STREAM,
            Self::UnexpectedStream => Code::H3_STREAM_CREATION_ERROR,
            Self::HeadersTooLarge
            | Self::ControlFrameTooLarge
            | Self::UnknownFrameTooLarge
            | Self::TooManyUselessFrames
            | Self::TooManyControlFrames
            | Self::TooManyUnknownStreams
            | Self::TooMuchQpack
            | Self::TooManyUnanswered => Code::H3_EXCESSIVE_LOAD,
        }
    }

    /// Whether the whole connection ends. A header section that is too large may be an honest mistake and ends its stream
    /// only; everything else comes from a peer that is broken or hostile.
    #[must_use]
    pub const fn ends_connection(self) -> bool {
        !matches!(self, Self::HeadersTooLarge)
    }

    /// A stable kebab-case name for metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TruncatedFrame => "truncated-frame",
            Self::MalformedFrame => "malformed-frame",
            Self::UnexpectedFrame => "unexpected-frame",
            Self::BadPushId => "bad-push-id",
            Self::MissingSettings => "missing-settings",
            Self::ClosedCriticalStream => "closed-critical-stream",
            Self::UnexpectedStream => "unexpected-stream",
            Self::HeadersTooLarge => "headers-too-large",
            Self::ControlFrameTooLarge => "control-frame-too-large",
            Self::UnknownFrameTooLarge => "unknown-frame-too-large",
            Self::TooManyUselessFrames => "too-many-useless-frames",
            Self::TooManyControlFrames => "too-many-control-frames",
            Self::TooManyUnknownStreams => "too-many-unknown-streams",
            Self::TooMuchQpack => "too-much-qpack",
            Self::TooManyUnanswered => "too-many-unanswered",
        }
    }
}

/// An HTTP/3 code as QUIC carries it.
pub(crate) fn quic_code(code: Code) -> VarInt {
    quic_code_from(code.value())
}

/// A code that came as a number. Codes of 2^62 and above cannot be carried; h3 makes none.
pub(crate) fn quic_code_from(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}
