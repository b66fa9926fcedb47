//! The body of a request, read only when the call service asks for it, within its limits and its payer's memory for
//! requests. Must not know the meaning of the bytes.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use headrace_call_api::{BodyPieces, BodyRefusal, BodySource, MemoryReservation, NoRoom};
use http::header::{self, HeaderMap};
use http::request::Parts;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout, timeout_at};

use crate::stats::{EdgeStats, count};

/// Maximum allocation for a body that relies on its `content-length` alone.
const TRUSTED_LENGTH_BYTES: u64 = 64 * 1024;
/// Number of pieces that any body may have. Each further piece must have `LEAST_BYTES_PER_PIECE` on average, because a
/// piece costs as much work as kilobytes do.
const PIECES_FREE: u64 = 4_096;
const LEAST_BYTES_PER_PIECE: u64 = 256;
/// For a body that is read piece by piece, this many bytes must arrive within the time that a whole body may take. A
/// long body may thus take long.
const BYTES_IN_TIME: u64 = 1 << 20;
/// Memory that such a body reserves: the amount that a connection reads at once.
const PIECE_BYTES: usize = 512 * 1024;
/// Bodies up to this length are copied. Such a body is a slice of its connection's read buffer, and keeping the slice
/// keeps that buffer. The connection would then need another buffer for the duration of the call.
const COPIED_BYTES: usize = 4 * 1024;
/// Overhead of a header besides its name and value, as HTTP/2 counts it (RFC 9113 §6.5.2).
const HEADER_OVERHEAD_BYTES: usize = 32;

/// Limits on a request's body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    pub(crate) most_bytes: u64,
    pub(crate) pause: Duration,
    pub(crate) total: Duration,
}

/// A body that is still arriving.
pub(crate) struct RequestUpload<'a> {
    pub(crate) head: &'a Parts,
    pub(crate) body: &'a mut Incoming,
    pub(crate) limits: &'a BodyLimits,
    pub(crate) stats: &'a EdgeStats,
    /// The memory that the body has reserved of its payer's share, until it is answered.
    pub(crate) taken: &'a MemoryReservation,
    pub(crate) was_read: &'a mut bool,
}

impl BodySource for RequestUpload<'_> {
    async fn read(self) -> Result<Bytes, BodyRefusal> {
        takes_json(&self.head.headers)?;
        self.read_any().await
    }

    fn open(self, most_bytes: u64) -> Result<impl BodyPieces, BodyRefusal> {
        takes_plain(&self.head.headers)?;
        if self.body.size_hint().lower() > most_bytes {
            return Err(BodyRefusal::TooLarge { limit_bytes: most_bytes });
        }
        take(self.taken, head_bytes(self.head).saturating_add(PIECE_BYTES))?;
        let deadline = Instant::now() + self.limits.total;
        Ok(OpenUpload { upload: self, most_bytes, bytes: 0, pieces: 0, deadline })
    }
}

/// A body that is read piece by piece.
struct OpenUpload<'a> {
    upload: RequestUpload<'a>,
    most_bytes: u64,
    bytes: u64,
    pieces: u64,
    /// Deadline of the current `BYTES_IN_TIME` bytes.
    deadline: Instant,
}

