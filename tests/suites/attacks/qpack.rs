//! Field sections and instructions of QPACK (RFC 9204).

use bytes::Bytes;
use h3::error::Code;
use telemetry_rig::raw::Frame;
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::{Suite, TestResult};

use crate::NEEDS;
use crate::arena::{ATTACKER, LINE, withstand};
use crate::expected::Expected::{self, Closed, Reset};
use crate::expected::{Case, add_cases, expect, good_head};

const ENCODER: u64 = 0x02;
const DECODER: u64 = 0x03;

/// A case whose head is this field section.
macro_rules! section {
    ($name:literal, $expected:expr, $bytes:expr) => {
        Case { name: $name, expected: $expected, frames: |_| vec![Frame::headers(Bytes::from($bytes.to_vec()))] }
    };
}

pub(crate) fn add(suite: Suite) -> Suite {
    const FAILED: Expected = Closed(Code::QPACK_DECOMPRESSION_FAILED);
    let cases = [
        section!("prefix_only_half", FAILED, b"\0"),
        section!("required_insert_count_of_a_table_that_is_empty", FAILED, b"\x02\0\x80"),
        section!("dynamic_reference", FAILED, b"\0\0\x80"),
        section!("dynamic_reference_after_the_base", FAILED, b"\0\0\x10"),
        section!("dynamic_name_reference", FAILED, b"\0\0\x40\x01x"),
        section!("dynamic_name_reference_after_the_base", FAILED, b"\0\0\x00\x01x"),
        section!("static_reference_out_of_range", FAILED, b"\0\0\xff\x24"),
        section!("static_reference_far_out_of_range", FAILED, b"\0\0\xff\xff\xff\xff\x7f"),
        section!("integer_without_end", FAILED, [&b"\0\0\xff"[..], &[0xff; 64]].concat()),
        section!("integer_that_overflows", FAILED, b"\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        section!("insert_count_that_overflows", FAILED, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\0"),
        section!("name_longer_than_the_section", FAILED, b"\0\0\x27\xf8\xff\xff\x07x"),
        section!("value_longer_than_the_section", FAILED, b"\0\0\x21x\x7f\xff\xff\x07y"),
        // h3 forgives these two. The message is malformed all the same, since it has no pseudo fields.
        section!("huffman_with_the_end_symbol", Reset(Code::H3_MESSAGE_ERROR), b"\0\0\x21x\x84\xff\xff\xff\xff"),
        section!("huffman_with_bad_padding", FAILED, b"\0\0\x21x\x81\x00"),
        section!("huffman_with_padding_of_a_byte", Reset(Code::H3_MESSAGE_ERROR), b"\0\0\x21x\x82\x1f\xff"),
        // Static entry 85 has 63 octets in all, and takes two here.
        section!(
            "bomb_of_static_references",
            Reset(Code::H3_REQUEST_CANCELLED),
            b"\0\0".iter().copied().chain([0xff, 22].into_iter().cycle().take(16_000)).collect::<Vec<_>>()
        ),
    ];
    add_cases(suite, "qpack", cases)
        .expecting("qpack: instructions_for_a_table_that_is_not_there", "delivered: it is harmless", NEEDS, || {
            withstand(instructions)
        })
        .expecting("qpack: instructions_without_end", "connection closed: H3_EXCESSIVE_LOAD", NEEDS, || {
            withstand(flood)
        })
}

/// We announce no dynamic table. What is said about it is drained and means nothing; a reference to it is an error, above.
async fn instructions(rig: &Rig) -> TestResult {
    let instructions: [(u64, &[u8]); 6] = [
        (ENCODER, b"\x3f\xe1\x1f"),
        (ENCODER, b"\x41x\x01y"),
        (ENCODER, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        (ENCODER, b"\x1f\xff\xff\x7f"),
        (DECODER, b"\0"),
        (DECODER, b"\xff\xff\xff\xff\x7f"),
    ];
    for (kind, bytes) in instructions {
        let peer = rig.hand_made(ATTACKER).await?;
        let _stream = peer.open_uni(kind, bytes).await?;
        expect(&peer, &[good_head(rig).frame(), Frame::data(LINE)], Expected::Delivered).await?;
    }
    Ok(())
}

async fn flood(rig: &Rig) -> TestResult {
    for kind in [ENCODER, DECODER] {
        let peer = rig.hand_made(ATTACKER).await?;
        let mut stream = peer.open_uni(kind, b"").await?;
        // Fails when the connection is closed under it.
        let _ = stream.write_all(&vec![0x20; 8 * 1024 * 1024]).await;
        crate::expected::closed_with(&peer, Code::H3_EXCESSIVE_LOAD).await?;
    }
    Ok(())
}
