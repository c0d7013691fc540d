//! What an endpoint shows: a certificate chain and the private key of its leaf.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::load::{self, LoadError, LoadFault, Origin};
use crate::tls;

/// A certificate chain and the private key of its first certificate, checked against each other. Cheap to clone.
///
/// The key is in no `Debug` output and cannot be read back.
#[derive(Clone)]
pub struct Credentials {
    certified: Arc<CertifiedKey>,
    leaf: CertificateDer<'static>,
}

impl Credentials {
    /// Reads PEM: the chain with the leaf first and intermediates behind it, and one private key (PKCS #8, SEC 1 or
    /// PKCS #1).
    ///
    /// # Errors
    /// [`LoadError`] when either is not what it should be, or the key is not the leaf's.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, LoadError> {
        Self::from_origins((Origin::Text("certificate chain"), chain), (Origin::Text("private key"), key))
    }

    /// Reads PEM files; see [`from_pem`](Self::from_pem). Both may be the same file. At most 1 MiB each.
    ///
    /// # Errors
    /// [`LoadError`], which names the file.
    pub fn from_files(chain: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self, LoadError> {
        let (chain_origin, chain) = load::read_file(chain.as_ref())?;
        let (key_origin, key) = load::read_file(key.as_ref())?;
        Self::from_origins((chain_origin, &chain), (key_origin, &key))
    }

    /// The leaf.
    #[must_use]
    pub const fn leaf(&self) -> &CertificateDer<'static> {
        &self.leaf
    }

    /// The whole chain, leaf first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    pub(crate) fn resolver(&self) -> Arc<SingleCertAndKey> {
        Arc::new(SingleCertAndKey::from(Arc::clone(&self.certified)))
    }

    fn from_origins(chain: (Origin, &[u8]), key: (Origin, &[u8])) -> Result<Self, LoadError> {
        let certificates = load::certificates(&chain.0, chain.1)?;
        let private_key = load::private_key(&key.0, key.1)?;
        Self::from_der(certificates, private_key, &chain.0, &key.0)
    }

    /// Checks that key and leaf fit.
    pub(crate) fn from_der(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        chain_origin: &Origin,
        key_origin: &Origin,
    ) -> Result<Self, LoadError> {
        let leaf = chain.first().ok_or_else(|| LoadError::new(chain_origin, LoadFault::NoCertificate))?.clone();
        let key = tls::provider()
            .key_provider
            .load_private_key(key)
            .map_err(|_| LoadError::new(key_origin, LoadFault::UnusableKey))?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            Ok(()) => Ok(Self { certified: Arc::new(certified), leaf }),
            Err(rustls::Error::InconsistentKeys(_)) => {
                Err(LoadError::new(key_origin, LoadFault::KeyMismatch { chain: chain_origin.clone() }))
            }
            Err(_) => Err(LoadError::new(chain_origin, LoadFault::BadCertificate { number: 1 })),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("certificates", &self.certified.cert.len())
            .field("key", &self.certified.key.algorithm())
            .finish()
    }
}
