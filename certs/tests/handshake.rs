//! What the two TLS configurations promise, in handshakes over memory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up fails")]

mod common;

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::version::{TLS12, TLS13};
use rustls::{CertificateError, ClientConfig, ClientConnection, Error, HandshakeKind, ServerConfig};
use telemetry_certs::testing::{self, Hierarchy, Leaf, TestKey, Usage};
use telemetry_certs::{
    CertificateRefusal, ClientTls, Crls, IdentitySource, Issued, KeyKind, Roots, RunnerAsServer, RunnerRequest,
    ServerDistrust, ServerTls, client_config, server_config,
};
use telemetry_proto::RunnerId;

use common::{COORDINATOR, client, credentials, name, roots, serve, server, shake};

#[test]
fn a_runner_and_its_coordinator_accept_each_other() {
    let authority = testing::authority();
    let runner = authority.issue_runner(&RunnerRequest::new(RunnerId::new("r7").unwrap())).unwrap();
    let outcome = shake(&client(&runner, &authority), &server(&authority), COORDINATOR);
    assert_eq!((&outcome.client, &outcome.server), (&Ok(()), &Ok(())));
    assert_eq!(outcome.identity().unwrap().runner.as_str(), "r7");
    assert_eq!(outcome.alpn.as_deref(), Some(b"h3".as_slice()));
}

#[test]
fn the_coordinator_is_found_by_its_addresses_too() {
    let authority = testing::authority();
    for address in ["192.0.2.1", "2001:db8::1"] {
        let leaf = Leaf::coordinator(COORDINATOR).ip_address(address.parse::<IpAddr>().unwrap()).issued_by(&authority);
        let server = serve(&leaf, &authority, &Crls::default());
        let outcome = shake(&client(&Leaf::runner("r7").issued_by(&authority), &authority), &server, address);
        assert_eq!(outcome.client, Ok(()), "{address}");
    }
}

/// Lesson 1 (caddy 7953).
#[test]
fn a_client_without_a_certificate_is_refused() {
    let authority = testing::authority();
    let nobody = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(Arc::clone(roots(&authority).store()))
        .with_no_client_auth();
    let outcome = shake(&with_alpn(nobody), &server(&authority), COORDINATOR);
    assert_eq!(outcome.server, Err(Error::NoCertificatesPresented));
    let told = CertificateRefusal::from_rustls(&outcome.client.unwrap_err());
    assert_eq!(told, Some(CertificateRefusal::NoCertificate));
}

#[test]
fn a_clients_certificate_that_is_not_good_is_refused() {
    let authority = testing::authority();
    let runner = || Leaf::runner("r7");
    let stranger = testing::authority();
    let below_stranger = Hierarchy::new(KeyKind::P256).intermediate;
    let cases = [
        (runner().issued_by(&stranger), "UnknownIssuer"),
        (runner().issued_by(&below_stranger), "UnknownIssuer"),
        (runner().expired().issued_by(&authority), "Expired"),
        (runner().not_yet_valid().issued_by(&authority), "NotValidYet"),
        (runner().usages(&[Usage::Server]).issued_by(&authority), "InvalidPurpose"),
        (Leaf::coordinator(COORDINATOR).issued_by(&authority), "InvalidPurpose"),
        (runner().as_authority().issued_by(&authority), "CaUsedAsEndEntity"),
    ];
    for (issued, expected) in cases {
        let outcome = shake(&client(&issued, &authority), &server(&authority), COORDINATOR);
        let error = outcome.server.expect_err(expected);
        assert!(format!("{error:?}").contains(expected), "{expected}: {error:?}");
    }
}

#[test]
fn an_authoritys_certificate_is_no_clients() {
    let authority = testing::authority();
    let own = Issued { chain_pem: authority.certificate_pem(), key_pem: authority.key_pem() };
    let outcome = shake(&client(&own, &authority), &server(&authority), COORDINATOR);
    assert!(outcome.server.is_err());
}

#[test]
fn a_runner_of_an_older_issuer_is_accepted() {
    let authority = testing::authority();
    let legacy =
        Leaf::legacy_runner("0b2e9a6c-3b1f-4a55-9a0f-0d7f7a4f8c11").dns_name("runner.example").issued_by(&authority);
    let outcome = shake(&client(&legacy, &authority), &server(&authority), COORDINATOR);
    assert_eq!(outcome.server, Ok(()));
    assert_eq!(outcome.identity().unwrap().source, IdentitySource::CommonName);
}

