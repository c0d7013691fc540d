//! Header names of the contract.

use http::HeaderName;

/// The workload token. Not `Authorization`: on a coordinator whose authenticator tries that header first, a token of
/// ours there would turn a valid mutual-TLS request into a 401.
pub const WORKLOAD_TOKEN: HeaderName = HeaderName::from_static("miren-workload-token");

/// Marks a metrics batch as the runner's own series; the one value is [`STREAM_OPERATIONAL`].
pub const TELEMETRY_STREAM: HeaderName = HeaderName::from_static("miren-telemetry-stream");

/// The value of [`TELEMETRY_STREAM`] for a runner's own series.
pub const STREAM_OPERATIONAL: &str = "operational";

/// A ULID chosen once per batch and kept over retries.
pub const BATCH_ID: HeaderName = HeaderName::from_static("miren-batch-id");

/// What the response means for the batch: a [`Verdict`](crate::Verdict).
pub const VERDICT: HeaderName = HeaderName::from_static("miren-telemetry-verdict");

/// Why a request was refused: a [`Reason`](crate::Reason).
pub const REASON: HeaderName = HeaderName::from_static("miren-telemetry-reason");
