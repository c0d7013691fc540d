//! `telemetry-relay token`: workload tokens, for those who look for what is wrong.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use telemetry_proto::claims::{AUDIENCE, Expectations, RUNNER_ID_CLAIM, RunnerBinding, WORKLOAD};
use telemetry_proto::mint::MintRequest;
use telemetry_proto::{Clock, Reason, RunnerId, Signal, SystemClock, limits};
use telemetry_relay::config::{self, ProcessEnv, Settings};
use telemetry_relay::gate::{Explanation, KeySet, Outcome as Checked, Question, RemovedRunners, explain};
use telemetry_relay::issuer::{Issuer, KeyRing, SigningKey};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Outcome;
use super::exit::Failure;

/// More than this is no token, whatever stands around it.
const MAX_INPUT_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Mint a workload token for a runner, with the issuer's key of a configuration. Prints the token and nothing else.
    ///
    /// It is good only together with the runner's certificate. Runners mint their own; this is for tests and for tools that
    /// can't.
    #[command(
        after_help = "Examples:\n  telemetry-relay token mint --config relay.toml --runner r7 --lifetime 600 >token\n  \
                      telemetry-relay token mint --config relay.toml --runner r7 --signals metrics,traces --json"
    )]
    Mint(Mint),
    /// Walk a token through every check that a relay makes, and say where it fails and what to do.
    ///
    /// Works offline, with a configuration or with the issuer's keys. The signature is never printed, nor the token. Exit
    /// code 0 only if every check holds.
    #[command(after_help = "Examples:\n  telemetry-relay token explain --config relay.toml --runner r7 - <token\n  \
                      telemetry-relay token explain --keys jwks.json --issuer https://c.example --file token\n  \
                      telemetry-relay token explain --config relay.toml --file token --at 2026-01-31T12:00:00Z --json")]
    Explain(Explain),
}

#[derive(Debug, Args)]
pub(super) struct Mint {
    /// The configuration whose [issuer] signs.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The runner that the token is for.
    #[arg(long, value_name = "ID")]
    runner: RunnerId,
    /// For whom. Repeatable.
    #[arg(long, value_name = "NAME", default_value = AUDIENCE)]
    audience: Vec<String>,
    /// The system workload.
    #[arg(long, value_name = "NAME", default_value = WORKLOAD)]
    workload: String,
    /// How many seconds it lives: 60 to 86400.
    #[arg(long, value_name = "SECONDS", default_value_t = limits::DEFAULT_TOKEN_LIFETIME.as_secs(),
        value_parser = clap::value_parser!(u64)
            .range(limits::MIN_TOKEN_LIFETIME.as_secs()..=limits::MAX_TOKEN_LIFETIME.as_secs()))]
    lifetime: u64,
    /// The signals that it grants, with commas between. Default: all that the configuration has a store for.
    #[arg(long, value_name = "SIGNALS", value_delimiter = ',')]
    signals: Option<Vec<Signal>>,
    /// Print one JSON object: `token`, `expires_at`, `server_time`.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// The token, or `-` for standard input. Others on this machine can see what stands on a command line.
    #[arg(value_name = "TOKEN|-", required_unless_present = "file", conflicts_with = "file")]
    token: Option<String>,
    /// A file with the token.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The configuration of the relay that refuses it.
    #[arg(long, value_name = "FILE", required_unless_present = "keys", conflicts_with_all = ["keys", "issuer"])]
    config: Option<PathBuf>,
    /// Keys of the issuer: a JWKS document (.json), a public key or a signing key in PEM. Repeatable.
    #[arg(long, value_name = "FILE", requires = "issuer")]
    keys: Vec<PathBuf>,
    /// With --keys: the issuer's exact name.
    #[arg(long, value_name = "ISS", requires = "keys")]
    issuer: Option<String>,
    /// With --keys: the claim that names the runner.
    #[arg(long, value_name = "NAME", default_value = RUNNER_ID_CLAIM, conflicts_with = "config")]
    runner_id_claim: String,
    /// With --keys: accept a token that names no runner.
    #[arg(long, conflicts_with = "config")]
    runner_if_present: bool,
    /// The runner whose certificate it is shown with.
    #[arg(long, value_name = "ID")]
    runner: Option<RunnerId>,
    /// The signal that it is shown for.
    #[arg(long, value_name = "SIGNAL")]
    signal: Option<Signal>,
    /// When it is shown: RFC 3339, or seconds since 1970. Default: now.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    at: Option<u64>,
    /// Print one JSON object: `ok`, `reason`, and `steps`.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(command: Command) -> Outcome {
    match command {
        Command::Mint(mint) => mint.run(),
        Command::Explain(explain) => explain.run(),
    }
}

impl Mint {
    fn run(self) -> Outcome {
        let settings = config::load(&self.config, &ProcessEnv)?;
        let issuer = settings.issuer.ok_or_else(|| {
            Failure::Other("this configuration has no [issuer]; tokens are minted elsewhere".to_owned())
        })?;
        let signals = self.signals.or_else(|| Some(issuer.config.signals.clone()));
        let ring = KeyRing::new(issuer.signing, &issuer.former).map_err(Failure::other)?;
        let registry = Arc::new(RemovedRunners::new(settings.removed));
        let issuer = Issuer::new(issuer.config, ring, Arc::new(SystemClock), registry).map_err(Failure::other)?;
        let request = MintRequest {
            system_workload: self.workload,
            audience: self.audience,
            ttl_seconds: self.lifetime,
            signals,
        };
        let minted = issuer.mint_for(&request, &self.runner).map_err(|reason| refused(reason, &self.runner))?;
        if self.json {
            println!("{}", serde_json::to_string(&minted).map_err(Failure::other)?);
        } else {
            println!("{}", minted.token);
        }
        Ok(())
    }
}

