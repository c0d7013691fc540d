//! The Huffman code of HPACK and QPACK (RFC 7541 section 5.2 and appendix B), read many bits at a time.
//!
//! The code is canonical: among codes of one length the numbers rise with the symbols, and where one length ends the next one
//! goes on. So the lengths alone are the whole table of the appendix.

/// The symbol that ends a string, of which only the beginning is ever seen, as padding.
const END: u16 = 256;

/// The longest code.
const MAX_LEN: usize = 30;

/// Codes up to this length are found by one look into a table. All that a token, a path or a number consists of is shorter.
const FAST_BITS: usize = 10;

/// How long the code of each symbol is, in bits: the bytes, then [`END`].
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

static CODE: Code = Code::new();

struct Code {
    /// What the next bits begin with: a symbol and its length. The length is 0 where the code is longer.
    fast: [(u8, u8); 1 << FAST_BITS],
    /// The symbols in the order of their codes.
    symbols: [u16; 257],
    /// By length: the first code of it, and where its symbols begin.
    first: [(u32, u16); MAX_LEN + 2],
}

impl Code {
    #[expect(clippy::cast_possible_truncation, reason = "the code has 257 symbols, and the last has a long code")]
    const fn new() -> Self {
        let mut code = Self { fast: [(0, 0); 1 << FAST_BITS], symbols: [0; 257], first: [(0, 0); MAX_LEN + 2] };
        let (mut next, mut count, mut len) = (0_u32, 0_u16, 1);
        while len <= MAX_LEN {
            next <<= 1;
            code.first[len] = (next, count);
            let mut symbol = 0;
            while symbol < LENGTHS.len() {
                if LENGTHS[symbol] as usize == len {
                    code.symbols[count as usize] = symbol as u16;
                    if len <= FAST_BITS {
                        code.fill(next as usize, len, symbol as u8);
                    }
                    count += 1;
                    next += 1;
                }
                symbol += 1;
            }
            len += 1;
        }
        code.first[MAX_LEN + 1] = (next << 1, count);
        code
    }

    /// Whatever follows a code of few bits, it is that code.
    #[expect(clippy::cast_possible_truncation, reason = "no code is longer than 30 bits")]
    const fn fill(&mut self, code: usize, len: usize, symbol: u8) {
        let free = FAST_BITS - len;
        let mut rest = 0;
        while rest < 1 << free {
            self.fast[(code << free) | rest] = (symbol, len as u8);
            rest += 1;
        }
    }

    /// The symbol that `window`, the next 32 bits, begins with, and its length.
    #[expect(clippy::cast_possible_truncation, reason = "lengths of codes")]
    fn find(&self, window: u32) -> (u16, u32) {
        let (symbol, len) = self.fast[(window >> (32 - FAST_BITS)) as usize];
        if len > 0 {
            return (u16::from(symbol), u32::from(len));
        }
        for (len, lengths) in (FAST_BITS as u32 + 1..).zip(self.first[FAST_BITS + 1..].windows(2)) {
            let [(first, begin), (_, end)] = lengths else { break };
            let place = u32::from(*begin) + (window >> (32 - len)).wrapping_sub(*first);
            if place < u32::from(*end) {
                return (self.symbols[place as usize], len);
            }
        }
        (END, MAX_LEN as u32)
    }
}

/// Appends what `input` stands for to `output`: at most 8 bytes for every 5 of it.
///
/// `None` when it is no string of this code: a code breaks off, the padding is longer than 7 bits or not the beginning of
/// the end symbol, or that symbol is in it.
pub(crate) fn decode(input: &[u8], output: &mut Vec<u8>) -> Option<()> {
    let mut input = input.iter();
    // The bits that were read and not used, at the lower end.
    let (mut bits, mut count) = (0_u64, 0_u32);
    loop {
        while count <= 56 {
            let Some(byte) = input.next() else { break };
            bits = (bits << 8) | u64::from(*byte);
            count += 8;
        }
        let (symbol, len) = CODE.find(window(bits, count));
        if len > count {
            return is_padding(bits, count).then_some(());
        }
        output.push(u8::try_from(symbol).ok()?);
        count -= len;
    }
}

