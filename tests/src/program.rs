//! Where the programs are that run beside the tests.

use std::env;
use std::path::PathBuf;

/// A program that runs beside the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// VictoriaMetrics, single node.
    VictoriaMetrics,
    /// VictoriaLogs, single node.
    VictoriaLogs,
    /// VictoriaTraces, single node. Nothing here builds it: its variable or `PATH` must say where it is.
    VictoriaTraces,
    /// VictoriaMetrics' proxy with authentication.
    Vmauth,
    /// The relay.
    Relay,
    /// The runner's agent.
    RunnerAgent,
    /// The client and server on quic-go.
    PeerGo,
    /// The example of a coordinator that embeds the relay.
    ExampleCoordinator,
    /// The example of a runner.
    ExampleRunner,
    /// Python with aioquic, curl and OpenTelemetry's SDK, for the programs on those.
    PeerPython,
    /// Chromium. The system has it or not.
    Chromium,
    /// VictoriaMetrics' program for alert rules, from Debian's package.
    Vmalert,
    /// Prometheus' tool. The system has it or not.
    Promtool,
    /// What reads systemd's units. The system has it or not.
    SystemdAnalyze,
    /// What reads Kubernetes manifests, on Kubernetes' own types.
    CheckManifests,
    /// VictoriaMetrics' agent.
    VmAgent,
    /// Debian's Prometheus.
    Prometheus,
    /// Debian's syslog-ng.
    SyslogNg,
    /// curl. Nothing here gets it: its variable or `PATH` must say where it is.
    Curl,
}

/// The program is nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    /// The variable names no file.
    #[error("{variable} is set, but names no file")]
    NoSuchFile {
        /// The variable.
        variable: &'static str,
    },
    /// None of the places has it.
    #[error("no {name} in the target folder or on PATH, and {variable} is not set; tests/run builds what it can")]
    Nowhere {
        /// The program's file name.
        name: &'static str,
        /// The variable that may name it.
        variable: &'static str,
    },
}

impl Program {
    /// The program's file name, below its folder if it comes with one.
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::VictoriaMetrics => "victoria-metrics",
            Self::VictoriaLogs => "victoria-logs",
            Self::VictoriaTraces => "victoria-traces",
            Self::Vmauth => "vmauth",
            Self::Relay => "telemetry-relay",
            Self::RunnerAgent => "runner-agent",
            Self::PeerGo => "peer-go",
            Self::ExampleCoordinator => "examples/coordinator",
            Self::ExampleRunner => "examples/runner",
            Self::PeerPython => "peer-python/bin/python",
            Self::Chromium => "chromium",
            Self::Vmalert => "debian/usr/bin/vmalert",
            Self::Promtool => "promtool",
            Self::SystemdAnalyze => "systemd-analyze",
            Self::CheckManifests => "check-manifests",
            Self::VmAgent => "vmagent",
            Self::Prometheus => "debian/usr/bin/prometheus",
            Self::SyslogNg => "debian/usr/sbin/syslog-ng",
            Self::Curl => "curl",
        }
    }

    /// The environment variable that names the program's file.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        match self {
            Self::VictoriaMetrics => "TELEMETRY_VICTORIA_METRICS",
            Self::VictoriaLogs => "TELEMETRY_VICTORIA_LOGS",
            Self::VictoriaTraces => "TELEMETRY_VICTORIA_TRACES",
            Self::Vmauth => "TELEMETRY_VMAUTH",
            Self::Relay => "TELEMETRY_RELAY",
            Self::RunnerAgent => "TELEMETRY_RUNNER_AGENT",
            Self::PeerGo => "TELEMETRY_PEER_GO",
            Self::ExampleCoordinator => "TELEMETRY_EXAMPLE_COORDINATOR",
            Self::ExampleRunner => "TELEMETRY_EXAMPLE_RUNNER",
            Self::PeerPython => "TELEMETRY_PEER_PYTHON",
            Self::Chromium => "TELEMETRY_CHROMIUM",
            Self::Vmalert => "TELEMETRY_VMALERT",
            Self::Promtool => "TELEMETRY_PROMTOOL",
            Self::SystemdAnalyze => "TELEMETRY_SYSTEMD_ANALYZE",
            Self::CheckManifests => "TELEMETRY_CHECK_MANIFESTS",
            Self::VmAgent => "TELEMETRY_VMAGENT",
            Self::Prometheus => "TELEMETRY_PROMETHEUS",
            Self::SyslogNg => "TELEMETRY_SYSLOG_NG",
            Self::Curl => "TELEMETRY_CURL",
        }
    }

    /// Whether `tests/run` can get it wherever there are Go and Python. What it can't get, or from Debian only, is never
    /// required.
    #[must_use]
    pub const fn is_obtainable(self) -> bool {
        !matches!(
            self,
            Self::VictoriaTraces
                | Self::Chromium
                | Self::Vmalert
                | Self::Promtool
                | Self::SystemdAnalyze
                | Self::Curl
                | Self::Prometheus
                | Self::SyslogNg
        )
    }

    /// Finds the program: where its variable says, in the target folder that this program runs from, then on `PATH`.
    ///
    /// # Errors
    /// [`NotFound`] says where it was looked for.
    pub fn find(self) -> Result<PathBuf, NotFound> {
        let (name, variable) = (self.file_name(), self.variable());
        if let Some(path) = env::var_os(variable).filter(|value| !value.is_empty()) {
            let path = PathBuf::from(path);
            return if path.is_file() { Ok(path) } else { Err(NotFound::NoSuchFile { variable }) };
        }
        built()
            .chain(on_path())
            .map(|folder| folder.join(name))
            .find(|path| path.is_file())
            .ok_or(NotFound::Nowhere { name, variable })
    }
}

/// `target/PROFILE`, `target/stores` and `target/peers`, seen from `target/PROFILE/program` or `target/PROFILE/deps/program`: wherever
/// cargo's target folder is.
fn built() -> impl Iterator<Item = PathBuf> {
    let program = env::current_exe().unwrap_or_default();
    let above: Vec<PathBuf> = program.ancestors().skip(1).take(3).map(PathBuf::from).collect();
    above.into_iter().flat_map(|folder| [folder.join("stores"), folder.join("peers"), folder])
}

fn on_path() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    folders.into_iter()
}