/// Lesson 3 (nginx 817, haproxy 2322).
#[test]
fn every_kind_of_key_and_chain_arrives_with_its_identity() {
    let root = testing::authority();
    let hierarchy = Hierarchy::new(KeyKind::P256);
    for key in [TestKey::Ed25519, TestKey::P256, TestKey::P384, TestKey::Rsa2048] {
        for (issuer, trusted, certificates) in [(&root, &root, 1), (&hierarchy.intermediate, &hierarchy.root, 2)] {
            let runner = Leaf::runner("r7").key(key).issued_by(issuer);
            let coordinator = Leaf::coordinator(COORDINATOR).key(key).issued_by(issuer);
            let server = serve(&coordinator, trusted, &Crls::default());
            let outcome = shake(&client(&runner, trusted), &server, COORDINATOR);
            assert_eq!((&outcome.client, &outcome.server), (&Ok(()), &Ok(())), "{key:?}");
            assert_eq!(outcome.client_chain.len(), certificates);
            assert_eq!(outcome.identity().unwrap().runner.as_str(), "r7");
        }
    }
}

#[test]
fn both_authorities_are_trusted_while_one_replaces_the_other() {
    let (old, new) = (testing::authority(), testing::authority());
    let both = Roots::from_pem(format!("{}{}", old.certificate_pem(), new.certificate_pem()).as_bytes()).unwrap();
    let coordinator = credentials(&Leaf::coordinator(COORDINATOR).issued_by(&new));
    let parts = ServerTls { credentials: &coordinator, client_roots: &both, crls: &[], alpn: &[b"h3"] };
    let server = Arc::new(server_config(parts).unwrap());
    for issuer in [&old, &new] {
        let runner = credentials(&Leaf::runner("r7").issued_by(issuer));
        let parts = ClientTls { credentials: &runner, server_roots: &both, alpn: &[b"h3"] };
        let outcome = shake(&Arc::new(client_config(parts).unwrap()), &server, COORDINATOR);
        assert_eq!((outcome.client, outcome.server), (Ok(()), Ok(())));
    }
}

#[test]
fn a_server_that_shows_a_runners_certificate_is_refused() {
    let authority = testing::authority();
    let runner = client(&Leaf::runner("r7").issued_by(&authority), &authority);
    // All but the first are valid for a server of this name as far as the WebPKI goes.
    let posers = [
        (Leaf::runner("r8").dns_name(COORDINATOR), false),
        (Leaf::runner("r8").dns_name(COORDINATOR).usages(&[Usage::Server, Usage::Client]), true),
        (Leaf::runner("r8").dns_name(COORDINATOR).usages(&[]), true),
        (Leaf::legacy_runner("r8").dns_name(COORDINATOR), true),
        (Leaf::runner("r8").no_common_name().dns_name(COORDINATOR).usages(&[Usage::Server]), true),
        (Leaf::coordinator(COORDINATOR).common_name("RUNNER-x"), true),
    ];
    for (leaf, valid_otherwise) in posers {
        let server = serve(&leaf.issued_by(&authority), &authority, &Crls::default());
        let error = shake(&runner, &server, COORDINATOR).client.expect_err("refused");
        assert_eq!(is_runner_as_server(&error), valid_otherwise, "{error:?}");
        let expected = if valid_otherwise { ServerDistrust::Runner } else { ServerDistrust::WrongUsage };
        assert_eq!(ServerDistrust::from_rustls(&error), Some(expected));
    }
}

#[test]
fn a_server_whose_certificate_is_not_good_is_refused() {
    let authority = testing::authority();
    let stranger = testing::authority();
    let coordinator = || Leaf::coordinator(COORDINATOR);
    let cases = [
        (coordinator().issued_by(&stranger), "UnknownIssuer"),
        (coordinator().expired().issued_by(&authority), "Expired"),
        (coordinator().not_yet_valid().issued_by(&authority), "NotValidYet"),
        (coordinator().usages(&[Usage::Client]).issued_by(&authority), "InvalidPurpose"),
        (Leaf::coordinator("d.example").issued_by(&authority), "NotValidForName"),
        (coordinator().as_authority().issued_by(&authority), "CaUsedAsEndEntity"),
    ];
    for (issued, expected) in cases {
        let server = serve(&issued, &authority, &Crls::default());
        let outcome = shake(&client(&Leaf::runner("r7").issued_by(&authority), &authority), &server, COORDINATOR);
        let error = outcome.client.expect_err(expected);
        assert!(format!("{error:?}").contains(expected), "{expected}: {error:?}");
    }
}

