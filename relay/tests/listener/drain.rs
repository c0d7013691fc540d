//! How a listener ends. Fact 7: h3's own shutdown announces the wrong request, never returns, and kills what runs.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use telemetry_h3::transport::TransportLimits;
use telemetry_h3::{Code, StreamFailure};
use telemetry_relay::listener::{ListenerHandle, RequestBody};
use tokio::sync::Semaphore;
use tower::service_fn;

use crate::harness::*;

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(3600);

/// Answers when there is a permit.
fn on_permit(permits: Arc<Semaphore>) -> impl TestService {
    service_fn(move |request: Request<RequestBody>| {
        let permits = permits.clone();
        async move {
            permits.acquire().await.unwrap().forget();
            echo(request).await
        }
    })
}

async fn running(listener: &ListenerHandle, count: i64) {
    eventually("the requests run", || listener.metrics().running_requests() == count).await;
}

#[tokio::test]
async fn what_runs_is_finished_and_arrives_whole_and_what_comes_is_turned_away() {
    let cluster = Cluster::new();
    let permits = Arc::new(Semaphore::new(0));
    let listener = cluster.listen(on_permit(permits.clone()));
    let address = listener.local_addr();
    let client = cluster.connect(&listener, "r7").await;
    let mut requests = client.http().await;
    let body = Bytes::from(vec![7; 2 * 1024 * 1024]);
    let running_request = tokio::spawn({
        let (mut requests, body) = (requests.clone(), body.clone());
        async move { post(&mut requests, body).await }
    });
    running(&listener, 1).await;

    let metrics = listener.metrics().clone();
    let draining = tokio::spawn(listener.drain(LONG));
    // The client is told; until then its requests are served or turned away, but never lost.
    let turned_away = loop {
        match tokio::time::timeout(Duration::from_millis(20), post(&mut requests, "late")).await {
            Err(_) => {}
            Ok(Err(failure)) => break failure,
            Ok(Ok(_)) => panic!("nothing is answered without a permit"),
        }
    };
    assert!(
        matches!(turned_away, StreamFailure::GoingAway | StreamFailure::Terminated(Code::H3_REQUEST_REJECTED)),
        "{turned_away}"
    );
    let tls = cluster.client_tls(&cluster.runner("r8"));
    let refused = within(Client::dial(address, tls, TransportLimits::default())).await.err().unwrap();
    assert!(matches!(refused, quinn::ConnectionError::ConnectionClosed(_)), "{refused}");
    assert_eq!(metrics.refused("draining"), 1);
    assert!(!draining.is_finished());

    permits.add_permits(100);
    assert_eq!(within(running_request).await.unwrap().unwrap().1, body);
    within(draining).await.unwrap();
    assert_eq!(client.close_code().await, Code::H3_NO_ERROR);
    assert_eq!((metrics.running_requests(), metrics.active_connections()), (0, 0));
}

/// RFC 9114 section 5.2: those that a client sent before it could know.
#[tokio::test]
async fn requests_that_were_on_their_way_when_the_end_was_announced_are_served() {
    let cluster = Cluster::new();
    let permits = Arc::new(Semaphore::new(0));
    let listener = cluster.listen(on_permit(permits.clone()));
    let slow = Conditions { delay: Duration::from_millis(100), ..Conditions::default() };
    let path = Path::to(listener.local_addr(), slow).await;
    let client = cluster.connect_at(path.address, "r7").await;
    let raw = client.raw().await;
    let (mut first, mut first_answer) = raw.post().await;
    running(&listener, 1).await;
    // This one is under way for longer than the listener takes to begin its drain.
    let (mut second, mut second_answer) = raw.post().await;
    let draining = tokio::spawn(listener.drain(LONG));
    for send in [&mut first, &mut second] {
        send.write_all(&frame(DATA, b"body")).await.unwrap();
        send.finish().unwrap();
    }
    permits.add_permits(2);
    for answer in [&mut first_answer, &mut second_answer] {
        assert!(within(answer.read_to_end(1024)).await.unwrap().ends_with(b"body"));
    }
    within(draining).await.unwrap();
}

