//! Certificates that must open no door, or only the one that is their holder's.

use std::fmt;
use std::net::SocketAddr;

use h3::error::Code;
use quinn::ConnectionError;
use telemetry_certs::testing::{Hierarchy, Leaf, TestKey, Usage};
use telemetry_certs::{CertificateRefusal, Credentials, Issued, KeyKind, Roots};
use telemetry_proto::{RunnerId, Signal};
use telemetry_rig::outcome;
use telemetry_rig::raw::{RawClient, RawError};
use telemetry_rig::rig::{Cluster, Rig};
use telemetry_rig::suite::{Suite, TestResult};

use crate::NEEDS;
use crate::arena::{ATTACKER, LINE, serves_honest_runners, withstand};
use crate::forge::nothing_was_stored_but_of_honest_runners;

/// What a certificate must lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// The handshake is refused for this reason.
    Refused(CertificateRefusal),
    /// It is of the cluster, and names no runner: the connection is closed before any request.
    NoRunner,
    /// The handshake is broken off, without a word about certificates.
    BrokenOff,
    /// It is good, whatever is beside it.
    Good,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "handshake refused: {refusal:?}"),
            Self::NoRunner => f.write_str("connection closed before any request: it names no runner"),
            Self::BrokenOff => f.write_str("handshake broken off"),
            Self::Good => f.write_str("delivered: it is good"),
        }
    }
}

use Expected::{BrokenOff, Good, NoRunner, Refused};

struct Case {
    name: &'static str,
    shown: fn(&Rig) -> Result<Credentials, String>,
    expected: Expected,
}

/// A leaf that the cluster's own authority issues.
macro_rules! leaf {
    ($name:literal, $expected:expr, $leaf:expr) => {
        Case { name: $name, expected: $expected, shown: |rig| credentials(&$leaf.issued_by(rig.cluster().authority())) }
    };
}

pub(crate) fn add(suite: Suite) -> Suite {
    let cases = validity().into_iter().chain(names()).chain(chains());
    let suite = cases.fold(suite, |suite, Case { name, shown, expected }| {
        suite.expecting(&format!("certificates: {name}"), expected.to_string(), NEEDS, move || {
            withstand(async move |rig| expect(rig, &shown(rig)?, expected).await)
        })
    });
    suite.expecting(
        "certificates: intermediate_missing",
        "handshake refused: UnknownCa; with the intermediate it is delivered",
        NEEDS,
        intermediate_missing,
    )
}

fn validity() -> Vec<Case> {
    vec![
        leaf!("expired", Refused(CertificateRefusal::Expired), Leaf::runner("r1").expired()),
        leaf!("not_yet_valid", Refused(CertificateRefusal::Expired), Leaf::runner("r1").not_yet_valid()),
        leaf!("for_servers", Refused(CertificateRefusal::WrongUsage), Leaf::runner("r1").usages(&[Usage::Server])),
        // Without the extension a certificate is for everything (RFC 5280 section 4.2.1.12). No issuer of ours leaves it out.
        leaf!("for_nothing_in_particular", Good, Leaf::runner("r1").usages(&[])),
        Case {
            name: "coordinator_as_client",
            expected: Refused(CertificateRefusal::WrongUsage),
            shown: |rig| credentials(rig.cluster().coordinator()),
        },
        leaf!(
            "coordinator_for_clients",
            NoRunner,
            Leaf::coordinator("localhost").usages(&[Usage::Client, Usage::Server])
        ),
        leaf!("authority_as_leaf", Refused(CertificateRefusal::Bad), Leaf::runner("r1").as_authority()),
        Case {
            name: "the_root_itself",
            expected: Refused(CertificateRefusal::Bad),
            shown: |rig| {
                let authority = rig.cluster().authority();
                let pem = (authority.certificate_pem(), authority.key_pem());
                Credentials::from_pem(pem.0.as_bytes(), pem.1.as_bytes()).map_err(|error| error.to_string())
            },
        },
    ]
}

fn names() -> Vec<Case> {
    vec![
        leaf!("name_missing", NoRunner, Leaf::blank().usages(&[Usage::Client])),
        leaf!("name_with_nul", NoRunner, Leaf::legacy_runner("r1\0")),
        leaf!("name_with_nul_in_the_uri", NoRunner, Leaf::runner("r1\0")),
        leaf!("name_star", NoRunner, Leaf::runner("*")),
        leaf!("name_wildcard", NoRunner, Leaf::legacy_runner("r*")),
        leaf!("name_empty", NoRunner, Leaf::legacy_runner("")),
        leaf!("name_with_a_blank", NoRunner, Leaf::legacy_runner("r1 ")),
        leaf!("name_with_a_line_break", NoRunner, Leaf::legacy_runner("r1\r\nx")),
        leaf!("name_with_a_path", NoRunner, Leaf::runner("../r1")),
        leaf!("name_with_an_argument", NoRunner, Leaf::legacy_runner("r1&extra_label=x")),
        leaf!("name_escaped", NoRunner, Leaf::runner("r%31")),
        leaf!("name_beyond_ascii", NoRunner, Leaf::legacy_runner("r\u{661}")),
        leaf!("name_too_long", NoRunner, Leaf::runner(&"r".repeat(129))),
        leaf!("name_in_capitals", NoRunner, Leaf::blank().common_name("RUNNER-r1").usages(&[Usage::Client])),
        leaf!("two_runners", NoRunner, Leaf::runner("r1").uri("spiffe://rig/runner/r2")),
        leaf!("two_names_that_disagree", NoRunner, Leaf::runner("r1").common_name("runner-r2")),
        leaf!("another_kind_of_spiffe", NoRunner, Leaf::legacy_runner("r1").uri("spiffe://rig/coordinator/c1")),
        leaf!("names_of_others", Good, Leaf::runner("r1").dns_name("localhost").dns_name("r2")),
    ]
}