/// Resumption would skip the verifier: a removed runner would be back.
#[test]
fn a_second_handshake_is_a_full_one() {
    let authority = testing::authority();
    let runner = Leaf::runner("r7").issued_by(&authority);
    let ours = client(&runner, &authority);
    let mut eager = (*ours).clone();
    eager.resumption = Resumption::in_memory_sessions(8);
    eager.enable_early_data = true;
    let eager = Arc::new(eager);
    let mut generous = (*server(&authority)).clone();
    generous.send_tls13_tickets = 2;
    generous.session_storage = rustls::server::ServerSessionMemoryCache::new(8);
    let generous = Arc::new(generous);

    // The two others do resume, so that this test can fail.
    assert_eq!(second_handshake(&eager, &generous), (HandshakeKind::Resumed, 2));
    // Our server resumes nobody, our client with nobody.
    assert_eq!(second_handshake(&eager, &server(&authority)), (HandshakeKind::Full, 0));
    assert_eq!(second_handshake(&ours, &generous).0, HandshakeKind::Full);
    assert_eq!(second_handshake(&ours, &server(&authority)), (HandshakeKind::Full, 0));
}

#[test]
fn there_is_no_early_data() {
    let authority = testing::authority();
    let client = client(&Leaf::runner("r7").issued_by(&authority), &authority);
    assert!(!client.enable_early_data);
    assert_eq!(server(&authority).max_early_data_size, 0);
    assert!(!server(&authority).send_half_rtt_data);
    // Not at the first connection, and not at the second, when there could be a ticket.
    for _ in 0..2 {
        let mut connection = ClientConnection::new(Arc::clone(&client), name(COORDINATOR)).unwrap();
        assert!(connection.early_data().is_none());
        shake(&client, &server(&authority), COORDINATOR);
    }
}

#[test]
fn nothing_older_than_tls_1_3_is_spoken() {
    let authority = testing::authority();
    let old_client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .with_root_certificates(Arc::clone(roots(&authority).store()))
        .with_no_client_auth();
    let refused = shake(&with_alpn(old_client), &server(&authority), COORDINATOR).server;
    assert!(matches!(refused, Err(Error::PeerIncompatible(_))), "{refused:?}");

    let issued = Leaf::coordinator(COORDINATOR).issued_by(&authority);
    let chain = credentials(&issued).chain().to_vec();
    let key = rustls_pki_types::pem::PemObject::from_pem_slice(issued.key_pem.as_bytes()).unwrap();
    let old_server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let outcome =
        shake(&client(&Leaf::runner("r7").issued_by(&authority), &authority), &Arc::new(old_server), COORDINATOR);
    assert!(matches!(outcome.server, Err(Error::PeerIncompatible(_))), "{:?}", outcome.server);
}

#[test]
fn another_application_protocol_is_refused() {
    let authority = testing::authority();
    let runner = credentials(&Leaf::runner("r7").issued_by(&authority));
    let parts = ClientTls { credentials: &runner, server_roots: &roots(&authority), alpn: &[b"imap"] };
    let outcome = shake(&Arc::new(client_config(parts).unwrap()), &server(&authority), COORDINATOR);
    assert_eq!(outcome.server, Err(Error::NoApplicationProtocol));
}

#[test]
fn the_process_has_no_default_provider_because_of_us() {
    let authority = testing::authority();
    shake(&client(&Leaf::runner("r7").issued_by(&authority), &authority), &server(&authority), COORDINATOR);
    assert!(CryptoProvider::get_default().is_none());
}

/// The kind of the second of two handshakes, and how many tickets it brought.
fn second_handshake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> (HandshakeKind, u32) {
    let first = shake(client, server, COORDINATOR);
    assert_eq!((first.client, first.server), (Ok(()), Ok(())));
    let second = shake(client, server, COORDINATOR);
    assert_eq!((second.client, second.server), (Ok(()), Ok(())));
    (second.kind.unwrap(), second.tickets)
}

fn is_runner_as_server(error: &Error) -> bool {
    match error {
        Error::InvalidCertificate(CertificateError::Other(other)) => other.0.is::<RunnerAsServer>(),
        _ => false,
    }
}

fn with_alpn(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.alpn_protocols = vec![b"h3".to_vec()];
    Arc::new(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
