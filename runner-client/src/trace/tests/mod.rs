//! Spans over a coordinator that is played.

mod delivery;
mod journey;
#[cfg(feature = "tracing-layer")]
mod layer;
#[cfg(feature = "opentelemetry")]
mod opentelemetry;
mod policy;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span as Stored;
use parking_lot::Mutex;
use prost::Message as _;
use telemetry_proto::{Signal, header};
use tokio::sync::watch;

use super::{Entry, SpanWriter};
use crate::connection::{ConnectError, SendError, Transport};
use crate::testing::{Answer, FixedTokens, TestClock};
use crate::{Client, ClientBuilder, DropReason, Tally};

/// What a coordinator says that takes all data-path traces.
const ALL: &str = r#""metrics","logs","traces"], "traces": {"sample_ratio": 1.0}"#;

/// A coordinator: has a policy, and answers writes by a script.
struct Coordinator {
    /// What is beyond `"signals": [`; a number is a status instead.
    policy: Mutex<String>,
    asked: watch::Sender<usize>,
    play: Mutex<Box<dyn FnMut(usize) -> Answer + Send>>,
    writes: watch::Sender<Vec<Vec<Stored>>>,
}

impl Coordinator {
    fn new(policy: &str, play: impl FnMut(usize) -> Answer + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            policy: Mutex::new(policy.to_owned()),
            asked: watch::channel(0).0,
            play: Mutex::new(Box::new(play)),
            writes: watch::channel(Vec::new()).0,
        })
    }

    /// One that takes everything.
    fn taking() -> Arc<Self> {
        Self::new(ALL, |_| Answer::delivered())
    }

    /// A client of it, before it has asked for anything.
    fn client(self: &Arc<Self>) -> ClientBuilder {
        Client::builder()
            .transport(Arc::clone(self) as Arc<dyn Transport>)
            .token_source(Arc::<FixedTokens>::default())
            .trace_token_source(Arc::<FixedTokens>::default())
            .clock(Arc::new(TestClock::new()))
    }

    /// A client whose spans are on.
    async fn ready(self: &Arc<Self>) -> (Client, SpanWriter) {
        let client = self.client().build().unwrap();
        let writer = client.spans();
        enabled(&writer).await;
        (client, writer)
    }

    /// The batches so far, as soon as there are this many.
    async fn wrote(&self, batches: usize) -> Vec<Vec<Stored>> {
        let mut writes = self.writes.subscribe();
        let waiting = writes.wait_for(|writes| writes.len() >= batches);
        tokio::time::timeout(Duration::from_secs(100_000), waiting).await.expect("no such batch came").unwrap().clone()
    }

    fn written(&self) -> Vec<Vec<Stored>> {
        self.writes.borrow().clone()
    }

    /// Waits until the policy was asked for this often.
    async fn asked(&self, times: usize) {
        let mut asked = self.asked.subscribe();
        let waiting = asked.wait_for(|asked| *asked >= times);
        tokio::time::timeout(Duration::from_secs(100_000), waiting).await.expect("nobody asked").unwrap();
    }

    fn answer_policy(&self) -> Response<Bytes> {
        self.asked.send_modify(|asked| *asked += 1);
        let policy = self.policy.lock();
        if let Ok(status) = policy.parse::<u16>() {
            return Response::builder().status(status).body(Bytes::new()).unwrap();
        }
        let json = format!(
            r#"{{"signals": [{policy}, "encodings": ["identity"], "server_time": "2030-01-01T00:00:00Z",
                "limits": {{"max_body_bytes": 1, "max_decoded_bytes": 1}}}}"#
        );
        Response::new(json.into())
    }
}

impl Transport for Coordinator {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, SendError>> {
        async move {
            if request.method() == Method::GET {
                assert_eq!(request.uri().path(), "/_telemetry/policy");
                assert!(!request.headers().contains_key(header::WORKLOAD_TOKEN), "the certificate is enough");
                return Ok(self.answer_policy());
            }
            assert_eq!(request.uri().path(), Signal::Traces.write_path());
            assert_eq!(request.headers()["content-type"], "application/x-protobuf");
            let spans = ExportTraceServiceRequest::decode(request.into_body()).unwrap();
            let [resource] = <[_; 1]>::try_from(spans.resource_spans).unwrap();
            let [scope] = <[_; 1]>::try_from(resource.scope_spans).unwrap();
            let number = self.writes.borrow().len();
            self.writes.send_modify(|writes| writes.push(scope.spans));
            let answer = (self.play.lock())(number);
            match answer {
                Answer::Respond(status, headers) => {
                    let mut response = Response::builder().status(status);
                    for (name, value) in headers {
                        response = response.header(name, value);
                    }
                    Ok(response.body(Bytes::new()).unwrap())
                }
                Answer::NotSent => Err(SendError::NotSent(ConnectError::Timeout)),
                Answer::Lost => Err(SendError::Lost(Arc::new(std::io::Error::other("lost")))),
                Answer::Hang => std::future::pending().await,
            }
        }
        .boxed()
    }
}

/// Waits until the policy has come and is on.
async fn enabled(writer: &SpanWriter) {
    tokio::time::timeout(Duration::from_secs(1_000), async {
        while !writer.is_enabled() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("traces are not switched on");
}

/// Writes spans `s0`, `s1`, ...
fn write(writer: &SpanWriter, numbers: std::ops::Range<u32>) {
    for number in numbers {
        writer.entry(Entry::Control, format!("s{number}"), None).end();
    }
}

fn names(spans: &[Stored]) -> Vec<String> {
    spans.iter().map(|span| span.name.clone()).collect()
}

fn tally(client: &Client) -> Tally {
    let tally = client.tally(Signal::Traces);
    assert_eq!(tally.written, tally.delivered + tally.dropped_in_all() + tally.waiting, "{tally:?}");
    tally
}

/// What was dropped: for a full queue, unreachable, for want of a credential.
fn drops(client: &Client) -> [u64; 3] {
    [DropReason::QueueFull, DropReason::Unreachable, DropReason::NoCredential]
        .map(|reason| tally(client).dropped(reason))
}