fn refused(reason: Reason, runner: &RunnerId) -> Failure {
    let remedy = match reason {
        Reason::RunnerRemoved => format!("take {runner} off the file of runners.removed, if it is to come back"),
        Reason::MintNotAllowed => {
            format!("a relay mints for {AUDIENCE} and {WORKLOAD}, and grants signals that it has a store for")
        }
        _ => "see the log".to_owned(),
    };
    Failure::Other(format!("{reason}: {}\n    {remedy}", reason.text()))
}

impl Explain {
    fn run(self) -> Outcome {
        let token = self.token()?;
        let (keys, expected, removed) = match &self.config {
            Some(path) => of_config(config::load(path, &ProcessEnv)?)?,
            None => (self.read_keys()?, self.expectations(), None),
        };
        let question = Question {
            keys: &keys,
            expected: &expected,
            now: self.at.unwrap_or_else(|| SystemClock.unix_seconds()),
            runner: self.runner.as_ref(),
            signal: self.signal,
            registry: removed.as_ref().map(|removed| removed as _),
        };
        let explanation = explain(token.trim(), &question);
        if self.json {
            println!("{}", serde_json::to_string(&explanation).map_err(Failure::other)?);
        } else {
            print_text(&explanation);
        }
        match explanation.reason {
            None => Ok(()),
            Some(reason) => Err(Failure::Other(format!("a relay answers {reason}: {}", reason.text()))),
        }
    }

    fn token(&self) -> Result<String, Failure> {
        match (self.token.as_deref(), &self.file) {
            (Some("-"), _) => read(std::io::stdin().lock(), "standard input"),
            (Some(token), _) => Ok(token.to_owned()),
            (None, Some(path)) => read(open(path)?, &path.display().to_string()),
            (None, None) => Err(Failure::Usage("name a token, - or --file".to_owned())),
        }
    }

    fn read_keys(&self) -> Result<KeySet, Failure> {
        self.keys.iter().try_fold(KeySet::default(), |keys, path| {
            let more = match config::read_keys(path) {
                Ok(more) => more,
                Err(fault) => of_signing_key(path).ok_or_else(|| Failure::Other(fault.to_string()))?,
            };
            keys.merge(&more).map_err(|error| Failure::Other(format!("{}: {error}", path.display())))
        })
    }

    fn expectations(&self) -> Expectations {
        let mut expected = Expectations::new(self.issuer.clone().unwrap_or_default());
        expected.runner_id_claim.clone_from(&self.runner_id_claim);
        if self.runner_if_present {
            expected.runner_binding = RunnerBinding::IfPresent;
        }
        expected
    }
}

/// What a relay with these settings checks tokens against.
fn of_config(settings: Settings) -> Result<(KeySet, Expectations, Option<RemovedRunners>), Failure> {
    let mut keys = settings.keys;
    if let Some(issuer) = &settings.issuer {
        let signing = KeySet::of(issuer.signing.kid(), issuer.signing.public().clone()).map_err(Failure::other)?;
        keys = keys.merge(&issuer.former).and_then(|keys| keys.merge(&signing)).map_err(Failure::other)?;
    }
    Ok((keys, settings.expected, Some(RemovedRunners::new(settings.removed))))
}

/// The public half of a signing key. Only that is kept.
fn of_signing_key(path: &Path) -> Option<KeySet> {
    let key = SigningKey::from_pem(&std::fs::read(path).ok()?).ok()?;
    KeySet::of(key.kid(), key.public().clone()).ok()
}

fn print_text(explanation: &Explanation) {
    for step in &explanation.steps {
        let mark = match step.outcome {
            Checked::Holds => "ok  ",
            Checked::Fails => "FAIL",
            Checked::NotReached => "-   ",
        };
        println!("{mark} {:<18} expected: {}", step.check, step.expected);
        println!("     {:<18} found:    {}", "", step.found);
        if let Some(remedy) = step.remedy {
            println!("     {:<18} remedy:   {remedy}", "");
        }
    }
    match explanation.reason {
        None => println!("every check holds"),
        Some(reason) => println!("refused with {reason}"),
    }
}

fn open(path: &Path) -> Result<std::fs::File, Failure> {
    std::fs::File::open(path).map_err(|error| Failure::Other(format!("{}: {error}", path.display())))
}

fn read(from: impl Read, what: &str) -> Result<String, Failure> {
    let mut text = Vec::new();
    from.take(MAX_INPUT_BYTES).read_to_end(&mut text).map_err(|error| Failure::Other(format!("{what}: {error}")))?;
    String::from_utf8(text).map_err(|_| Failure::Other(format!("{what}: no text, and so no token")))
}

fn parse_time(text: &str) -> Result<u64, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let time =
        OffsetDateTime::parse(text, &Rfc3339).map_err(|_| "expected RFC 3339 or seconds since 1970".to_owned())?;
    let since = SystemTime::from(time).duration_since(UNIX_EPOCH);
    since.as_ref().map(Duration::as_secs).map_err(|_| "expected a time after 1970".to_owned())
}
