//! What a runner may ask to have certified, and what becomes of it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use proptest::prelude::*;
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
    PKCS_ED25519, PKCS_RSA_SHA256, SanType,
};
use telemetry_certs::testing;
use telemetry_certs::{
    CertificateRequest, CertificateRequestError, Credentials, KeyKind, MAX_CERTIFICATE_REQUEST_BYTES, PeerIdentity,
    PendingKey, RunnerRequest, describe,
};
use telemetry_proto::RunnerId;

fn r7() -> RunnerId {
    RunnerId::new("r7").unwrap()
}

fn request(edit: impl FnOnce(&mut CertificateParams)) -> CertificateRequest {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    edit(&mut params);
    let key = KeyPair::generate().unwrap();
    CertificateRequest::read(params.serialize_request(&key).unwrap().der()).unwrap()
}

#[test]
fn a_new_key_is_certified_under_our_own_names_and_fits_its_chain() {
    let authority = testing::authority();
    for kind in [KeyKind::Ed25519, KeyKind::P256] {
        let pending = PendingKey::generate(kind, &r7()).unwrap();
        let read = CertificateRequest::read(pending.request()).unwrap();
        assert!(read.may_be_of(&r7()));
        let wanted = RunnerRequest { lifetime: Duration::from_secs(60), ..RunnerRequest::new(r7()) };
        let certified = authority.certify_runner(&wanted, &read).unwrap();
        let credentials = pending.with_chain(&certified.chain_pem).unwrap();
        assert_eq!(PeerIdentity::from_leaf(credentials.leaf()).unwrap().runner, r7());
        let summary = describe(credentials.leaf()).unwrap();
        assert_eq!((summary.usages, summary.not_after), (vec!["clientAuth".to_owned()], certified.not_after));
        let other = PendingKey::generate(kind, &r7()).unwrap();
        assert!(other.with_chain(&certified.chain_pem).is_err(), "not the key that was certified");
        assert!(!format!("{pending:?}").contains("PRIVATE"));
    }
}

#[test]
fn nothing_of_a_request_but_its_key_gets_into_a_certificate() {
    let greedy = request(|params| {
        params.distinguished_name.push(DnType::CommonName, "runner-r7");
        params.distinguished_name.push(DnType::OrganizationName, "Another tenant");
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let certified = testing::authority().certify_runner(&RunnerRequest::new(r7()), &greedy).unwrap();
    let summary = describe(&certified.leaf).unwrap();
    assert_eq!((summary.subject.as_str(), summary.usages), ("CN=runner-r7", vec!["clientAuth".to_owned()]));
    assert!(!summary.is_authority && summary.san.len() == 1);
}

#[test]
fn a_request_names_its_runner_or_nobody() {
    let uri = |uri: &str| SanType::URI(uri.try_into().unwrap());
    assert!(request(|_| ()).may_be_of(&r7()));
    assert!(request(|p| p.subject_alt_names = vec![uri("spiffe://any/runner/r7")]).may_be_of(&r7()));
    for name in ["runner-r8", "runner-R7", "r7", "coordinator", "runner-r7 "] {
        let named = request(|p| p.distinguished_name.push(DnType::CommonName, name));
        assert!(!named.may_be_of(&r7()), "{name}");
    }
    for name in [
        uri("spiffe://c/runner/r8"),
        uri("spiffe://c/runner/r7/x"),
        uri("https://c/runner/r7"),
        SanType::DnsName("coordinator.example".try_into().unwrap()),
        SanType::IpAddress([127, 0, 0, 1].into()),
    ] {
        let shown = format!("{name:?}");
        assert!(!request(|p| p.subject_alt_names = vec![name]).may_be_of(&r7()), "{shown}");
    }
    assert!(!request(|p| p.distinguished_name.push(DnType::OrganizationalUnitName, "admins")).may_be_of(&r7()));
}

#[test]
fn keys_of_other_kinds_are_refused() {
    let read = |key: &KeyPair| {
        CertificateRequest::read(CertificateParams::default().serialize_request(key).unwrap().der()).map(drop)
    };
    for good in [&PKCS_ED25519, &PKCS_ECDSA_P256_SHA256, &PKCS_RSA_SHA256] {
        assert_eq!(read(&KeyPair::generate_for(good).unwrap()), Ok(()));
    }
    assert_eq!(read(&KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap()), Err(CertificateRequestError::Key));
}

#[test]
fn a_request_that_its_key_did_not_sign_is_refused() {
    let (ours, theirs) = (PendingKey::generate(KeyKind::Ed25519, &r7()), PendingKey::generate(KeyKind::Ed25519, &r7()));
    let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
    // Ed25519 requests for one name differ in 32 bytes of the key and in the signature, their last 64 bytes.
    let at = theirs.request().len() - 64;
    let mut stolen = theirs.request()[..at].to_vec();
    stolen.extend_from_slice(&ours.request()[at..]);
    assert_eq!(CertificateRequest::read(&stolen).map(drop), Err(CertificateRequestError::Unproven));
}

#[test]
fn pem_and_der_are_read_and_nothing_else() {
    let params = CertificateParams::default();
    let key = KeyPair::generate().unwrap();
    let request = params.serialize_request(&key).unwrap();
    let pem = request.pem().unwrap();
    assert!(CertificateRequest::read(pem.as_bytes()).is_ok() && CertificateRequest::read(request.der()).is_ok());
    let malformed = |bytes: &[u8]| CertificateRequest::read(bytes).map(drop).unwrap_err();
    let certificate = params.self_signed(&key).unwrap();
    let twice = format!("{pem}{pem}");
    let trailing = [request.der().as_ref(), b"x"].concat();
    for bytes in [
        b"".as_slice(),
        b"x",
        &request.der()[..100],
        twice.as_bytes(),
        &trailing,
        certificate.der(),
        certificate.pem().as_bytes(),
        key.serialize_pem().as_bytes(),
        &pem.as_bytes()[..200],
    ] {
        assert_eq!(malformed(bytes), CertificateRequestError::Malformed);
    }
    assert_eq!(malformed(&vec![b'x'; MAX_CERTIFICATE_REQUEST_BYTES + 1]), CertificateRequestError::TooLarge);
}

#[test]
fn a_certificate_is_issued_again_for_the_key_that_it_has() {
    let authority = testing::authority();
    let first = authority.issue_runner(&RunnerRequest::new(r7())).unwrap();
    let leaf = first.credentials().unwrap().leaf().clone();
    let again = authority.reissue_runner(&RunnerRequest::new(r7()), &leaf).unwrap();
    let renewed = Credentials::from_pem(again.chain_pem.as_bytes(), first.key_pem.as_bytes()).unwrap();
    assert_ne!(renewed.leaf(), &leaf);
}

proptest! {
    #[test]
    fn any_bytes_are_refused_without_a_panic(bytes in any::<Vec<u8>>(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        prop_assert!(CertificateRequest::read(&bytes).is_err());
        let good = PendingKey::generate(KeyKind::Ed25519, &r7()).unwrap();
        let mut changed = good.request().to_vec();
        // The signed part: between the header of the whole (3 bytes), and algorithm and signature (74 bytes of Ed25519).
        let at = 3 + at.index(changed.len() - 77);
        prop_assume!(changed[at] != to);
        changed[at] = to;
        prop_assert!(CertificateRequest::read(&changed).is_err());
    }
}
