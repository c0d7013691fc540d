//! Certificates that end.

use std::time::{Duration, SystemTime};

use super::status::{CertificateStatus, unix};
use crate::gate::Identity;

/// A certificate that ends sooner is worth a word.
pub const ENDS_SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// How often the log says so.
pub(super) const WARN_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// More runners than this are counted, not named.
const MAX_NAMED: usize = 5;

/// Whether a peer's certificate should have been renewed by now. A runner renews its own at two thirds of its life.
pub(super) fn ends_soon(peer: &Identity, now: SystemTime) -> bool {
    let soon = match peer {
        Identity::Runner(runner) => {
            ENDS_SOON.min(runner.not_after.duration_since(runner.not_before).unwrap_or_default() / 4)
        }
        Identity::Writer(_) => ENDS_SOON,
    };
    peer.not_after().duration_since(now).unwrap_or_default() < soon
}

/// What ends soon of the relay's own.
pub(super) fn warnings(
    coordinator: &CertificateStatus,
    authority: Option<&CertificateStatus>,
    now: SystemTime,
) -> Vec<String> {
    let own =
        [(Some(coordinator), "the coordinator's certificate"), (authority, "the authority that renews certificates")];
    let warning = |(status, what): (Option<&CertificateStatus>, &str)| {
        let left = status?.expires_at.saturating_sub(unix(now));
        match left {
            0 => Some(format!("{what} has ended")),
            _ if left < ENDS_SOON.as_secs() => Some(format!("{what} ends in {} days", left / 86_400)),
            _ => None,
        }
    };
    own.into_iter().filter_map(warning).collect()
}

/// What is to be said of connected runners whose certificates end soon.
pub(super) fn of_runners(ending: &[&str]) -> Option<String> {
    let named = ending.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
    match ending.len() {
        0 => None,
        n if n > MAX_NAMED => Some(format!("certificates of {n} runners end soon, among them {named}")),
        _ => Some(format!("certificates of runners end soon: {named}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::fixtures::peer;

    #[test]
    fn what_ends_soon_is_said_and_what_does_not_is_not() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let ends_in =
            |days: u64| CertificateStatus { subject: "c".to_owned(), expires_at: 1_000_000_000 + days * 86_400 };
        assert!(warnings(&ends_in(15), Some(&ends_in(400)), now).is_empty());
        assert_eq!(warnings(&ends_in(0), Some(&ends_in(3)), now).len(), 2);
        assert_eq!(of_runners(&[]), None);
        assert_eq!(of_runners(&["r1", "r2"]).unwrap(), "certificates of runners end soon: r1, r2");
        assert!(of_runners(&["r"; 9]).unwrap().contains("9 runners"));
    }

    #[test]
    fn a_short_life_is_judged_by_its_quarter() {
        // The fixture's certificate lives two hours.
        let identity = peer("r7").identity().clone();
        let before_end = |seconds| identity.not_after() - Duration::from_secs(seconds);
        assert!(!ends_soon(&identity, before_end(1_801)) && ends_soon(&identity, before_end(1_799)));
        assert!(ends_soon(&identity, identity.not_after() + Duration::from_secs(1)));
    }
}
