//! A million random steps against a model: whoever comes, goes away, waits too long or finishes, the line does what the
//! model says, and nothing is lost at the end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use telemetry_proto::RunnerId;
use tokio::time::{Instant, advance};

use super::Caller;
use super::line::{Line, Place};
use super::queue::{Bounds, Turn};
use crate::once::BatchId;

const ACTORS: usize = 48;
/// Each has several requests at a time.
const RUNNERS: usize = 8;
const BOUNDS: Bounds = Bounds { capacity: 8, max_waiting: 12, max_waiting_of_one: 3 };
const PATIENCE: Duration = Duration::from_secs(10);

/// The rules, as naively as they can be written.
#[derive(Default)]
struct Model {
    used: u64,
    last_turn: Turn,
    /// In the order of their turns.
    waiting: Vec<Waiting>,
}

struct Waiting {
    turn: Turn,
    units: u64,
    with_ticket: bool,
    actor: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Served,
    Waits,
    TurnedAway,
}

impl Model {
    fn arrive(&mut self, actor: usize, units: u64, ticket: Option<Turn>) -> (Turn, Expected) {
        let turn = ticket.unwrap_or_else(|| {
            self.last_turn += 1;
            self.last_turn
        });
        let is_next = self.waiting.iter().all(|other| turn < other.turn);
        if is_next && self.fits(units) {
            self.used += units;
            return (turn, Expected::Served);
        }
        let fresh: Vec<_> = self.waiting.iter().filter(|other| !other.with_ticket).collect();
        let of_one = fresh.iter().filter(|other| other.actor % RUNNERS == actor % RUNNERS).count();
        let is_full = fresh.len() >= BOUNDS.max_waiting || of_one >= BOUNDS.max_waiting_of_one;
        if ticket.is_none() && is_full {
            return (turn, Expected::TurnedAway);
        }
        self.waiting.push(Waiting { turn, units, with_ticket: ticket.is_some(), actor });
        self.waiting.sort_by_key(|waiting| waiting.turn);
        (turn, Expected::Waits)
    }

    fn fits(&self, units: u64) -> bool {
        self.used == 0 || self.used + units <= BOUNDS.capacity
    }

    /// Who is served now.
    fn serve(&mut self) -> Vec<usize> {
        let mut served = Vec::new();
        while self.waiting.first().is_some_and(|first| self.fits(first.units)) {
            let first = self.waiting.remove(0);
            self.used += first.units;
            served.push(first.actor);
        }
        served
    }

    fn leave(&mut self, turn: Turn, units: u64) -> Vec<usize> {
        let before = self.waiting.len();
        self.waiting.retain(|other| other.turn != turn);
        if self.waiting.len() == before {
            self.used -= units;
        }
        self.serve()
    }

    fn finish(&mut self, units: u64) -> Vec<usize> {
        self.used -= units;
        self.serve()
    }
}

type Taking = Pin<Box<dyn Future<Output = Result<Place, Duration>>>>;

enum State {
    Away,
    Waiting { taking: Taking, turn: Turn, units: u64, until: Instant, served: bool },
    Holding { place: Place, units: u64 },
}

struct Actor {
    caller: Caller,
    state: State,
    woken: Arc<Flag>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct World {
    line: Arc<Line>,
    model: Model,
    actors: Vec<Actor>,
    batches: u128,
    turned_away: u64,
    came_back_to_their_turn: u64,
}

impl World {
    fn new() -> Self {
        let actors = (0..ACTORS).map(|i| Actor {
            caller: Caller { author: RunnerId::new(&format!("r{}", i % RUNNERS)).unwrap().into(), batch: None },
            state: State::Away,
            woken: Arc::default(),
        });
        let actors = actors.collect();
        Self {
            line: Line::new(),
            model: Model::default(),
            actors,
            batches: 0,
            turned_away: 0,
            came_back_to_their_turn: 0,
        }
    }

