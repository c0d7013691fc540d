//! The keys of the configuration file. Every key is documented here; unknown ones are refused.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use telemetry_proto::claims::{RUNNER_ID_CLAIM, RunnerBinding};
use toml::{Table, Value};

use super::limits::LimitsSection;
use super::operational::OperationalSection;
use super::tenants::TenantSection;
use super::writers::WriterSection;
use super::{ConfigFault, ConfigFaults, EnvSource, env};
use crate::admin::DEFAULT_RUNNER_SERIES;
use crate::forward::{Attribution, LogStreamFields};
use crate::traces::TracesSettings;

/// The whole file.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    /// `[listener]`
    pub listener: ListenerSection,
    /// `[tls]`
    pub tls: TlsSection,
    /// `[tokens]`
    pub tokens: TokensSection,
    /// `[issuer]`; absent where tokens are minted elsewhere.
    pub issuer: Option<IssuerSection>,
    /// `[identity]`; absent where the operator issues every certificate.
    pub identity: Option<IdentitySection>,
    /// `[runners]`
    pub runners: RunnersSection,
    /// `[stores.metrics]`, `[stores.logs]`, `[stores.traces]`
    pub stores: StoresSection,
    /// `[limits]`
    pub limits: LimitsSection,
    /// `[traces]`; only beside `[stores.traces]`.
    pub traces: Option<TracesSettings>,
    /// `[operational]`
    pub operational: OperationalSection,
    /// `[state]`
    pub state: StateSection,
    /// `[admin]`; absent where nobody is to look.
    pub admin: Option<AdminSection>,
    /// `default_tenant`: the name of the tenant of runners that no rule matches; without it they are refused.
    pub default_tenant: Option<String>,
    /// `[[tenants]]`
    pub tenants: Vec<TenantSection>,
    /// `[[writers]]`
    pub writers: Vec<WriterSection>,
}

/// `[listener]`: where runners connect.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct ListenerSection {
    /// The UDP address, and the TCP address if `tcp` is set. Default `[::]:8443`.
    pub address: SocketAddr,
    /// Serves the same over TCP on the same port, with HTTP/2 and HTTP/1.1, for networks that block UDP. Default false.
    pub tcp: bool,
    /// Connections at a time, all runners together, over UDP and TCP. Default 10,000.
    pub max_connections: usize,
    /// Connections at a time of one runner. Default 16.
    pub max_connections_per_runner: usize,
    /// The UDP socket's buffers, in bytes each way. Default 4 MiB; the system may grant less, and the relay says so.
    pub udp_buffer_bytes: usize,
    /// UDP segmentation offload; off for network cards that get it wrong. Default true.
    pub segmentation_offload: bool,
    /// A file with the key of stateless resets (RFC 9000 section 10.3), made at the first start. With it, clients notice a
    /// restart of the relay at once; without it, at their next timeout. Default none.
    pub reset_key: Option<PathBuf>,
    /// How long the relay serves on after it is told to stop, not ready any more: for whoever sends it traffic by its
    /// readiness. Default 0: runners need none, since the relay itself tells them.
    pub drain_delay_seconds: u64,
    /// How long running requests may take after that. Default 10.
    pub drain_seconds: u64,
}

impl Default for ListenerSection {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([0_u16; 8], 8443)),
            tcp: false,
            max_connections: 10_000,
            max_connections_per_runner: 16,
            udp_buffer_bytes: 4 * 1024 * 1024,
            segmentation_offload: true,
            reset_key: None,
            drain_delay_seconds: 0,
            drain_seconds: 10,
        }
    }
}

/// `[tls]`: who the coordinator is, and whose certificates are accepted. All but `crls` are required.
#[derive(Debug, Clone, Deserialize)]
pub struct TlsSection {
    /// The coordinator's certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The cluster's CA, PEM: runners' certificates must come from it.
    pub client_ca: PathBuf,
    /// Revocation lists of that CA, PEM.
    #[serde(default)]
    pub crls: Vec<PathBuf>,
}

/// `[tokens]`: which workload tokens are accepted.
#[derive(Debug, Clone, Deserialize)]
pub struct TokensSection {
    /// The exact value of `iss`. Required.
    pub issuer: String,
    /// Issuers of before that are still accepted.
    #[serde(default)]
    pub previous_issuers: Vec<String>,
    /// Files with public keys: JWKS documents (`.json`), or PEM, whose `kid` is the key's RFC 7638 thumbprint. Not needed
    /// beside `[issuer]`.
    #[serde(default)]
    pub keys: Vec<PathBuf>,
    /// How far clocks may differ. Default 30.
    #[serde(default = "default_leeway_seconds")]
    pub leeway_seconds: u64,
    /// `required`, or `if-present` for older issuers whose tokens name no runner. Default `required`.
    #[serde(default)]
    pub runner_binding: RunnerBinding,
    /// The claim that names the runner. Default `runner_id`.
    #[serde(default = "default_runner_id_claim")]
    pub runner_id_claim: String,
}

