//! IDs of traces and spans.

use std::cell::RefCell;
use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

/// Names a trace. Never zero; shown as 32 lowercase hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceId(NonZeroU128);

/// Names a span within its trace. Never zero; shown as 16 lowercase hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpanId(NonZeroU64);

impl TraceId {
    /// A new ID.
    #[must_use]
    pub fn random() -> Self {
        loop {
            if let Some(id) = Self::from_bytes(random_bits().to_be_bytes()) {
                return id;
            }
        }
    }

    /// The ID with these bytes. `None` if all are zero.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        match NonZeroU128::new(u128::from_be_bytes(bytes)) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// The bytes, as they go over the wire.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }
}

impl SpanId {
    /// A new ID.
    #[must_use]
    pub fn random() -> Self {
        loop {
            let [half, _] = halves(random_bits());
            if let Some(id) = Self::from_bytes(half) {
                return id;
            }
        }
    }

    /// The ID with these bytes. `None` if all are zero.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 8]) -> Option<Self> {
        match NonZeroU64::new(u64::from_be_bytes(bytes)) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// The bytes, as they go over the wire.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(super) fn halves(bits: u128) -> [[u8; 8]; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bits.to_be_bytes();
    [[a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]]
}

/// 128 bits that differ from thread to thread, process to process and machine to machine. They guard nothing. One
/// generator has 64 bits of state, too few for all traces of a cluster; two have enough.
fn random_bits() -> u128 {
    thread_local! {
        static GENERATORS: RefCell<[fastrand::Rng; 2]> = RefCell::new([seeded(), seeded()]);
    }
    GENERATORS.with_borrow_mut(|[high, low]| u128::from(high.u64(..)) << 64 | u128::from(low.u64(..)))
}

fn seeded() -> fastrand::Rng {
    let mut seed = [0; 8];
    match aws_lc_rs::rand::fill(&mut seed) {
        Ok(()) => fastrand::Rng::with_seed(u64::from_ne_bytes(seed)),
        // The operating system has none left: time and thread must do.
        Err(_) => fastrand::Rng::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_lowercase_hex_with_all_their_digits_and_never_zero() {
        let trace = TraceId::from_bytes([0, 0xAB, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]).unwrap();
        assert_eq!(trace.to_string(), "00ab0000000000000000000000000001");
        let span = SpanId::from_bytes([0, 0xCD, 0, 0, 0, 0, 0, 1]).unwrap();
        assert_eq!(format!("{span} {span:?}"), "00cd000000000001 00cd000000000001");
        assert!(TraceId::from_bytes([0; 16]).is_none() && SpanId::from_bytes([0; 8]).is_none());
    }

    #[test]
    fn new_ids_differ_within_a_thread_and_between_threads() {
        let many = || (0..10_000).map(|_| TraceId::random()).collect::<Vec<_>>();
        let others: Vec<_> = (0..4).map(|_| std::thread::spawn(many)).collect();
        let ids: HashSet<TraceId> =
            others.into_iter().flat_map(|thread| thread.join().unwrap()).chain(many()).collect();
        assert_eq!(ids.len(), 50_000);
    }
}
