//! Where a coordinator is.

use std::fmt;
use std::str::FromStr;

use http::uri::Authority;

/// The port of a coordinator that is given without one.
const DEFAULT_PORT: u16 = 443;

/// The address of a coordinator: `HOST` or `HOST:PORT`. The host is also the name that its certificate must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Coordinator {
    authority: Authority,
    port: u16,
}

/// The text is no address of a coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the address of a coordinator: expected HOST or HOST:PORT, without scheme and path")]
pub struct CoordinatorError;

impl Coordinator {
    /// The name or address without brackets.
    #[must_use]
    pub(super) fn host(&self) -> &str {
        self.authority.host().trim_matches(['[', ']'])
    }

    /// The UDP port.
    #[must_use]
    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    pub(super) const fn authority(&self) -> &Authority {
        &self.authority
    }
}

impl FromStr for Coordinator {
    type Err = CoordinatorError;

    fn from_str(text: &str) -> Result<Self, CoordinatorError> {
        let authority: Authority = text.parse().map_err(|_| CoordinatorError)?;
        let after_host = authority.as_str().strip_prefix(authority.host()).ok_or(CoordinatorError)?;
        let port = match after_host.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| CoordinatorError)?,
            None if after_host.is_empty() => DEFAULT_PORT,
            None => return Err(CoordinatorError),
        };
        let coordinator = Self { authority, port };
        if coordinator.host().is_empty() || port == 0 { Err(CoordinatorError) } else { Ok(coordinator) }
    }
}

impl fmt::Display for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.authority, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_and_without_ports_are_addresses() {
        for (text, host, port) in [
            ("c.example", "c.example", 443),
            ("c.example:8443", "c.example", 8443),
            ("127.0.0.1:1", "127.0.0.1", 1),
            ("[::1]:8443", "::1", 8443),
            ("[::1]", "::1", 443),
        ] {
            let coordinator: Coordinator = text.parse().unwrap();
            assert_eq!((coordinator.host(), coordinator.port()), (host, port));
            assert_eq!(coordinator.to_string(), text);
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in ["", ":1", "c:", "c:0", "c:65536", "c:x", "https://c", "c/path", "user@c:1", "::1", "a b", "[]:1"] {
            assert_eq!(text.parse::<Coordinator>(), Err(CoordinatorError), "{text}");
        }
    }
}
