//! Written against stored: what is lost, what is there twice, and whose doing that was.
//!
//! Nothing is excused by being near a fault. A loss or a repetition is counted apart only where the record shows the one way in which
//! the documents say that it may happen:
//!
//! - `duplicated_by_relay_kill`: the relay that passed on the first copy was killed, and the first copy was the last request of its
//!   stream that this relay passed on. A stream has one request under way at a time, and begins the next one when it has the answer; so
//!   the answer to this one was not seen before the kill, and the memory of its batch ID went with the relay.
//! - `duplicated_by_store_kill`: the store was killed after it had got the whole first copy and before it answered.
//! - `lost_by_store_kill`: the store acknowledged the item and was killed before its own documented time of writing it to disk was over.
//! - `lost_in_window`: the agent acknowledged the item, was killed within the documented window of its spool after that, and never sent
//!   it.
//! - `repeated_by_feeder`: the agent's answer to whoever feeds it was lost with the agent, so it was handed over again under the next
//!   attempt, and both were stored.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::ledger::Entry;
use super::timeline::End;
use super::witness::{Answer, Item, Sighting};

/// What is known of one stream.
pub(super) struct Evidence<'a> {
    /// What was written.
    pub(super) entries: &'a [Entry],
    /// What passed between relay and store, in order.
    pub(super) sightings: &'a [Sighting],
    /// How often the store has each item.
    pub(super) stored: &'a HashMap<Item, u32>,
    /// How many items the source says are waiting still.
    pub(super) waiting: u64,
    /// What the source says that it dropped, by reason.
    pub(super) dropped: BTreeMap<String, u64>,
    /// Ends of the relay's lives.
    pub(super) relay_ends: &'a [(Instant, End)],
    /// Ends of the store's lives.
    pub(super) store_ends: &'a [(Instant, End)],
    /// Ends of the agent's lives; of none for a writer in this process.
    pub(super) agent_ends: &'a [(Instant, End)],
    /// How long the store may keep what it acknowledged in memory only.
    pub(super) store_window: Duration,
    /// How long the spool may.
    pub(super) spool_window: Duration,
}

/// The account of a stream, in items.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Acknowledged to whoever wrote them.
    pub written: u64,
    /// Handed over without an answer: they may be stored or not, but not twice.
    pub unacknowledged: u64,
    /// Written, and acknowledged by a store.
    pub delivered: u64,
    /// Written, and in a store at the end.
    pub stored: u64,
    /// Dropped by the client, which says so, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Not stored, but still waiting at the deadline.
    pub waiting: u64,
    /// Counted as dropped, and delivered all the same.
    pub dropped_yet_delivered: u64,
    /// Written, not stored, and not counted as dropped.
    pub lost: u64,
    /// Lost by the kill of an agent within the documented window of its spool.
    pub lost_in_window: u64,
    /// Lost by the kill of a store that had acknowledged them.
    pub lost_by_store_kill: u64,
    /// Copies too many.
    pub duplicated: u64,
    /// Copies too many, since the relay was killed between the store's answer and its own.
    pub duplicated_by_relay_kill: u64,
    /// Copies too many, since the store was killed before it answered.
    pub duplicated_by_store_kill: u64,
    /// Items that their feeder handed over twice, for want of an answer.
    pub repeated_by_feeder: u64,
    /// The requests that had the first item which can't be explained: for whoever looks for the cause.
    #[serde(skip)]
    pub(super) suspects: Vec<usize>,
}

