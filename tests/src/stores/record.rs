//! What a store gives back: samples, log lines and spans, whichever store it is.

use std::collections::BTreeMap;

/// A stored sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The metric name.
    pub name: String,
    /// The labels without the name.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
    /// Milliseconds since 1970.
    pub timestamp_ms: i64,
}

impl Sample {
    /// The value of a label, empty if there is none, which to a store is the same.
    #[must_use]
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// A stored log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// The fields by which the line's stream is told from others.
    pub stream: BTreeMap<String, String>,
    /// All fields, `_msg` and `_time` (RFC 3339) among them, without those that the store adds.
    pub fields: BTreeMap<String, String>,
}

/// A stored span.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredSpan {
    /// The trace, in hex.
    pub trace_id: String,
    /// The span, in hex.
    pub span_id: String,
    /// The span above it, in hex; empty if there is none.
    pub parent_id: String,
    /// Its name.
    pub name: String,
    /// When it began, in microseconds since 1970.
    pub start_us: u64,
    /// How long it took, in microseconds.
    pub duration_us: u64,
    /// Trace and span of each link.
    pub links: Vec<(String, String)>,
    /// Its attributes, and what the store makes tags of: kind, status, trace state, scope.
    pub tags: BTreeMap<String, String>,
    /// How many events it has.
    pub events: usize,
    /// The resource's `service.name`.
    pub service: String,
    /// The other attributes of the resource.
    pub process_tags: BTreeMap<String, String>,
}

impl StoredSpan {
    /// The value of a tag, empty if there is none.
    #[must_use]
    pub fn tag(&self, name: &str) -> &str {
        self.tags.get(name).map_or("", String::as_str)
    }

    /// The runner that it is filed under.
    #[must_use]
    pub fn runner(&self) -> &str {
        self.process_tags.get("miren.runner.id").map_or("", String::as_str)
    }
}

impl LogLine {
    /// The value of a field, empty if there is none, which to a store is the same.
    #[must_use]
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// From the fields that VictoriaLogs answers with, `_stream` among them.
    pub(super) fn from_fields(mut fields: BTreeMap<String, String>) -> Self {
        fields.remove("_stream_id");
        let stream = fields.remove("_stream").unwrap_or_default();
        Self { stream: parse_stream(&stream), fields }
    }
}

/// Reads `{a="b",c="d"}`, whose values are quoted like labels of the exposition text.
fn parse_stream(stream: &str) -> BTreeMap<String, String> {
    let line = format!("stream{stream} 0");
    let point = telemetry_proto::exposition::parse_line(line.as_bytes()).ok().flatten();
    let labels = point.map(|point| point.into_owned().labels).unwrap_or_default();
    labels.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
}
