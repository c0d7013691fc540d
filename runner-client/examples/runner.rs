//! A runner, from boot to shutdown, in the right order.
//!
//! ```sh
//! cargo run --example runner -- FOLDER r1 localhost:8443
//! ```
//!
//! FOLDER holds `ca.pem`, and the certificate and key of the runner that is named, as `r1.pem` and `r1.key`. It works until
//! SIGTERM.

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use telemetry_certs::{Credentials, Roots};
use telemetry_runner_client::{Client, LateTokenSource, LogRecord, Point};
use tokio::signal::unix::{SignalKind, signal};

/// How long the end may take. What supervises the runner must wait longer than this before it kills it.
const GRACE: Duration = Duration::from_secs(10);

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: runner FOLDER NAME COORDINATOR");
    let (folder, name, coordinator) = (next()?, next()?, next()?);
    run(Path::new(&folder), &name, &coordinator).await
}

async fn run(folder: &Path, name: &str, coordinator: &str) -> Result<(), Failure> {
    let ended = told_to_end()?;

    // 1. Writers come first, before anything that has something to say. They connect to nobody yet, and what they take waits
    //    for the token source to be armed.
    let credentials = Credentials::from_files(folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")))?;
    let tokens = LateTokenSource::new();
    let client = Client::builder()
        .coordinator(coordinator)
        .identity(credentials, Roots::from_file(folder.join("ca.pem"))?)
        .token_source(Arc::new(tokens.clone()))
        .build()?;
    let (metrics, logs) = (client.metrics(), client.logs());

    // 2. The runner boots, and says so. None of this waits for the network.
    logs.write(&LogRecord::new("runner", "stdout", "boots"))?;
    metrics.write(Point::new("runner_boots", 1.0))?;

    // 3. It has joined its cluster: from now on the coordinator gives it tokens, and what has waited is sent.
    tokens.arm(client.issuer());

    // 4. It works. Writers can be cloned into every corner of the program; a full queue is an answer, never a wait.
    let work = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        for tick in 0_u32.. {
            ticks.tick().await;
            if let Err(not_taken) = metrics.write(Point::new("runner_ticks", f64::from(tick))) {
                println!("a point was not taken: {not_taken}");
            }
        }
    });
    println!("works");
    ended.await;

    // 5. First whoever writes ends, then the last words are said, then the client closes: it delivers what it has, for so
    //    long and no longer.
    work.abort();
    let _ = work.await;
    logs.write(&LogRecord::new("runner", "stdout", "ends"))?;
    let report = client.close(GRACE).await;
    println!("{} delivered, {} dropped, {} lost", report.delivered, report.dropped, report.lost);
    if report.lost == 0 { Ok(()) } else { Err("not everything was delivered in time".into()) }
}

/// Ctrl-C, or what a supervisor sends: whatever comes after this call is not missed.
fn told_to_end() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
