//! One process's part in a journey. The processes share the command's ID and nothing else.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use telemetry_certs::{Credentials, Roots};
use telemetry_runner_client::Client;
use telemetry_runner_client::trace::{Entry, Journey, Settlement, SpanWriter};

use crate::wait;

/// How long the policy may take that says that traces are taken, and how long delivery may.
const WITHIN: Duration = Duration::from_secs(10);

/// A runner's part, as the demonstration starts it in a process of its own.
#[derive(Debug, Args)]
pub struct JourneyPart {
    /// Which part.
    #[arg(long, value_enum)]
    part: Part,
    /// The command's ID.
    #[arg(long)]
    command: String,
    /// The coordinator, HOST:PORT.
    #[arg(long)]
    coordinator: String,
    /// Where `runner.pem`, `runner.key` and `ca.pem` are.
    #[arg(long)]
    identity: PathBuf,
    /// How long ago the command was accepted, in milliseconds.
    #[arg(long, default_value_t = 0)]
    accepted_ms_ago: u64,
}

/// What a process does for a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// Accepts it, in a request of its own.
    Accept,
    /// Attempts it twice.
    Attempt,
    /// Settles it.
    Settle,
}

impl Part {
    pub(super) const ALL: [Self; 3] = [Self::Accept, Self::Attempt, Self::Settle];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Attempt => "attempt",
            Self::Settle => "settle",
        }
    }
}

impl JourneyPart {
    /// Writes the spans of this part and delivers them. Returns the ID of the trace that they are in.
    ///
    /// # Errors
    /// In words: what did not work.
    pub async fn play(&self) -> Result<String, String> {
        let file = |name: &str| self.identity.join(name);
        let credentials = Credentials::from_files(file("runner.pem"), file("runner.key"));
        let roots = Roots::from_file(file("ca.pem")).map_err(|error| error.to_string())?;
        let client = Client::builder()
            .coordinator(self.coordinator.clone())
            .identity(credentials.map_err(|error| error.to_string())?, roots)
            .build()
            .map_err(|error| error.to_string())?;
        let spans = client.spans();
        let told = async || if spans.is_enabled() { Ok(()) } else { Err("not yet".to_owned()) };
        wait::until("the policy", WITHIN, told).await.map_err(|error| error.to_string())?;
        let trace = self.write(&spans)?;
        let report = client.close(WITHIN).await;
        if report.delivered == 0 || report.dropped + report.lost > 0 {
            return Err(format!("not delivered: {report:?}"));
        }
        Ok(trace)
    }

    fn write(&self, spans: &SpanWriter) -> Result<String, String> {
        let journey = Journey::of(&self.command);
        match self.part {
            Part::Accept => {
                let mut request = spans.entry(Entry::Control, "create volume", None);
                request.link(journey.root());
                let context = request.context().ok_or("the request is not recorded")?;
                request.end();
                return Ok(context.trace_id.to_string());
            }
            Part::Attempt => [1, 2].into_iter().for_each(|number| journey.attempt(spans, "attach", number).end()),
            Part::Settle => {
                let accepted = SystemTime::now() - Duration::from_millis(self.accepted_ms_ago);
                let settlement = Settlement { code: "attached", failed: false };
                journey.settle(spans, "volume", accepted, settlement).map_err(|error| error.to_string())?;
            }
        }
        Ok(journey.root().trace_id.to_string())
    }
}
