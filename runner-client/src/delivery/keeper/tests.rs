use std::collections::HashMap;
use std::sync::Weak;
use std::time::SystemTime;

use parking_lot::Mutex;
use proptest::prelude::*;
use telemetry_proto::Signal;

use super::*;
use crate::Jitter;
use crate::delivery::{DropReason, NotTaken, SignalSettings, Tally};
use crate::spool::{PerSignal, SpoolConfig, WhenFull};

/// A time of day that is set by hand.
struct HandClock(Mutex<SystemTime>);

impl HandClock {
    fn advance(&self, by: Duration) {
        *self.0.lock() += by;
    }
}

impl Clock for HandClock {
    fn now(&self) -> SystemTime {
        *self.0.lock()
    }
}

/// Outboxes and a keeper that is turned by hand. What delivery does is done by hand too.
struct Desk {
    config: SpoolConfig,
    clock: Arc<HandClock>,
    metrics: Arc<Outbox>,
    keeper: Keeper,
    runs: u64,
}

impl Desk {
    fn new(config: SpoolConfig) -> Self {
        let clock = Arc::new(HandClock(Mutex::new(UNIX_EPOCH + Duration::from_secs(1_900_000_000))));
        let (metrics, keeper) = Self::start(&config, &clock, 1);
        Self { config, clock, metrics, keeper, runs: 1 }
    }

    fn start(config: &SpoolConfig, clock: &Arc<HandClock>, run: u64) -> (Arc<Outbox>, Keeper) {
        let clock = Arc::clone(clock) as Arc<dyn Clock>;
        let mut settings = SignalSettings::metrics();
        settings.batch.max_items = 2;
        settings.batch.max_bytes = 4_096;
        settings.max_memory = 100_000;
        settings.max_wait = config.max_age;
        let bell = Bell::new().0;
        let jitter = Arc::new(Jitter::seeded(run));
        let metrics = Outbox::new(Signal::Metrics, settings, None, Arc::clone(&clock), jitter, Some(bell));
        let (spool, recovery) = Spool::open(config.clone(), Arc::clone(&clock)).unwrap();
        let keeper = Keeper::new(spool, &recovery, vec![Arc::clone(&metrics)], clock, run);
        (metrics, keeper)
    }

    /// As after a kill -9: what is in memory only is gone.
    fn crash(self) -> Self {
        let Self { config, clock, metrics, keeper, runs } = self;
        drop((keeper, metrics));
        let (metrics, keeper) = Self::start(&config, &clock, runs + 1);
        Self { config, clock, metrics, keeper, runs: runs + 1 }
    }

    fn turn(&mut self) {
        while self.keeper.turn() {}
    }

    fn write(&self, text: &str) {
        self.metrics.push(text.as_bytes()).unwrap();
    }

    /// Sends one batch, whose answer is a delivery or the reason of a drop.
    fn send(&mut self, dropped: Option<DropReason>) -> Option<Batch> {
        let batch = self.metrics.claim()?;
        self.metrics.settle(dropped);
        Some(batch)
    }

    fn drain(&mut self) -> Vec<Batch> {
        let mut sent = Vec::new();
        self.metrics.stage_rest();
        self.turn();
        while let Some(batch) = self.send(None) {
            sent.push(batch);
            self.turn();
        }
        sent
    }
}

fn config(folder: &tempfile::TempDir) -> SpoolConfig {
    SpoolConfig { max_bytes: 8 << 20, segment_bytes: 64 * 1024, ..SpoolConfig::new(folder.path().join("spool")) }
}

fn adds_up(tally: &Tally) -> bool {
    tally.written + tally.recovered == tally.delivered + tally.dropped_in_all() + tally.waiting
}

fn texts(batches: &[Batch]) -> Vec<String> {
    batches.iter().map(|batch| String::from_utf8(batch.body.to_vec()).unwrap()).collect()
}

#[test]
fn batches_come_back_in_order_with_their_ids_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let mut desk = Desk::new(config(&folder));
    (0..20).for_each(|number| desk.write(&format!("{number}\n")));
    desk.turn();
    let first = desk.metrics.claim().unwrap();
    // Under way when the process ends: it is sent again, with the ID that it had.
    let mut desk = desk.crash();
    assert_eq!(desk.metrics.tally().recovered, 20);
    let sent = desk.drain();
    assert_eq!((sent[0].id, &sent[0].body), (first.id, &first.body));
    assert_eq!(texts(&sent), (0..10).map(|n| format!("{}\n{}\n", 2 * n, 2 * n + 1)).collect::<Vec<_>>());
    let tally = desk.metrics.tally();
    assert_eq!((tally.delivered, tally.waiting), (20, 0));
    assert_eq!(desk.crash().metrics.tally().recovered, 0, "what was acknowledged does not come back");
}

