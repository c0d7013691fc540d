//! Who a certificate says its holder is.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up fails")]

use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use rustls_pki_types::CertificateDer;
use telemetry_certs::testing::{self, Hierarchy, Leaf, TestKey};
use telemetry_certs::{
    CoordinatorRequest, IdentityError, IdentitySource, Issued, KeyKind, PeerIdentity, RunnerRequest, WriterIdentity,
    WriterRequest, describe, looks_like_runner,
};
use telemetry_proto::{RunnerId, RunnerIdError, WriterName};

const UUID: &str = "0b2e9a6c-3b1f-4a55-9a0f-0d7f7a4f8c11";

#[test]
fn what_we_issue_to_a_runner_is_its_identity() {
    let authority = testing::authority();
    for key_kind in [KeyKind::Ed25519, KeyKind::P256] {
        let request = RunnerRequest {
            organization: Some("Acme".to_owned()),
            lifetime: Duration::from_secs(3600),
            key_kind,
            ..RunnerRequest::new(id("r7"))
        };
        let before = SystemTime::now();
        let identity = identity_of(&authority.issue_runner(&request).unwrap()).unwrap();
        assert_eq!((identity.runner, identity.source), (id("r7"), IdentitySource::SanUri));
        assert_eq!(identity.organization.as_deref(), Some("Acme"));
        assert!(identity.not_before < before, "backdated");
        let life = identity.not_after.duration_since(before).unwrap();
        assert!((3599..=3600).contains(&life.as_secs()), "{life:?}");
        assert_eq!(identity.serial.len(), 32, "{}", identity.serial);
        assert_ne!(identity.fingerprint, [0; 32]);
    }
}

#[test]
fn older_issuers_name_the_runner_in_the_common_name() {
    let issued = Leaf::legacy_runner(UUID).dns_name("localhost").issued_by(&testing::authority());
    let identity = identity_of(&issued).unwrap();
    assert_eq!((identity.runner, identity.source), (id(UUID), IdentitySource::CommonName));
}

/// Lesson 3 (nginx 817, haproxy 2322).
#[test]
fn every_kind_of_key_and_chain_keeps_its_identity() {
    let root = testing::authority();
    let below_p256 = Hierarchy::new(KeyKind::P256).intermediate;
    for key in [TestKey::Ed25519, TestKey::P256, TestKey::P384, TestKey::Rsa2048] {
        for authority in [&root, &below_p256] {
            let identity = identity_of(&Leaf::runner("r7").key(key).issued_by(authority)).unwrap();
            assert_eq!(identity.runner, id("r7"), "{key:?}");
        }
    }
}

#[test]
fn the_san_uri_is_enough() {
    let identity = identity_of(&Leaf::runner("r7").no_common_name().issued_by(&testing::authority())).unwrap();
    assert_eq!((identity.runner, identity.source), (id("r7"), IdentitySource::SanUri));
}

#[test]
fn a_common_name_that_is_no_runners_does_not_disagree() {
    let identity =
        identity_of(&Leaf::runner("r7").common_name("host.example").issued_by(&testing::authority())).unwrap();
    assert_eq!(identity.source, IdentitySource::SanUri);
}

#[test]
fn uris_of_other_schemes_are_not_looked_at() {
    let leaf = Leaf::runner("r7").uri("https://c.example/runner/r8").uri("urn:x");
    assert_eq!(identity_of(&leaf.issued_by(&testing::authority())).unwrap().runner, id("r7"));
}

