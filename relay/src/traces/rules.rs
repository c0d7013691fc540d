//! Which attributes of a span may stay.

use serde::Deserialize;
use telemetry_proto::limits::MAX_FIELD_NAME_BYTES;

/// What stays where no list is configured.
pub const DEFAULT_ATTRIBUTES: [&str; 13] = [
    "rpc.system.name",
    "rpc.method",
    "rpc.response.status_code",
    "error.type",
    "http.request.method",
    "http.route",
    "http.response.status_code",
    "workload_id",
    "instance_id",
    "volume_id",
    "command_id",
    "attempt",
    "settlement_code",
];

/// Attributes with this prefix are the relay's own, in upper and lower case.
const RESERVED_PREFIX: &[u8] = b"miren.";

/// The store names an attribute's field `span_attr:KEY` and drops whole spans, while it acknowledges them, if the name
/// of one field is longer than 128 bytes.
const MAX_KEY_BYTES: usize = MAX_FIELD_NAME_BYTES - "span_attr:".len();

/// Which attributes of a span may stay. In a file:
///
/// ```toml
/// attributes = ["http.route", "command_id"]   # replaces the defaults
/// ```
///
/// or `allow_all = true`, which removes reserved attributes only (and keys that the store can't keep). Either way only
/// scalar values stay, and everything else that [the table](super) removes is removed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "TraceRulesSection")]
pub struct TraceRules {
    allowed: Allowed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Allowed {
    All,
    /// Sorted by length, then by bytes: most keys that are not listed fail by their length.
    Listed(Vec<Box<str>>),
}

/// Why rules are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The relay alone sets attributes `miren.*`.
    #[error("{0:?} is reserved: attributes miren.* are set by the relay alone")]
    Reserved(String),
    /// Empty, or longer than the store takes.
    #[error("{0:?} is no key: expected 1 to 118 bytes")]
    Length(String),
    /// Both settings were given.
    #[error("attributes and allow_all exclude each other")]
    Contradiction,
}

impl TraceRules {
    /// Exactly these attributes may stay.
    ///
    /// # Errors
    /// A key that is reserved, empty, or longer than 118 bytes.
    pub fn allow<'k>(keys: impl IntoIterator<Item = &'k str>) -> Result<Self, RuleError> {
        let mut listed: Vec<Box<str>> = keys.into_iter().map(checked).collect::<Result<_, _>>()?;
        listed.sort_unstable_by(|a, b| by_length(a, b));
        listed.dedup();
        Ok(Self { allowed: Allowed::Listed(listed) })
    }

    /// Every attribute may stay that is not reserved.
    #[must_use]
    pub const fn allow_all() -> Self {
        Self { allowed: Allowed::All }
    }

    /// Whether a span's attribute of this key may stay.
    #[must_use]
    pub fn allows(&self, key: &str) -> bool {
        match &self.allowed {
            Allowed::All => !is_reserved(key) && is_storable(key),
            Allowed::Listed(keys) => keys.binary_search_by(|listed| by_length(listed, key)).is_ok(),
        }
    }
}

impl Default for TraceRules {
    fn default() -> Self {
        let mut keys: Vec<Box<str>> = DEFAULT_ATTRIBUTES.into_iter().map(Box::from).collect();
        keys.sort_unstable_by(|a, b| by_length(a, b));
        Self { allowed: Allowed::Listed(keys) }
    }
}

/// Whether the relay alone sets attributes of this key.
pub(super) fn is_reserved(key: &str) -> bool {
    key.as_bytes().get(..RESERVED_PREFIX.len()).is_some_and(|prefix| prefix.eq_ignore_ascii_case(RESERVED_PREFIX))
}

fn is_storable(key: &str) -> bool {
    (1..=MAX_KEY_BYTES).contains(&key.len())
}

fn checked(key: &str) -> Result<Box<str>, RuleError> {
    if is_reserved(key) {
        Err(RuleError::Reserved(key.to_owned()))
    } else if !is_storable(key) {
        Err(RuleError::Length(key.to_owned()))
    } else {
        Ok(key.into())
    }
}

fn by_length(a: &str, b: &str) -> std::cmp::Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceRulesSection {
    #[serde(default)]
    allow_all: bool,
    attributes: Option<Vec<String>>,
}

impl TryFrom<TraceRulesSection> for TraceRules {
    type Error = RuleError;

    fn try_from(section: TraceRulesSection) -> Result<Self, RuleError> {
        match section {
            TraceRulesSection { allow_all: true, attributes: Some(_) } => Err(RuleError::Contradiction),
            TraceRulesSection { allow_all: true, attributes: None } => Ok(Self::allow_all()),
            TraceRulesSection { allow_all: false, attributes: None } => Ok(Self::default()),
            TraceRulesSection { allow_all: false, attributes: Some(keys) } => {
                Self::allow(keys.iter().map(String::as_str))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<TraceRules, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn by_default_the_listed_attributes_may_stay_and_no_others() {
        let rules = parse("").unwrap();
        assert_eq!(rules, TraceRules::default());
        assert_eq!(rules, TraceRules::allow(DEFAULT_ATTRIBUTES).unwrap());
        assert!(DEFAULT_ATTRIBUTES.iter().all(|key| rules.allows(key)));
        for other in ["", "http.rout", "http.routf", "http.route ", "HTTP.ROUTE", "url.path", "miren.runner.id"] {
            assert!(!rules.allows(other), "{other}");
        }
    }

    #[test]
    fn a_list_replaces_the_defaults() {
        let rules = parse("attributes = ['b', 'a.long.one', 'a', 'b']").unwrap();
        assert!(["a", "b", "a.long.one"].iter().all(|key| rules.allows(key)));
        assert!(!rules.allows("http.route") && !rules.allows("c"));
        assert!(!parse("attributes = []").unwrap().allows("http.route"));
    }

    #[test]
    fn allow_all_removes_what_is_reserved_or_can_not_be_stored() {
        let rules = parse("allow_all = true").unwrap();
        assert!(rules.allows("url.path") && rules.allows("mirens") && rules.allows(&"k".repeat(118)));
        for key in ["miren.runner.id", "miren.", "Miren.X", "", &"k".repeat(119)] {
            assert!(!rules.allows(key), "{key}");
        }
    }

    #[test]
    fn rules_that_can_not_be_meant_are_refused() {
        for (text, says) in [
            ("attributes = ['miren.runner.id']", "reserved"),
            ("attributes = ['']", "no key"),
            (&format!("attributes = ['{}']", "k".repeat(119)), "no key"),
            ("allow_all = true\nattributes = ['a']", "exclude"),
            ("allow_al = true", "unknown field"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
