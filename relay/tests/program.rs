//! The program `telemetry-relay` as a person meets it: setting a cluster up by hand, and what it says when something is
//! wrong.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

fn relay(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_telemetry-relay")).args(args).output().unwrap()
}

fn succeed(args: &[&str]) {
    let output = relay(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A folder with a CA, a coordinator's and a runner's certificate, made by the program itself.
fn cluster() -> TempDir {
    let dir = TempDir::new().unwrap();
    let path = dir.path().to_str().unwrap();
    succeed(&["certs", "init", "--dir", path, "--cluster", "test"]);
    succeed(&["certs", "issue", "coordinator", "--dir", path, "--dns", "localhost", "--ip", "127.0.0.1"]);
    succeed(&["certs", "issue", "runner", "r7", "--dir", path, "--key", "ed25519"]);
    dir
}

const GOOD: &str = r#"
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
[stores.metrics]
url = "http://127.0.0.1:8428"
[stores.logs]
url = "unix:/run/victoria-logs.sock"
"#;

/// Serves with this configuration until it refuses to; returns exit code and message.
fn refusal(dir: &Path, config: &str) -> (Option<i32>, String) {
    let file = dir.join("relay.toml");
    std::fs::write(&file, config).unwrap();
    let output = relay(&["serve", "--config", file.to_str().unwrap()]);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn private_keys_are_readable_by_their_owner_only_and_never_written_over() {
    let dir = cluster();
    for key in ["ca-key.pem", "token-signing-key.pem", "coordinator-key.pem", "runner-r7-key.pem"] {
        let mode = std::fs::metadata(dir.path().join(key)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
    let before = std::fs::read(dir.path().join("ca-key.pem")).unwrap();
    let path = dir.path().to_str().unwrap();
    assert_eq!(relay(&["certs", "init", "--dir", path, "--cluster", "test"]).status.code(), Some(1));
    assert_eq!(relay(&["certs", "issue", "runner", "r7", "--dir", path]).status.code(), Some(1));
    assert_eq!(std::fs::read(dir.path().join("ca-key.pem")).unwrap(), before);
    succeed(&["certs", "issue", "runner", "r7", "--dir", path, "--force"]);
}

#[test]
fn wrong_usage_exits_with_64_and_help_with_0() {
    for args in [&["serve"][..], &["nonsense"], &["certs", "issue", "runner", "not an id"], &[]] {
        assert_eq!(relay(args).status.code(), Some(64), "{args:?}");
    }
    let help = relay(&["serve", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8(help.stdout).unwrap().contains("Example:"));
}

#[test]
fn every_fault_of_a_configuration_is_named_in_one_message() {
    let dir = cluster();
    let config = GOOD
        .replace("coordinator-key.pem", "runner-r7-key.pem")
        .replace("client_ca = \"ca.pem\"", "client_ca = \"missing.pem\"")
        .replace("127.0.0.1:8428", "10.0.0.1:8428")
        .replace("https://coordinator.test", "")
        + "[limits]\ntenant_in_flight = 0\nbody_memory_bytes = 1\n";
    let (code, message) = refusal(dir.path(), &config);
    assert_eq!(code, Some(78), "{message}");
    for expected in [
        "7 faults",
        "not the key of the first certificate",
        "missing.pem: no such file",
        "10.0.0.1:8428 can be reached by other machines",
        "allow_remote = true",
        "tokens.issuer: is empty",
        "limits.tenant_in_flight: is 0",
        "limits.body_memory_bytes: is 1",
    ] {
        assert!(message.contains(expected), "{expected:?} is not in:\n{message}");
    }
}

#[test]
fn lesson_2_what_would_be_ignored_is_refused() {
    let dir = cluster();
    for (what, config, expected) in [
        ("a misspelt key", GOOD.replace("client_ca", "clientca"), "tls.clientca: unknown key"),
        ("no CA", GOOD.replace("client_ca = \"ca.pem\"\n", ""), "missing field `client_ca`"),
        ("no store", GOOD.split("[stores.metrics]").next().unwrap().to_owned(), "no store is configured"),
        ("no key for tokens", GOOD.replace("[issuer]\nsigning_key = \"token-signing-key.pem\"", ""), "there is no key"),
        (
            "a runner's certificate",
            GOOD.replace("coordinator.pem", "runner-r7.pem").replace("coordinator-key.pem", "runner-r7-key.pem"),
            "is a runner's certificate",
        ),
        ("no TOML", "[tls".to_owned(), "the file:"),
        ("credentials in a URL", GOOD.replace("http://127", "http://u:p@127"), "holds a query or credentials"),
    ] {
        let (code, message) = refusal(dir.path(), &config);
        assert_eq!(code, Some(78), "{what}: {message}");
        assert!(message.contains(expected), "{what}: {expected:?} is not in:\n{message}");
    }
}

#[test]
fn every_fault_of_the_tenants_is_named_in_one_message() {
    let dir = cluster();
    let config = format!(
        r#"default_tenant = "nobody"
        {GOOD}
        cluster = true
        [[tenants]]
        name = "acme"
        account_from = {{ namespace = "acme", uid = "1" }}
        match = [{{ runner = "edge-*" }}]
        [[tenants]]
        name = "acme"
        account_from = {{ namespace = "acme", uid = "1" }}
        match = [{{ runner = "edge-7" }}]
        [[tenants]]
        name = "late"
        account = "4294967296"
        [[tenants]]
        name = "idle"
        match = [{{ token_organization = "idle" }}]
        signals = ["traces"]
        limits = {{ in_flight = 0 }}
        "#
    );
    let (code, message) = refusal(dir.path(), &config);
    assert_eq!(code, Some(78), "{message}");
    for expected in [
        "7 faults",
        "stores.logs.cluster: is for metrics only",
        "tenants.late.account: expected ACCOUNT or ACCOUNT:PROJECT",
        "tenants.acme: two tenants have this name",
        "tenants.acme: rule 1 (runner = \"edge-7\") can never match: rule 1 of tenant acme comes first",
        "tenants.acme: tenants acme and acme have the same account",
        "tenants.idle: it writes traces, but there is no store for traces",
        "tenants.idle.limits.in_flight: in_flight is zero",
    ] {
        assert!(message.contains(expected), "{expected:?} is not in:\n{message}");
    }
}

#[test]
fn check_says_what_is_in_the_way_for_people_and_for_programs() {
    let dir = cluster();
    let file = dir.path().join("relay.toml");
    let check = |config: &str, more: &[&str]| {
        std::fs::write(&file, config).unwrap();
        let output = relay(&[&["check", "--config", file.to_str().unwrap()], more].concat());
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let away =
        GOOD.replace("unix:/run/victoria-logs.sock", "http://127.0.0.1:9").replace("127.0.0.1:8428", "127.0.0.1:9");
    let (code, text) = check(&away, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("fault: stores.metrics.url: http://127.0.0.1:9 does not answer"), "{text}");
    let (code, json) = check(&away, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json["ok"], json["findings"].as_array().unwrap().len()), (Some(1), &false.into(), 2));
    let (code, json) = check(&GOOD.replace("ca.pem", "missing.pem"), &["--json"]);
    assert_eq!(code, Some(78));
    assert!(json.contains("tls.client_ca"), "{json}");
}

#[test]
fn a_limit_of_zero_and_traces_in_part_are_refused_with_the_key() {
    let dir = cluster();
    let store = "[stores.traces]\nurl = \"http://127.0.0.1:10428\"\n";
    let limits = ["max_body_bytes", "max_spans", "max_attributes", "max_links", "max_string_bytes", "max_name_bytes"];
    let of_traces = limits.into_iter().chain(["max_value_bytes"]).map(|key| ("traces.limits", key));
    let of_listener =
        ["max_connections", "max_connections_per_runner", "udp_buffer_bytes"].map(|key| ("listener", key));
    let of_limits =
        ["max_decoded_bytes", "body_memory_bytes", "body_memory_per_runner_bytes", "tenant_body_memory_bytes"];
    let of_limits =
        of_limits.into_iter().chain(["tenant_in_flight", "tenant_waiting", "wait_seconds", "runner_in_flight"]);
    let rates = ["tenant_requests", "tenant_bytes", "runner_requests", "runner_bytes"];
    let rates = rates.map(|rate| format!("{rate}_per_second"));
    let of_limits = of_limits.chain(rates.iter().map(String::as_str)).map(|key| ("limits", key));
    let of_operational =
        ["max_points", "max_labels", "max_name_bytes", "max_value_bytes", "queue_chunks", "queue_bytes"];
    let of_operational = of_operational.into_iter().chain(["timeout_seconds"]).map(|key| ("operational", key));
    let mut sections = std::collections::BTreeMap::<_, String>::new();
    let mut expected = Vec::new();
    for (section, key) in of_traces.chain(of_listener).chain(of_limits).chain(of_operational) {
        *sections.entry(section).or_default() += &format!("{key} = 0\n");
        expected.push(format!("{section}.{key}: is "));
    }
    let listener = sections.remove("listener").unwrap();
    let sections: String = sections.iter().map(|(section, keys)| format!("[{section}]\n{keys}")).collect();
    let config = GOOD.replace("[tls]", &format!("{listener}[tls]")) + store + &sections;
    let (code, message) = refusal(dir.path(), &config);
    assert_eq!(code, Some(78), "{message}");
    for expected in expected {
        assert!(message.contains(&expected), "{expected:?} is not in:\n{message}");
    }

    let refused = |config: String, expected: &str| {
        let (code, message) = refusal(dir.path(), &config);
        assert!(code == Some(78) && message.contains(expected), "{expected:?} is not in {code:?}:\n{message}");
    };
    refused(
        GOOD.to_owned() + "[traces]\nsample_ratio = 0.5\n",
        "[traces]: says what to do with spans, but there is no store",
    );
    for ratio in ["1.1", "-0.1", "nan", "inf"] {
        let expected = "traces.sample_ratio: is ";
        refused(format!("{GOOD}{store}[traces]\nsample_ratio = {ratio}\n"), expected);
    }
}

#[test]
fn operators_are_shown_things_on_loopback_only_unless_others_are_allowed() {
    let dir = cluster();
    let (code, message) = refusal(dir.path(), &(GOOD.to_owned() + "[admin]\naddress = \"0.0.0.0:0\"\n"));
    assert!(
        code == Some(78) && message.contains("admin.address: 0.0.0.0:0 can be reached by other machines"),
        "{message}"
    );
}

#[test]
fn check_goes_on_as_far_as_it_can() {
    let dir = cluster();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let file = dir.path().join("relay.toml");
    let config = GOOD.replace("unix:/run/victoria-logs.sock", "http://127.0.0.1:9").replace("ca.pem", "missing.pem")
        + &format!(
            "[limits]\ntenant_in_flight = \"four\"\n[limitz]\na = 1\n[admin]\naddress = \"{}\"\n",
            taken.local_addr().unwrap()
        );
    let config = config.replace("[tls]", "adress = 1\n[tls]");
    std::fs::write(&file, config).unwrap();
    let check = ["check", "--config", file.to_str().unwrap()];
    let output = relay(&[&check[..], &["--json"]].concat());
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let at: Vec<_> = said["findings"].as_array().unwrap().iter().map(|f| f["at"].as_str().unwrap()).collect();
    assert_eq!(output.status.code(), Some(78));
    for expected in [
        "limitz",
        "listener.adress",
        "[limits]",
        "tls.client_ca",
        "stores.metrics.url",
        "stores.logs.url",
        "admin.address",
    ] {
        assert!(at.contains(&expected), "{expected} is not in {at:?}");
    }
    let output = relay(&check);
    let (found, faults) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(found.contains("fault: stores.logs.url") && !found.contains("all is well"), "{found}");
    assert!(faults.contains("missing.pem") && faults.contains("limitz: unknown key"), "{faults}");
}

/// A relay that serves, and the lines of its log.
struct Serving {
    child: std::process::Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Serving {
    fn start(config: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_telemetry-relay"))
            .args(["serve", "--config", config.to_str().unwrap()])
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = std::io::BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            std::io::BufRead::lines(stderr).map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    /// The next line that holds `words`.
    fn wait_for(&self, words: &str) -> String {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            let left = until.saturating_duration_since(std::time::Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("no line with {words:?}"));
            if line.contains(words) {
                return line;
            }
        }
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the relay says to operators.
fn get(address: &str, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_certificate_that_ends_soon_is_said_in_the_log_the_status_and_a_gauge() {
    let dir = cluster();
    let path = dir.path().to_str().unwrap();
    let names = ["--dns", "localhost", "--days", "3", "--force"];
    succeed(&[&["certs", "issue", "coordinator", "--dir", path][..], &names].concat());
    let file = dir.path().join("relay.toml");
    std::fs::write(&file, GOOD.to_owned() + "[admin]\naddress = \"127.0.0.1:0\"\n").unwrap();
    let mut relay = Serving::start(&file);
    let started: serde_json::Value = serde_json::from_str(&relay.wait_for("relay started")).unwrap();
    let said = relay.wait_for("a certificate ends soon");
    assert!(said.contains("the coordinator's certificate ends in "), "{said}");
    let admin = started["admin"].as_str().unwrap();
    assert!(get(admin, "/status").contains("the coordinator's certificate ends in "));
    let metrics = get(admin, "/metrics");
    let gauge = metrics.split("\ntelemetry_relay_certificate_expiry_timestamp_seconds ").nth(1).unwrap();
    let ends: u64 = gauge.lines().next().unwrap().parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!((now + 2 * 86_400..now + 4 * 86_400).contains(&ends), "{ends}");
    relay.signal("-TERM");
    assert!(relay.child.wait().unwrap().success());
}

#[test]
fn it_reloads_on_a_changed_file_and_on_sighup_and_stops_in_good_order() {
    let dir = cluster();
    let file = dir.path().join("relay.toml");
    let removed = dir.path().join("removed.txt");
    std::fs::write(&removed, "").unwrap();
    let config = GOOD.to_owned() + "[runners]\nremoved = \"removed.txt\"\n[admin]\naddress = \"127.0.0.1:0\"\n";
    std::fs::write(&file, &config).unwrap();
    let mut relay = Serving::start(&file);
    let started = relay.wait_for("relay started");
    assert!(started.contains("metrics=http://127.0.0.1:8428"), "{started}");
    std::fs::write(&removed, "r7\n").unwrap();
    relay.wait_for("configuration reloaded");
    relay.signal("-HUP");
    relay.wait_for("configuration reloaded");
    std::fs::write(&removed, "not an id\n").unwrap();
    let fault = relay.wait_for("the configuration was not reloaded");
    assert!(fault.contains("removed.txt"), "{fault}");
    let started: serde_json::Value = serde_json::from_str(&started).unwrap();
    let metrics = get(started["admin"].as_str().unwrap(), "/metrics");
    for expected in
        ["telemetry_relay_config_broken 1\n", "telemetry_relay_config_reloads_total{outcome=\"failed\"} 1\n"]
    {
        assert!(metrics.contains(expected), "{expected} is not in\n{metrics}");
    }

    // A file that comes after the configuration that names it.
    std::fs::write(&removed, "").unwrap();
    relay.wait_for("configuration reloaded");
    std::fs::write(&file, config.replace("removed.txt", "late.txt")).unwrap();
    let fault = relay.wait_for("the configuration was not reloaded");
    assert!(fault.contains("late.txt"), "{fault}");
    std::fs::write(dir.path().join("late.txt"), "r7\n").unwrap();
    relay.wait_for("configuration reloaded");
    relay.signal("-TERM");
    relay.wait_for("relay stopped");
    assert!(relay.child.wait().unwrap().success());
}
