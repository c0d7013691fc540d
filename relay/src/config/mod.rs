//! The configuration of `telemetry-relay`: a TOML file, overrides from the environment, and validation that names every
//! fault at once.

mod env;
mod fault;
mod file;

pub use env::{EnvSource, ProcessEnv};
pub use fault::{ConfigFault, ConfigFaults};
pub use file::{
    ConfigFile, IssuerSection, LimitsSection, ListenerSection, RunnersSection, StoreSection, StoresSection, TlsSection,
    TokensSection,
};
