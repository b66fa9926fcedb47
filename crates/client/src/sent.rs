//! A request's body that notes when the transport took the last of it. Must not know what it says.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// When a body was taken.
pub(crate) type Taken = Arc<OnceLock<Instant>>;

/// The body, in one piece.
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
            // A second time there would be nothing to take.
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
