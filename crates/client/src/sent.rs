//! A request body that records when the transport took its last byte. Must not know what the body contains.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// The time when a body was taken.
pub(crate) type Taken = Arc<OnceLock<Instant>>;

/// A body in one piece.
#[derive(Debug)]
pub(crate) struct NotedBody {
    bytes: Option<Bytes>,
    taken: Taken,
}

impl NotedBody {
    pub(crate) fn new(bytes: Bytes, taken: Taken) -> Self {
        Self { bytes: Some(bytes), taken }
    }
}

impl Body for NotedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = self.bytes.take();
        if bytes.is_some() {
            // Cannot be set twice, since the bytes can be taken only once.
            let _ = self.taken.set(Instant::now());
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.bytes.as_ref().map_or(0, Bytes::len);
        SizeHint::with_exact(u64::try_from(left).unwrap_or(u64::MAX))
    }
}
