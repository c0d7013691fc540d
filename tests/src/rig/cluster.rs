//! The cluster's identities, made anew for every rig.

use std::net::{IpAddr, Ipv4Addr};

use telemetry_certs::{
    AuthorityError, ClusterAuthority, ClusterName, CoordinatorRequest, Credentials, Issued, KeyKind, Roots,
    RunnerRequest,
};
use telemetry_proto::RunnerId;

use super::RigError;

/// An authority, the coordinator's certificate, and who is trusted.
#[derive(Debug)]
pub struct Cluster {
    authority: ClusterAuthority,
    root_pem: String,
    coordinator: Issued,
    roots: Roots,
}

impl Cluster {
    /// A new cluster. Its coordinator is `localhost`.
    ///
    /// # Errors
    /// The certificates can't be made.
    pub fn new(name: &str) -> Result<Self, RigError> {
        let name = ClusterName::new(name).map_err(|error| RigError::Setup(error.to_string()))?;
        let authority = ClusterAuthority::create(&name, KeyKind::Ed25519)?;
        let root_pem = authority.certificate_pem();
        Self::of(authority, &root_pem)
    }

    /// The cluster of an authority, which may stand below the root that is trusted. Its coordinator is `localhost`.
    ///
    /// # Errors
    /// The certificates can't be made.
    pub fn of(authority: ClusterAuthority, root_pem: &str) -> Result<Self, RigError> {
        let mut request = CoordinatorRequest::new(["localhost"]);
        request.ip_addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let coordinator = authority.issue_coordinator(&request)?;
        let roots = Roots::from_pem(root_pem.as_bytes())?;
        Ok(Self { authority, root_pem: root_pem.to_owned(), coordinator, roots })
    }

    /// The authority, to issue what a test needs.
    #[must_use]
    pub const fn authority(&self) -> &ClusterAuthority {
        &self.authority
    }

    /// The coordinator's certificate and key.
    #[must_use]
    pub const fn coordinator(&self) -> &Issued {
        &self.coordinator
    }

    /// The root that is trusted, as PEM.
    #[must_use]
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// Who is trusted: the root alone.
    #[must_use]
    pub const fn roots(&self) -> &Roots {
        &self.roots
    }

    /// A certificate for a runner.
    ///
    /// # Errors
    /// It can't be issued.
    pub fn issue_runner(&self, runner: &RunnerId) -> Result<Credentials, RigError> {
        Ok(self.issue(runner)?.credentials()?)
    }

    /// A certificate for a runner, as PEM.
    ///
    /// # Errors
    /// It can't be issued.
    pub fn issue(&self, runner: &RunnerId) -> Result<Issued, AuthorityError> {
        self.authority.issue_runner(&RunnerRequest::new(runner.clone()))
    }
}
