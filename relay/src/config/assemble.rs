//! From the file's keys to a relay that can serve.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use telemetry_certs::{Credentials, Crls, Roots, ServerTls};
use telemetry_proto::claims::Expectations;
use telemetry_proto::{Clock, Signal, SystemClock, limits};

use super::reset_key;
use super::tenants::tenants;
use super::{AdminSection, ConfigFaults, ConfigFile, IssuerSection, ListenerSection, StoreSection, TlsSection};
use crate::admin::{AdminConfig, CertificateStatus};
use crate::forward::{BackendSettings, StoreAddress};
use crate::gate::{JwtVerifier, KeySet, MAX_JWKS_BYTES, PublicKey, RemovedRunners, RunnerRegistry};
use crate::issuer::{Issuer, IssuerConfig, KeyRing, SigningKey};
use crate::listener::ListenerConfig;
use crate::traces::TracesSettings;
use crate::{RelayBuilder, RelayService};

/// The ALPN protocol of HTTP/3 (RFC 9114 section 3.1).
const ALPN_H3: &[u8] = b"h3";

/// Everything that `serve` needs, validated.
pub struct Assembled {
    /// The service.
    pub service: RelayService,
    /// Where and how to listen.
    pub listener: ListenerConfig,
    /// The coordinator's side of TLS.
    pub tls: Arc<rustls::ServerConfig>,
    /// How long running requests may take after the relay is told to stop.
    pub drain: Duration,
    /// The stores of the signals that are taken, for the startup line.
    pub stores: Vec<(Signal, StoreAddress)>,
    /// Whether tokens are minted here.
    pub mints: bool,
    /// The certificate that the coordinator shows.
    pub certificate: CertificateStatus,
    /// Where operators look, if anywhere.
    pub admin: Option<AdminConfig>,
}

pub(super) fn assemble(file: &ConfigFile, base: &Path) -> Result<Assembled, ConfigFaults> {
    let mut faults = ConfigFaults::default();
    let tls = tls(&file.tls, base, &mut faults);
    let registry = registry(file, base, &mut faults);
    let issuer = issuer(file, base, registry.clone(), &mut faults);
    let keys = keys(file, issuer.as_ref().and_then(Option::as_deref), base, &mut faults);
    let stores = stores(file, &mut faults);
    let traces = traces(file, &mut faults);
    let listener = listener(&file.listener, base, &mut faults);
    if let Some(admin) = &file.admin {
        check_admin(admin, &mut faults);
    }
    file.limits.check(&mut faults);
    let tenants = tenants(file, &mut faults);
    check_tokens(file, &mut faults);
    let assembled = (|| {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let verifier = JwtVerifier::new(keys?, expectations(file), clock);
        let mut builder = RelayBuilder::new(Arc::new(verifier))
            .registry(registry?)
            .tenants(tenants?)
            .budget_limits(file.limits.budget())
            .body_limits(file.limits.body())
            .traces(traces)
            .allow_unknown_length(file.limits.allow_unknown_length);
        let (tls, certificate) = tls?;
        let issuer = issuer?;
        let mints = issuer.is_some();
        if let Some(issuer) = issuer {
            builder = builder.issuer(issuer);
        }
        let stores = stores?;
        let addresses = stores.iter().map(|(signal, settings)| (*signal, settings.address.clone())).collect();
        for (signal, settings) in stores {
            builder = builder.store(signal, settings);
        }
        Some(Assembled {
            service: builder.build(),
            listener: listener?,
            tls,
            certificate,
            admin: file.admin.as_ref().map(|s| AdminConfig { address: s.address, allow_remote: s.allow_remote }),
            drain: Duration::from_secs(file.listener.drain_seconds),
            stores: addresses,
            mints,
        })
    })();
    faults.into_result(assembled)
}

fn tls(
    section: &TlsSection,
    base: &Path,
    faults: &mut ConfigFaults,
) -> Option<(Arc<rustls::ServerConfig>, CertificateStatus)> {
    let credentials = Credentials::from_files(base.join(&section.certificate), base.join(&section.key));
    let credentials = faults.take("tls.certificate and tls.key", "", credentials);
    if let Some(credentials) = &credentials {
        faults.require(
            !telemetry_certs::looks_like_runner(credentials.leaf()),
            "tls.certificate",
            "is a runner's certificate, which no client accepts from a coordinator",
            "`telemetry-relay certs issue coordinator` makes one",
        );
    }
    let roots = faults.take("tls.client_ca", "", Roots::from_file(base.join(&section.client_ca)));
    let mut crls = Crls::default();
    for path in &section.crls {
        if let Some(more) = faults.take("tls.crls", "", Crls::from_file(base.join(path))) {
            crls.extend(more);
        }
    }
    let credentials = credentials?;
    let config = telemetry_certs::server_config(ServerTls {
        credentials: &credentials,
        client_roots: &roots?,
        crls: crls.ders(),
        alpn: &[ALPN_H3],
    });
    let tls = faults.take("[tls]", "", config).map(Arc::new)?;
    let summary = faults.take("tls.certificate", "", telemetry_certs::describe(credentials.leaf()))?;
    Some((tls, CertificateStatus::of(&summary)))
}

