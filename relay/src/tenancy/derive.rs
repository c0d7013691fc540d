//! Accounts that nobody had to give.

use aws_lc_rs::digest::{Context, SHA256};

use crate::forward::Account;

/// What the hash begins with: another use of the same names, or another way to derive, has another beginning.
const DOMAIN: &[u8] = b"miren-tenant-account-v1\0";

/// The account of a namespace and its UID: the same on every machine and for ever.
///
/// SHA-256 of `miren-tenant-account-v1`, a zero byte, and then of namespace and UID, each with its length in bytes before it (32
/// bits, big-endian). The first four bytes of the digest are the account, the next four the project (big-endian). Account 0
/// is where a store files what comes without one: a digest that says 0 is read on from its next eight bytes.
#[must_use]
pub fn derived_account(namespace: &str, uid: &str) -> Account {
    let mut hash = Context::new(&SHA256);
    hash.update(DOMAIN);
    for part in [namespace, uid] {
        hash.update(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(part.as_bytes());
    }
    account_of(hash.finish().as_ref())
}

fn account_of(digest: &[u8]) -> Account {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number: u32, byte| (number << 8) | u32::from(*byte));
    digest
        .chunks_exact(8)
        .map(|chunk| Account { account: number(&chunk[..4]), project: number(&chunk[4..]) })
        .find(|account| account.account != 0)
        .unwrap_or(Account { account: 1, project: 0 })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn derived_accounts_are_fixed_for_ever() {
        for (namespace, uid, account) in [
            ("", "", "2728389896:2264047158"),
            ("acme", "6f1c1d0e-8a1b-4a55-9a0f-0d7f7a4f8c11", "1486940264:1160150134"),
            ("acme", "6f1c1d0e-8a1b-4a55-9a0f-0d7f7a4f8c12", "458649580:4088895666"),
            ("größe", "1", "2973926420:2864250326"),
        ] {
            assert_eq!(derived_account(namespace, uid).to_string(), account, "{namespace} {uid}");
        }
    }

    #[test]
    fn where_namespace_ends_and_uid_begins_makes_a_difference() {
        let accounts: HashSet<_> =
            [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")].map(|(n, u)| derived_account(n, u)).into();
        assert_eq!(accounts.len(), 4);
    }

    #[test]
    fn account_0_is_never_derived() {
        let mut digest = [0; 32];
        digest[4..8].copy_from_slice(&[0, 0, 0, 9]);
        digest[12] = 7;
        assert_eq!(account_of(&digest).to_string(), "1:0");
        digest[11] = 5;
        assert_eq!(account_of(&digest), Account { account: 5, project: 7 << 24 });
        assert_eq!(account_of(&[0; 32]).to_string(), "1:0");
    }
}
