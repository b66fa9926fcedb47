//! Bytes of a body: one piece at a time, with a bound on the wait, or its beginning. Knows nothing of what they say.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use reqwest::Body;
use tokio::time::{Instant, Sleep};

/// The next bytes of a body; trailers are passed over.
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

/// The first bytes of a body, at most so many and for so long. Whatever ends it earlier: what came by then.
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
    // In time or not: what came counts.
    drop(tokio::time::timeout(within, reading).await);
    read.freeze()
}

/// A bound on a wait. It runs only while something is waited for: a reader that does not ask is not the server's stall.
#[derive(Debug)]
pub(crate) struct Wait {
    bound: Duration,
    since: Option<Instant>,
    /// Made once and moved when it rings too early, so that bytes that come cost no timer.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Wait {
    pub(crate) fn new(bound: Duration) -> Self {
        Self { bound, since: None, alarm: None }
    }

    /// What was waited for came.
    pub(crate) fn over(&mut self) {
        self.since = None;
    }

    /// Waits, from now on or from when it began to; ready when the bound has passed.
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