fn check_admin(section: &AdminSection, faults: &mut ConfigFaults) {
    faults.require(
        section.allow_remote || section.address.ip().is_loopback(),
        "admin.address",
        &format!("{} can be reached by other machines, and whoever reaches it sees who is connected", section.address),
        "choose a loopback address, or set allow_remote = true",
    );
}

fn registry(file: &ConfigFile, base: &Path, faults: &mut ConfigFaults) -> Option<Arc<dyn RunnerRegistry>> {
    let removed = match &file.runners.removed {
        None => Default::default(),
        Some(path) => faults.take("runners.removed", "", RemovedRunners::load(&base.join(path)))?,
    };
    Some(Arc::new(RemovedRunners::new(removed)))
}

/// The issuer, if there is to be one. The outer `None` says that it can't be had.
fn issuer(
    file: &ConfigFile,
    base: &Path,
    registry: Option<Arc<dyn RunnerRegistry>>,
    faults: &mut ConfigFaults,
) -> Option<Option<Arc<Issuer>>> {
    let Some(section) = &file.issuer else { return Some(None) };
    let ring = key_ring(section, base, faults);
    let mut config = IssuerConfig::new(&file.tokens.issuer);
    config.organization.clone_from(&section.organization);
    config.cluster.clone_from(&section.cluster);
    config.runner_id_claim.clone_from(&file.tokens.runner_id_claim);
    config.signals = granted(file);
    let issuer = Issuer::new(config, ring?, Arc::new(SystemClock), registry?);
    faults.take("[issuer]", "", issuer).map(|issuer| Some(Arc::new(issuer)))
}

/// A signal is granted to someone only where there is a store for it.
fn granted(file: &ConfigFile) -> Vec<Signal> {
    let stores = [&file.stores.metrics, &file.stores.logs, &file.stores.traces];
    Signal::ALL.into_iter().zip(stores).filter_map(|(signal, store)| store.as_ref().map(|_| signal)).collect()
}

fn key_ring(section: &IssuerSection, base: &Path, faults: &mut ConfigFaults) -> Option<KeyRing> {
    const REMEDY: &str = "name a PKCS#8 private key in PEM; `telemetry-relay certs init` makes one";
    let path = base.join(&section.signing_key);
    let pem = faults.take(&at("issuer.signing_key", &path), REMEDY, std::fs::read(&path));
    let signing = pem.and_then(|pem| faults.take(&at("issuer.signing_key", &path), REMEDY, SigningKey::from_pem(&pem)));
    let mut former = Some(KeySet::default());
    for path in &section.previous_keys {
        let more = read_key_file("issuer.previous_keys", &base.join(path), faults);
        former = merge(former, more, "issuer.previous_keys", faults);
    }
    faults.take("[issuer]", "", KeyRing::new(signing?, &former?))
}

/// The keys that tokens are verified with: those of the files, and the issuer's own.
fn keys(file: &ConfigFile, issuer: Option<&Issuer>, base: &Path, faults: &mut ConfigFaults) -> Option<KeySet> {
    let mut keys = Some(issuer.map(Issuer::public_keys).unwrap_or_default());
    for path in &file.tokens.keys {
        let more = read_key_file("tokens.keys", &base.join(path), faults);
        keys = merge(keys, more, "tokens.keys", faults);
    }
    keys
}

fn merge(keys: Option<KeySet>, more: Option<KeySet>, at: &str, faults: &mut ConfigFaults) -> Option<KeySet> {
    faults.take(at, "", keys?.merge(&more?))
}

