//! A storm: a relay goes away under a crowd of real runners' clients, which all come back at once when it does.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use telemetry_proto::RunnerId;
use telemetry_runner_client::{Client, LateTokenSource, Point};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::http::HttpClient;
use crate::net::free_address;
use crate::rig::Rig;
use crate::stores::{Fault, lost_and_twice};

/// Runners that connect at a time at first: that is no storm.
const AT_ONCE: usize = 32;
/// How long a runner may take for anything before it counts as starved.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long the relay is away.
const AWAY: Duration = Duration::from_secs(2);
/// Batches that are under way when the relay goes: more than may wait there, so that some were told to come back much later by a relay
/// that is no more.
const UNDER_WAY: usize = 512;
/// How long batches are waited for to be under way.
const UNDER_WAY_WITHIN: Duration = Duration::from_secs(3);
/// How often the relay is asked how many handshakes it has under way.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// Handshakes that a relay has under way with one address, at most.
pub const HANDSHAKES: u64 = 64;

type Failure = Box<dyn Error + Send + Sync>;

/// What was seen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StormReport {
    /// How many runners there were.
    pub runners: usize,
    /// How long it took until everyone was there at first, 32 at a time.
    pub connected_in: Duration,
    /// What happened each time that the relay went away.
    pub returns: Vec<Return>,
    /// Batches that are in no store at the end.
    pub lost: usize,
    /// Batches that are there more than once.
    pub twice: usize,
}

/// How the crowd came back after the relay did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Return {
    /// How the relay went away.
    pub how: Departure,
    /// Batches of the crowd that the relay had under way when it went away.
    pub under_way: u64,
    /// From the start of the relay until everyone was connected, as the relay says.
    pub all_back_in: Duration,
    /// Until half of them had delivered all that waited.
    pub half_delivered_in: Duration,
    /// Until the last had.
    pub all_delivered_in: Duration,
    /// The most handshakes that the relay was seen to have under way.
    pub handshakes_peak: u64,
    /// How often it asked an address to prove itself first.
    pub retries: u64,
    /// How often it ignored an attempt, since it had enough.
    pub ignored: u64,
}

impl Return {
    /// Whether everyone was connected, and had delivered all that waited, within this time, and the peak of handshakes was bounded.
    #[must_use]
    pub fn is_good(&self, within: Duration) -> bool {
        self.all_back_in.max(self.all_delivered_in) <= within && self.handshakes_peak <= HANDSHAKES
    }
}

/// How a relay goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Departure {
    /// It is asked to: it finishes what runs.
    #[serde(rename = "SIGTERM")]
    Stopped,
    /// At once, while a store has not answered.
    #[serde(rename = "SIGKILL")]
    Killed,
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped => "SIGTERM",
            Self::Killed => "SIGKILL",
        })
    }
}

