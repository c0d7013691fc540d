//! `telemetry-relay certs`: the certificates and the signing key of a cluster, for those who set it up by hand.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use telemetry_certs::{ClusterAuthority, ClusterName, CoordinatorRequest, Issued, KeyKind, RunnerRequest};
use telemetry_proto::RunnerId;
use telemetry_relay::gate::SignatureAlgorithm;
use telemetry_relay::issuer::SigningKey;

use super::Outcome;
use super::exit::Failure;

const CA: &str = "ca.pem";
const CA_KEY: &str = "ca-key.pem";
const SIGNING_KEY: &str = "token-signing-key.pem";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create a cluster's CA, and the key that signs its workload tokens.
    #[command(after_help = "Example:\n  telemetry-relay certs init --dir ./pki --cluster prod")]
    Init {
        #[command(flatten)]
        place: Place,
        /// The cluster's name: it becomes the trust domain of `spiffe://CLUSTER/runner/ID`.
        #[arg(long)]
        cluster: String,
        /// The kind of the CA's key.
        #[arg(long, value_enum, default_value_t = Kind::P256)]
        key: Kind,
    },
    /// Issue a certificate from the CA in the folder.
    #[command(subcommand)]
    Issue(Issue),
}

#[derive(Debug, Subcommand)]
pub(super) enum Issue {
    /// For the coordinator: writes coordinator.pem and coordinator-key.pem.
    #[command(
        after_help = "Example:\n  telemetry-relay certs issue coordinator --dir ./pki --dns c.example --ip 10.0.0.1"
    )]
    Coordinator {
        #[command(flatten)]
        place: Place,
        /// A DNS name that runners use. Repeatable; at least one --dns or --ip.
        #[arg(long = "dns", value_name = "NAME", required_unless_present = "ips")]
        dns_names: Vec<String>,
        /// An IP address that runners use. Repeatable.
        #[arg(long = "ip", value_name = "ADDRESS")]
        ips: Vec<IpAddr>,
        #[command(flatten)]
        options: LeafOptions,
    },
    /// For a runner: writes runner-ID.pem and runner-ID-key.pem.
    #[command(after_help = "Example:\n  telemetry-relay certs issue runner r7 --dir ./pki")]
    Runner {
        /// The runner's ID: letters, digits, `.`, `_`, `-`; at most 128.
        runner: RunnerId,
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        options: LeafOptions,
    },
}

#[derive(Debug, Args)]
pub(super) struct Place {
    /// The folder of the cluster's keys and certificates.
    #[arg(long, default_value = ".", value_name = "FOLDER")]
    dir: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct LeafOptions {
    /// How many days it is valid.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: Option<u32>,
    /// The kind of its key.
    #[arg(long, value_enum, default_value_t = Kind::P256)]
    key: Kind,
    /// Replace files that are there already.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Kind {
    /// ECDSA over P-256.
    P256,
    /// Ed25519.
    Ed25519,
}

impl From<Kind> for KeyKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::P256 => Self::P256,
            Kind::Ed25519 => Self::Ed25519,
        }
    }
}

pub(super) fn run(command: Command) -> Outcome {
    match command {
        Command::Init { place, cluster, key } => init(&place.dir, &cluster, key),
        Command::Issue(Issue::Coordinator { place, dns_names, ips, options }) => {
            let mut request = CoordinatorRequest::new(dns_names);
            request.ip_addresses = ips;
            request.key_kind = options.key.into();
            request.lifetime = options.lifetime(request.lifetime);
            let issued = authority(&place.dir)?.issue_coordinator(&request).map_err(Failure::other)?;
            write_leaf(&place.dir, "coordinator", &issued, options.force)
        }
        Command::Issue(Issue::Runner { runner, place, options }) => {
            let name = format!("runner-{runner}");
            let mut request = RunnerRequest::new(runner);
            request.key_kind = options.key.into();
            request.lifetime = options.lifetime(request.lifetime);
            let issued = authority(&place.dir)?.issue_runner(&request).map_err(Failure::other)?;
            write_leaf(&place.dir, &name, &issued, options.force)
        }
    }
}

fn init(dir: &Path, cluster: &str, key: Kind) -> Outcome {
    let cluster = ClusterName::new(cluster).map_err(|error| Failure::Usage(format!("--cluster: {error}")))?;
    std::fs::create_dir_all(dir).map_err(|error| Failure::Other(format!("{}: {error}", dir.display())))?;
    let authority = ClusterAuthority::create(&cluster, key.into()).map_err(Failure::other)?;
    let signing = SigningKey::generate(SignatureAlgorithm::Es256).map_err(Failure::other)?;
    let signing_pem = signing.to_pem().map_err(Failure::other)?;
    // The key that can't be made again comes first: if it is there already, nothing is touched.
    write(&dir.join(CA_KEY), &authority.key_pem(), Secrecy::Private, false)?;
    write(&dir.join(CA), &authority.certificate_pem(), Secrecy::Public, false)?;
    write(&dir.join(SIGNING_KEY), &signing_pem, Secrecy::Private, false)
}

fn authority(dir: &Path) -> Result<ClusterAuthority, Failure> {
    ClusterAuthority::load_files(None, dir.join(CA), dir.join(CA_KEY)).map_err(|error| {
        Failure::Other(format!("{error}\n    `telemetry-relay certs init --dir {}` makes a CA", dir.display()))
    })
}

fn write_leaf(dir: &Path, name: &str, issued: &Issued, force: bool) -> Outcome {
    write(&dir.join(format!("{name}-key.pem")), &issued.key_pem, Secrecy::Private, force)?;
    write(&dir.join(format!("{name}.pem")), &issued.chain_pem, Secrecy::Public, force)
}

#[derive(Clone, Copy)]
enum Secrecy {
    Public,
    Private,
}

fn write(path: &Path, text: &str, secrecy: Secrecy, force: bool) -> Outcome {
    let failed = |error: std::io::Error| {
        let hint = if error.kind() == ErrorKind::AlreadyExists { "; it is left as it was" } else { "" };
        Failure::Other(format!("{}: {error}{hint}", path.display()))
    };
    if force {
        // A new file gets the right mode; one that is written over would keep its old one.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    let mode = match secrecy {
        Secrecy::Public => 0o644,
        Secrecy::Private => 0o600,
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    println!("wrote {}", path.display());
    Ok(())
}

impl LeafOptions {
    fn lifetime(&self, default: Duration) -> Duration {
        self.days.map_or(default, |days| DAY * days)
    }
}
