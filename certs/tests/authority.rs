//! What the authority issues, and which authorities it can be loaded from.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up fails")]

mod common;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose, SanType};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject as _;
use telemetry_certs::testing::{self, Hierarchy};
use telemetry_certs::{
    AUTHORITY_LIFETIME, AuthorityError, BACKDATE, CRL_LIFETIME, CertificateSummary, ClusterAuthority, ClusterName,
    CoordinatorRequest, CrlRequest, Crls, Issued, KeyKind, LoadFault, RUNNER_LIFETIME, Revocation, RunnerRequest,
    describe,
};
use telemetry_proto::{Clock, RunnerId};
use x509_parser::prelude::{FromDer, X509Certificate};

use common::{COORDINATOR, client, credentials, serve, shake};

#[test]
fn a_runners_certificate_is_as_the_contract_says() {
    let authority = authority_at(now());
    let request = RunnerRequest { organization: Some("Acme".to_owned()), ..RunnerRequest::new(r7()) };
    let issued = authority.issue_runner(&request).unwrap();
    let summary = summary_of(&issued);
    assert_eq!(summary.subject, "O=Acme, CN=runner-r7");
    assert_eq!(summary.san, ["URI:spiffe://prod/runner/r7"]);
    assert_eq!(summary.usages, ["clientAuth"]);
    assert_eq!((summary.not_before, summary.not_after), (now() - BACKDATE, now() + RUNNER_LIFETIME));
    assert_eq!(summary.identity, Some(r7()));
    assert!(!summary.is_authority);
    assert_eq!(credentials(&issued).chain().len(), 1, "the root is not in the chain");
}

#[test]
fn a_coordinators_certificate_is_as_the_contract_says() {
    let request = CoordinatorRequest {
        ip_addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        key_kind: KeyKind::Ed25519,
        ..CoordinatorRequest::new(["c.example", "runner-7.example"])
    };
    let summary = summary_of(&authority_at(now()).issue_coordinator(&request).unwrap());
    assert_eq!(summary.subject, "CN=coordinator");
    assert_eq!(summary.san, ["DNS:c.example", "DNS:runner-7.example", "IP:192.0.2.1", "IP:2001:db8::1"]);
    assert_eq!(summary.usages, ["serverAuth"]);
    assert_eq!(summary.identity, None);
}

#[test]
fn an_authority_signs_leaves_and_lists_only() {
    let authority = authority_at(now());
    let (_, parsed) = X509Certificate::from_der(authority.certificate()).unwrap();
    let constraints = parsed.basic_constraints().unwrap().unwrap();
    assert!(constraints.critical && constraints.value.ca);
    assert_eq!(constraints.value.path_len_constraint, Some(0));
    let usage = parsed.key_usage().unwrap().unwrap();
    assert!(usage.critical && usage.value.key_cert_sign() && usage.value.crl_sign());
    assert!(!usage.value.digital_signature());
    assert!(parsed.extended_key_usage().unwrap().is_none());
    let summary = describe(authority.certificate()).unwrap();
    assert_eq!((summary.not_before, summary.not_after), (now() - BACKDATE, now() + AUTHORITY_LIFETIME));
    assert_eq!(summary.san, ["URI:spiffe://prod"]);
}

#[test]
fn no_two_authorities_have_one_name_and_no_two_certificates_one_serial() {
    let (one, two) = (authority_at(now()), authority_at(now()));
    assert_ne!(describe(one.certificate()).unwrap().subject, describe(two.certificate()).unwrap().subject);
    let issue = || summary_of(&one.issue_runner(&RunnerRequest::new(r7())).unwrap()).serial;
    assert_ne!(issue(), issue());
}

#[test]
fn a_leaf_ends_no_later_than_its_authority() {
    let request = RunnerRequest { lifetime: Duration::MAX, ..RunnerRequest::new(r7()) };
    let authority = authority_at(now());
    let end = describe(authority.certificate()).unwrap().not_after;
    assert_eq!(summary_of(&authority.issue_runner(&request).unwrap()).not_after, end);

    let late = authority.with_clock(Arc::new(Fixed(end)));
    assert!(matches!(late.issue_runner(&request), Err(AuthorityError::Expired)));
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let authority = authority_at(now());
    let organization = |text: &str| RunnerRequest { organization: Some(text.to_owned()), ..RunnerRequest::new(r7()) };
    for bad in ["", "a\0", "a\nb", &"a".repeat(65)] {
        assert!(matches!(authority.issue_runner(&organization(bad)), Err(AuthorityError::BadOrganization)), "{bad:?}");
    }
    assert!(authority.issue_runner(&organization(&"ä".repeat(64))).is_ok());
    for bad in ["", "*.example", "a b", "c.example:443", "192.0.2.1", "ä.example", "c.example\0", "https://c.example"]
    {
        let refused = authority.issue_coordinator(&CoordinatorRequest::new([bad]));
        assert!(matches!(refused, Err(AuthorityError::BadDnsName(name)) if name == bad), "{bad:?}");
    }
    let nothing = CoordinatorRequest::new(Vec::<String>::new());
    assert!(matches!(authority.issue_coordinator(&nothing), Err(AuthorityError::NoNames)));
    let no_time = RunnerRequest { lifetime: Duration::ZERO, ..RunnerRequest::new(r7()) };
    assert!(matches!(authority.issue_runner(&no_time), Err(AuthorityError::NoLifetime)));
    for clock in [UNIX_EPOCH, UNIX_EPOCH - BACKDATE, at(253_402_300_800) + BACKDATE] {
        let refused = ClusterAuthority::create_by_clock(&prod(), KeyKind::P256, Arc::new(Fixed(clock)));
        assert!(matches!(refused, Err(AuthorityError::BadTime)), "{clock:?}");
    }
}

