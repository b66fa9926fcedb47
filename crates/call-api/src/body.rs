//! The body of a call, read when a front asks for it, and why it is not taken.

use bytes::Bytes;

/// A body that may still be on its way.
pub trait BodySource: Send {
    /// All of it. Until the call is answered, its bytes count against the share of the call's payer in the memory for
    /// requests.
    fn read(self) -> impl Future<Output = Result<Bytes, BodyRefusal>> + Send;

    /// Its pieces, as they come, of whatever media type and up to so many bytes: for what is too long to be held in memory.
    ///
    /// # Errors
    /// It says that it is longer.
    fn open(self, most_bytes: u64) -> Result<impl BodyPieces, BodyRefusal>
    where
        Self: Sized,
    {
        Ok(InOne { body: Some(self), most_bytes })
    }
}

/// A body that is read piece by piece.
pub trait BodyPieces: Send {
    /// Its media type, with its parameters, if there is one and it is text.
    fn content_type(&self) -> Option<&str>;

    /// The next piece; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, BodyRefusal>> + Send;
}

/// All of a body, as one piece without a media type.
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

/// A body that is here already.
impl BodySource for Bytes {
    async fn read(self) -> Result<Bytes, BodyRefusal> {
        Ok(self)
    }
}

/// Why the body of a call is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyRefusal {
    /// It has more bytes than it may.
    TooLarge {
        /// The bound.
        limit_bytes: u64,
    },
    /// It made no progress for too long, or took too long in all.
    TooSlow {
        /// The bound.
        seconds: u64,
    },
    /// A `content-encoding` other than `identity`.
    Encoding {
        /// The encoding named.
        encoding: String,
    },
    /// A `content-type` other than JSON.
    MediaType,
    /// It broke off, or was not well-formed.
    Incomplete,
    /// It came in far more pieces than its bytes need.
    TooManyPieces {
        /// Pieces so far.
        pieces: u64,
        /// Bytes in them.
        bytes: u64,
    },
    /// The requests of its key fill the key's share of the memory for requests.
    MemoryOfKey {
        /// The share.
        limit_bytes: u64,
        /// What it would have come to.
        observed_bytes: u64,
    },
    /// All requests together fill that memory.
    Memory {
        /// The bound.
        limit_bytes: u64,
        /// What it would have come to.
        observed_bytes: u64,
    },
}
