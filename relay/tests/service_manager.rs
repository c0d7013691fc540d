//! What a service manager is told (sd_notify(3)), by a program that believes to have one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_telemetry-relay");
const PATIENCE: Duration = Duration::from_secs(30);
/// The watchdog goes off after this long, so it is to be told twice as often.
const WATCHDOG: Duration = Duration::from_millis(400);

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
[stores.logs]
url = "http://127.0.0.1:9"
"#;

/// A relay, and the manager that it reports to.
struct Managed {
    folder: TempDir,
    manager: UnixDatagram,
    relay: Child,
}

impl Managed {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let pki = folder.path().to_str().unwrap();
        for arguments in [
            &["certs", "init", "--dir", pki, "--cluster", "test"][..],
            &["certs", "issue", "coordinator", "--dir", pki, "--dns", "localhost"],
        ] {
            assert!(Command::new(PROGRAM).args(arguments).stdout(Stdio::null()).status().unwrap().success());
        }
        std::fs::write(folder.path().join("relay.toml"), CONFIG).unwrap();
        let socket = folder.path().join("notify");
        let manager = UnixDatagram::bind(&socket).unwrap();
        let relay = Command::new(PROGRAM)
            .args(["serve", "--config", folder.path().join("relay.toml").to_str().unwrap()])
            .env("NOTIFY_SOCKET", &socket)
            .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { folder, manager, relay }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.relay.id().to_string()]).status().unwrap().success());
    }

    /// The next message, if one comes in this time.
    fn message(&self, within: Duration) -> Option<String> {
        let mut bytes = [0; 4096];
        self.manager.set_read_timeout(Some(within)).unwrap();
        let length = self.manager.recv(&mut bytes).ok()?;
        Some(String::from_utf8(bytes[..length].to_vec()).unwrap())
    }

    /// The next message that begins with these words.
    fn wait_for(&self, words: &str) -> String {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(message) = self.message(PATIENCE).filter(|message| message.starts_with(words)) {
                return message;
            }
        }
        panic!("no message that begins with {words:?}");
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        let _ = self.relay.kill();
        let _ = self.relay.wait();
    }
}

#[test]
fn the_manager_is_told_of_start_reload_and_stop_in_order() {
    let mut managed = Managed::start();
    let ready = managed.wait_for("READY=1");
    assert!(ready.contains("STATUS=0 connections"), "{ready}");

    managed.signal("-HUP");
    let reloading = managed.wait_for("RELOADING=1");
    let since_boot = reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).unwrap();
    assert!(since_boot.parse::<u64>().unwrap() > 0);
    managed.wait_for("READY=1");

    // A broken file ends the reload too, and the status says so.
    std::fs::write(managed.path().join("relay.toml"), "[tls").unwrap();
    managed.wait_for("RELOADING=1");
    let ready = managed.wait_for("READY=1");
    assert!(ready.contains("broken and not in force"), "{ready}");

    managed.signal("-TERM");
    let stopping = managed.wait_for("STOPPING=1");
    assert!(stopping.contains("STATUS=draining"), "{stopping}");
    assert!(managed.relay.wait().unwrap().success());
}

#[test]
fn the_watchdog_is_told_as_long_as_the_program_moves() {
    let managed = Managed::start();
    managed.wait_for("READY=1");
    for _ in 0..3 {
        managed.wait_for("WATCHDOG=1");
    }
    managed.signal("-STOP");
    // What was sent before it stood still.
    while managed.message(WATCHDOG * 2).is_some() {}
    managed.signal("-CONT");
    managed.wait_for("WATCHDOG=1");
}
