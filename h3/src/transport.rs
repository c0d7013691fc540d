//! Bounded settings for quinn.
//!
//! quinn's defaults are for peers that are trusted: a connection may make us hold any amount of data. Here everything that a
//! peer can make grow has a bound.

use std::time::Duration;

use quinn::{IdleTimeout, TransportConfig, VarInt};

/// A packet is taken as lost once this many later ones are acknowledged. The 3 of RFC 9002 section 6.1.1 take every packet that is
/// overtaken as lost, and halve the window for it; a link that reorders as one of netem does then carries a tenth.
const PACKET_THRESHOLD: u32 = 64;

/// The same by time, in round trips, for the 9/8 of RFC 9002 section 6.1.2. With both, real loss costs no more than before:
/// docs/performance.md has the figures.
const TIME_THRESHOLD: f32 = 4.0;

/// What one QUIC connection may use. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportLimits {
    /// How many requests a client may have under way: 100 by default, the least that RFC 9114 section 6.1 recommends. An
    /// idle connection costs about 80 KiB with it (measured, both ends together; 1,024 cost twice that). No effect on a
    /// client, since servers open no such streams in HTTP/3.
    pub max_requests: u32,
    /// How many unidirectional streams a peer may have open: 8 by default. HTTP/3 uses three.
    pub max_uni_streams: u32,
    /// How much of one stream a peer may send before someone reads it: 1 MiB by default, which carries 80 Mbit/s over a
    /// round trip of 100 ms.
    pub stream_window: u32,
    /// The same for all streams of a connection together: 8 MiB by default. Times the number of connections, this is what
    /// hostile peers together can make us hold.
    pub connection_window: u32,
    /// How much may be sent and not yet acknowledged: 4 MiB by default. It is the memory that a peer costs that never
    /// acknowledges anything.
    pub send_window: u32,
    /// How long a connection may be silent: 30 s by default. The smaller value of the two ends counts.
    pub idle_timeout: Duration,
    /// How often a client breaks the silence: every 10 s by default, so that it survives the loss of two such packets and
    /// the short memory of address translators. Servers never do: a dead client is to be forgotten.
    pub keep_alive: Duration,
    /// Whether several packets are handed to the kernel at once (GSO): yes by default, it doubles the throughput. A switch
    /// for network cards that do it wrong.
    pub segmentation_offload: bool,
}

impl Default for TransportLimits {
    fn default() -> Self {
        Self {
            max_requests: 100,
            max_uni_streams: 8,
            stream_window: 1024 * 1024,
            connection_window: 8 * 1024 * 1024,
            send_window: 4 * 1024 * 1024,
            idle_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
            segmentation_offload: true,
        }
    }
}

/// The settings of a server.
#[must_use]
pub fn server(limits: &TransportLimits) -> TransportConfig {
    let mut config = common(limits);
    config.max_concurrent_bidi_streams(limits.max_requests.into());
    config
}

/// The settings of a client.
#[must_use]
pub fn client(limits: &TransportLimits) -> TransportConfig {
    let mut config = common(limits);
    config.max_concurrent_bidi_streams(VarInt::from_u32(0)).keep_alive_interval(Some(limits.keep_alive));
    config
}

fn common(limits: &TransportLimits) -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_uni_streams(limits.max_uni_streams.into())
        .stream_receive_window(limits.stream_window.into())
        .receive_window(limits.connection_window.into())
        .send_window(limits.send_window.into())
        .max_idle_timeout(Some(idle_timeout(limits.idle_timeout)))
        // The smallest packets that QUIC allows pass every tunnel; larger ones are found out by probing.
        .initial_mtu(1200)
        .packet_threshold(PACKET_THRESHOLD)
        .time_threshold(TIME_THRESHOLD)
        .datagram_receive_buffer_size(None)
        .datagram_send_buffer_size(0)
        .enable_segmentation_offload(limits.segmentation_offload);
    config
}

/// In milliseconds, as QUIC has it. More than 49 days is 49 days.
fn idle_timeout(timeout: Duration) -> IdleTimeout {
    VarInt::from_u32(u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// quinn lets nobody read its settings but through `Debug`.
    fn setting(config: &TransportConfig, name: &str) -> String {
        let all = format!("{config:?}");
        let value = all.split(&format!(" {name}: ")).nth(1).unwrap();
        value.split(", ").next().unwrap().to_owned()
    }

    #[test]
    fn everything_that_a_peer_can_make_grow_has_a_bound() {
        let limits = TransportLimits::default();
        for config in [server(&limits), client(&limits)] {
            assert_eq!(setting(&config, "receive_window"), "8388608");
            assert_eq!(setting(&config, "stream_receive_window"), "1048576");
            assert_eq!(setting(&config, "send_window"), "4194304");
            assert_eq!(setting(&config, "max_concurrent_uni_streams"), "8");
            assert_eq!(setting(&config, "datagram_receive_buffer_size"), "None");
            assert_eq!(setting(&config, "max_idle_timeout"), "Some(30000)");
            assert_eq!(setting(&config, "initial_mtu"), "1200");
        }
        assert_eq!(setting(&server(&limits), "max_concurrent_bidi_streams"), "100");
        assert_eq!(setting(&client(&limits), "max_concurrent_bidi_streams"), "0");
    }

    #[test]
    fn a_packet_that_others_overtake_is_waited_for_on_both_sides() {
        let limits = TransportLimits::default();
        for config in [server(&limits), client(&limits)] {
            assert_eq!(setting(&config, "packet_threshold"), "64");
            assert_eq!(setting(&config, "time_threshold"), "4.0");
        }
    }

    #[test]
    fn only_clients_keep_a_silent_connection_alive() {
        let limits = TransportLimits::default();
        assert_eq!(setting(&client(&limits), "keep_alive_interval"), "Some(10s)");
        assert_eq!(setting(&server(&limits), "keep_alive_interval"), "None");
    }
}
