//! Where a store listens.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;
use percent_encoding::percent_decode_str;

/// Where a store listens: `http://HOST:PORT[/PREFIX]` or `unix:/PATH[:/PREFIX]`.
///
/// The prefix is what the store was given as `-http.pathPrefix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreAddress {
    pub(super) endpoint: Endpoint,
    pub(super) prefix: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `HOST:PORT`.
    Tcp(String),
    Unix(PathBuf),
}

/// The text is no address of a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Another scheme than `http` or `unix`.
    #[error("{0:?} is no address of a store: expected http://HOST:PORT or unix:/PATH")]
    Unreadable(String),
    /// A query or credentials in the URL: the relay sets every argument itself.
    #[error("{0:?} holds a query or credentials; the relay sets every argument of the store itself")]
    Arguments(String),
    /// A prefix under which a cluster takes the tenant from the body.
    #[error("{0:?} leads to the form of a cluster in which the body chooses the tenant; it can't be used")]
    Multitenant(String),
    /// A port is missing.
    #[error("{0:?} names no port")]
    NoPort(String),
}

impl StoreAddress {
    /// Whether only this machine can reach the address: a Unix socket, `localhost` or a loopback IP. The stores have no
    /// authentication of their own, so anything else needs the operator's explicit word.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match &self.endpoint {
            Endpoint::Unix(_) => true,
            Endpoint::Tcp(authority) => {
                let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }
}

impl From<SocketAddr> for StoreAddress {
    fn from(address: SocketAddr) -> Self {
        Self { endpoint: Endpoint::Tcp(address.to_string()), prefix: String::new() }
    }
}

impl FromStr for StoreAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unreadable = || AddressError::Unreadable(text.to_owned());
        if let Some(rest) = text.strip_prefix("unix:") {
            let (path, prefix) = rest.split_once(":/").map_or((rest, ""), |(path, _)| (path, &rest[path.len() + 1..]));
            if !path.starts_with('/') {
                return Err(unreadable());
            }
            let prefix = parse_prefix(text, prefix)?;
            return Ok(Self { endpoint: Endpoint::Unix(path.into()), prefix });
        }
        let uri: Uri = text.parse().map_err(|_| unreadable())?;
        let authority = uri.authority().ok_or_else(unreadable)?;
        if uri.scheme_str() != Some("http") {
            return Err(unreadable());
        }
        if uri.query().is_some() || authority.as_str().contains('@') {
            return Err(AddressError::Arguments(text.to_owned()));
        }
        if authority.port_u16().is_none() {
            return Err(AddressError::NoPort(text.to_owned()));
        }
        let prefix = parse_prefix(text, uri.path())?;
        Ok(Self { endpoint: Endpoint::Tcp(authority.as_str().to_owned()), prefix })
    }
}

/// The stores decode a path before they look at it.
fn parse_prefix(text: &str, prefix: &str) -> Result<String, AddressError> {
    let decoded = percent_decode_str(prefix).decode_utf8_lossy();
    if decoded.to_ascii_lowercase().contains("multitenant") {
        return Err(AddressError::Multitenant(text.to_owned()));
    }
    Ok(prefix.trim_end_matches('/').to_owned())
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.endpoint {
            Endpoint::Tcp(authority) => write!(f, "http://{authority}{}", self.prefix),
            Endpoint::Unix(path) if self.prefix.is_empty() => write!(f, "unix:{}", path.display()),
            Endpoint::Unix(path) => write!(f, "unix:{}:{}", path.display(), self.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["http://127.0.0.1:8428", "http://[::1]:9428/vl", "unix:/run/vm.sock", "unix:/run/vm.sock:/p"] {
            let address: StoreAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert!(address.is_loopback());
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for text in ["http://10.0.0.1:8428", "http://store.example:1", "http://localhost.example:1", "http://[::]:1"] {
            assert!(!text.parse::<StoreAddress>().unwrap().is_loopback(), "{text}");
        }
        assert!("http://LOCALHOST:1".parse::<StoreAddress>().unwrap().is_loopback());
    }

    #[test]
    fn the_form_in_which_the_body_chooses_the_tenant_cant_be_configured() {
        for text in [
            "http://h:1/insert/multitenant/prometheus",
            "http://h:1/insert/%6dultitenant/prometheus",
            "http://h:1/insert/MultiTenant:0",
            "unix:/run/vm.sock:/insert/multitenant",
        ] {
            assert!(matches!(text.parse::<StoreAddress>(), Err(AddressError::Multitenant(_))), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "127.0.0.1:8428", "https://h:1", "unix:relative", "http://"] {
            assert!(matches!(text.parse::<StoreAddress>(), Err(AddressError::Unreadable(_))), "{text}");
        }
        assert!(matches!("http://h".parse::<StoreAddress>(), Err(AddressError::NoPort(_))));
        for text in ["http://h:1?extra_label=a=b", "http://u:p@h:1"] {
            assert!(matches!(text.parse::<StoreAddress>(), Err(AddressError::Arguments(_))), "{text}");
        }
    }
}
