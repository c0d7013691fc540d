//! Frames on a request stream (RFC 9114 section 7).

use bytes::Bytes;
use h3::error::Code;
use telemetry_proto::Reason;
use telemetry_rig::raw::Frame;
use telemetry_rig::suite::Suite;

use crate::arena::LINE;
use crate::expected::Expected::{Closed, Delivered, Refused, Reset};
use crate::expected::{Case, add_cases, good_head};

const HUGE: u64 = (1 << 62) - 1;
const GREASE: u64 = 0x21;

/// A case whose frames come after a good head.
macro_rules! after_head {
    ($name:literal, $expected:expr, [$($frame:expr),* $(,)?]) => {
        Case { name: $name, expected: $expected, frames: |rig| vec![good_head(rig).frame(), $($frame),*] }
    };
}

/// A case whose frames are all there is.
macro_rules! alone {
    ($name:literal, $expected:expr, [$($frame:expr),* $(,)?]) => {
        Case { name: $name, expected: $expected, frames: |_| vec![$($frame),*] }
    };
}

pub(crate) fn add(suite: Suite) -> Suite {
    let cases = [
        after_head!("data_truncated", Closed(Code::H3_FRAME_ERROR), [Frame::data(LINE).announcing(1_000)]),
        after_head!("data_of_2_62_bytes", Closed(Code::H3_FRAME_ERROR), [Frame::data(LINE).announcing(HUGE)]),
        after_head!("data_empty_only", Refused(Reason::LengthMismatch), [Frame::data("")]),
        after_head!("data_empty_around", Delivered, [Frame::data(""), Frame::data(LINE), Frame::data("")]),
        alone!("data_before_headers", Closed(Code::H3_FRAME_UNEXPECTED), [Frame::data(LINE)]),
        alone!("data_empty_before_headers", Closed(Code::H3_FRAME_UNEXPECTED), [Frame::data("")]),
        alone!("headers_truncated", Closed(Code::H3_FRAME_ERROR), [Frame::headers(&b"\0\0"[..]).announcing(100)]),
        alone!("headers_empty", Closed(Code::QPACK_DECOMPRESSION_FAILED), [Frame::headers("")]),
        alone!("headers_of_2_62_bytes", Reset(Code::H3_EXCESSIVE_LOAD), [Frame::headers("").announcing(HUGE)]),
        alone!("nothing_at_all", Reset(Code::H3_REQUEST_INCOMPLETE), []),
        Case {
            name: "headers_after_trailers",
            expected: Closed(Code::H3_FRAME_UNEXPECTED),
            frames: |rig| {
                let head = good_head(rig).frame();
                vec![head.clone(), Frame::data(LINE), head.clone(), head]
            },
        },
        after_head!(
            "data_after_trailers",
            Closed(Code::H3_FRAME_UNEXPECTED),
            [Frame::data(&LINE[..5]), trailers(), Frame::data(&LINE[5..])]
        ),
        Case {
            name: "headers_three_times",
            expected: Closed(Code::H3_FRAME_UNEXPECTED),
            frames: |rig| vec![good_head(rig).frame(), good_head(rig).frame(), good_head(rig).frame()],
        },
        after_head!("trailers_are_dropped", Delivered, [Frame::data(LINE), trailers()]),
        after_head!(
            "unknown_frames_are_skipped",
            Delivered,
            [Frame::new(GREASE, "x"), Frame::data(LINE), Frame::new(0x41, "web transport?"), Frame::new(HUGE, ""),]
        ),
        after_head!(
            "unknown_frame_large",
            Closed(Code::H3_EXCESSIVE_LOAD),
            [Frame::new(GREASE, Bytes::from(vec![0; 100_000])),]
        ),
        after_head!(
            "unknown_frame_of_2_62_bytes",
            Closed(Code::H3_EXCESSIVE_LOAD),
            [Frame::new(GREASE, "").announcing(HUGE),]
        ),
        Case {
            name: "unknown_frames_without_end",
            expected: Closed(Code::H3_EXCESSIVE_LOAD),
            frames: |rig| {
                let mut frames = vec![good_head(rig).frame()];
                frames.extend(std::iter::repeat_n(Frame::new(GREASE, ""), 10_000));
                frames
            },
        },
        after_head!("http2_priority", Closed(Code::H3_FRAME_UNEXPECTED), [Frame::new(0x2, "")]),
        after_head!("http2_ping", Closed(Code::H3_FRAME_UNEXPECTED), [Frame::new(0x6, &b"12345678"[..])]),
        after_head!("http2_window_update", Closed(Code::H3_FRAME_UNEXPECTED), [Frame::new(0x8, &b"1234"[..])]),
        after_head!("http2_continuation", Closed(Code::H3_FRAME_UNEXPECTED), [Frame::new(0x9, "x")]),
        alone!("settings_on_a_request", Closed(Code::H3_FRAME_UNEXPECTED), [Frame::new(0x4, "")]),
        after_head!("goaway_on_a_request", Closed(Code::H3_FRAME_UNEXPECTED), [Frame::new(0x7, &b"\0"[..])]),
        after_head!("cancel_push_on_a_request", Closed(Code::H3_FRAME_UNEXPECTED), [Frame::new(0x3, &b"\0"[..])]),
        after_head!("max_push_id_on_a_request", Closed(Code::H3_FRAME_UNEXPECTED), [Frame::new(0xd, &b"\0"[..])]),
        after_head!(
            "push_promise_from_a_client",
            Closed(Code::H3_FRAME_UNEXPECTED),
            [Frame::new(0x5, &b"\0\0\0"[..]),]
        ),
    ];
    add_cases(suite, "frames", cases)
}

fn trailers() -> Frame {
    // x: y
    Frame::headers(&b"\0\0\x21x\x01y"[..])
}
