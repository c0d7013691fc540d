//! What names a tenant to the stores.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::utf8_percent_encode;

use super::Account;
use super::target::ARGUMENT;

/// The headers by which VictoriaLogs and VictoriaTraces know the account. The name's case means nothing to them.
const ACCOUNT_ID: HeaderName = HeaderName::from_static("accountid");
const PROJECT_ID: HeaderName = HeaderName::from_static("projectid");

/// What names a tenant to the stores, written once and used for each of its batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantPin {
    /// The tenant's name, ready for a query.
    pub(super) label: String,
    account: Option<AccountPin>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct AccountPin {
    path: String,
    account_id: HeaderValue,
    project_id: HeaderValue,
}

impl TenantPin {
    /// The pin of the tenant with this name and account.
    #[must_use]
    pub fn new(name: &str, account: Option<Account>) -> Self {
        Self {
            label: utf8_percent_encode(name, ARGUMENT).to_string(),
            account: account.map(|account| AccountPin {
                path: account.to_string(),
                account_id: HeaderValue::from(account.account),
                project_id: HeaderValue::from(account.project),
            }),
        }
    }

    /// `ACCOUNT:PROJECT`.
    pub(super) fn account_path(&self) -> Option<&str> {
        self.account.as_ref().map(|pin| pin.path.as_str())
    }

    /// Sets the account's headers; whether there is an account.
    pub(super) fn set_headers(&self, headers: &mut HeaderMap) -> bool {
        let Some(pin) = &self.account else { return false };
        headers.insert(ACCOUNT_ID, pin.account_id.clone());
        headers.insert(PROJECT_ID, pin.project_id.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_one_header_each() {
        let pin = TenantPin::new("acme.eu", Some(Account { account: 12, project: 3 }));
        let mut headers = HeaderMap::new();
        headers.append("AccountID", HeaderValue::from_static("7"));
        headers.append("accountid", HeaderValue::from_static("8"));
        assert!(pin.set_headers(&mut headers));
        let values = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
        assert_eq!((values("AccountID"), values("ProjectID")), (vec![&b"12"[..]], vec![&b"3"[..]]));
        assert_eq!((pin.label.as_str(), pin.account_path()), ("acme.eu", Some("12:3")));
        assert!(!TenantPin::new("acme", None).set_headers(&mut headers));
    }
}
