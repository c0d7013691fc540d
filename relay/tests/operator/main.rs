//! What an operator asks the program `telemetry-relay`: tokens, certificates, the status of a relay that runs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod certs;
mod files;
mod status;
mod token;

use std::io::Write;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// What the program said, and how it ended.
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

fn relay_with_input(args: &[&str], input: &str) -> Said {
    let mut child = Command::new(env!("CARGO_BIN_EXE_telemetry-relay"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that does not read its input closes it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn relay(args: &[&str]) -> Said {
    relay_with_input(args, "")
}

#[track_caller]
fn succeed(args: &[&str]) -> Said {
    let said = relay(args);
    assert_eq!(said.code, Some(0), "{args:?}: {}{}", said.out, said.err);
    said
}

const CONFIG: &str = r#"
[listener]
address = "127.0.0.1:0"
[tls]
certificate = "coordinator.pem"
key = "coordinator-key.pem"
client_ca = "ca.pem"
[tokens]
issuer = "https://coordinator.test"
[issuer]
signing_key = "token-signing-key.pem"
[runners]
removed = "removed.txt"
[stores.metrics]
url = "http://127.0.0.1:9"
"#;

/// A folder with a cluster's files, made by the program itself, and a configuration.
fn cluster() -> TempDir {
    let dir = TempDir::new().unwrap();
    let path = dir.path().to_str().unwrap();
    succeed(&["certs", "init", "--dir", path, "--cluster", "test"]);
    succeed(&["certs", "issue", "coordinator", "--dir", path, "--dns", "localhost", "--ip", "127.0.0.1"]);
    succeed(&["certs", "issue", "runner", "r7", "--dir", path]);
    std::fs::write(dir.path().join("removed.txt"), "").unwrap();
    std::fs::write(dir.path().join("relay.toml"), CONFIG).unwrap();
    dir
}

fn file(dir: &TempDir, name: &str) -> String {
    dir.path().join(name).to_str().unwrap().to_owned()
}
