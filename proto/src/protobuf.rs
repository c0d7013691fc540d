//! The wire format of protocol buffers (<https://protobuf.dev/programming-guides/encoding/>): fields of a message in,
//! fields of a message out. It knows no message.
//!
//! Runners write spans with it, the relay rewrites them, and the agent reads what others' programs send it: field by field and in
//! place, so that nothing is allocated for what a message holds, however many fields it has, and no runner needs generated
//! types. The generated types check it, in the tests.

/// Why bytes are no protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A field ends behind the end of its message.
    #[error("a message breaks off")]
    Truncated,
    /// A varint has more than 64 bits.
    #[error("a number has more than 64 bits")]
    VarintTooLong,
    /// A field number is 0 or above 2^29 - 1.
    #[error("a field number is out of range")]
    FieldNumber,
    /// A wire type is none of the format's.
    #[error("a field has an unknown wire type")]
    WireType,
    /// A group: proto3 has none.
    #[error("a field is a group")]
    Group,
    /// A known field has the wire type of another kind of field.
    #[error("a field has the wrong wire type")]
    WrongType,
    /// A string is not UTF-8.
    #[error("a string is not UTF-8")]
    NotUtf8,
}

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LEN: u32 = 2;
const GROUP_START: u32 = 3;
const GROUP_END: u32 = 4;
const FIXED32: u32 = 5;

/// The longest varint of 64 bits.
const MAX_VARINT_BYTES: usize = 10;

/// The fields of a message, in the order in which they are there. Ends at the first error.
#[derive(Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field<'a> {
    /// Which field it is, 1 to 2^29 - 1.
    pub number: u32,
    payload: Payload<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Payload<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Len(&'a [u8]),
}

impl<'a> Fields<'a> {
    /// The fields of this message, of which nothing was read yet.
    #[must_use]
    #[inline]
    pub const fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    #[inline]
    fn field(&mut self) -> Result<Field<'a>, WireError> {
        let key = u32::try_from(self.varint()?).map_err(|_| WireError::FieldNumber)?;
        let number = key >> 3;
        if number == 0 {
            return Err(WireError::FieldNumber);
        }
        let payload = match key & 7 {
            VARINT => Payload::Varint(self.varint()?),
            FIXED64 => Payload::Fixed64(u64::from_le_bytes(self.array()?)),
            LEN => Payload::Len(self.len_delimited()?),
            FIXED32 => Payload::Fixed32(u32::from_le_bytes(self.array()?)),
            GROUP_START | GROUP_END => return Err(WireError::Group),
            _ => return Err(WireError::WireType),
        };
        Ok(Field { number, payload })
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, WireError> {
        if let Some((&byte, rest)) = self.rest.split_first()
            && byte < 0x80
        {
            self.rest = rest;
            return Ok(u64::from(byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0;
        for (at, &byte) in self.rest.iter().enumerate().take(MAX_VARINT_BYTES) {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                if at == MAX_VARINT_BYTES - 1 && byte > 1 {
                    return Err(WireError::VarintTooLong);
                }
                self.rest = &self.rest[at + 1..];
                return Ok(value);
            }
        }
        Err(if self.rest.len() < MAX_VARINT_BYTES { WireError::Truncated } else { WireError::VarintTooLong })
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(*array)
    }

    #[inline]
    fn len_delimited(&mut self) -> Result<&'a [u8], WireError> {
        let len = usize::try_from(self.varint()?).map_err(|_| WireError::Truncated)?;
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Field<'a> {
    /// The value of an integer, bool or enum.
    ///
    /// # Errors
    /// [`WireError::WrongType`]: it is another kind of field.
    #[inline]
    pub const fn varint(self) -> Result<u64, WireError> {
        match self.payload {
            Payload::Varint(value) => Ok(value),
            _ => Err(WireError::WrongType),
        }
    }

    /// The bits of a `fixed64` or double.
    ///
    /// # Errors
    /// [`WireError::WrongType`]: it is another kind of field.
    #[inline]
    pub const fn fixed64(self) -> Result<u64, WireError> {
        match self.payload {
            Payload::Fixed64(value) => Ok(value),
            _ => Err(WireError::WrongType),
        }
    }

    /// The bits of a `fixed32` or float.
    ///
    /// # Errors
    /// [`WireError::WrongType`]: it is another kind of field.
    #[inline]
    pub const fn fixed32(self) -> Result<u32, WireError> {
        match self.payload {
            Payload::Fixed32(value) => Ok(value),
            _ => Err(WireError::WrongType),
        }
    }

    /// The value of a byte string, or an embedded message.
    ///
    /// # Errors
    /// [`WireError::WrongType`]: it is another kind of field.
    #[inline]
    pub const fn bytes(self) -> Result<&'a [u8], WireError> {
        match self.payload {
            Payload::Len(bytes) => Ok(bytes),
            _ => Err(WireError::WrongType),
        }
    }

    /// The value of a string.
    ///
    /// # Errors
    /// [`WireError::WrongType`]: it is another kind of field. [`WireError::NotUtf8`]: it is no text.
    #[inline]
    pub fn text(self) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| WireError::NotUtf8)
    }
}

