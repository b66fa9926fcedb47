//! A document that every client may read, at a fixed path. Must not know what it says.

use std::sync::{PoisonError, RwLock};

use bytes::Bytes;
use headrace_call_api::CallAnswer;

/// How long clients and proxies may keep the document, in seconds.
const KEEP: &str = "public, max-age=60";
/// The document before it is published.
const NO_KEYS: &[u8] = br#"{"keys":[]}"#;

/// The published set of the keys that sign receipts.
#[derive(Debug, Default)]
pub(crate) struct PublishedKeys(RwLock<Option<Bytes>>);

impl PublishedKeys {
    /// Publishes a set in place of the one before.
    pub(crate) fn publish(&self, set: Bytes) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(set);
    }

    /// The answer to a request for the set.
    pub(crate) fn answer<S>(&self) -> CallAnswer<S> {
        let set = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        let body = set.unwrap_or(Bytes::from_static(NO_KEYS));
        CallAnswer::json(200, body).with_header("cache-control", KEEP)
    }
}
