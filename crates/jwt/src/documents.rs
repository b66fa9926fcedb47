//! Where documents of providers come from: the seam between the keys and the network. Must not know what the documents
//! mean.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

/// Fetches documents of one provider.
pub trait DocumentSource: Send + Sync + 'static {
    /// Fetches the document at `url`, at most [`FetchedDocument::MAX_BYTES`] long, within a few seconds.
    fn fetch<'a>(&'a self, url: &'a str) -> DocumentFuture<'a>;
}

/// A future of a document.
pub type DocumentFuture<'a> =
    Pin<Box<dyn Future<Output = Result<FetchedDocument, DocumentError>> + Send + 'a>>;

/// A document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedDocument {
    /// The bytes.
    pub body: Vec<u8>,
    /// How long it stays fresh, by its cache headers. `None` if they do not say it.
    pub fresh_for: Option<Duration>,
}

impl FetchedDocument {
    /// Longest document in bytes.
    pub const MAX_BYTES: usize = 256 << 10;
}

/// Why a document could not be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentError {
    /// The cause, without the address.
    pub why: String,
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for DocumentError {}
