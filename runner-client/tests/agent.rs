//! The program `runner-agent`, as other programs meet it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test support")]

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use support::{Board, Cluster, PATIENCE, Received, Reply, of};
use telemetry_certs::testing::Leaf;
use telemetry_runner_client::Signal;

const METRICS: &str = "/api/v1/import/prometheus";
const LOGS: &str = "/insert/jsonline";
const POLICY: &str = r#"{"signals":["metrics","logs","traces"],"encodings":["identity","gzip"],
    "traces":{"sample_ratio":1.0},"limits":{"max_body_bytes":33554432,"max_decoded_bytes":134217728},
    "server_time":"2030-01-01T00:00:00Z"}"#;

/// A folder with the runner's certificates, and settings for agents.
struct Place {
    folder: tempfile::TempDir,
    coordinator: SocketAddr,
}

impl Place {
    fn new(cluster: &Cluster, coordinator: SocketAddr) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap(), coordinator };
        place.put_certificates(cluster);
        place
    }

    fn put_certificates(&self, cluster: &Cluster) {
        let issued = Leaf::runner("r7").issued_by(&cluster.authority);
        for (name, text) in [
            ("runner.pem", issued.chain_pem.clone()),
            ("runner-key.pem", issued.key_pem.to_string()),
            ("ca.pem", cluster.authority.certificate_pem().to_string()),
        ] {
            std::fs::write(self.path("next"), text).unwrap();
            std::fs::rename(self.path("next"), self.path(name)).unwrap();
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a configuration: `further` are sections besides the identity, `listen` what is in `[listen]`.
    fn config(&self, listen: &str, further: &str) -> PathBuf {
        let text = format!(
            "coordinators = [\"{}\"]\n[identity]\ncertificate = \"runner.pem\"\nkey = \"runner-key.pem\"\nca = \"ca.pem\"\n\
             [listen]\naddress = \"127.0.0.1:0\"\n{listen}\n{further}\n",
            self.coordinator
        );
        std::fs::write(self.path("agent.toml"), text).unwrap();
        self.path("agent.toml")
    }

    /// The command with flags instead of a file.
    fn command(&self, command: &[&str], coordinator: &str) -> Command {
        let mut process = agent(command);
        process.current_dir(self.folder.path()).args(["--coordinator", coordinator]);
        process.args(["--certificate", "runner.pem", "--key", "runner-key.pem", "--ca", "ca.pem"]);
        process
    }

    fn run(&self, command: &[&str], coordinator: &str, input: &[u8]) -> Output {
        let mut process = self.command(command, coordinator).spawn().unwrap();
        let _ = process.stdin.take().unwrap().write_all(input);
        process.wait_with_output().unwrap()
    }

    fn spooling(&self) -> Agent {
        Agent::start(&self.config("", "[spool]\nfolder = \"spool\""))
    }
}

/// A running agent. It is killed when it is dropped.
struct Agent {
    process: Child,
    address: SocketAddr,
}

impl Agent {
    fn start(config: &Path) -> Self {
        let mut process = agent(&["run", "--config", config.to_str().unwrap()]).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "the agent ended");
            let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            if event["message"] == "agent started" {
                break event["address"].as_str().unwrap().parse().unwrap();
            }
        };
        // Whoever does not read a pipe stops its writer in the end.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { process, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A POST as curl makes it.
    fn post(&self, path: &str, headers: &[&str], body: &[u8]) -> (u16, String) {
        exchange(self.connect(), &request(path, headers, body))
    }

    fn get(&self, path: &str) -> (u16, String) {
        exchange(self.connect(), format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes())
    }

    fn status(&self) -> serde_json::Value {
        let (status, body) = self.get("/status");
        assert_eq!(status, 200);
        serde_json::from_str(&body).unwrap()
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn terminate(mut self) -> ExitStatus {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.process.wait().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn agent(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_runner-agent"));
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut process = agent(arguments).spawn().unwrap();
    // A program that ends before it reads is none of our trouble.
    let _ = process.stdin.take().unwrap().write_all(input);
    process.wait_with_output().unwrap()
}

fn request(path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
    for header in headers {
        head.push_str(&format!("{header}\r\n"));
    }
    if !headers.iter().any(|header| header.starts_with("Transfer-Encoding") || header.starts_with("Content-Length")) {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

fn exchange(mut stream: impl std::io::Read + std::io::Write, request: &[u8]) -> (u16, String) {
    // What is refused at once may not be read to its end.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

const REMOTE_WRITE_2: &str = "Content-Type: application/x-protobuf;proto=io.prometheus.write.v2.Request";

/// A field of protobuf with bytes.
fn message(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

/// A series of remote write with a name and a label `l`.
fn series(name: &str, samples: &[(u64, u8)]) -> Vec<u8> {
    let label =
        |name: &str, value: &str| message(1, &[message(1, name.as_bytes()), message(2, value.as_bytes())].concat());
    let sample = |(bits, at): &(u64, u8)| message(2, &[&[0x09], &bits.to_le_bytes()[..], &[0x10, *at]].concat());
    let samples: Vec<u8> = samples.iter().flat_map(sample).collect();
    message(1, &[label("__name__", name), label("l", "v"), samples].concat())
}

fn remote_write(request: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(request).unwrap()
}

fn away() -> SocketAddr {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn bodies(batches: &[Received]) -> Vec<String> {
    batches.iter().map(|batch| String::from_utf8(batch.body.to_vec()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_as_tools_make_them_arrive_as_they_are() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let server = cluster.start(&board);
    let place = Place::new(&cluster, server.address);
    let socket = place.path("agent.sock");
    let agent = Agent::start(&place.config("socket = \"agent.sock\"", "[spool]\nfolder = \"spool\""));
    let json = b"{\"log\":\"a\",\"date\":\"2030-01-01T00:00:00Z\"}\n";

    // curl --data-binary with the type set; Vector's prometheus text sink; Fluent Bit's http output; over the socket.
    assert_eq!(agent.post(METRICS, &["Content-Type: text/plain"], b"up 1 5\n"), (204, String::new()));
    assert_eq!(agent.post(METRICS, &["Content-Encoding: gzip"], &gzip(b"up 2 5\n")).0, 204);
    let query = format!("{LOGS}?_msg_field=log&_time_field=date");
    assert_eq!(agent.post(&query, &["Content-Type: application/stream+json"], json).0, 204);
    let chunked = [format!("{:x}\r\n", json.len()).as_bytes(), json, b"\r\n0\r\n\r\n"].concat();
    assert_eq!(
        agent.post(LOGS, &["Transfer-Encoding: chunked", "Content-Type: application/x-ndjson"], &chunked).0,
        204
    );
    let over_socket = exchange(UnixStream::connect(&socket).unwrap(), &request(METRICS, &[], b"up 3 5\n"));
    assert_eq!(over_socket.0, 204);
    let batches = board.saw(5).await;
    assert_eq!(bodies(&of(&batches, Signal::Metrics)), ["up 1 5\n", "up 2 5\n", "up 3 5\n"]);
    let logs = of(&batches, Signal::Logs);
    assert_eq!(bodies(&logs), vec![String::from_utf8(json.to_vec()).unwrap(); 2]);
    assert_eq!(board.queries(), ["_msg_field=log&_time_field=date"]);
    for batch in &batches {
        assert!(batch.headers.contains_key("miren-batch-id") && batch.headers.contains_key("miren-workload-token"));
    }
    assert!(agent.terminate().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_get_the_time_at_which_they_were_taken_and_lines_that_a_store_skips_are_no_reason_to_refuse() {
    let (cluster, board, reserved) = (Cluster::new(), Board::taking_all(), away());
    let place = Place::new(&cluster, reserved);
    let agent = place.spooling();
    let now = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let before = now();
    assert_eq!(agent.post(METRICS, &[], b"# HELP up x\nup 1\nno point at all\n").0, 204);
    assert_eq!(agent.post(LOGS, &[], b"{\"_msg\":\"a\"}\nno json\n").0, 204);
    let after = now();
    let _server = cluster.start_at(reserved, &board, None);
    let batches = board.saw(2).await;
    let metrics = bodies(&of(&batches, Signal::Metrics));
    let stamp: u128 = metrics[0].lines().nth(1).unwrap().split(' ').nth(2).unwrap().parse().unwrap();
    assert!((before..=after).contains(&stamp), "{metrics:?}");
    let status = agent.status();
    assert_eq!(
        (&status["signals"]["metrics"]["written"], &status["signals"]["logs"]["written"]),
        (&1.into(), &1.into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_pythons_standard_library_is_understood() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let server = cluster.start(&board);
    let place = Place::new(&cluster, server.address);
    let agent = place.spooling();
    let program = "import sys, urllib.request as r\n\
                   q = r.Request(sys.argv[1], data=b'up 1 5\\n', headers={'Content-Type': 'text/plain'})\n\
                   print(r.urlopen(q).status)";
    let url = format!("http://{}{METRICS}", agent.address);
    let Ok(output) = Command::new("python3").args(["-c", program, &url]).output() else {
        eprintln!("there is no python3 here");
        return;
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "204");
    assert_eq!(bodies(&board.saw(1).await), ["up 1 5\n"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_store_would_take_is_refused_at_once_and_not_spooled() {
    let cluster = Cluster::new();
    let place = Place::new(&cluster, away());
    let agent = place.spooling();
    let bomb = gzip(&vec![b'a'; (32 << 20) + 1]);
    for (path, headers, body, status) in [
        (METRICS, &["Content-Type: application/x-www-form-urlencoded"][..], &b"up 1\n"[..], 415),
        (METRICS, &["Content-Type: application/x-protobuf", "Content-Encoding: snappy"], b"x", 415),
        (METRICS, &["Content-Encoding: zstd"], b"x", 415),
        (METRICS, &["Content-Encoding: gzip"], b"no gzip", 400),
        (METRICS, &["Content-Encoding: gzip"], &gzip(b"up 1\n")[..20], 400),
        (METRICS, &["Content-Encoding: gzip"], &bomb, 413),
        (METRICS, &["Content-Length: 33554433"], b"", 413),
        ("/api/v1/import/prometheus?extra_label=a=b", &[], b"up 1\n", 400),
        ("/insert/jsonline?_msg_field=a,b", &[], b"{}\n", 400),
        ("/insert/jsonline?_msg_field=a&_msg_field=b", &[], b"{}\n", 400),
        (LOGS, &["Content-Type: application/x-protobuf"], b"{}\n", 415),
        (LOGS, &[], b"no json\n", 400),
        (LOGS, &[], b"[1]\n", 400),
        ("/v1/traces", &["Content-Type: application/json"], b"{}", 415),
        ("/v1/traces", &["Content-Type: application/x-protobuf"], b"", 503),
        ("/api/v1/write", &[], b"x", 400),
        ("/api/v1/write", &["Content-Encoding: zstd"], &remote_write(&[]), 415),
        ("/api/v1/write", &["Content-Type: text/plain"], &remote_write(&[]), 415),
        ("/api/v1/write", &[REMOTE_WRITE_2], &remote_write(&[]), 415),
        ("/api/v1/write", &[], &remote_write(&message(1, &message(4, b""))), 415),
        ("/api/v1/write", &[], &[0xff, 0xff, 0xff, 0xff, 0x0f], 413),
        ("/api/v1/write?extra_label=a=b", &[], &remote_write(&[]), 400),
        ("/v1/metrics", &["Content-Type: application/x-protobuf"], b"", 415),
        ("/v1/logs", &["Content-Type: application/x-protobuf"], b"", 415),
        ("/api/v1/query", &[], b"x", 404),
        ("/api/v1/import/prometheus/", &[], b"up 1\n", 404),
        ("/status", &[], b"x", 405),
        (METRICS, &["Origin: https://evil.example"], b"up 1\n", 403),
    ] {
        let (answered, why) = agent.post(path, headers, body);
        assert_eq!(answered, status, "{path} {headers:?}: {why}");
        assert!(!why.trim().is_empty(), "a reason");
    }
    assert_eq!(agent.get(METRICS).0, 405);
    assert_eq!(agent.post(METRICS, &[], b"\n \n").0, 204, "nothing is in it");
    let status = agent.status();
    for signal in ["metrics", "logs", "traces"] {
        assert_eq!(status["signals"][signal]["written"], 0, "{status}");
    }
    assert_eq!(status["spool"]["batches"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_write_becomes_lines_and_what_lines_can_not_say_is_counted() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let server = cluster.start(&board);
    let place = Place::new(&cluster, server.address);
    let agent = place.spooling();
    let (stale, nan) = (0x7ff0_0000_0000_0002, f64::NAN.to_bits());
    let exemplar = message(1, &[series("x", &[])[2..].to_vec(), message(3, b"")].concat());
    let body =
        [series("up", &[(1.5_f64.to_bits(), 5), (stale, 6), (nan, 7)]), series("a.b", &[(0, 8)]), exemplar].concat();
    let headers = ["Content-Type: application/x-protobuf", "Content-Encoding: snappy"];
    assert_eq!(agent.post("/api/v1/write", &headers, &remote_write(&body)).0, 204);
    assert_eq!(bodies(&board.saw(1).await), ["up{l=\"v\"} 1.5 5\na.b{l=\"v\"} 0 8\n"]);
    assert_eq!(agent.post("/api/v1/write", &headers, &remote_write(&series("up", &[(stale, 9)]))).0, 204);
    assert_eq!(agent.post(METRICS, &[], b"up NaN\ndown 1 5\n").0, 204);
    assert_eq!(bodies(&board.saw(2).await)[1], "down 1 5\n");
    let metrics = &agent.status()["signals"]["metrics"];
    assert_eq!(metrics["written"], 7, "{metrics}");
    assert_eq!(metrics["dropped"], serde_json::json!({"stale_marker": 2, "not_a_number": 2}));
    let told = agent.get("/metrics").1;
    assert!(told.contains("telemetry_agent_ignored_total{what=\"exemplar\"} 1"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_relay_rejects_is_put_aside_with_the_reason_and_without_a_token() {
    let cluster = Cluster::new();
    let board = Board::new(|_, _| Reply::verdict(413, "reject").with("miren-telemetry-reason", "body-too-large"));
    let server = cluster.start(&board);
    let place = Place::new(&cluster, server.address);
    let agent = Agent::start(&place.config("", "[spool]\nfolder = \"spool\"\n[dead_letters]\nfolder = \"letters\""));
    assert_eq!(agent.post(METRICS, &[], b"up 1 5\nup 2 5\n").0, 204);
    let token = board.saw(1).await[0].token().to_owned();
    let began = Instant::now();
    while agent.status()["dead_letters"]["kept"] != 1 {
        assert!(began.elapsed() < PATIENCE, "{}", agent.status());
    }
    let letters: Vec<PathBuf> = std::fs::read_dir(place.path("letters")).unwrap().map(|e| e.unwrap().path()).collect();
    let text = std::fs::read_to_string(&letters[0]).unwrap();
    let (head, body) = text.split_once('\n').unwrap();
    let head: serde_json::Value = serde_json::from_str(head).unwrap();
    assert_eq!((letters.len(), body), (1, "up 1 5\nup 2 5\n"));
    assert_eq!((&head["reason"], &head["status"], &head["items"]), (&"body-too-large".into(), &413.into(), &2.into()));
    assert!(!text.contains(&token));
    assert!(agent.get("/metrics").1.contains("telemetry_dead_letters_total{outcome=\"kept\"} 1"));
    let output = run(&["status", "--listen", &agent.address.to_string()], b"");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("rejected     1 batches put aside") && shown.contains("lost: rejected 2"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spool_that_can_not_be_used_is_told_with_a_remedy_and_nothing_is_deleted() {
    let cluster = Cluster::new();
    let place = Place::new(&cluster, away());
    let config = place.config("", "[spool]\nfolder = \"spool\"");
    let is_told = |what: &str, remedy: &str| {
        let output = run(&["run", "--config", config.to_str().unwrap()], b"");
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(what) && told.contains(remedy), "{told}");
    };
    let agent = Agent::start(&config);
    assert_eq!(agent.post(METRICS, &[], b"up 1 5\n").0, 204);
    is_told("is in use by another process", "stop it, or name another folder");
    agent.kill();

    // A newer program wrote a segment: its version is behind the magic, and the header has a checksum.
    let segment = |folder: &str| {
        let entries = std::fs::read_dir(place.path(folder)).unwrap().map(|entry| entry.unwrap().path());
        entries.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "seg")).unwrap()
    };
    let path = segment("spool");
    let own = std::fs::read(&path).unwrap();
    let mut newer = own.clone();
    newer[8] = 2;
    let checksum = crc32fast::hash(&newer[..60]);
    newer[60..64].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&path, &newer).unwrap();
    is_told("has format version 2", "use the newer program, or name another folder");
    assert_eq!(std::fs::read(&path).unwrap(), newer, "untouched");

    // Garbage is set aside and delivery goes on.
    std::fs::write(&path, &own).unwrap();
    std::fs::write(place.path("spool").join("garbage.seg"), [0x55; 10_000]).unwrap();
    let agent = Agent::start(&config);
    assert_eq!(agent.status()["signals"]["metrics"]["recovered"], 1);
    assert_eq!(std::fs::read_dir(place.path("spool/set-aside")).unwrap().count(), 1, "kept, for people");
    agent.kill();

    std::fs::rename(place.path("spool"), place.path("elsewhere")).unwrap();
    std::fs::write(place.path("spool"), "a file").unwrap();
    is_told("is not a folder", "name another one");
    assert_eq!(std::fs::read_to_string(place.path("spool")).unwrap(), "a file");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_with_204_survives_kill_9_and_arrives_once_and_in_order() {
    let (cluster, board, reserved) = (Cluster::new(), Board::taking_all(), away());
    let place = Place::new(&cluster, reserved);
    for run in 0..3 {
        let agent = place.spooling();
        for number in 0..20 {
            let body = format!("p{} 1 5\n", run * 20 + number);
            assert_eq!(agent.post(METRICS, &[], body.as_bytes()).0, 204);
        }
        agent.kill();
    }
    let _server = cluster.start_at(reserved, &board, None);
    let agent = place.spooling();
    let batches = board.saw(60).await;
    assert_eq!(bodies(&batches), (0..60).map(|number| format!("p{number} 1 5\n")).collect::<Vec<_>>());
    assert!(agent.terminate().success());
    assert_eq!(board.batches().len(), 60);
    assert_eq!(place.spooling().status()["signals"]["metrics"]["recovered"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_at_its_deadline_and_leaves_the_rest_in_the_spool() {
    let cluster = Cluster::new();
    let place = Place::new(&cluster, away());
    let config = place.config("drain_seconds = 1", "[spool]\nfolder = \"spool\"");
    let agent = Agent::start(&config);
    assert_eq!(agent.post(LOGS, &[], b"{\"_msg\":\"a\"}\n{\"_msg\":\"b\"}\n").0, 204);
    let began = Instant::now();
    assert!(agent.terminate().success());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let logs = &place.spooling().status()["signals"]["logs"];
    assert_eq!((&logs["recovered"], &logs["waiting"]), (&2.into(), &2.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_spool_that_refuses_answers_429_and_keeps_what_it_has() {
    let cluster = Cluster::new();
    let place = Place::new(&cluster, away());
    let spool = "[spool]\nfolder = \"spool\"\nmax_bytes = 1048576\nwhen_full = \"refuse\"";
    let agent = Agent::start(&place.config("", spool));
    let too_large = format!("p{{l=\"{}\"}} 1\n", "x".repeat(300_000));
    assert_eq!(agent.post(METRICS, &[], too_large.as_bytes()).0, 413, "no attempt will ever fit");
    let body = format!("p{{l=\"{}\"}} 1\n", "x".repeat(200_000));
    let answers: Vec<u16> = (0..8).map(|_| agent.post(METRICS, &[], body.as_bytes()).0).collect();
    let taken = answers.iter().filter(|status| **status == 204).count();
    assert!((3..6).contains(&taken) && answers[taken..].iter().all(|status| *status == 429), "{answers:?}");
    let metrics = &agent.status()["signals"]["metrics"];
    assert_eq!((&metrics["written"], &metrics["waiting"]), (&taken.into(), &taken.into()), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_are_taken_while_the_coordinator_takes_them() {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
    use prost::Message as _;
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    *board.policy.lock().unwrap() = Some(POLICY.to_owned());
    let server = cluster.start(&board);
    let place = Place::new(&cluster, server.address);
    let agent = place.spooling();
    let spans = ScopeSpans { spans: vec![Span::default(); 3], ..ScopeSpans::default() };
    let resource_spans = vec![ResourceSpans { scope_spans: vec![spans], ..ResourceSpans::default() }];
    let body = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
    let began = Instant::now();
    let headers = ["Content-Type: application/x-protobuf"];
    while agent.post("/v1/traces", &headers, &body).0 != 200 {
        assert!(began.elapsed() < PATIENCE, "the policy did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
    let batches = board.saw(1).await;
    assert_eq!((&batches[0].body[..], of(&batches, Signal::Traces).len()), (&body[..], 1));
    assert_eq!(agent.status()["signals"]["traces"]["written"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_compressed_where_the_coordinator_takes_that() {
    use std::io::Read as _;
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    *board.policy.lock().unwrap() = Some(POLICY.to_owned());
    let server = cluster.start(&board);
    let place = Place::new(&cluster, server.address);
    let agent = place.spooling();
    let body = "up 1 5\n".repeat(1_000);
    // The policy comes a moment after the start.
    for sent in 1.. {
        assert_eq!(agent.post(METRICS, &[], body.as_bytes()).0, 204);
        let batch = board.saw(sent).await.pop().unwrap();
        if let Some(encoding) = batch.headers.get("content-encoding") {
            let mut decoded = String::new();
            flate2::read::GzDecoder::new(&batch.body[..]).read_to_string(&mut decoded).unwrap();
            assert_eq!((encoding.as_bytes(), decoded), (&b"gzip"[..], body));
            return;
        }
        assert!(sent < 1_000, "the policy did not come");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_metrics_and_health_tell_how_the_agent_is() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let server = cluster.start(&board);
    let place = Place::new(&cluster, server.address);
    let agent = place.spooling();
    assert_eq!(agent.post(METRICS, &[], b"up 1\n").0, 204);
    board.saw(1).await;
    let began = Instant::now();
    let status = loop {
        let status = agent.status();
        if status["signals"]["metrics"]["delivered"] == 1 {
            break status;
        }
        assert!(began.elapsed() < PATIENCE);
    };
    assert_eq!(status["coordinator"], server.address.to_string());
    assert_eq!(status["transport"], "quic");
    assert!(status["round_trip_ms"].as_f64().unwrap() > 0.0);
    assert!(status["token_seconds_left"].as_i64().unwrap() > 3_000);
    assert!(status["certificate_ends"].is_string() && status["spool"]["bytes"].is_u64(), "{status}");
    assert_eq!(agent.get("/healthz"), (200, "ok\n".to_owned()));
    let metrics = agent.get("/metrics").1;
    assert!(metrics.contains("telemetry_delivered_total{signal=\"metrics\"} 1"), "{metrics}");

    let address = agent.address.to_string();
    let output = run(&["status", "--listen", &address, "--json"], b"");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["signals"], status["signals"]);
    let output = run(&["status", "--listen", &address], b"");
    assert!(String::from_utf8_lossy(&output.stdout).contains("delivered 1, waiting 0, lost: none"));
    drop(agent);
    assert_eq!(run(&["status", "--listen", &address], b"").status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_reloaded_when_their_files_change() {
    let (cluster, stranger, board) = (Cluster::new(), Cluster::new(), Board::taking_all());
    let server = cluster.start(&board);
    let place = Place::new(&stranger, server.address);
    let agent = place.spooling();
    assert_eq!(agent.post(METRICS, &[], b"up 1 5\n").0, 204);
    place.put_certificates(&cluster);
    assert_eq!(bodies(&board.saw(1).await), ["up 1 5\n"]);
}

#[test]
fn every_fault_of_a_configuration_is_named_at_once_and_ends_with_78() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    let text = "coordinator = \"c\"\n[identity]\ncertificat = \"x\"\nkey = \"missing.pem\"\n\
                [listen]\naddress = \"0.0.0.0:1\"\n[spool]\nfolder = \"s\"\nmax_bytes = 5\nwhen_full = \"drop\"\n[speed]\n";
    std::fs::write(&config, text).unwrap();
    let output = run(&["run", "--config", config.to_str().unwrap()], b"");
    assert_eq!(output.status.code(), Some(78));
    let told = String::from_utf8(output.stderr).unwrap();
    for fault in [
        "coordinator: unknown key",
        "coordinators: is empty",
        "identity.certificat: unknown key",
        "identity.certificate: is missing",
        "identity.ca: is missing",
        "listen.address: 0.0.0.0:1 can be reached by other machines",
        "[spool]",
        "speed: unknown key",
    ] {
        assert!(told.contains(fault), "{fault} is not in\n{told}");
    }
    assert_eq!(run(&["run", "--nonsense"], b"").status.code(), Some(64));
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_alone_suffice_to_check_and_to_send() {
    let (cluster, board) = (Cluster::new(), Board::taking_all());
    let server = cluster.start(&board);
    let place = Place::new(&cluster, server.address);
    let coordinator = server.address.to_string();
    let with = |command: &[&str], coordinator: &str, input: &[u8]| place.run(command, coordinator, input);
    let output = with(&["check"], &coordinator, b"");
    assert!(output.status.success(), "{output:?}");
    let lines: String = (0..100_000).map(|number| format!("p{number} 1 5\n")).collect();
    let output = with(&["send", "metrics", "-"], &coordinator, lines.as_bytes());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "100000 of 100000 delivered");
    assert!(bodies(&board.batches()).concat() == lines, "every line, in order");
    let output = with(&["send", "logs", "-", "--within", "1"], &away().to_string(), b"{\"_msg\":\"a\"}\n");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_sent_and_the_result_says_what_was_not_delivered() {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
    use prost::Message as _;
    let cluster = Cluster::new();
    let board = Board::new(|_, path| match path.contains("logs") {
        true => Reply::verdict(400, "reject"),
        false => Reply::verdict(204, "delivered"),
    });
    *board.policy.lock().unwrap() = Some(POLICY.to_owned());
    let server = cluster.start(&board);
    let place = Place::new(&cluster, server.address);
    let coordinator = server.address.to_string();
    let send = |kind: &str, input: &[u8]| {
        let output = place.run(&["send", kind, "-", "--json"], &coordinator, input);
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        (output.status.code().unwrap(), told, String::from_utf8(output.stderr).unwrap())
    };
    let (code, told, _) = send("metrics", b"# HELP up x\nup 1 5\n");
    assert_eq!((code, &told["items"], &told["delivered"], &told["complete"]), (0, &1.into(), &1.into(), &true.into()));

    let (code, told, why) = send("metrics", b"up 1 5\nup NaN 5\nno point\n");
    assert_eq!((code, &told["items"], &told["delivered"]), (1, &2.into(), &1.into()), "{told}");
    assert_eq!((&told["dropped"]["not_a_number"], &told["unreadable_lines"]), (&1.into(), &1.into()), "{told}");
    assert!(why.contains("1 were not delivered (not_a_number 1); 1 lines can't be read"), "{why}");

    let (code, told, _) = send("logs", b"{\"_msg\":\"a\"}\n");
    assert_eq!((code, &told["dropped"]["rejected"], &told["complete"]), (1, &1.into(), &false.into()), "{told}");

    let spans = ScopeSpans { spans: vec![Span::default(); 3], ..ScopeSpans::default() };
    let resource_spans = vec![ResourceSpans { scope_spans: vec![spans], ..ResourceSpans::default() }];
    let body = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
    let (code, told, why) = send("traces", &body);
    assert_eq!((code, &told["delivered"]), (0, &3.into()), "{told} {why}");
    assert_eq!(of(&board.batches(), Signal::Traces)[0].body, body);
    let (code, told, why) = send("traces", b"no message");
    assert_eq!((code, &told["complete"]), (1, &false.into()));
    assert!(why.contains("this is no OTLP export request"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_is_interrupted_says_what_was_not_delivered() {
    let cluster = Cluster::new();
    let board = Board::new(|number, _| Reply { hang: number == 1, ..Reply::verdict(204, "delivered") });
    let server = cluster.start(&board);
    let place = Place::new(&cluster, server.address);
    let mut process = place.command(&["send", "metrics", "-"], &server.address.to_string()).spawn().unwrap();
    // Two batches and a bit; the end of the input never comes.
    let mut input = process.stdin.take().unwrap();
    let line = format!("p{{l=\"{}\"}} 1 5\n", "x".repeat(1_000));
    for _ in 0..2_500 {
        input.write_all(line.as_bytes()).unwrap();
    }
    input.flush().unwrap();
    board.saw(2).await;
    assert!(Command::new("kill").args(["-INT", &process.id().to_string()]).status().unwrap().success());
    let output = process.wait_with_output().unwrap();
    drop(input);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let why = String::from_utf8(output.stderr).unwrap();
    for part in ["it was interrupted", "were not delivered (shutdown ", "the rest of the file was not read"] {
        assert!(why.contains(part), "{why}");
    }
}
