//! What a service manager is told by `runner-agent` (sd_notify(3)), and what SIGHUP does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test support")]

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use telemetry_certs::testing::{Leaf, authority};

const PATIENCE: Duration = Duration::from_secs(30);

/// Ended when it is dropped.
struct Agent(Child);

impl Agent {
    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The next message that begins with these words.
fn wait_for(manager: &UnixDatagram, words: &str) -> String {
    let until = Instant::now() + PATIENCE;
    let mut bytes = [0; 4096];
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    while Instant::now() < until {
        let length = manager.recv(&mut bytes).unwrap();
        let message = String::from_utf8(bytes[..length].to_vec()).unwrap();
        if message.starts_with(words) {
            return message;
        }
    }
    panic!("no message that begins with {words:?}");
}

#[test]
fn the_manager_is_told_of_start_reload_and_stop_and_the_watchdog_that_all_is_well() {
    let folder = tempfile::tempdir().unwrap();
    let authority = authority();
    let issued = Leaf::runner("r7").issued_by(&authority);
    for (name, text) in [
        ("runner.pem", issued.chain_pem.clone()),
        ("runner-key.pem", issued.key_pem.to_string()),
        ("ca.pem", authority.certificate_pem().to_string()),
        (
            "agent.toml",
            "coordinators = [\"127.0.0.1:9\"]\n[identity]\ncertificate = \"runner.pem\"\nkey = \"runner-key.pem\"\n\
             ca = \"ca.pem\"\n[listen]\naddress = \"127.0.0.1:0\"\ndrain_seconds = 0\n"
                .to_owned(),
        ),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    let agent = Command::new(env!("CARGO_BIN_EXE_runner-agent"))
        .args(["run", "--config", folder.path().join("agent.toml").to_str().unwrap()])
        .env("NOTIFY_SOCKET", folder.path().join("notify"))
        .env("WATCHDOG_USEC", "400000")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut agent = Agent(agent);

    let ready = wait_for(&manager, "READY=1");
    assert!(ready.contains("STATUS=no connection"), "{ready}");
    (0..3).for_each(|_| drop(wait_for(&manager, "WATCHDOG=1")));

    agent.signal("-HUP");
    let reloading = wait_for(&manager, "RELOADING=1");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    wait_for(&manager, "READY=1");

    agent.signal("-TERM");
    wait_for(&manager, "STOPPING=1");
    assert!(agent.0.wait().unwrap().success());
}
