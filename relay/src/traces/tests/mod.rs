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
use telemetry_proto::RunnerId;

use super::{RewriteError, Rewritten, TraceLimits, TraceRules, rewrite};

const RUNNER: &str = "r7";

fn rewrite_bytes(body: &[u8]) -> Result<Rewritten, RewriteError> {
    rewrite(body, &TraceRules::default(), &RunnerId::new(RUNNER).unwrap(), &TraceLimits::default())
}

fn rewrite_request(request: &ExportTraceServiceRequest) -> (ExportTraceServiceRequest, Rewritten) {
    let rewritten = rewrite_bytes(&request.encode_to_vec()).unwrap();
    (ExportTraceServiceRequest::decode(rewritten.body.clone()).unwrap(), rewritten)
}
