//! What revocation lists do to a runner.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up fails")]

mod common;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{Issuer, KeyPair};
use rustls::{CertificateError, Error};
use rustls_pki_types::UnixTime;
use telemetry_certs::testing::{self, Hierarchy, Leaf};
use telemetry_certs::{
    CRL_LIFETIME, ClusterAuthority, CrlRequest, Crls, Issued, KeyKind, PeerIdentity, Revocation, Roots, ServerTls,
    TlsError, client_verifier, describe, server_config,
};
use telemetry_proto::Clock;

use common::{COORDINATOR, client, credentials, roots, serve, shake};

#[test]
fn a_revoked_runner_is_refused_and_others_are_not() {
    let authority = testing::authority();
    let (revoked, other) = (Leaf::runner("r7").issued_by(&authority), Leaf::runner("r8").issued_by(&authority));
    let crls = crls(&authority, &[&revoked]);
    assert_eq!(verdict(&revoked, &authority, &authority, &crls), Err(CertificateError::Revoked.into()));
    assert_eq!(verdict(&other, &authority, &authority, &crls), Ok(()));
    assert_eq!(verdict(&revoked, &authority, &authority, &Crls::default()), Ok(()), "only the list revokes it");
}

#[test]
fn a_list_that_is_overdue_stays_in_force() {
    let authority = testing::authority();
    let (revoked, other) = (Leaf::runner("r7").issued_by(&authority), Leaf::runner("r8").issued_by(&authority));
    let past = Past(SystemTime::now() - Duration::from_secs(24 * 60 * 60));
    let authority = authority.with_clock(Arc::new(past));
    let request = CrlRequest { revoked: vec![revocation(&revoked)], number: 1, lifetime: Duration::from_secs(60) };
    let crls = Crls::from_pem(authority.issue_crl(&request).unwrap().as_bytes()).unwrap();
    assert!(crls.read()[0].next_update.unwrap() < SystemTime::now());
    assert_eq!(verdict(&revoked, &authority, &authority, &crls), Err(CertificateError::Revoked.into()));
    assert_eq!(verdict(&other, &authority, &authority, &crls), Ok(()));
}

#[test]
fn the_lists_of_an_intermediate_are_its_own() {
    let Hierarchy { root, intermediate } = Hierarchy::new(KeyKind::P256);
    let (revoked, other) = (Leaf::runner("r7").issued_by(&intermediate), Leaf::runner("r8").issued_by(&intermediate));
    // Nobody says whether it is revoked: then it does not get in.
    let roots_only = crls(&root, &[]);
    let unknown = CertificateError::UnknownRevocationStatus;
    assert_eq!(verdict(&other, &intermediate, &root, &roots_only), Err(unknown.into()));

    let mut both = roots_only;
    both.extend(crls(&intermediate, &[&revoked]));
    assert_eq!(verdict(&revoked, &intermediate, &root, &both), Err(CertificateError::Revoked.into()));
    assert_eq!(verdict(&other, &intermediate, &root, &both), Ok(()));
}

#[test]
fn what_a_revoked_intermediate_issued_is_refused() {
    let Hierarchy { root, intermediate } = Hierarchy::new(KeyKind::P256);
    let serial = describe(intermediate.certificate()).unwrap().serial;
    let revoked = vec![Revocation { serial, revoked_at: SystemTime::now() }];
    let pem = root.issue_crl(&CrlRequest { revoked, number: 1, lifetime: CRL_LIFETIME }).unwrap();
    let mut both = Crls::from_pem(pem.as_bytes()).unwrap();
    both.extend(crls(&intermediate, &[]));
    let runner = Leaf::runner("r7").issued_by(&intermediate);
    assert_eq!(verdict(&runner, &intermediate, &root, &both), Err(CertificateError::Revoked.into()));
}

#[test]
fn a_root_without_a_list_is_refused_while_others_have_one() {
    let (listed, forgotten) = (testing::authority(), testing::authority());
    let both =
        Roots::from_pem(format!("{}{}", listed.certificate_pem(), forgotten.certificate_pem()).as_bytes()).unwrap();
    let mut lists = crls(&listed, &[]);
    let error = client_verifier(&both, lists.ders()).expect_err("refused");
    let forgotten_name = describe(forgotten.certificate()).unwrap().subject;
    assert!(matches!(&error, TlsError::RootWithoutCrl { root } if *root == forgotten_name), "{error}");
    assert!(error.to_string().contains("issue a list"), "{error}");

    lists.extend(crls(&forgotten, &[]));
    assert!(client_verifier(&both, lists.ders()).is_ok());
}

#[test]
fn a_list_in_the_roots_name_that_it_did_not_sign_is_refused() {
    let authority = testing::authority();
    let forger = Issuer::from_ca_cert_der(authority.certificate(), KeyPair::generate().unwrap()).unwrap();
    let params = rcgen::CertificateRevocationListParams {
        this_update: time::OffsetDateTime::now_utc(),
        next_update: time::OffsetDateTime::now_utc() + CRL_LIFETIME,
        crl_number: 1u64.into(),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    let forged = Crls::from_pem(params.signed_by(&forger).unwrap().pem().unwrap().as_bytes()).unwrap();
    let parts = ServerTls {
        credentials: &credentials(&Leaf::coordinator(COORDINATOR).issued_by(&authority)),
        client_roots: &roots(&authority),
        crls: forged.ders(),
        alpn: &[],
    };
    assert!(matches!(server_config(parts), Err(TlsError::RootWithoutCrl { .. })));
}

#[test]
fn something_that_is_no_list_is_refused() {
    let authority = testing::authority();
    let garbage = [b"\x30\x03\x02\x01\x01".to_vec().into()];
    assert!(matches!(client_verifier(&roots(&authority), &garbage), Err(TlsError::BadCrl(_))));
}

/// Connections outlive a reload: their chains are asked about again.
#[test]
fn a_chain_can_be_verified_again_under_new_lists() {
    let authority = testing::authority();
    let runner = Leaf::runner("r7").issued_by(&authority);
    let leaf = credentials(&runner).leaf().clone();
    let verify = |crls: &Crls| {
        let verifier = client_verifier(&roots(&authority), crls.ders()).unwrap();
        verifier.verify_client_cert(&leaf, &[], UnixTime::now()).map(drop)
    };
    assert_eq!(verify(&crls(&authority, &[])), Ok(()));
    assert_eq!(verify(&crls(&authority, &[&runner])), Err(CertificateError::Revoked.into()));
}

/// What the server says to this client.
fn verdict(runner: &Issued, issuer: &ClusterAuthority, trusted: &ClusterAuthority, crls: &Crls) -> Result<(), Error> {
    let coordinator = Leaf::coordinator(COORDINATOR).issued_by(issuer);
    shake(&client(runner, trusted), &serve(&coordinator, trusted, crls), COORDINATOR).server
}

fn crls(authority: &ClusterAuthority, revoked: &[&Issued]) -> Crls {
    let request = CrlRequest {
        revoked: revoked.iter().map(|issued| revocation(issued)).collect(),
        number: 1,
        lifetime: CRL_LIFETIME,
    };
    Crls::from_pem(authority.issue_crl(&request).unwrap().as_bytes()).unwrap()
}

fn revocation(issued: &Issued) -> Revocation {
    let identity = PeerIdentity::from_leaf(credentials(issued).leaf()).unwrap();
    Revocation { serial: identity.serial, revoked_at: SystemTime::now() }
}

struct Past(SystemTime);

impl Clock for Past {
    fn now(&self) -> SystemTime {
        self.0
    }
}
