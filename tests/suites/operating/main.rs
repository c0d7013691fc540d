//! What operators are given beside the programs: `deploy/` and `docs/` hold what is true of the programs.

mod manifests;
mod metrics;
mod rules;
mod status;
mod units;

use std::fs;
use std::path::{Path, PathBuf};

use manifests::*;
use metrics::every_metric_of_the_dashboard_and_the_rules_exists;
use rules::{the_rules_are_accepted_by_promtool, the_rules_are_accepted_by_vmalert};
use status::the_status_has_what_its_documentation_says_and_nothing_else;
use units::{the_units_are_hardened, the_units_are_valid};

telemetry_rig::suite! {
    every_metric_of_the_dashboard_and_the_rules_exists needs [Relay, RunnerAgent];
    the_rules_are_accepted_by_vmalert needs [Vmalert];
    the_rules_are_accepted_by_promtool needs [Promtool];
    the_manifests_keep_the_stores_to_the_relay;
    the_relay_of_the_manifests_is_configured_soundly;
    the_manifests_are_valid_and_their_names_lead_somewhere needs [CheckManifests];
    the_units_are_valid needs [SystemdAnalyze, Relay, RunnerAgent];
    the_units_are_hardened needs [SystemdAnalyze];
    the_status_has_what_its_documentation_says_and_nothing_else needs [Relay];
}

/// A file of the repository.
fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(file(path)).map_err(|error| format!("{path}: {error}"))
}
