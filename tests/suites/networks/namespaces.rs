//! Two network namespaces with a link of a small MTU between them: the relay's socket is in one, the runner's in the other.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use telemetry_certs::{CoordinatorRequest, ServerTls};
use telemetry_relay::listener::{Listener, ListenerConfig};
use telemetry_rig::networks;
use telemetry_rig::rig::{Rig, RigRelay};
use telemetry_rig::suite::{Suite, TestResult};
use tokio::runtime::Handle;

use crate::{WITHIN, once};

const MTU: &str = "1280";
const RELAY: &str = "10.77.0.1";
const RUNNER: &str = "10.77.0.2";
const PORT: u16 = 4_433;

pub(crate) fn add(suite: Suite) -> Suite {
    let expected = "a link with an MTU of 1,280 between two network namespaces: everything arrives once";
    suite.expecting_where("networks: mtu_1280", expected, possible, small_mtu)
}

fn possible() -> Result<(), String> {
    let pair = Pair::new().map_err(|error| format!("network namespaces can't be made here: {error}"))?;
    pair.relay.within(|| ()).map_err(|error| format!("network namespaces can't be entered here: {error}"))
}

async fn small_mtu() -> TestResult {
    let pair = Pair::new()?;
    let rig = Rig::builder().runners(0).start().await?;
    let RigRelay::InProcess(relay) = rig.relay() else { return Err("the relay is elsewhere".into()) };
    let service = relay.service().ok_or("the relay does not run")?;
    let address = SocketAddr::new(RELAY.parse()?, PORT);
    let mut request = CoordinatorRequest::new([] as [&str; 0]);
    request.ip_addresses = vec![address.ip()];
    let tls = telemetry_certs::server_config(ServerTls {
        credentials: &rig.cluster().authority().issue_coordinator(&request)?.credentials()?,
        client_roots: rig.cluster().roots(),
        crls: &[],
        alpn: &[b"h3"],
    })?;
    // Where a socket is made is where it stays.
    let runtime = Handle::current();
    let listener = pair.relay.within(|| {
        let _runtime = runtime.enter();
        Listener::bind(ListenerConfig::new(address), Arc::new(tls))
    })??;
    let _serving = listener.serve(service);
    let client = pair.runner.within(|| {
        let _runtime = runtime.enter();
        networks::client(&rig, &address.to_string())
    })?;
    let client = client.map_err(|error| error.to_string())?;
    client.connected().await?;
    let transfer = networks::transfer(&rig, &client, WITHIN, |_| {}).await.map_err(|error| error.to_string())?;
    once("mtu_1280", &transfer);
    Ok(())
}

/// Two namespaces and the link between them. They end with it.
struct Pair {
    relay: Namespace,
    runner: Namespace,
}

impl Pair {
    fn new() -> io::Result<Self> {
        let (relay, runner) = (Namespace::new()?, Namespace::new()?);
        let peer = runner.holder.id().to_string();
        let link = ["link", "add", "link0", "mtu", MTU, "type", "veth"];
        relay.ip(&[&link[..], &["peer", "name", "link0", "mtu", MTU, "netns", &peer]].concat())?;
        for (namespace, address) in [(&relay, RELAY), (&runner, RUNNER)] {
            namespace.ip(&["address", "add", &format!("{address}/24"), "dev", "link0"])?;
            namespace.ip(&["link", "set", "link0", "up"])?;
        }
        Ok(Self { relay, runner })
    }
}

/// A network namespace, kept by a process that waits for the end of its input, which is ours.
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> io::Result<Self> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", "echo in && exec cat"]);
        let mut holder = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut said = String::new();
        if let Some(output) = &mut holder.stdout {
            BufReader::new(output).read_line(&mut said)?;
        }
        let namespace = Self { holder };
        if said.is_empty() { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(namespace) }
    }

    fn ip(&self, arguments: &[&str]) -> io::Result<()> {
        let mut ip = Command::new("nsenter");
        ip.arg("--net").arg("--target").arg(self.holder.id().to_string()).arg("ip").args(arguments);
        let output = ip.output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }

    /// Calls it on a thread that is in the namespace.
    fn within<T: Send>(&self, call: impl FnOnce() -> T + Send) -> io::Result<T> {
        let namespace = File::open(format!("/proc/{}/ns/net", self.holder.id()))?;
        let enter_and_call = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(call())
        };
        let thread = std::thread::scope(|scope| scope.spawn(enter_and_call).join());
        thread.unwrap_or_else(|_| Err(io::Error::other("the call panicked")))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