#[test]
fn a_query_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let desk = Desk::new(config(&folder));
    desk.metrics.push_batch(Bytes::from_static(b"x\n"), 1, Some("_msg_field=m".into()), false).unwrap();
    let mut desk = desk;
    desk.turn();
    let sent = desk.crash().drain();
    assert_eq!(sent[0].query.as_deref(), Some("_msg_field=m"));
}

#[test]
fn the_mark_of_a_stream_survives_a_restart_and_streams_do_not_close_each_others_batches() {
    let folder = tempfile::tempdir().unwrap();
    let mut desk = Desk::new(config(&folder));
    for (stream, line) in [
        (Stream::Plain, "a\n"),
        (Stream::Operational, "b\n"),
        (Stream::Plain, "c\n"),
        (Stream::Operational, "d\n"),
        (Stream::Operational, "e\n"),
    ] {
        desk.metrics.push_to(stream, line.as_bytes()).unwrap();
    }
    desk.metrics.push_batch(Bytes::from_static(b"x\n"), 1, Some("_msg_field=m".into()), false).unwrap();
    desk.metrics.stage_rest();
    desk.turn();
    let sent = desk.crash().drain();
    let sent: Vec<_> = sent.iter().map(|batch| (batch.stream, std::str::from_utf8(&batch.body).unwrap())).collect();
    assert_eq!(
        sent,
        [
            (Stream::Plain, "a\nc\n"),
            (Stream::Operational, "b\nd\n"),
            (Stream::Plain, "x\n"),
            (Stream::Operational, "e\n"),
        ]
    );
}

#[test]
fn what_compresses_is_stored_compressed_if_that_is_wanted() {
    use std::io::Read as _;
    let folder = tempfile::tempdir().unwrap();
    let mut desk = Desk::new(config(&folder));
    desk.metrics.set_gzip(true);
    let (text, small) = (Bytes::from("up 1\n".repeat(1_000)), Bytes::from_static(b"up 1\n"));
    let noise: Bytes = (0..5_000).map(|_| fastrand::u8(..)).collect();
    for body in [&text, &small, &noise] {
        desk.metrics.push_batch(body.clone(), 1, None, false).unwrap();
    }
    desk.turn();
    let sent = desk.crash().drain();
    let mut decoded = Vec::new();
    flate2::read::GzDecoder::new(&sent[0].body[..]).read_to_end(&mut decoded).unwrap();
    assert_eq!((decoded, sent[0].encoding), (text.to_vec(), BodyEncoding::Gzip));
    for (batch, body) in sent[1..].iter().zip([&small, &noise]) {
        assert_eq!((&batch.body, batch.encoding), (body, BodyEncoding::Identity));
    }
}

#[test]
fn memory_does_not_grow_with_the_spool() {
    let folder = tempfile::tempdir().unwrap();
    let mut desk = Desk::new(config(&folder));
    for _ in 0..1_000 {
        desk.write(&format!("{}\n", "x".repeat(4_000)));
        desk.turn();
        assert!(desk.metrics.queued_bytes() < 50_000, "{}", desk.metrics.queued_bytes());
    }
    assert!(desk.keeper.spool.stats().bytes > 3 << 20);
    let mut desk = desk.crash();
    desk.turn();
    assert!(desk.metrics.queued_bytes() < 50_000);
    assert_eq!(desk.drain().len() as u64, desk.metrics.tally().delivered);
}

#[test]
fn what_the_spool_gives_up_is_counted_by_its_cause_and_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut desk = Desk::new(SpoolConfig { max_bytes: 512 * 1024, ..config(&folder) });
    for _ in 0..400 {
        desk.write(&format!("{}\n", "x".repeat(4_000)));
        desk.turn();
    }
    let tally = desk.metrics.tally();
    assert!(tally.dropped(DropReason::SpoolFull) > 200 && adds_up(&tally), "{tally:?}");
    desk.drain();
    let tally = desk.metrics.tally();
    assert!(tally.waiting == 0 && adds_up(&tally), "{tally:?}");

    desk.write("1\n");
    desk.write("2\n");
    desk.turn();
    desk.clock.advance(desk.config.max_age + Duration::from_secs(1));
    let mut desk = desk.crash();
    desk.turn();
    let tally = desk.metrics.tally();
    assert_eq!((tally.recovered, tally.dropped(DropReason::TooOld), tally.waiting), (2, 2, 0));
}

