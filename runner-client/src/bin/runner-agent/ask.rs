//! `runner-agent status`: asks a running agent.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::config::ListenSection;
use crate::exit::{Failure, Outcome};
use crate::status::Status;

/// How long the agent may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// More than any status.
const MAX_STATUS_BYTES: usize = 1 << 20;

/// Prints how the agent is.
pub(crate) async fn status(listen: &ListenSection, json: bool) -> Outcome {
    let asked = timeout(PATIENCE, ask(listen)).await.map_err(|_| Failure::other("the agent does not answer"))?;
    let body = asked.map_err(|error| Failure::Other(format!("no agent answers at {}: {error}", listen.address)))?;
    let status: Status = serde_json::from_slice(&body).map_err(Failure::other)?;
    if json {
        println!("{}", String::from_utf8_lossy(&body));
        return Ok(());
    }
    print(&status);
    Ok(())
}

type Error = Box<dyn std::error::Error + Send + Sync>;

async fn ask(listen: &ListenSection) -> Result<Bytes, Error> {
    match &listen.socket {
        Some(socket) => get(UnixStream::connect(socket).await?).await,
        None => get(TcpStream::connect(listen.address).await?).await,
    }
}

async fn get<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> Result<Bytes, Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get("/status").header("host", "agent").body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    Ok(Limited::new(response.into_body(), MAX_STATUS_BYTES).collect().await?.to_bytes())
}

fn print(status: &Status) {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
    let round_trip = status.round_trip_ms.map(|ms| format!(", round trip {ms:.1} ms")).unwrap_or_default();
    let transport = status.transport.as_ref().map(|transport| format!(" over {transport}")).unwrap_or_default();
    println!("coordinator  {}{transport}{round_trip}", or_none(status.coordinator.clone()));
    let token = match (&status.token_trouble, status.token_seconds_left) {
        (Some(trouble), _) => trouble.clone(),
        (None, Some(left)) => format!("ends in {left} s"),
        (None, None) => "does not say when it ends".to_owned(),
    };
    println!("token        {token}");
    let renews = match (&status.certificate_trouble, status.certificate_renews) {
        (Some(trouble), _) => format!(", not renewed: {trouble}"),
        (None, Some(renews)) => format!(", is renewed {renews}"),
        (None, None) => String::new(),
    };
    println!("certificate  ends {}{renews}", or_none(status.certificate_ends.map(|ends| ends.to_string())));
    for (signal, account) in &status.signals {
        let dropped: Vec<String> = account.dropped.iter().map(|(reason, items)| format!("{reason} {items}")).collect();
        let dropped = if dropped.is_empty() { "none".to_owned() } else { dropped.join(", ") };
        println!("{signal:12} delivered {}, waiting {}, lost: {dropped}", account.delivered, account.waiting);
    }
    if let Some(spool) = &status.spool {
        println!("spool        {} batches, {} bytes", spool.batches, spool.bytes);
    }
    if let Some(letters) = &status.dead_letters {
        println!("rejected     {} batches put aside, {} bytes", letters.files, letters.bytes);
    }
}
