//! What h3 0.0.8 does to a server, and what the guard makes of it.
//!
//! Each fact has two tests: one shows that h3 alone still does it, and would tell us when that is over; the other shows that
//! the guard does not let it happen. Fact 8, the missing time limits, is the business of whoever drives the connection.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

use bytes::{Buf, Bytes};
use common::*;
use h3::error::Code;
use h3::quic;
use http::{Request, Response};
use telemetry_h3::transport::TransportLimits;
use telemetry_h3::{GuardLimits, StreamFailure, client};

mod fact_1_a_body_that_ends_inside_a_data_frame {
    use super::*;

    /// Sends half of a DATA frame and, once the server has that, ends the stream. (h3 does notice an end that arrives
    /// together with data.)
    async fn read_truncated<C>(
        pair: &Pair,
        server: &mut h3::server::Connection<C, Bytes>,
    ) -> h3::server::RequestStream<C::BidiStream, Bytes>
    where
        C: quic::Connection<Bytes>,
    {
        let client = pair.raw_client().await;
        let (mut send, recv) = client.post().await;
        send.write_all(&announced(DATA, 100, &[7; 50])).await.unwrap();
        let (_, mut stream) = accept(server).await.unwrap();
        let mut read = 0;
        while read < 50 {
            read += within(stream.recv_data()).await.unwrap().unwrap().remaining();
        }
        send.finish().unwrap();
        pair.keep((client, recv));
        stream
    }

    #[tokio::test]
    async fn bare_h3_takes_it_for_whole_and_then_panics_at_the_trailers() {
        let pair = Pair::new().await;
        let mut server = pair.bare().await;
        let mut stream = read_truncated(&pair, &mut server).await;
        assert_eq!(read_body(&mut stream).await.expect("a clean end"), b"");
        let trailers = tokio::spawn(async move { stream.recv_trailers().await.is_ok() });
        assert!(trailers.await.unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn the_guard_makes_it_an_error_that_stays_one() {
        let pair = Pair::new().await;
        let (mut server, _) = pair.guarded().await;
        let mut stream = read_truncated(&pair, &mut server).await;
        drive(server);
        for _ in 0..2 {
            let (_, error) = read_body(&mut stream).await.unwrap_err();
            assert_eq!(StreamFailure::from(error), StreamFailure::Truncated);
        }
        assert_eq!(StreamFailure::from(stream.recv_trailers().await.unwrap_err()), StreamFailure::Truncated);
        // RFC 9114 section 7.1.
        assert_eq!(pair.close_code().await, Code::H3_FRAME_ERROR);
    }

    #[tokio::test]
    async fn the_guard_makes_it_an_error_for_a_response_as_well() {
        let pair = Pair::new().await;
        let (mut driver, mut requests, _) = client::begin(pair.client.clone(), GuardLimits::default()).await.unwrap();
        tokio::spawn(async move { driver.wait_idle().await });
        let answer = async {
            let (mut send, _recv) = pair.server.accept_bi().await.unwrap();
            // :status 200
            send.write_all(&frame(HEADERS, &[0, 0, 0xd9])).await.unwrap();
            send.write_all(&announced(DATA, 100, &[7; 50])).await.unwrap();
            send.finish().unwrap();
            let _ = send.stopped().await;
        };
        let ask = async {
            let mut stream = requests.send_request(Request::get("https://a/").body(()).unwrap()).await.unwrap();
            stream.finish().await.unwrap();
            stream.recv_response().await.unwrap();
            loop {
                match stream.recv_data().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("a clean end"),
                    Err(error) => break StreamFailure::from(error),
                }
            }
        };
        let (failure, ()) = within(async { tokio::join!(ask, answer) }).await;
        assert_eq!(failure, StreamFailure::Truncated);
    }
}

mod fact_2_an_empty_data_frame {
    use super::*;

    async fn with_empty_frame(pair: &Pair) -> RawClient {
        let client = pair.raw_client().await;
        let (mut send, _) = client.post().await;
        send.write_all(&[frame(DATA, b"ab"), frame(DATA, b""), frame(DATA, b"c")].concat()).await.unwrap();
        send.finish().unwrap();
        client
    }

