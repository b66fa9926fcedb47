//! Bodies: a request's is read whole, within its limits; an answer's is handed on as it comes.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::activity::InFlight;
use crate::front::Frames;
use crate::service::Budget;

/// How much is allocated for a body on the word of its `content-length` alone.
const TRUSTED_LENGTH_BYTES: u64 = 64 * 1024;

/// Limits on a request's body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    pub(crate) most_bytes: u64,
    /// Over all requests that are being read or answered.
    pub(crate) most_bytes_at_once: u64,
    pub(crate) pause: Duration,
    pub(crate) total: Duration,
}

/// Why a body was not read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyFault {
    TooLarge,
    /// It took longer than this.
    TooSlow(Duration),
    /// It broke off, or was not well-formed.
    Broken,
    /// Other bodies fill the memory that there is for them.
    NoRoom,
}

/// Reads a request's body. A body that says it is too long is not read at all.
pub(crate) async fn read_whole(
    body: &mut Incoming,
    limits: &BodyLimits,
    budget: &Budget<'_>,
) -> Result<Bytes, BodyFault> {
    let hint = body.size_hint();
    if hint.lower() > limits.most_bytes {
        return Err(BodyFault::TooLarge);
    }
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let reading = read_frames(body, &hint, limits, budget);
    tokio::time::timeout(limits.total, reading).await.unwrap_or(Err(BodyFault::TooSlow(limits.total)))
}

async fn read_frames(
    body: &mut Incoming,
    hint: &SizeHint,
    limits: &BodyLimits,
    budget: &Budget<'_>,
) -> Result<Bytes, BodyFault> {
    let mut whole = Gathered::default();
    loop {
        let frame = match tokio::time::timeout(limits.pause, body.frame()).await {
            Err(_) => return Err(BodyFault::TooSlow(limits.pause)),
            Ok(None) => return Ok(whole.into_bytes()),
            Ok(Some(Err(_))) => return Err(BodyFault::Broken),
            Ok(Some(Ok(frame))) => frame,
        };
        // Trailers mean nothing here.
        let Ok(data) = frame.into_data() else { continue };
        let there = u64::try_from(whole.len().saturating_add(data.len())).unwrap_or(u64::MAX);
        if there > limits.most_bytes {
            return Err(BodyFault::TooLarge);
        }
        if !budget.take(data.len()) {
            return Err(BodyFault::NoRoom);
        }
        whole.add(data, hint);
    }
}

/// A body so far. One that came in one piece, as most do, is not copied.
#[derive(Default)]
enum Gathered {
    #[default]
    Nothing,
    One(Bytes),
    Many(BytesMut),
}

impl Gathered {
    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::One(bytes) => bytes.len(),
            Self::Many(bytes) => bytes.len(),
        }
    }

    fn add(&mut self, data: Bytes, hint: &SizeHint) {
        *self = match std::mem::take(self) {
            Self::Nothing => Self::One(data),
            Self::One(first) => {
                let expected = usize::try_from(hint.lower().min(TRUSTED_LENGTH_BYTES)).unwrap_or_default();
                let mut many = BytesMut::with_capacity(expected.max(first.len().saturating_add(data.len())));
                many.extend_from_slice(&first);
                many.extend_from_slice(&data);
                Self::Many(many)
            }
            Self::Many(mut many) => {
                many.extend_from_slice(&data);
                Self::Many(many)
            }
        };
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Nothing => Bytes::new(),
            Self::One(bytes) => bytes,
            Self::Many(bytes) => bytes.freeze(),
        }
    }
}

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
