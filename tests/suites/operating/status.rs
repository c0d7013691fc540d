//! The schema of `/status`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use telemetry_certs::WriterRequest;
use telemetry_proto::{Signal, WriterName};
use telemetry_rig::http::HttpClient;
use telemetry_rig::net::free_address;
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;

use super::read;

pub(crate) async fn the_status_has_what_its_documentation_says_and_nothing_else() -> TestResult {
    let page = read("docs/status.md")?;
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | ")).map(|(path, rest)| {
        let kind = rest.split(" | ").next().unwrap_or_default().trim_matches('`');
        (path.to_owned(), kind.to_owned())
    });
    let documented: BTreeSet<(String, String)> = rows.collect();
    let paths: BTreeSet<&String> = documented.iter().map(|(path, _)| path).collect();
    assert!(documented.len() > 40);

    let admin = free_address()?;
    let folder = tempfile::tempdir()?;
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "secret")?;
    let writer = |name: &str| {
        format!(
            "[[writers]]\nname = '{name}'\ncertificate_uri = 'spiffe://rig/writer/{name}'\ntoken_file = '{}'\n\
             signals = ['metrics']\n",
            token_file.display()
        )
    };
    let identity = "[identity]\nca_certificate = 'ca.pem'\nca_key = 'ca.key'\n";
    let settings = format!("[admin]\naddress = \"{admin}\"\n{identity}{}{}", writer("here"), writer("away"));
    let rig = Rig::builder().relay_program(&settings).start().await?;
    let request = WriterRequest::new(WriterName::new("here")?);
    let gateway = rig.cluster().authority().issue_writer(&request)?.credentials()?;
    let gateway = rig.raw_client_with(Some(&gateway)).await?;
    gateway.write(Signal::Metrics).body("up 1\n").send().await?;
    let client = rig.raw_client(0).await?;
    client.write(Signal::Metrics).body("up 1\n").send().await?;
    let token = rig.token(0);
    client.write(Signal::Metrics).token(&token).body("up 1\n").send().await?;
    client.write(Signal::Metrics).token(&token).header("content-encoding", "br").body("up 1\n").send().await?;
    // What is not in force, or not yet, is worth a warning.
    let http = HttpClient::new(admin);
    let config = rig.relay_program().folder().join("relay.toml");
    std::fs::write(&config, std::fs::read_to_string(&config)? + "[operational]\nallow_nan = true\n")?;
    wait::until("a reload", Duration::from_secs(30), async || {
        let (_, body) = http.get("/status").await.map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&body).into_owned();
        if said.contains("[operational]") { Ok(()) } else { Err(said) }
    })
    .await?;
    std::fs::write(&config, "broken")?;
    wait::until("a status with everything in it", Duration::from_secs(30), async || {
        let (_, body) = http.get("/status").await.map_err(|error| error.to_string())?;
        let status: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        let mut found = BTreeSet::new();
        walk(&status, String::new(), &mut found);
        let unknown: Vec<_> = found.iter().filter(|(path, kind)| !fits(&documented, path, kind)).collect();
        assert!(unknown.is_empty(), "not in docs/status.md as it is: {unknown:?}");
        let found: BTreeSet<&String> = found.iter().map(|(path, _)| path).collect();
        let missing: Vec<_> = paths.difference(&found).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("no {missing:?}")) }
    })
    .await?;
    Ok(())
}

/// Whether it is documented like that. What may be null is written "TYPE or null".
fn fits(documented: &BTreeSet<(String, String)>, path: &str, kind: &str) -> bool {
    documented.iter().any(|(known, kinds)| known == path && kinds.split(" or ").any(|known| known == kind))
}

/// Every path with its type. `[]` stands for each of a list, `*` for each key of a map.
fn walk(value: &Value, path: String, into: &mut BTreeSet<(String, String)>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(items) => {
            items.iter().for_each(|item| walk(item, format!("{path}[]"), into));
            "list"
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                let key = if path.ends_with("refused") { "*" } else { key.as_str() };
                let dot = if path.is_empty() { "" } else { "." };
                walk(value, format!("{path}{dot}{key}"), into);
            }
            if path.ends_with("refused") { "map" } else { return }
        }
    };
    into.insert((path, kind.to_owned()));
}
