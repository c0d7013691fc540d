//! One sample.

use std::borrow::Cow;

/// Name and value of a label.
pub type Label<'a> = (Cow<'a, str>, Cow<'a, str>);

/// One sample of one series. Borrows from the body that it was parsed from, or owns its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Point<'a> {
    /// The metric name.
    pub name: Cow<'a, str>,
    /// Names and values of the labels. The parser sorts them by name and leaves each name once.
    pub labels: Vec<Label<'a>>,
    /// The value; may be NaN or infinite.
    pub value: f64,
    /// Milliseconds since 1970. `None`: the store takes the moment of arrival.
    pub timestamp_ms: Option<i64>,
}

impl<'a> Point<'a> {
    /// A sample without labels and timestamp.
    #[must_use]
    pub fn new(name: impl Into<Cow<'a, str>>, value: f64) -> Self {
        Self { name: name.into(), labels: Vec::new(), value, timestamp_ms: None }
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.labels.push((name.into(), value.into()));
        self
    }

    /// Sets the timestamp, in milliseconds since 1970.
    #[must_use]
    pub const fn at(mut self, timestamp_ms: i64) -> Self {
        self.timestamp_ms = Some(timestamp_ms);
        self
    }

    /// The value of a label. Of two equal names the last wins.
    #[must_use]
    pub fn get(&self, label: &str) -> Option<&str> {
        self.labels.iter().rev().find(|(name, _)| name == label).map(|(_, value)| value.as_ref())
    }

    /// The same sample with text of its own.
    #[must_use]
    pub fn into_owned(self) -> Point<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        Point {
            name: own(self.name),
            labels: self.labels.into_iter().map(|(name, value)| (own(name), own(value))).collect(),
            value: self.value,
            timestamp_ms: self.timestamp_ms,
        }
    }
}