/// The next 32 bits; ones where there are no more.
fn window(bits: u64, count: u32) -> u32 {
    let padded = if count >= 32 { bits >> (count - 32) } else { !(!bits << (32 - count)) };
    #[expect(clippy::cast_possible_truncation, reason = "the higher bits were used before")]
    {
        padded as u32
    }
}

fn is_padding(bits: u64, count: u32) -> bool {
    let ones = (1 << count) - 1;
    count < 8 && bits & ones == ones
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(input: &[u8]) -> Option<Vec<u8>> {
        let mut output = Vec::new();
        decode(input, &mut output).map(|()| output)
    }

    /// The plain way: code by code into bits, from the same lengths.
    fn encoded(text: &[u8]) -> Vec<u8> {
        let mut bits: Vec<bool> = Vec::new();
        for byte in text {
            let (code, len) = code_of(usize::from(*byte));
            bits.extend((0..len).rev().map(|bit| code >> bit & 1 == 1));
        }
        while !bits.len().is_multiple_of(8) {
            bits.push(true);
        }
        bits.chunks(8).map(|byte| byte.iter().fold(0, |value, bit| value << 1 | u8::from(*bit))).collect()
    }

    fn code_of(symbol: usize) -> (u32, u8) {
        let len = LENGTHS[symbol];
        let shorter = (0..LENGTHS.len()).filter(|other| (LENGTHS[*other], *other) < (len, symbol));
        let before: u64 = shorter.map(|other| 1_u64 << (MAX_LEN - usize::from(LENGTHS[other]))).sum();
        (u32::try_from(before >> (MAX_LEN - usize::from(len))).unwrap(), len)
    }

    #[test]
    fn the_codes_are_those_of_the_appendix() {
        for (symbol, code, len) in [
            (b'0', 0x0, 5),
            (b'e', 0x5, 5),
            (b' ', 0x14, 6),
            (b'_', 0x22, 6),
            (b':', 0x5c, 7),
            (b'X', 0xfc, 8),
            (b'!', 0x3f8, 10),
            (0, 0x1ff8, 13),
            (b'{', 0x7ffe, 15),
            (b'\\', 0x7fff0, 19),
            (1, 0x7f_ffd8, 23),
            (249, 0xfff_fffe, 28),
            (22, 0x3fff_fffe, 30),
        ] {
            assert_eq!(code_of(usize::from(symbol)), (code, len), "{symbol}");
        }
        assert_eq!(code_of(usize::from(END)), (0x3fff_ffff, 30));
    }

    #[test]
    fn the_examples_of_the_rfc_decode() {
        // RFC 7541 appendix C.4 and C.6.
        let www = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decoded(&www).unwrap(), b"www.example.com");
        assert_eq!(decoded(&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]).unwrap(), b"no-cache");
        assert_eq!(decoded(&[0x64, 0x02]).unwrap(), b"302");
        assert_eq!(decoded(&[]).unwrap(), b"");
    }

    #[test]
    fn what_is_no_string_is_refused() {
        // Eight bits of padding, padding with a zero in it, half a code, the end symbol.
        for bad in [&[0xff][..], &[0x64, 0x02, 0xff], &[0x00, 0x0e], &[0xff, 0xff, 0xff], &[0xff, 0xff, 0xff, 0xff]] {
            assert_eq!(decoded(bad), None, "{bad:x?}");
        }
    }

    proptest! {
        #[test]
        fn every_string_decodes_to_itself(text: Vec<u8>) {
            prop_assert_eq!(decoded(&encoded(&text)), Some(text));
        }

        #[test]
        fn what_decodes_is_the_only_string_of_its_bits(input: Vec<u8>) {
            if let Some(text) = decoded(&input) {
                prop_assert!(text.len() <= input.len() * 8 / 5);
                prop_assert_eq!(encoded(&text), input);
            }
        }
    }
}
