//! Reading protobuf messages field by field, in place: nothing is allocated for what a message holds, however many fields
//! it has.

/// The message breaks off, or has a wire type that is not of proto3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field<'m> {
    pub(crate) number: u64,
    pub(crate) value: Value<'m>,
}

/// The value of a field, by its wire type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'m> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    /// Text, bytes, a message, or a packed list.
    Bytes(&'m [u8]),
}

impl<'m> Value<'m> {
    pub(crate) const fn bytes(self) -> Option<&'m [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The fields of a message, in their order. After a fault there are no more.
pub(crate) const fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

pub(crate) struct Fields<'m> {
    rest: &'m [u8],
}

impl<'m> Iterator for Fields<'m> {
    type Item = Result<Field<'m>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or(Malformed))
    }
}

impl<'m> Fields<'m> {
    fn read(&mut self) -> Option<Field<'m>> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        (key >> 3 != 0).then_some(Field { number: key >> 3, value })
    }

    fn take(&mut self, length: u64) -> Option<&'m [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(message: &[u8]) -> Result<Vec<Field<'_>>, Malformed> {
        fields(message).collect()
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
        let values: Vec<(u64, Value<'_>)> = read.iter().map(|field| (field.number, field.value)).collect();
        assert_eq!(
            values,
            [
                (1, Value::Varint(300)),
                (2, Value::Fixed64(1)),
                (3, Value::Bytes(b"hi")),
                (4, Value::Fixed32(7)),
                (16, Value::Bytes(b"")),
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
            assert_eq!(all(bytes), Err(Malformed), "{bytes:?}");
        }
    }
}
