//! The turns of those who were sent away and will come back.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::Caller;
use super::queue::Turn;
use crate::gate::Author;
use crate::once::BatchId;

/// Tickets that nobody comes for are looked for this often.
const PURGE_EVERY: Duration = Duration::from_secs(1);

/// The tickets of one line. A ticket keeps the turn of a request that was refused: whoever comes back when told to stands
/// where they stood before.
///
/// Invariants: `of` and `units` hold the same turns; `sum` is the sum of `units`.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    of: HashMap<Author, Vec<Ticket>>,
    units: BTreeMap<Turn, u64>,
    sum: u64,
    purge_at: Option<Instant>,
}

/// A ticket.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) turn: Turn,
    pub(super) units: u64,
    /// The batch that it is for, where batches have IDs: it is of no use to another.
    pub(super) batch: Option<BatchId>,
    /// When it counts: whoever comes before that comes as anyone else does.
    pub(super) due: Instant,
    /// When it is void.
    pub(super) expires: Instant,
}

impl Tickets {
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    /// The units of all whose turn comes before `turn`.
    pub(super) fn units_before(&self, turn: Turn) -> u64 {
        // A flood of refusals has the latest turns of all, and is not to cost much.
        if self.units.last_key_value().is_none_or(|(last, _)| *last < turn) {
            return self.sum;
        }
        self.units.range(..turn).fold(0, |sum, (_, units)| sum.saturating_add(*units))
    }

    /// How many one runner has.
    pub(super) fn of(&self, author: &Author) -> usize {
        self.of.get(author).map_or(0, Vec::len)
    }

    pub(super) fn issue(&mut self, author: &Author, ticket: Ticket) {
        self.units.insert(ticket.turn, ticket.units);
        self.sum = self.sum.saturating_add(ticket.units);
        self.of.entry(author.clone()).or_default().push(ticket);
    }

    /// Takes the caller's earliest ticket that is due.
    pub(super) fn redeem(&mut self, caller: &Caller, now: Instant) -> Option<Turn> {
        if self.units.is_empty() {
            return None;
        }
        self.purge(now);
        let turn = self.turn_kept_for(caller, now)?;
        let tickets = self.of.get_mut(&caller.author)?;
        tickets.retain(|ticket| ticket.turn != turn);
        if tickets.is_empty() {
            self.of.remove(&caller.author);
        }
        let units = self.units.remove(&turn).unwrap_or_default();
        self.sum = self.sum.saturating_sub(units);
        Some(turn)
    }

    /// The turn of the caller's earliest ticket that is due.
    pub(super) fn turn_kept_for(&self, caller: &Caller, now: Instant) -> Option<Turn> {
        let tickets = self.of.get(&caller.author)?.iter();
        let due = tickets.filter(|ticket| ticket.due <= now && ticket.batch == caller.batch);
        due.map(|ticket| ticket.turn).min()
    }

    /// Throws void tickets away.
    pub(super) fn purge(&mut self, now: Instant) {
        if self.purge_at.is_some_and(|at| now < at) {
            return;
        }
        self.purge_at = Some(now + PURGE_EVERY);
        let Self { of, units, .. } = self;
        of.retain(|_, tickets| {
            tickets.retain(|ticket| {
                let is_void = ticket.expires <= now;
                if is_void {
                    units.remove(&ticket.turn);
                }
                !is_void
            });
            !tickets.is_empty()
        });
        self.sum = units.values().fold(0, |sum, units| sum.saturating_add(*units));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::fixtures::author;

    fn caller(runner: &str, batch: Option<u128>) -> Caller {
        Caller { author: author(runner), batch: batch.map(BatchId::from_u128) }
    }

    fn issue(tickets: &mut Tickets, turn: Turn, caller: &Caller, due: Instant) {
        let ticket = Ticket { turn, units: 1, batch: caller.batch, due, expires: due + Duration::from_secs(10) };
        tickets.issue(&caller.author, ticket);
    }

    #[test]
    fn a_ticket_is_its_batchs_own_and_counts_when_it_is_due() {
        let now = Instant::now();
        let later = now + Duration::from_secs(5);
        let (one, two, nameless) = (caller("a", Some(1)), caller("a", Some(2)), caller("a", None));
        let mut tickets = Tickets::default();
        issue(&mut tickets, 7, &one, later);
        issue(&mut tickets, 9, &nameless, later);
        issue(&mut tickets, 8, &nameless, later);
        assert_eq!(tickets.redeem(&one, now), None, "too early");
        assert_eq!((tickets.redeem(&two, later), tickets.redeem(&caller("b", Some(1)), later)), (None, None));
        assert_eq!((tickets.units_before(9), tickets.units_before(7)), (2, 0));
        assert_eq!(tickets.redeem(&one, later), Some(7));
        assert_eq!((tickets.redeem(&nameless, later), tickets.redeem(&nameless, later)), (Some(8), Some(9)));
        assert_eq!((tickets.of.len(), tickets.len(), tickets.sum), (0, 0, 0));
    }

    #[test]
    fn what_nobody_comes_for_is_thrown_away() {
        let now = Instant::now();
        let a = caller("a", None);
        let mut tickets = Tickets::default();
        for turn in 0..32 {
            issue(&mut tickets, turn, &a, now);
        }
        assert_eq!((tickets.of(&a.author), tickets.of(&caller("b", None).author)), (32, 0));
        tickets.purge(now + Duration::from_secs(10));
        assert_eq!((tickets.of.len(), tickets.len(), tickets.sum), (0, 0, 0));
    }
}