impl BodyPieces for OpenUpload<'_> {
    fn content_type(&self) -> Option<&str> {
        let mut values = self.upload.head.headers.get_all(header::CONTENT_TYPE).iter();
        let first = values.next()?.to_str().ok()?;
        values.next().is_none().then_some(first)
    }

    async fn next(&mut self) -> Result<Option<Bytes>, BodyRefusal> {
        let limits = self.upload.limits;
        loop {
            let frame = timeout(limits.pause, self.upload.body.frame());
            let frame = match timeout_at(self.deadline, frame).await {
                Ok(Ok(frame)) => frame,
                late => {
                    count(&self.upload.stats.body_timeouts);
                    return Err(too_slow(if late.is_err() { limits.total } else { limits.pause }));
                }
            };
            let Some(frame) = frame else {
                *self.upload.was_read = true;
                return Ok(None);
            };
            // Trailers have no meaning here.
            let Ok(data) = frame.map_err(|_| BodyRefusal::Incomplete)?.into_data() else { continue };
            let before = self.bytes;
            self.pieces += 1;
            self.bytes = before.saturating_add(data.len() as u64);
            if self.bytes > self.most_bytes {
                return Err(BodyRefusal::TooLarge { limit_bytes: self.most_bytes });
            }
            if are_too_many_pieces(self.pieces, self.bytes) {
                return Err(BodyRefusal::TooManyPieces { pieces: self.pieces, bytes: self.bytes });
            }
            if self.bytes / BYTES_IN_TIME > before / BYTES_IN_TIME {
                self.deadline = Instant::now() + limits.total;
            }
            return Ok(Some(data));
        }
    }
}

impl RequestUpload<'_> {
    /// Reads the whole body, of any media type.
    pub(crate) async fn read_any(self) -> Result<Bytes, BodyRefusal> {
        let hint = self.body.size_hint();
        if hint.lower() > self.limits.most_bytes {
            return Err(BodyRefusal::TooLarge { limit_bytes: self.limits.most_bytes });
        }
        // The head stays in memory while its body is awaited.
        take(self.taken, head_bytes(self.head))?;
        let read = gather(self.body, &hint, self.limits, self.taken).await;
        match &read {
            Ok(_) => *self.was_read = true,
            Err(BodyRefusal::TooSlow { .. }) => count(&self.stats.body_timeouts),
            Err(_) => {}
        }
        read
    }
}

async fn gather(
    body: &mut Incoming,
    hint: &SizeHint,
    limits: &BodyLimits,
    taken: &MemoryReservation,
) -> Result<Bytes, BodyRefusal> {
    let mut whole = GatheredBody::default();
    let mut waits = UploadWaits { limits, deadline: None };
    for pieces in 1_u64.. {
        let frame = match waits.frame(body).await? {
            None => return Ok(whole.into_bytes()),
            Some(Err(_)) => return Err(BodyRefusal::Incomplete),
            Some(Ok(frame)) => frame,
        };
        let bytes = u64::try_from(whole.len()).unwrap_or(u64::MAX);
        if are_too_many_pieces(pieces, bytes) {
            return Err(BodyRefusal::TooManyPieces { pieces, bytes });
        }
        // Trailers have no meaning here.
        let Ok(data) = frame.into_data() else { continue };
        let there = u64::try_from(whole.len().saturating_add(data.len())).unwrap_or(u64::MAX);
        if there > limits.most_bytes {
            return Err(BodyRefusal::TooLarge { limit_bytes: limits.most_bytes });
        }
        take(taken, data.len())?;
        whole.add(data, hint);
    }
    Err(BodyRefusal::Incomplete)
}

/// Timeouts of a body. The clock is not read for a body that has already arrived, as short ones have.
struct UploadWaits<'a> {
    limits: &'a BodyLimits,
    /// Deadline of the whole body. `None` until the first wait.
    deadline: Option<Instant>,
}

impl UploadWaits<'_> {
    async fn frame(
        &mut self,
        body: &mut Incoming,
    ) -> Result<Option<Result<Frame<Bytes>, hyper::Error>>, BodyRefusal> {
        let here = poll_fn(|cx| match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(Some(frame)),
            Poll::Pending => Poll::Ready(None),
        });
        if let Some(frame) = here.await {
            return Ok(frame);
        }
        let BodyLimits { pause, total, .. } = *self.limits;
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + total);
        match timeout_at(deadline, timeout(pause, body.frame())).await {
            Ok(Ok(frame)) => Ok(frame),
            Ok(Err(_)) => Err(too_slow(pause)),
            Err(_) => Err(too_slow(total)),
        }
    }
}