/// A JWKS document (`.json`), or a public key in PEM whose `kid` is its RFC 7638 thumbprint, as the issuer gives it.
fn read_key_file(key: &str, path: &Path, faults: &mut ConfigFaults) -> Option<KeySet> {
    const REMEDY: &str = "name a JWKS document that ends in .json, or a public key in PEM";
    let at = at(key, path);
    let bytes = faults.take(&at, REMEDY, read_bounded(path))?;
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
        return faults.take(&at, REMEDY, KeySet::from_jwks(&bytes));
    }
    let public = faults.take(&at, REMEDY, PublicKey::from_pem(&bytes))?;
    faults.take(&at, REMEDY, KeySet::of(&public.thumbprint(), public))
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_JWKS_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn stores(file: &ConfigFile, faults: &mut ConfigFaults) -> Option<Vec<(Signal, BackendSettings)>> {
    let sections = [
        (Signal::Metrics, &file.stores.metrics),
        (Signal::Logs, &file.stores.logs),
        (Signal::Traces, &file.stores.traces),
    ];
    let configured: Vec<_> = sections.into_iter().filter_map(|(signal, s)| Some((signal, s.as_ref()?))).collect();
    faults.require(
        !configured.is_empty(),
        "[stores]",
        "no store is configured, so every write would be refused",
        "add [stores.metrics], [stores.logs] or [stores.traces] with a url",
    );
    configured.into_iter().map(|(signal, section)| Some((signal, store(signal, section, faults)?))).collect()
}

fn store(signal: Signal, section: &StoreSection, faults: &mut ConfigFaults) -> Option<BackendSettings> {
    let at = format!("stores.{signal}.url");
    let address: StoreAddress = faults.take(&at, "", section.url.parse())?;
    faults.require(
        section.allow_remote || address.is_loopback(),
        &at,
        &format!("{address} can be reached by other machines, and the store has no authentication of its own"),
        "let the store listen on loopback or a Unix socket, or set allow_remote = true if the network is truly closed",
    );
    let at = format!("stores.{signal}.timeout_seconds");
    faults.require(section.timeout_seconds > 0, &at, "is zero, so every batch would time out", "leave it out for 30");
    faults.require(
        !section.cluster || signal == Signal::Metrics,
        &format!("stores.{signal}.cluster"),
        "is for metrics only: other stores take the account from headers, as a cluster or not",
        "remove it",
    );
    let mut settings = BackendSettings::new(address);
    settings.attribution = section.attribution;
    settings.stream_fields = section.stream_fields.clone();
    settings.zstd = section.zstd;
    settings.cluster = section.cluster;
    settings.timeout = Duration::from_secs(section.timeout_seconds);
    Some(settings)
}

fn traces(file: &ConfigFile, faults: &mut ConfigFaults) -> TracesSettings {
    faults.require(
        file.stores.traces.is_some() || file.traces.is_none(),
        "[traces]",
        "says what to do with spans, but there is no store for them",
        "add [stores.traces] with a url, or remove [traces]",
    );
    let settings = file.traces.clone().unwrap_or_default();
    faults.take("[traces]", "", settings.check());
    settings
}

fn check_tokens(file: &ConfigFile, faults: &mut ConfigFaults) {
    faults.require(!file.tokens.issuer.is_empty(), "tokens.issuer", "is empty", "write the exact value of `iss`");
    faults.require(
        file.issuer.is_some() || !file.tokens.keys.is_empty(),
        "tokens.keys",
        "there is no key to verify tokens with, so every write would be refused",
        "name the issuer's JWKS document, or add [issuer] to mint tokens here",
    );
    let longest = limits::MIN_TOKEN_LIFETIME.as_secs();
    faults.require(
        file.tokens.leeway_seconds <= longest,
        "tokens.leeway_seconds",
        "is longer than the shortest token lives",
        &format!("set it to {longest} or less, and set the clocks right"),
    );
}

fn expectations(file: &ConfigFile) -> Expectations {
    let tokens = &file.tokens;
    let mut expected = Expectations::new(&tokens.issuer);
    expected.issuers.extend(tokens.previous_issuers.iter().cloned());
    expected.leeway = Duration::from_secs(tokens.leeway_seconds);
    expected.runner_binding = tokens.runner_binding;
    expected.runner_id_claim.clone_from(&tokens.runner_id_claim);
    expected
}

fn listener(section: &ListenerSection, base: &Path, faults: &mut ConfigFaults) -> Option<ListenerConfig> {
    let mut config = ListenerConfig::new(section.address);
    config.max_connections = section.max_connections;
    config.max_connections_per_runner = section.max_connections_per_runner;
    config.udp_buffer_bytes = section.udp_buffer_bytes;
    config.transport.segmentation_offload = section.segmentation_offload;
    if let Some(path) = &section.reset_key {
        const REMEDY: &str = "name a file in a folder that the relay may write to; it is made when it is missing";
        let path = base.join(path);
        config.reset_key =
            Some(faults.take(&at("listener.reset_key", &path), REMEDY, reset_key::load_or_make(&path))?);
    }
    Some(config)
}

fn at(key: &str, path: &Path) -> String {
    format!("{key} ({})", path.display())
}