#[test]
fn a_saved_authority_goes_on_where_it_was() {
    for kind in [KeyKind::Ed25519, KeyKind::P256] {
        let created = ClusterAuthority::create(&prod(), kind).unwrap();
        let loaded = ClusterAuthority::load(&created.certificate_pem(), &created.key_pem()).unwrap();
        assert_eq!(loaded.cluster(), created.cluster());
        assert_eq!((loaded.certificate_pem(), loaded.key_pem()), (created.certificate_pem(), created.key_pem()));
        assert_works(&loaded, &created);
    }
}

#[test]
fn an_authority_is_loaded_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("ca.pem"), folder.path().join("ca.key"));
    let created = testing::authority();
    std::fs::write(&certificate, created.certificate_pem()).unwrap();
    std::fs::write(&key, created.key_pem()).unwrap();
    assert_works(&ClusterAuthority::load_files(None, &certificate, &key).unwrap(), &created);
    let error = ClusterAuthority::load_files(None, &certificate, folder.path().join("none")).unwrap_err();
    assert!(error.to_string().contains("none: no such file"), "{error}");
}

#[test]
fn an_intermediate_sends_itself_along() {
    let Hierarchy { root, intermediate } = Hierarchy::new(KeyKind::Ed25519);
    assert_works(&intermediate, &root);
    // With the root behind it in the file, which is not sent.
    let file = intermediate.certificate_pem() + &root.certificate_pem();
    let loaded = ClusterAuthority::load(&file, &intermediate.key_pem()).unwrap();
    let runner = loaded.issue_runner(&RunnerRequest::new(r7())).unwrap();
    assert_eq!(credentials(&runner).chain().len(), 2);
}

#[test]
fn an_authority_of_another_issuer_is_loaded_for_its_cluster() {
    let key = KeyPair::generate().unwrap();
    let mut params = foreign();
    params.distinguished_name.push(DnType::CountryName, "CH");
    let pem = params.self_signed(&key).unwrap().pem();
    let key = key.serialize_pem();
    assert!(matches!(ClusterAuthority::load(&pem, &key), Err(AuthorityError::NoClusterName)));
    let loaded = ClusterAuthority::load_for(&prod(), &pem, &key).unwrap();
    assert_works(&loaded, &loaded);

    let ours = testing::authority();
    let error = ClusterAuthority::load_for(&prod(), &ours.certificate_pem(), &ours.key_pem()).unwrap_err();
    assert_eq!(error.to_string(), "the CA is of the cluster test, not of prod");
}

#[test]
fn what_is_no_authority_is_not_loaded() {
    let authority = testing::authority();
    let leaf = authority.issue_runner(&RunnerRequest::new(r7())).unwrap();
    let refused = ClusterAuthority::load(&leaf.chain_pem, &leaf.key_pem);
    assert!(matches!(refused, Err(AuthorityError::NotAuthority)));

    // CA: true, but it may not sign certificates.
    let key = KeyPair::generate().unwrap();
    let mut params = foreign();
    params.key_usages = vec![KeyUsagePurpose::CrlSign];
    let refused = ClusterAuthority::load(&params.self_signed(&key).unwrap().pem(), &key.serialize_pem());
    assert!(matches!(refused, Err(AuthorityError::NotAuthority)));

    let other = testing::authority();
    let refused = ClusterAuthority::load(&authority.certificate_pem(), &other.key_pem());
    assert!(
        matches!(refused, Err(AuthorityError::Load(error)) if matches!(error.fault(), LoadFault::KeyMismatch { .. }))
    );
}

#[test]
fn a_subject_that_cannot_be_repeated_is_refused() {
    // O and OU become two O.
    let key = KeyPair::generate().unwrap();
    let mut params = foreign();
    params.distinguished_name.push(DnType::OrganizationalUnitName, "x");
    let mut der = params.self_signed(&key).unwrap().der().to_vec();
    let positions: Vec<_> = (0..der.len() - 3).filter(|at| der[*at..].starts_with(b"\x55\x04\x0b")).collect();
    assert_eq!(positions.len(), 2, "issuer and subject");
    positions.iter().for_each(|at| der[at + 2] = 0x0a);
    let pem = as_pem(&der);
    let refused = ClusterAuthority::load_for(&prod(), &pem, &key.serialize_pem());
    assert!(matches!(refused, Err(AuthorityError::UnsupportedSubject)), "{refused:?}");
}

