//! Variable-length integers (RFC 9000 section 16).

/// The longest encoding.
pub(crate) const MAX_LEN: usize = 8;

/// How many bytes an encoding has that begins with `first`: 1, 2, 4 or 8.
pub(crate) const fn len(first: u8) -> usize {
    1 << (first >> 6)
}

/// Reads the integer at the start of `bytes` and says how long it is; `None` when `bytes` end before it does.
pub(crate) fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let len = len(*bytes.first()?);
    let encoded = bytes.get(..len)?;
    let raw = encoded.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    // The two highest bits of the encoding say its length.
    Some((raw & (u64::MAX >> (64 - (8 * len) + 2)), len))
}

/// Writes the shortest encoding of `value` and says how long it is.
///
/// Values of 2^62 and above have no encoding; the highest two bits are dropped.
pub(crate) fn write(value: u64) -> ([u8; MAX_LEN], usize) {
    let (tag, len): (u64, usize) = match value {
        0..0x40 => (0, 1),
        0x40..0x4000 => (1, 2),
        0x4000..0x4000_0000 => (2, 4),
        _ => (3, 8),
    };
    let shift = 64 - 8 * len;
    let tagged = (value << shift) & (u64::MAX >> 2) | tag << 62;
    (tagged.to_be_bytes(), len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_examples_of_the_rfc_decode() {
        // RFC 9000 appendix A.1.
        assert_eq!(read(&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c]), Some((151_288_809_941_952_652, 8)));
        assert_eq!(read(&[0x9d, 0x7f, 0x3e, 0x7d, 0xff]), Some((494_878_333, 4)));
        assert_eq!(read(&[0x7b, 0xbd]), Some((15_293, 2)));
        assert_eq!(read(&[0x25]), Some((37, 1)));
        assert_eq!(read(&[0x40, 0x25]), Some((37, 2)));
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[0xc0; 7]), None);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(value in 0..1u64 << 62, spread in 0..62u32) {
            let value = value >> spread;
            let (bytes, len) = write(value);
            prop_assert_eq!(read(&bytes[..len]), Some((value, len)));
        }
    }
}
