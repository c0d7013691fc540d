//! Many runners at once: what a whole fleet does to a relay that comes back.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use telemetry_rig::http::{HttpClient, HttpError};
use telemetry_rig::net::free_address;
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use telemetry_runner_client::{BatchLimits, Point, SignalSettings};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

telemetry_rig::suite! {
    lesson_24_two_hundred_clients_recover_together_and_stay_under_twice_their_steady_rate needs [Relay];
}

const CLIENTS: usize = 200;
/// Each client fills a batch for as long, so that this is its steady rate.
const BATCH_AGE: Duration = Duration::from_secs(2);
const WRITE_EVERY: Duration = Duration::from_millis(250);
const OUTAGE: Duration = Duration::from_secs(4);
/// The rate is that over a window of this length.
const WINDOW: Duration = Duration::from_secs(4);
const LOOK_EVERY: Duration = Duration::from_millis(250);

async fn lesson_24_two_hundred_clients_recover_together_and_stay_under_twice_their_steady_rate() -> TestResult {
    let batch = BatchLimits { max_age: BATCH_AGE, ..SignalSettings::metrics().batch };
    let settings = SignalSettings { batch, ..SignalSettings::metrics() };
    let admin = free_address()?;
    let rig = Rig::builder()
        .runners(CLIENTS)
        .relay_program(&format!("[admin]\naddress = \"{admin}\"\n"))
        .client(move |client| client.metrics_settings(settings.clone()))
        .start()
        .await?;
    (0..CLIENTS).for_each(|index| rig.runner(index).arm());
    let writing = write(&rig, Duration::from_secs(16));
    let watching = async {
        // Everyone has a token and a connection before the relay goes.
        wait::until("a batch of each", Duration::from_secs(30), async || {
            let runners = stored(&rig).len();
            if runners == CLIENTS { Ok(()) } else { Err(format!("of {runners}")) }
        })
        .await?;
        rig.relay().stop().await?;
        rig.metrics_store().kill().await?;
        sleep(OUTAGE).await;
        rig.relay().restart().await?;
        // At first it can only say "later" to everyone.
        let store_returns = Instant::now() + WINDOW;
        let mut is_store_back = false;
        // The new relay counts from zero.
        let mut counts = vec![0];
        let end = Instant::now() + 3 * WINDOW;
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while Instant::now() < end {
            looks.tick().await;
            if !is_store_back && Instant::now() >= store_returns {
                rig.metrics_store().restart().await?;
                is_store_back = true;
            }
            counts.push(requests(admin).await?);
        }
        Ok::<_, Box<dyn std::error::Error>>(counts)
    };
    let (written, counts) = tokio::join!(writing, watching);
    let counts = counts.map_err(|error| error.to_string())?;
    let looks = usize::try_from(WINDOW.as_millis() / LOOK_EVERY.as_millis())?;
    let peak = counts.windows(looks + 1).map(|window| window[looks] - window[0]).max().unwrap_or_default();
    let steady = u64::try_from(CLIENTS)? * WINDOW.as_secs() / BATCH_AGE.as_secs();
    println!("steady {steady}, peak {peak} requests in {WINDOW:?}: {counts:?}");
    assert!(peak < 2 * steady, "{peak} requests in {WINDOW:?}, of which {steady} are usual: {counts:?}");

    for index in 0..CLIENTS {
        let report = rig.runner(index).client.flush(Duration::from_secs(30)).await;
        assert_eq!((report.waiting, report.dropped), (0, 0), "r{}", index + 1);
    }
    let stored = stored(&rig);
    assert!(stored.len() == CLIENTS && stored.values().all(|points| *points == written), "{written}: {stored:?}");
    Ok(())
}

/// Every client writes at the same pace. Returns how many points each has written.
async fn write(rig: &Rig, length: Duration) -> usize {
    let end = Instant::now() + length;
    let mut pace = interval(WRITE_EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut written = 0;
    while Instant::now() < end {
        pace.tick().await;
        for index in 0..CLIENTS {
            // A point more is a value of its own: what is stored twice shows.
            let point = Point::new("fleet", f64::from(u32::try_from(written).unwrap_or(u32::MAX)));
            let _ = rig.runner(index).client.metrics().write(point);
        }
        written += 1;
    }
    written
}

/// How many points of each runner the store has.
fn stored(rig: &Rig) -> BTreeMap<String, usize> {
    let mut runners = BTreeMap::new();
    for sample in rig.built_in_store().samples() {
        *runners.entry(sample.label("miren_runner").to_owned()).or_default() += 1;
    }
    runners
}

/// All requests that the relay has had, refused ones too.
async fn requests(admin: SocketAddr) -> Result<u64, HttpError> {
    let (_, page) = HttpClient::new(admin).get("/metrics").await?;
    let page = String::from_utf8_lossy(&page);
    let series = page.lines().filter(|line| line.starts_with("telemetry_relay_requests_total"));
    Ok(series.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
}
