//! The configuration of `telemetry-relay`: a TOML file, overrides from the environment, and validation that names every
//! fault at once.

mod assemble;
mod env;
mod fault;
mod file;
mod identity;
mod limits;
mod operational;
mod reset_key;
mod settings;
mod tenants;
mod writers;

use std::path::Path;

pub use assemble::read_keys;
pub use env::{EnvSource, ProcessEnv};
pub use fault::{ConfigFault, ConfigFaults};
pub use file::{
    AdminSection, ConfigFile, IdentitySection, IssuerSection, ListenerSection, RunnersSection, StateSection,
    StoreSection, StoresSection, TlsSection, TokensSection,
};
pub use limits::{LimitsSection, TenantLimitsSection};
pub use operational::{Operational, OperationalSection};
pub use settings::{FixedSettings, IssuerSettings, Settings, TlsSettings};
pub use tenants::{AccountFromSection, RuleSection, TenantSection};
pub use writers::WriterSection;

/// Reads the file at `path`, applies the environment, and reads every key and certificate.
/// Paths in the file are relative to the file's folder.
///
/// # Errors
/// Everything that is wrong, not the first.
pub fn load(path: &Path, env: &dyn EnvSource) -> Result<Settings, ConfigFaults> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let remedy = "name a readable file with --config, or make one from the example in the operator's guide";
        ConfigFaults::one(ConfigFault::new(path.display(), error, remedy))
    })?;
    let file = ConfigFile::parse(&text, env)?;
    assemble::assemble(&file, path)
}

/// Fuzz target: what can be said of a text without opening a file.
#[cfg(feature = "fuzzing")]
pub(crate) fn examine_text(text: &str) -> Result<(), ConfigFaults> {
    let file = ConfigFile::parse(text, &[("", ""); 0])?;
    let mut faults = ConfigFaults::default();
    file.limits.check(&mut faults);
    let tenants = tenants::tenants(&file, &mut faults);
    faults.into_result(tenants).map(drop)
}
