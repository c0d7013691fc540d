//! Bytes that arrive in pieces, to lines.

use std::io::{self, Write};

use super::limits::MAX_LINE_BYTES;

/// A line without its line feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Whole(&'a [u8]),
    /// It is longer than is held.
    TooLong,
}

/// Hands on each line that is written to it. Only a line that comes in more than one piece is copied.
pub(super) struct Lines<F> {
    hand_on: F,
    begun: Vec<u8>,
    too_long: bool,
}

impl<F: FnMut(Line<'_>)> Lines<F> {
    pub(super) const fn to(hand_on: F) -> Self {
        Self { hand_on, begun: Vec::new(), too_long: false }
    }

    /// The last line may come without a line feed.
    pub(super) fn finish(mut self) {
        if self.too_long || !self.begun.is_empty() {
            self.end(&[]);
        }
    }

    fn end(&mut self, rest: &[u8]) {
        if std::mem::take(&mut self.too_long) || self.begun.len() + rest.len() > MAX_LINE_BYTES {
            (self.hand_on)(Line::TooLong);
        } else if self.begun.is_empty() {
            (self.hand_on)(Line::Whole(rest));
        } else {
            self.begun.extend_from_slice(rest);
            (self.hand_on)(Line::Whole(&self.begun));
        }
        self.begun.clear();
    }

    fn begin(&mut self, piece: &[u8]) {
        if self.begun.len() + piece.len() > MAX_LINE_BYTES {
            self.too_long = true;
        }
        if self.too_long {
            self.begun.clear();
        } else {
            self.begun.extend_from_slice(piece);
        }
    }
}

impl<F: FnMut(Line<'_>)> Write for Lines<F> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let mut start = 0;
        for feed in memchr::memchr_iter(b'\n', piece) {
            self.end(&piece[start..feed]);
            start = feed + 1;
        }
        self.begin(&piece[start..]);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of these pieces; `None` for one that is too long.
    fn lines(pieces: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        let mut seen = Vec::new();
        let mut lines = Lines::to(|line| {
            seen.push(match line {
                Line::Whole(text) => Some(text.to_vec()),
                Line::TooLong => None,
            });
        });
        pieces.iter().for_each(|piece| lines.write_all(piece).unwrap());
        lines.finish();
        seen
    }

    #[test]
    fn lines_are_the_same_however_the_body_is_cut() {
        let body = b"\none 1\n\ntwo 2\r\nthree 3";
        let whole = lines(&[body]);
        assert_eq!(whole.len(), 5);
        for cut in 0..body.len() {
            assert_eq!(lines(&[&body[..cut], &body[cut..]]), whole, "{cut}");
        }
        assert_eq!(lines(&body.chunks(1).collect::<Vec<_>>()), whole);
        assert!(lines(&[]).is_empty());
    }

    #[test]
    fn a_line_that_is_too_long_is_not_held_and_ends_nothing() {
        let longest = vec![b'x'; MAX_LINE_BYTES];
        assert_eq!(lines(&[&longest]), [Some(longest.clone())]);
        let short = Some(b"y".to_vec());
        for pieces in [
            vec![&longest[..], b"x", b"x\ny"],
            vec![&longest[..], &longest[..], &longest[..], b"\ny\n"],
            vec![&[&longest[..], b"x\ny"].concat()[..]],
            vec![b"xx", &[&longest[1..], b"\ny"].concat()[..]],
        ] {
            assert_eq!(lines(&pieces), [None, short.clone()]);
        }
        assert_eq!(lines(&[&longest, b"x"]), [None]);
        let mut held = Lines::to(|_| {});
        (0..100).for_each(|_| held.write_all(&longest).unwrap());
        assert!(held.begun.capacity() <= 2 * MAX_LINE_BYTES);
    }
}
