//! Where tokens come from.
//!
//! A [`TokenSource`] gives them to the requests; [`LateTokenSource`] is the one that may be without an issuer at first.
//! A [`TokenIssuer`] mints them: the coordinator over HTTP/3 ([`RemoteIssuer`]), a file ([`FileIssuer`]), or anything else.

mod file;
mod issuer;
mod late;
mod remote;
mod secret;
mod skew;
mod source;

pub use file::FileIssuer;
pub use issuer::{IssueError, IssuedToken, TokenIssuer};
pub use late::{LateTokenSettings, LateTokenSource};
pub use remote::RemoteIssuer;
pub use secret::{InvalidToken, Token};
pub use source::{TokenError, TokenSource};
