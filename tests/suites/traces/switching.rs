//! The coordinator decides, while runners run.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use telemetry_proto::Signal;
use telemetry_relay::forward::BackendSettings;
use telemetry_relay::traces::TracesSettings;
use telemetry_rig::rig::Rig;
use telemetry_rig::stores::BuiltInStore;
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use telemetry_runner_client::trace::Entry;

use super::{DEADLINE, POLL, becomes, tally, write};

/// A coordinator whose traces are off, or on with a ratio in percent; a change takes effect with its restart.
#[derive(Clone, Default)]
struct Setting {
    percent: Arc<AtomicU32>,
    store: Arc<OnceLock<SocketAddr>>,
}

const OFF: u32 = u32::MAX;

impl Setting {
    async fn rig(&self, store: &BuiltInStore) -> Result<Rig, Box<dyn std::error::Error>> {
        let _ = self.store.set(store.address());
        self.percent.store(OFF, Ordering::SeqCst);
        let setting = self.clone();
        let adjust = move |relay: telemetry_relay::RelayBuilder| {
            let percent = setting.percent.load(Ordering::SeqCst);
            let settings = TracesSettings { sample_ratio: f64::from(percent) / 100.0, ..TracesSettings::default() };
            match setting.store.get() {
                Some(store) if percent != OFF => {
                    relay.store(Signal::Traces, BackendSettings::new((*store).into())).traces(settings)
                }
                _ => relay,
            }
        };
        Ok(Rig::builder().relay(adjust).client(|client| client.policy_interval(POLL)).start().await?)
    }

    async fn change(&self, rig: &Rig, percent: u32) -> TestResult {
        self.percent.store(percent, Ordering::SeqCst);
        // In good order, so that its port is free.
        rig.relay().stop().await?;
        Ok(rig.relay().restart().await?)
    }
}

pub(crate) async fn switched_on_while_runners_run_spans_flow_within_the_polling_time_and_stop_when_switched_off()
-> TestResult {
    let (setting, store) = (Setting::default(), BuiltInStore::start().await?);
    let rig = setting.rig(&store).await.map_err(|error| error.to_string())?;
    let client = &rig.runner(0).client;
    let writer = client.spans();
    let mut policy = client.policy().watch();
    policy.wait_for(Option::is_some).await?;
    write(&writer, 0..100);
    assert_eq!((writer.is_enabled(), tally(client).written), (false, 0), "there are no spans");

    setting.change(&rig, 100).await?;
    becomes(&writer, true).await?;
    write(&writer, 100..200);
    assert_eq!(client.flush(DEADLINE).await.delivered, 100);
    assert_eq!(store.spans().len(), 100);

    setting.change(&rig, OFF).await?;
    becomes(&writer, false).await?;
    write(&writer, 200..300);
    assert_eq!((tally(client).written, store.spans().len()), (100, 100));
    Ok(())
}

pub(crate) async fn the_ratio_is_the_coordinators_and_changes_with_it() -> TestResult {
    let (setting, store) = (Setting::default(), BuiltInStore::start().await?);
    let rig = setting.rig(&store).await.map_err(|error| error.to_string())?;
    let writer = rig.runner(0).client.spans();
    let sampled = || {
        let is_sampled = |_: &u32| writer.entry(Entry::DataPath, "s", None).context().is_some_and(|c| c.sampled);
        (0..1_000).filter(is_sampled).count()
    };
    for (percent, expected) in [(0, 0..=0), (10, 50..=150), (100, 1_000..=1_000), (1, 0..=30)] {
        setting.change(&rig, percent).await?;
        let look = async || match sampled() {
            count if writer.is_enabled() && expected.contains(&count) => Ok(()),
            count => Err(format!("{count} of 1,000")),
        };
        wait::until(format!("{percent} %"), DEADLINE, look).await?;
    }
    Ok(())
}
