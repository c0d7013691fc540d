//! Other services beside the main one.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use http::{Request, Response};
use http_body_util::Full;
use telemetry_relay::listener::{Listener, MountError, RequestBody};
use tower::service_fn;

use crate::harness::*;

async fn get(requests: &mut telemetry_h3::client::SendRequest, path: &str) -> Bytes {
    let request = Request::get(format!("https://{COORDINATOR}{path}")).body(()).unwrap();
    within(async {
        let mut stream = requests.send_request(request).await.unwrap();
        stream.finish().await.unwrap();
        stream.recv_response().await.unwrap();
        let mut body = Vec::new();
        while let Some(mut data) = stream.recv_data().await.unwrap() {
            body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        body.into()
    })
    .await
}

#[tokio::test]
async fn a_mounted_service_gets_its_prefix_and_its_peer_and_nothing_else() {
    let cluster = Cluster::new();
    let rpc = service_fn(|request: Request<RequestBody>| async move {
        let runner = request.extensions().get::<telemetry_relay::gate::Peer>().unwrap().author().to_string();
        Ok(Response::new(Full::new(Bytes::from(format!("rpc {} {runner}", request.uri().path())))))
    });
    let listener = Listener::bind(loopback(), Arc::new(cluster.server_tls())).unwrap();
    let handle = listener.mount("/rpc", rpc).unwrap().serve(service_fn(name));
    let client = cluster.connect(&handle, "r7").await;
    let mut requests = client.http().await;
    assert_eq!(get(&mut requests, "/rpc").await, "rpc /rpc r7");
    assert_eq!(get(&mut requests, "/rpc/jobs/1").await, "rpc /rpc/jobs/1 r7");
    for path in ["/", "/rpc2", "/RPC", "/%72pc", "//rpc", "/_telemetry/policy"] {
        assert_eq!(get(&mut requests, path).await, "r7", "{path} goes to the main service");
    }
}

#[tokio::test]
async fn a_reserved_pattern_is_refused_at_start() {
    let cluster = Cluster::new();
    let listener = Listener::bind(loopback(), Arc::new(cluster.server_tls())).unwrap();
    let refused = listener.mount("/_telemetry/metrics", service_fn(name)).err();
    assert_eq!(refused, Some(MountError::Reserved("/_telemetry/metrics".to_owned())));
}
