//! Everything that a store of objects keeps, object by object, for copies from one store to another. Must not know where
//! the stores are.

use headrace_domain::UnixNanos;

use crate::{
    AnswerRecord, AnswerStore, BatchCounts, BatchRecord, BatchStore, ConversationRecord, FileDraft,
    ItemRecord, ObjectError, ObjectStore, ResponseRecord, UploadRecord,
};

/// A request of a batch, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedLine {
    /// The index in the batch, from 0.
    pub at: u64,
    /// The client's id for the request.
    pub custom_id: String,
    /// The body of the call. Empty once the request has ended.
    pub body: String,
    /// The id of the call that was answered. Empty if there is none.
    pub request: String,
    /// The answer. Empty if there is none.
    pub answer: String,
    /// The HTTP status of the answer, or 0.
    pub status: u16,
    /// How it ended, as the stores number it. 0 if it has not ended.
    pub ended: u8,
}

/// Reads all responses and conversations of a store.
pub trait ObjectArchive: ObjectStore {
    /// Some responses of all projects after row `after`, oldest first, each with its row. At first, `after` is
    /// [`i64::MIN`]. Empty after the last one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn archived_responses(&self, after: i64) -> Result<Vec<(i64, ResponseRecord)>, ObjectError>;

    /// Some conversations of all projects after the id `after`, by id. Empty after the last one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn archived_conversations(&self, after: &str) -> Result<Vec<ConversationRecord>, ObjectError>;

    /// Some items of a conversation after row `after`, oldest first, each with its row. Empty after the last one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn archived_items(&self, conversation: &str, after: i64) -> Result<Vec<(i64, ItemRecord)>, ObjectError>;
}

/// Reads all files, uploads and batches of a store, and writes what [`BatchStore`] cannot write.
pub trait FileArchive: BatchStore {
    /// Some finished files and parts of all projects after row `after`, oldest first, each with its row. Empty after the
    /// last one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn archived_files(&self, after: i64) -> Result<Vec<(i64, FileDraft)>, ObjectError>;

    /// Some uploads that accept parts after the id `after`, by id. Empty after the last one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn archived_uploads(&self, after: &str) -> Result<Vec<UploadRecord>, ObjectError>;

    /// Some batches of all projects after row `after`, oldest first, each with its row and the time from which it may be
    /// removed. Empty after the last one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn archived_batches(&self, after: i64)
    -> Result<Vec<(i64, BatchRecord, Option<UnixNanos>)>, ObjectError>;

    /// Some requests of a batch from index `from`, in order. Empty after the last one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn archived_lines(&self, batch: &str, from: u64) -> Result<Vec<ArchivedLine>, ObjectError>;

    /// Stores a batch as it was, without its requests. Replaces one with the same id.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn restore_batch(&self, batch: &BatchRecord, gone: Option<UnixNanos>) -> Result<(), ObjectError>;

    /// Stores requests of a batch as they were. They are counted in the batch already.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn restore_lines(&self, batch: &str, lines: &[ArchivedLine]) -> Result<(), ObjectError>;

    /// Sets the number of requests of a batch, by result.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn restore_counts(&self, batch: &str, counts: &BatchCounts) -> Result<(), ObjectError>;
}

/// Reads all answers of a store.
pub trait AnswerArchive: AnswerStore {
    /// The first answer of all projects after row `after`, with its row. At first, `after` is [`i64::MIN`]. The time of
    /// its creation is not stored, and is zero. `None` after the last one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn next_answer(&self, after: i64) -> Result<Option<(i64, AnswerRecord)>, ObjectError>;
}
