//! Ways in which a store misbehaves.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A way in which a store misbehaves at one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Reads the body, stores nothing, and answers this.
    Answer(StatusCode),
    /// As [`Answer`](Self::Answer), with `Retry-After` in seconds.
    AnswerRetryAfter(StatusCode, u64),
    /// Takes this long before it reads the body, then behaves.
    Delay(Duration),
    /// Reads the body, stores nothing, and never answers.
    Hang,
    /// Closes the connection before it reads the body.
    CloseAtOnce,
    /// Reads and stores the body, and closes the connection at this place of its answer.
    StoreThenCut(Cut),
    /// Reads the body, stores nothing, and answers with a redirect to this place.
    Redirect(String),
}

/// Where an answer breaks off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Not a byte of it is sent.
    BeforeHead,
    /// The status line is not even whole.
    InsideHead,
    /// The head is whole, the body that it announces is not.
    AfterHead,
}

/// How many bytes a connection may still send; shared by the connection and what answers on it.
#[derive(Debug, Clone)]
pub(super) struct WriteBudget(Arc<AtomicUsize>);

impl WriteBudget {
    pub(super) fn unlimited() -> Self {
        Self(Arc::new(AtomicUsize::new(usize::MAX)))
    }

    pub(super) fn limit(&self, bytes: usize) {
        self.0.store(bytes, Ordering::SeqCst);
    }
}

/// A stream that breaks when the budget for writing is used up.
#[derive(Debug)]
pub(super) struct BudgetedStream {
    stream: TcpStream,
    budget: WriteBudget,
}

impl BudgetedStream {
    pub(super) const fn new(stream: TcpStream, budget: WriteBudget) -> Self {
        Self { stream, budget }
    }
}

impl AsyncRead for BudgetedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for BudgetedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let left = self.budget.0.load(Ordering::SeqCst);
        if left == 0 && !data.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let part = &data[..data.len().min(left)];
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write(cx, part))?;
        if left != usize::MAX {
            self.budget.0.fetch_sub(written, Ordering::SeqCst);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
