//! A body in memory of its own size.
//!
//! A piece of a body that came in a packet keeps the memory of everything that was received with it: one byte may hold a
//! packet, or the 64 KiB that the kernel handed over at once. A sender could so take many times the memory that its body
//! has reserved. Copied once into blocks, a body takes what it is long, and goes to its store in fewer writes.

use bytes::{Bytes, BytesMut};

/// The size of a block; the last one of a body is as small as it can be.
const BLOCK_BYTES: usize = 64 * 1024;

/// Blocks that fill up.
#[derive(Debug)]
pub(super) struct Blocks {
    full: Vec<Bytes>,
    open: BytesMut,
    /// How much is still to come, at most.
    left: u64,
}

impl Blocks {
    /// For a body of at most `len` bytes.
    pub(super) fn new(len: u64) -> Self {
        Self { full: Vec::new(), open: BytesMut::new(), left: len }
    }

    /// Takes the next piece.
    pub(super) fn push(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            if self.open.len() == self.open.capacity() {
                self.close();
                self.open = BytesMut::with_capacity(self.next_block(piece.len()));
            }
            let room = self.open.capacity() - self.open.len();
            let (now, later) = piece.split_at(room.min(piece.len()));
            self.open.extend_from_slice(now);
            self.left = self.left.saturating_sub(now.len() as u64);
            piece = later;
        }
    }

    /// The blocks, in order.
    pub(super) fn finish(mut self) -> Vec<Bytes> {
        self.close();
        self.full
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.full.push(std::mem::take(&mut self.open).freeze());
        }
    }

    /// As large as what is still to come, within [`BLOCK_BYTES`]; of a body that is longer than it said, as large as needed.
    fn next_block(&self, piece: usize) -> usize {
        usize::try_from(self.left).unwrap_or(BLOCK_BYTES).max(piece.min(BLOCK_BYTES)).clamp(1, BLOCK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_blocks(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 0..120),
            announced in 0_u64..400_000,
        ) {
            let whole = pieces.concat();
            let mut blocks = Blocks::new(announced);
            pieces.iter().for_each(|piece| blocks.push(piece));
            let blocks = blocks.finish();
            prop_assert_eq!(blocks.concat(), whole);
            prop_assert!(blocks.iter().all(|block| block.len() <= BLOCK_BYTES));
        }
    }

    #[test]
    fn a_body_of_single_bytes_takes_what_it_is_long() {
        let mut blocks = Blocks::new(100_000);
        for _ in 0..100_000 {
            // Each is a byte of a packet of its own.
            blocks.push(&Bytes::from(vec![0; 1_400])[..1]);
        }
        let sizes: Vec<_> = blocks.finish().iter().map(Bytes::len).collect();
        assert_eq!(sizes, [BLOCK_BYTES, 100_000 - BLOCK_BYTES]);
    }
}
