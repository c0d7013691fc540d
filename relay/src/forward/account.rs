//! Accounts of the stores.

use std::fmt;
use std::str::FromStr;

/// An account of a store that keeps tenants apart: `ACCOUNT` or `ACCOUNT:PROJECT`, two numbers of 32 bits.
///
/// `0:0` is where a store files what comes without an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Account {
    /// `AccountID`.
    pub account: u32,
    /// `ProjectID`.
    pub project: u32,
}

/// The text is no account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected ACCOUNT or ACCOUNT:PROJECT, each a decimal number from 0 to 4294967295 without leading zeros")]
pub struct AccountError;

impl FromStr for Account {
    type Err = AccountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (account, project) = match text.split_once(':') {
            Some((account, project)) => (number(account)?, number(project)?),
            None => (number(text)?, 0),
        };
        Ok(Self { account, project })
    }
}

/// `u32::from_str` takes a sign and leading zeros, which other readers may take for something else.
fn number(text: &str) -> Result<u32, AccountError> {
    let is_canonical = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if is_canonical { text.parse().map_err(|_| AccountError) } else { Err(AccountError) }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.account, self.project)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_read_one_way_only() {
        for (text, shown) in
            [("0", "0:0"), ("12", "12:0"), ("12:3", "12:3"), ("4294967295:4294967295", "4294967295:4294967295")]
        {
            assert_eq!(text.parse::<Account>().unwrap().to_string(), shown);
        }
        for bad in [
            "",
            ":",
            "12:",
            ":3",
            "-1",
            "+1",
            " 1",
            "1 ",
            "01",
            "1:02",
            "0x1f",
            "1e3",
            "4294967296",
            "1:4294967296",
            "1:2:3",
            "multitenant",
            "1_000",
            "١",
        ] {
            assert_eq!(bad.parse::<Account>(), Err(AccountError), "{bad:?}");
        }
    }
}
