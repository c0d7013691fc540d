//! The coordinator's own marker, which no runner may use.
//!
//! The question is what the *store* would read, and stores are more lenient than [`parse_line`](super::parse_line):
//! VictoriaMetrics takes `"entity" = "miren/control"`, `foo 1 #{entity="miren/control"} 2`, names with any bytes and
//! text that is no UTF-8; which of two equal labels it keeps is its own business. So a line that has the marker's value
//! on it stays only if the strict grammar reads it and finds the marker among none of its labels. The value itself has
//! but one spelling, since no escape yields one of its bytes.

use std::io;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::parse::parse_line_as_written;

/// The value of the label `entity` by which a coordinator marks its own series.
pub const CONTROL_ENTITY: &str = "miren/control";

/// The longest beginning of the value that can be left at the end of a chunk.
const TAIL: usize = CONTROL_ENTITY.len() - 1;

/// Looks for the value. Built once: that costs as much as searching a kilobyte.
static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(CONTROL_ENTITY));

/// Looks for [`CONTROL_ENTITY`] in a body that arrives in chunks. Nearly every body is done with this one quick pass;
/// only one in which it is found needs a [`ControlFilter`].
#[derive(Debug, Clone, Default)]
pub struct ControlScan {
    /// The end of what came before, shorter than the value; what follows it is room for the beginning of the next chunk.
    seam: [u8; 2 * TAIL],
    tail: usize,
    found: bool,
}

impl ControlScan {
    /// A scan that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at the next chunk.
    pub fn feed(&mut self, chunk: &[u8]) {
        if self.found {
            return;
        }
        let head = &chunk[..chunk.len().min(TAIL)];
        let seam = self.tail + head.len();
        self.seam[self.tail..seam].copy_from_slice(head);
        self.found = FINDER.find(&self.seam[..seam]).is_some() || FINDER.find(chunk).is_some();
        if chunk.len() >= TAIL {
            self.seam[..TAIL].copy_from_slice(&chunk[chunk.len() - TAIL..]);
            self.tail = TAIL;
        } else {
            self.tail = seam.min(TAIL);
            self.seam.copy_within(seam - self.tail..seam, 0);
        }
    }

    /// Whether the value was on what came so far. It need not be in a label of a sample.
    #[must_use]
    pub const fn found(&self) -> bool {
        self.found
    }
}

/// Takes the lines by which its sender would speak as the coordinator out of a body that arrives in chunks. It holds what is kept
/// and no second copy; to search it takes as long as the chunk, but for one that ends a long line.
#[derive(Debug, Default)]
pub struct ControlFilter {
    kept: Vec<u8>,
    /// Where the line begins that has not ended yet.
    unfinished: usize,
    dropped: usize,
}

impl ControlFilter {
    /// A filter with room for a body of so many bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { kept: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Takes the next chunk.
    pub fn feed(&mut self, chunk: &[u8]) {
        let before = self.kept.len();
        self.kept.extend_from_slice(chunk);
        if let Some(feed) = memchr::memrchr(b'\n', chunk) {
            self.settle(before + feed + 1);
        }
    }

    /// The body is complete: what is kept of it, and how many lines were dropped.
    #[must_use]
    pub fn finish(mut self) -> (Vec<u8>, usize) {
        self.settle(self.kept.len());
        (self.kept, self.dropped)
    }

    /// Looks at the lines that are complete: those up to `end`.
    fn settle(&mut self, end: usize) {
        // What is kept moves up to where the first dropped line was.
        let (mut kept_to, mut moved_to) = (self.unfinished, self.unfinished);
        let mut search_from = self.unfinished;
        while let Some(at) = FINDER.find(&self.kept[search_from..end]) {
            let at = search_from + at;
            let line =
                memchr::memrchr(b'\n', &self.kept[search_from..at]).map_or(search_from, |feed| search_from + feed + 1);
            let next = memchr::memchr(b'\n', &self.kept[at..end]).map_or(end, |feed| at + feed + 1);
            search_from = next;
            if carries_marker(&self.kept[line..next]) {
                self.kept.copy_within(moved_to..line, kept_to);
                kept_to += line - moved_to;
                moved_to = next;
                self.dropped += 1;
            }
        }
        let removed = moved_to - kept_to;
        if removed > 0 {
            self.kept.copy_within(moved_to.., kept_to);
            self.kept.truncate(self.kept.len() - removed);
        }
        self.unfinished = end - removed;
    }
}

