//! `telemetry-relay certs`: the certificates and the signing key of a cluster, for those who set it up by hand.

mod renew;
mod show;

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use rustls::pki_types::CertificateDer;
use telemetry_certs::{
    ClusterAuthority, ClusterName, CoordinatorRequest, Issued, KeyKind, RunnerRequest, WriterRequest, writer_uri,
};
use telemetry_proto::{RunnerId, WriterName};
use telemetry_relay::gate::SignatureAlgorithm;
use telemetry_relay::issuer::SigningKey;

use super::Outcome;
use super::exit::Failure;

const CA: &str = "ca.pem";
const CA_KEY: &str = "ca-key.pem";
const CRL: &str = "crl.pem";
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
    /// Issue a certificate again for the same runner, coordinator or writer, and replace the file.
    ///
    /// Runners renew their own where the relay has an [identity]; this is for the coordinator's, and where it has none.
    #[command(after_help = "Examples:\n  telemetry-relay certs renew coordinator.pem --dir ./pki\n  \
                      telemetry-relay certs renew runner-r7.pem --dir ./pki --new-key --days 30")]
    Renew {
        /// The certificate.
        certificate: PathBuf,
        #[command(flatten)]
        place: Place,
        /// How many days it is valid.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: Option<u32>,
        /// Make a new key, and replace its file too. Without this the key stays as it is, and is not read.
        #[arg(long)]
        new_key: bool,
        /// With --new-key: the kind of the key.
        #[arg(long, value_enum, default_value_t = Kind::P256, requires = "new_key")]
        key: Kind,
        /// With --new-key: the file of the key. Default: NAME-key.pem beside NAME.pem.
        #[arg(long, value_name = "FILE", requires = "new_key")]
        key_file: Option<PathBuf>,
    },
    /// Revoke a certificate: add it to the CA's list, and sign the list anew.
    ///
    /// It shuts out this one certificate. A runner that may have renewed it has others: to shut out a runner, write its ID
    /// into the file of runners.removed.
    #[command(after_help = "Examples:\n  telemetry-relay certs revoke runner-r7.pem --dir ./pki\n  \
                      telemetry-relay certs revoke --serial 4f00a1 --dir ./pki --crl /etc/telemetry-relay/crl.pem")]
    Revoke {
        /// The certificate.
        #[arg(required_unless_present = "serial", conflicts_with = "serial")]
        certificate: Option<PathBuf>,
        /// Its serial number, in hex without separators, where the certificate itself is not at hand.
        #[arg(long, value_name = "HEX")]
        serial: Option<String>,
        #[command(flatten)]
        place: Place,
        /// The list; made if it is missing. Default: crl.pem in the folder.
        #[arg(long, value_name = "FILE")]
        crl: Option<PathBuf>,
        /// For how many days the list announces the next one.
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: u32,
    },
    /// Say what is in files: certificates, authorities, revocation lists, keys. Nothing secret is printed.
    #[command(after_help = "Example:\n  telemetry-relay certs show runner-r7.pem runner-r7-key.pem ca.pem crl.pem")]
    Show {
        /// The files, PEM.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Print a JSON list with one object per file: `file`, `fault`, `items`.
        #[arg(long)]
        json: bool,
    },
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
    /// For a writer that is no runner, a gateway for example: writes writer-NAME.pem and writer-NAME-key.pem.
    ///
    /// It is let in once the relay's configuration has it in [[writers]], with a token of its own.
    #[command(after_help = "Example:\n  telemetry-relay certs issue writer edge --dir ./pki")]
    Writer {
        /// The writer's name: letters, digits, `.`, `_`, `-`; at most 128.
        writer: WriterName,
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
        Command::Issue(Issue::Writer { writer, place, options }) => {
            let authority = authority(&place.dir)?;
            let uri = writer_uri(authority.cluster(), &writer);
            let name = format!("writer-{writer}");
            let mut request = WriterRequest::new(writer);
            request.key_kind = options.key.into();
            request.lifetime = options.lifetime(request.lifetime);
            let issued = authority.issue_writer(&request).map_err(Failure::other)?;
            write_leaf(&place.dir, &name, &issued, options.force)?;
            println!("it is let in by a relay that has [[writers]] with certificate_uri = \"{uri}\"");
            Ok(())
        }
        Command::Renew { certificate, place, days, new_key, key, key_file } => renew::renew(renew::Renewal {
            certificate: &certificate,
            dir: &place.dir,
            lifetime: days.map(|days| DAY * days),
            new_key: new_key.then(|| (key.into(), key_file)),
        }),
        Command::Revoke { certificate, serial, place, crl, days } => {
            let crl = crl.unwrap_or_else(|| place.dir.join(CRL));
            renew::revoke(certificate.as_deref(), serial.as_deref(), &place.dir, &crl, DAY * days)
        }
        Command::Show { files, json } => show::run(&files, json),
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

/// The certificates of a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    telemetry_certs::read_certificates(path).map_err(Failure::other)
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