#[test]
fn a_revocation_list_says_what_it_was_given() {
    let authority = authority_at(now());
    let revoked = vec![
        Revocation { serial: "00ff".to_owned(), revoked_at: now() - BACKDATE },
        Revocation { serial: "0b01".to_owned(), revoked_at: now() },
    ];
    let request = CrlRequest { revoked: revoked.clone(), number: 7, lifetime: CRL_LIFETIME };
    let lists = Crls::from_pem(authority.issue_crl(&request).unwrap().as_bytes()).unwrap().read();
    let [list] = lists.as_slice() else { panic!("{lists:?}") };
    assert_eq!(list.issuer, describe(authority.certificate()).unwrap().subject);
    assert_eq!((list.number, list.this_update), (Some(7), now() - BACKDATE));
    assert_eq!(list.next_update, Some(now() + CRL_LIFETIME));
    assert_eq!(list.revoked[0].serial, "ff");
    assert_eq!(list.revoked[1], revoked[1]);

    // What was read can be written again, with one more.
    let again = CrlRequest { revoked: list.revoked.clone(), number: 8, lifetime: CRL_LIFETIME };
    assert!(authority.issue_crl(&again).is_ok());
}

#[test]
fn a_serial_that_is_none_is_not_revoked() {
    for bad in ["", "f", "0x0f", "zz", "0f:0f", &"0f".repeat(21)] {
        let revoked = vec![Revocation { serial: bad.to_owned(), revoked_at: now() }];
        let refused = authority_at(now()).issue_crl(&CrlRequest { revoked, number: 1, lifetime: CRL_LIFETIME });
        assert!(matches!(refused, Err(AuthorityError::BadSerial(text)) if text == bad), "{bad}");
    }
}

#[test]
fn keys_are_in_no_debug_output() {
    let authority = testing::authority();
    let issued = authority.issue_runner(&RunnerRequest::new(r7())).unwrap();
    let shown = format!("{authority:?} {issued:?} {:?}", credentials(&issued));
    for key in [authority.key_pem(), issued.key_pem.clone()] {
        let secret = key.lines().nth(1).unwrap();
        assert!(!shown.contains(secret) && !shown.contains("PRIVATE KEY"), "{shown}");
    }
}

/// OpenSSL 3.0, and Python on top of it, can't read version 2.
#[test]
fn keys_are_pkcs_8_of_version_1() {
    for kind in [KeyKind::Ed25519, KeyKind::P256] {
        let authority = ClusterAuthority::create(&prod(), kind).unwrap();
        let request = RunnerRequest { key_kind: kind, ..RunnerRequest::new(r7()) };
        for pem in [authority.key_pem(), authority.issue_runner(&request).unwrap().key_pem] {
            let key = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).unwrap();
            let der = key.secret_pkcs8_der();
            // SEQUENCE, its length in one byte or in as many as that byte says, INTEGER 0.
            let header = if der[1] < 0x80 { 2 } else { 2 + usize::from(der[1] & 0x7f) };
            assert_eq!(der[header..header + 3], [0x02, 0x01, 0x00], "{kind:?}");
        }
    }
}

/// A runner and a coordinator of `authority` accept each other when they trust `root`.
fn assert_works(authority: &ClusterAuthority, root: &ClusterAuthority) {
    let runner = authority.issue_runner(&RunnerRequest::new(r7())).unwrap();
    let coordinator = authority.issue_coordinator(&CoordinatorRequest::new([COORDINATOR])).unwrap();
    let outcome = shake(&client(&runner, root), &serve(&coordinator, root, &Crls::default()), COORDINATOR);
    assert_eq!((&outcome.client, &outcome.server), (&Ok(()), &Ok(())));
    assert_eq!(outcome.identity().unwrap().runner, r7());
}

/// An authority as others make it: no SAN.
fn foreign() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "some CA");
    params.distinguished_name.push(DnType::OrganizationName, "some organisation");
    params.subject_alt_names = Vec::<SanType>::new();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn authority_at(now: SystemTime) -> ClusterAuthority {
    ClusterAuthority::create_by_clock(&prod(), KeyKind::P256, Arc::new(Fixed(now))).unwrap()
}

fn summary_of(issued: &Issued) -> CertificateSummary {
    describe(credentials(issued).leaf()).unwrap()
}

fn as_pem(der: &[u8]) -> String {
    use base64::prelude::{BASE64_STANDARD, Engine as _};
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", BASE64_STANDARD.encode(der))
}

fn prod() -> ClusterName {
    ClusterName::new("prod").unwrap()
}

fn r7() -> RunnerId {
    RunnerId::new("r7").unwrap()
}

/// 2033-05-18T03:33:20Z
fn now() -> SystemTime {
    at(2_000_000_000)
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

struct Fixed(SystemTime);

impl Clock for Fixed {
    fn now(&self) -> SystemTime {
        self.0
    }
}
