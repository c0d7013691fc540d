//! The example configuration is one: every key that is commented out can be put in.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde::Deserialize;
use serde_aux::serde_introspection::serde_introspect;
use telemetry_relay::config::{
    AccountFromSection, ConfigFile, LimitsSection, RuleSection, StoreSection, StoresSection, TenantLimitsSection,
};
use telemetry_relay::traces::{TraceLimits, TracesSettings};

const EXAMPLE: &str = include_str!("../../deploy/relay.example.toml");
const NO_ENV: [(&str, &str); 0] = [];

/// Takes `# ` away before what reads as a key or a section.
fn uncommented() -> String {
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if rest.starts_with('[') || rest.split_once(" = ").is_some_and(|(key, _)| is_key(key)) => {
            rest.to_owned()
        }
        _ => line.to_owned(),
    };
    EXAMPLE.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn is_key(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

#[test]
fn it_is_read_as_it_is_and_with_every_key_put_in() {
    let plain = ConfigFile::parse(EXAMPLE, &NO_ENV).map_err(|faults| faults.to_string()).unwrap();
    assert!(plain.tenants.is_empty() && plain.issuer.is_some() && plain.admin.is_some());
    let full = ConfigFile::parse(&uncommented(), &NO_ENV).map_err(|faults| faults.to_string()).unwrap();
    assert_eq!(full.tenants[0].name, "acme");
    assert_eq!(full.default_tenant.as_deref(), Some("shared"));
    assert!(full.traces.is_some() && full.stores.traces.is_some());
}

/// What stands below headers that begin with one of these, commented out or not.
fn section(headers: &[&str]) -> String {
    let text = uncommented();
    let mut inside = false;
    let wanted = |line: &&str| {
        if line.starts_with('[') {
            inside = headers.iter().any(|header| line.starts_with(header));
        }
        inside
    };
    text.lines().filter(wanted).collect::<Vec<_>>().join("\n")
}

/// The keys of a section, by its type.
fn keys<'de, T: Deserialize<'de>>(_: &T) -> &'static [&'static str] {
    serde_introspect::<T>()
}

#[test]
fn it_shows_every_key_that_there_is() {
    let full = ConfigFile::parse(&uncommented(), &NO_ENV).map_err(|faults| faults.to_string()).unwrap();
    // Without `..`: whoever adds a section adds it here.
    let ConfigFile {
        listener,
        tls,
        tokens,
        issuer,
        identity,
        runners,
        stores,
        limits,
        traces,
        operational,
        state,
        admin,
        default_tenant,
        tenants: all_tenants,
        writers,
    } = full;
    let StoresSection { metrics, logs, traces: spans } = stores;
    assert!([&metrics, &logs, &spans].into_iter().all(Option::is_some) && default_tenant.is_some());
    let tenants = &["[[tenants]]", "[tenants.limits]"][..];
    for (headers, keys) in [
        (&["[listener]"][..], keys(&listener)),
        (&["[tls]"], keys(&tls)),
        (&["[tokens]"], keys(&tokens)),
        (&["[issuer]"], keys(&issuer.unwrap())),
        (&["[identity]"], keys(&identity.unwrap())),
        (&["[runners]"], keys(&runners)),
        (&["[stores."], serde_introspect::<StoreSection>()),
        (&["[limits]"], keys::<LimitsSection>(&limits)),
        (&["[traces]", "[traces."], keys::<TracesSettings>(&traces.unwrap())),
        (&["[traces.limits]"], serde_introspect::<TraceLimits>()),
        (&["[traces]"], &["attributes", "allow_all"]),
        (&["[operational]"], keys(&operational)),
        (&["[state]"], keys(&state)),
        (&["[admin]"], keys(&admin.unwrap())),
        (tenants, keys(&all_tenants[0])),
        (tenants, serde_introspect::<TenantLimitsSection>()),
        (tenants, serde_introspect::<RuleSection>()),
        (tenants, serde_introspect::<AccountFromSection>()),
        (&["[[writers]]"], keys(&writers[0])),
    ] {
        assert!(!keys.is_empty(), "{headers:?}");
        let text = section(headers);
        for key in keys {
            let shown = text.lines().any(|line| {
                let below = [format!("[tenants.{key}]"), format!("[traces.{key}]")];
                [format!("{key} = "), format!("# {key} = ")].iter().chain(&below).any(|s| line.starts_with(s))
                    || line.contains(&format!("{{ {key} = "))
                    || line.contains(&format!(", {key} = "))
            });
            assert!(shown, "{key} of {headers:?}");
        }
    }
}
