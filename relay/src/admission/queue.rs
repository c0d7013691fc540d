//! The rules of a line before something scarce: no lock, no waiting, the time as an argument.
//!
//! Invariants:
//! - `used` is the sum of the units that were handed out and not given back; over the capacity only after that shrank, or
//!   while a single one holds more than there is;
//! - nobody is served while someone with an earlier turn waits;
//! - someone waits only while what they want does not fit;
//! - at most `max_waiting` wait without a ticket, and of one runner at most `max_waiting_of_one`; tickets, and those who wait
//!   with one, are at most [`MAX_TICKETS`], and of one runner at most [`MAX_TICKETS_OF_ONE`].

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use super::Caller;
use super::pace::Pace;
use super::tickets::{Ticket, Tickets};
use crate::gate::Author;

/// A number in the order in which requests first came. It is kept when a request is refused and comes back.
pub(super) type Turn = u64;

/// How many refused requests of one line keep their turn. One costs about 200 bytes.
const MAX_TICKETS: usize = 1_024;

/// And how many of one runner: one that hammers at the door can't keep everyone else's out of the book.
const MAX_TICKETS_OF_ONE: usize = 32;

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
    /// How many of one runner may: one that floods leaves room to wait for the others of its tenant.
    pub(super) max_waiting_of_one: usize,
}

/// What becomes of someone who comes.
#[derive(Debug)]
pub(super) enum Arrival {
    /// Served at once.
    Served,
    /// Waits for this turn. `again`: was sent away before.
    Waits { turn: Turn, again: bool },
    /// No place to wait in: comes back after this time.
    TurnedAway(Duration),
}

#[derive(Debug)]
pub(super) struct Queue {
    capacity: u64,
    used: u64,
    next_turn: Turn,
    waiting: BTreeMap<Turn, Waiter>,
    /// How many wait.
    all: Waiting,
    /// How many of each runner wait, of which any does.
    of: HashMap<Author, Waiting>,
    tickets: Tickets,
    pace: Pace,
    woken: Vec<Waker>,
}

/// A number of those who wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Waiting {
    without_ticket: usize,
    with_ticket: usize,
}

impl Waiting {
    const fn count(&mut self, with_ticket: bool) -> &mut usize {
        if with_ticket { &mut self.with_ticket } else { &mut self.without_ticket }
    }
}

#[derive(Debug)]
struct Waiter {
    author: Author,
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
            all: Waiting::default(),
            of: HashMap::new(),
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
        let is_full = self.all.without_ticket >= bounds.max_waiting
            || self.of(&caller.author).without_ticket >= bounds.max_waiting_of_one;
        if ticket.is_none() && is_full {
            return Arrival::TurnedAway(self.turn_away(turn, caller, units, false, now));
        }
        if self.waiting.is_empty() {
            self.pace.line_forms(now);
        }
        self.pace.line_stands(now);
        let with_ticket = ticket.is_some();
        *self.all.count(with_ticket) += 1;
        *self.of.entry(caller.author.clone()).or_default().count(with_ticket) += 1;
        self.waiting.insert(turn, Waiter { author: caller.author.clone(), units, with_ticket, waker: None });
        Arrival::Waits { turn, again: with_ticket }
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
            Some(waiter) => self.no_longer_waits(&waiter),
            None => self.used -= units,
        }
        self.serve();
    }

    /// Sends someone away, to come back after the time that is returned, to the turn that they have. `again`: they were before.
    pub(super) fn turn_away(&mut self, turn: Turn, caller: &Caller, units: u64, again: bool, now: Instant) -> Duration {
        self.pace.line_stands(now);
        self.tickets.purge(now);
        let waiting = self.waiting.range(..turn).fold(units, |sum, (_, waiter)| sum.saturating_add(waiter.units));
        let ahead = waiting.saturating_add(self.tickets.units_before(turn));
        let estimate = self.pace.until_served(ahead, self.capacity, now);
        let after = if again { estimate } else { self.pace.believed(estimate, now) };
        let after = after.clamp(SOONEST, LATEST);
        let of_one = self.tickets.of(&caller.author) + self.of(&caller.author).with_ticket;
        if self.tickets.len() + self.all.with_ticket < MAX_TICKETS && of_one < MAX_TICKETS_OF_ONE {
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
        if !self.waiting.is_empty() {
            self.pace.line_stands(now);
        }
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
            self.no_longer_waits(&waiter);
            self.woken.extend(waiter.waker);
        }
    }

    fn of(&self, author: &Author) -> Waiting {
        self.of.get(author).copied().unwrap_or_default()
    }

    fn no_longer_waits(&mut self, waiter: &Waiter) {
        *self.all.count(waiter.with_ticket) -= 1;
        if let Some(of_one) = self.of.get_mut(&waiter.author) {
            *of_one.count(waiter.with_ticket) -= 1;
            if *of_one == Waiting::default() {
                self.of.remove(&waiter.author);
            }
        }
    }
}
