//! Whether runners' writes can succeed.

use std::time::SystemTime;

use super::status::{CertificateStatus, StoreStatus, unix};

/// What is in the way; nothing when the relay is ready.
pub(super) fn obstacles(
    draining: bool,
    certificate: &CertificateStatus,
    stores: &[StoreStatus],
    now: SystemTime,
) -> Vec<String> {
    let mut obstacles = Vec::new();
    if draining {
        obstacles.push("the relay is shutting down".to_owned());
    }
    if certificate.expires_at <= unix(now) {
        obstacles.push("the coordinator's certificate has expired".to_owned());
    }
    for store in stores {
        match store.up {
            Some(true) => {}
            Some(false) => {
                obstacles.push(format!("the store for {} does not answer at {}", store.signal, store.address))
            }
            None => obstacles.push(format!("the store for {} has not been asked yet", store.signal)),
        }
    }
    obstacles
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_obstacle_is_named() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let certificate = |expires_at| CertificateStatus { subject: "c".to_owned(), expires_at };
        let store = |up| StoreStatus { signal: "logs", address: "a".to_owned(), up, latency_seconds: None };
        assert!(obstacles(false, &certificate(101), &[store(Some(true))], now).is_empty());
        let all = obstacles(true, &certificate(100), &[store(Some(false)), store(None)], now);
        assert_eq!(all.len(), 4, "{all:?}");
    }
}
