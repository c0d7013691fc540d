//! Certificates that no one should issue, and shapes that only others issue. For tests only: everything here panics
//! rather than return an error.
//!
//! ```
//! use telemetry_certs::testing::{self, Leaf, Usage};
//!
//! let authority = testing::authority();
//! let expired = Leaf::runner("r7").expired().issued_by(&authority);
//! let poser = Leaf::legacy_runner("0b2e9a6c").dns_name("localhost").issued_by(&authority);
//! let wrong = Leaf::runner("r7").usages(&[Usage::Server]).issued_by(&authority);
//! # let _ = (expired, poser, wrong);
//! ```

#![expect(clippy::expect_used, reason = "test support")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, SanType,
};
use telemetry_proto::SystemClock;

use crate::authority::{ClusterAuthority, Issued, KeyKind, params};
use crate::cluster::ClusterName;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// A new root authority of the cluster `test`.
#[must_use]
pub fn authority() -> ClusterAuthority {
    ClusterAuthority::create(&cluster(), KeyKind::Ed25519).expect("an authority is created")
}

/// A request (PKCS #10, DER) of this common name for a key on P-384, which is not certified.
#[must_use]
pub fn p384_request(common_name: &str) -> Vec<u8> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("a key is made");
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.serialize_request(&key).expect("a request is made").der().to_vec()
}

/// A root of the cluster `test` that may sign authorities, and an intermediate below it. What the intermediate issues
/// has it in the chain; the root is what to trust.
#[derive(Debug)]
pub struct Hierarchy {
    /// The root.
    pub root: ClusterAuthority,
    /// The authority that issues leaves.
    pub intermediate: ClusterAuthority,
}

impl Hierarchy {
    /// A new root and intermediate.
    #[must_use]
    pub fn new(kind: KeyKind) -> Self {
        let now = SystemTime::now();
        let cluster = cluster();
        let params = params::authority(&cluster, now, 1).expect("parameters of a root");
        let root =
            ClusterAuthority::create_from(&cluster, params, kind, Arc::new(SystemClock)).expect("a root is created");
        let params = params::authority(&cluster, now, 0).expect("parameters of an intermediate");
        let key = params::generate(kind).expect("a key is generated");
        let issued = root.sign(&params, &key).expect("the root signs");
        let intermediate = ClusterAuthority::load(&issued.chain_pem, &issued.key_pem).expect("the intermediate loads");
        Self { root, intermediate }
    }
}

/// The kinds of keys that others may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestKey {
    /// Ed25519.
    Ed25519,
    /// ECDSA on P-256.
    P256,
    /// ECDSA on P-384.
    P384,
    /// RSA of 2048 bits. Slow to make.
    Rsa2048,
}

/// An extended key usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// clientAuth.
    Client,
    /// serverAuth.
    Server,
}

/// A leaf to be issued, of any shape.
#[derive(Debug, Clone)]
pub struct Leaf {
    common_name: Option<String>,
    organization: Option<String>,
    uris: Vec<Uri>,
    dns_names: Vec<String>,
    ip_addresses: Vec<IpAddr>,
    usages: Vec<Usage>,
    key: TestKey,
    validity: (SystemTime, SystemTime),
    is_authority: bool,
}

/// A SAN URI, before the cluster is known.
#[derive(Debug, Clone)]
enum Uri {
    Runner(String),
    Given(String),
}

impl Leaf {
    /// A leaf without names and usages, with an Ed25519 key, valid since an hour ago for a day.
    #[must_use]
    pub fn blank() -> Self {
        let now = SystemTime::now();
        Self {
            common_name: None,
            organization: None,
            uris: Vec::new(),
            dns_names: Vec::new(),
            ip_addresses: Vec::new(),
            usages: Vec::new(),
            key: TestKey::Ed25519,
            validity: (now - HOUR, now + 24 * HOUR),
            is_authority: false,
        }
    }

    /// A runner's leaf as we issue it. The ID is not checked.
    #[must_use]
    pub fn runner(id: &str) -> Self {
        let mut leaf = Self::blank().common_name(&format!("runner-{id}")).usages(&[Usage::Client]);
        leaf.uris.push(Uri::Runner(id.to_owned()));
        leaf
    }

    /// A runner's leaf as older issuers make it: CN `runner-ID`, no SAN URI, both usages. They let the runner choose
    /// DNS names: see [`dns_name`](Self::dns_name).
    #[must_use]
    pub fn legacy_runner(id: &str) -> Self {
        Self::blank().common_name(&format!("runner-{id}")).usages(&[Usage::Server, Usage::Client])
    }

