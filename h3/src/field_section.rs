//! Field sections (RFC 9204 section 4.5) without their Huffman code.
//!
//! h3 decodes that code bit by bit, which for a token of 800 characters took a tenth of what a small request costs. So h3
//! gets the same section with plain strings. What can't be read here goes to h3 as it came: it is h3 that refuses it.

use bytes::Bytes;

use crate::{huffman, varint};

/// The first bit of a string's length says that it is coded; where it stands depends on what stands before it.
const CODED: u8 = 1;

/// A HEADERS frame with plain strings; any other frame, and one that can't be read, as it is.
///
/// A plain string is at most 8/5 as long as the coded one, so the frame grows by less than that.
pub(crate) fn plain(frame: Bytes) -> Bytes {
    decoded(&frame).map_or(frame, Bytes::from)
}

/// The frame anew; `None` if that is not to be.
fn decoded(frame: &[u8]) -> Option<Vec<u8>> {
    let (kind, kind_len) = varint::read(frame)?;
    let (_, length_len) = varint::read(&frame[kind_len..])?;
    if kind != u64::from(HEADERS) {
        return None;
    }
    let section = &frame[kind_len + length_len..];
    let mut output = Vec::with_capacity(HEADER_LEN + section.len() * 8 / 5);
    output.extend_from_slice(&[0; HEADER_LEN]);
    Section { input: section, output: &mut output, text: Vec::new() }.copy()?;
    let length = u32::try_from(output.len() - HEADER_LEN).ok().filter(|length| *length < 1 << 30)?;
    output[0] = HEADERS;
    output[1..HEADER_LEN].copy_from_slice(&(length | FOUR_BYTES).to_be_bytes());
    Some(output)
}

/// The type of a HEADERS frame (RFC 9114 section 7.2.2).
const HEADERS: u8 = 0x1;

/// The type, and the length as an integer of four bytes however small it is.
const HEADER_LEN: usize = 5;

/// Marks a variable-length integer of four bytes (RFC 9000 section 16).
const FOUR_BYTES: u32 = 2 << 30;

/// A section on its way from `input` to `output`. Every step is `None` when the input is no section.
struct Section<'a> {
    input: &'a [u8],
    output: &'a mut Vec<u8>,
    /// A string that was decoded.
    text: Vec<u8>,
}

impl Section<'_> {
    fn copy(&mut self) -> Option<()> {
        // Required Insert Count, then Sign and Delta Base.
        self.copy_integer(8)?;
        self.copy_integer(7)?;
        while let Some(first) = self.input.first() {
            match first.leading_zeros() {
                // An indexed field line.
                0 => self.copy_integer(6)?,
                // A literal with a name reference.
                1 => {
                    self.copy_integer(4)?;
                    self.copy_string(7)?;
                }
                // A literal with a literal name.
                2 => {
                    self.copy_string(3)?;
                    self.copy_string(7)?;
                }
                // The others refer to a dynamic table, which we allow nobody.
                _ => return None,
            }
        }
        Some(())
    }

    fn copy_integer(&mut self, prefix: u32) -> Option<()> {
        let (flags, value) = self.read_integer(prefix)?;
        self.write_integer(flags, prefix, value);
        Some(())
    }

    fn copy_string(&mut self, prefix: u32) -> Option<()> {
        let (flags, len) = self.read_integer(prefix)?;
        let (string, rest) = self.input.split_at_checked(len)?;
        self.input = rest;
        if flags & CODED == 0 {
            self.write_integer(flags, prefix, len);
            self.output.extend_from_slice(string);
        } else {
            self.text.clear();
            huffman::decode(string, &mut self.text)?;
            self.write_integer(flags & !CODED, prefix, self.text.len());
            self.output.extend_from_slice(&self.text);
        }
        Some(())
    }

    /// An integer with a prefix of so many bits (RFC 7541 section 5.1): what stands before the prefix, and its value.
    fn read_integer(&mut self, prefix: u32) -> Option<(u8, usize)> {
        let (first, rest) = self.input.split_first()?;
        self.input = rest;
        let max = u8::MAX >> (8 - prefix);
        let flags = u16::from(*first) >> prefix;
        let mut value = usize::from(first & max);
        if first & max == max {
            // A value of more than four bytes is longer than any frame.
            let len = 1 + self.input.iter().take(4).position(|byte| byte & 0x80 == 0)?;
            let (more, rest) = self.input.split_at(len);
            self.input = rest;
            value += more.iter().rev().fold(0, |value, byte| value << 7 | usize::from(byte & 0x7f));
        }
        Some((u8::try_from(flags).ok()?, value))
    }

    fn write_integer(&mut self, flags: u8, prefix: u32, value: usize) {
        let max = usize::from(u8::MAX >> (8 - prefix));
        let high = u8::try_from(u16::from(flags) << prefix).unwrap_or_default();
        if value < max {
            self.output.push(high | low_bits(value));
            return;
        }
        self.output.push(high | low_bits(max));
        let mut rest = value - max;
        while rest >= 0x80 {
            self.output.push(0x80 | low_bits(rest & 0x7f));
            rest >>= 7;
        }
        self.output.push(low_bits(rest));
    }
}