fn too_slow(limit: Duration) -> BodyRefusal {
    BodyRefusal::TooSlow { seconds: whole_seconds(limit) }
}

/// Returns whether `pieces` are far more than `bytes` need.
pub(crate) const fn are_too_many_pieces(pieces: u64, bytes: u64) -> bool {
    pieces > PIECES_FREE.saturating_add(bytes / LEAST_BYTES_PER_PIECE)
}

/// Reserves memory for `bytes` more bytes of a request, or fails without a change.
pub(crate) fn take(taken: &MemoryReservation, bytes: usize) -> Result<(), BodyRefusal> {
    taken.add(u64::try_from(bytes).unwrap_or(u64::MAX)).map_err(|no_room| match no_room {
        NoRoom::OfKey { needed, taken, bound } => {
            BodyRefusal::MemoryOfKey { limit_bytes: bound, observed_bytes: taken.saturating_add(needed) }
        }
        NoRoom::OfAll { needed, taken, bound } => {
            BodyRefusal::Memory { limit_bytes: bound, observed_bytes: taken.saturating_add(needed) }
        }
    })
}

/// Returns a limit in whole seconds, rounded up.
pub(crate) fn whole_seconds(limit: Duration) -> u64 {
    limit.as_secs().saturating_add(u64::from(limit.subsec_nanos() > 0))
}

/// Returns the size of a head in bytes, as HTTP/2 counts it.
pub(crate) fn head_bytes(head: &Parts) -> usize {
    let uri = head.uri.path_and_query().map_or(0, |path| path.as_str().len());
    let headers = head.headers.iter();
    headers.map(|(name, value)| name.as_str().len() + value.len() + HEADER_OVERHEAD_BYTES).sum::<usize>()
        + uri
}

/// The bytes of a body so far. A long body that came in one piece is not copied.
#[derive(Default)]
enum GatheredBody {
    #[default]
    Nothing,
    One(Bytes),
    Many(BytesMut),
}

impl GatheredBody {
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
            Self::One(bytes) if bytes.len() <= COPIED_BYTES => Bytes::copy_from_slice(&bytes),
            Self::One(bytes) => bytes,
            Self::Many(bytes) => bytes.freeze(),
        }
    }
}

fn takes_plain(headers: &HeaderMap) -> Result<(), BodyRefusal> {
    for value in headers.get_all(header::CONTENT_ENCODING) {
        if !value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity") {
            let encoding = String::from_utf8_lossy(value.as_bytes()).into_owned();
            return Err(BodyRefusal::Encoding { encoding });
        }
    }
    Ok(())
}

fn takes_json(headers: &HeaderMap) -> Result<(), BodyRefusal> {
    takes_plain(headers)?;
    let Some(media) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    // The exact spelling of nearly all clients.
    if media.as_bytes() == b"application/json" {
        return Ok(());
    }
    let essence = media.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is_json = essence.eq_ignore_ascii_case(b"application/json")
        || essence.len() > 5 && essence.to_ascii_lowercase().ends_with(b"+json");
    if is_json { Ok(()) } else { Err(BodyRefusal::MediaType) }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_plain_json_is_taken() {
        for (encoding, media, taken) in [
            (None, None, true),
            (None, Some("application/json"), true),
            (None, Some("Application/JSON ; charset=utf-8"), true),
            (None, Some("application/problem+json"), true),
            (None, Some("application/x-www-form-urlencoded"), false),
            (None, Some("text/plain"), false),
            (Some("identity"), None, true),
            (Some("gzip"), None, false),
            (Some("identity, gzip"), None, false),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [(header::CONTENT_ENCODING, encoding), (header::CONTENT_TYPE, media)] {
                if let Some(value) = value {
                    headers.insert(name, HeaderValue::from_static(value));
                }
            }
            assert_eq!(takes_json(&headers).is_ok(), taken, "{encoding:?} {media:?}");
        }
    }
}