impl Account {
    /// Whether nothing is lost or duplicated but for what is counted apart.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.lost == 0 && self.duplicated == 0
    }

    /// The first ones are enough.
    fn suspect(&mut self, seen: &[usize]) {
        if self.suspects.is_empty() {
            self.suspects = seen.to_vec();
        }
    }

    /// Adds another.
    pub(super) fn add(&mut self, other: &Self) {
        for (reason, items) in &other.dropped {
            *self.dropped.entry(reason.clone()).or_default() += items;
        }
        let pairs = [
            (&mut self.written, other.written),
            (&mut self.unacknowledged, other.unacknowledged),
            (&mut self.delivered, other.delivered),
            (&mut self.stored, other.stored),
            (&mut self.waiting, other.waiting),
            (&mut self.dropped_yet_delivered, other.dropped_yet_delivered),
            (&mut self.lost, other.lost),
            (&mut self.lost_in_window, other.lost_in_window),
            (&mut self.lost_by_store_kill, other.lost_by_store_kill),
            (&mut self.duplicated, other.duplicated),
            (&mut self.duplicated_by_relay_kill, other.duplicated_by_relay_kill),
            (&mut self.duplicated_by_store_kill, other.duplicated_by_store_kill),
            (&mut self.repeated_by_feeder, other.repeated_by_feeder),
        ];
        for (sum, items) in pairs {
            *sum += items;
        }
    }
}

/// Holds what was written against what is stored.
pub(super) fn audit(evidence: &Evidence<'_>) -> Account {
    let mut account = Account { dropped: evidence.dropped.clone(), ..Account::default() };
    let is_answered = |sighting: &&Sighting| matches!(sighting.answer, Answer::Stored(_));
    let answered: HashSet<Item> = items(evidence.sightings.iter().filter(is_answered)).collect();
    // Where each item was seen that is not stored exactly once.
    let mut seen: HashMap<Item, Vec<usize>> = HashMap::new();
    for (index, sighting) in evidence.sightings.iter().enumerate() {
        for item in items(std::iter::once(sighting)) {
            if evidence.stored.get(&item) != Some(&1) {
                seen.entry(item).or_default().push(index);
            }
        }
    }
    let mut never_stored = 0;
    for entry in evidence.entries {
        let Some(acknowledged) = entry.acknowledged else {
            account.unacknowledged += u64::from(entry.run.count);
            continue;
        };
        account.written += u64::from(entry.run.count);
        for item in entry.run.items() {
            account.delivered += u64::from(answered.contains(&item));
            if evidence.stored.contains_key(&item) {
                account.stored += 1;
                continue;
            }
            let seen = seen.get(&item).map_or(&[][..], Vec::as_slice);
            match loss(evidence, acknowledged, seen, answered.contains(&item)) {
                Loss::StoreKill => account.lost_by_store_kill += 1,
                Loss::Window => account.lost_in_window += 1,
                Loss::AfterAnswer => {
                    account.lost += 1;
                    account.suspect(seen);
                }
                Loss::Never => never_stored += 1,
            }
        }
    }
    let dropped = account.dropped.values().sum();
    account.waiting = evidence.waiting.min(never_stored);
    account.lost += u64::saturating_sub(never_stored - account.waiting, dropped);
    account.dropped_yet_delivered = u64::saturating_sub(dropped, never_stored);
    for (item, copies) in evidence.stored.iter().filter(|(_, copies)| **copies > 1) {
        let seen = seen.get(item).map_or(&[][..], Vec::as_slice);
        let mut extra = u64::from(copies - 1);
        for pair in seen.windows(2) {
            if extra == 0 {
                break;
            }
            match repetition(evidence, pair[0], pair[1]) {
                Some(Repetition::RelayKill) => account.duplicated_by_relay_kill += 1,
                Some(Repetition::StoreKill) => account.duplicated_by_store_kill += 1,
                None => continue,
            }
            extra -= 1;
        }
        account.duplicated += extra;
        if extra > 0 {
            account.suspect(seen);
        }
    }
    let mut attempts: HashMap<u32, u64> = HashMap::new();
    for item in evidence.stored.keys() {
        *attempts.entry(item.number).or_default() += 1;
    }
    account.repeated_by_feeder = attempts.values().map(|attempts| attempts - 1).sum();
    account
}

fn items<'a>(sightings: impl Iterator<Item = &'a Sighting>) -> impl Iterator<Item = Item> {
    sightings.flat_map(|sighting| sighting.runs.iter().flat_map(|run| run.items()))
}

/// How an acknowledged item came to be missing.
enum Loss {
    StoreKill,
    Window,
    /// A store said that it has it.
    AfterAnswer,
    /// No store ever did: it was dropped, or lost on the way.
    Never,
}

