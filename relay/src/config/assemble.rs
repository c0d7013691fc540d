//! From the file's keys to settings that a relay can run from.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::server::danger::ClientCertVerifier;
use telemetry_certs::{Credentials, Crls, Roots, ServerTls};
use telemetry_proto::claims::Expectations;
use telemetry_proto::{RunnerId, Signal, limits};

use super::identity::identity;
use super::lives::Life;
use super::operational::Operational;
use super::reset_key;
use super::settings::{FixedSettings, IssuerSettings, Outside, Settings, TlsSettings};
use super::tenants::tenants;
use super::writers::writers;
use super::{AdminSection, ConfigFault, ConfigFaults, ConfigFile, ListenerSection, Reading, StoreSection, TlsSection};
use crate::admin::{AdminConfig, CertificateStatus};
use crate::forward::{BackendSettings, StoreAddress};
use crate::gate::{KeySet, MAX_JWKS_BYTES, PublicKey, RemovedRunners};
use crate::issuer::{IssuerConfig, SigningKey};
use crate::listener::ListenerConfig;
use crate::rules::WriteRules;
use crate::traces::TracesSettings;

/// The ALPN protocol of HTTP/3 (RFC 9114 section 3.1).
const ALPN_H3: &[u8] = b"h3";

/// `faults` are those that were found before.
pub(super) fn assemble(file: &ConfigFile, path: &Path, mut faults: ConfigFaults) -> Reading {
    let base = path.parent().unwrap_or(Path::new("."));
    let credentials = credentials(&file.tls, base, &mut faults);
    let summary = credentials
        .as_ref()
        .and_then(|credentials| faults.take("tls.certificate", "", telemetry_certs::describe(credentials.leaf())));
    let roots = faults.take("tls.client_ca", "", Roots::from_file(base.join(&file.tls.client_ca)));
    let own = summary.as_ref().map(|summary| Life::of_coordinator(summary, &base.join(&file.tls.certificate)));
    let authorities = roots.as_ref().and_then(|roots| Life::of_roots(roots, &base.join(&file.tls.client_ca)));
    let lives: Vec<_> = own.into_iter().chain(authorities).collect();
    let (crls, lists_due) = revocation_lists(&file.tls, base, &mut faults);
    let certificate = summary.as_ref().map(CertificateStatus::of);
    let tls = match (credentials, certificate, roots) {
        (Some(credentials), Some(certificate), Some(roots)) => tls(&credentials, &roots, &crls, &mut faults)
            .map(|(server, clients)| TlsSettings { server, clients, certificate, lives: lives.clone() }),
        _ => None,
    };
    let removed = removed(file, base, &mut faults);
    let issuer = issuer(file, base, &mut faults);
    let clients = tls.as_ref().map(|tls| &*tls.clients as _);
    let identity = identity(file.identity.as_ref(), base, clients, &mut faults);
    let keys = read_key_files("tokens.keys", &file.tokens.keys, base, &mut faults);
    let stores = stores(file, &mut faults);
    let traces = traces(file, &mut faults);
    let operational = Operational::of(&file.operational, file.stores.metrics.is_some(), &mut faults);
    let listener = listener(&file.listener, base, &mut faults);
    if let Some(admin) = &file.admin {
        check_admin(admin, &mut faults);
    }
    file.limits.check(&mut faults);
    let writers = writers(file, base, &mut faults);
    let tenants = tenants(file, &mut faults);
    check_tokens(file, &mut faults);
    let admin = file.admin.as_ref().map(|s| AdminConfig {
        address: s.address,
        allow_remote: s.allow_remote,
        runner_series: s.runner_series,
    });
    let state_folder = file.state.folder.as_ref().map(|folder| base.join(folder));
    let files = files(file, path, base);
    let outside = Outside {
        stores: stores.clone(),
        lives,
        lists_due,
        listener: Some(listener.clone()),
        admin,
        state_folder: state_folder.clone(),
    };
    let settings = (|| {
        Some(Settings {
            tls: tls?,
            keys: keys?,
            expected: expectations(file),
            issuer: issuer?,
            identity: identity?,
            removed: removed?,
            tenants: tenants?,
            writers: writers?,
            rules: WriteRules {
                body: file.limits.body(),
                allow_unknown_length: file.limits.allow_unknown_length,
                traces,
            },
            budget: file.limits.budget(),
            operational,
            fixed: FixedSettings {
                listener,
                admin,
                drain_delay: Duration::from_secs(file.listener.drain_delay_seconds),
                drain: Duration::from_secs(file.listener.drain_seconds),
                stores,
                operational: file.operational.clone(),
                state_folder,
            },
            files: files.clone(),
        })
    })();
    Reading { settings: faults.into_result(settings), files, outside }
}

