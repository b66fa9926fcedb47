//! A file as a multipart form that is sent in pieces. The file is never in memory as a whole, and the length is known
//! in advance. Must not know what the file contains.
//!
//! Source: <https://www.rfc-editor.org/rfc/rfc7578>. Characters not allowed in a name are escaped as browsers do:
//! <https://html.spec.whatwg.org/multipage/form-control-infrastructure.html#multipart-form-data>.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::fs::File;
use tokio::io::{AsyncRead, ReadBuf};

use crate::traced::random_hex;

/// Bytes to read from the file at a time.
const PIECE_BYTES: usize = 64 << 10;

/// A form with a purpose and a file.
#[derive(Debug)]
pub(crate) struct FileForm {
    boundary: String,
    head: Option<Bytes>,
    file: File,
    /// Bytes of the file that remain to be sent.
    left: u64,
    tail: Option<Bytes>,
    sent: Arc<AtomicU64>,
}

impl FileForm {
    /// Creates a form with the first `bytes` bytes of a file, for batches. `None` if the system provides no randomness.
    pub(crate) fn new(name: &str, file: File, bytes: u64, sent: Arc<AtomicU64>) -> Option<Self> {
        let boundary = format!("headrace-{}", random_hex::<16>()?);
        let name = name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A");
        let head = format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--{boundary}\r\n\
             content-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\ncontent-type: application/jsonl\r\n\r\n"
        );
        let tail = format!("\r\n--{boundary}--\r\n");
        Some(Self { boundary, head: Some(head.into()), file, left: bytes, tail: Some(tail.into()), sent })
    }

    /// The `Content-Type` header of the request.
    pub(crate) fn content_type(&self) -> String {
        format!("multipart/form-data; boundary={}", self.boundary)
    }
}

impl Body for FileForm {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(head) = self.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        if self.left == 0 {
            return Poll::Ready(self.tail.take().map(|tail| Ok(Frame::data(tail))));
        }
        let most = usize::try_from(self.left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let mut bytes = vec![0; most];
        let mut piece = ReadBuf::new(&mut bytes);
        if let Err(error) = ready!(Pin::new(&mut self.file).poll_read(cx, &mut piece)) {
            return Poll::Ready(Some(Err(error)));
        }
        let read = piece.filled().len();
        if read == 0 {
            let why = "the file became shorter while it was sent";
            return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::UnexpectedEof, why))));
        }
        bytes.truncate(read);
        let read = u64::try_from(read).unwrap_or(u64::MAX);
        self.left = self.left.saturating_sub(read);
        self.sent.fetch_add(read, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.tail.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let around: usize = self.head.iter().chain(&self.tail).map(Bytes::len).sum();
        SizeHint::with_exact(u64::try_from(around).unwrap_or(u64::MAX).saturating_add(self.left))
    }
}