#[expect(clippy::cast_possible_truncation, reason = "callers pass less than 256")]
const fn low_bits(value: usize) -> u8 {
    value as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A HEADERS frame around a section without references to a dynamic table.
    fn frame(section: &[u8]) -> Bytes {
        let (length, len) = varint::write(section.len() as u64);
        [&[1], &length[..len], &[0, 0], section].concat().into()
    }

    /// The section that h3 gets for this one.
    fn plain_section(section: &[u8]) -> Option<Vec<u8>> {
        let section = [&[0, 0], section].concat();
        let (length, len) = varint::write(section.len() as u64);
        let frame = Bytes::from([&[1], &length[..len], &section].concat());
        let plain = decoded(&frame)?;
        assert_eq!(plain[0], 1);
        assert_eq!(varint::read(&plain[1..]), Some((plain.len() as u64 - 5, 4)));
        assert_eq!(plain[5..7], [0, 0]);
        Some(plain[7..].to_vec())
    }

    /// "302" of RFC 7541 appendix C.6.1, coded.
    const CODED_302: [u8; 2] = [0x64, 0x02];

    #[test]
    fn a_coded_value_becomes_plain() {
        // A literal with the name of static entry 24 (":status"), never indexed.
        let section = [&[0x7f, 0x09, 0x82][..], &CODED_302].concat();
        assert_eq!(plain_section(&section).unwrap(), b"\x7f\x09\x03302");
    }

    #[test]
    fn a_coded_name_becomes_plain() {
        let section = [&[0x2a][..], &CODED_302, &[0x01, b'x']].concat();
        assert_eq!(plain_section(&section).unwrap(), b"\x23302\x01x");
    }

    #[test]
    fn what_is_plain_stays_as_it_is() {
        let long = vec![b'a'; 300];
        let section = [&[0xd1, 0xff, 0x00, 0x51, 0x02, b'/', b'a', 0x5f, 0x1d, 0x7f, 0xad, 0x01][..], &long].concat();
        assert_eq!(plain_section(&section).unwrap(), section);
    }

    #[test]
    fn what_cannot_be_read_goes_to_h3_as_it_came() {
        let sections: [&[u8]; 6] = [
            // An entry of a dynamic table, after the base; a name of one.
            &[0x10],
            &[0x00, 0x01, b'x'],
            // A string, an integer and a coded string that break off.
            &[0x51, 0x05, b'x'],
            &[0xff, 0x80],
            &[0x51, 0x81, 0xff],
            // An integer of five bytes.
            &[0xff, 0x80, 0x80, 0x80, 0x80, 0x01],
        ];
        for section in sections {
            assert_eq!(plain_section(section), None, "{section:x?}");
            let frame = frame(section);
            assert_eq!(plain(frame.clone()), frame, "{section:x?}");
        }
        let other = Bytes::from_static(&[4, 2, 0, 0]);
        assert_eq!(plain(other.clone()), other);
    }

    proptest! {
        #[test]
        fn whatever_comes_the_frame_stays_one_of_a_bounded_size(section: Vec<u8>) {
            let frame = frame(&section);
            let plain = plain(frame.clone());
            prop_assert!(plain.len() <= 8 + frame.len() * 8 / 5);
            let (kind, kind_len) = varint::read(&plain).unwrap();
            let (length, length_len) = varint::read(&plain[kind_len..]).unwrap();
            prop_assert_eq!(kind, 1);
            prop_assert!(plain == frame || length == (plain.len() - kind_len - length_len) as u64);
        }

        #[test]
        fn a_plain_section_is_read_once(section: Vec<u8>) {
            let once = plain(frame(&section));
            prop_assert_eq!(plain(once.clone()), once);
        }
    }
}