#[test]
fn names_that_are_not_exactly_one_runners_are_refused() {
    let too_long = "a".repeat(129);
    let bad_id = IdentityError::BadId(RunnerIdError);
    let cases = [
        (Leaf::blank().common_name("host.example"), IdentityError::NoRunner),
        (Leaf::blank(), IdentityError::NoRunner),
        (Leaf::coordinator("c.example"), IdentityError::NoRunner),
        // The prefix is exact.
        (Leaf::blank().common_name("Runner-r7"), IdentityError::NoRunner),
        (Leaf::blank().common_name("xrunner-r7"), IdentityError::NoRunner),
        // Two of them.
        (Leaf::runner("r7").uri("spiffe://test/runner/r8"), IdentityError::Ambiguous),
        (Leaf::runner("r7").uri("spiffe://test/runner/r7"), IdentityError::Ambiguous),
        (Leaf::runner("r7").common_name("runner-r8"), IdentityError::Disagreement),
        // IDs that would have to be escaped somewhere.
        (Leaf::blank().common_name("runner-"), bad_id),
        (Leaf::blank().common_name("runner-*"), bad_id),
        (Leaf::blank().common_name("runner-r7\0"), bad_id),
        (Leaf::blank().common_name("runner-r7\0.example"), bad_id),
        (Leaf::blank().common_name("runner-ä"), bad_id),
        (Leaf::blank().common_name("runner-a b"), bad_id),
        (Leaf::blank().common_name(&format!("runner-{too_long}")), bad_id),
        (Leaf::runner("r7").no_common_name().common_name("runner-*"), bad_id),
        (Leaf::runner("*").no_common_name(), bad_id),
        (Leaf::runner("").no_common_name(), bad_id),
        (Leaf::runner("r7\0").no_common_name(), bad_id),
        (Leaf::runner("r7/../r8").no_common_name(), bad_id),
        (Leaf::runner("r7?x").no_common_name(), bad_id),
        (Leaf::runner("r7#x").no_common_name(), bad_id),
        (Leaf::runner("%72").no_common_name(), bad_id),
        (Leaf::runner(&too_long).no_common_name(), bad_id),
        // SPIFFE IDs of other forms outrank the common name.
        (Leaf::legacy_runner("r7").uri("spiffe://test/coordinator"), IdentityError::NotRunnerUri),
        (Leaf::blank().uri("spiffe://test"), IdentityError::NotRunnerUri),
        (Leaf::blank().uri("spiffe:///runner/r7"), IdentityError::NotRunnerUri),
        (Leaf::blank().uri("spiffe://test//runner/r7"), IdentityError::NotRunnerUri),
        (Leaf::blank().uri("spiffe://test/Runner/r7"), IdentityError::NotRunnerUri),
        (Leaf::blank().uri("SPIFFE://test/runner/r7"), IdentityError::NotRunnerUri),
        (Leaf::blank().uri("spiffe://u@test:1/runner/r7"), IdentityError::NotRunnerUri),
        (Leaf::blank().uri("spiffe:test/runner/r7"), IdentityError::NotRunnerUri),
        // An authority is nobody.
        (Leaf::runner("r7").as_authority(), IdentityError::Authority),
        (Leaf::legacy_runner("r7").as_authority(), IdentityError::Authority),
        // The organisation ends up in logs and rules.
        (Leaf::runner("r7").organization("a\nb"), IdentityError::BadText),
        (Leaf::runner("r7").organization("a\0"), IdentityError::BadText),
    ];
    let authority = testing::authority();
    for (leaf, expected) in cases {
        assert_eq!(identity_of(&leaf.issued_by(&authority)), Err(expected), "{leaf:?}");
    }
    assert_eq!(PeerIdentity::from_leaf(authority.certificate()), Err(IdentityError::Authority));
}

#[test]
fn a_writers_certificate_names_it_and_no_runner() {
    let authority = testing::authority();
    let issued = authority.issue_writer(&WriterRequest::new(WriterName::new("gw").unwrap())).unwrap();
    assert_eq!(identity_of(&issued), Err(IdentityError::NotRunnerUri), "it is no runner's");
    let identity = WriterIdentity::from_leaf(&leaf_of(&issued)).unwrap();
    let names = (identity.uri.as_deref(), identity.common_name.as_deref());
    assert_eq!(names, (Some("spiffe://test/writer/gw"), Some("writer-gw")));
    let by_name = Leaf::blank().common_name("edge.example").dns_name("runner-7.example").issued_by(&authority);
    let identity = WriterIdentity::from_leaf(&leaf_of(&by_name)).unwrap();
    assert_eq!((identity.uri, identity.common_name.as_deref()), (None, Some("edge.example")));
    let runner = IdentityError::Runner;
    for (leaf, expected) in [
        (Leaf::runner("r7"), runner),
        (Leaf::legacy_runner("r7"), runner),
        (Leaf::blank().uri("spiffe://test/writer/gw").common_name("Runner-7"), runner),
        (Leaf::blank().common_name("gw").uri("https://test/Runner/r7"), runner),
        (Leaf::blank().uri("spiffe://test/writer/a").uri("spiffe://test/writer/b"), IdentityError::Ambiguous),
        (Leaf::blank().common_name("gw").as_authority(), IdentityError::Authority),
        (Leaf::blank().common_name("g\nw"), IdentityError::BadText),
        (Leaf::blank().common_name("gw\0"), IdentityError::BadText),
        (Leaf::blank().dns_name("gw.example"), IdentityError::Nameless),
    ] {
        let leaf_der = leaf_of(&leaf.issued_by(&authority));
        assert_eq!(WriterIdentity::from_leaf(&leaf_der).map(|found| found.common_name), Err(expected), "{leaf:?}");
    }
    assert_eq!(WriterIdentity::from_leaf(&b"garbage".as_slice().into()), Err(IdentityError::Unreadable));
}

