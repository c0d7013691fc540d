//! How long delivery took to come back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::plan::FaultKind;
use super::timeline::Incident;
use super::witness::{Answer, Sighting, Stream};

/// The worst of one kind of fault.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Recovery {
    /// How often it happened.
    pub(super) times: usize,
    /// From the end of the fault to the next delivery of a source that it hit; the longest, and whose. `None` where another fault always came in
    /// between.
    pub(super) worst: Option<(Duration, Stream)>,
}

/// For each kind: from the end of each fault to the next delivery of each source that it hit. Where the next fault that may hit the
/// same source begins before, nobody can say what the source recovers from, and it is left out.
pub(super) fn measure(
    incidents: &[Incident],
    streams: &BTreeMap<Stream, Vec<Sighting>>,
) -> BTreeMap<FaultKind, Recovery> {
    let mut kinds: BTreeMap<FaultKind, Recovery> = BTreeMap::new();
    for incident in incidents {
        let recovery = kinds.entry(incident.kind).or_default();
        recovery.times += 1;
        for (stream, sightings) in streams.iter().filter(|(stream, _)| hits(incident, stream)) {
            let next = sightings.iter().filter_map(delivered).filter(|at| *at > incident.ended).min();
            let Some(next) = next else { continue };
            let is_disturbed = incidents.iter().any(|other| {
                other.began != incident.began
                    && hits(other, stream)
                    && other.began < next
                    && other.ended > incident.ended
            });
            if !is_disturbed {
                let took = next.duration_since(incident.ended);
                if recovery.worst.as_ref().is_none_or(|(worst, _)| took > *worst) {
                    recovery.worst = Some((took, stream.clone()));
                }
            }
        }
    }
    kinds
}

const fn delivered(sighting: &Sighting) -> Option<Instant> {
    match sighting.answer {
        Answer::Stored(at) => Some(at),
        Answer::None | Answer::Refused => None,
    }
}

/// Whether the fault is one of the source's: everyone's, its agent's, its store's, or its tokens'.
fn hits(incident: &Incident, (source, signal): &Stream) -> bool {
    match (&incident.target, incident.kind) {
        (None, _) => true,
        (Some(_), FaultKind::TokenEnd) => source == "agent-disk" || source == "writer-spool",
        (Some(target), _) => target == source || *target == signal.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use telemetry_proto::Signal;

    use super::*;

    #[test]
    fn recovery_is_from_the_end_of_a_fault_to_the_next_delivery_unless_disturbed() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let incident = |kind, began, ended| Incident { kind, target: None, began: after(began), ended: after(ended) };
        let sighting = |at| Sighting {
            runs: Vec::new(),
            relay_life: 0,
            store_life: 0,
            begun: after(at),
            answer: Answer::Stored(after(at)),
        };
        let streams =
            BTreeMap::from([(("agent".to_owned(), Signal::Logs), vec![sighting(50), sighting(300), sighting(900)])]);
        let alone = [incident(FaultKind::RelayKill, 60, 200)];
        let worst = |ms| Some((Duration::from_millis(ms), ("agent".to_owned(), Signal::Logs)));
        assert_eq!(measure(&alone, &streams)[&FaultKind::RelayKill].worst, worst(100));
        let disturbed = [incident(FaultKind::RelayKill, 60, 200), incident(FaultKind::UdpBlock, 250, 400)];
        let measured = measure(&disturbed, &streams);
        assert_eq!(measured[&FaultKind::RelayKill], Recovery { times: 1, worst: None });
        assert_eq!(measured[&FaultKind::UdpBlock].worst, worst(500));
    }
}
