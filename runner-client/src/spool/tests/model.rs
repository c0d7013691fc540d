//! Random operations, crashes and damage, against a model that knows what must be there.
//!
//! The numbers in the assertions are those of the promises at the top of the module.

use proptest::prelude::*;

use super::*;
use crate::spool::disk::faults;
use crate::spool::format::{ACK_ENTRY_LEN, RECORD_HEADER_LEN, SEGMENT_EXTENSION};

#[derive(Debug, Clone)]
enum Step {
    Append(SpoolSignal, usize),
    /// Takes as many records.
    Next(SpoolSignal, u8),
    /// Acknowledges some of the records that wait, wherever they are.
    Acknowledge(SpoolSignal, Vec<u8>),
    /// Acknowledges the oldest ones, as delivery does.
    Deliver(SpoolSignal, u8),
    Rewind(SpoolSignal),
    Sync,
    Maintain,
    Wait(u8),
    Restart(End),
}

/// How a process ends, and what happens before the next one begins.
#[derive(Debug, Clone)]
enum End {
    Close,
    Kill,
    PowerLoss(u64),
    FlippedBit(u64),
    Truncation(u64),
    Garbage(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let signal = || prop_oneof![Just(SpoolSignal::Metrics), Just(SpoolSignal::Logs)];
    let end = prop_oneof![
        2 => Just(End::Close),
        2 => Just(End::Kill),
        4 => any::<u64>().prop_map(End::PowerLoss),
        3 => any::<u64>().prop_map(End::FlippedBit),
        2 => any::<u64>().prop_map(End::Truncation),
        1 => any::<u64>().prop_map(End::Garbage),
    ];
    let step = prop_oneof![
        10 => (signal(), 0..20_000_usize).prop_map(|(signal, len)| Step::Append(signal, len)),
        10 => (signal(), 0..300_usize).prop_map(|(signal, len)| Step::Append(signal, len)),
        3 => (signal(), 0..20_u8).prop_map(|(signal, count)| Step::Next(signal, count)),
        3 => (signal(), prop::collection::vec(any::<u8>(), 1..10)).prop_map(|(s, which)| Step::Acknowledge(s, which)),
        3 => (signal(), 0..20_u8).prop_map(|(signal, count)| Step::Deliver(signal, count)),
        1 => signal().prop_map(Step::Rewind),
        2 => Just(Step::Sync),
        2 => Just(Step::Maintain),
        1 => (0..40_u8).prop_map(Step::Wait),
        4 => end.prop_map(Step::Restart),
    ];
    prop::collection::vec(step, 1..120)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// Whether that is on the disk.
    Acknowledged(bool),
    /// Given up or lost, and counted as far as that is possible.
    Gone,
}

#[derive(Debug, Clone)]
struct Entry {
    position: Position,
    body_len: usize,
    created: u64,
    state: State,
    /// Whether it was acknowledged and came back.
    has_returned: bool,
}

impl Entry {
    fn end(&self, number: u64) -> u64 {
        self.position.offset + RECORD_HEADER_LEN + number.to_string().len() as u64 + self.body_len as u64
    }

    fn file(&self, bench: &Bench) -> PathBuf {
        bench.folder().join(self.position.segment.file(SEGMENT_EXTENSION))
    }
}

/// What must be true, by the number of the record.
struct Model {
    bench: Bench,
    spool: Option<Spool>,
    entries: BTreeMap<u64, Entry>,
    /// How much of each file a power loss leaves, by what the spool says.
    durable: BTreeMap<PathBuf, u64>,
    /// Found at the start and appended since; acknowledged and dropped since.
    came: PerSignal<u64>,
    went: PerSignal<u64>,
    /// The last record that was handed out.
    last: PerSignal<Option<u64>>,
}

impl Model {
    fn new() -> Self {
        let mut bench = Bench::new();
        bench.config.max_bytes = 768 * 1024;
        bench.config.max_age = Duration::from_secs(100);
        bench.config.sync = SyncPolicy { every_records: 16, every: Duration::from_secs(10) };
        let spool = Some(bench.open());
        let (came, went, last) = Default::default();
        Self { bench, spool, entries: BTreeMap::new(), durable: BTreeMap::new(), came, went, last }
    }

    fn spool(&mut self) -> &mut Spool {
        self.spool.as_mut().unwrap()
    }

    fn of(&self, signal: SpoolSignal) -> impl Iterator<Item = (u64, &Entry)> {
        let entries = self.entries.iter().map(|(number, entry)| (*number, entry));
        entries.filter(move |(_, entry)| entry.position.signal() == signal)
    }

