//! The body of an answer: handed on as it comes.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::activity::InFlight;
use crate::front::Frames;

/// An answer's body. Dropping it before its end drops the stream within, which tells the front that the client left.
pub(crate) enum OutBody<S> {
    /// All of it, until it was handed on.
    Whole(Bytes),
    /// Piece by piece; in flight as long as it lives.
    Stream { frames: S, ended: bool, in_flight: InFlight },
}

impl<S: Frames> Body for OutBody<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Stream { ended: true, .. } => Poll::Ready(None),
            Self::Stream { frames, ended, in_flight } => {
                let next = std::task::ready!(frames.poll_frame(cx));
                *ended = next.is_none();
                in_flight.activity().touch();
                Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Stream { ended, .. } => *ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            Self::Stream { .. } => SizeHint::default(),
        }
    }
}
