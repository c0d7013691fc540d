//! What goes upstream with a batch: path and arguments, built from constants and the principal. Nothing of a request's own
//! reaches a store but its body and, on the logs route, two validated field names.

use std::fmt::Write;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use telemetry_proto::{RunnerId, Signal};

use crate::intake::LogFields;

/// The label and field that name the verified runner.
const RUNNER_LABEL: &str = "miren_runner";

/// What stays as it is in an argument: RFC 3986 unreserved characters, and the comma that the stores split lists on.
const ARGUMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b',');

/// Whether batches are filed under the verified runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attribution {
    /// The store is told to overwrite the runner's label or field with the verified runner.
    #[default]
    Pinned,
    /// The plain bytes and no arguments, for installations that must keep their old series.
    Off,
}

/// The fields that identify a log stream, in order.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct LogStreamFields(Vec<String>);

impl Default for LogStreamFields {
    fn default() -> Self {
        Self([RUNNER_LABEL, "entity", "stream"].map(str::to_owned).to_vec())
    }
}

/// A field name that the list can't hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no field name for a log stream: it is empty, or holds a comma or a control character")]
pub struct StreamFieldsError(String);

impl TryFrom<Vec<String>> for LogStreamFields {
    type Error = StreamFieldsError;

    fn try_from(names: Vec<String>) -> Result<Self, Self::Error> {
        match names.iter().find(|name| name.is_empty() || name.contains(|c: char| c == ',' || c.is_control())) {
            Some(bad) => Err(StreamFieldsError(bad.clone())),
            None => Ok(Self(names)),
        }
    }
}

impl FromStr for LogStreamFields {
    type Err = StreamFieldsError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.split(',').map(str::to_owned).collect::<Vec<_>>().try_into()
    }
}

/// Builds the path and query of a store for one signal.
#[derive(Debug, Clone)]
pub struct Target {
    signal: Signal,
    /// Everything up to the runner's ID.
    before_runner: String,
    /// Everything after it.
    after_runner: String,
    attribution: Attribution,
}

impl Target {
    /// The target below `prefix`, the store's own path prefix.
    #[must_use]
    pub fn new(signal: Signal, prefix: &str, attribution: Attribution, stream_fields: &LogStreamFields) -> Self {
        let path = format!("{prefix}{}", signal.store_path());
        let (before_runner, after_runner) = match (signal, attribution) {
            // Of two equal labels the last wins in the store, and nothing of the runner's can follow this one.
            (Signal::Metrics, Attribution::Pinned) => (format!("{path}?extra_label={RUNNER_LABEL}%3D"), String::new()),
            (Signal::Logs, Attribution::Pinned) => {
                let fields = stream_fields.0.join(",");
                let fields = utf8_percent_encode(&fields, ARGUMENT);
                (format!("{path}?extra_fields={RUNNER_LABEL}%3D"), format!("&_stream_fields={fields}"))
            }
            (Signal::Traces, _) | (_, Attribution::Off) => (path, String::new()),
        };
        Self { signal, before_runner, after_runner, attribution }
    }

    /// Path and query for a batch of `runner`. A runner's ID needs no escaping: its charset sees to that.
    #[must_use]
    pub fn path_and_query(&self, runner: &RunnerId, fields: &LogFields) -> String {
        let mut target =
            String::with_capacity(self.before_runner.len() + runner.as_str().len() + self.after_runner.len());
        target.push_str(&self.before_runner);
        if self.attribution == Attribution::Pinned && self.signal != Signal::Traces {
            target.push_str(runner.as_str());
        }
        target.push_str(&self.after_runner);
        for (name, value) in [("_msg_field", &fields.message), ("_time_field", &fields.time)] {
            if let Some(value) = value {
                let separator = if target.contains('?') { '&' } else { '?' };
                // Writing to a String can't fail.
                let _ = write!(target, "{separator}{name}={}", utf8_percent_encode(value, ARGUMENT));
            }
        }
        target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(signal: Signal, attribution: Attribution) -> String {
        let runner = RunnerId::new("r7").unwrap();
        Target::new(signal, "/p", attribution, &LogStreamFields::default())
            .path_and_query(&runner, &LogFields::default())
    }

    #[test]
    fn the_runner_is_pinned() {
        assert_eq!(
            target(Signal::Metrics, Attribution::Pinned),
            "/p/api/v1/import/prometheus?extra_label=miren_runner%3Dr7"
        );
        assert_eq!(
            target(Signal::Logs, Attribution::Pinned),
            "/p/insert/jsonline?extra_fields=miren_runner%3Dr7&_stream_fields=miren_runner,entity,stream"
        );
        assert_eq!(target(Signal::Traces, Attribution::Pinned), "/p/insert/opentelemetry/v1/traces");
    }

    #[test]
    fn without_attribution_no_argument_goes_upstream() {
        assert_eq!(target(Signal::Metrics, Attribution::Off), "/p/api/v1/import/prometheus");
        assert_eq!(target(Signal::Logs, Attribution::Off), "/p/insert/jsonline");
    }

    #[test]
    fn field_names_are_escaped() {
        let fields = LogFields { message: Some("a&extra_fields=x=y".into()), time: Some("@t +".into()) };
        let runner = RunnerId::new("r7").unwrap();
        let stream_fields = LogStreamFields::default();
        let pinned = Target::new(Signal::Logs, "", Attribution::Pinned, &stream_fields);
        assert!(
            pinned
                .path_and_query(&runner, &fields)
                .ends_with("stream&_msg_field=a%26extra_fields%3Dx%3Dy&_time_field=%40t%20%2B")
        );
        let off = Target::new(Signal::Logs, "", Attribution::Off, &stream_fields);
        assert!(off.path_and_query(&runner, &fields).starts_with("/insert/jsonline?_msg_field="));
    }

    #[test]
    fn a_stream_field_that_would_split_is_refused() {
        assert!("miren_runner,,x".parse::<LogStreamFields>().is_err());
        assert!(LogStreamFields::try_from(vec!["a,b".to_owned()]).is_err());
    }
}