    fn waiting(&self, signal: SpoolSignal) -> Vec<u64> {
        self.of(signal).filter(|(_, entry)| entry.state == State::Waiting).map(|(number, _)| number).collect()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Append(signal, body_len) => self.append(signal, body_len),
            Step::Next(signal, count) => {
                for _ in 0..count {
                    let Some(stored) = self.spool().next(signal).unwrap() else { break };
                    self.handed_out(&stored);
                }
            }
            Step::Acknowledge(signal, which) => {
                let waiting = self.waiting(signal);
                if !waiting.is_empty() {
                    which.iter().for_each(|at| self.acknowledge(waiting[usize::from(*at) % waiting.len()]));
                }
            }
            Step::Deliver(signal, count) => {
                self.waiting(signal).into_iter().take(count.into()).for_each(|number| self.acknowledge(number));
            }
            Step::Rewind(signal) => {
                self.spool().rewind(signal);
                *self.last.get_mut(signal) = None;
            }
            Step::Sync => self.spool().sync().unwrap(),
            Step::Maintain => self.spool().maintain().unwrap(),
            Step::Wait(seconds) => self.bench.clock.advance(Duration::from_secs(seconds.into())),
            Step::Restart(end) => self.restart(end),
        }
        self.settle_drops();
        self.look();
    }

    fn append(&mut self, signal: SpoolSignal, body_len: usize) {
        let number = self.entries.len() as u64;
        let created = unix_ms(&*self.bench.clock);
        let record = Record { created_unix_ms: created, ..record(signal, number, body_len) };
        let appended = self.spool().append(&record).unwrap();
        self.entries.insert(
            number,
            Entry { position: appended.position, body_len, created, state: State::Waiting, has_returned: false },
        );
        *self.came.get_mut(signal) += 1;
    }

    fn acknowledge(&mut self, number: u64) {
        let position = self.entries[&number].position;
        let was_waiting = self.entries[&number].state == State::Waiting;
        assert_eq!(self.spool().acknowledge(&position), was_waiting, "3, 5");
        if was_waiting {
            self.entries.get_mut(&number).unwrap().state = State::Acknowledged(false);
            *self.went.get_mut(position.signal()) += 1;
        }
    }

    fn handed_out(&mut self, stored: &Stored) {
        let (number, signal) = (number(stored), stored.record.signal);
        let entry = &self.entries[&number];
        assert_eq!((entry.position, entry.body_len), (stored.position, stored.record.body.len()), "1");
        assert_eq!(entry.state, State::Waiting, "3: {number}");
        assert!(*self.last.get(signal) < Some(number), "1: {:?} before {number}", self.last.get(signal));
        *self.last.get_mut(signal) = Some(number);
    }

    /// What the spool says it gave up is gone, and nothing else is.
    fn settle_drops(&mut self) {
        let cutoff = self.spool().cutoff();
        for drop in self.spool().take_dropped() {
            assert_eq!(drop.amount.items, 10 * drop.amount.records);
            *self.went.get_mut(drop.signal) += drop.amount.records;
            if drop.cause == DropCause::Damaged {
                continue;
            }
            let waiting = self.waiting(drop.signal);
            let mut gone = Vec::new();
            for (at, number) in waiting.into_iter().enumerate() {
                let entry = &self.entries[&number];
                let may_go = match drop.cause {
                    DropCause::TooOld => entry.created < cutoff,
                    _ => at == gone.len(),
                };
                let position = entry.position;
                if may_go && self.spool().read(&position).unwrap().is_none() {
                    gone.push(number);
                }
            }
            // Both causes may be told at once; then the first one finds the records of both.
            assert!(gone.len() as u64 >= drop.amount.records || gone.is_empty(), "5: {drop:?} {gone:?}");
            gone.iter().for_each(|number| self.entries.get_mut(number).unwrap().state = State::Gone);
        }
    }

