//! The example configuration is one: every key that is commented out can be put in.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use telemetry_relay::config::ConfigFile;

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
