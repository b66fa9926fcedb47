//! The socket as the HTTP library sees it: bytes read ahead come first, HTTP/1 heads are watched on the way in, and a
//! peer that takes no bytes is noted on the way out.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::activity::Activity;
use crate::framing::Framing;

/// See the top of the file.
pub(crate) struct Transport<S> {
    io: S,
    ahead: Bytes,
    /// Only in HTTP/1: there, heads are watched, and a write is always part of an answer.
    framing: Option<Framing>,
    activity: Arc<Activity>,
}

impl<S> Transport<S> {
    /// `ahead` was already read from `io`.
    pub(crate) fn http1(io: S, ahead: Bytes, activity: Arc<Activity>) -> Self {
        Self { io, ahead, framing: Some(Framing::default()), activity }
    }

    /// The same for HTTP/2.
    pub(crate) const fn http2(io: S, ahead: Bytes, activity: Arc<Activity>) -> Self {
        Self { io, ahead, framing: None, activity }
    }

    fn watch(&mut self, bytes: &[u8]) {
        let Some(framing) = &mut self.framing else { return };
        let learnt = framing.feed(bytes);
        if let Some(head) = learnt.ambiguous {
            self.activity.ambiguous_from(head);
        }
        if learnt.head_began {
            self.activity.head_began();
        } else if !learnt.in_head {
            self.activity.head_ended();
        }
    }

    fn note<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &result {
            Poll::Pending => self.activity.write_blocked(),
            Poll::Ready(_) => {
                self.activity.write_went_on();
                if self.framing.is_some() {
                    self.activity.touch();
                }
            }
        }
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Transport<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if this.ahead.is_empty() {
            std::task::ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        } else {
            let part = this.ahead.len().min(buf.remaining());
            buf.put_slice(this.ahead.get(..part).unwrap_or_default());
            this.ahead.advance(part);
        }
        this.watch(buf.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Transport<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.note(result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        this.note(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    /// Over TLS, bytes that a write took may still wait for the socket here; on TCP this is nothing.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.io).poll_flush(cx);
        if result.is_pending() {
            this.activity.write_blocked();
        }
        result
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
