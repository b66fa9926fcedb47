//! The stored records. JSON is kept as text; only the dialect interprets it.

use headrace_domain::{ProjectId, UnixNanos};

/// The state of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseStatus {
    /// The response is being generated, or will be.
    InProgress,
    /// The response has ended. Its body says how.
    Ended,
}

/// The record of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseRecord {
    /// The response id: `resp_…`.
    pub id: String,
    /// The project that owns the response.
    pub project: ProjectId,
    /// When the response was created.
    pub created: UnixNanos,
    /// When the response expires.
    pub expires: UnixNanos,
    /// The state of the response.
    pub status: ResponseStatus,
    /// The id of the response that this one continues.
    pub previous: Option<String>,
    /// The id of the conversation that the response belongs to.
    pub conversation: Option<String>,
    /// The input: a JSON list of items, each with an id.
    pub input: String,
    /// The output: a JSON list of items.
    pub output: String,
    /// The response object as JSON, as the client received it.
    pub body: String,
    /// The events of its stream, in order, as a JSON list of objects. `None` if the stream cannot be replayed.
    pub events: Option<String>,
}

impl ResponseRecord {
    /// The number of bytes that count towards the limits.
    pub fn bytes(&self) -> u64 {
        let texts = [self.input.len(), self.output.len(), self.body.len()];
        let events = self.events.as_ref().map_or(0, String::len);
        (texts.iter().sum::<usize>() + events + ROW_BYTES) as u64
    }
}

/// Bytes counted for a row beside its texts.
const ROW_BYTES: usize = 256;

/// The record of a conversation, without its items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationRecord {
    /// The conversation id: `conv_…`.
    pub id: String,
    /// The project that owns the conversation.
    pub project: ProjectId,
    /// When the conversation was created.
    pub created: UnixNanos,
    /// When the conversation expires, unless an item is added earlier.
    pub expires: UnixNanos,
    /// A JSON object of labels.
    pub metadata: String,
}

/// One item of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemRecord {
    /// The item id.
    pub id: String,
    /// The item as JSON, including its id.
    pub json: String,
}
