//! `status`.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Child;
use std::time::{Duration, Instant};

use super::*;

/// A relay that serves until this is dropped.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The address on which the relay shows its status.
fn serve(dir: &TempDir) -> (Serving, String) {
    let config = file(dir, "relay.toml");
    std::fs::write(&config, CONFIG.to_owned() + "[admin]\naddress = \"127.0.0.1:0\"\n").unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_telemetry-relay"))
        .args(["serve", "--config", &config])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut serving = Serving(child);
    let mut lines = BufReader::new(serving.0.stderr.take().unwrap()).lines();
    let started = lines.find_map(|line| line.ok().filter(|line| line.contains("relay started"))).unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    let started: serde_json::Value = serde_json::from_str(&started).unwrap();
    let admin = started["admin"].as_str().unwrap().to_owned();
    (serving, admin)
}

#[test]
fn a_relay_that_runs_says_how_it_is_and_the_exit_code_says_whether_it_is_well() {
    let dir = cluster();
    let (_serving, address) = serve(&dir);
    // The store of this configuration is away, which the relay finds out in a moment.
    let until = Instant::now() + Duration::from_secs(30);
    let said = loop {
        let said = relay(&["status", "--address", &address]);
        if said.out.contains("DOWN") || Instant::now() > until {
            break said;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    for expected in
        ["NOT READY", "store        metrics", "DOWN", "certificate  CN=coordinator, ends in ", "0 connected"]
    {
        assert!(said.out.contains(expected), "{expected:?} is not in\n{}", said.out);
    }
    assert!(said.err.contains("the relay is not ready: the store for metrics does not answer"), "{}", said.err);
    // The file on disk is of no use, and that is when one asks.
    let admin = format!("[admin]\naddress = \"{address}\"\n");
    for broken in ["[tls]\ncertificate = 7\n", "[limitz]\n", "[cut]\noff = \"\n"] {
        std::fs::write(file(&dir, "relay.toml"), format!("{admin}{broken}{CONFIG}{broken}")).unwrap();
        let said = relay(&["status", "--config", &file(&dir, "relay.toml")]);
        assert!(said.code == Some(1) && said.out.contains("NOT READY"), "{broken}: {}{}", said.out, said.err);
    }
    let json = relay(&["status", "--address", &address, "--json"]).json();
    assert_eq!((json["ready"].as_bool(), json["warnings"].as_array().map(Vec::len)), (Some(false), Some(0)));
}

#[test]
fn nobody_or_somebody_else_at_the_address_is_said_clearly() {
    let dir = cluster();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"SSH-2.0-nothing\r\n");
    });
    let said = relay(&["status", "--address", &address]);
    assert!(said.code == Some(1) && said.err.contains("is it another program?"), "{}", said.err);
    other.join().unwrap();
    let said = relay(&["status", "--address", &address]);
    assert!(said.code == Some(1) && said.err.contains("nothing listens at"), "{}", said.err);
    let said = relay(&["status", "--config", &file(&dir, "relay.toml")]);
    assert!(said.code == Some(1) && said.err.contains("has no [admin]"), "{}", said.err);
}
