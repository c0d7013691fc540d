//! What the guard does beyond the facts: limits on everything beside the body, errors that stay, and what a driver learns.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use bytes::{Buf, Bytes};
use common::*;
use h3::error::Code;
use http::{Request, Response};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use telemetry_h3::guard::ResponseEnd;
use telemetry_h3::{GuardLimits, StreamFailure, Violation, client, server};

/// A guarded server that is driven in the background.
async fn driven(pair: &Pair) -> telemetry_h3::guard::Monitor {
    let (server, monitor) = pair.guarded().await;
    drive(server);
    monitor
}

mod control_streams {
    use super::*;

    #[tokio::test]
    async fn settings_are_noticed() {
        let pair = Pair::new().await;
        let monitor = driven(&pair).await;
        assert!(!monitor.has_settings());
        let _client = pair.raw_client().await;
        within(monitor.settings()).await;
        assert!(monitor.has_settings());
    }

    #[tokio::test]
    async fn a_flood_of_frames_is_excessive_load() {
        for flood in [frame(MAX_PUSH_ID, &[1]), frame(GREASE, b"")] {
            let pair = Pair::new().await;
            let monitor = driven(&pair).await;
            let mut client = pair.raw_client().await;
            // Fails when the connection is closed under it.
            let _ = client.control.write_all(&flood.repeat(2000)).await;
            assert_eq!(pair.close_code().await, Code::H3_EXCESSIVE_LOAD);
            assert_eq!(monitor.violation(), Some(Violation::TooManyControlFrames));
        }
    }

    #[tokio::test]
    async fn bare_h3_waits_for_ever_after_a_control_frame_that_is_too_short_and_holds_all_that_follows() {
        let pair = Pair::new().await;
        drive(pair.bare().await);
        let mut client = pair.raw_client().await;
        client.control.write_all(&frame(GOAWAY, b"")).await.unwrap();
        let sent = within(client.control.write_all(&frame(MAX_PUSH_ID, &[0; 1000]).repeat(8 * 1024))).await;
        assert!(sent.is_ok(), "8 MiB went into a stream with a window of 1 MiB that nobody reads");
    }

    #[tokio::test]
    async fn a_control_frame_that_is_too_short_is_an_error() {
        let pair = Pair::new().await;
        driven(&pair).await;
        let mut client = pair.raw_client().await;
        client.control.write_all(&frame(GOAWAY, b"")).await.unwrap();
        assert_eq!(pair.close_code().await, Code::H3_FRAME_ERROR);
    }

    #[tokio::test]
    async fn a_control_stream_that_does_not_begin_with_settings_is_an_error() {
        let pair = Pair::new().await;
        driven(&pair).await;
        let mut control = pair.client.open_uni().await.unwrap();
        control.write_all(&[0, GREASE, 0]).await.unwrap();
        assert_eq!(pair.close_code().await, Code::H3_MISSING_SETTINGS);
    }

    #[tokio::test]
    async fn the_end_of_a_critical_stream_is_the_end_of_the_connection() {
        for kind in [CONTROL, ENCODER, DECODER] {
            let pair = Pair::new().await;
            driven(&pair).await;
            let mut client = pair.raw_client().await;
            if kind == CONTROL {
                client.control.finish().unwrap();
            } else {
                client.uni(kind).await.finish().unwrap();
            }
            assert_eq!(pair.close_code().await, Code::H3_CLOSED_CRITICAL_STREAM, "{kind}");
        }
    }

    const CONTROL: u8 = 0;
    const PUSH: u8 = 1;
    const ENCODER: u8 = 2;
    const DECODER: u8 = 3;

    #[tokio::test]
    async fn a_second_stream_of_a_kind_and_a_push_stream_are_errors() {
        for kind in [CONTROL, ENCODER, DECODER, PUSH] {
            let pair = Pair::new().await;
            driven(&pair).await;
            let client = pair.raw_client().await;
            let _first = if kind == PUSH { None } else { Some(client.uni(kind).await) };
            let _second = client.uni(kind).await;
            assert_eq!(pair.close_code().await, Code::H3_STREAM_CREATION_ERROR, "{kind}");
        }
    }

