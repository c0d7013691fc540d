//! What a peer may make us hold or do beyond the bodies it sends.

use std::time::Duration;

/// What a peer may make us hold or do beyond the bodies it sends. Sizes are in bytes.
///
/// Bodies are bounded elsewhere: by flow control on the way in, and by whoever reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardLimits {
    /// The largest encoded header or trailer section: 16 KiB by default. A larger one ends its stream. It is also what we
    /// announce as `SETTINGS_MAX_FIELD_SECTION_SIZE`, where it bounds the decoded section (RFC 9114 section 4.2.2).
    pub max_header_frame_bytes: usize,
    /// The largest frame on the control stream: 1 KiB by default.
    pub max_control_frame_bytes: usize,
    /// The largest frame of a type that we do not know: 4 KiB by default. Its payload is thrown away as it arrives.
    pub max_unknown_frame_bytes: u64,
    /// How many frames without any effect (unknown types, empty DATA) a request stream may carry: 64 by default.
    pub max_useless_frames: u32,
    /// How many frames the control stream may carry in a connection's life: 1,024 by default.
    pub max_control_frames: u32,
    /// How many unidirectional streams of unknown types a peer may open in a connection's life: 256 by default.
    pub max_unknown_streams: u32,
    /// How many bytes the QPACK encoder and decoder streams may carry together in a connection's life: 64 KiB by default.
    /// We announce no dynamic table, so there is hardly anything to say on them (RFC 9204 section 3.2.3).
    pub max_qpack_bytes: u64,
    /// How many of a peer's request streams may end before any response: 512 by default, and one is forgiven every
    /// [`unanswered_stream_forgiven_after`](Self::unanswered_stream_forgiven_after). This is what stops a rapid reset. It is
    /// also what bounds h3's list of requests that it believes to be running, which keeps every one that ends before its
    /// headers are complete.
    pub max_unanswered_streams: u32,
    /// After how long one unanswered stream is forgiven: 10 s by default, so that an honest client whose requests time out
    /// now and then never meets the limit.
    pub unanswered_stream_forgiven_after: Duration,
}

impl Default for GuardLimits {
    fn default() -> Self {
        Self {
            max_header_frame_bytes: 16 * 1024,
            max_control_frame_bytes: 1024,
            max_unknown_frame_bytes: 4 * 1024,
            max_useless_frames: 64,
            max_control_frames: 1024,
            max_unknown_streams: 256,
            max_qpack_bytes: 64 * 1024,
            max_unanswered_streams: 512,
            unanswered_stream_forgiven_after: Duration::from_secs(10),
        }
    }
}
