//! What a connection runs over.

use std::fmt;
use std::time::Duration;

use quinn::VarInt;
use telemetry_h3::Code;
use tokio_util::sync::CancellationToken;

/// What a connection runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// QUIC, and HTTP/3 on it.
    Quic,
    /// TCP with TLS, and HTTP/2 or HTTP/1.1 on it.
    Tcp,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Quic, Self::Tcp];

    /// Its name, as in metrics and in the status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::Tcp => "tcp",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What ends a connection at once.
#[derive(Debug, Clone)]
pub(super) enum Handle {
    Quic(quinn::Connection),
    /// Whoever serves the connection waits for it.
    Tcp(CancellationToken),
}

impl Handle {
    pub(super) const fn transport(&self) -> Transport {
        match self {
            Self::Quic(_) => Transport::Quic,
            Self::Tcp(_) => Transport::Tcp,
        }
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        match self {
            Self::Quic(connection) => Some(connection.rtt()),
            Self::Tcp(_) => None,
        }
    }

    /// Ends the connection. Only QUIC can say why.
    pub(super) fn close(&self, why: &str) {
        match self {
            Self::Quic(connection) => connection.close(varint(Code::H3_NO_ERROR), why.as_bytes()),
            Self::Tcp(end) => end.cancel(),
        }
    }
}

/// HTTP/3 error codes fit a QUIC variable-length integer.
pub(super) fn varint(code: Code) -> VarInt {
    VarInt::from_u64(code.value()).unwrap_or(VarInt::MAX)
}