/// Every file that the settings came from.
fn files(file: &ConfigFile, path: &Path, base: &Path) -> Vec<PathBuf> {
    let tls = [&file.tls.certificate, &file.tls.key, &file.tls.client_ca].into_iter().chain(&file.tls.crls);
    let issuer =
        file.issuer.iter().flat_map(|issuer| std::iter::once(&issuer.signing_key).chain(&issuer.previous_keys));
    let writers = file.writers.iter().filter_map(|writer| writer.token_file.as_ref());
    let identity = file.identity.iter().flat_map(|identity| [&identity.ca_certificate, &identity.ca_key]);
    let more = file.runners.removed.iter().chain(writers).chain(identity);
    let named = tls.chain(issuer).chain(&file.tokens.keys).chain(more);
    std::iter::once(path.to_owned()).chain(named.map(|named| base.join(named))).collect()
}

fn credentials(section: &TlsSection, base: &Path, faults: &mut ConfigFaults) -> Option<Credentials> {
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
    credentials
}

/// The revocation lists, and when each was to be replaced by another.
fn revocation_lists(section: &TlsSection, base: &Path, faults: &mut ConfigFaults) -> (Crls, Vec<(String, SystemTime)>) {
    let (mut crls, mut lists_due) = (Crls::default(), Vec::new());
    for path in &section.crls {
        if let Some(more) = faults.take("tls.crls", "", Crls::from_file(base.join(path))) {
            let at = at("tls.crls", &base.join(path));
            lists_due.extend(more.read().iter().filter_map(|list| Some((at.clone(), list.next_update?))));
            crls.extend(more);
        }
    }
    (crls, lists_due)
}

/// Both sides of TLS: what is shown, and what runners are verified with.
fn tls(
    credentials: &Credentials,
    roots: &Roots,
    crls: &Crls,
    faults: &mut ConfigFaults,
) -> Option<(Arc<rustls::ServerConfig>, Arc<dyn ClientCertVerifier>)> {
    let server = telemetry_certs::server_config(ServerTls {
        credentials,
        client_roots: roots,
        crls: crls.ders(),
        alpn: &[ALPN_H3],
    });
    let server = faults.take("[tls]", "", server).map(Arc::new)?;
    let clients = faults.take("[tls]", "", telemetry_certs::client_verifier(roots, crls.ders()))?;
    Some((server, clients))
}

fn check_admin(section: &AdminSection, faults: &mut ConfigFaults) {
    faults.require(
        section.allow_remote || section.address.ip().is_loopback(),
        "admin.address",
        &format!("{} can be reached by other machines, and whoever reaches it sees who is connected", section.address),
        "choose a loopback address, or set allow_remote = true",
    );
}

fn removed(file: &ConfigFile, base: &Path, faults: &mut ConfigFaults) -> Option<HashSet<RunnerId>> {
    match &file.runners.removed {
        None => Some(HashSet::new()),
        Some(path) => {
            const REMEDY: &str = "write one runner's ID a line; # starts a comment";
            let path = base.join(path);
            faults.take(at("runners.removed", &path), REMEDY, RemovedRunners::load(&path))
        }
    }
}

