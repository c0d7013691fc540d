//! What goes upstream with a batch: path and arguments, built from constants and the principal. Nothing of a request's own
//! reaches a store but its body and, on the logs route, two validated field names.

use std::borrow::Cow;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use telemetry_proto::Signal;

use super::TenantPin;
use crate::gate::Author;
use crate::intake::LogFields;

/// The label and field that name the verified runner.
pub(crate) const RUNNER_LABEL: &str = "miren_runner";

/// The label that names the tenant in a store that knows no tenants.
const TENANT_LABEL: &str = "miren_tenant";

/// What stays as it is in an argument: RFC 3986 unreserved characters, and the comma that the stores split lists on.
pub(super) const ARGUMENT: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b',');

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
    prefix: String,
    form: Form,
    attribution: Attribution,
    /// The value of `_stream_fields`.
    stream_fields: String,
}

/// How a store keeps tenants apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// By a label that is pinned: VictoriaMetrics as a single node knows no tenants.
    Label,
    /// By the account in the path: a VictoriaMetrics cluster.
    Path,
    /// By the account in two headers: VictoriaLogs and VictoriaTraces.
    Headers,
}

impl Form {
    pub(super) const fn of(signal: Signal, cluster: bool) -> Self {
        match signal {
            Signal::Metrics if cluster => Self::Path,
            Signal::Metrics => Self::Label,
            Signal::Logs | Signal::Traces => Self::Headers,
        }
    }
}

/// Whether a store for `signal` tells tenants apart by their accounts.
pub(crate) const fn needs_account(signal: Signal, cluster: bool) -> bool {
    !matches!(Form::of(signal, cluster), Form::Label)
}

impl Target {
    /// The target below `prefix`, the store's own path prefix.
    #[must_use]
    pub fn new(signal: Signal, prefix: &str, attribution: Attribution, stream_fields: &LogStreamFields) -> Self {
        let stream_fields = utf8_percent_encode(&stream_fields.0.join(","), ARGUMENT).to_string();
        Self { signal, prefix: prefix.to_owned(), form: Form::of(signal, false), attribution, stream_fields }
    }

    /// The same in a cluster, where VictoriaMetrics takes the account from the path.
    #[must_use]
    pub const fn in_cluster(mut self, cluster: bool) -> Self {
        self.form = Form::of(self.signal, cluster);
        self
    }

    /// Path and query for a batch of `runner`, which belongs to `tenant` where tenants are configured. `None` when the path
    /// needs an account and there is none: there is no default that would not be someone else's.
    ///
    /// A runner's ID needs no escaping: its charset sees to that.
    #[must_use]
    pub fn path_and_query(&self, tenant: Option<&TenantPin>, author: &Author, fields: &LogFields) -> Option<String> {
        let mut target = Arguments::after(self.path(tenant)?);
        if let (Form::Label, Some(tenant)) = (self.form, tenant) {
            target.push("extra_label", &[TENANT_LABEL, "%3D", &tenant.label]);
        }
        match (self.signal, self.attribution) {
            // Of two equal labels the last wins in the store, and nothing of the runner's can follow this one.
            (Signal::Metrics, Attribution::Pinned) => {
                target.push("extra_label", &[RUNNER_LABEL, "%3D", author.label()]);
            }
            (Signal::Logs, Attribution::Pinned) => {
                target.push("extra_fields", &[RUNNER_LABEL, "%3D", author.label()]);
                target.push("_stream_fields", &[&self.stream_fields]);
            }
            (Signal::Traces, _) | (_, Attribution::Off) => {}
        }
        for (name, value) in [("_msg_field", &fields.message), ("_time_field", &fields.time)] {
            if let Some(value) = value {
                target.push(name, &[&Cow::from(utf8_percent_encode(value, ARGUMENT))]);
            }
        }
        Some(target.text)
    }

