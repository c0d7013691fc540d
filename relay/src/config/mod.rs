//! The configuration of `telemetry-relay`: a TOML file, overrides from the environment, and validation that names every
//! fault at once.

mod assemble;
mod env;
mod fault;
mod file;
mod identity;
mod limits;
mod lives;
mod operational;
mod reset_key;
mod settings;
mod tenants;
mod writers;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub use assemble::read_keys;
pub use env::{EnvSource, ProcessEnv};
pub use fault::{ConfigFault, ConfigFaults};
pub use file::{
    AdminSection, ConfigFile, IdentitySection, IssuerSection, ListenerSection, RunnersSection, StateSection,
    StoreSection, StoresSection, TlsSection, TokensSection,
};
pub use limits::{LimitsSection, TenantLimitsSection};
pub use lives::{Life, check_lives};
pub use operational::{Operational, OperationalSection};
pub use settings::{FixedSettings, IssuerSettings, Outside, Settings, TlsSettings};
pub use tenants::{AccountFromSection, RuleSection, TenantSection};
pub use writers::WriterSection;

/// What became of a configuration that was read.
pub struct Reading {
    /// The settings, or everything that is wrong.
    pub settings: Result<Settings, ConfigFaults>,
    /// The files that it names, whether they could be read or not, and itself: when one of them changes, it is worth reading
    /// again.
    pub files: Vec<PathBuf>,
    /// What of it can be tried out, whether the rest is sound or not.
    pub outside: Outside,
}

/// Reads the file at `path`, applies the environment, and reads every key and certificate.
/// Paths in the file are relative to the file's folder.
pub fn read(path: &Path, env: &dyn EnvSource) -> Reading {
    let mut faults = ConfigFaults::default().of_file(path);
    let file = faults
        .take(path.display(), UNREADABLE, std::fs::read_to_string(path))
        .and_then(|text| ConfigFile::read(&text, env, &mut faults));
    match file {
        Some(file) => assemble::assemble(&file, path, faults),
        None => Reading { settings: Err(faults), files: vec![path.to_owned()], outside: Outside::default() },
    }
}

/// Reads as [`read`] does, for those who need all or nothing.
///
/// # Errors
/// Everything that is wrong, not the first.
pub fn load(path: &Path, env: &dyn EnvSource) -> Result<Settings, ConfigFaults> {
    read(path, env).settings
}

/// The address of `[admin]`, if there is that section. Nothing else of the file needs to be sound: whoever asks for this may do
/// so because it is not.
///
/// # Errors
/// What is wrong with the file or the section.
pub fn admin_address(path: &Path, env: &dyn EnvSource) -> Result<Option<SocketAddr>, ConfigFaults> {
    let mut faults = ConfigFaults::default();
    let section = faults
        .take(path.display(), UNREADABLE, std::fs::read_to_string(path))
        .and_then(|text| file::admin(&text, env, &mut faults));
    section.map(|section| section.map(|section| section.address)).ok_or(faults)
}

const UNREADABLE: &str = "name a readable file with --config, or make one from the example in the operator's guide";

/// Fuzz target: what can be said of a text without opening a file.
#[cfg(feature = "fuzzing")]
pub(crate) fn examine_text(text: &str) -> Result<(), ConfigFaults> {
    let file = ConfigFile::parse(text, &[("", ""); 0])?;
    let mut faults = ConfigFaults::default();
    file.limits.check(&mut faults);
    let tenants = tenants::tenants(&file, &mut faults);
    faults.into_result(tenants).map(drop)
}