    /// What must be true at any moment.
    fn look(&mut self) {
        let stats = self.spool().stats();
        let mut on_disk = 0;
        let (segments, acks) = (self.bench.files("seg"), self.bench.files("ack"));
        for (_, len) in segments.iter().chain(&acks) {
            on_disk += len.next_multiple_of(4096);
        }
        assert!(on_disk <= stats.bytes && stats.bytes <= self.bench.config.max_bytes, "6: {on_disk} {stats:?}");
        for signal in SpoolSignal::ALL {
            let waiting = stats.waiting.get(signal);
            assert_eq!(waiting.records, self.came.get(signal) - self.went.get(signal), "5: {signal}");
            assert_eq!(*waiting, amount(self.waiting(signal).len() as u64, 10 * waiting.records), "5: {signal}");
            let newest = segments.keys().rfind(|path| path.to_string_lossy().contains(&format!("/{signal}-")));
            let all = self.spool().lanes.get(signal).unsynced() == 0;
            let of_signal = segments.iter().filter(|(path, _)| path.to_string_lossy().contains(&format!("/{signal}-")));
            let synced = of_signal.filter(|(path, _)| all || Some(*path) != newest);
            self.durable.extend(synced.map(|(path, len)| (path.clone(), *len)));
        }
        if !stats.has_unsynced_acknowledgements {
            // What is torn is no entry, and nothing is promised of it.
            let entries = acks.iter().map(|(path, len)| (path.clone(), len - len % ACK_ENTRY_LEN));
            self.durable.extend(entries);
            for entry in self.entries.values_mut().filter(|entry| entry.state == State::Acknowledged(false)) {
                entry.state = State::Acknowledged(true);
            }
        }
        for path in segments.keys().chain(acks.keys()) {
            let promised = self.durable.get(path).copied();
            assert!(
                faults::durable(path).or(promised.filter(|len| *len == 0)) >= promised,
                "2, 3: {} is not on the disk",
                path.display()
            );
        }
    }

    fn restart(&mut self, end: End) {
        let spool = self.spool.take().unwrap();
        // What may be missing afterwards, and what may come back.
        let mut lossy: Vec<u64> = Vec::new();
        let mut may_return: Vec<u64> = Vec::new();
        let mut max_lost = u64::MAX;
        match end {
            End::Close => spool.close().unwrap(),
            End::Kill => drop(spool),
            End::PowerLoss(seed) => {
                drop(spool);
                let is_durable = |(number, entry): &(&u64, &Entry)| {
                    self.durable.get(&entry.file(&self.bench)).is_some_and(|durable| *durable >= entry.end(**number))
                };
                lossy = self.entries.iter().filter(|entry| !is_durable(entry)).map(|(number, _)| *number).collect();
                may_return = self.acknowledged(|entry| entry.state == State::Acknowledged(false));
                self.lose_power(seed);
            }
            End::FlippedBit(seed) => {
                drop(spool);
                if let Some((path, mut bytes, mut rng)) = self.any_file(&["seg", "ack"], seed) {
                    let at = rng.usize(..bytes.len());
                    bytes[at] ^= 1 << rng.u8(..8);
                    fs::write(&path, bytes).unwrap();
                    if path.extension().is_some_and(|extension| extension == "seg") {
                        lossy = self.in_file(&path);
                    } else {
                        let segment = path.with_extension("seg");
                        may_return = self.acknowledged(|entry| entry.file(&self.bench) == segment);
                        // The same bit may flip a second time.
                        lossy = self.in_file(&segment);
                        lossy.retain(|number| self.entries[number].has_returned);
                    }
                    max_lost = 1;
                }
            }
            End::Truncation(seed) => {
                drop(spool);
                if let Some((path, bytes, mut rng)) = self.any_file(&["seg"], seed) {
                    let len = rng.usize(..bytes.len());
                    fs::write(&path, &bytes[..len]).unwrap();
                    lossy = self.in_file(&path);
                    lossy.retain(|number| self.entries[number].end(*number) > len as u64);
                }
            }
            End::Garbage(seed) => {
                drop(spool);
                let mut rng = fastrand::Rng::with_seed(seed);
                fs::write(self.bench.folder().join("garbage"), vec![rng.u8(..); rng.usize(..10_000)]).unwrap();
            }
        }
        self.reopen(&lossy, &may_return, max_lost);
    }

