//! The interface to the stores that keep objects. Written data is on disk when a call returns successfully.

use std::fmt;

use headrace_domain::{ProjectId, UnixNanos};

use crate::{ConversationRecord, ItemPage, ItemRecord, PageAsk, ResponseRecord};

/// Limits on stored responses and conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectLimits {
    /// Retention in seconds after the last addition to an object.
    pub retention_seconds: u64,
    /// Maximum bytes of one response, or of the items that one call adds to a conversation.
    pub max_object_bytes: u64,
    /// Maximum responses of a project. The oldest are removed first.
    pub max_responses_per_project: u64,
    /// Maximum bytes of a project's responses. The oldest are removed first.
    pub max_response_bytes_per_project: u64,
    /// Maximum conversations of a project. Further ones are refused.
    pub max_conversations_per_project: u64,
    /// Maximum bytes of the items in a project's conversations. More are refused.
    pub max_conversation_bytes_per_project: u64,
    /// Maximum bytes of the responses and conversations of all projects. More are refused.
    pub max_total_bytes: u64,
    /// Maximum items of one conversation. Further ones are refused.
    pub max_items_per_conversation: u64,
    /// Maximum length of a chain of responses that one call continues.
    pub max_turns: usize,
    /// Maximum bytes of the items that one call continues, in a chain of responses or in a conversation.
    pub max_history_bytes: u64,
}

impl ObjectLimits {
    /// Returns when an object expires that is stored, or changed, at `now`.
    pub const fn expiry(&self, now: UnixNanos) -> UnixNanos {
        UnixNanos::new(now.get().saturating_add(self.retention_seconds.saturating_mul(1_000_000_000)))
    }
}

impl Default for ObjectLimits {
    /// 30 days, like OpenAI, and 1 GiB of responses per project.
    fn default() -> Self {
        Self {
            retention_seconds: 30 * 24 * 3600,
            max_object_bytes: 16 << 20,
            max_responses_per_project: 100_000,
            max_response_bytes_per_project: 1 << 30,
            max_conversations_per_project: 10_000,
            max_conversation_bytes_per_project: 1 << 30,
            max_total_bytes: 1 << 40,
            max_items_per_conversation: 10_000,
            max_turns: 1_000,
            max_history_bytes: 32 << 20,
        }
    }
}

/// Why an object was not stored or found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectError {
    /// A limit would be exceeded.
    Full {
        /// The limit's name in [`ObjectLimits`] or [`FileLimits`](crate::FileLimits).
        rule: &'static str,
        /// The limit.
        limit: u64,
        /// The value that would have been reached.
        observed: u64,
    },
    /// The disk has no room for customers' data.
    DiskFull {
        /// How much is free and how much must stay free, or the disk's error.
        why: String,
    },
    /// The objects grew after their size was read.
    Grew,
    /// The store does not work.
    Unavailable {
        /// The store's error.
        why: String,
    },
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { rule, limit, observed } => {
                write!(f, "`objects.{rule}` is {limit}, and this would come to {observed}")
            }
            Self::DiskFull { why } => write!(f, "the disk has no room for objects: {why}"),
            Self::Grew => f.write_str("what is read grew meanwhile"),
            Self::Unavailable { why } => write!(f, "objects cannot be stored or read: {why}"),
        }
    }
}

impl std::error::Error for ObjectError {}

