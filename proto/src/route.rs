//! The routes of the runner listener, matched on the exact bytes of the path.

use http::Method;

use crate::Signal;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// `POST` a batch of this signal.
    Write(Signal),
    /// `GET /_telemetry/policy`: what the coordinator wants from a runner.
    Policy,
    /// `POST /_identity/token`: mint a workload token for the certificate that asks.
    MintToken,
    /// `POST /_identity/certificate`: certify a new key of the runner that asks.
    RenewCertificate,
}

/// Why a request matches no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// Nothing lives at this path.
    #[error("no such path")]
    NoSuchPath,
    /// The path exists, but takes another method.
    #[error("method not allowed, only {allow}")]
    MethodNotAllowed {
        /// The one method that the path takes: the value of the `Allow` header.
        allow: &'static str,
    },
}

impl Route {
    /// Every route.
    pub const ALL: [Self; 6] = [
        Self::Write(Signal::Metrics),
        Self::Write(Signal::Logs),
        Self::Write(Signal::Traces),
        Self::Policy,
        Self::MintToken,
        Self::RenewCertificate,
    ];

    /// Every path of ours starts with one of these; a service mounted beside the relay must not claim them.
    pub const RESERVED_PREFIXES: [&'static str; 2] = ["/_telemetry", "/_identity"];

    /// The exact path.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Write(signal) => signal.write_path(),
            Self::Policy => "/_telemetry/policy",
            Self::MintToken => "/_identity/token",
            Self::RenewCertificate => "/_identity/certificate",
        }
    }

    /// The one method that the path takes.
    #[must_use]
    pub const fn method(self) -> Method {
        match self {
            Self::Write(_) | Self::MintToken | Self::RenewCertificate => Method::POST,
            Self::Policy => Method::GET,
        }
    }

    /// Finds the route of a request. There is no normalisation, no percent-decoding, no trailing slash and no prefix:
    /// the stores accept variants such as `//`, and none of those may get past a pinned path.
    ///
    /// # Errors
    /// [`MatchError::NoSuchPath`] is a 404, [`MatchError::MethodNotAllowed`] a 405.
    pub fn find(method: &Method, path: &str) -> Result<Self, MatchError> {
        let route = Self::ALL.into_iter().find(|route| route.path() == path).ok_or(MatchError::NoSuchPath)?;
        if *method == route.method() {
            Ok(route)
        } else {
            let allow = if route.method() == Method::GET { "GET" } else { "POST" };
            Err(MatchError::MethodNotAllowed { allow })
        }
    }
}

/// The base URL for a metrics writer: `https://COORDINATOR/_telemetry/metrics`. `coordinator` is `HOST` or `HOST:PORT`.
#[must_use]
pub fn metrics_url(coordinator: &str) -> String {
    base_url(coordinator, Signal::Metrics)
}

/// The base URL for a log writer: `https://COORDINATOR/_telemetry/logs`.
#[must_use]
pub fn logs_url(coordinator: &str) -> String {
    base_url(coordinator, Signal::Logs)
}

/// The base URL for a span writer: `https://COORDINATOR/_telemetry/traces`.
#[must_use]
pub fn traces_url(coordinator: &str) -> String {
    base_url(coordinator, Signal::Traces)
}

fn base_url(coordinator: &str, signal: Signal) -> String {
    format!("https://{coordinator}{}", signal.base_path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_route_is_found_by_its_own_path_and_method_only() {
        for route in Route::ALL {
            assert_eq!(Route::find(&route.method(), route.path()), Ok(route));
            assert!(matches!(Route::find(&Method::DELETE, route.path()), Err(MatchError::MethodNotAllowed { .. })));
            assert!(Route::RESERVED_PREFIXES.iter().any(|prefix| route.path().starts_with(prefix)));
        }
        assert_eq!(
            Route::find(&Method::GET, Signal::Metrics.write_path()),
            Err(MatchError::MethodNotAllowed { allow: "POST" })
        );
    }

    #[test]
    fn variants_of_a_path_match_nothing() {
        let path = Signal::Metrics.write_path();
        let variants = [
            format!("{path}/"),
            format!("/{path}"),
            path.replace("/api", "//api"),
            path.replace("/api", "%2fapi"),
            path.replace("/import", "/./import"),
            path.replace("/import", "/x/../import"),
            path.to_uppercase(),
            format!("{path}/metrics/job/x"),
            "/api/v1/import/prometheus".to_owned(),
            "/_telemetry/metrics/api/v1/query".to_owned(),
            "/_telemetry/metrics/api/v1/admin/tsdb/delete_series".to_owned(),
            String::new(),
        ];
        for variant in variants {
            assert_eq!(Route::find(&Method::POST, &variant), Err(MatchError::NoSuchPath), "{variant}");
        }
    }

    #[test]
    fn urls_are_bases() {
        assert_eq!(metrics_url("c.example:8443"), "https://c.example:8443/_telemetry/metrics");
        assert_eq!(logs_url("[::1]:8443"), "https://[::1]:8443/_telemetry/logs");
        assert_eq!(traces_url("c"), "https://c/_telemetry/traces");
    }
}
