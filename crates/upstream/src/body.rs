//! Reads bytes of a body: one piece at a time with a timeout, or only the beginning. Must not know the content.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use reqwest::Body;
use tokio::time::{Instant, Sleep};

/// Polls the next bytes of a body. Trailers are skipped.
pub(crate) fn poll_bytes(
    body: &mut Body,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Bytes, reqwest::Error>>> {
    loop {
        match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return Poll::Ready(Some(Ok(bytes))),
                Err(_) => {}
            },
        }
    }
}

/// Reads at most `most` first bytes of a body for at most `within`. If the body ends or fails earlier, returns the
/// bytes read so far.
pub(crate) async fn read_some(body: &mut Body, most: usize, within: Duration) -> Bytes {
    let mut read = BytesMut::new();
    let reading = async {
        while let Some(Ok(bytes)) = poll_fn(|cx| poll_bytes(body, cx)).await {
            let room = most.saturating_sub(read.len());
            read.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
            if read.len() >= most {
                break;
            }
        }
    };
    // A timeout is not an error: the bytes read so far count.
    drop(tokio::time::timeout(within, reading).await);
    read.freeze()
}

/// A timeout that runs only while the reader waits. Time in which the reader does not poll is not counted against the
/// server.
#[derive(Debug)]
pub(crate) struct BoundedWait {
    bound: Duration,
    since: Option<Instant>,
    /// Created once and reset if it fires too early, so that arriving bytes cost no timer operation.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl BoundedWait {
    pub(crate) fn new(bound: Duration) -> Self {
        Self { bound, since: None, alarm: None }
    }

    /// Ends the wait, because the awaited bytes arrived.
    pub(crate) fn over(&mut self) {
        self.since = None;
    }

    /// Starts or continues the wait. Ready once the bound has passed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Duration> {
        let due = *self.since.get_or_insert_with(Instant::now) + self.bound;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        while alarm.as_mut().poll(cx).is_ready() {
            if Instant::now() >= due {
                return Poll::Ready(self.bound);
            }
            alarm.as_mut().reset(due);
        }
        Poll::Pending
    }
}
