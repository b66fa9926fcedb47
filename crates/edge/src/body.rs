//! The body of an answer, passed on in the pieces in which it arrives.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use headrace_call_api::{AbortReason, AnswerFrames, BrokenBody, TransportOutlet};
use http_body::{Body, Frame, SizeHint};

use crate::activity::{ConnectionActivity, InFlight};

/// An answer's body.
pub(crate) enum OutBody<S: AnswerFrames> {
    /// The whole body. Empty once it was passed on.
    Whole(Bytes),
    /// A body in pieces.
    Pieces(StreamedBody<S>),
}

/// The source of a body's pieces.
pub(crate) enum FrameSource<S> {
    Service(S),
    Internal(Box<dyn AnswerFrames>),
}

impl<S: AnswerFrames> FrameSource<S> {
    fn frames(&mut self) -> &mut dyn AnswerFrames {
        match self {
            Self::Service(frames) => frames,
            Self::Internal(frames) => &mut **frames,
        }
    }
}

impl<S: AnswerFrames> AnswerFrames for FrameSource<S> {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenBody>>> {
        match self {
            Self::Service(frames) => frames.poll_frame(cx),
            Self::Internal(frames) => frames.poll_frame(cx),
        }
    }

    fn set_outlet(&mut self, outlet: Arc<dyn TransportOutlet>) {
        self.frames().set_outlet(outlet);
    }

    fn abort(&mut self, reason: AbortReason) {
        self.frames().abort(reason);
    }
}

/// A body in pieces. Its request is in flight until the body is dropped. If it is dropped before its end, the call
/// service learns why, as far as the connection knows. Otherwise the client left.
pub(crate) struct StreamedBody<S: AnswerFrames> {
    frames: S,
    /// Bytes still to come, if the length is known.
    left: Option<u64>,
    ended: bool,
    in_flight: InFlight,
}

impl<S: AnswerFrames> StreamedBody<S> {
    /// `bytes` is the length of all pieces together, if it is known.
    pub(crate) fn new(mut frames: S, bytes: Option<u64>, in_flight: InFlight) -> Self {
        frames.set_outlet(Arc::<ConnectionActivity>::clone(in_flight.activity()));
        Self { frames, left: bytes, ended: false, in_flight }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenBody>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let next = std::task::ready!(self.frames.poll_frame(cx));
        if let (Some(Ok(bytes)), Some(left)) = (&next, &mut self.left) {
            *left = left.saturating_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        }
        self.ended = !matches!(next, Some(Ok(_))) || self.left == Some(0);
        Poll::Ready(next.map(|next| next.map(Frame::data)))
    }
}

impl<S: AnswerFrames> Drop for StreamedBody<S> {
    fn drop(&mut self) {
        if let Some(reason) = self.in_flight.activity().abort_reason().filter(|_| !self.ended) {
            self.frames.abort(reason);
        }
    }
}

impl<S: AnswerFrames> Body for OutBody<S> {
    type Data = Bytes;
    type Error = BrokenBody;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenBody>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Pieces(pieces) => pieces.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Pieces(pieces) => pieces.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            Self::Pieces(StreamedBody { left: Some(left), .. }) => SizeHint::with_exact(*left),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}
