//! What is stored, as it is stored. JSON is kept as text: what it says is the dialect's.

use headrace_domain::{ProjectId, UnixNanos};

/// How far a response has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseStatus {
    /// Somebody works on it, or will.
    InProgress,
    /// It has ended, however it did: its body says how.
    Ended,
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseRecord {
    /// Its id: `resp_…`.
    pub id: String,
    /// Whose it is.
    pub project: ProjectId,
    /// When it was created.
    pub created: UnixNanos,
    /// From when on it is gone.
    pub expires: UnixNanos,
    /// How far it has come.
    pub status: ResponseStatus,
    /// The response that it goes on from.
    pub previous: Option<String>,
    /// The conversation that it belongs to.
    pub conversation: Option<String>,
    /// What went in: a JSON list of items, each with an id.
    pub input: String,
    /// What came out: a JSON list of items.
    pub output: String,
    /// The response as an object, as it was told.
    pub body: String,
    /// The events of its stream, one after the other, where it may be asked for again: a JSON list of objects.
    pub events: Option<String>,
}

impl ResponseRecord {
    /// The bytes that it is counted as.
    pub fn bytes(&self) -> u64 {
        let texts = [self.input.len(), self.output.len(), self.body.len()];
        let events = self.events.as_ref().map_or(0, String::len);
        (texts.iter().sum::<usize>() + events + ROW_BYTES) as u64
    }
}

/// What a row takes beside its texts.
const ROW_BYTES: usize = 256;

/// A conversation, without its items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationRecord {
    /// Its id: `conv_…`.
    pub id: String,
    /// Whose it is.
    pub project: ProjectId,
    /// When it was created.
    pub created: UnixNanos,
    /// From when on it is gone, unless something is added to it.
    pub expires: UnixNanos,
    /// A JSON object of labels.
    pub metadata: String,
}

/// One item of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemRecord {
    /// Its id.
    pub id: String,
    /// The item, as JSON; it names its id.
    pub json: String,
}