/// Lets `runners` real clients lose their relay in the middle of a batch, once in good order and once by a crash.
///
/// # Errors
/// Something does not start, or a runner does not get its batches away.
pub async fn run(runners: usize, mut progress: impl FnMut(&'static str, usize)) -> Result<StormReport, Failure> {
    let admin = free_address()?;
    let settings = format!("[admin]\naddress = \"{admin}\"");
    let rig = Rig::builder().runners(0).relay_program(&settings).log_levels("info").start().await?;
    let crowd: Vec<Runner> = (1..=runners).map(|number| Runner::new(&rig, number)).collect::<Result<_, _>>()?;

    let began = Instant::now();
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut connecting = JoinSet::new();
    for runner in &crowd {
        let (runner, places) = (runner.clone(), Arc::clone(&places));
        connecting.spawn(async move {
            let _place = places.acquire_owned().await?;
            runner.write(0)?;
            runner.deliver().await
        });
    }
    let mut connected = 0;
    while let Some(delivered) = connecting.join_next().await {
        delivered??;
        connected += 1;
        progress("connected", connected);
    }
    let connected_in = began.elapsed();

    let mut returns = Vec::new();
    let mut batches = 1;
    for how in [Departure::Stopped, Departure::Killed] {
        returns.push(storm(&rig, admin, &crowd, how, batches, &mut progress).await?);
        batches += 2;
    }
    let (lost, twice) = compare(&rig, &crowd, batches);
    Ok(StormReport { runners, connected_in, returns, lost, twice })
}

async fn storm(
    rig: &Rig,
    admin: SocketAddr,
    crowd: &[Runner],
    how: Departure,
    number: u32,
    progress: &mut impl FnMut(&'static str, usize),
) -> Result<Return, Failure> {
    // A store that takes its time, so that batches are under way when the relay goes; one that never answers has stored nothing, so
    // that nothing of a relay that is killed may be there twice.
    let store = rig.built_in_store();
    store.always(Some(match how {
        Departure::Stopped => Fault::Delay(Duration::from_millis(20)),
        Departure::Killed => Fault::Hang,
    }));
    let mut sending = JoinSet::new();
    for runner in crowd.iter().take(UNDER_WAY) {
        runner.write(number)?;
        let runner = runner.clone();
        sending.spawn(async move { runner.deliver().await });
    }
    let enough = crowd.len().min(UNDER_WAY) as u64 / 2;
    let mut under_way = 0;
    let waiting = async {
        while under_way < enough {
            under_way = under_way.max(Figures::read(admin).await?.requests_running);
        }
        Ok::<_, Failure>(())
    };
    // Those that were quick are done.
    if let Ok(failed) = timeout(UNDER_WAY_WITHIN, waiting).await {
        failed?;
    }
    match how {
        Departure::Stopped => rig.relay().stop().await?,
        Departure::Killed => rig.relay().kill().await?,
    }
    store.always(None);
    sending.shutdown().await;
    // Everyone wants something of the next relay.
    let mut delivering = JoinSet::new();
    for runner in crowd {
        runner.write(number + 1)?;
        let runner = runner.clone();
        delivering.spawn(async move { runner.deliver().await.map(|()| Instant::now()) });
    }
    sleep(AWAY).await;

    let back = Instant::now();
    let mut figures = Figures::default();
    let mut all_back_in = None;
    let mut times = Vec::new();
    let coming = async {
        while let Some(delivered) = delivering.join_next().await {
            times.push(delivered??.saturating_duration_since(back));
            progress("back", times.len());
        }
        Ok::<_, Failure>(())
    };
    let watching = async {
        rig.relay().restart().await?;
        loop {
            if let Ok(Ok(now)) = timeout(LOOK_WITHIN, Figures::read(admin)).await {
                if now.connections >= crowd.len() as u64 {
                    all_back_in.get_or_insert_with(|| back.elapsed());
                }
                figures = Figures { handshakes: figures.handshakes.max(now.handshakes), ..now };
            }
            sleep(LOOK_EVERY).await;
        }
    };
    tokio::select! {
        come = coming => come?,
        Err::<Infallible, Failure>(failed) = watching => return Err(failed),
    }
    times.sort();
    Ok(Return {
        how,
        under_way,
        // Everyone has been there when all have delivered.
        all_back_in: all_back_in.or(times.last().copied()).unwrap_or_default(),
        half_delivered_in: times.get(times.len() / 2).copied().unwrap_or_default(),
        all_delivered_in: times.last().copied().unwrap_or_default(),
        handshakes_peak: figures.handshakes,
        retries: figures.retries,
        ignored: figures.ignored,
    })
}

/// A runner with the client of a runner.
#[derive(Clone)]
struct Runner {
    id: RunnerId,
    client: Client,
}

impl Runner {
    fn new(rig: &Rig, number: usize) -> Result<Self, Failure> {
        let id = RunnerId::new(&format!("runner-{number:05}"))?;
        let tokens = LateTokenSource::new();
        let client = Client::builder()
            .coordinator(format!("localhost:{}", rig.relay_address().port()))
            .identity(rig.cluster().issue_runner(&id)?, rig.cluster().roots().clone())
            .token_source(Arc::new(tokens.clone()))
            .build()?;
        tokens.arm(client.issuer());
        Ok(Self { id, client })
    }

    fn write(&self, number: u32) -> Result<(), Failure> {
        self.client.metrics().write(Point::new("storm", number.into()))?;
        Ok(())
    }

    async fn deliver(&self) -> Result<(), Failure> {
        let report = self.client.flush(PATIENCE).await;
        match (report.waiting, report.dropped) {
            (0, 0) => Ok(()),
            _ => Err(format!("{} did not get its batches away: {report:?}", self.id).into()),
        }
    }
}

/// What the relay says of itself.
#[derive(Debug, Default)]
struct Figures {
    connections: u64,
    handshakes: u64,
    requests_running: u64,
    retries: u64,
    ignored: u64,
}

impl Figures {
    async fn read(admin: SocketAddr) -> Result<Self, Failure> {
        let (_, page) = HttpClient::new(admin).get("/metrics").await?;
        let page = String::from_utf8_lossy(&page);
        let sum = |name: &str, label: &str| {
            let series = page.lines().filter(|line| line.starts_with(name) && line.contains(label));
            series.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
        };
        let refused = "telemetry_listener_connections_refused_total";
        Ok(Self {
            connections: sum("telemetry_listener_connections_active", ""),
            handshakes: sum("telemetry_listener_handshakes_running", ""),
            requests_running: sum("telemetry_listener_requests_running", ""),
            retries: sum(refused, "\"retry\""),
            ignored: sum(refused, "\"too-many-handshakes\""),
        })
    }
}

/// How many batches are not there, and how many more than once.
fn compare(rig: &Rig, crowd: &[Runner], batches: u32) -> (usize, usize) {
    let stored = rig.built_in_store().samples().into_iter().map(|sample| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of ours")]
        let number = sample.value as u32;
        (sample.label("miren_runner").to_owned(), number)
    });
    let expected = crowd.iter().enumerate().flat_map(|(index, runner)| {
        // The odd ones are those that were under way.
        let written = (0..batches).filter(move |number| number % 2 == 0 || index < UNDER_WAY);
        written.map(|number| (runner.id.to_string(), number))
    });
    lost_and_twice(stored, expected)
}

/// A table for people.
impl fmt::Display for StormReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "runners                  {} in {:.1} s at first", self.runners, self.connected_in.as_secs_f64())?;
        for back in &self.returns {
            writeln!(
                f,
                "after {}            all back in {:.1} s; half had delivered all in {:.1} s, and the last in {:.1} s; {} batches were under way; handshakes at a time {} at most, \
                 {} asked to prove their address, {} ignored",
                back.how,
                back.all_back_in.as_secs_f64(),
                back.half_delivered_in.as_secs_f64(),
                back.all_delivered_in.as_secs_f64(),
                back.under_way,
                back.handshakes_peak,
                back.retries,
                back.ignored
            )?;
        }
        writeln!(f, "batches                  lost {}, twice {}", self.lost, self.twice)
    }
}