    #[tokio::test]
    async fn qpack_streams_are_drained_within_a_limit() {
        for kind in [ENCODER, DECODER] {
            let pair = Pair::new().await;
            let monitor = driven(&pair).await;
            let client = pair.raw_client().await;
            let mut stream = client.uni(kind).await;
            let limit = usize::try_from(GuardLimits::default().max_qpack_bytes).unwrap();
            stream.write_all(&vec![0x20; limit + 1]).await.unwrap();
            assert_eq!(pair.close_code().await, Code::H3_EXCESSIVE_LOAD);
            assert_eq!(monitor.violation(), Some(Violation::TooMuchQpack));
        }
    }

    #[tokio::test]
    async fn streams_of_unknown_types_are_stopped_within_a_limit() {
        let pair = Pair::new().await;
        let monitor = driven(&pair).await;
        let client = pair.raw_client().await;
        for _ in 0..GuardLimits::default().max_unknown_streams {
            let stream = within(client.uni(GREASE)).await;
            let stopped = within(stream.stopped()).await.unwrap().unwrap();
            assert_eq!(Code::from(stopped.into_inner()), Code::H3_STREAM_CREATION_ERROR);
        }
        assert_eq!(monitor.violation(), None);
        let _last = client.uni(GREASE).await;
        assert_eq!(pair.close_code().await, Code::H3_EXCESSIVE_LOAD);
    }

    #[tokio::test]
    async fn a_stream_may_end_before_its_type_arrives() {
        let pair = Pair::new().await;
        let (mut server, _) = pair.guarded().await;
        let client = pair.raw_client().await;
        for _ in 0..20 {
            let mut stream = within(pair.client.open_uni()).await.unwrap();
            stream.reset(0u32.into()).unwrap();
            let mut stream = within(pair.client.open_uni()).await.unwrap();
            // Half of a varint of two bytes.
            stream.write_all(&[0x40]).await.unwrap();
            stream.finish().unwrap();
            let (_send, _recv) = client.post().await;
            accept(&mut server).await.unwrap();
        }
    }
}

mod streams_that_get_no_answer {
    use super::*;

    #[tokio::test]
    async fn are_counted_and_too_many_are_excessive_load() {
        let pair = Pair::new().await;
        let limits = GuardLimits { max_unanswered_streams: 20, ..GuardLimits::default() };
        let (mut server, monitor) = pair.guarded_with(limits).await;
        let client = pair.raw_client().await;
        let resets = async {
            for _ in 0..21 {
                let (mut send, _) = client.post().await;
                send.reset(0x10c_u32.into()).unwrap();
            }
        };
        let serve = async {
            while let Ok(Some(request)) = server.accept().await {
                drop(request.resolve_request().await)
            }
        };
        within(async { tokio::join!(resets, serve) }).await;
        assert_eq!(monitor.unanswered_streams(), 21);
        assert_eq!(monitor.violation(), Some(Violation::TooManyUnanswered));
        assert_eq!(pair.close_code().await, Code::H3_EXCESSIVE_LOAD);
    }

    #[tokio::test]
    async fn do_not_include_those_that_got_one() {
        let pair = Pair::new().await;
        let (mut server, monitor) = pair.guarded().await;
        let client = pair.raw_client().await;
        let (_send, _recv) = client.post().await;
        let (_, mut stream) = accept(&mut server).await.unwrap();
        stream.send_response(Response::new(())).await.unwrap();
        drop(stream);
        assert_eq!(monitor.unanswered_streams(), 0);
    }
}

mod errors_stay {
    use super::*;