fn loss(evidence: &Evidence<'_>, acknowledged: Instant, seen: &[usize], was_answered: bool) -> Loss {
    let killed_after = |ends: &[(Instant, End)], life: usize, at: Instant, window: Duration| {
        ends.get(life).is_some_and(|(end, how)| *how == End::Killed && end.saturating_duration_since(at) < window)
    };
    if was_answered {
        let sightings = seen.iter().map(|index| &evidence.sightings[*index]);
        let all_in_window = sightings.filter_map(|sighting| match sighting.answer {
            Answer::Stored(at) => Some((sighting.store_life, at)),
            Answer::None | Answer::Refused => None,
        });
        let all_in_window =
            { all_in_window }.all(|(life, at)| killed_after(evidence.store_ends, life, at, evidence.store_window));
        return if all_in_window { Loss::StoreKill } else { Loss::AfterAnswer };
    }
    let was_killed_at_once = evidence.agent_ends.iter().any(|(end, how)| {
        *how == End::Killed && *end >= acknowledged && end.duration_since(acknowledged) < evidence.spool_window
    });
    if seen.is_empty() && was_killed_at_once { Loss::Window } else { Loss::Never }
}

/// How an item may come to be there once more.
enum Repetition {
    RelayKill,
    StoreKill,
}

fn repetition(evidence: &Evidence<'_>, first: usize, second: usize) -> Option<Repetition> {
    let (one, other) = (&evidence.sightings[first], &evidence.sightings[second]);
    let died = |ends: &[(Instant, End)], life: usize| ends.get(life).filter(|(_, how)| *how == End::Killed).copied();
    let is_last = evidence.sightings[first + 1..].iter().all(|later| later.relay_life > one.relay_life);
    if died(evidence.relay_ends, one.relay_life).is_some() && other.relay_life > one.relay_life && is_last {
        return Some(Repetition::RelayKill);
    }
    let was_cut = one.answer == Answer::None && other.store_life > one.store_life;
    (was_cut && died(evidence.store_ends, one.store_life).is_some()).then_some(Repetition::StoreKill)
}

#[cfg(test)]
mod tests {
    use super::super::witness::Run;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Five items, written at the start, passed on once and stored once, until a test changes something.
    struct Case {
        start: Instant,
        entries: Vec<Entry>,
        sightings: Vec<Sighting>,
        stored: HashMap<Item, u32>,
        waiting: u64,
        dropped: BTreeMap<String, u64>,
        relay_ends: Vec<(Instant, End)>,
        store_ends: Vec<(Instant, End)>,
        agent_ends: Vec<(Instant, End)>,
    }

    const ALL: Run = Run { attempt: 0, first: 0, count: 5 };

    impl Case {
        fn good() -> Self {
            let start = Instant::now();
            let mut case = Self {
                start,
                entries: vec![Entry { run: ALL, acknowledged: Some(start) }],
                sightings: Vec::new(),
                stored: ALL.items().map(|item| (item, 1)).collect(),
                waiting: 0,
                dropped: BTreeMap::new(),
                relay_ends: Vec::new(),
                store_ends: Vec::new(),
                agent_ends: Vec::new(),
            };
            case.see(ALL, 0, 0, Some(SECOND));
            case
        }

        fn see(&mut self, run: Run, relay_life: usize, store_life: usize, answered: Option<Duration>) {
            let answer = answered.map_or(Answer::None, |after| Answer::Stored(self.start + after));
            self.sightings.push(Sighting { runs: vec![run], relay_life, store_life, begun: self.start, answer });
        }

        fn audit(&self) -> Account {
            audit(&Evidence {
                entries: &self.entries,
                sightings: &self.sightings,
                stored: &self.stored,
                waiting: self.waiting,
                dropped: self.dropped.clone(),
                relay_ends: &self.relay_ends,
                store_ends: &self.store_ends,
                agent_ends: &self.agent_ends,
                store_window: 5 * SECOND,
                spool_window: SECOND,
            })
        }

        fn twice(&mut self) {
            self.stored.values_mut().for_each(|copies| *copies = 2);
        }
    }

    #[test]
    fn what_is_stored_once_is_well() {
        let account = Case::good().audit();
        assert_eq!((account.written, account.delivered, account.stored), (5, 5, 5));
        assert!(account.is_clean());
    }

