//! What was removed, in numbers.

/// What a removed piece was. The key and the value themselves are told to nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KeyClass {
    /// An attribute of a span whose key is not on the list.
    Attribute,
    /// An attribute `miren.*`, but for the verified runner's own ID at its place.
    Reserved,
    /// An attribute whose key may stay, but whose value is no scalar.
    ValueType,
    /// An event.
    Event,
    /// A link that points nowhere.
    Link,
    /// An attribute of a link.
    LinkAttribute,
    /// A status message.
    Status,
    /// An attribute of a resource, an entity, or a resource's schema URL.
    Resource,
    /// An instrumentation scope, or its schema URL.
    Scope,
    /// The trace state of a span or link.
    TraceState,
    /// A field, an enum's value or a flag that OTLP does not know.
    Unknown,
    /// The end of a name or value that was too long.
    Truncated,
}

impl KeyClass {
    /// Every class, in the order of declaration.
    pub const ALL: [Self; 12] = [
        Self::Attribute,
        Self::Reserved,
        Self::ValueType,
        Self::Event,
        Self::Link,
        Self::LinkAttribute,
        Self::Status,
        Self::Resource,
        Self::Scope,
        Self::TraceState,
        Self::Unknown,
        Self::Truncated,
    ];

    /// The value of a metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attribute => "attribute",
            Self::Reserved => "reserved",
            Self::ValueType => "value-type",
            Self::Event => "event",
            Self::Link => "link",
            Self::LinkAttribute => "link-attribute",
            Self::Status => "status",
            Self::Resource => "resource",
            Self::Scope => "scope",
            Self::TraceState => "trace-state",
            Self::Unknown => "unknown",
            Self::Truncated => "truncated",
        }
    }
}

/// How many pieces of each class were removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemovedCounts([u64; KeyClass::ALL.len()]);

impl RemovedCounts {
    /// The number of one class.
    #[must_use]
    pub const fn get(&self, class: KeyClass) -> u64 {
        self.0[class as usize]
    }

    /// The classes of which anything was removed, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (KeyClass, u64)> + '_ {
        KeyClass::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0)
    }

    /// Whether nothing was removed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub(super) const fn add(&mut self, class: KeyClass) {
        self.0[class as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_is_counted_by_itself() {
        for (at, class) in KeyClass::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, at);
            let mut counts = RemovedCounts::default();
            assert!(counts.is_empty());
            counts.add(class);
            assert_eq!(counts.iter().collect::<Vec<_>>(), [(class, 1)]);
            assert_eq!(counts.get(class), 1);
        }
    }
}