    #[tokio::test]
    async fn bare_h3_takes_it_for_the_end_of_the_body() {
        let pair = Pair::new().await;
        let _client = with_empty_frame(&pair).await;
        let (_, mut stream) = accept(&mut pair.bare().await).await.unwrap();
        assert_eq!(read_body(&mut stream).await.unwrap(), b"ab");
    }

    #[tokio::test]
    async fn the_guard_swallows_it() {
        let pair = Pair::new().await;
        let _client = with_empty_frame(&pair).await;
        let (_, mut stream) = accept(&mut pair.guarded().await.0).await.unwrap();
        assert_eq!(read_body(&mut stream).await.unwrap(), b"abc");
        assert!(stream.recv_trailers().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn the_guard_closes_the_connection_of_a_peer_that_sends_nothing_else() {
        let pair = Pair::new().await;
        let client = pair.raw_client().await;
        let (mut server, _) = pair.guarded().await;
        let (mut send, _recv) = client.post().await;
        send.write_all(&frame(DATA, b"").repeat(10_000)).await.unwrap();
        let (_, mut stream) = accept(&mut server).await.unwrap();
        read_body(&mut stream).await.unwrap_err();
        assert_eq!(pair.close_code().await, Code::H3_EXCESSIVE_LOAD);
    }
}

mod fact_3_an_upload_that_is_dropped_half_way {
    use super::*;

    /// Sends half of what `content-length` says, and drops the stream.
    async fn half_an_upload<C, O>(quic: C) -> impl Sized
    where
        C: quic::Connection<Bytes, OpenStreams = O> + Send + 'static,
        C::SendStream: Send,
        C::RecvStream: Send,
        C::BidiStream: Send,
        O: quic::OpenStreams<Bytes, BidiStream = C::BidiStream>,
    {
        let (mut driver, mut requests) = h3::client::builder().build::<_, O, _>(quic).await.unwrap();
        tokio::spawn(async move { driver.wait_idle().await });
        let request = Request::post("https://a/").header("content-length", "100").body(()).unwrap();
        let mut stream = requests.send_request(request).await.unwrap();
        stream.send_data(Bytes::from_static(&[7; 50])).await.unwrap();
        drop(stream);
        requests
    }

    #[tokio::test]
    async fn bare_h3_finishes_it_so_that_it_arrives_as_whole() {
        let pair = Pair::new().await;
        let mut server = pair.bare().await;
        let (_client, request) =
            tokio::join!(half_an_upload(h3_quinn::Connection::new(pair.client.clone())), accept(&mut server));
        let (_, mut stream) = request.unwrap();
        assert_eq!(read_body(&mut stream).await.unwrap().len(), 50);
    }

    #[tokio::test]
    async fn the_guard_resets_it() {
        let pair = Pair::new().await;
        // On the server's side bare h3 will do: it is the client that must not finish.
        let mut server = pair.bare().await;
        let guarded = telemetry_h3::guard::Connection::new(pair.client.clone(), GuardLimits::default());
        let (_client, request) = tokio::join!(half_an_upload(guarded), accept(&mut server));
        let failure = match request {
            Ok((_, mut stream)) => read_body(&mut stream).await.unwrap_err().1.into(),
            Err(error) => StreamFailure::from(error),
        };
        assert_eq!(failure, StreamFailure::Terminated(Code::H3_REQUEST_CANCELLED));
    }
}

mod fact_4_frames_that_are_not_data {
    use super::*;

    const SENT: usize = 4 * 1024 * 1024;

    /// Little enough that what was written must have been read by the server, and is held there if no one else got it.
    fn narrow() -> TransportLimits {
        TransportLimits { stream_window: 64 * 1024, connection_window: 128 * 1024, ..TransportLimits::default() }
    }

    #[tokio::test]
    async fn bare_h3_holds_them_whole_whatever_their_size() {
        for kind in [HEADERS, GREASE] {
            let pair = Pair::with(&narrow()).await;
            let client = pair.raw_client().await;
            let mut server = pair.bare().await;
            let upload = async {
                let (mut send, recv) = client.connection.open_bi().await.unwrap();
                // One byte is missing, so the frame never ends.
                send.write_all(&announced(kind, SENT + 1, &vec![0; SENT])).await.unwrap();
                (send, recv)
            };
            let request = async { server.accept().await.unwrap().unwrap().resolve_request().await };
            let mut sent = false;
            tokio::select! {
                _ = request => {},
                _streams = within(upload) => sent = true,
            }
            assert!(sent, "{kind:#x}");
        }
    }

    #[tokio::test]
    async fn the_guard_ends_a_stream_with_oversized_headers_and_nothing_else() {
        let pair = Pair::with(&narrow()).await;
        let client = pair.raw_client().await;
        let (mut server, monitor) = pair.guarded().await;
        let (mut send, mut recv) = client.connection.open_bi().await.unwrap();
        send.write_all(&announced(HEADERS, SENT, &[0; 100])).await.unwrap();
        assert_eq!(StreamFailure::from(accept(&mut server).await.err().unwrap()), StreamFailure::HeadersTooLarge);
        let stopped = within(send.stopped()).await.unwrap().unwrap();
        assert_eq!(Code::from(stopped.into_inner()), Code::H3_EXCESSIVE_LOAD);
        let reset = within(recv.read_chunk(1, true)).await.unwrap_err();
        assert!(matches!(reset, quinn::ReadError::Reset(code) if Code::H3_EXCESSIVE_LOAD == code.into_inner()));

        let (_send, _recv) = client.post().await;
        accept(&mut server).await.unwrap();
        assert_eq!(monitor.violation(), None);
    }

    #[tokio::test]
    async fn the_guard_closes_the_connection_for_an_oversized_frame_of_unknown_type() {
        let pair = Pair::with(&narrow()).await;
        let client = pair.raw_client().await;
        let (mut server, _) = pair.guarded().await;
        let (mut send, _recv) = client.connection.open_bi().await.unwrap();
        send.write_all(&announced(GREASE, SENT, &[0; 100])).await.unwrap();
        accept(&mut server).await.err().unwrap();
        assert_eq!(pair.close_code().await, Code::H3_EXCESSIVE_LOAD);
    }

    /// More than the window of the stream, and some packets under way.
    const FAR_AHEAD: usize = 128 * 1024;

    /// How much a client can send in frames of one byte while the server reads `reads` of them, or fewer if it can send
    /// far more than that before.
    async fn sent_ahead<C: quic::Connection<Bytes>>(
        client: &RawClient,
        server: &mut h3::server::Connection<C, Bytes>,
        reads: usize,
    ) -> usize {
        let (mut send, _recv) = client.post().await;
        let (_, mut stream) = accept(server).await.unwrap();
        let frames = frame(DATA, b"x").repeat(1024);
        let sent = Cell::new(0);
        let upload = async {
            loop {
                sent.set(sent.get() + send.write(&frames).await.unwrap());
            }
        };
        let read = async {
            for _ in 0..reads {
                within(stream.recv_data()).await.unwrap().unwrap();
                if sent.get() > FAR_AHEAD {
                    return;
                }
                // Give what the read let through the time to arrive.
                tokio::task::yield_now().await;
            }
            // Whoever reads has stopped; what is sent from here on is held by someone.
            assert!(stays_pending(std::future::pending::<()>()).await);
        };
        tokio::select! {
            () = upload => unreachable!("it has no end"),
            () = read => {}
        }
        sent.get()
    }

    #[tokio::test]
    async fn bare_h3_reads_far_ahead_when_data_frames_are_small() {
        let pair = Pair::with(&narrow()).await;
        let client = pair.raw_client().await;
        let mut server = pair.bare().await;
        let sent = sent_ahead(&client, &mut server, 5_000).await;
        assert!(sent > FAR_AHEAD, "{sent}");
    }

    #[tokio::test]
    async fn the_guard_lets_h3_read_no_further_than_the_body_is_read() {
        let pair = Pair::with(&narrow()).await;
        let client = pair.raw_client().await;
        let (mut server, _) = pair.guarded().await;
        // They are 6 KiB on the wire.
        let sent = sent_ahead(&client, &mut server, 1_000).await;
        // Beside them the window of the stream, and a packet in the guard's hands.
        assert!(sent <= 6 * 1024 + 64 * 1024 + 4 * 1024, "{sent}");
    }
}

mod fact_5_reading_is_stopped_while_a_read_is_pending {
    use super::*;

    async fn stop_a_pending_read<C>(
        mut server: h3::server::Connection<C, Bytes>,
    ) -> Result<Code, tokio::task::JoinError>
    where
        C: quic::Connection<Bytes> + 'static,
        C::BidiStream: Send,
    {
        let (_, mut stream) = accept(&mut server).await.unwrap();
        let stopped = tokio::spawn(async move {
            let pending = poll_fn(|cx| Poll::Ready(stream.poll_recv_data(cx).is_pending())).await;
            assert!(pending, "the client sent nothing yet");
            stream.stop_sending(Code::H3_NO_ERROR);
            stream
        });
        stopped.await.map(|_| Code::H3_NO_ERROR)
    }

    #[tokio::test]
    async fn bare_h3_panics() {
        let pair = Pair::new().await;
        let client = pair.raw_client().await;
        let (_send, _recv) = client.post().await;
        assert!(stop_a_pending_read(pair.bare().await).await.unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn the_guard_tells_the_peer() {
        let pair = Pair::new().await;
        let client = pair.raw_client().await;
        let (send, _recv) = client.post().await;
        stop_a_pending_read(pair.guarded().await.0).await.unwrap();
        let code = within(send.stopped()).await;
        assert!(matches!(code, Ok(Some(code)) if Code::H3_NO_ERROR == code.into_inner()), "{code:?}");
    }
}

mod fact_6_a_write_that_fails {
    use super::*;

    /// Answers a request whose sender wants no answer, and goes on as if nothing had happened.
    async fn answer_in_vain<C>(server: &mut h3::server::Connection<C, Bytes>)
    where
        C: quic::Connection<Bytes>,
        C::BidiStream: quic::BidiStream<Bytes>,
    {
        let (_, mut stream) = accept(server).await.unwrap();
        let failed = async {
            stream.send_response(Response::new(())).await?;
            loop {
                stream.send_data(Bytes::from_static(&[7; 1000])).await?;
                tokio::task::yield_now().await;
            }
        };
        let failed: Result<(), h3::error::StreamError> = within(failed).await;
        assert_eq!(StreamFailure::from(failed.unwrap_err()), StreamFailure::Terminated(Code::H3_REQUEST_CANCELLED));
        stream.finish().await.unwrap_err();
    }

    async fn unwanted(client: &RawClient) {
        let (mut send, mut recv) = client.post().await;
        recv.stop(0x10c_u32.into()).unwrap();
        send.finish().unwrap();
    }

    #[tokio::test]
    async fn bare_h3_closes_the_connection_over_the_finish_after_it() {
        let pair = Pair::new().await;
        let client = pair.raw_client().await;
        unwanted(&client).await;
        let mut server = pair.bare().await;
        answer_in_vain(&mut server).await;
        drive(server);
        assert_eq!(pair.close_code().await, Code::H3_INTERNAL_ERROR);
    }

    #[tokio::test]
    async fn the_guard_ends_the_stream_only() {
        let pair = Pair::new().await;
        let client = pair.raw_client().await;
        unwanted(&client).await;
        let (mut server, _) = pair.guarded().await;
        answer_in_vain(&mut server).await;
        let (_send, _recv) = client.post().await;
        accept(&mut server).await.unwrap();
    }

    /// Gives up a write half way, and writes again.
    async fn write_after_giving_up<C>(server: &mut h3::server::Connection<C, Bytes>) -> StreamFailure
    where
        C: quic::Connection<Bytes>,
        C::BidiStream: quic::BidiStream<Bytes>,
    {
        let (_, mut stream) = accept(server).await.unwrap();
        stream.send_response(Response::new(())).await.unwrap();
        // More than any window, and the client reads nothing.
        let large = Bytes::from(vec![7; 16 * 1024 * 1024]);
        assert!(stays_pending(stream.send_data(large)).await);
        StreamFailure::from(within(stream.send_data(Bytes::from_static(b"more"))).await.unwrap_err())
    }

    #[tokio::test]
    async fn bare_h3_closes_the_connection_over_a_write_after_one_that_was_given_up() {
        let pair = Pair::new().await;
        let client = pair.raw_client().await;
        let (_send, _recv) = client.post().await;
        let mut server = pair.bare().await;
        assert_eq!(write_after_giving_up(&mut server).await, StreamFailure::ConnectionLost);
        drive(server);
        assert_eq!(pair.close_code().await, Code::H3_INTERNAL_ERROR);
    }

    #[tokio::test]
    async fn the_guard_resets_a_stream_with_a_torn_frame_so_that_no_one_reads_on() {
        let pair = Pair::new().await;
        let client = pair.raw_client().await;
        let (_send, mut recv) = client.post().await;
        let (mut server, _) = pair.guarded().await;
        assert_eq!(write_after_giving_up(&mut server).await, StreamFailure::ClosedHere);
        let end = within(async {
            loop {
                match recv.read_chunk(usize::MAX, true).await {
                    Ok(Some(_)) => {}
                    end => break end,
                }
            }
        });
        assert!(matches!(end.await, Err(quinn::ReadError::Reset(_))));
        let (_send, _recv) = client.post().await;
        accept(&mut server).await.unwrap();
    }
}

mod fact_7_shutting_down {
    use super::*;

    /// The ID in the GOAWAY of a server that has sent its SETTINGS.
    async fn goaway(connection: &quinn::Connection) -> u64 {
        let read = async {
            loop {
                let mut stream = connection.accept_uni().await.unwrap();
                let mut kind = [1];
                stream.read_exact(&mut kind).await.unwrap();
                if kind == [0] {
                    break read_goaway(stream).await;
                }
            }
        };
        within(read).await
    }

    async fn read_goaway(mut control: quinn::RecvStream) -> u64 {
        loop {
            // Every type, length and ID in here is a number below 64.
            let mut header = [0; 2];
            control.read_exact(&mut header).await.unwrap();
            let mut payload = vec![0; usize::from(header[1])];
            control.read_exact(&mut payload).await.unwrap();
            if header[0] == GOAWAY {
                break u64::from(payload[0]);
            }
        }
    }

    #[tokio::test]
    async fn bare_h3_announces_the_last_accepted_request_as_not_processed_and_accept_never_returns() {
        let pair = Pair::new().await;
        let client = pair.raw_client().await;
        // Without grease, the numbers on the control stream are small.
        let bare = h3_quinn::Connection::new(pair.server.clone());
        let mut server: h3::server::Connection<_, Bytes> =
            h3::server::builder().send_grease(false).build(bare).await.unwrap();
        let (_send, _recv) = client.post().await;
        let (_, stream) = accept(&mut server).await.unwrap();
        assert_eq!(stream.send_id().into_inner(), 0);
        server.shutdown(0).await.unwrap();
        assert_eq!(goaway(&client.connection).await, 0, "streams from 0 on are said to be unprocessed");
        drop(stream);
        assert!(stays_pending(server.accept()).await);
    }

    #[tokio::test]
    async fn the_guard_turns_away_just_what_the_goaway_announces() {
        let pair = Pair::new().await;
        let client = pair.raw_client().await;
        let (mut server, monitor) =
            telemetry_h3::server::begin(pair.server.clone(), GuardLimits::default()).await.unwrap();
        let (_send, mut recv) = client.post().await;
        let (_, mut stream) = accept(&mut server).await.unwrap();
        monitor.refuse_streams();
        server.shutdown(1).await.unwrap();
        assert_eq!(goaway(&client.connection).await, 4, "stream 0 is processed, stream 4 is not");
        drive(server);

        let (late, mut late_answer) = client.post().await;
        let stopped = within(late.stopped()).await.unwrap().unwrap();
        assert_eq!(Code::from(stopped.into_inner()), Code::H3_REQUEST_REJECTED);
        let reset = within(late_answer.read_chunk(1, true)).await.unwrap_err();
        assert!(matches!(reset, quinn::ReadError::Reset(code) if Code::H3_REQUEST_REJECTED == code.into_inner()));

        stream.send_response(Response::new(())).await.unwrap();
        stream.finish().await.unwrap();
        assert!(!within(recv.read_to_end(1024)).await.unwrap().is_empty());
        assert_eq!(monitor.unanswered_streams(), 0, "what was turned away is not held against the peer");
    }
}
