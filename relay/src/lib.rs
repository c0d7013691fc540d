//! The coordinator's side: authenticated telemetry writes over HTTP/3 into loopback stores.

pub mod gate;
pub mod issuer;
