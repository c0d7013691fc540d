//! Traces as VictoriaTraces tells them: the answer of `/select/jaeger/api/traces/ID`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::StoredSpan;

/// Where a trace is read, before its ID.
pub(super) const TRACES: &str = "/select/jaeger/api/traces/";

const PARENT: &str = "CHILD_OF";
const LINK: &str = "FOLLOWS_FROM";

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Answer {
    data: Vec<Trace>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Trace {
    #[serde(rename = "traceID")]
    trace_id: String,
    spans: Vec<Span>,
    processes: BTreeMap<String, Process>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Span {
    #[serde(rename = "traceID")]
    trace_id: String,
    #[serde(rename = "spanID")]
    span_id: String,
    operation_name: String,
    references: Vec<Reference>,
    /// Microseconds.
    start_time: u64,
    duration: u64,
    tags: Vec<Tag>,
    logs: Vec<serde_json::Value>,
    #[serde(rename = "processID")]
    process_id: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reference {
    ref_type: String,
    #[serde(rename = "traceID")]
    trace_id: String,
    #[serde(rename = "spanID")]
    span_id: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Process {
    service_name: String,
    tags: Vec<Tag>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Tag {
    key: String,
    value: String,
}

impl Answer {
    /// The answer for the spans of one trace.
    pub(super) fn of(spans: &[StoredSpan]) -> Self {
        let Some(first) = spans.first() else { return Self::default() };
        let mut trace = Trace { trace_id: first.trace_id.clone(), ..Trace::default() };
        for (number, span) in spans.iter().enumerate() {
            let process_id = format!("p{number}");
            let process = Process { service_name: span.service.clone(), tags: tags(&span.process_tags) };
            trace.processes.insert(process_id.clone(), process);
            let parent = (!span.parent_id.is_empty()).then_some((PARENT, &span.trace_id, &span.parent_id));
            let links = span.links.iter().map(|(trace, span)| (LINK, trace, span));
            trace.spans.push(Span {
                trace_id: span.trace_id.clone(),
                span_id: span.span_id.clone(),
                operation_name: span.name.clone(),
                references: parent.into_iter().chain(links).map(Reference::of).collect(),
                start_time: span.start_us,
                duration: span.duration_us,
                tags: tags(&span.tags),
                logs: Vec::new(),
                process_id,
            });
        }
        Self { data: vec![trace] }
    }

    /// The spans of the answer, in the order in which they began.
    pub(super) fn into_spans(self) -> Vec<StoredSpan> {
        let mut spans: Vec<StoredSpan> = self.data.into_iter().flat_map(Trace::into_spans).collect();
        spans.sort_by_key(|span| span.start_us);
        spans
    }
}

impl Trace {
    fn into_spans(self) -> impl Iterator<Item = StoredSpan> {
        let Self { spans, processes, .. } = self;
        spans.into_iter().map(move |span| {
            let (parents, links): (Vec<_>, Vec<_>) = span.references.into_iter().partition(|r| r.ref_type == PARENT);
            let process = processes.get(&span.process_id);
            StoredSpan {
                trace_id: span.trace_id,
                span_id: span.span_id,
                parent_id: parents.into_iter().next().map(|parent| parent.span_id).unwrap_or_default(),
                name: span.operation_name,
                start_us: span.start_time,
                duration_us: span.duration,
                links: links.into_iter().map(|link| (link.trace_id, link.span_id)).collect(),
                tags: span.tags.into_iter().map(|tag| (tag.key, tag.value)).collect(),
                events: span.logs.len(),
                service: process.map(|process| process.service_name.clone()).unwrap_or_default(),
                process_tags: process
                    .map(|process| process.tags.iter().map(|tag| (tag.key.clone(), tag.value.clone())).collect())
                    .unwrap_or_default(),
            }
        })
    }
}

impl Reference {
    fn of((ref_type, trace_id, span_id): (&str, &String, &String)) -> Self {
        Self { ref_type: ref_type.to_owned(), trace_id: trace_id.clone(), span_id: span_id.clone() }
    }
}

fn tags(tags: &BTreeMap<String, String>) -> Vec<Tag> {
    tags.iter().map(|(key, value)| Tag { key: key.clone(), value: value.clone() }).collect()
}