    fn path(&self, tenant: Option<&TenantPin>) -> Option<String> {
        // Room for what is put behind it, but for long names.
        let mut path = String::with_capacity(self.prefix.len() + self.stream_fields.len() + 256);
        path.push_str(&self.prefix);
        if self.form == Form::Path {
            path.extend(["/insert/", tenant?.account_path()?, "/prometheus"]);
        }
        path.push_str(self.signal.store_path());
        Some(path)
    }
}

/// A path with arguments, which are escaped already.
struct Arguments {
    text: String,
    separator: char,
}

impl Arguments {
    const fn after(path: String) -> Self {
        Self { text: path, separator: '?' }
    }

    fn push(&mut self, name: &str, value: &[&str]) {
        self.text.push(self.separator);
        self.text.push_str(name);
        self.text.push('=');
        self.text.extend(value.iter().copied());
        self.separator = '&';
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::Account;
    use crate::gate::fixtures::author;

    fn target(signal: Signal, attribution: Attribution) -> String {
        let runner = author("r7");
        Target::new(signal, "/p", attribution, &LogStreamFields::default())
            .path_and_query(None, &runner, &LogFields::default())
            .unwrap()
    }

    fn target_of(tenant: &TenantPin, signal: Signal, cluster: bool, attribution: Attribution) -> Option<String> {
        let runner = author("r7");
        Target::new(signal, "", attribution, &LogStreamFields::default()).in_cluster(cluster).path_and_query(
            Some(tenant),
            &runner,
            &LogFields::default(),
        )
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
    fn a_tenant_is_a_path_in_a_cluster_and_a_label_before_the_runners_elsewhere() {
        let tenant = TenantPin::new("acme", Some(Account { account: 12, project: 3 }));
        assert_eq!(
            target_of(&tenant, Signal::Metrics, true, Attribution::Pinned).unwrap(),
            "/insert/12:3/prometheus/api/v1/import/prometheus?extra_label=miren_runner%3Dr7"
        );
        assert_eq!(
            target_of(&tenant, Signal::Metrics, false, Attribution::Pinned).unwrap(),
            "/api/v1/import/prometheus?extra_label=miren_tenant%3Dacme&extra_label=miren_runner%3Dr7"
        );
        // Without attribution it is still the tenant's.
        assert_eq!(
            target_of(&tenant, Signal::Metrics, false, Attribution::Off).unwrap(),
            "/api/v1/import/prometheus?extra_label=miren_tenant%3Dacme"
        );
        let plain = target(Signal::Logs, Attribution::Pinned);
        assert_eq!(target_of(&tenant, Signal::Logs, false, Attribution::Pinned).unwrap(), plain.replacen("/p", "", 1));
    }

    #[test]
    fn without_an_account_nothing_goes_to_a_cluster() {
        let nameless = TenantPin::new("acme", None);
        assert_eq!(target_of(&nameless, Signal::Metrics, true, Attribution::Pinned), None);
        let cluster =
            Target::new(Signal::Metrics, "", Attribution::Pinned, &LogStreamFields::default()).in_cluster(true);
        assert_eq!(cluster.path_and_query(None, &author("r7"), &LogFields::default()), None);
    }

    #[test]
    fn field_names_are_escaped() {
        let fields = LogFields { message: Some("a&extra_fields=x=y".into()), time: Some("@t +".into()) };
        let runner = author("r7");
        let stream_fields = LogStreamFields::default();
        let pinned = Target::new(Signal::Logs, "", Attribution::Pinned, &stream_fields);
        assert!(
            pinned
                .path_and_query(None, &runner, &fields)
                .unwrap()
                .ends_with("stream&_msg_field=a%26extra_fields%3Dx%3Dy&_time_field=%40t%20%2B")
        );
        let off = Target::new(Signal::Logs, "", Attribution::Off, &stream_fields);
        assert!(off.path_and_query(None, &runner, &fields).unwrap().starts_with("/insert/jsonline?_msg_field="));
    }

    #[test]
    fn a_stream_field_that_would_split_is_refused() {
        assert!("miren_runner,,x".parse::<LogStreamFields>().is_err());
        assert!(LogStreamFields::try_from(vec!["a,b".to_owned()]).is_err());
    }
}