    /// Opens the spool and reads all of it.
    fn reopen(&mut self, lossy: &[u64], may_return: &[u64], max_lost: u64) {
        let (mut spool, recovery) = self.bench.recover();
        let mut counted = dropped(&recovery.lost, DropCause::Damaged).records;
        let mut missing = 0;
        let mut returned = 0;
        let mut too_old = 0;
        let gone_before = self.entries.values().filter(|entry| entry.state == State::Gone).count() as u64;
        self.came = PerSignal { metrics: recovery.waiting.metrics.records, logs: recovery.waiting.logs.records };
        self.went = PerSignal::default();
        self.last = PerSignal::default();
        let cutoff = spool.cutoff();
        for signal in SpoolSignal::ALL {
            let delivered = drain_positions(&mut spool, signal);
            assert!(delivered.is_sorted_by_key(|(number, _)| *number), "1");
            let mut delivered: BTreeMap<u64, Position> = delivered.into_iter().collect();
            for (number, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.position.signal() == signal) {
                match (delivered.remove(number), entry.state) {
                    (Some(position), _) if position != entry.position => panic!("1: {number} is elsewhere"),
                    (Some(_), State::Waiting) => {}
                    (Some(_), State::Acknowledged(_)) if may_return.contains(number) => {
                        (entry.state, entry.has_returned) = (State::Waiting, true);
                        returned += 1;
                    }
                    (Some(_), state) => panic!("3: {number} came back, {state:?}"),
                    (None, State::Waiting) => {
                        assert!(lossy.contains(number) || entry.created < cutoff, "2, 4: {number} is lost");
                        if entry.created < cutoff {
                            too_old += 1
                        } else {
                            missing += 1
                        }
                        entry.state = State::Gone;
                    }
                    // What could come back and did not is not coming back any more.
                    (None, State::Acknowledged(_)) => entry.state = State::Acknowledged(true),
                    (None, State::Gone) => {}
                }
            }
            assert!(delivered.is_empty(), "1: out of nowhere");
            spool.rewind(signal);
        }
        let drops = spool.take_dropped();
        for dropped in &drops {
            *self.went.get_mut(dropped.signal) += dropped.amount.records;
        }
        counted += dropped(&drops, DropCause::Damaged).records;
        // What is done with may be found damaged and counted, once that it is done with was forgotten as well.
        let may_be_counted = may_return.len() as u64 + gone_before;
        assert!(counted <= missing + too_old + may_be_counted, "5: {counted} counted, {missing} missing");
        assert!(missing <= max_lost && returned <= max_lost, "4: {missing} missing, {returned} returned");
        // A start forces to the disk what it mends; the acknowledgements may have to wait.
        self.durable.clear();
        self.spool = Some(spool);
        self.spool().sync().unwrap();
        self.durable.extend(self.bench.files("seg"));
    }

    fn in_file(&self, path: &Path) -> Vec<u64> {
        let of_file = self.entries.iter().filter(|(_, entry)| entry.file(&self.bench) == path);
        of_file.map(|(number, _)| *number).collect()
    }

    fn acknowledged(&self, and: impl Fn(&Entry) -> bool) -> Vec<u64> {
        let entries =
            self.entries.iter().filter(|(_, entry)| matches!(entry.state, State::Acknowledged(_)) && and(entry));
        entries.map(|(number, _)| *number).collect()
    }

    fn any_file(&self, extensions: &[&str], seed: u64) -> Option<(PathBuf, Vec<u8>, fastrand::Rng)> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let files: Vec<PathBuf> = extensions
            .iter()
            .flat_map(|e| self.bench.files(e))
            .filter(|(_, len)| *len > 0)
            .map(|(path, _)| path)
            .collect();
        let path = rng.choice(files)?;
        Some((path.clone(), fs::read(path).unwrap(), rng))
    }

    /// Of what was not forced to the disk, anything may be missing: files, tails, and blocks in the middle.
    fn lose_power(&self, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        for path in self.bench.files("seg").into_keys().chain(self.bench.files("ack").into_keys()) {
            let durable = faults::durable(&path);
            if durable.is_none() && rng.bool() {
                fs::remove_file(&path).unwrap();
                continue;
            }
            let mut bytes = fs::read(&path).unwrap();
            let durable = usize::try_from(durable.unwrap_or(0)).unwrap();
            bytes.truncate(rng.usize(durable..=bytes.len()));
            if rng.bool() {
                let from = rng.usize(durable..=bytes.len());
                let to = rng.usize(from..=bytes.len());
                bytes[from..to].fill(0);
            }
            fs::write(&path, bytes).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_promises_hold_whatever_happens(steps in steps()) {
        let mut model = Model::new();
        for step in steps {
            model.step(step);
        }
        // In the end: emptied, and nothing is left.
        for signal in SpoolSignal::ALL {
            let waiting = model.waiting(signal);
            waiting.into_iter().for_each(|number| model.acknowledge(number));
        }
        model.spool().maintain().unwrap();
        model.spool().maintain().unwrap();
        prop_assert_eq!(model.spool().stats().segments, 0, "6");
        prop_assert_eq!(model.bench.files("seg").len() + model.bench.files("ack").len(), 0, "6");
    }
}
