use std::time::Duration;

use tracing::{info_span, subscriber};
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;
use crate::trace::layer::{current, layer};

async fn stored(coordinator: &Coordinator, client: &Client) -> Vec<Stored> {
    client.flush(Duration::from_secs(1)).await;
    coordinator.written().into_iter().flatten().collect()
}

fn attribute(span: &Stored, key: &str) -> Option<String> {
    let pair = span.attributes.iter().find(|pair| pair.key == key)?;
    Some(format!("{:?}", pair.value.as_ref()?.value.as_ref()?))
}

#[tokio::test(start_paused = true)]
async fn spans_of_tracing_become_spans_of_ours() {
    let coordinator = Coordinator::taking();
    let (client, writer) = coordinator.ready().await;
    subscriber::with_default(tracing_subscriber::registry().with(layer(writer)), || {
        let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let request = info_span!(
            "create volume", trace.entry = "control", traceparent, otel.kind = "server", volume_id = "v-1",
            attempt = 2_u32, later = tracing::field::Empty, debug = ?Some(1)
        );
        request.in_scope(|| {
            request.record("later", true);
            let context = current().unwrap();
            assert_eq!(context.trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
            let inner = info_span!("attach", otel.name = "attach to host", otel.status_code = "error");
            inner.in_scope(|| assert_eq!(current().unwrap().trace_id, context.trace_id));
            // The context is that of the span around, where the inner one is not ours.
            assert_eq!(current(), Some(context));
        });
        let other = info_span!("other", trace.entry = "data-path");
        other.follows_from(&request);
        assert_eq!(current(), None);
    });
    let spans = stored(&coordinator, &client).await;
    assert_eq!(names(&spans), ["attach to host", "other", "create volume"]);
    let [inner, other, request] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((request.kind, request.parent_span_id[1], inner.kind), (2, 0xf0, 1));
    assert_eq!((&inner.parent_span_id, &inner.trace_id), (&request.span_id, &request.trace_id));
    assert_eq!(inner.status.as_ref().unwrap().code, 2);
    assert_eq!((&other.links[0].span_id, other.trace_id != request.trace_id), (&request.span_id, true));
    for (key, value) in [
        ("volume_id", Some("StringValue(\"v-1\")")),
        ("attempt", Some("IntValue(2)")),
        ("later", Some("BoolValue(true)")),
        ("debug", Some("StringValue(\"Some(1)\")")),
        ("traceparent", None),
        ("trace.entry", None),
        ("otel.kind", None),
    ] {
        assert_eq!(attribute(request, key).as_deref(), value, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_entry_is_background_work_and_is_not_recorded() {
    let coordinator = Coordinator::taking();
    let (client, writer) = coordinator.ready().await;
    subscriber::with_default(tracing_subscriber::registry().with(layer(writer)), || {
        let background = info_span!("sweep");
        background.in_scope(|| {
            assert!(!current().unwrap().sampled, "its log records name it all the same");
            drop(info_span!("inner", trace.entry = "control"));
        });
    });
    assert!(stored(&coordinator, &client).await.is_empty());
}
