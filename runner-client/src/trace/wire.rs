//! Protocol buffers, as far as spans need them (<https://protobuf.dev/programming-guides/encoding/>).
//!
//! Written by hand: a span goes from what it was recorded in straight to its bytes, without the generated types' copy of
//! it in between and without their dependencies in every runner. The generated types check it, in the tests.

/// Writes fields. Numbers and wire types are the caller's affair.
#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

/// An embedded message in the making.
#[must_use]
pub(super) struct Open {
    content: usize,
}

impl Writer {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn varint(&mut self, number: u32, value: u64) {
        self.key(number, 0);
        self.raw_varint(value);
    }

    pub(super) fn fixed64(&mut self, number: u32, value: u64) {
        self.key(number, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn fixed32(&mut self, number: u32, value: u32) {
        self.key(number, 5);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.header(number, bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// What stands before the `len` bytes of an embedded message.
    pub(super) fn header(&mut self, number: u32, len: usize) {
        self.key(number, 2);
        self.raw_varint(len as u64);
    }

    /// Bytes that are fields already.
    pub(super) fn raw(&mut self, fields: &[u8]) {
        self.0.extend_from_slice(fields);
    }

    /// Begins an embedded message: what is written next is in it, until [`close`](Self::close).
    pub(super) fn open(&mut self, number: u32) -> Open {
        self.key(number, 2);
        self.0.push(0);
        Open { content: self.0.len() }
    }

    /// Ends an embedded message. One of 128 bytes or more moves, to make room for the rest of its length.
    pub(super) fn close(&mut self, open: Open) {
        let len = self.0.len() - open.content;
        if len < 0x80 {
            self.0[open.content - 1] = low_byte(len as u64);
            return;
        }
        self.0[open.content - 1] = low_byte(len as u64) | 0x80;
        self.raw_varint(len as u64 >> 7);
        let more = self.0.len() - open.content - len;
        self.0[open.content..].rotate_right(more);
    }

    fn key(&mut self, number: u32, wire_type: u32) {
        self.raw_varint(u64::from(number << 3 | wire_type));
    }

    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(low_byte(value) | 0x80);
            value >>= 7;
        }
        self.0.push(low_byte(value));
    }
}

/// How many bytes [`Writer::header`] takes for a field with a number below 16.
pub(super) const fn header_len(len: usize) -> usize {
    let mut rest = len as u64 >> 7;
    let mut bytes = 2;
    while rest > 0 {
        rest >>= 7;
        bytes += 1;
    }
    bytes
}

const fn low_byte(value: u64) -> u8 {
    value.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedded_message_of_any_length_has_its_length_before_it() {
        for len in [0, 1, 127, 128, 129, 16_383, 16_384, 3_000_000] {
            let content: Vec<u8> = (0..len).map(|at| low_byte(at as u64 % 251)).collect();
            let mut embedded = Writer::default();
            let open = embedded.open(5);
            embedded.raw(&content);
            embedded.close(open);
            let mut known = Writer::default();
            known.bytes(5, &content);
            let known = known.into_bytes();
            assert_eq!(known.len(), header_len(len) + len);
            assert!(embedded.into_bytes() == known, "{len}");
        }
    }
}
