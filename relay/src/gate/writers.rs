//! Writers that are no runners: gateways that push with a static token, over mTLS like everyone else.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::CertificateDer;
use telemetry_certs::{IdentityError, PeerIdentity, WriterIdentity};
use telemetry_proto::claims::Grants;
use telemetry_proto::{Reason, Signal, WriterName};

use super::peer::Identity;
use super::{Peer, Principal, StaticToken};

/// More writers than this are not taken: each is looked at once per connection of one of them.
pub const MAX_WRITERS: usize = 1_000;

/// One writer.
#[derive(Debug, Clone)]
pub struct Writer {
    /// Its name: batches are filed under `writer:NAME`.
    pub name: WriterName,
    /// Which certificates of the cluster's CA are its own.
    pub certificate: WriterCertificate,
    /// The token that it must show.
    pub token: StaticToken,
    /// What it may write.
    pub signals: Vec<Signal>,
}

/// Names that must be in a certificate, exactly so. Without any, no certificate will do.
///
/// A SPIFFE ID outranks the common name, as it does for runners: a writer that is known by its common name alone has a
/// certificate without a SPIFFE ID.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriterCertificate {
    /// The one SPIFFE ID among the SAN URIs.
    pub uri: Option<String>,
    /// The common name of the subject.
    pub common_name: Option<String>,
}

impl WriterCertificate {
    fn matches(&self, identity: &WriterIdentity) -> bool {
        let has_name = self.common_name.is_none() || self.common_name == identity.common_name;
        !self.is_empty() && self.uri == identity.uri && has_name
    }

    const fn is_empty(&self) -> bool {
        self.uri.is_none() && self.common_name.is_none()
    }

    /// Whether one certificate could be both's.
    fn overlaps(&self, other: &Self) -> bool {
        let names = (&self.common_name, &other.common_name);
        self.uri == other.uri && (names.0.is_none() || names.1.is_none() || names.0 == names.1)
    }
}

/// Writers that can't be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WritersError {
    /// There are more than [`MAX_WRITERS`].
    #[error("there are more than {MAX_WRITERS} writers")]
    TooMany,
    /// Two writers have one name.
    #[error("two writers are called {0}")]
    DuplicateName(WriterName),
    /// Nothing says which certificate is the writer's.
    #[error("nothing says which certificate is that of writer {0}")]
    NoCertificate(WriterName),
    /// One certificate could be both's, and then it would not say whose it is.
    #[error("one certificate could be that of writer {0} and of writer {1}")]
    SameCertificate(WriterName, WriterName),
    /// A writer that may write nothing.
    #[error("writer {0} may write nothing")]
    NoSignals(WriterName),
}

/// Writers that were checked, ready to be [published](Writers::publish).
#[derive(Debug, Clone, Default)]
pub struct WriterSet(Vec<Writer>);

impl WriterSet {
    /// Checks that the writers can be told apart.
    ///
    /// # Errors
    /// The first fault, in the order of the writers.
    pub fn new(writers: Vec<Writer>) -> Result<Self, WritersError> {
        if writers.len() > MAX_WRITERS {
            return Err(WritersError::TooMany);
        }
        for (index, writer) in writers.iter().enumerate() {
            let name = || writer.name.clone();
            if writer.certificate.is_empty() {
                return Err(WritersError::NoCertificate(name()));
            }
            if writer.signals.is_empty() {
                return Err(WritersError::NoSignals(name()));
            }
            let before = &writers[..index];
            if before.iter().any(|other| other.name == writer.name) {
                return Err(WritersError::DuplicateName(name()));
            }
            if let Some(other) = before.iter().find(|other| other.certificate.overlaps(&writer.certificate)) {
                return Err(WritersError::SameCertificate(other.name.clone(), name()));
            }
        }
        Ok(Self(writers))
    }

    /// The writers, in their order.
    #[must_use]
    pub fn as_slice(&self) -> &[Writer] {
        &self.0
    }

    /// Whose a certificate is.
    fn holder(&self, identity: &WriterIdentity) -> Option<&Writer> {
        self.0.iter().find(|writer| writer.certificate.matches(identity))
    }

    /// The writer that a peer is, if it still is the one that it was when it connected.
    fn find(&self, peer: &Peer) -> Option<&Writer> {
        let Identity::Writer(identity) = peer.identity() else { return None };
        self.holder(identity).filter(|writer| peer.author().writer() == Some(&writer.name))
    }
}

