//! The rules of a line before something scarce: no lock, no waiting, the time as an argument.
//!
//! Invariants:
//! - `used` is the sum of the units that were handed out and not given back; over the capacity only after that shrank, or
//!   while a single one holds more than there is;
//! - nobody is served while someone with an earlier turn waits;
//! - someone waits only while what they want does not fit;
//! - at most `max_waiting` wait without a ticket; tickets, and those who wait with one, are at most [`MAX_TICKETS`].

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use super::Caller;
use super::pace::Pace;
use super::tickets::{Ticket, Tickets};

/// A number in the order in which requests first came. It is kept when a request is refused and comes back.
pub(super) type Turn = u64;

/// How many refused requests of one line keep their turn. One costs about 200 bytes.
const MAX_TICKETS: usize = 1_024;

/// Nobody is told to come back sooner or later than this.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(300);

/// How long a ticket is kept for someone who is late, beside as much time again as they were told to wait.
const GRACE: Duration = Duration::from_secs(30);

/// How much there is, and how many may wait for it. Comes with every arrival: the settings of before count no more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) capacity: u64,
    pub(super) max_waiting: usize,
}

/// What becomes of someone who comes.
#[derive(Debug)]
pub(super) enum Arrival {
    /// Served at once.
    Served,
    /// Waits for this turn.
    Waits(Turn),
    /// No place to wait in: comes back after this time.
    TurnedAway(Duration),
}

#[derive(Debug)]
pub(super) struct Queue {
    capacity: u64,
    used: u64,
    next_turn: Turn,
    waiting: BTreeMap<Turn, Waiter>,
    /// How many of those who wait came with a ticket.
    with_ticket: usize,
    tickets: Tickets,
    pace: Pace,
    woken: Vec<Waker>,
}

#[derive(Debug)]
struct Waiter {
    units: u64,
    with_ticket: bool,
    waker: Option<Waker>,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            capacity: 0,
            used: 0,
            next_turn: 0,
            waiting: BTreeMap::new(),
            with_ticket: 0,
            tickets: Tickets::default(),
            pace: Pace::new(),
            woken: Vec::new(),
        }
    }

    pub(super) const fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing would be lost if the line were forgotten.
    pub(super) fn is_idle(&mut self, now: Instant) -> bool {
        self.tickets.purge(now);
        self.used == 0 && self.waiting.is_empty() && self.tickets.len() == 0
    }

    /// Someone comes for so many units.
    pub(super) fn arrive(&mut self, caller: &Caller, units: u64, bounds: Bounds, now: Instant) -> Arrival {
        if self.capacity != bounds.capacity {
            self.capacity = bounds.capacity;
            self.serve();
        }
        let ticket = self.tickets.redeem(caller, now);
        let turn = ticket.unwrap_or_else(|| self.draw());
        let is_next = self.waiting.first_key_value().is_none_or(|(first, _)| turn < *first);
        if is_next && self.fits(units) {
            self.used += units;
            return Arrival::Served;
        }
        if ticket.is_none() && self.waiting.len() - self.with_ticket >= bounds.max_waiting {
            return Arrival::TurnedAway(self.turn_away(turn, caller, units, now));
        }
        if self.waiting.is_empty() {
            self.pace.line_forms(now);
        }
        let with_ticket = ticket.is_some();
        self.with_ticket += usize::from(with_ticket);
        self.waiting.insert(turn, Waiter { units, with_ticket, waker: None });
        Arrival::Waits(turn)
    }

    /// Whether the turn of someone who waits has come. If not, `waker` is woken when it has.
    pub(super) fn has_come(&mut self, turn: Turn, waker: &Waker) -> bool {
        let Some(waiter) = self.waiting.get_mut(&turn) else { return true };
        match &mut waiter.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        false
    }

    /// Someone who waited goes away. If their turn had come by then, others have what they leave.
    pub(super) fn leave(&mut self, turn: Turn, units: u64) {
        match self.waiting.remove(&turn) {
            Some(waiter) => self.with_ticket -= usize::from(waiter.with_ticket),
            None => self.used -= units,
        }
        self.serve();
    }

    /// Sends someone away, to come back after the time that is returned, to the turn that they have.
    pub(super) fn turn_away(&mut self, turn: Turn, caller: &Caller, units: u64, now: Instant) -> Duration {
        self.tickets.purge(now);
        let waiting = self.waiting.range(..turn).fold(units, |sum, (_, waiter)| sum.saturating_add(waiter.units));
        let ahead = waiting.saturating_add(self.tickets.units_before(turn));
        let after = self.pace.until_served(ahead, self.capacity, now).clamp(SOONEST, LATEST);
        if self.tickets.len() + self.with_ticket < MAX_TICKETS && self.tickets.has_room_for(&caller.author) {
            let expires = now + 2 * after + GRACE;
            let ticket = Ticket { turn, units, batch: caller.batch, due: now + after, expires };
            self.tickets.issue(&caller.author, ticket);
        }
        after
    }

    /// Units that were held for so long are given back.
    pub(super) fn give_back(&mut self, units: u64, held: Duration, now: Instant) {
        self.used -= units;
        self.pace.released(units, self.capacity, held, now);
        self.serve();
    }

    /// Those whose turn has come since this was last asked. To be woken without the lock.
    pub(super) fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    /// The turn that the caller would have by its tickets.
    #[cfg(test)]
    pub(super) fn turn_kept_for(&self, caller: &Caller, now: Instant) -> Option<Turn> {
        self.tickets.turn_kept_for(caller, now)
    }

    const fn draw(&mut self) -> Turn {
        self.next_turn += 1;
        self.next_turn
    }

    /// What is larger than the whole has it for itself.
    const fn fits(&self, units: u64) -> bool {
        self.used == 0 || units <= self.capacity.saturating_sub(self.used)
    }

    fn serve(&mut self) {
        while self.waiting.first_key_value().is_some_and(|(_, first)| self.fits(first.units)) {
            let Some((_, waiter)) = self.waiting.pop_first() else { break };
            self.used += waiter.units;
            self.with_ticket -= usize::from(waiter.with_ticket);
            self.woken.extend(waiter.waker);
        }
    }
}
