//! The lines of a batch, to chunks.

use std::sync::Arc;

use super::lines::Line;
use super::rules::Rules;
use super::{Chunk, DropReason};
use crate::tenancy::Tenant;

/// Reads a batch line by line and hands on a chunk as soon as it is full.
pub(super) struct Reader<'a, F> {
    tenant: &'a Arc<Tenant>,
    rules: Rules<'a>,
    hand_on: F,
    open: Chunk,
    tally: Tally,
}

/// How many points of a batch went on, and how many did not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(super) accepted: usize,
    dropped: [u64; DropReason::ALL.len()],
}

impl<'a, F: FnMut(Chunk)> Reader<'a, F> {
    pub(super) fn new(tenant: &'a Arc<Tenant>, rules: Rules<'a>, hand_on: F) -> Self {
        let open = Chunk::new(Arc::clone(tenant), rules.runner.clone());
        Self { tenant, rules, hand_on, open, tally: Tally::default() }
    }

    pub(super) fn read(&mut self, line: Line<'_>) {
        let Line::Whole(line) = line else { return self.tally.drop(DropReason::LineTooLong) };
        if self.tally.accepted >= self.rules.limits.max_points {
            // Without parsing: a body may hold millions.
            if may_hold_a_point(line) {
                self.tally.drop(DropReason::OverBatchLimit);
            }
            return;
        }
        match self.rules.read(line) {
            Ok(None) => {}
            Err(reason) => self.tally.drop(reason),
            Ok(Some(point)) => {
                self.tally.accepted += 1;
                self.open.push(point);
                if self.open.is_full() {
                    self.hand_on_open();
                }
            }
        }
    }

    /// Hands on what is left.
    pub(super) fn finish(mut self) -> Tally {
        if !self.open.is_empty() {
            self.hand_on_open();
        }
        self.tally
    }

    fn hand_on_open(&mut self) {
        let next = Chunk::new(Arc::clone(self.tenant), self.rules.runner.clone());
        (self.hand_on)(std::mem::replace(&mut self.open, next));
    }
}

impl Tally {
    /// Points that were dropped for `reason`.
    pub(crate) const fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Whether there was something, and nothing of it was text: not a batch with bad lines, but no batch.
    pub(super) fn is_no_text(&self) -> bool {
        let not_text = self.dropped(DropReason::NotUtf8);
        self.accepted == 0 && not_text > 0 && not_text == self.dropped.iter().sum::<u64>()
    }

    fn drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }
}

fn may_hold_a_point(line: &[u8]) -> bool {
    let first = line.iter().find(|byte| !matches!(byte, b' ' | b'\t' | b'\r'));
    first.is_some_and(|first| *first != b'#')
}

#[cfg(test)]
mod tests {
    use telemetry_proto::RunnerId;

    use super::*;
    use crate::operational::PointLimits;
    use crate::operational::testing::tenant;

    fn read(lines: &[&str], limits: PointLimits) -> (Vec<usize>, Tally) {
        let runner = RunnerId::new("r7").unwrap();
        let rules = Rules { limits, runner: &runner, named_by_token: true, has_marker: true, now_ms: 0 };
        let mut chunks = Vec::new();
        let tenant = tenant();
        let mut reader = Reader::new(&tenant, rules, |chunk: Chunk| chunks.push(chunk.points().len()));
        lines.iter().for_each(|line| reader.read(Line::Whole(line.as_bytes())));
        let tally = reader.finish();
        (chunks, tally)
    }

    #[test]
    fn points_go_on_in_chunks_of_a_thousand() {
        for (points, chunks) in [
            (0, vec![]),
            (1, vec![1]),
            (999, vec![999]),
            (1_000, vec![1_000]),
            (1_001, vec![1_000, 1]),
            (10_000, vec![1_000; 10]),
        ] {
            let (seen, tally) = read(&vec!["up 1"; points], PointLimits::default());
            assert_eq!((seen, tally.accepted), (chunks, points));
        }
    }

    #[test]
    fn ten_thousand_points_are_taken_of_a_batch_and_the_rest_is_counted() {
        let mut lines = vec!["up 1"; 10_000];
        // What is dropped takes nothing of what may be taken.
        lines.splice(5..5, ["bad.name 1", "up NaN", "# comment"]);
        lines.extend(["up 2", "bad.name 2", "", " # comment", "\r"]);
        let (chunks, tally) = read(&lines, PointLimits::default());
        assert_eq!((chunks, tally.accepted), (vec![1_000; 10], 10_000));
        let dropped = [DropReason::OverBatchLimit, DropReason::Unparseable, DropReason::Nan].map(|r| tally.dropped(r));
        assert_eq!(dropped, [2, 1, 1]);
    }

    #[test]
    fn large_points_make_smaller_chunks() {
        let line = format!("up{{a=\"{}\"}} 1", "x".repeat(4_000));
        let (chunks, _) = read(&vec![line.as_str(); 2_000], PointLimits::default());
        assert!(chunks.len() > 2 && chunks.iter().all(|points| *points < 1_000), "{chunks:?}");
        assert_eq!(chunks.iter().sum::<usize>(), 2_000);
    }

    #[test]
    fn what_is_not_text_at_all_is_no_batch() {
        let no_text = |lines: &[Line<'_>]| {
            let runner = RunnerId::new("r7").unwrap();
            let limits = PointLimits::default();
            let rules = Rules { limits, runner: &runner, named_by_token: true, has_marker: false, now_ms: 0 };
            let tenant = tenant();
            let mut reader = Reader::new(&tenant, rules, drop::<Chunk>);
            lines.iter().for_each(|line| reader.read(*line));
            reader.finish().is_no_text()
        };
        let (bad, good, wrong) = (Line::Whole(b"up{a=\"\xff\"} 1"), Line::Whole(b"up 1"), Line::Whole(b"up"));
        assert!(no_text(&[bad]));
        assert!(no_text(&[bad, Line::Whole(b""), bad]));
        assert!(!no_text(&[bad, good]));
        assert!(!no_text(&[bad, wrong]));
        assert!(!no_text(&[bad, Line::TooLong]));
        assert!(!no_text(&[]));
    }
}