/// The items that a call continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryOf<'a> {
    /// A response and the chain of responses before it, by the response's id.
    Response(&'a str),
    /// A conversation, by its id.
    Conversation(&'a str),
}

/// The object that a look-up reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredLookup<'a> {
    /// A response with its input, output, body and events.
    Response(&'a str),
    /// The items that a call continues.
    History(HistoryOf<'a>),
    /// A page of a conversation's items, with the row behind it, by the conversation's id.
    Page(&'a str, &'a PageAsk),
    /// An item of a conversation, by the conversation's id and its own.
    Item(&'a str, &'a str),
}

/// Called once with the result of a store operation, on any thread. Must not block.
pub type OnStored = Box<dyn FnOnce(Result<(), ObjectError>) + Send>;

/// Stores responses and conversations. Every look-up names the owning project: an object of another project, an expired
/// one and one that never existed are all `None`. Calls may wait for a disk.
pub trait ObjectStore: Send + Sync {
    /// Stores or updates a response. Adds `items` to its conversation in the same step.
    ///
    /// # Errors
    /// [`ObjectError`] if a limit would be exceeded or the store fails.
    fn put_response(&self, response: &ResponseRecord, items: &[ItemRecord]) -> Result<(), ObjectError>;

    /// Like [`Self::put_response`], but returns at once, so it is safe on an event loop. Calls that wait at the same
    /// time may be stored together. Updates of one response are stored in the order of the calls.
    fn put_response_then(&self, response: ResponseRecord, items: Vec<ItemRecord>, on_stored: OnStored);

    /// The response with this id, if `project` owns it.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn response(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ResponseRecord>, ObjectError>;

    /// Removes a response. Returns whether there was one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn delete_response(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<bool, ObjectError>;

    /// The number of bytes that a look-up would read. Reads none of them, so that a caller can reserve memory first.
    /// `None` if the object is missing, or if a response in the chain of a history has not ended.
    ///
    /// # Errors
    /// [`ObjectError::Full`] for a history beyond [`ObjectLimits::max_turns`] or [`ObjectLimits::max_history_bytes`].
    fn size(
        &self,
        project: &ProjectId,
        what: StoredLookup<'_>,
        now: UnixNanos,
    ) -> Result<Option<u64>, ObjectError>;

    /// The items that a call continues, as JSON lists, oldest first. `None` in the same cases as [`Self::size`].
    ///
    /// # Errors
    /// [`ObjectError::Grew`] if the items have more than `most_bytes`, and [`ObjectError::Full`] in the same cases as
    /// [`Self::size`].
    fn history(
        &self,
        project: &ProjectId,
        of: HistoryOf<'_>,
        most_bytes: u64,
        now: UnixNanos,
    ) -> Result<Option<Vec<String>>, ObjectError>;

    /// Projects and ids of the responses that are still in progress. At a start, these are left over from an earlier
    /// process.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn unfinished(&self, now: UnixNanos) -> Result<Vec<(ProjectId, String)>, ObjectError>;

    /// Stores a new conversation with its first items.
    ///
    /// # Errors
    /// [`ObjectError`] if a limit would be exceeded or the store fails.
    fn create_conversation(
        &self,
        conversation: &ConversationRecord,
        items: &[ItemRecord],
    ) -> Result<(), ObjectError>;

    /// The conversation with this id, if `project` owns it.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn conversation(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ConversationRecord>, ObjectError>;

    /// Replaces a conversation's labels. Returns the new record.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn label_conversation(
        &self,
        project: &ProjectId,
        id: &str,
        metadata: &str,
        now: UnixNanos,
    ) -> Result<Option<ConversationRecord>, ObjectError>;

    /// Removes a conversation and its items. Returns whether there was one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn delete_conversation(&self, project: &ProjectId, id: &str, now: UnixNanos)
    -> Result<bool, ObjectError>;

    /// Adds items to a conversation and extends its retention. Returns whether the conversation exists.
    ///
    /// # Errors
    /// [`ObjectError`] if a limit would be exceeded or the store fails.
    fn add_items(
        &self,
        project: &ProjectId,
        conversation: &str,
        items: &[ItemRecord],
        now: UnixNanos,
    ) -> Result<bool, ObjectError>;

    /// A page of a conversation's items.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn items(
        &self,
        project: &ProjectId,
        conversation: &str,
        ask: &PageAsk,
        now: UnixNanos,
    ) -> Result<Option<ItemPage>, ObjectError>;

    /// One item of a conversation.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn item(
        &self,
        project: &ProjectId,
        conversation: &str,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ItemRecord>, ObjectError>;

    /// Removes an item of a conversation. Returns whether there was one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn delete_item(
        &self,
        project: &ProjectId,
        conversation: &str,
        id: &str,
        now: UnixNanos,
    ) -> Result<bool, ObjectError>;

    /// Removes some of the expired objects, and returns how many it removed.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn sweep(&self, now: UnixNanos) -> Result<u64, ObjectError>;

    /// Why nothing can be stored now, according to a check of the disk and the last write. May wait for the disk.
    fn failing(&self) -> Option<String> {
        None
    }

    /// Returns `true` if the last check of the disk found no room. Never waits.
    fn is_full(&self) -> bool {
        false
    }
}