fn default_leeway_seconds() -> u64 {
    telemetry_proto::limits::DEFAULT_LEEWAY.as_secs()
}

fn default_runner_id_claim() -> String {
    RUNNER_ID_CLAIM.to_owned()
}

/// `[issuer]`: mints tokens at `POST /_identity/token`.
#[derive(Debug, Clone, Deserialize)]
pub struct IssuerSection {
    /// The private key that signs, PEM (PKCS#8). Required.
    pub signing_key: PathBuf,
    /// Private or public keys of before, PEM: tokens signed by them are accepted until they end.
    #[serde(default)]
    pub previous_keys: Vec<PathBuf>,
    /// The organisation that goes into tokens.
    pub organization: Option<String>,
    /// The cluster that goes into tokens.
    pub cluster: Option<String>,
}

/// `[identity]`: renews runners' certificates at `POST /_identity/certificate`. All but the last two are required.
#[derive(Debug, Clone, Deserialize)]
pub struct IdentitySection {
    /// The certificate of the authority that issues, PEM; certificates of `tls.client_ca` above it follow. Best an intermediate
    /// of the cluster's CA, whose key then stays elsewhere.
    pub ca_certificate: PathBuf,
    /// Its private key, PEM (PKCS#8). Whoever holds it can be any runner and the coordinator.
    pub ca_key: PathBuf,
    /// How long a renewed certificate lives, in seconds. Default 30 days. Runners renew at two thirds of it.
    #[serde(default = "default_certificate_lifetime_seconds")]
    pub certificate_lifetime_seconds: u64,
    /// The cluster's name, for an authority that does not name it. Default: what the authority says.
    pub cluster: Option<String>,
}

fn default_certificate_lifetime_seconds() -> u64 {
    telemetry_certs::RUNNER_LIFETIME.as_secs()
}

/// `[runners]`: who was removed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct RunnersSection {
    /// A file with one removed runner's ID a line; `#` starts a comment.
    pub removed: Option<PathBuf>,
}

/// `[stores]`: where batches go. At least one is required.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct StoresSection {
    /// VictoriaMetrics.
    pub metrics: Option<StoreSection>,
    /// VictoriaLogs.
    pub logs: Option<StoreSection>,
    /// VictoriaTraces.
    pub traces: Option<StoreSection>,
}

/// `[stores.SIGNAL]`: one store.
#[derive(Debug, Clone, Deserialize)]
pub struct StoreSection {
    /// `http://HOST:PORT[/PREFIX]` or `unix:/PATH`. Required.
    pub url: String,
    /// `pinned`, or `off` for installations that must keep their old series: the runner is not named then; the tenant, where
    /// there are `[[tenants]]`, always is. Default `pinned`.
    #[serde(default)]
    pub attribution: Attribution,
    /// Logs only: the fields that identify a stream. Default `["miren_runner", "entity", "stream"]`.
    #[serde(default)]
    pub stream_fields: LogStreamFields,
    /// The store reads zstd; VictoriaMetrics 1.79.5 does not and stores garbage. Default false.
    #[serde(default)]
    pub zstd: bool,
    /// Metrics only: it is a VictoriaMetrics cluster, which takes the tenant's account from the path. Default false. VictoriaLogs
    /// and VictoriaTraces take it from headers, as a cluster or not.
    #[serde(default)]
    pub cluster: bool,
    /// How long the store may take to answer. Default 30.
    #[serde(default = "default_store_timeout_seconds")]
    pub timeout_seconds: u64,
    /// Allows an address that other machines can reach. The stores have no authentication of their own: whoever reaches
    /// their port can write, read and delete everything. Default false.
    #[serde(default)]
    pub allow_remote: bool,
}

fn default_store_timeout_seconds() -> u64 {
    telemetry_proto::limits::BACKEND_TIMEOUT.as_secs()
}

/// `[state]`: what outlives a stop.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct StateSection {
    /// A folder of this relay's own, which it may write to. At a stop the IDs of batches that are stored go there (25 bytes each,
    /// 12.5 MB at most but for names), and the next start reads them: what a runner brings again is not stored twice. Default
    /// none: they are forgotten.
    pub folder: Option<PathBuf>,
}

/// `[admin]`: metrics, health, status and a page, for operators. They are not authenticated.
#[derive(Debug, Clone, Deserialize)]
pub struct AdminSection {
    /// The TCP address. Default `127.0.0.1:9464`.
    #[serde(default = "default_admin_address")]
    pub address: SocketAddr,
    /// Allows an address that other machines can reach. Default false.
    #[serde(default)]
    pub allow_remote: bool,
    /// While no more runners than this are connected, `/metrics` has series of each; with more, of none. Default 100; 0 for
    /// never.
    #[serde(default = "default_runner_series")]
    pub runner_series: usize,
}