    #[test]
    fn what_is_missing_is_lost_unless_it_was_counted() {
        let mut case = Case::good();
        case.sightings.clear();
        case.stored.clear();
        assert_eq!(case.audit().lost, 5);
        case.dropped.insert("queue_full".to_owned(), 4);
        assert_eq!(case.audit().lost, 1);
        case.dropped.insert("queue_full".to_owned(), 5);
        assert_eq!(case.audit().lost, 0);
        case.dropped.clear();
        case.waiting = 2;
        assert_eq!((case.audit().lost, case.audit().waiting), (3, 2));
    }

    #[test]
    fn what_a_store_acknowledged_and_lost_is_not_excused_by_what_was_dropped() {
        let mut case = Case::good();
        case.stored.clear();
        case.dropped.insert("queue_full".to_owned(), 100);
        assert_eq!(case.audit().lost, 5);
    }

    #[test]
    fn a_store_that_is_killed_may_lose_what_it_took_just_before() {
        let mut case = Case::good();
        case.stored.clear();
        case.store_ends.push((case.start + 5 * SECOND, End::Killed));
        let account = case.audit();
        assert_eq!((account.lost, account.lost_by_store_kill), (0, 5));
        case.store_ends[0] = (case.start + 5 * SECOND, End::Stopped);
        assert_eq!(case.audit().lost, 5);
        case.store_ends[0] = (case.start + 7 * SECOND, End::Killed);
        assert_eq!(case.audit().lost, 5);
    }

    #[test]
    fn an_agent_that_is_killed_may_lose_what_it_took_within_its_window_and_did_not_send() {
        let mut case = Case::good();
        case.sightings.clear();
        case.stored.clear();
        case.agent_ends.push((case.start + SECOND / 2, End::Killed));
        let account = case.audit();
        assert_eq!((account.lost, account.lost_in_window), (0, 5));
        case.agent_ends[0] = (case.start + 2 * SECOND, End::Killed);
        assert_eq!(case.audit().lost, 5);
        case.agent_ends[0] = (case.start + SECOND / 2, End::Stopped);
        assert_eq!(case.audit().lost, 5);
    }

    #[test]
    fn a_copy_too_many_is_one_unless_a_relay_was_killed_over_it() {
        let mut case = Case::good();
        case.twice();
        case.see(ALL, 0, 0, Some(2 * SECOND));
        assert_eq!(case.audit().duplicated, 5, "by one and the same relay");
        case.sightings[1].relay_life = 1;
        case.relay_ends.push((case.start + SECOND, End::Stopped));
        assert_eq!(case.audit().duplicated, 5, "a relay that stops in good order answers first");
        case.relay_ends[0].1 = End::Killed;
        let account = case.audit();
        assert_eq!((account.duplicated, account.duplicated_by_relay_kill), (0, 5));
        // The source had gone on to the next: it had its answer.
        let next = Sighting { runs: vec![Run { attempt: 0, first: 9, count: 1 }], ..case.sightings[0].clone() };
        case.sightings.insert(1, next);
        assert_eq!(case.audit().duplicated, 5);
    }

    #[test]
    fn a_store_that_is_killed_before_it_answers_may_have_stored() {
        let mut case = Case::good();
        case.twice();
        case.sightings.clear();
        case.see(ALL, 0, 0, None);
        case.see(ALL, 0, 1, Some(SECOND));
        assert_eq!(case.audit().duplicated, 5);
        case.store_ends.push((case.start, End::Killed));
        let account = case.audit();
        assert_eq!((account.duplicated, account.duplicated_by_store_kill), (0, 5));
    }

    #[test]
    fn a_repetition_of_the_feeders_own_is_its_own() {
        let mut case = Case::good();
        let again = Run { attempt: 1, ..ALL };
        case.entries.insert(0, Entry { run: ALL, acknowledged: None });
        case.entries[1].run = again;
        case.stored.extend(again.items().map(|item| (item, 1)));
        let account = case.audit();
        assert_eq!((account.written, account.unacknowledged, account.repeated_by_feeder), (5, 5, 5));
        assert!(account.is_clean());
    }
}
