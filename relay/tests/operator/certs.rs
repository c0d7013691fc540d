//! `certs show`, `renew` and `revoke`.