#[test]
fn two_common_names_are_refused() {
    // O and CN are of one form, so that the octet that tells them apart makes two CNs of them.
    let issued = Leaf::blank().organization("runner-r8").common_name("runner-r7").issued_by(&testing::authority());
    let der = patched(&issued, b"\x55\x04\x0a", b"\x55\x04\x03");
    assert_eq!(PeerIdentity::from_leaf(&der), Err(IdentityError::Ambiguous));
    assert!(looks_like_runner(&der));
}

#[test]
fn names_that_are_not_utf_8_are_refused() {
    let authority = testing::authority();
    let common_name =
        patched(&Leaf::blank().common_name("runner-r7").issued_by(&authority), b"runner-r7", b"runner-\xff7");
    assert_eq!(PeerIdentity::from_leaf(&common_name), Err(IdentityError::BadText));
    let uri = patched(&Leaf::runner("r7").no_common_name().issued_by(&authority), b"runner/r7", b"runner/\xff7");
    assert_eq!(PeerIdentity::from_leaf(&uri), Err(IdentityError::Unreadable));
    assert!(looks_like_runner(&uri) && looks_like_runner(&common_name));
}

#[test]
fn a_repeated_or_broken_extension_is_refused() {
    let authority = testing::authority();
    let issued = Leaf::runner("r7").issued_by(&authority);
    // extKeyUsage becomes a second subjectAltName; then subjectAltName becomes something that is none.
    let repeated = patched(&issued, b"\x55\x1d\x25", b"\x55\x1d\x11");
    let broken = patched(&issued, b"\x86\x17spiffe", b"\x86\xffspiffe");
    for der in [repeated, broken] {
        assert_eq!(PeerIdentity::from_leaf(&der), Err(IdentityError::Unreadable));
        assert!(looks_like_runner(&der));
    }
}

#[test]
fn what_follows_a_certificate_is_refused() {
    let leaf = leaf_of(&Leaf::runner("r7").issued_by(&testing::authority()));
    let mut longer = leaf.to_vec();
    longer.push(0);
    let shorter = &leaf[..leaf.len() - 1];
    for der in [longer.as_slice(), shorter, b"", b"\x30\x80"] {
        assert_eq!(PeerIdentity::from_leaf(&der.into()), Err(IdentityError::Unreadable));
    }
}

#[test]
fn any_hint_of_a_runner_counts() {
    let authority = testing::authority();
    let hints = [
        Leaf::runner("r7"),
        Leaf::legacy_runner("r7"),
        Leaf::coordinator("c.example").common_name("RUNNER-r7"),
        Leaf::coordinator("c.example").common_name("runner-"),
        Leaf::coordinator("c.example").uri("spiffe://other/Runner/*"),
        Leaf::coordinator("c.example").uri("https://x/runner/"),
        Leaf::coordinator("c.example").uri("spiffe://test/coordinator").uri("spiffe://test/runner/r7"),
    ];
    for leaf in hints {
        assert!(looks_like_runner(&leaf_of(&leaf.issued_by(&authority))), "{leaf:?}");
    }
    assert!(looks_like_runner(&b"garbage".as_slice().into()));
    let no_hints = [
        Leaf::coordinator("c.example"),
        Leaf::coordinator("runner-7.example"),
        Leaf::coordinator("c.example").common_name("my-runner-7"),
        Leaf::coordinator("c.example").uri("spiffe://test/coordinator"),
        Leaf::blank(),
    ];
    for leaf in no_hints {
        assert!(!looks_like_runner(&leaf_of(&leaf.issued_by(&authority))), "{leaf:?}");
    }
    let coordinator = authority.issue_coordinator(&CoordinatorRequest::new(["runner-7.example"])).unwrap();
    assert!(!looks_like_runner(&leaf_of(&coordinator)), "a host's name does not make a runner");
}

