//! Sizes and times that both sides keep to. Sizes are in bytes.

use std::time::Duration;

/// The largest body of a write, as received: 32 MiB. One byte more is 413.
pub const MAX_BODY_BYTES: u64 = 32 * 1024 * 1024;

/// The largest body of a write after decompression: 128 MiB by default.
pub const MAX_DECODED_BYTES: u64 = 128 * 1024 * 1024;

/// The largest body of a token request or a policy.
pub const MAX_CONTROL_BODY_BYTES: u64 = 64 * 1024;

/// The largest workload token.
pub const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// The longest runner ID.
pub const MAX_RUNNER_ID_BYTES: usize = 128;

/// The longest field name in `_msg_field` and `_time_field`.
pub const MAX_FIELD_NAME_BYTES: usize = 128;

/// The longest log line that VictoriaLogs stores; longer ones it drops while it answers 200.
pub const MAX_LOG_LINE_BYTES: usize = 256 * 1024;

/// The most fields of a log line that VictoriaLogs stores.
pub const MAX_LOG_FIELDS: usize = 1_000;

/// How long a token lives when its asker does not say.
pub const DEFAULT_TOKEN_LIFETIME: Duration = Duration::from_secs(60 * 60);

/// The shortest life an issuer gives a token.
pub const MIN_TOKEN_LIFETIME: Duration = Duration::from_secs(60);

/// The longest life an issuer gives a token, and the longest that a relay accepts.
pub const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// How far the clocks of two sides may differ by default.
pub const DEFAULT_LEEWAY: Duration = Duration::from_secs(30);

/// How long a body may make no progress.
pub const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a store may take to answer.
pub const BACKEND_TIMEOUT: Duration = Duration::from_secs(30);
