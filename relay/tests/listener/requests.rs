//! Requests and responses, whole and broken. The numbers are those of the facts about h3 0.0.8.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use telemetry_h3::transport::TransportLimits;
use telemetry_h3::{Code, StreamFailure};
use telemetry_relay::gate::Peer;
use telemetry_relay::listener::{BodyError, Listener, RequestBody};
use tokio::sync::{Notify, mpsc};
use tower::service_fn;

use crate::harness::*;

#[tokio::test]
async fn a_request_reaches_the_service_with_its_peer_and_the_response_comes_back() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(|request: Request<RequestBody>| async move {
        let peer = request.extensions().get::<Peer>().unwrap();
        assert_eq!((request.method(), request.version()), (&Method::POST, Version::HTTP_3));
        assert!(peer.remote().ip().is_loopback());
        let runner = peer.author().to_string();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Ok::<_, Infallible>(Response::builder().header("x-runner", runner).body(Full::new(body)).unwrap())
    }));
    let mut requests = cluster.connect(&listener, "r7").await.http().await;
    let body: Bytes = (0..3_000_000_u32).map(|i| i.to_le_bytes()[0]).collect();
    let (head, echo) = post(&mut requests, body.clone()).await.unwrap();
    assert_eq!(head.headers()["x-runner"], "r7");
    assert_eq!(head.headers()["content-length"], "3000000");
    assert!(echo == body);
    assert_eq!(listener.metrics().running_requests(), 0);
}

#[tokio::test]
async fn requests_on_one_connection_run_side_by_side() {
    let cluster = Cluster::new();
    let together = Arc::new(tokio::sync::Barrier::new(20));
    let listener = cluster.listen(service_fn(move |request: Request<RequestBody>| {
        let together = together.clone();
        async move {
            together.wait().await;
            echo(request).await
        }
    }));
    let requests = cluster.connect(&listener, "r7").await.http().await;
    let all = (0..20).map(|i| {
        let mut requests = requests.clone();
        tokio::spawn(async move { post(&mut requests, format!("body {i}")).await.unwrap().1 })
    });
    for (i, answer) in all.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(answer.await.unwrap(), format!("body {i}"));
    }
}

#[tokio::test]
async fn trailers_are_handed_on() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(|request: Request<RequestBody>| async move {
        let body = request.into_body().collect().await.unwrap();
        let trailers = body.trailers().unwrap()["x-sum"].as_bytes().to_vec();
        Ok::<_, Infallible>(Response::new(Full::new(trailers.into())))
    }));
    let client = cluster.connect(&listener, "r7").await;
    let mut requests = client.http().await;
    let mut stream = requests.send_request(Request::post("https://a/").body(()).unwrap()).await.unwrap();
    stream.send_data("body".into()).await.unwrap();
    let trailers: HeaderMap = [("x-sum".parse().unwrap(), "42".parse().unwrap())].into_iter().collect();
    stream.send_trailers(trailers).await.unwrap();
    stream.finish().await.unwrap();
    within(stream.recv_response()).await.unwrap();
    assert_eq!(bytes::Buf::chunk(&within(stream.recv_data()).await.unwrap().unwrap()), b"42");
}

#[tokio::test]
async fn a_response_without_content_has_no_length() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(|_| async {
        let empty = Response::builder().status(StatusCode::NO_CONTENT).body(Full::default());
        Ok::<_, Infallible>(empty.unwrap())
    }));
    let mut requests = cluster.connect(&listener, "r7").await.http().await;
    let (head, _) = post(&mut requests, "x").await.unwrap();
    assert_eq!((head.status(), head.headers().get("content-length")), (StatusCode::NO_CONTENT, None));
}

/// Reads bodies and reports how they ended.
fn reporting() -> (impl TestService, mpsc::UnboundedReceiver<Result<Bytes, BodyError>>) {
    let (report, reports) = mpsc::unbounded_channel();
    let service = service_fn(move |request: Request<RequestBody>| {
        let report = report.clone();
        async move {
            let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
            report.send(body).unwrap();
            Ok(Response::new(Full::default()))
        }
    });
    (service, reports)
}