#[test]
fn a_description_is_for_people() {
    let authority = testing::authority();
    let leaf = Leaf::runner("r7").dns_name("h.example").ip_address([192, 0, 2, 1].into()).organization("A\u{1b}[2J");
    let der = leaf_of(&leaf.issued_by(&authority));
    let summary = describe(&der).unwrap();
    assert_eq!(summary.subject, "O=A\\u{1b}[2J, CN=runner-r7");
    assert!(summary.issuer.starts_with("O=test, CN=telemetry CA "), "{}", summary.issuer);
    assert_eq!(summary.san, ["URI:spiffe://test/runner/r7", "DNS:h.example", "IP:192.0.2.1"]);
    assert_eq!(summary.usages, ["clientAuth"]);
    assert_eq!((summary.is_authority, summary.identity), (false, None), "the organisation spoils the identity");

    let summary = describe(&leaf_of(&Leaf::runner("r7").issued_by(&authority))).unwrap();
    assert_eq!(summary.identity, Some(id("r7")));
    let summary = describe(authority.certificate()).unwrap();
    assert!(summary.is_authority && summary.identity.is_none());
    assert_eq!(describe(&b"garbage".as_slice().into()), Err(IdentityError::Unreadable));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Whatever a certificate is changed into, it is read or refused, and what identifies a runner also hints at one.
    #[test]
    fn mutated_certificates_never_panic(
        which in 0usize..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut der = samples()[which].to_vec();
        for (at, octet) in changes {
            let at = at.index(der.len());
            der[at] = octet;
        }
        if let Some(cut) = cut {
            der.truncate(cut.index(der.len() + 1));
        }
        let der = CertificateDer::from(der);
        if let Ok(identity) = PeerIdentity::from_leaf(&der) {
            prop_assert!(RunnerId::new(identity.runner.as_str()).is_ok());
            prop_assert!(looks_like_runner(&der));
        }
        if let Ok(summary) = describe(&der) {
            let texts = [&summary.subject, &summary.issuer].into_iter().chain(&summary.san).chain(&summary.usages);
            prop_assert!(texts.into_iter().all(|text| !text.chars().any(char::is_control)));
        }
    }

    #[test]
    fn garbage_never_panics(der in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(PeerIdentity::from_leaf(&der.as_slice().into()).is_err());
        prop_assert!(looks_like_runner(&der.as_slice().into()));
    }
}

/// One certificate of each shape, made once.
fn samples() -> &'static [CertificateDer<'static>; 4] {
    static SAMPLES: std::sync::OnceLock<[CertificateDer<'static>; 4]> = std::sync::OnceLock::new();
    SAMPLES.get_or_init(|| {
        let authority = testing::authority();
        [
            leaf_of(&Leaf::runner("r7").organization("Acme").issued_by(&authority)),
            leaf_of(&Leaf::legacy_runner(UUID).dns_name("localhost").issued_by(&authority)),
            leaf_of(&Leaf::coordinator("c.example").ip_address([127, 0, 0, 1].into()).issued_by(&authority)),
            authority.certificate().clone(),
        ]
    })
}

fn id(text: &str) -> RunnerId {
    RunnerId::new(text).unwrap()
}

fn leaf_of(issued: &Issued) -> CertificateDer<'static> {
    issued.credentials().unwrap().leaf().clone()
}

fn identity_of(issued: &Issued) -> Result<PeerIdentity, IdentityError> {
    PeerIdentity::from_leaf(&leaf_of(issued))
}

/// The leaf with one run of octets replaced, wherever it occurs after the issuer's name. The signature no longer fits.
fn patched(issued: &Issued, from: &[u8], to: &[u8]) -> CertificateDer<'static> {
    assert_eq!(from.len(), to.len());
    let mut der = leaf_of(issued).to_vec();
    let at = der.windows(from.len()).rposition(|window| window == from).expect("the octets occur");
    der[at..at + from.len()].copy_from_slice(to);
    der.into()
}