    /// A coordinator's leaf as we issue it.
    #[must_use]
    pub fn coordinator(dns_name: &str) -> Self {
        Self::blank().common_name("coordinator").dns_name(dns_name).usages(&[Usage::Server])
    }

    /// With this CN.
    #[must_use]
    pub fn common_name(mut self, name: &str) -> Self {
        self.common_name = Some(name.to_owned());
        self
    }

    /// Without a CN.
    #[must_use]
    pub fn no_common_name(mut self) -> Self {
        self.common_name = None;
        self
    }

    /// With this organisation (O).
    #[must_use]
    pub fn organization(mut self, organization: &str) -> Self {
        self.organization = Some(organization.to_owned());
        self
    }

    /// With this SAN URI, beside those that it has.
    #[must_use]
    pub fn uri(mut self, uri: &str) -> Self {
        self.uris.push(Uri::Given(uri.to_owned()));
        self
    }

    /// With this SAN DNS name, beside those that it has.
    #[must_use]
    pub fn dns_name(mut self, name: &str) -> Self {
        self.dns_names.push(name.to_owned());
        self
    }

    /// With this SAN IP address, beside those that it has.
    #[must_use]
    pub fn ip_address(mut self, address: IpAddr) -> Self {
        self.ip_addresses.push(address);
        self
    }

    /// With exactly these extended key usages. None: the extension is absent.
    #[must_use]
    pub fn usages(mut self, usages: &[Usage]) -> Self {
        self.usages = usages.to_vec();
        self
    }

    /// With a key of this kind.
    #[must_use]
    pub fn key(mut self, key: TestKey) -> Self {
        self.key = key;
        self
    }

    /// Valid from and until these times.
    #[must_use]
    pub fn valid(mut self, from: SystemTime, until: SystemTime) -> Self {
        self.validity = (from, until);
        self
    }

    /// Over since an hour ago.
    #[must_use]
    pub fn expired(self) -> Self {
        let now = SystemTime::now();
        self.valid(now - 24 * HOUR, now - HOUR)
    }

    /// Valid in an hour.
    #[must_use]
    pub fn not_yet_valid(self) -> Self {
        let now = SystemTime::now();
        self.valid(now + HOUR, now + 24 * HOUR)
    }

    /// An authority's certificate with a leaf's names.
    #[must_use]
    pub fn as_authority(mut self) -> Self {
        self.is_authority = true;
        self
    }

    /// Issues it.
    ///
    /// # Panics
    /// When a name cannot be expressed.
    #[must_use]
    pub fn issued_by(&self, authority: &ClusterAuthority) -> Issued {
        authority.sign(&self.params(authority.cluster()), &generate(self.key)).expect("the authority signs")
    }

    fn params(&self, cluster: &ClusterName) -> CertificateParams {
        let (from, until) = self.validity;
        let mut params = params::leaf(SystemTime::now(), HOUR, params::date(SystemTime::now() + HOUR).expect("a date"))
            .expect("parameters of a leaf");
        (params.not_before, params.not_after) =
            (params::date(from).expect("a date"), params::date(until).expect("a date"));
        if let Some(organization) = &self.organization {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        if let Some(name) = &self.common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        let uris = self.uris.iter().map(|uri| match uri {
            Uri::Runner(id) => format!("spiffe://{cluster}/runner/{id}"),
            Uri::Given(uri) => uri.clone(),
        });
        let uris = uris.map(|uri| SanType::URI(uri.try_into().expect("a URI is ASCII")));
        let dns_names =
            self.dns_names.iter().map(|name| SanType::DnsName(name.as_str().try_into().expect("a DNS name is ASCII")));
        let addresses = self.ip_addresses.iter().copied().map(SanType::IpAddress);
        params.subject_alt_names = uris.chain(dns_names).chain(addresses).collect();
        params.extended_key_usages = self
            .usages
            .iter()
            .map(|usage| match usage {
                Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
                Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
            })
            .collect();
        if self.is_authority {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages.push(KeyUsagePurpose::KeyCertSign);
        }
        params
    }
}

fn cluster() -> ClusterName {
    ClusterName::new("test").expect("a name")
}

fn generate(key: TestKey) -> KeyPair {
    let algorithm = match key {
        TestKey::Ed25519 => return params::ed25519().expect("a key is generated"),
        TestKey::P256 => &PKCS_ECDSA_P256_SHA256,
        TestKey::P384 => &PKCS_ECDSA_P384_SHA384,
        TestKey::Rsa2048 => &PKCS_RSA_SHA256,
    };
    KeyPair::generate_for(algorithm).expect("a key is generated")
}
