//! The seam to whatever keeps objects. What a call that returns well has written is on the disk.

use std::fmt;

use headrace_domain::{ProjectId, UnixNanos};

use crate::{ConversationRecord, ItemRecord, Page, PageAsk, ResponseRecord};

/// How much is kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectLimits {
    /// Seconds after which an object is gone to which nothing was added.
    pub retention_seconds: u64,
    /// Bytes of one response, or of the items that are added to a conversation at once.
    pub max_object_bytes: u64,
    /// Responses of a project; the oldest go first.
    pub max_responses_per_project: u64,
    /// Bytes of a project's responses; the oldest go first.
    pub max_response_bytes_per_project: u64,
    /// Conversations of a project; further ones are refused.
    pub max_conversations_per_project: u64,
    /// Bytes of the items of a project's conversations; more are refused.
    pub max_conversation_bytes_per_project: u64,
    /// Bytes of the responses and conversations of all projects; more are refused.
    pub max_total_bytes: u64,
    /// Items of one conversation; further ones are refused.
    pub max_items_per_conversation: u64,
    /// Responses that one goes on from, one after the other.
    pub max_turns: usize,
    /// Bytes of the items that one call continues: of a chain of responses or of a conversation.
    pub max_history_bytes: u64,
}

impl Default for ObjectLimits {
    /// 30 days, as OpenAI keeps them; a gigabyte of each project's responses.
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

/// Why nothing was stored or found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectError {
    /// A bound would be passed.
    Full {
        /// Which, by its name in [`ObjectLimits`].
        rule: &'static str,
        /// The bound.
        limit: u64,
        /// What it would have come to.
        observed: u64,
    },
    /// The disk has no room for customers' data.
    DiskFull {
        /// How much is free, and how much must stay so; or what the disk said.
        why: String,
    },
    /// The objects grew after their size was read.
    Grew,
    /// What keeps them does not work.
    Unavailable {
        /// What it said.
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
pub enum History<'a> {
    /// A response, and the chain of responses before it.
    Response(&'a str),
    /// A conversation.
    Conversation(&'a str),
}

/// What a look-up reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored<'a> {
    /// A response with its input, output, body and events.
    Response(&'a str),
    /// The items that a call continues.
    History(History<'a>),
    /// A page of a conversation's items, with the row behind it.
    Page(&'a str, &'a PageAsk),
    /// An item of a conversation, by the conversation's id and its own.
    Item(&'a str, &'a str),
}

/// Called once with what became of something that was to be stored, by whatever thread knows it; it must not wait.
pub type Told = Box<dyn FnOnce(Result<(), ObjectError>) + Send>;

/// Keeps objects. Every look-up names whose they must be: what is somebody else's, has expired or never was is `None` alike.
/// Calls may wait for a disk.
pub trait ObjectStore: Send + Sync {
    /// Stores a response, or what it has become; with `items`, adds those to its conversation in the same step.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn put_response(&self, response: &ResponseRecord, items: &[ItemRecord]) -> Result<(), ObjectError>;

    /// As [`Self::put_response`], for a caller that does not wait: what waits at the same time may be stored together. One response's
    /// are stored in the order in which they were given. Returns at once, on an event loop, too.
    fn put_response_then(&self, response: ResponseRecord, items: Vec<ItemRecord>, told: Told);

    /// A response.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn response(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ResponseRecord>, ObjectError>;

    /// Removes a response; whether there was one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn delete_response(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<bool, ObjectError>;

    /// The bytes that a look-up would read. Reads none of them, so that a caller can reserve memory first. `None` if the object is
    /// missing; for a history also if a response of the chain has not ended.
    ///
    /// # Errors
    /// [`ObjectError::Full`] for a history beyond [`ObjectLimits::max_turns`] or [`ObjectLimits::max_history_bytes`].
    fn size(&self, project: &ProjectId, what: Stored<'_>, now: UnixNanos)
    -> Result<Option<u64>, ObjectError>;

    /// The items that a call continues, as JSON lists, oldest first. `None` as for [`Self::size`].
    ///
    /// # Errors
    /// [`ObjectError::Grew`] if they have more than `most_bytes`; [`ObjectError::Full`] as for [`Self::size`].
    fn history(
        &self,
        project: &ProjectId,
        of: History<'_>,
        most_bytes: u64,
        now: UnixNanos,
    ) -> Result<Option<Vec<String>>, ObjectError>;

    /// The projects and ids of responses that are said to be worked on: what a process that stopped has left.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn unfinished(&self, now: UnixNanos) -> Result<Vec<(ProjectId, String)>, ObjectError>;

    /// Stores a new conversation with its first items.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn create_conversation(
        &self,
        conversation: &ConversationRecord,
        items: &[ItemRecord],
    ) -> Result<(), ObjectError>;

    /// A conversation.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn conversation(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ConversationRecord>, ObjectError>;

    /// Gives a conversation other labels; what it is then.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn label_conversation(
        &self,
        project: &ProjectId,
        id: &str,
        metadata: &str,
        now: UnixNanos,
    ) -> Result<Option<ConversationRecord>, ObjectError>;

    /// Removes a conversation with its items; whether there was one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn delete_conversation(&self, project: &ProjectId, id: &str, now: UnixNanos)
    -> Result<bool, ObjectError>;

    /// Adds items to a conversation, which lives on from then; whether there is one.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn add_items(
        &self,
        project: &ProjectId,
        conversation: &str,
        items: &[ItemRecord],
        now: UnixNanos,
    ) -> Result<bool, ObjectError>;

    /// Items of a conversation, a page of them.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn items(
        &self,
        project: &ProjectId,
        conversation: &str,
        ask: &PageAsk,
        now: UnixNanos,
    ) -> Result<Option<Page>, ObjectError>;

    /// One item of a conversation.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn item(
        &self,
        project: &ProjectId,
        conversation: &str,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ItemRecord>, ObjectError>;

    /// Removes an item of a conversation; whether there was one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn delete_item(
        &self,
        project: &ProjectId,
        conversation: &str,
        id: &str,
        now: UnixNanos,
    ) -> Result<bool, ObjectError>;

    /// Removes what has expired, some of it; how many objects that were.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn sweep(&self, now: UnixNanos) -> Result<u64, ObjectError>;

    /// Why nothing can be stored now, as a look at the disk and the last write say. May wait for the disk.
    fn failing(&self) -> Option<String> {
        None
    }

    /// Whether the last look at the disk found no room. Never waits.
    fn is_full(&self) -> bool {
        false
    }
}