/// The writers in force. The listener asks it who a certificate's holder is, the relay whether a token is good.
#[derive(Debug, Default)]
pub struct Writers {
    current: ArcSwap<WriterSet>,
}

impl Writers {
    /// With these writers.
    #[must_use]
    pub fn new(set: WriterSet) -> Self {
        Self { current: ArcSwap::from_pointee(set) }
    }

    /// Puts other writers in force, for every request from now on.
    pub fn publish(&self, set: WriterSet) {
        self.current.store(Arc::new(set));
    }

    /// The writers that are in force.
    #[must_use]
    pub fn snapshot(&self) -> Arc<WriterSet> {
        self.current.load_full()
    }

    /// Who the holder of a certificate is, whose chain was verified: the runner that it names, or else the one writer whose
    /// it is.
    ///
    /// # Errors
    /// Why the certificate names no runner, where it is no writer's either.
    pub fn peer_of(&self, leaf: &CertificateDer<'_>, remote: SocketAddr) -> Result<Peer, IdentityError> {
        let no_runner = match PeerIdentity::from_leaf(leaf) {
            Ok(identity) => return Ok(Peer::new(identity, remote)),
            Err(error) => error,
        };
        let current = self.current.load();
        if current.0.is_empty() {
            return Err(no_runner);
        }
        let identity = WriterIdentity::from_leaf(leaf).map_err(|_| no_runner)?;
        let name = current.holder(&identity).map(|writer| writer.name.clone()).ok_or(no_runner)?;
        Ok(Peer::writer(name, identity, remote))
    }

    /// Whether a peer that is a writer still is the writer that it was when it connected. A runner is none.
    #[must_use]
    pub fn is_current(&self, peer: &Peer) -> bool {
        self.current.load().find(peer).is_some()
    }

    /// Whether a peer may write `signal` for all that its certificate says: a writer what it is configured for, nothing if it is
    /// none any more; of a runner only its token knows.
    #[must_use]
    pub fn may_write(&self, peer: &Peer, signal: Signal) -> bool {
        let grants = |writer: &Writer| Grants::of(&writer.signals).allows(signal);
        peer.runner().is_some() || self.current.load().find(peer).is_some_and(grants)
    }