    /// quinn tells of a reset once, and reports a clean end ever after.
    #[tokio::test]
    async fn after_a_reset() {
        let pair = Pair::new().await;
        let (mut server, _) = pair.guarded().await;
        let client = pair.raw_client().await;
        let (mut send, _recv) = client.post().await;
        let (_, mut stream) = accept(&mut server).await.unwrap();
        send.reset(0x10c_u32.into()).unwrap();
        for _ in 0..3 {
            let failure = StreamFailure::from(read_body(&mut stream).await.unwrap_err().1);
            assert_eq!(failure, StreamFailure::Terminated(Code::H3_REQUEST_CANCELLED));
        }
    }

    /// h3-quinn reports a clean end after reading was stopped.
    #[tokio::test]
    async fn after_reading_was_stopped() {
        let pair = Pair::new().await;
        let (mut server, _) = pair.guarded().await;
        let client = pair.raw_client().await;
        let (_send, _recv) = client.post().await;
        let (_, mut stream) = accept(&mut server).await.unwrap();
        stream.stop_sending(Code::H3_NO_ERROR);
        let failure = StreamFailure::from(read_body(&mut stream).await.unwrap_err().1);
        assert_eq!(failure, StreamFailure::ClosedHere);
    }

    #[tokio::test]
    async fn after_a_frame_that_is_not_allowed_here() {
        let pair = Pair::new().await;
        let (mut server, _) = pair.guarded().await;
        let client = pair.raw_client().await;
        let (mut send, _recv) = client.post().await;
        send.write_all(&frame(GOAWAY, &[0])).await.unwrap();
        send.finish().unwrap();
        let (_, mut stream) = accept(&mut server).await.unwrap();
        for _ in 0..2 {
            let failure = StreamFailure::from(read_body(&mut stream).await.unwrap_err().1);
            assert_eq!(failure, StreamFailure::Violation(Violation::UnexpectedFrame));
        }
        assert_eq!(pair.close_code().await, Code::H3_FRAME_UNEXPECTED);
    }
}

mod the_watch_over_a_response {
    use super::*;

    #[tokio::test]
    async fn tells_that_all_of_it_arrived() {
        let pair = Pair::new().await;
        let (mut server, monitor) = pair.guarded().await;
        let client = pair.raw_client().await;
        let (_send, mut recv) = client.post().await;
        let (_, mut stream) = accept(&mut server).await.unwrap();
        let mut watch = monitor.take_watch().unwrap();
        assert_eq!(watch.id(), stream.send_id());
        assert!(monitor.take_watch().is_none());
        stream.send_response(Response::new(())).await.unwrap();
        assert!(stays_pending(watch.ended()).await);
        stream.finish().await.unwrap();
        recv.read_to_end(1024).await.unwrap();
        assert_eq!(within(watch.ended()).await, ResponseEnd::Delivered);
        assert_eq!(within(watch.ended()).await, ResponseEnd::Delivered);
    }

    #[tokio::test]
    async fn tells_that_nobody_wants_it() {
        let pair = Pair::new().await;
        let (mut server, monitor) = pair.guarded().await;
        let client = pair.raw_client().await;
        let (_send, mut recv) = client.post().await;
        let (_, _stream) = accept(&mut server).await.unwrap();
        let mut watch = monitor.take_watch().unwrap();
        recv.stop(0x10c_u32.into()).unwrap();
        assert_eq!(within(watch.ended()).await, ResponseEnd::Stopped(Code::H3_REQUEST_CANCELLED));
    }

    #[tokio::test]
    async fn tells_that_the_connection_is_gone() {
        let pair = Pair::new().await;
        let (mut server, monitor) = pair.guarded().await;
        let client = pair.raw_client().await;
        let (_send, _recv) = client.post().await;
        let (_, _stream) = accept(&mut server).await.unwrap();
        let mut watch = monitor.take_watch().unwrap();
        pair.client.close(0x100_u32.into(), b"");
        assert_eq!(within(watch.ended()).await, ResponseEnd::ConnectionLost);
    }
}