#[test]
fn what_is_counted_as_dropped_is_not_delivered_and_the_other_way_round() {
    let folder = tempfile::tempdir().unwrap();
    let mut desk = Desk::new(SpoolConfig { max_bytes: 512 * 1024, ..config(&folder) });
    let batch = |number: u64| Bytes::from(format!("{number:04}{}", "x".repeat(4_000)));
    let push = |desk: &Desk, number| drop(desk.metrics.push_batch(batch(number), 1, None, false).unwrap());
    let mut sent = Vec::new();
    push(&desk, 0);
    push(&desk, 1);
    desk.turn();
    // One is delivered, and another is under way, when the spool gives them up with the oldest segment.
    sent.extend(desk.send(None));
    sent.extend(desk.metrics.claim());
    for number in 2..400 {
        push(&desk, number);
        desk.turn();
    }
    desk.metrics.settle(None);
    sent.extend(desk.drain());
    let tally = desk.metrics.tally();
    assert!(tally.dropped(DropReason::SpoolFull) > 200 && adds_up(&tally), "{tally:?}");
    // What was under way counts as dropped: had it not arrived, nobody would have known.
    assert_eq!((tally.delivered, tally.waiting), (sent.len() as u64 - 1, 0));
    assert!(sent.is_sorted_by_key(|batch| batch.number), "the oldest go, and order is kept");
    assert_eq!(texts(&sent[..2]).concat()[..4], *"0000");
}

#[test]
fn what_was_given_up_while_it_was_sent_is_not_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut desk = Desk::new(SpoolConfig { max_bytes: 512 * 1024, ..config(&folder) });
    for number in 0..400_u64 {
        let body = Bytes::from(format!("{number:04}{}", "x".repeat(4_000)));
        drop(desk.metrics.push_batch(body, 1, None, false).unwrap());
        desk.turn();
        if number == 0 {
            assert_eq!(desk.metrics.claim().unwrap().body[..4], *b"0000");
        }
    }
    desk.metrics.release(true);
    let sent = desk.drain();
    assert!(sent.iter().all(|batch| batch.body[..4] != *b"0000"));
    let tally = desk.metrics.tally();
    assert!(adds_up(&tally) && tally.delivered == sent.len() as u64, "{tally:?}");
}

#[test]
fn what_does_not_fit_is_handed_back_or_goes_out_from_memory() {
    let folder = tempfile::tempdir().unwrap();
    let when_full = PerSignal { metrics: WhenFull::Refuse, logs: WhenFull::Refuse };
    let mut desk = Desk::new(SpoolConfig { max_bytes: 512 * 1024, when_full, ..config(&folder) });
    let body = Bytes::from(vec![b'x'; 100 * 1024]);
    let mut taken = 0;
    loop {
        let mut confirmation = desk.metrics.push_batch(body.clone(), 1, None, true).unwrap().unwrap();
        desk.turn();
        match confirmation.try_recv() {
            Ok(Ok(())) => taken += 1,
            Ok(Err(why)) => break assert_eq!(why, NotTaken::Full),
            Err(_) => panic!("no word of the batch"),
        }
    }
    assert!((3..6).contains(&taken), "{taken}");
    assert_eq!((desk.metrics.tally().written, desk.metrics.tally().waiting), (taken, taken));

    let too_large = Bytes::from(vec![b'x'; 200 * 1024]);
    let mut confirmation = desk.metrics.push_batch(too_large, 1, None, true).unwrap().unwrap();
    desk.turn();
    assert_eq!(confirmation.try_recv().unwrap(), Err(NotTaken::Oversize), "it need not come back");

    // Larger than any record of such a spool, and nobody waits for it: it goes out from memory once it is its turn.
    desk.metrics.push_batch(vec![b'y'; 200 * 1024].into(), 1, None, false).unwrap();
    desk.turn();
    assert_eq!(desk.metrics.push_batch(body, 1, None, true).map(drop), Err(NotTaken::Full));
    let sent = desk.drain();
    assert_eq!((sent.len() as u64, sent.last().unwrap().body[0]), (taken + 1, b'y'));
    assert!(adds_up(&desk.metrics.tally()) && desk.metrics.tally().waiting == 0);
}

#[tokio::test]
async fn a_flush_waits_for_what_was_written_before_it_and_not_for_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut desk = Desk::new(config(&folder));
    (0..3).for_each(|number| desk.write(&format!("{number}\n")));
    let metrics = Arc::clone(&desk.metrics);
    let mut flush = tokio::spawn(async move { metrics.flush().await });
    tokio::task::yield_now().await;
    desk.write("later\n");
    desk.write("later\n");
    for _ in 0..2 {
        desk.turn();
        tokio::task::yield_now().await;
        assert!(!flush.is_finished());
        desk.send(None).unwrap();
    }
    desk.turn();
    timeout(Duration::from_secs(5), &mut flush).await.unwrap().unwrap();
    assert_eq!(desk.metrics.tally().waiting, 2);
}

