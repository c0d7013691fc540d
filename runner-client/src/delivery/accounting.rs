//! What became of every item.

use std::fmt;

/// Why an item was dropped: the label `reason` of `telemetry_dropped_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DropReason {
    /// Memory was used up, and this was the oldest; of spans, the newest.
    QueueFull,
    /// The cap of the spool or its disk was reached, and this was the oldest, or the spool could not be written.
    SpoolFull,
    /// The relay will never accept the batch.
    Rejected,
    /// It waited for longer than the age limit.
    TooOld,
    /// It ran into a limit of age or space while the runner had no token, or had no right to write.
    NoCredential,
    /// It is larger than anything that the store takes.
    Oversize,
    /// The client was closed before it could be delivered.
    Shutdown,
    /// The coordinator or the store was away, and the item is of a kind that does not wait for their return.
    Unreachable,
    /// Its bytes in the spool are no longer what was written.
    Damaged,
    /// Its value is NaN, which VictoriaMetrics skips while it answers 204.
    NotANumber,
    /// It is Prometheus' mark of a series that has ended: a NaN of its own, for which the import lines have no word.
    StaleMarker,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [Self; 11] = [
        Self::QueueFull,
        Self::SpoolFull,
        Self::Rejected,
        Self::TooOld,
        Self::NoCredential,
        Self::Oversize,
        Self::Shutdown,
        Self::Unreachable,
        Self::Damaged,
        Self::NotANumber,
        Self::StaleMarker,
    ];

    /// The value of the label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::SpoolFull => "spool_full",
            Self::Rejected => "rejected",
            Self::TooOld => "too_old",
            Self::NoCredential => "no_credential",
            Self::Oversize => "oversize",
            Self::Shutdown => "shutdown",
            Self::Unreachable => "unreachable",
            Self::Damaged => "damaged",
            Self::NotANumber => "not_a_number",
            Self::StaleMarker => "stale_marker",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The account of one signal, in items (points, records, spans): at any moment
/// `written + recovered = delivered + dropped + waiting`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Handed to a writer, whether it was taken or not.
    pub written: u64,
    /// Found in the spool at the start, from an earlier run.
    pub recovered: u64,
    /// Acknowledged by the store.
    pub delivered: u64,
    /// In memory, in the spool, or under way.
    pub waiting: u64,
    dropped: [u64; DropReason::ALL.len()],
}

impl Tally {
    /// How many were dropped for `reason`.
    #[must_use]
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    /// How many were dropped for whatever reason.
    #[must_use]
    pub fn dropped_in_all(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Items were handed over and wait now.
    pub(super) const fn took(&mut self, items: u64) {
        self.written += items;
        self.waiting += items;
    }

    /// Items were handed back to whoever wrote them.
    pub(super) const fn handed_back(&mut self, items: u64) {
        self.written -= items;
        self.waiting -= items;
    }

    /// Items of an earlier run wait.
    pub(super) const fn recovered(&mut self, items: u64) {
        self.recovered += items;
        self.waiting += items;
    }

    /// Items were handed over and not taken.
    pub(super) const fn refused(&mut self, items: u64, reason: DropReason) {
        self.written += items;
        self.dropped[reason as usize] += items;
    }

    pub(super) const fn delivered(&mut self, items: u64) {
        self.waiting -= items;
        self.delivered += items;
    }

    pub(super) const fn gave_up(&mut self, items: u64, reason: DropReason) {
        self.waiting -= items;
        self.dropped[reason as usize] += items;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_index_their_own_counter() {
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            let mut tally = Tally::default();
            tally.refused(2, reason);
            assert_eq!((tally.dropped(reason), tally.dropped_in_all(), tally.written), (2, 2, 2));
        }
    }
}