fn default_runner_series() -> usize {
    DEFAULT_RUNNER_SERIES
}

fn default_admin_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9464))
}

impl ConfigFile {
    /// Reads the text of a file, with the overrides of `env`.
    ///
    /// # Errors
    /// Every unknown key, and the first fault of each section.
    pub fn parse(text: &str, env: &dyn EnvSource) -> Result<Self, ConfigFaults> {
        let mut faults = ConfigFaults::default();
        let file = Self::read(text, env, &mut faults);
        faults.into_result(file)
    }

    /// What can be read of it, so that more can be found out than what is wrong with the text. What is no part of it, or can
    /// do without its faulty section, is there in spite of the fault.
    pub(super) fn read(text: &str, env: &dyn EnvSource, faults: &mut ConfigFaults) -> Option<Self> {
        let mut table = table(text).map_err(|fault| faults.push(fault)).ok()?;
        env::apply(&mut table, env, faults);
        let listener = section(&mut table, "listener", faults);
        let tls = section(&mut table, "tls", faults);
        let tokens = section(&mut table, "tokens", faults);
        let issuer = optional_section(&mut table, "issuer", faults);
        let identity = optional_section(&mut table, "identity", faults);
        let runners = section(&mut table, "runners", faults);
        let stores = section(&mut table, "stores", faults);
        let limits = section(&mut table, "limits", faults);
        let traces = optional_section(&mut table, "traces", faults);
        let operational = section(&mut table, "operational", faults);
        let state = section(&mut table, "state", faults);
        let admin = optional_section(&mut table, "admin", faults);
        let default_tenant = optional_text(&mut table, "default_tenant", faults);
        let tenants = sections(&mut table, "tenants", faults);
        let writers = sections(&mut table, "writers", faults);
        for key in table.keys() {
            faults.push(unknown_key(key));
        }
        Some(Self {
            listener: listener?,
            tls: tls?,
            tokens: tokens?,
            issuer: issuer?,
            identity: identity.unwrap_or_default(),
            runners: runners.unwrap_or_default(),
            stores: stores?,
            limits: limits.unwrap_or_default(),
            traces: traces.unwrap_or_default(),
            operational: operational.unwrap_or_default(),
            state: state.unwrap_or_default(),
            admin: admin.unwrap_or_default(),
            default_tenant: default_tenant?,
            tenants: tenants?,
            writers: writers?,
        })
    }
}

fn table(text: &str) -> Result<Table, ConfigFault> {
    toml::from_str(text)
        .map_err(|error| ConfigFault::new("the file", error.to_string().trim_end(), "write it as TOML 1.0"))
}

/// `[admin]`, whatever else is wrong. The outer `None` says that it can't be read.
pub(super) fn admin(text: &str, env: &dyn EnvSource, faults: &mut ConfigFaults) -> Option<Option<AdminSection>> {
    // Of a text that is no TOML the lines of the section may still be.
    let mut table = table(text)
        .or_else(|fault| match lines_of(text, "[admin]") {
            lines if lines.is_empty() => Err(fault),
            lines => table(&lines).map_err(|_| fault),
        })
        .map_err(|fault| faults.push(fault))
        .ok()?;
    env::apply(&mut table, env, &mut ConfigFaults::default());
    optional_section(&mut table, "admin", faults)
}

/// The lines from `header` to the next one.
fn lines_of(text: &str, header: &str) -> String {
    let from = text.lines().skip_while(|line| line.trim() != header);
    let section = from.enumerate().take_while(|(i, line)| *i == 0 || !line.trim_start().starts_with('['));
    section.map(|(_, line)| format!("{line}\n")).collect()
}

/// Takes one section out of the table. A section that is not there is an empty one.
fn section<T: DeserializeOwned>(table: &mut Table, name: &str, faults: &mut ConfigFaults) -> Option<T> {
    read(table.remove(name).unwrap_or_else(|| Value::Table(Table::new())), name, faults)
}

fn read<T: DeserializeOwned>(value: Value, name: &str, faults: &mut ConfigFaults) -> Option<T> {
    let mut unknown = Vec::new();
    let result = serde_ignored::deserialize(value, |path| unknown.push(key_path(name, &path.to_string())));
    unknown.iter().for_each(|key| faults.push(unknown_key(key)));
    result
        .map_err(|error: toml::de::Error| {
            faults.push(ConfigFault::new(format!("[{name}]"), error.to_string().trim_end(), ""));
        })
        .ok()
}