/// RFC 9114 section 5.2.
#[tokio::test]
async fn the_last_goaway_names_the_first_stream_that_was_not_taken() {
    let cluster = Cluster::new();
    let listener = cluster.listen(on_permit(Arc::new(Semaphore::new(0))));
    let client = cluster.connect(&listener, "r7").await;
    let raw = client.raw().await;
    let _streams = [raw.post().await, raw.post().await];
    running(&listener, 2).await;
    let draining = tokio::spawn(listener.drain(LONG));
    let ids = within(async {
        let mut control = loop {
            let mut stream = raw.quic.accept_uni().await.unwrap();
            let mut kind = [1];
            stream.read_exact(&mut kind).await.unwrap();
            if kind == [0] {
                break stream;
            }
        };
        let mut ids = Vec::new();
        while ids.len() < 2 {
            // Every type and length in here is a number below 64.
            let mut header = [0; 2];
            control.read_exact(&mut header).await.unwrap();
            let mut payload = vec![0; usize::from(header[1])];
            control.read_exact(&mut payload).await.unwrap();
            if header[0] == GOAWAY {
                ids.push(payload);
            }
        }
        ids
    })
    .await;
    let largest: u64 = (1 << 62) - 4;
    assert_eq!(
        ids,
        [(largest | 3 << 62).to_be_bytes().to_vec(), vec![8]],
        "any at first, then what comes after 0 and 4"
    );
    let (mut late, mut answer) = raw.post().await;
    assert_eq!(reset_code(&mut answer).await, Code::H3_REQUEST_REJECTED);
    let _ = late.finish();
    draining.abort();
}

#[tokio::test]
async fn what_takes_longer_than_the_grace_period_is_cut_off() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(|_| pending::<Result<Response<Full<Bytes>>, Infallible>>()));
    let client = cluster.connect(&listener, "r7").await;
    let raw = client.raw().await;
    let (_send, _recv) = raw.post().await;
    running(&listener, 1).await;
    let metrics = listener.metrics().clone();
    within(listener.drain(Duration::from_millis(300))).await;
    assert_eq!(client.close_code().await, Code::H3_NO_ERROR);
    assert_eq!((metrics.running_requests(), metrics.active_connections()), (0, 0));
}

#[tokio::test]
async fn an_idle_listener_ends_at_once_and_frees_its_port() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(name));
    let address = listener.local_addr();
    let idle = cluster.connect(&listener, "r7").await;
    idle.http().await;
    let silent = cluster.connect(&listener, "r8").await;
    within(listener.drain(LONG)).await;
    for client in [idle, silent] {
        assert_eq!(client.close_code().await, Code::H3_NO_ERROR);
    }
    within(async {
        while std::net::UdpSocket::bind(address).is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn dropping_the_handle_ends_everything() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(|_| pending::<Result<Response<Full<Bytes>>, Infallible>>()));
    let client = cluster.connect(&listener, "r7").await;
    let raw = client.raw().await;
    let (_send, _recv) = raw.post().await;
    running(&listener, 1).await;
    let metrics = listener.metrics().clone();
    drop(listener);
    assert_eq!(client.close_code().await, Code::H3_NO_ERROR);
    eventually("all has ended", || (metrics.running_requests(), metrics.active_connections()) == (0, 0)).await;
}

#[tokio::test]
async fn dropping_a_drain_ends_everything() {
    let cluster = Cluster::new();
    let listener = cluster.listen(service_fn(|_| pending::<Result<Response<Full<Bytes>>, Infallible>>()));
    let client = cluster.connect(&listener, "r7").await;
    let raw = client.raw().await;
    let (_send, _recv) = raw.post().await;
    running(&listener, 1).await;
    let metrics = listener.metrics().clone();
    let drain = tokio::time::timeout(Duration::from_millis(100), listener.drain(LONG));
    assert!(drain.await.is_err());
    assert_eq!(client.close_code().await, Code::H3_NO_ERROR);
    eventually("all has ended", || (metrics.running_requests(), metrics.active_connections()) == (0, 0)).await;
}