impl io::Write for ControlFilter {
    fn write(&mut self, chunk: &[u8]) -> io::Result<usize> {
        self.feed(chunk);
        Ok(chunk.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the sender of this line speaks as the coordinator by it, or may do so.
#[must_use]
pub fn is_control_line(line: &[u8]) -> bool {
    FINDER.find(line).is_some() && carries_marker(line)
}

/// Whether a line with the marker's value on it carries the marker, or may do so.
fn carries_marker(line: &[u8]) -> bool {
    match parse_line_as_written(line.strip_suffix(b"\n").unwrap_or(line)) {
        Ok(None) => false,
        Ok(Some(point)) => point.labels.iter().any(|(name, value)| name == "entity" && value == CONTROL_ENTITY),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(chunks: &[&[u8]]) -> bool {
        let mut scan = ControlScan::new();
        chunks.iter().for_each(|chunk| scan.feed(chunk));
        scan.found()
    }

    fn filtered(body: &str, chunk_bytes: usize) -> (String, usize) {
        let mut filter = ControlFilter::default();
        body.as_bytes().chunks(chunk_bytes).for_each(|chunk| filter.feed(chunk));
        let (kept, dropped) = filter.finish();
        (String::from_utf8(kept).unwrap(), dropped)
    }

    #[test]
    fn the_marker_is_found_however_the_body_is_cut() {
        let body = b"up{entity=\"miren/control\"} 1\n";
        for cut in 0..body.len() {
            assert!(found(&[&body[..cut], &body[cut..]]), "{cut}");
        }
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        assert!(found(&bytes));
        assert!(!found(&[b"miren/contro", b"", b"L", b"miren/", b"contro"]));
        assert!(!found(&[]));
    }

    #[test]
    fn lines_that_speak_as_the_coordinator_are_dropped_and_no_others() {
        for line in [
            "up{entity=\"miren/control\"} 1",
            "up{ entity = \"miren/control\" , a=\"b\"} 1 2\r",
            // Which of two the store keeps is its business.
            "up{entity=\"r7\",entity=\"miren/control\"} 1",
            "up{entity=\"miren/control\",entity=\"r7\"} 1",
            "up{entity=\"a\",b=\"c\",entity=\"miren/control\",entity=\"d\"} 1",
            // Nothing the grammar reads, but the store does.
            "up{\"entity\"=\"miren/control\"} 1",
            "up 1 #{entity=\"miren/control\"} 2",
            "a.b{entity=\"miren/control\"} 1",
            "up{entity=\"miren/control\",a=\"\\t\"} 1",
        ] {
            let body = format!("before 1\n{line}\nafter 2");
            assert_eq!(filtered(&body, 7), ("before 1\nafter 2".to_owned(), 1), "{line}");
            assert_eq!(filtered(line, 7).1, 1, "{line}");
            assert!(is_control_line(line.as_bytes()), "{line}");
        }
        for line in [
            "up{entity=\"r7\"} 1",
            "up{entity=\"r7\",entity=\"r8\",x=\"miren/control\"} 1",
            "up{entity=\"miren/control2\"} 1",
            "up{other=\"miren/control\"} 1",
            "up{a=\"entity=\\\"miren/control\\\"\"} 1",
            "# up{entity=\"miren/control\"} 1",
        ] {
            let body = format!("before 1\n{line}\nafter 2\n");
            assert_eq!(filtered(&body, 7), (body.clone(), 0), "{line}");
            assert!(!is_control_line(line.as_bytes()), "{line}");
        }
    }

    proptest! {
        #[test]
        fn a_scan_in_pieces_finds_what_a_scan_of_the_whole_finds(
            pieces in proptest::collection::vec("(miren/control|miren/|control|contro|l|m|x){0,3}", 0..12)
        ) {
            let whole = pieces.concat();
            let pieces: Vec<&[u8]> = pieces.iter().map(String::as_bytes).collect();
            prop_assert_eq!(found(&pieces), whole.contains(CONTROL_ENTITY));
        }

        #[test]
        fn what_is_left_is_the_other_lines_untouched(
            lines in proptest::collection::vec(
                prop_oneof![
                    Just("up{entity=\"miren/control\"} 1"),
                    Just("bad.name{entity=\"miren/control\"} 1"),
                    Just("up{x=\"miren/control\"} 1"),
                    Just("up 1\r"),
                    Just(""),
                ],
                0..20,
            ),
            chunk_bytes in 1..80_usize,
        ) {
            let body = lines.join("\n");
            let (kept, dropped) = filtered(&body, chunk_bytes);
            let others: Vec<&str> = lines.iter().copied().filter(|line| !line.contains("entity")).collect();
            prop_assert_eq!(dropped, lines.len() - others.len());
            let others = others.join("\n");
            // A last line that goes leaves the line feed of the one before it.
            prop_assert_eq!(kept.trim_end_matches('\n'), others.trim_end_matches('\n'));
        }
    }
}
