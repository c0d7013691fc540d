//! Takes the pictures of the relay's page that `docs/` shows: a cluster under a load that comes and goes, in a real browser.

#![expect(clippy::print_stdout, reason = "a program")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use telemetry_proto::{Signal, header};
use telemetry_rig::browser::{Browser, View};
use telemetry_rig::net::free_address;
use telemetry_rig::rig::{Rig, StoreKind};
use telemetry_runner_client::{LogRecord, Point};
use tokio::time::sleep;

const RUNNERS: usize = 7;

/// Takes pictures of the relay's page under load.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Where the pictures go.
    #[arg(long, default_value = "docs", value_name = "FOLDER")]
    folder: PathBuf,
    /// How long the load lasts; the charts show 15 minutes.
    #[arg(long, default_value_t = 900)]
    seconds: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let admin = free_address()?;
    let settings = format!(
        "[admin]\naddress = \"{admin}\"\n\
         [[tenants]]\nname = \"edge\"\naccount = \"7\"\nmatch = [{{ runner = \"r1\" }}, {{ runner = \"r2\" }}, {{ runner = \"r3\" }}]\n\
         [[tenants]]\nname = \"build\"\naccount = \"8\"\nmatch = [{{ runner = \"r*\" }}]\nlimits = {{ in_flight = 8 }}\n"
    );
    let rig = Rig::builder().stores(StoreKind::Real).runners(RUNNERS).relay_program(&settings).start().await?;
    (0..RUNNERS).for_each(|runner| rig.runner(runner).arm());
    let pictures = async {
        sleep(Duration::from_secs(options.seconds)).await;
        take(&options.folder, &format!("http://{admin}/")).await
    };
    tokio::select! {
        taken = pictures => taken,
        ended = load(&rig) => ended,
    }
}

async fn take(folder: &Path, url: &str) -> Result<(), Box<dyn Error>> {
    let mut browser = Browser::start().await?;
    let desk = View { height: 1_240, ..View::DESK };
    for (name, view) in [("light", desk), ("dark", View { dark: true, ..desk }), ("phone", View::PHONE)] {
        browser.look(view).await?;
        browser.open(url).await?;
        sleep(Duration::from_secs(3)).await;
        let file = folder.join(format!("page-{name}.png"));
        std::fs::write(&file, browser.screenshot().await?)?;
        println!("{}", file.display());
    }
    Ok(())
}

/// Goes on until the pictures are taken.
async fn load(rig: &Rig) -> Result<(), Box<dyn Error>> {
    for tick in 0_u32.. {
        write(rig, tick)?;
        if tick % 150 == 0 {
            refusals(rig, tick).await?;
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// A load that comes and goes, and differs from runner to runner.
fn write(rig: &Rig, tick: u32) -> Result<(), Box<dyn Error>> {
    let phase = f64::from(tick) / 350.0;
    for runner in 0..RUNNERS {
        let own = f64::from(u32::try_from(runner)?);
        let wave = 1.0 + (phase + own).sin() + 0.4 * (phase * 5.3 + own).sin() + fastrand::f64() * 0.5;
        let client = &rig.runner(runner).client;
        for number in (0..50_u32).take_while(|number| f64::from(*number) < wave * 20.0) {
            client.metrics().write(Point::new("jobs_running", f64::from(number)).label("queue", "build"))?;
            client.logs().write(&LogRecord::new("app/web", "stdout", "request served").attribute("number", number))?;
        }
    }
    Ok(())
}

/// What an operator finds in the log of refusals.
async fn refusals(rig: &Rig, tick: u32) -> Result<(), Box<dyn Error>> {
    let which = usize::try_from(tick / 150)? % RUNNERS;
    let client = rig.raw_client(which).await?;
    let stolen = rig.token((which + 1) % RUNNERS);
    let ended = rig.token_for(&rig.runner(which).id).shifted(-7_200).sign(rig.signing_key());
    for _ in 0..=(tick / 150) % 3 {
        client.write(Signal::Metrics).token(&stolen).body("up 1\n").send().await?;
    }
    client.write(Signal::Logs).token(&ended).body("{}\n").send().await?;
    client.write(Signal::Logs).token(&rig.token(which)).header(header::BATCH_ID, "none").body("{}\n").send().await?;
    Ok(())
}
