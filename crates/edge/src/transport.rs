//! A connection as the HTTP library sees it. Bytes read ahead come first. HTTP/1 heads are followed on the way in.
//! HTTP/2 streams of a peer without a valid key are held back. The library's own answer to an invalid head is
//! suppressed.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::activity::ConnectionActivity;
use crate::framing::HttpFraming;
use crate::streams::Http2Streams;

/// A byte stream in both directions.
pub(crate) trait DuplexStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> DuplexStream for T {}

/// A connection as the HTTP library sees it.
pub(crate) struct WatchedTransport<S> {
    io: S,
    ahead: Bytes,
    /// Bytes that were handed to the library earlier and returned by it. They were already followed.
    back: Bytes,
    watched: WatchedProtocol,
    activity: Arc<ConnectionActivity>,
}

/// What is followed in the bytes.
enum WatchedProtocol {
    /// HTTP/1: its heads, and whether the library's own answers are suppressed. Every write belongs to an answer.
    Heads(HttpFraming, ErrorReplies),
    /// HTTP/2, until the peer has shown a valid key: its streams.
    Streams(Http2Streams),
    /// Nothing: HTTP/2 of a peer with a valid key, or the last answer on a connection.
    Nothing,
}

/// Suppresses the library's own answers. The library refuses an invalid head by itself, without a body and without
/// asking the service. The code that drives the connection learns the reason at its end and sends a better answer.
#[derive(Default)]
struct ErrorReplies {
    /// Number of requests whose answers have begun to go out.
    answered: u64,
    kept_back: bool,
}

/// Bytes that are read of an idle peer, to see that it sends something.
const FIRST_BYTES: usize = 16;
/// The only bytes that may go out before an answer.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

impl ErrorReplies {
    /// Returns whether `bytes`, which are about to be written, are the library's own refusal. It is an error status
    /// that answers none of the `asked` requests that the library passed on. The library writes it in one piece and
    /// alone, after all earlier answers.
    fn are_the_librarys(&self, bytes: &[u8], asked: u64) -> bool {
        let refuses = bytes.starts_with(b"HTTP/1.") && bytes.get(8..10) == Some(b" 4");
        refuses && !self.kept_back && self.answered == asked && bytes.ends_with(b"\r\n\r\n")
    }

    fn went_out(&mut self, bytes: &[u8], asked: u64) {
        if bytes != CONTINUE {
            self.answered = asked;
        }
    }
}

impl<S> WatchedTransport<S> {
    /// Creates an HTTP/1 transport. `ahead` was already read from `io`.
    pub(crate) fn http1(io: S, ahead: Bytes, activity: Arc<ConnectionActivity>) -> Self {
        let watched = WatchedProtocol::Heads(HttpFraming::default(), ErrorReplies::default());
        Self { io, ahead, back: Bytes::new(), watched, activity }
    }

    /// Creates an HTTP/2 transport. `ahead` was already read from `io`.
    pub(crate) const fn http2(io: S, ahead: Bytes, activity: Arc<ConnectionActivity>) -> Self {
        Self {
            io,
            ahead,
            back: Bytes::new(),
            watched: WatchedProtocol::Streams(Http2Streams::new()),
            activity,
        }
    }

    /// Returns whether the library's refusal was suppressed and the peer still needs an answer. From then on all writes
    /// go out.
    pub(crate) fn owes_a_refusal(&mut self) -> bool {
        let owes = self.has_kept_back();
        if owes {
            self.watched = WatchedProtocol::Nothing;
        }
        owes
    }

    const fn has_kept_back(&self) -> bool {
        matches!(self.watched, WatchedProtocol::Heads(_, ErrorReplies { kept_back: true, .. }))
    }

    /// Returns whether these bytes must not go out, because a better answer follows.
    fn keeps_back(&mut self, bytes: &[u8]) -> bool {
        let WatchedProtocol::Heads(_, words) = &mut self.watched else { return false };
        words.kept_back |= words.are_the_librarys(bytes, self.activity.requests());
        words.kept_back
    }

    /// Returns whether the peer must be answered before more is read from it. A change of that state wakes the
    /// connection.
    fn holds_back(&mut self) -> bool {
        let WatchedProtocol::Streams(streams) = &self.watched else { return false };
        if self.activity.is_trusted() {
            self.watched = WatchedProtocol::Nothing;
            return false;
        }
        streams.are_too_many() || self.activity.has_been_refused_enough()
    }