fn chains() -> Vec<Case> {
    vec![
        Case {
            name: "another_authority",
            expected: Refused(CertificateRefusal::UnknownCa),
            shown: |_| credentials(&Leaf::runner("r1").issued_by(foreign()?.authority())),
        },
        Case {
            name: "signed_by_a_runner",
            expected: Refused(CertificateRefusal::UnknownCa),
            shown: |rig| {
                // Its own key and a chain that leads to the root, through a certificate that may not sign.
                let runner = Leaf::runner("r2").issued_by(rig.cluster().authority());
                let Issued { chain_pem, key_pem } = Leaf::runner("r1").issued_by(foreign()?.authority());
                credentials(&Issued { chain_pem: chain_pem + &runner.chain_pem, key_pem })
            },
        },
        Case {
            // Only the root's key can make one, and the length of paths is not looked at in a root.
            name: "below_an_authority_that_the_root_made",
            expected: Good,
            shown: |rig| {
                let below = Leaf::runner("r2").as_authority().uri("spiffe://rig").issued_by(rig.cluster().authority());
                let below = telemetry_certs::ClusterAuthority::load(&below.chain_pem, &below.key_pem);
                let below = below.map_err(|error| error.to_string())?;
                credentials(&Leaf::runner("r1").issued_by(&below))
            },
        },
        Case { name: "junk_behind_it", expected: Good, shown: |rig| with_junk(rig, 4) },
        Case { name: "much_junk_behind_it", expected: BrokenOff, shown: |rig| with_junk(rig, 60) },
        leaf!("100_names", Good, many_names(100)),
        leaf!("1_500_names", Good, many_names(1_500)),
    ]
}

fn many_names(count: usize) -> Leaf {
    (0..count).fold(Leaf::runner("r1").key(TestKey::P256), |leaf, number| {
        leaf.dns_name(&format!("a-rather-long-name-of-a-host-{number}.example"))
    })
}

fn foreign() -> Result<Cluster, String> {
    // The same name, so that nothing but the key tells them apart.
    Cluster::new("rig").map_err(|error| error.to_string())
}

fn with_junk(rig: &Rig, count: usize) -> Result<Credentials, String> {
    let junk = many_names(20).issued_by(foreign()?.authority()).chain_pem;
    let Issued { chain_pem, key_pem } = Leaf::runner("r1").issued_by(rig.cluster().authority());
    credentials(&Issued { chain_pem: chain_pem + &junk.repeat(count), key_pem })
}

fn credentials(issued: &Issued) -> Result<Credentials, String> {
    issued.credentials().map_err(|error| error.to_string())
}

async fn expect(rig: &Rig, shown: &Credentials, expected: Expected) -> TestResult {
    let seen = attempt(rig.relay_address(), rig.cluster().roots(), shown, &rig.token(ATTACKER)).await?;
    outcome::saw(seen.to_string());
    if seen != expected {
        return Err(format!("expected {expected:?}, got {seen:?}").into());
    }
    match expected {
        Good => Ok(()),
        _ => nothing_was_stored_but_of_honest_runners(rig),
    }
}

/// Connects and writes.
async fn attempt(relay: SocketAddr, roots: &Roots, shown: &Credentials, token: &str) -> Result<Expected, String> {
    let attempt = async {
        let client = RawClient::connect(relay, roots, Some(shown)).await?;
        client.write(Signal::Metrics).token(token).body(LINE).send().await
    };
    let error = match attempt.await {
        Ok(answer) => {
            return answer.expect_delivered().map(|()| Good);
        }
        Err(error) => error,
    };
    if let Some(refusal) = error.certificate_refusal() {
        return Ok(Refused(refusal));
    }
    match &error {
        RawError::Closed(ConnectionError::ApplicationClosed(close))
            if close.error_code.into_inner() == Code::H3_REQUEST_REJECTED.value() =>
        {
            Ok(NoRunner)
        }
        RawError::Closed(ConnectionError::ConnectionClosed(_)) => Ok(BrokenOff),
        _ => Err(error.to_string()),
    }
}

async fn intermediate_missing() -> TestResult {
    let Hierarchy { root, intermediate } = Hierarchy::new(KeyKind::Ed25519);
    let cluster = Cluster::of(intermediate, &root.certificate_pem())?;
    let rig = Rig::builder().cluster(cluster).runners(2).tcp().start().await?;
    let issued = Leaf::runner("r1").issued_by(rig.cluster().authority());
    let whole = rig.token_for(&RunnerId::new("r1")?).sign(rig.signing_key());
    let leaf_alone = issued.chain_pem.split_inclusive("-----END CERTIFICATE-----\n").next().unwrap_or_default();
    let alone = Issued { chain_pem: leaf_alone.to_owned(), key_pem: issued.key_pem.clone() };
    for (shown, expected) in [(issued, Good), (alone, Refused(CertificateRefusal::UnknownCa))] {
        let seen = attempt(rig.relay_address(), rig.cluster().roots(), &credentials(&shown)?, &whole).await?;
        let certificates = shown.chain_pem.matches("BEGIN CERTIFICATE").count();
        outcome::saw(format!("{seen} (a chain of {certificates})"));
        assert_eq!(seen, expected);
    }
    serves_honest_runners(&rig).await
}