#[tokio::test]
async fn fact_1_a_truncated_body_is_an_error_and_ends_the_connection() {
    let cluster = Cluster::new();
    let (service, mut reports) = reporting();
    let listener = cluster.listen(service);
    let client = cluster.connect(&listener, "r7").await;
    let raw = client.raw().await;
    let (mut send, _recv) = raw.post().await;
    send.write_all(&announced(DATA, 100, &[7; 50])).await.unwrap();
    send.finish().unwrap();
    assert_eq!(within(reports.recv()).await.unwrap(), Err(BodyError::Http3(StreamFailure::Truncated)));
    assert_eq!(client.close_code().await, Code::H3_FRAME_ERROR);
    eventually("the end is counted", || listener.metrics().ended("truncated-frame") == 1).await;
}

#[tokio::test]
async fn fact_2_an_empty_data_frame_does_not_end_the_body() {
    let cluster = Cluster::new();
    let (service, mut reports) = reporting();
    let listener = cluster.listen(service);
    let raw = cluster.connect(&listener, "r7").await.raw().await;
    let (mut send, _recv) = raw.post().await;
    send.write_all(&[frame(DATA, b"ab"), frame(DATA, b""), frame(DATA, b"c")].concat()).await.unwrap();
    send.finish().unwrap();
    assert_eq!(within(reports.recv()).await.unwrap().unwrap(), "abc");
}

#[tokio::test]
async fn fact_3_an_upload_that_is_given_up_is_an_error() {
    let cluster = Cluster::new();
    let (service, mut reports) = reporting();
    let listener = cluster.listen(service);
    let client = cluster.connect(&listener, "r7").await;
    let raw = client.raw().await;
    let (mut send, _recv) = raw.post().await;
    send.write_all(&frame(DATA, b"half")).await.unwrap();
    eventually("it runs", || listener.metrics().running_requests() == 1).await;
    send.reset(CANCELLED).unwrap();
    let ended = within(reports.recv()).await.unwrap();
    assert_eq!(ended, Err(BodyError::Http3(StreamFailure::Terminated(Code::H3_REQUEST_CANCELLED))));
}

#[tokio::test]
async fn fact_4_oversized_headers_end_their_stream_only() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(name));
    let client = cluster.connect(&listener, "r7").await;
    let raw = client.raw().await;
    let (mut send, mut recv) = raw.quic.open_bi().await.unwrap();
    send.write_all(&announced(HEADERS, 1 << 29, &[0; 100])).await.unwrap();
    assert_eq!(reset_code(&mut recv).await, Code::H3_EXCESSIVE_LOAD);
    assert_eq!(stop_code(&send).await, Code::H3_EXCESSIVE_LOAD);
    eventually("it is counted", || listener.metrics().failed("no-headers") == 1).await;
    let (_send, mut recv) = raw.post().await;
    assert!(!within(recv.read_to_end(1024)).await.unwrap().is_empty());
}

/// RFC 9114 section 4.1; fact 5: h3 alone panics if a read was pending.
#[tokio::test]
async fn fact_5_a_response_before_the_end_of_the_request_stops_the_upload_without_an_error() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(|request: Request<RequestBody>| async move {
        let mut body = request.into_body();
        body.frame().await.unwrap().unwrap();
        // A second read is pending when the response is made.
        assert!(std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx).is_pending())).await);
        let refused = Response::builder().status(StatusCode::PAYLOAD_TOO_LARGE).body(Full::from("no more"));
        Ok::<_, Infallible>(refused.unwrap())
    }));
    let client = cluster.connect(&listener, "r7").await;
    let raw = client.raw().await;
    let (mut send, mut recv) = raw.post().await;
    send.write_all(&frame(DATA, b"a beginning")).await.unwrap();
    let response = within(recv.read_to_end(1024)).await.unwrap();
    assert!(response.ends_with(b"no more"));
    assert_eq!(stop_code(&send).await, Code::H3_NO_ERROR);
    eventually("it has ended", || listener.metrics().running_requests() == 0).await;
}

#[tokio::test]
async fn a_body_that_outlives_its_response_is_stopped_without_an_error_as_well() {
    let cluster = Cluster::new();
    let (keep, mut kept) = mpsc::unbounded_channel();
    let listener = cluster.listen(service_fn(move |request: Request<RequestBody>| {
        keep.send(request.into_body()).unwrap();
        async { Ok::<_, Infallible>(Response::new(Full::default())) }
    }));
    let raw = cluster.connect(&listener, "r7").await.raw().await;
    let (send, mut recv) = raw.post().await;
    within(recv.read_to_end(1024)).await.unwrap();
    eventually("it has ended", || listener.metrics().running_requests() == 0).await;
    drop(within(kept.recv()).await.unwrap());
    assert_eq!(stop_code(&send).await, Code::H3_NO_ERROR);
}

