//! How a runner's client verifies the coordinator.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::server::VerifierBuilderError;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::identity::looks_like_runner;
use crate::roots::Roots;

/// The server shows a certificate that is, or could be, a runner's. Inside the [`rustls::Error`] of such a handshake,
/// as [`CertificateError::Other`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server shows a runner's certificate: a runner poses as the coordinator, or the address is a runner's")]
pub struct RunnerAsServer;

/// The WebPKI's rules, and then that the certificate is no runner's.
#[derive(Debug)]
pub(super) struct CoordinatorVerifier {
    webpki: Arc<WebPkiServerVerifier>,
}

impl CoordinatorVerifier {
    pub(super) fn new(roots: &Roots, provider: Arc<CryptoProvider>) -> Result<Self, VerifierBuilderError> {
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::clone(roots.store()), provider).build()?;
        Ok(Self { webpki })
    }
}

impl ServerCertVerifier for CoordinatorVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        // After the chain: what an untrusted certificate says about itself is nothing to report.
        if looks_like_runner(end_entity) {
            return Err(CertificateError::Other(OtherError(Arc::new(RunnerAsServer))).into());
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
