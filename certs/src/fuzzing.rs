//! Fuzz targets of this crate. For fuzzers and the suite `fuzz` only.

use rustls_pki_types::CertificateDer;
use telemetry_proto::fuzzing::{Target, texts};
use telemetry_proto::{RunnerId, WriterName};

use crate::testing::{self, Leaf};
use crate::{Credentials, Crls, PeerIdentity, Roots, WriterIdentity, WriterRequest, describe, looks_like_runner};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "identity",
        run: identity,
        seeds: certificates,
        words: &["runner-", "spiffe://test/runner/", "spiffe://test/writer/", "\u{0}", "*", "/", "%", "\u{c}"],
    },
    Target {
        name: "pem",
        run: pem,
        seeds: || {
            texts(&["-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", "-----BEGIN X509 CRL-----\n"])
        },
        words: &[
            "-----BEGIN ",
            "-----END ",
            "CERTIFICATE-----\n",
            "PRIVATE KEY-----\n",
            "X509 CRL-----\n",
            "MIIB",
            "\n",
        ],
    },
];

/// Whatever a certificate says, it is read or refused; whoever is taken for a runner looks like one, and no one else is taken
/// for a writer.
fn identity(data: &[u8]) {
    let leaf = CertificateDer::from(data);
    let (runner, writer) = (PeerIdentity::from_leaf(&leaf), WriterIdentity::from_leaf(&leaf));
    if let Ok(identity) = &runner {
        assert!(looks_like_runner(&leaf), "a runner that does not look like one: {identity:?}");
        assert!(RunnerId::new(identity.runner.as_str()).is_ok());
    }
    if let Ok(identity) = &writer {
        assert!(runner.is_err() && !looks_like_runner(&leaf), "a writer that could be a runner: {identity:?}");
        assert!(identity.uri.is_some() || identity.common_name.is_some());
    }
    if let Ok(summary) = describe(&leaf) {
        let shown = [&summary.subject, &summary.issuer].into_iter().chain(&summary.san);
        assert!(shown.flat_map(|text| text.chars()).all(|c| !c.is_control()), "{summary:?} is for a terminal");
    }
}

fn pem(data: &[u8]) {
    let _ = (Roots::from_pem(data).is_ok(), Crls::from_pem(data).is_ok());
    let _ = Credentials::from_pem(data, data).is_ok();
}

fn certificates() -> Vec<Vec<u8>> {
    let authority = testing::authority();
    let mut seeds = vec![authority.certificate().to_vec()];
    let leaves = [
        Leaf::runner("r7"),
        Leaf::runner("r7").organization("Acme").dns_name("h.example"),
        Leaf::legacy_runner("r7").dns_name("localhost"),
        Leaf::blank().common_name("edge.example"),
        Leaf::coordinator("c.example").ip_address([127, 0, 0, 1].into()),
    ];
    let issued = leaves.into_iter().map(|leaf| leaf.issued_by(&authority));
    let writer = WriterName::new("gw").ok().and_then(|name| authority.issue_writer(&WriterRequest::new(name)).ok());
    let credentials = issued.chain(writer).filter_map(|issued| issued.credentials().ok());
    seeds.extend(credentials.map(|credentials| credentials.leaf().to_vec()));
    seeds
}