#[tokio::test]
async fn fact_6_a_response_that_nobody_wants_costs_the_connection_nothing() {
    let cluster = Cluster::new();
    let listener = cluster
        .listen(service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::from(vec![7; 16 * 1024 * 1024]))) }));
    let client = cluster.connect(&listener, "r7").await;
    let raw = client.raw().await;
    for _ in 0..20 {
        let (_send, mut recv) = raw.post().await;
        within(recv.read_chunk(100, true)).await.unwrap();
        recv.stop(CANCELLED).unwrap();
    }
    eventually("all have ended", || listener.metrics().running_requests() == 0).await;
    eventually("all are counted", || listener.metrics().failed("response-not-taken") == 20).await;
    let (_send, mut recv) = raw.post().await;
    assert!(within(recv.read_to_end(17 * 1024 * 1024)).await.unwrap().len() > 16 * 1024 * 1024);
}

#[tokio::test]
async fn a_peer_that_gives_up_ends_the_service_call_at_once() {
    struct Dropped(Arc<Notify>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let cluster = Cluster::new();
    let ended = Arc::new(Notify::new());
    let started = Arc::new(Notify::new());
    let (in_service, starts) = (ended.clone(), started.clone());
    let listener = cluster.listen(service_fn(move |request: Request<RequestBody>| {
        let (dropped, starts) = (Dropped(in_service.clone()), starts.clone());
        async move {
            request.into_body().collect().await.unwrap();
            starts.notify_one();
            let _dropped = dropped;
            std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>().await
        }
    }));
    let raw = cluster.connect(&listener, "r7").await.raw().await;
    let (mut send, mut recv) = raw.post().await;
    // The request is whole, so that nothing but the response can be given up.
    send.finish().unwrap();
    within(started.notified()).await;
    recv.stop(CANCELLED).unwrap();
    within(ended.notified()).await;
    eventually("it is counted", || listener.metrics().failed("cancelled") == 1).await;
    assert_eq!(listener.metrics().running_requests(), 0);
}

#[tokio::test]
async fn fact_8_headers_that_take_too_long_end_their_stream_only() {
    let cluster = Cluster::new();
    let listener = cluster.listen_with(|config| config.header_timeout = Duration::from_millis(200), service_fn(name));
    let client = cluster.connect(&listener, "r7").await;
    let raw = client.raw().await;
    let (mut send, mut recv) = raw.quic.open_bi().await.unwrap();
    // One byte of the headers is missing.
    send.write_all(&announced(HEADERS, POST.len(), &POST[..POST.len() - 1])).await.unwrap();
    assert_eq!(reset_code(&mut recv).await, Code::H3_REQUEST_CANCELLED);
    eventually("it is counted", || listener.metrics().failed("slow-headers") == 1).await;
    assert_eq!(listener.metrics().running_requests(), 0);
    let (_send, mut recv) = raw.post().await;
    assert!(!within(recv.read_to_end(1024)).await.unwrap().is_empty());
}

#[tokio::test]
async fn fact_8_settings_that_do_not_come_end_the_connection() {
    let cluster = Cluster::new();
    let listener =
        cluster.listen_with(|config| config.handshake_timeout = Duration::from_millis(500), service_fn(name));
    let client = cluster.connect(&listener, "r7").await;
    assert_eq!(client.close_code().await, Code::H3_MISSING_SETTINGS);
    eventually("it is counted", || listener.metrics().ended("no-settings") == 1).await;
    eventually("it is gone", || listener.metrics().active_connections() == 0).await;
}

#[tokio::test]
async fn a_peer_that_allows_no_streams_ends_in_time() {
    let cluster = Cluster::new();
    let listener =
        cluster.listen_with(|config| config.handshake_timeout = Duration::from_millis(500), service_fn(name));
    let tls = cluster.client_tls(&cluster.runner("r7"));
    let limits = TransportLimits { max_uni_streams: 0, ..TransportLimits::default() };
    let client = within(Client::dial(listener.local_addr(), tls, limits)).await.unwrap();
    client.close_code().await;
    eventually("it is counted", || listener.metrics().ended("no-http3") == 1).await;
}

#[tokio::test]
async fn fact_8_a_response_that_is_not_read_ends_in_time() {
    let cluster = Cluster::new();
    let listener = cluster.listen_with(
        |config| config.write_timeout = Duration::from_millis(300),
        service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::from(vec![7; 512 * 1024]))) }),
    );
    let tls = cluster.client_tls(&cluster.runner("r7"));
    let limits = TransportLimits { stream_window: 1024, ..TransportLimits::default() };
    let client = within(Client::dial(listener.local_addr(), tls, limits)).await.unwrap();
    let raw = client.raw().await;
    let (_send, mut recv) = raw.post().await;
    eventually("it is given up", || listener.metrics().failed("response-not-taken") == 1).await;
    assert_eq!(listener.metrics().running_requests(), 0);
    assert_eq!(reset_code(&mut recv).await, Code::H3_REQUEST_CANCELLED);
    assert_eq!(client.quic.close_reason(), None);
}