impl Field<'_> {
    /// Writes the field as it was read.
    pub fn write(self, out: &mut Writer) {
        match self.payload {
            Payload::Varint(value) => out.varint(self.number, value),
            Payload::Fixed64(bits) => out.fixed64(self.number, bits),
            Payload::Fixed32(bits) => out.fixed32(self.number, bits),
            Payload::Len(bytes) => out.bytes(self.number, bytes),
        }
    }
}

/// Writes the fields of a message. Numbers and wire types are the caller's affair.
#[derive(Debug, Default)]
pub struct Writer {
    buf: Vec<u8>,
}

/// An embedded message that is being written.
#[derive(Debug)]
#[must_use]
pub struct Open {
    /// Where its field begins.
    field: usize,
    /// Where its first field begins, behind one byte for its length.
    content: usize,
}

impl Writer {
    /// A message without fields, with room for so many bytes.
    #[must_use]
    #[inline]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { buf: Vec::with_capacity(bytes) }
    }

    /// The message.
    #[must_use]
    #[inline]
    pub fn into_bytes(self) -> Vec<u8> {
        self.buf
    }

    /// An integer, bool or enum.
    #[inline]
    pub fn varint(&mut self, number: u32, value: u64) {
        self.key(number, VARINT);
        self.raw_varint(value);
    }

    /// A `fixed64` or double, by its bits.
    #[inline]
    pub fn fixed64(&mut self, number: u32, value: u64) {
        self.key(number, FIXED64);
        self.buf.extend_from_slice(&value.to_le_bytes());
    }

    /// A `fixed32` or float, by its bits.
    #[inline]
    pub fn fixed32(&mut self, number: u32, value: u32) {
        self.key(number, FIXED32);
        self.buf.extend_from_slice(&value.to_le_bytes());
    }

    /// A byte string, a string, or an embedded message that is written already.
    #[inline]
    pub fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.header(number, bytes.len());
        self.buf.extend_from_slice(bytes);
    }

    /// What stands before the `len` bytes of an embedded message.
    #[inline]
    pub fn header(&mut self, number: u32, len: usize) {
        self.key(number, LEN);
        self.raw_varint(len as u64);
    }

    /// Bytes that are fields already.
    #[inline]
    pub fn raw(&mut self, fields: &[u8]) {
        self.buf.extend_from_slice(fields);
    }

    /// Begins an embedded message: what is written next are its fields, until [`close`](Self::close).
    #[inline]
    pub fn open(&mut self, number: u32) -> Open {
        let field = self.buf.len();
        self.key(number, LEN);
        self.buf.push(0);
        Open { field, content: self.buf.len() }
    }

    /// Ends an embedded message. One of 128 bytes or more is moved, to make room for the rest of its length.
    #[inline]
    pub fn close(&mut self, open: Open) {
        let len = self.buf.len() - open.content;
        if len < 0x80 {
            self.buf[open.content - 1] = low_byte(len as u64);
            return;
        }
        self.buf[open.content - 1] = low_byte(len as u64) | 0x80;
        self.raw_varint(len as u64 >> 7);
        let more = self.buf.len() - open.content - len;
        self.buf[open.content..].rotate_right(more);
    }

    /// Takes an embedded message back, with all that was written since it began.
    #[inline]
    pub fn abandon(&mut self, open: Open) {
        self.buf.truncate(open.field);
    }

    #[inline]
    fn key(&mut self, number: u32, wire_type: u32) {
        self.raw_varint(u64::from(number << 3 | wire_type));
    }

    #[inline]
    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.buf.push(low_byte(value) | 0x80);
            value >>= 7;
        }
        self.buf.push(low_byte(value));
    }
}

