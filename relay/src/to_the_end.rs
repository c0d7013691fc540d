//! Work that is finished even if whoever waits for it goes away.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Runs a future where it is awaited. Dropped before its end, it lets the future go on in a task of its own.
///
/// Most are awaited to their end, and a task for each would cost them two more turns in the scheduler.
pub(crate) struct ToTheEnd<T: Send + 'static> {
    /// Absent while it is polled, so that one that panicked is not polled again, and after its end.
    way: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
}

impl<T: Send + 'static> ToTheEnd<T> {
    /// Takes the future. Must be called in a runtime, which is the one that it goes on in.
    pub(crate) fn new(way: impl Future<Output = T> + Send + 'static) -> Self {
        Self { way: Some(Box::pin(way)), runtime: Handle::current() }
    }
}

impl<T: Send + 'static> Future for ToTheEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Whoever asks again after the end waits for ever.
        let Some(mut way) = self.way.take() else { return Poll::Pending };
        let outcome = way.as_mut().poll(cx);
        if outcome.is_pending() {
            self.way = Some(way);
        }
        outcome
    }
}

impl<T: Send + 'static> Drop for ToTheEnd<T> {
    fn drop(&mut self) {
        if let Some(way) = self.way.take() {
            drop(self.runtime.spawn(way));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn what_is_awaited_gives_its_outcome() {
        assert_eq!(ToTheEnd::new(async { 7 }).await, 7);
    }

    #[tokio::test]
    async fn what_is_dropped_half_way_goes_on() {
        let (begin, begun) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let mut way = ToTheEnd::new(async move {
            let _ = begun.await;
            let _ = end.send(());
        });
        // It waits for the beginning, and what will wake it is this task.
        assert!(futures_util::poll!(&mut way).is_pending());
        drop(way);
        begin.send(()).unwrap();
        timeout(SOON, ended).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_was_never_polled_goes_on_as_well() {
        let (end, ended) = oneshot::channel();
        drop(ToTheEnd::new(async move { end.send(()) }));
        timeout(SOON, ended).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_panicked_is_not_polled_again() {
        let (held, freed) = oneshot::channel::<()>();
        let task = tokio::spawn(ToTheEnd::new(async move {
            let _held = held;
            panic!("on purpose");
        }));
        assert!(task.await.unwrap_err().is_panic());
        timeout(SOON, freed).await.unwrap().unwrap_err();
    }
}