#[tokio::test]
async fn fact_8_a_response_that_does_not_arrive_ends_in_time() {
    let cluster = Cluster::new();
    let listener = cluster.listen_with(|config| config.write_timeout = Duration::from_millis(300), service_fn(name));
    let path = Path::to(listener.local_addr(), Conditions::default()).await;
    let client = cluster.connect_at(path.address, "r7").await;
    let raw = client.raw().await;
    let (_send, mut recv) = raw.post().await;
    within(recv.read_to_end(1024)).await.unwrap();

    path.change(Conditions { lose_down: true, ..Conditions::default() });
    let (_send, _recv) = raw.post().await;
    eventually("it is given up", || listener.metrics().failed("response-not-taken") == 1).await;
    assert_eq!(client.quic.close_reason(), None);
}

#[tokio::test]
async fn a_client_that_does_not_care_for_the_end_of_its_response_is_no_failure() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(name));
    let raw = cluster.connect(&listener, "r7").await.raw().await;
    for _ in 0..10 {
        let (_send, mut recv) = raw.post().await;
        within(recv.read_chunk(1, true)).await.unwrap();
        recv.stop(CANCELLED).unwrap();
    }
    // Whatever was to be counted is counted when another request has come and gone.
    let (_send, mut recv) = raw.post().await;
    within(recv.read_to_end(1024)).await.unwrap();
    eventually("nothing runs", || listener.metrics().running_requests() == 0).await;
    assert_eq!(listener.metrics().failed("response-not-taken"), 0);
}

#[tokio::test]
async fn a_service_that_panics_costs_its_own_request_only() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(|request: Request<RequestBody>| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        assert_ne!(body, "panic");
        Ok::<_, Infallible>(Response::new(Full::new(body)))
    }));
    let mut requests = cluster.connect(&listener, "r7").await.http().await;
    let failure = post(&mut requests, "panic").await.unwrap_err();
    assert_eq!(failure, StreamFailure::Terminated(Code::H3_REQUEST_CANCELLED));
    assert_eq!(post(&mut requests, "fine").await.unwrap().1, "fine");
    eventually("it is counted", || listener.metrics().failed("panicked") == 1).await;
    assert_eq!(listener.metrics().running_requests(), 0);
}

#[tokio::test]
async fn a_response_body_that_fails_is_reset_and_not_finished() {
    struct Broken(Option<Bytes>);
    impl Body for Broken {
        type Data = Bytes;
        type Error = &'static str;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
            Poll::Ready(Some(self.0.take().map(Frame::data).ok_or("broken")))
        }
    }
    let cluster = Cluster::new();
    let service =
        service_fn(|_: Request<RequestBody>| async { Ok::<_, Infallible>(Response::new(Broken(Some("half".into())))) });
    let listener = Listener::bind(loopback(), Arc::new(cluster.server_tls())).unwrap().serve(service);
    let mut requests = cluster.connect(&listener, "r7").await.http().await;
    let failure = post(&mut requests, "x").await.unwrap_err();
    assert_eq!(failure, StreamFailure::Terminated(Code::H3_INTERNAL_ERROR));
    eventually("it is counted", || listener.metrics().failed("response-broken") == 1).await;
}

/// What the service does not read stays with the sender.
#[tokio::test]
async fn an_unread_body_holds_its_sender_back() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(|request: Request<RequestBody>| async move {
        let _body = request.into_body();
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>().await
    }));
    let client = cluster.connect(&listener, "r7").await;
    let raw = client.raw().await;
    let (mut send, _recv) = raw.post().await;
    let window = TransportLimits::default().stream_window as usize;
    let mut sent = 0;
    send.write_all(&announced(DATA, 64 * 1024 * 1024, &[])).await.unwrap();
    let upload = async {
        loop {
            sent += send.write(&[7; 64 * 1024]).await.unwrap();
        }
    };
    assert!(tokio::time::timeout(Duration::from_millis(500), upload).await.is_err());
    assert!(sent <= window, "{sent}");
}