/// How many bytes [`Writer::header`] takes for a field with a number below 16.
#[must_use]
pub const fn header_len(len: usize) -> usize {
    let mut rest = len as u64 >> 7;
    let mut bytes = 2;
    while rest > 0 {
        rest >>= 7;
        bytes += 1;
    }
    bytes
}

#[inline]
const fn low_byte(value: u64) -> u8 {
    value.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::encoding::{decode_varint, encode_varint};

    use super::*;

    fn all(message: &[u8]) -> Result<Vec<Field<'_>>, WireError> {
        Fields::of(message).collect()
    }

    fn write(fields: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::with_capacity(0);
        fields(&mut writer);
        writer.into_bytes()
    }

    #[test]
    fn what_was_written_is_read() {
        let message = write(|w| {
            w.varint(1, u64::MAX);
            w.fixed64(2, 7);
            w.fixed32(3, 8);
            w.bytes(16, b"text");
            let open = w.open(5);
            w.varint(1, 300);
            w.close(open);
        });
        let fields = all(&message).unwrap();
        assert_eq!(fields.iter().map(|field| field.number).collect::<Vec<_>>(), [1, 2, 3, 16, 5]);
        assert_eq!(fields[0].varint(), Ok(u64::MAX));
        assert_eq!(fields[1].fixed64(), Ok(7));
        assert_eq!(fields[2].fixed32(), Ok(8));
        assert_eq!(fields[3].text(), Ok("text"));
        assert_eq!(all(fields[4].bytes().unwrap()).unwrap()[0].varint(), Ok(300));
    }

    #[test]
    fn an_embedded_message_of_any_length_keeps_its_content() {
        for len in [0, 1, 125, 126, 127, 128, 129, 16_382, 16_383, 16_384, 3_000_000] {
            let content: Vec<u8> = (0..len).map(|i| low_byte(i as u64 % 251)).collect();
            let message = write(|w| {
                w.varint(1, 1);
                let open = w.open(2);
                w.buf.extend_from_slice(&content);
                w.close(open);
                w.varint(3, 3);
            });
            let fields = all(&message).unwrap();
            assert_eq!(fields[1].bytes(), Ok(&content[..]), "{len}");
            assert_eq!(fields[2].varint(), Ok(3));
        }
    }

    #[test]
    fn an_embedded_message_of_any_length_has_its_length_before_it() {
        for len in [0, 1, 127, 128, 129, 16_383, 16_384, 3_000_000] {
            let content: Vec<u8> = (0..len).map(|at| low_byte(at as u64 % 251)).collect();
            let embedded = write(|w| {
                let open = w.open(5);
                w.raw(&content);
                w.close(open);
            });
            let known = write(|w| w.bytes(5, &content));
            assert_eq!(known.len(), header_len(len) + len);
            assert!(embedded == known, "{len}");
        }
    }

    #[test]
    fn every_wire_type_is_read_and_a_cut_is_a_fault() {
        let message = [
            &[0x08, 0xac, 0x02][..],
            &[0x11, 1, 0, 0, 0, 0, 0, 0, 0],
            &[0x1a, 2, b'h', b'i'],
            &[0x25, 7, 0, 0, 0],
            &[0x82, 0x01, 0],
        ]
        .concat();
        let read = all(&message).unwrap();
        let values: Vec<_> = read.iter().map(|field| (field.number, field.payload)).collect();
        assert_eq!(
            values,
            [
                (1, Payload::Varint(300)),
                (2, Payload::Fixed64(1)),
                (3, Payload::Len(b"hi")),
                (4, Payload::Fixed32(7)),
                (16, Payload::Len(b"")),
            ]
        );
        // Between two fields a cut can't be told.
        let ends = [0, 3, 12, 16, 21, message.len()];
        for cut in 0..message.len() {
            assert_eq!(all(&message[..cut]).is_ok(), ends.contains(&cut), "{cut}");
        }
    }

    #[test]
    fn what_is_no_protobuf_is_told() {
        for bytes in [&b"{\"a\":1}"[..], &[0x0b], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], &[0x00, 0x00], &[0xff; 12]] {
            assert!(all(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn an_abandoned_message_leaves_nothing() {
        let message = write(|w| {
            w.varint(1, 1);
            let open = w.open(2);
            w.bytes(1, b"canary");
            w.abandon(open);
        });
        assert_eq!(message, [0x08, 1]);
    }

    #[test]
    fn each_fault_has_its_name() {
        let eleven = [[0x08].as_slice(), &[0xff; 10], &[0]].concat();
        let over_64_bits = [[0x08].as_slice(), &[0xff; 9], &[2]].concat();
        let cases: &[(&[u8], WireError)] = &[
            (&[0x08], WireError::Truncated),
            (&[0x08, 0x80], WireError::Truncated),
            (&[0x09, 0, 0, 0, 0, 0, 0, 0], WireError::Truncated),
            (&[0x0d, 0, 0, 0], WireError::Truncated),
            (&[0x0a, 2, 0], WireError::Truncated),
            (&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], WireError::Truncated),
            (&eleven, WireError::VarintTooLong),
            (&over_64_bits, WireError::VarintTooLong),
            (&[0x00, 0], WireError::FieldNumber),
            (&[0x80, 0x80, 0x80, 0x80, 0x10, 0], WireError::FieldNumber),
            (&[0x0b, 0x0c], WireError::Group),
            (&[0x0c], WireError::Group),
            (&[0x0e], WireError::WireType),
            (&[0x0f], WireError::WireType),
        ];
        for (bytes, expected) in cases {
            assert_eq!(all(bytes), Err(*expected), "{bytes:x?}");
        }
    }

    #[test]
    fn a_field_has_one_type_only() {
        let message = write(|w| w.bytes(1, &[0xff]));
        let field = all(&message).unwrap()[0];
        assert_eq!(field.text(), Err(WireError::NotUtf8));
        assert_eq!(field.varint(), Err(WireError::WrongType));
        assert_eq!(field.fixed32(), Err(WireError::WrongType));
        assert_eq!(field.fixed64(), Err(WireError::WrongType));
        let message = write(|w| w.varint(1, 1));
        assert_eq!(all(&message).unwrap()[0].bytes(), Err(WireError::WrongType));
    }

    #[test]
    fn reading_ends_at_the_first_error() {
        assert_eq!(Fields::of(&[0x00, 0x08, 1]).count(), 1);
    }

    proptest! {
        #[test]
        fn varints_are_those_of_prost(value: u64, garbage in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut theirs = Vec::new();
            encode_varint(value, &mut theirs);
            prop_assert_eq!(&write(|w| w.raw_varint(value)), &theirs);
            prop_assert_eq!(Fields::of(&theirs).varint(), Ok(value));
            prop_assert_eq!(Fields::of(&garbage).varint().ok(), decode_varint(&mut &garbage[..]).ok());
        }
    }
}