    /// Binds the token to the writer that shows it, for a write of `signal`.
    ///
    /// # Errors
    /// [`Reason::WriterUnknown`]: the peer is no writer, or no longer one; [`Reason::TokenWrongWriter`]: the token is not its own;
    /// [`Reason::TokenSignalNotGranted`].
    pub fn bind(&self, peer: &Peer, token: &str, signal: Signal) -> Result<Principal, Reason> {
        let current = self.current.load();
        let writer = current.find(peer).ok_or(Reason::WriterUnknown)?;
        if !writer.token.is(token) {
            return Err(Reason::TokenWrongWriter);
        }
        if !Grants::of(&writer.signals).allows(signal) {
            return Err(Reason::TokenSignalNotGranted);
        }
        Ok(Principal::of_writer(peer))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::gate::fixtures::peer as runner_peer;

    fn writer(name: &str, uri: &str, common_name: &str) -> Writer {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Writer {
            name: WriterName::new(name).unwrap(),
            certificate: WriterCertificate { uri: given(uri), common_name: given(common_name) },
            token: StaticToken::new(format!("token-of-{name}").as_bytes()).unwrap(),
            signals: vec![Signal::Traces],
        }
    }

    fn identity(uri: Option<&str>, common_name: Option<&str>) -> WriterIdentity {
        WriterIdentity {
            uri: uri.map(str::to_owned),
            common_name: common_name.map(str::to_owned),
            not_after: SystemTime::now() + Duration::from_secs(60),
            serial: "01".to_owned(),
            fingerprint: [0; 32],
        }
    }

    fn peer(name: &str, uri: &str) -> Peer {
        let remote = SocketAddr::from(([127, 0, 0, 1], 4433));
        Peer::writer(WriterName::new(name).unwrap(), identity(Some(uri), Some("anything")), remote)
    }

    fn reason(writers: &Writers, peer: &Peer, token: &str, signal: Signal) -> Option<Reason> {
        writers.bind(peer, token, signal).err()
    }

    #[test]
    fn certificate_token_and_signal_must_all_be_the_writers() {
        let set = WriterSet::new(vec![writer("a", "spiffe://c/writer/a", ""), writer("b", "spiffe://c/writer/b", "")]);
        let writers = Writers::new(set.unwrap());
        let a = peer("a", "spiffe://c/writer/a");
        let principal = writers.bind(&a, "token-of-a", Signal::Traces).unwrap();
        assert_eq!((principal.author().label(), principal.author().runner()), ("writer:a", None));
        assert_eq!(reason(&writers, &a, "token-of-b", Signal::Traces), Some(Reason::TokenWrongWriter));
        assert_eq!(reason(&writers, &a, "", Signal::Traces), Some(Reason::TokenWrongWriter));
        assert_eq!(reason(&writers, &a, "token-of-a", Signal::Metrics), Some(Reason::TokenSignalNotGranted));
        let poser = peer("a", "spiffe://c/writer/b");
        assert_eq!(reason(&writers, &poser, "token-of-a", Signal::Traces), Some(Reason::WriterUnknown));
        assert_eq!(reason(&writers, &runner_peer("a"), "token-of-a", Signal::Traces), Some(Reason::WriterUnknown));
    }

    #[test]
    fn a_change_takes_effect_at_the_next_request() {
        let writers = Writers::new(WriterSet::new(vec![writer("a", "spiffe://c/writer/a", "")]).unwrap());
        let a = peer("a", "spiffe://c/writer/a");
        assert!(writers.is_current(&a) && !writers.is_current(&runner_peer("a")));
        let mut other_token = writer("a", "spiffe://c/writer/a", "");
        other_token.token = StaticToken::new(b"next").unwrap();
        writers.publish(WriterSet::new(vec![other_token]).unwrap());
        assert_eq!(reason(&writers, &a, "token-of-a", Signal::Traces), Some(Reason::TokenWrongWriter));
        assert_eq!(reason(&writers, &a, "next", Signal::Traces), None);
        writers.publish(WriterSet::new(vec![writer("b", "spiffe://c/writer/a", "")]).unwrap());
        assert!(!writers.is_current(&a), "the certificate is another writer's now");
        writers.publish(WriterSet::default());
        assert_eq!(reason(&writers, &a, "next", Signal::Traces), Some(Reason::WriterUnknown));
    }

    #[test]
    fn every_name_that_is_asked_for_must_be_there() {
        let both = writer("a", "spiffe://c/writer/a", "gateway").certificate;
        let by_name = writer("a", "", "gateway").certificate;
        for (uri, common_name, of_both, of_name) in [
            (Some("spiffe://c/writer/a"), Some("gateway"), true, false),
            (Some("spiffe://c/writer/a"), None, false, false),
            (None, Some("gateway"), false, true),
            (None, Some("Gateway"), false, false),
            (Some("spiffe://c/writer/a2"), Some("gateway"), false, false),
        ] {
            let identity = identity(uri, common_name);
            assert_eq!((both.matches(&identity), by_name.matches(&identity)), (of_both, of_name), "{identity:?}");
            assert!(!WriterCertificate::default().matches(&identity));
        }
    }

    #[test]
    fn writers_that_can_not_be_told_apart_are_refused() {
        let error = |writers| WriterSet::new(writers).unwrap_err().to_string();
        let a = || writer("a", "spiffe://c/writer/a", "");
        assert_eq!(error(vec![a(), writer("a", "spiffe://c/writer/b", "")]), "two writers are called a");
        let same = "one certificate could be that of writer a and of writer b";
        assert_eq!(error(vec![a(), writer("b", "spiffe://c/writer/a", "")]), same);
        assert_eq!(error(vec![a(), writer("b", "spiffe://c/writer/a", "gateway")]), same);
        assert_eq!(error(vec![writer("a", "", "gateway"), writer("b", "", "gateway")]), same);
        assert!(WriterSet::new(vec![a(), writer("b", "", "gateway")]).is_ok(), "a SPIFFE ID outranks a common name");
        assert_eq!(error(vec![writer("a", "", "")]), "nothing says which certificate is that of writer a");
        assert_eq!(error(vec![Writer { signals: Vec::new(), ..a() }]), "writer a may write nothing");
        let many = (0..=MAX_WRITERS).map(|n| writer(&format!("w{n}"), &format!("spiffe://c/writer/{n}"), ""));
        assert_eq!(error(many.collect()), "there are more than 1000 writers");
        assert!(WriterSet::new(vec![writer("a", "spiffe://c/x", "g"), writer("b", "spiffe://c/x", "h")]).is_ok());
    }
}