#[test]
fn a_keeper_that_is_told_to_stop_stores_what_is_staged_and_frees_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let Desk { config, clock, metrics, keeper, .. } = Desk::new(config(&folder));
    let outbox: Weak<Outbox> = Arc::downgrade(&metrics);
    for number in 0..100 {
        metrics.push(format!("{number}\n").as_bytes()).unwrap();
    }
    let (bell, rings) = Bell::new();
    let handle = keeper.start(bell, rings).unwrap();
    handle.stop();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(handle.ended(Duration::from_secs(20))));
    drop(metrics);
    assert!(outbox.upgrade().is_none());
    assert_eq!(Desk::start(&config, &clock, 2).0.tally().waiting, 100);
}

#[derive(Debug, Clone)]
enum Step {
    Write(u8, u16),
    Own(u16),
    Raw(u16),
    Turn,
    Deliver,
    Reject,
    Fail,
    Flip(u16),
    Age(u16),
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..10_u8, 1..3_000_u16).prop_map(|(items, len)| Step::Write(items, len)),
        2 => (1..3_000_u16).prop_map(Step::Own),
        2 => (1..60_000_u16).prop_map(Step::Raw),
        4 => Just(Step::Turn),
        4 => Just(Step::Deliver),
        1 => Just(Step::Reject),
        2 => Just(Step::Fail),
        1 => any::<u16>().prop_map(Step::Flip),
        1 => (0..5_000_u16).prop_map(Step::Age),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..80)
}

/// Damages a byte of a segment, if there is one.
fn flip(config: &SpoolConfig, at: u16) {
    let Ok(entries) = std::fs::read_dir(&config.folder) else { return };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    files.sort();
    // Not of the acknowledgements: what was settled may come back then, and its ID makes it a duplicate.
    files.retain(|path| path.extension().is_some_and(|kind| kind == "seg"));
    files.retain(|path| std::fs::metadata(path).unwrap().len() > 200);
    if files.is_empty() {
        return;
    }
    let path = &files[usize::from(at) % files.len()];
    let mut bytes = std::fs::read(path).unwrap();
    let index = 100 + usize::from(at) % (bytes.len() - 100);
    bytes[index] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn written_and_recovered_is_delivered_dropped_and_waiting_at_any_moment(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let mut desk = Desk::new(SpoolConfig {
            max_bytes: 512 * 1024, max_age: Duration::from_secs(3_600), ..config(&folder)
        });
        let mut ids = HashMap::new();
        let mut delivered = 0;
        // A batch that stepped aside does not come at once.
        let may_step_aside = steps.iter().any(|step| matches!(step, Step::Fail));
        for step in steps {
            match step {
                Step::Write(items, len) => {
                    (0..items).for_each(|_| desk.write(&format!("{}\n", "x".repeat(len.into()))));
                }
                Step::Own(len) => {
                    let line = format!("{}\n", "y".repeat(len.into()));
                    desk.metrics.push_to(Stream::Operational, line.as_bytes()).unwrap();
                }
                Step::Raw(len) => drop(desk.metrics.push_batch(vec![b'x'; len.into()].into(), 7, None, len % 2 == 0)),
                Step::Turn => desk.turn(),
                Step::Deliver => delivered += desk.send(None).map_or(0, |batch| batch.items),
                Step::Reject => drop(desk.send(Some(DropReason::Rejected))),
                Step::Fail => {
                    if let Some(batch) = desk.metrics.claim() {
                        let body = ids.entry(batch.id).or_insert_with(|| batch.body.clone());
                        prop_assert_eq!(&*body, &batch.body, "an ID is of one body");
                        desk.metrics.release(true);
                    }
                }
                Step::Flip(at) => flip(&desk.config, at),
                Step::Age(seconds) => desk.clock.advance(Duration::from_secs(seconds.into())),
                Step::Crash => {
                    delivered = 0;
                    let waiting = desk.metrics.tally().waiting;
                    desk = desk.crash();
                    let recovered = desk.metrics.tally().recovered;
                    prop_assert!(recovered <= waiting, "{recovered} came back of {waiting}");
                }
            }
            let tally = desk.metrics.tally();
            prop_assert!(adds_up(&tally), "{tally:?}");
            prop_assert!(desk.metrics.queued_bytes() < 300_000);
        }
        delivered += desk.drain().iter().map(|batch| batch.items).sum::<u64>();
        let tally = desk.metrics.tally();
        prop_assert_eq!(tally.delivered, delivered, "what was dropped is not delivered, and the other way round");
        prop_assert!(adds_up(&tally) && (tally.waiting == 0 || may_step_aside), "{tally:?}");
    }
}
