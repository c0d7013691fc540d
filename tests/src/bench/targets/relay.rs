//! Our relay, with everything on that it has on by default: attribution, tokens, budgets, batch IDs.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use telemetry_relay::gate::SignatureAlgorithm;

use super::{BenchStore, Target, TargetKind};
use crate::bench::BenchError;
use crate::bench::gauge::Gauge;
use crate::bench::identities::Identities;
use crate::net::free_address;
use crate::rig::{Parts, RelayProgram};

/// As many requests at the store, and in line for it, as the load has under way: one tenant is all there is.
const LIMITS: &str = "[limits]\ntenant_in_flight = 256\ntenant_waiting = 4096\nrunner_waiting = 4096\n";

/// What differs from the usual.
#[derive(Debug, Default)]
pub(in crate::bench) struct RelaySetup {
    /// More of the configuration file.
    pub(in crate::bench) settings: String,
    /// Overrides of settings, by variable.
    pub(in crate::bench) variables: Vec<(&'static str, String)>,
    /// Another build of the program, as the target `before`.
    pub(in crate::bench) before: Option<PathBuf>,
}

pub(super) async fn start(
    store: &Arc<BenchStore>,
    identities: &Identities,
    setup: &RelaySetup,
) -> Result<Target, BenchError> {
    let folder = tempfile::Builder::new().prefix("telemetry-bench-").tempdir()?;
    let jwks = folder.path().join("keys.json");
    fs::write(&jwks, identities.jwks())?;
    let mut variables = setup.variables.clone();
    variables.push(("TELEMETRY_RELAY__TOKENS__KEYS", format!("[{:?}]", jwks.display().to_string())));
    let address = free_address()?;
    let parts = Parts {
        cluster: identities.cluster(),
        signing: identities.key(SignatureAlgorithm::EdDsa)?,
        metrics: store.address(),
        logs: store.address(),
        traces: None,
        tcp: false,
        settings: &format!("{LIMITS}{}", setup.settings),
        variables: &variables,
        log_levels: "info",
    };
    let (kind, program) = match &setup.before {
        Some(before) => (TargetKind::Before, RelayProgram::start_program(before.clone(), address, parts).await?),
        None => (TargetKind::Relay, RelayProgram::start(address, parts).await?),
    };
    Ok(Target {
        kind,
        address,
        gauge: Gauge::new(program.pid()?),
        bearer: None,
        program: Some(program),
        _held: Box::new(folder),
    })
}