/// Takes a section that may be missing. The outer `None` says that it is there and can't be read.
fn optional_section<T: DeserializeOwned>(
    table: &mut Table,
    name: &str,
    faults: &mut ConfigFaults,
) -> Option<Option<T>> {
    if table.contains_key(name) { section(table, name, faults).map(Some) } else { Some(None) }
}

/// Takes a list of sections, named in messages by their number from 1.
fn sections<T: DeserializeOwned>(table: &mut Table, name: &str, faults: &mut ConfigFaults) -> Option<Vec<T>> {
    match table.remove(name) {
        None => Some(Vec::new()),
        Some(Value::Array(values)) => {
            let numbered = values.into_iter().enumerate();
            let read: Vec<_> = numbered.map(|(i, value)| read(value, &format!("{name}[{}]", i + 1), faults)).collect();
            read.into_iter().collect()
        }
        Some(_) => {
            faults.push(ConfigFault::new(name, "is no list", format!("write each as [[{name}]]")));
            None
        }
    }
}

/// Takes a text. The outer `None` says that it is there and is something else.
fn optional_text(table: &mut Table, name: &str, faults: &mut ConfigFaults) -> Option<Option<String>> {
    match table.remove(name) {
        None => Some(None),
        Some(Value::String(text)) => Some(Some(text)),
        Some(_) => {
            faults.push(ConfigFault::new(name, "is no text", "write it in quotes, before every [section]"));
            None
        }
    }
}

/// The key as the file has it: an optional section shows as `?` in the path.
fn key_path(section: &str, path: &str) -> String {
    let keys = path.split('.').filter(|key| *key != "?");
    keys.fold(section.to_owned(), |path, key| format!("{path}.{key}"))
}

fn unknown_key(key: &str) -> ConfigFault {
    ConfigFault::new(key, "unknown key", "remove it, or mind its spelling; the example configuration lists every key")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_ENV: &[(&str, &str); 0] = &[];
    const GOOD: &str = r#"
        [tls]
        certificate = "c.pem"
        key = "k.pem"
        client_ca = "ca.pem"
        [tokens]
        issuer = "https://c.example"
        [stores.metrics]
        url = "http://127.0.0.1:8428"
    "#;

    #[test]
    fn what_is_not_said_has_a_default() {
        let file = ConfigFile::parse(GOOD, NO_ENV).unwrap();
        assert_eq!(file.listener.address.port(), 8443);
        assert_eq!(file.tokens.leeway_seconds, 30);
        assert!(file.issuer.is_none() && file.stores.logs.is_none());
    }

    #[test]
    fn lesson_2_unknown_keys_are_refused_and_all_are_named() {
        let text = format!(
            "{GOOD}\nurll = 'x'\n[listener]\nadress = '1.1.1.1:1'\n[limitz]\na = 1\n[limits]\ntenant_in_flight = 'four'\n"
        );
        let faults = ConfigFile::parse(&text, NO_ENV).unwrap_err();
        let at: Vec<_> = faults.as_slice().iter().map(|fault| fault.at.as_str()).collect();
        assert_eq!(at, ["listener.adress", "stores.metrics.urll", "[limits]", "limitz"]);
    }

    #[test]
    fn a_missing_section_names_what_is_missing() {
        let message = ConfigFile::parse("", NO_ENV).unwrap_err().to_string();
        assert!(message.contains("[tls]: missing field `certificate`"), "{message}");
        assert!(message.contains("[tokens]: missing field `issuer`"), "{message}");
    }

    #[test]
    fn the_environment_overrides() {
        let env = &[
            ("TELEMETRY_RELAY__LISTENER__ADDRESS", "127.0.0.1:9"),
            ("TELEMETRY_RELAY__LIMITS__TENANT_IN_FLIGHT", "7"),
            ("TELEMETRY_RELAY__STORES__METRICS__URL", "http://127.0.0.1:1"),
            ("TELEMETRY_RELAY__TOKENS__PREVIOUS_ISSUERS", "['a', 'b']"),
            ("TELEMETRY_RELAY__DEFAULT_TENANT", "acme"),
            ("PATH", "/bin"),
        ];
        let file = ConfigFile::parse(GOOD, env).unwrap();
        assert_eq!(file.listener.address.to_string(), "127.0.0.1:9");
        assert_eq!(file.limits.tenant_in_flight, 7);
        assert_eq!(file.stores.metrics.unwrap().url, "http://127.0.0.1:1");
        assert_eq!(file.tokens.previous_issuers, ["a", "b"]);
        assert_eq!(file.default_tenant.as_deref(), Some("acme"));
        let bad = &[("TELEMETRY_RELAY__ADDRESS", "x"), ("TELEMETRY_RELAY__LISTENER__NO", "1")];
        assert_eq!(ConfigFile::parse(GOOD, bad).unwrap_err().as_slice().len(), 2);
    }
}