/// How tokens are minted, if they are to be. The outer `None` says that they can't be.
fn issuer(file: &ConfigFile, base: &Path, faults: &mut ConfigFaults) -> Option<Option<IssuerSettings>> {
    const REMEDY: &str = "name a PKCS#8 private key in PEM; `telemetry-relay certs init` makes one";
    let Some(section) = &file.issuer else { return Some(None) };
    let path = base.join(&section.signing_key);
    let at = at("issuer.signing_key", &path);
    let pem = faults.take(&at, REMEDY, std::fs::read(&path));
    let signing = pem.and_then(|pem| faults.take(&at, REMEDY, SigningKey::from_pem(&pem)));
    let former = read_key_files("issuer.previous_keys", &section.previous_keys, base, faults);
    let mut config = IssuerConfig::new(&file.tokens.issuer);
    config.organization.clone_from(&section.organization);
    config.cluster.clone_from(&section.cluster);
    config.runner_id_claim.clone_from(&file.tokens.runner_id_claim);
    config.signals = granted(file);
    faults.take("[issuer]", "", config.check());
    Some(Some(IssuerSettings { config, signing: signing?, former: former? }))
}

/// A signal is granted to someone only where there is a store for it.
fn granted(file: &ConfigFile) -> Vec<Signal> {
    let stores = [&file.stores.metrics, &file.stores.logs, &file.stores.traces];
    Signal::ALL.into_iter().zip(stores).filter_map(|(signal, store)| store.as_ref().map(|_| signal)).collect()
}

fn read_key_files(key: &str, paths: &[PathBuf], base: &Path, faults: &mut ConfigFaults) -> Option<KeySet> {
    let mut keys = Some(KeySet::default());
    for path in paths {
        let more = read_key_file(key, &base.join(path), faults);
        keys = keys.and_then(|keys| faults.take(key, "", keys.merge(&more?)));
    }
    keys
}

/// Reads public keys from a file as `tokens.keys` names them: a JWKS document (`.json`), or a public key in PEM whose `kid` is
/// its RFC 7638 thumbprint, as the issuer gives it.
///
/// # Errors
/// What is wrong with the file, and the remedy.
pub fn read_keys(path: &Path) -> Result<KeySet, ConfigFault> {
    const REMEDY: &str = "name a JWKS document that ends in .json, or a public key in PEM";
    let fault = |error: &dyn std::fmt::Display| ConfigFault::new(path.display(), error, REMEDY);
    let bytes = read_bounded(path).map_err(|error| fault(&error))?;
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
        return KeySet::from_jwks(&bytes).map_err(|error| fault(&error));
    }
    let public = PublicKey::from_pem(&bytes).map_err(|error| fault(&error))?;
    KeySet::of(&public.thumbprint(), public).map_err(|error| fault(&error))
}

fn read_key_file(key: &str, path: &Path, faults: &mut ConfigFaults) -> Option<KeySet> {
    read_keys(path).map_err(|fault| faults.push(ConfigFault { at: at(key, path), ..fault })).ok()
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_JWKS_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The stores; one that can't be is a fault, and left out.
fn stores(file: &ConfigFile, faults: &mut ConfigFaults) -> Vec<(Signal, BackendSettings)> {
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
    configured.into_iter().filter_map(|(signal, section)| Some((signal, store(signal, section, faults)?))).collect()
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
    for fault in settings.check() {
        faults.push(ConfigFault::new(format!("traces.{}", fault.key()), fault, "correct it, or leave the key out"));
    }
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

fn listener(section: &ListenerSection, base: &Path, faults: &mut ConfigFaults) -> ListenerConfig {
    for (key, value) in [
        ("max_connections", section.max_connections),
        ("max_connections_per_runner", section.max_connections_per_runner),
        ("udp_buffer_bytes", section.udp_buffer_bytes),
    ] {
        let key = format!("listener.{key}");
        faults.require(value > 0, &key, "is zero: nobody would get through", "set at least 1, or leave the key out");
    }
    let mut config = ListenerConfig::new(section.address);
    config.tcp = section.tcp;
    config.max_connections = section.max_connections;
    config.max_connections_per_runner = section.max_connections_per_runner;
    config.udp_buffer_bytes = section.udp_buffer_bytes;
    config.transport.segmentation_offload = section.segmentation_offload;
    if let Some(path) = &section.reset_key {
        const REMEDY: &str = "name a file in a folder that the relay may write to; it is made when it is missing";
        let path = base.join(path);
        config.reset_key = faults.take(at("listener.reset_key", &path), REMEDY, reset_key::load_or_make(&path));
    }
    config
}

pub(super) fn at(key: &str, path: &Path) -> String {
    format!("{key} ({})", path.display())
}