/// Both ends guarded, bodies of all shapes: what goes in comes out.
#[tokio::test]
async fn a_body_goes_through_both_guards_unchanged() {
    let pair = Pair::new().await;
    let limits = GuardLimits::default();
    let begun = tokio::join!(client::begin(pair.client.clone(), limits), server::begin(pair.server.clone(), limits));
    let ((mut driver, mut requests, _), (mut acceptor, _)) = (begun.0.unwrap(), begun.1.unwrap());
    tokio::spawn(async move { driver.wait_idle().await });
    tokio::spawn(async move {
        while let Ok(Some(request)) = acceptor.accept().await {
            tokio::spawn(async move {
                let (_, mut stream) = request.resolve_request().await.unwrap();
                stream.send_response(Response::new(())).await.unwrap();
                while let Some(mut data) = stream.recv_data().await.unwrap() {
                    stream.send_data(data.copy_to_bytes(data.remaining())).await.unwrap();
                }
                assert!(stream.recv_trailers().await.unwrap().is_none());
                stream.finish().await.unwrap();
            });
        }
    });
    let mut runner = TestRunner::deterministic();
    let shapes = proptest::collection::vec(prop_oneof![0..4_usize, 0..3_000_usize, 0..300_000_usize], 0..30);
    for _ in 0..20 {
        let sizes = shapes.new_tree(&mut runner).unwrap().current();
        let body: Bytes = (0..sizes.iter().sum::<usize>()).map(|i| (i % 251).to_le_bytes()[0]).collect();
        let stream = requests.send_request(Request::post("https://a/").body(()).unwrap()).await.unwrap();
        let (mut send, mut recv) = stream.split();
        let mut rest = body.clone();
        let upload = async move {
            for size in sizes {
                send.send_data(rest.split_to(size)).await.unwrap();
            }
            send.finish().await.unwrap();
        };
        let download = async {
            recv.recv_response().await.unwrap();
            let mut echo = Vec::new();
            while let Some(mut data) = recv.recv_data().await.unwrap() {
                echo.extend_from_slice(&data.copy_to_bytes(data.remaining()));
            }
            echo
        };
        let ((), echo) = within(async { tokio::join!(upload, download) }).await;
        assert!(echo == body, "{} bytes, not {}", echo.len(), body.len());
    }
}

/// Field sections that are nearly right, and some that are not: h3 must not panic over them.
#[tokio::test]
async fn hostile_headers_never_panic() {
    let field = prop_oneof![
        // Indexed, with a name reference, and literal fields (RFC 9204 section 4.5), then anything.
        (0xc0..=0xff_u8).prop_map(|indexed| vec![indexed]),
        (0x50..=0x5f_u8, proptest::collection::vec(any::<u8>(), 0..8)).prop_map(|(name, value)| [
            vec![name, value.len().to_le_bytes()[0]],
            value
        ]
        .concat()),
        (0x20..=0x2f_u8, proptest::collection::vec(any::<u8>(), 0..12)).prop_map(|(n, rest)| [vec![n], rest].concat()),
        proptest::collection::vec(any::<u8>(), 0..6),
    ];
    let section = (0..4_u8, proptest::collection::vec(field, 0..12)).prop_map(|(start, fields)| {
        let prefix = if start == 0 { &[0, 0][..] } else { &POST[..start as usize * 2] };
        [prefix, &fields.concat()].concat()
    });
    let mut runner = TestRunner::deterministic();
    for _ in 0..60 {
        let pair = Pair::new().await;
        let (mut server, _) = pair.guarded().await;
        let client = pair.raw_client().await;
        // Until one of them closes the connection.
        for _ in 0..50 {
            let Ok((mut send, _recv)) = client.connection.open_bi().await else { break };
            let section = section.new_tree(&mut runner).unwrap().current();
            if send.write_all(&frame(HEADERS, &section)).await.is_err() {
                break;
            }
            let Ok(Some(request)) = within(server.accept()).await else { break };
            let _ = within(request.resolve_request()).await;
        }
    }
}
