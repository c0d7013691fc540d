//! The `tracing` layer while traces are switched on and off. Alone in its program: what is remembered beside each `span!` is
//! shared by all subscribers of a process.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use telemetry_runner_client::trace::layer::{current, layer};
use telemetry_runner_client::{Client, SendError, Transport};
use tokio::sync::watch;
use tracing_subscriber::layer::SubscriberExt as _;

const ON: &str = r#""traces"], "traces": {"sample_ratio": 1.0}"#;
const OFF: &str = "]";

/// Answers with the policy alone.
struct Coordinator(watch::Receiver<&'static str>);

impl Transport for Coordinator {
    fn send(&self, _: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, SendError>> {
        let signals = *self.0.borrow();
        let policy = format!(
            r#"{{"signals": [{signals}, "encodings": ["identity"], "server_time": "2030-01-01T00:00:00Z",
            "limits": {{"max_body_bytes": 1, "max_decoded_bytes": 1}}}}"#
        );
        std::future::ready(Ok(Response::new(policy.into()))).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_span_of_tracing_is_not_even_made_while_traces_are_off_and_is_as_soon_as_they_are_on() {
    let (switch, policy) = watch::channel(OFF);
    let client = Client::builder().transport(Arc::new(Coordinator(policy))).build().unwrap();
    // One subscriber for the life of the process, and one place in the code. It is no one's default but in this closure.
    let subscriber = tracing::Dispatch::new(tracing_subscriber::registry().with(layer(client.spans())));
    let span = || {
        tracing::dispatcher::with_default(&subscriber, || {
            let span = tracing::info_span!("request", trace.entry = "control");
            span.in_scope(|| (span.is_disabled(), current().map(|context| context.sampled)))
        })
    };
    assert_eq!(span(), (true, None));
    for _ in 0..2 {
        for (now, expected) in [(ON, (false, Some(true))), (OFF, (true, None))] {
            switch.send_replace(now);
            tokio::time::sleep(Duration::from_secs(5 * 60)).await;
            assert_eq!(span(), expected, "{now}");
        }
    }
}
