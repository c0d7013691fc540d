//! Whom an endpoint trusts.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;

use crate::load::{self, LoadError, LoadFault, Origin};
use crate::parse;

/// The authorities whose certificates are accepted, at least one. Several while an authority is replaced. Cheap to
/// clone.
#[derive(Clone)]
pub struct Roots {
    store: Arc<RootCertStore>,
    certificates: Arc<[CertificateDer<'static>]>,
}

impl Roots {
    /// Reads PEM.
    ///
    /// # Errors
    /// [`LoadError`] when there is no certificate in it, or one that is no authority's.
    pub fn from_pem(pem: &[u8]) -> Result<Self, LoadError> {
        Self::from_origin(&Origin::Text("root certificates"), pem)
    }

    /// Reads a PEM file of at most 1 MiB.
    ///
    /// # Errors
    /// [`LoadError`], which names the file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let (origin, pem) = load::read_file(path.as_ref())?;
        Self::from_origin(&origin, &pem)
    }

    /// The roots as rustls wants them.
    #[must_use]
    pub const fn store(&self) -> &Arc<RootCertStore> {
        &self.store
    }

    /// The roots' certificates.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    fn from_origin(origin: &Origin, pem: &[u8]) -> Result<Self, LoadError> {
        let mut store = RootCertStore::empty();
        let certificates = load::certificates(origin, pem)?;
        for (index, der) in certificates.iter().enumerate() {
            let number = index + 1;
            if parse::certificate(der).as_ref().and_then(parse::is_authority) != Some(true) {
                return Err(LoadError::new(origin, LoadFault::NotAuthority { number }));
            }
            store.add(der.clone()).map_err(|_| LoadError::new(origin, LoadFault::BadCertificate { number }))?;
        }
        Ok(Self { store: Arc::new(store), certificates: certificates.into() })
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roots").field("count", &self.store.len()).finish()
    }
}
