//! What leaves the relay, checked with the generated types.

mod attribution;
mod bounds;
mod canary;
mod malformed;
mod model;
mod properties;
mod sample;
mod scramble;
mod selection;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use telemetry_proto::{RunnerId, WriterName};

use super::{RewriteError, Rewritten, TraceLimits, TraceRules, rewrite};
use crate::gate::Author;

const RUNNER: &str = "r7";

fn author(runner: &str) -> Author {
    RunnerId::new(runner).unwrap().into()
}

/// The author with the longest label that there can be.
fn longest_author() -> Author {
    WriterName::new(&"w".repeat(telemetry_proto::limits::MAX_RUNNER_ID_BYTES)).unwrap().into()
}

fn rewrite_bytes(body: &[u8]) -> Result<Rewritten, RewriteError> {
    rewrite(body, &TraceRules::default(), &author(RUNNER), &TraceLimits::default())
}

fn rewrite_request(request: &ExportTraceServiceRequest) -> (ExportTraceServiceRequest, Rewritten) {
    let rewritten = rewrite_bytes(&request.encode_to_vec()).unwrap();
    (ExportTraceServiceRequest::decode(rewritten.body.clone()).unwrap(), rewritten)
}