    /// An actor that is away comes: with its batch of before, or with a new one.
    fn arrive(&mut self, i: usize, units: u64, with_new_batch: bool) {
        if with_new_batch {
            self.batches += 1;
            self.actors[i].caller.batch = Some(BatchId::from_u128(self.batches));
        }
        let caller = self.actors[i].caller.clone();
        let ticket = self.line.turn_kept_for(&caller);
        self.came_back_to_their_turn += u64::from(ticket.is_some());
        let (turn, expected) = self.model.arrive(i, units, ticket);
        let until = Instant::now() + PATIENCE;
        let line = Arc::clone(&self.line);
        let mut taking: Taking = Box::pin(async move { line.take(&caller, units, BOUNDS, until).await });
        let polled = poll(&mut taking, &self.actors[i].woken);
        let (state, seen) = match polled {
            Poll::Ready(Ok(place)) => (State::Holding { place, units }, Expected::Served),
            Poll::Ready(Err(_)) => (State::Away, Expected::TurnedAway),
            Poll::Pending => (State::Waiting { taking, turn, units, until, served: false }, Expected::Waits),
        };
        assert_eq!(seen, expected);
        self.turned_away += u64::from(seen == Expected::TurnedAway);
        self.actors[i].state = state;
    }

    /// An actor that waits goes away, or one that holds something gives it back.
    fn go(&mut self, i: usize) {
        let served = match std::mem::replace(&mut self.actors[i].state, State::Away) {
            State::Away => return,
            State::Waiting { taking, turn, units, .. } => {
                drop(taking);
                self.model.leave(turn, units)
            }
            State::Holding { place, units } => {
                drop(place);
                self.model.finish(units)
            }
        };
        self.note(&served);
    }

    /// An actor that waits looks whether its turn has come, or whether its patience has ended.
    fn look(&mut self, i: usize) {
        let actor = &mut self.actors[i];
        let State::Waiting { taking, turn, units, until, served } = &mut actor.state else { return };
        let (turn, units, until, was_served) = (*turn, *units, *until, *served);
        match poll(taking, &actor.woken) {
            Poll::Ready(Ok(place)) => {
                assert!(was_served, "someone got what others wait for");
                actor.state = State::Holding { place, units };
            }
            Poll::Pending => assert!(!was_served && Instant::now() < until, "someone waits for nothing"),
            Poll::Ready(Err(after)) => {
                assert!(!was_served && Instant::now() >= until);
                assert!((1..=300).contains(&after.as_secs()));
                actor.state = State::Away;
                self.turned_away += 1;
                let served = self.model.leave(turn, units);
                self.note(&served);
            }
        }
    }

    /// Those who are served were woken.
    fn note(&mut self, served: &[usize]) {
        for i in served {
            let actor = &mut self.actors[*i];
            assert!(actor.woken.0.swap(false, Ordering::Relaxed), "nobody woke the one whose turn has come");
            let State::Waiting { served, .. } = &mut actor.state else { panic!("only who waits is served") };
            *served = true;
        }
    }

    fn check(&self) {
        assert_eq!((self.line.used(), self.line.waiting()), (self.model.used, self.model.waiting.len()));
    }
}

fn poll(taking: &mut Taking, woken: &Arc<Flag>) -> Poll<Result<Place, Duration>> {
    woken.0.store(false, Ordering::Relaxed);
    taking.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
}

async fn run(seed: u64, steps: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new();
    for _ in 0..steps {
        let i = random.usize(..ACTORS);
        match random.u8(..100) {
            0..=1 => {
                advance(Duration::from_millis(random.u64(..6_000))).await;
                (0..ACTORS).for_each(|i| world.look(i));
            }
            2..=44 if matches!(world.actors[i].state, State::Away) => {
                let units = if random.u8(..50) == 0 { 9 } else { random.u64(1..4) };
                world.arrive(i, units, random.u8(..10) == 0);
            }
            2..=54 => world.look(i),
            // Of those who hold something, fewer go: the line is to be full most of the time.
            _ if matches!(world.actors[i].state, State::Holding { .. }) && random.bool() => {}
            55..=64 => world.go(i),
            _ if matches!(world.actors[i].state, State::Holding { .. }) => world.go(i),
            _ => world.look(i),
        }
        world.check();
    }
    assert!(world.turned_away > 0 && world.came_back_to_their_turn > 0, "the steps lead to everything");
    (0..ACTORS).for_each(|i| world.go(i));
    world.check();
    assert_eq!((world.line.used(), world.line.waiting()), (0, 0), "something leaked");
}

#[test]
fn a_million_random_steps_leak_nothing_and_go_by_the_model() {
    for seed in 0..4 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(tokio::task::unconstrained(run(seed, 250_000)));
    }
}