    /// Follows bytes on the way in. Returns how many of them may pass now, at least one if there are any.
    fn watch(&mut self, bytes: &[u8]) -> usize {
        match &mut self.watched {
            WatchedProtocol::Nothing => bytes.len(),
            WatchedProtocol::Streams(streams) => streams.received(bytes),
            WatchedProtocol::Heads(framing, _) => {
                let learnt = framing.feed(bytes);
                if let Some(head) = learnt.ambiguous {
                    self.activity.ambiguous_from(head);
                }
                if learnt.head_began {
                    self.activity.head_began();
                } else if !learnt.in_head {
                    self.activity.head_ended();
                }
                bytes.len()
            }
        }
    }

    fn note(&mut self, cx: &Context<'_>, bytes: &[IoSlice<'_>], result: &Poll<io::Result<usize>>) {
        let Poll::Ready(result) = result else { return };
        match &mut self.watched {
            WatchedProtocol::Nothing => {}
            WatchedProtocol::Heads(_, words) => {
                self.activity.touch();
                words.went_out(bytes.first().map_or(&[], |bytes| bytes), self.activity.requests());
            }
            WatchedProtocol::Streams(streams) => {
                let (held_back, mut left) = (streams.are_too_many(), *result.as_ref().unwrap_or(&0));
                for bytes in bytes {
                    let written = left.min(bytes.len());
                    streams.sent(bytes.get(..written).unwrap_or_default());
                    left -= written;
                }
                if held_back && !streams.are_too_many() {
                    cx.waker().wake_by_ref();
                }
            }
        }
    }
}

impl<S: AsyncRead + Unpin> WatchedTransport<S> {
    /// Takes back bytes that the library has read but not used.
    pub(crate) fn take_back(&mut self, bytes: Bytes) {
        // An empty slice would keep the buffer that it was cut from alive.
        self.back = if bytes.is_empty() { Bytes::new() } else { bytes };
    }

    /// Switches to another protocol. `read` was already read of it. Its bytes are not followed.
    pub(crate) fn switch(&mut self, read: Bytes) {
        self.take_back(read);
        self.watched = WatchedProtocol::Nothing;
    }

    /// Waits until the peer sends more, which the library reads next. Returns `false` if the peer has gone.
    pub(crate) async fn more_came(&mut self) -> bool {
        if !(self.back.is_empty() && self.ahead.is_empty()) {
            return true;
        }
        let mut first = [0; FIRST_BYTES];
        let mut first = ReadBuf::new(&mut first);
        let read = std::future::poll_fn(|cx| Pin::new(&mut self.io).poll_read(cx, &mut first)).await;
        self.ahead = Bytes::copy_from_slice(first.filled());
        read.is_ok() && !self.ahead.is_empty()
    }

    /// Reads on after the few bytes by which HTTP/1 was detected, because the rest of the head is usually there. If
    /// those bytes were passed alone, the library would double its buffer for the rest and keep it. An error or an end
    /// of the stream shows at the next read.
    fn read_on(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) {
        if !self.ahead.is_empty()
            || buf.remaining() == 0
            || !matches!(self.watched, WatchedProtocol::Heads(..))
        {
            return;
        }
        let before = buf.filled().len();
        if Pin::new(&mut self.io).poll_read(cx, buf).is_ready() {
            // All bytes of HTTP/1 pass.
            self.watch(buf.filled().get(before..).unwrap_or_default());
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedTransport<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.holds_back() {
            return Poll::Pending;
        }
        if !this.back.is_empty() {
            let passes = buf.remaining().min(this.back.len());
            buf.put_slice(&this.back.split_to(passes));
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if this.ahead.is_empty() {
            std::task::ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
            let read = buf.filled().get(before..).unwrap_or_default();
            let passes = this.watch(read);
            if let Some(waits) = read.get(passes..).filter(|waits| !waits.is_empty()) {
                this.ahead = Bytes::copy_from_slice(waits);
                buf.set_filled(before + passes);
            }
        } else {
            let ahead = this.ahead.clone();
            let passes = this.watch(ahead.get(..buf.remaining().min(ahead.len())).unwrap_or_default());
            buf.put_slice(ahead.get(..passes).unwrap_or_default());
            // An empty slice would keep the buffer that it was cut from alive.
            this.ahead = if passes == ahead.len() { Bytes::new() } else { ahead.slice(passes..) };
            this.read_on(cx, buf);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedTransport<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.keeps_back(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let result = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.note(cx, &[IoSlice::new(bytes)], &result);
        result
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.keeps_back(slices.first().map_or(&[], |bytes| bytes)) {
            return Poll::Ready(Ok(slices.iter().map(|bytes| bytes.len()).sum()));
        }
        let result = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        this.note(cx, slices, &result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.has_kept_back() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}
