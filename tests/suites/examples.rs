//! The examples do what they show: a coordinator that embeds the relay beside an RPC of its own, and a runner from boot to
//! shutdown.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use http::{Method, StatusCode};
use telemetry_proto::mint::{MintRequest, MintResponse};
use telemetry_proto::{Reason, Route, RunnerId, Signal, header};
use telemetry_rig::program::Program;
use telemetry_rig::raw::RawClient;
use telemetry_rig::rig::Cluster;
use telemetry_rig::stores::BuiltInStore;
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

telemetry_rig::suite! {
    a_runner_delivers_from_boot_to_shutdown needs [ExampleCoordinator, ExampleRunner];
    a_coordinator_has_its_own_rpc_sink_and_registry_on_one_port needs [ExampleCoordinator];
}

const SOON: Duration = Duration::from_secs(20);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A program that prints lines, and ends when it is told to.
struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    fn start(program: Program, arguments: &[&str]) -> Result<Self, Failure> {
        let mut command = Command::new(program.find()?);
        let mut child =
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        Ok(Self { child, lines })
    }

    /// What follows `start` on the next line that begins with that.
    async fn line(&mut self, start: &str) -> Result<String, Failure> {
        let search = async {
            while let Some(line) = self.lines.next_line().await? {
                if let Some(rest) = line.strip_prefix(start) {
                    return Ok(rest.to_owned());
                }
            }
            Err(format!("it ended without a line {start:?}").into())
        };
        timeout(SOON, search).await.map_err(|_| format!("no line {start:?} in time"))?
    }

    /// Tells it to end; what is on the line that begins with `start`, once it has ended well.
    async fn end(mut self, start: &str) -> Result<String, Failure> {
        let pid = self.child.id().ok_or("it has ended")?;
        Command::new("sh").arg("-c").arg(format!("kill -TERM {pid}")).status().await?;
        let line = self.line(start).await?;
        let status = timeout(SOON, self.child.wait()).await??;
        if status.success() { Ok(line) } else { Err(status.to_string().into()) }
    }
}

/// A coordinator, its store, and runners' certificates in a folder.
struct Scene {
    cluster: Cluster,
    store: BuiltInStore,
    coordinator: Example,
    address: String,
    folder: tempfile::TempDir,
}

impl Scene {
    async fn set() -> Result<Self, Failure> {
        let cluster = Cluster::new("examples")?;
        let store = BuiltInStore::start().await?;
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("ca.pem"), cluster.root_pem())?;
        let own = cluster.coordinator();
        write_credentials(folder.path(), "coordinator", &own.chain_pem, &own.key_pem)?;
        let issued = cluster.issue(&RunnerId::new("r1")?)?;
        write_credentials(folder.path(), "r1", &issued.chain_pem, &issued.key_pem)?;
        let (folder_text, store_text) = (folder.path().display().to_string(), store.address().to_string());
        let arguments = [&folder_text, "127.0.0.1:0", &store_text, &store_text];
        let mut coordinator = Example::start(Program::ExampleCoordinator, &arguments)?;
        let address = coordinator.line("listens on ").await?;
        Ok(Self { cluster, store, coordinator, address, folder })
    }
}

fn write_credentials(folder: &Path, name: &str, chain: &str, key: &str) -> std::io::Result<()> {
    fs::write(folder.join(format!("{name}.pem")), chain)?;
    fs::write(folder.join(format!("{name}.key")), key)
}

async fn a_runner_delivers_from_boot_to_shutdown() -> TestResult {
    let scene = Scene::set().await?;
    let (_, port) = scene.address.rsplit_once(':').ok_or("no port")?;
    let folder = scene.folder.path().display().to_string();
    let mut runner = Example::start(Program::ExampleRunner, &[&folder, "r1", &format!("localhost:{port}")])?;
    runner.line("works").await?;
    // It ends when it is told to, and need not have worked until then.
    wait::until("a tick", SOON, async || {
        let ticks = scene.store.samples().iter().any(|sample| sample.name == "runner_ticks");
        if ticks { Ok(()) } else { Err("none".to_owned()) }
    })
    .await?;
    let delivered = runner.end("").await?;
    assert!(delivered.ends_with(" delivered, 0 dropped, 0 lost"), "{delivered}");

    let samples = scene.store.samples();
    assert!(samples.iter().any(|sample| sample.name == "runner_boots" && sample.label("miren_runner") == "r1"));
    let said: Vec<_> = scene.store.log_lines().iter().map(|line| line.field("_msg").to_owned()).collect();
    assert_eq!(said, ["boots", "ends"], "the first and the last words");
    scene.coordinator.end("stopped").await?;
    Ok(())
}

async fn a_coordinator_has_its_own_rpc_sink_and_registry_on_one_port() -> TestResult {
    let mut scene = Scene::set().await?;
    let credentials = scene.cluster.issue_runner(&RunnerId::new("r2")?)?;
    let client = RawClient::connect(scene.address.parse()?, scene.cluster.roots(), Some(&credentials)).await?;
    let rpc = async |path: &str| client.request(Method::POST, path).send().await;
    let hello = rpc("/rpc/hello").await?;
    assert_eq!((hello.status, hello.body.as_str()), (StatusCode::OK, "hello r2"));
    assert_eq!(rpc("/rpc/other").await?.status, StatusCode::NOT_FOUND);
    rpc("/other").await?.expect_refusal(Reason::RouteUnknown)?;

    // A token from the issuer in the same process, and a batch for the sink.
    let request = serde_json::to_string(&MintRequest::telemetry_writer(&[Signal::Metrics]))?;
    let mint = client.request(Method::POST, Route::MintToken.path()).header("content-type", "application/json");
    let minted: MintResponse = serde_json::from_str(&mint.body(request).send().await?.body)?;
    let write = client.write(Signal::Metrics).token(&minted.token);
    let marked = write.clone().header(header::TELEMETRY_STREAM, header::STREAM_OPERATIONAL).body("load 7\n");
    marked.send().await?.expect_delivered()?;
    assert_eq!(scene.coordinator.line("r2 says ").await?, "load = 7");
    assert!(scene.store.requests().is_empty(), "what goes to the sink goes to no store");
    write.clone().body("up 1\n").send().await?.expect_delivered()?;
    assert_eq!(scene.store.samples().len(), 1);

    // It leaves, and nothing of it is worth anything any more.
    if let Ok(answer) = rpc("/rpc/leave").await {
        assert_eq!(answer.body, "goodbye");
    }
    timeout(SOON, client.connection().closed()).await?;
    let again = RawClient::connect(scene.address.parse()?, scene.cluster.roots(), Some(&credentials)).await?;
    match again.write(Signal::Metrics).token(&minted.token).body("up 1\n").send().await {
        Ok(answer) => answer.expect_refusal(Reason::RunnerRemoved)?,
        Err(error) => assert!(again.connection().close_reason().is_some(), "{error}"),
    }
    scene.coordinator.end("stopped").await?;
    Ok(())
}
