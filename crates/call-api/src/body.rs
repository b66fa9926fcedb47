//! The body of a call, read when the call service asks for it, and the reasons to refuse it.

use bytes::Bytes;

/// A body that may still be arriving.
pub trait BodySource: Send {
    /// Reads the whole body. Until the call is answered, its bytes count against the payer's share of the memory for
    /// requests.
    fn read(self) -> impl Future<Output = Result<Bytes, BodyRefusal>> + Send;

    /// Reads the body piece by piece, for bodies that are too long to hold in memory. Accepts any media type and at
    /// most `most_bytes` bytes.
    ///
    /// # Errors
    /// [`BodyRefusal::TooLarge`], if the request states a longer length.
    fn open(self, most_bytes: u64) -> Result<impl BodyPieces, BodyRefusal>
    where
        Self: Sized,
    {
        Ok(InOne { body: Some(self), most_bytes })
    }
}

/// A body that is read piece by piece.
pub trait BodyPieces: Send {
    /// Returns the media type with its parameters, if the request states one and it is text.
    fn content_type(&self) -> Option<&str>;

    /// Returns the next piece, or `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, BodyRefusal>> + Send;
}

/// A whole body as one piece, without a media type.
struct InOne<B> {
    body: Option<B>,
    most_bytes: u64,
}

impl<B: BodySource> BodyPieces for InOne<B> {
    fn content_type(&self) -> Option<&str> {
        None
    }

    async fn next(&mut self) -> Result<Option<Bytes>, BodyRefusal> {
        let Some(body) = self.body.take() else { return Ok(None) };
        let whole = body.read().await?;
        let limit_bytes = self.most_bytes;
        if whole.len() as u64 > limit_bytes {
            Err(BodyRefusal::TooLarge { limit_bytes })
        } else {
            Ok(Some(whole))
        }
    }
}

/// A body that has already arrived.
impl BodySource for Bytes {
    async fn read(self) -> Result<Bytes, BodyRefusal> {
        Ok(self)
    }
}

/// Why the body of a call is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyRefusal {
    /// The body has too many bytes.
    TooLarge {
        /// The limit.
        limit_bytes: u64,
    },
    /// The body made no progress for too long, or took too long in total.
    TooSlow {
        /// The limit.
        seconds: u64,
    },
    /// A `content-encoding` other than `identity`.
    Encoding {
        /// The encoding that the request names.
        encoding: String,
    },
    /// A `content-type` other than JSON.
    MediaType,
    /// The body ended early or was malformed.
    Incomplete,
    /// The body came in far more pieces than its bytes need.
    TooManyPieces {
        /// Number of pieces so far.
        pieces: u64,
        /// Number of bytes in them.
        bytes: u64,
    },
    /// The requests of the body's key fill the key's share of the memory for requests.
    MemoryOfKey {
        /// The share.
        limit_bytes: u64,
        /// The sum that the body would have led to.
        observed_bytes: u64,
    },
    /// The requests of all keys together fill the memory for requests.
    Memory {
        /// The limit.
        limit_bytes: u64,
        /// The sum that the body would have led to.
        observed_bytes: u64,
    },
}
