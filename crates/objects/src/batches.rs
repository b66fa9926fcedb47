//! Batches of calls: what is known of one, of each request in it, and the seam to whatever keeps them. A batch is the only thing that
//! several parties change, so each change is one step on what is stored. Knows no dialect, no money, and runs nothing.

use headrace_domain::{Endpoint, KeyId, ProjectId, UnixNanos};
use serde::{Deserialize, Serialize};

use crate::{FileStore, ObjectError, PageAsk};

/// How far a batch has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchStatus {
    /// Its requests are read.
    Validating,
    /// They could not be: its errors say why. It is over.
    Failed,
    /// They run.
    InProgress,
    /// None is begun any more; what became of them is written down.
    Finalizing,
    /// As above, because somebody wanted it to end.
    Cancelling,
    /// It is over.
    Completed,
    /// It is over: its time was.
    Expired,
    /// It is over: somebody wanted it to end.
    Cancelled,
}

impl BatchStatus {
    /// Whether nothing more becomes of it.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }
}

/// When a batch came how far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BatchTimes {
    /// Its requests began to run.
    pub in_progress: Option<UnixNanos>,
    /// The last one had ended, or none was to begin any more.
    pub finalizing: Option<UnixNanos>,
    /// It was completed.
    pub completed: Option<UnixNanos>,
    /// It failed.
    pub failed: Option<UnixNanos>,
    /// It was over, because its time was.
    pub expired: Option<UnixNanos>,
    /// Somebody wanted it to end.
    pub cancelling: Option<UnixNanos>,
    /// It was over, because of that.
    pub cancelled: Option<UnixNanos>,
}

/// What is wrong with the requests of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchFault {
    /// Its name, for programs.
    pub code: String,
    /// What it is, for people.
    pub message: String,
    /// Which field.
    pub param: Option<String>,
    /// In which line, from 1 on.
    pub line: Option<u64>,
}

/// How many requests of a batch became what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchCounts {
    /// All of them.
    pub total: u64,
    /// Answered well.
    pub completed: u64,
    /// Answered with an error.
    pub failed: u64,
    /// Never begun, as somebody wanted the batch to end.
    pub cancelled: u64,
    /// Never begun in time.
    pub expired: u64,
}

/// A batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRecord {
    /// Its id: `batch_…` or `msgbatch_…`.
    pub id: String,
    /// Whose it is.
    pub project: ProjectId,
    /// How many requests became what.
    pub counts: BatchCounts,
    /// What else is known.
    pub state: BatchState,
}

/// What is known of a batch beside its id, its owner and its counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchState {
    /// By which key it was created: its requests are that key's.
    pub key: KeyId,
    /// What is called.
    pub endpoint: Endpoint,
    /// When it was created.
    pub created: UnixNanos,
    /// Until when its requests may begin.
    pub expires: UnixNanos,
    /// How far it has come.
    pub status: BatchStatus,
    /// When it came how far.
    pub times: BatchTimes,
    /// The file that its requests stand in, where they do.
    pub input: Option<String>,
    /// The time that its client asked for, in the dialect's words.
    pub window: String,
    /// A JSON object of labels.
    pub metadata: Option<String>,
    /// Seconds that the files of its results are kept for; `None`: until they are deleted.
    pub kept_seconds: Option<u64>,
    /// Why it failed.
    pub faults: Vec<BatchFault>,
    /// The file of good answers.
    pub output: Option<String>,
    /// The file of the others.
    pub errors: Option<String>,
}

/// A request of a batch that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineRecord {
    /// Its place among the batch's, from 0 on.
    pub at: u64,
    /// Its client's id for it: no other request of the batch has it.
    pub custom_id: String,
    /// The body of the call.
    pub body: String,
    /// An answer was written down for it, of a call with this id, that may or may not have been paid for.
    pub noted: Option<String>,
}

/// How a request of a batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineEnd {
    /// Answered well.
    Completed,
    /// Answered with an error.
    Failed,
    /// Never begun, as somebody wanted the batch to end.
    Cancelled,
    /// Never begun in time.
    Expired,
}

/// A request of a batch that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineResult {
    /// Its place.
    pub at: u64,
    /// Its client's id for it.
    pub custom_id: String,
    /// How it ended.
    pub end: LineEnd,
    /// The status of its answer, as HTTP has it; 0 where it has none.
    pub status: u16,
    /// The id of its call.
    pub request: String,
    /// The body of its answer, as JSON; empty where it has none.
    pub answer: String,
}

/// Whose batches a list is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchKind {
    /// Those that are created from a file.
    OfFiles,
    /// Those of messages, which come with their requests.
    OfMessages,
}

impl BatchKind {
    /// Of what kind a batch of calls to this endpoint is.
    pub const fn of(endpoint: Endpoint) -> Self {
        match endpoint {
            Endpoint::Messages => Self::OfMessages,
            _ => Self::OfFiles,
        }
    }
}

/// Keeps batches, beside the files that they come from and lead to.
pub trait BatchStore: FileStore {
    /// Creates a batch without requests. A batch from a file is refused if its requests would not fit beside the file.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn create_batch(&self, batch: &BatchRecord) -> Result<(), ObjectError>;

    /// A batch.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn batch(&self, project: &ProjectId, id: &str) -> Result<Option<BatchRecord>, ObjectError>;

    /// A page of a project's batches; whether more follow. Behind a batch that is not there comes nothing.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn batches(
        &self,
        project: &ProjectId,
        kind: BatchKind,
        ask: &PageAsk,
    ) -> Result<(Vec<BatchRecord>, bool), ObjectError>;

    /// Batches that are not over, of any project, oldest first.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn open_batches(&self) -> Result<Vec<BatchRecord>, ObjectError>;

    /// Changes what is known of a batch, in one step with looking at it; what it is then. What is over may be removed from `gone` on.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn change_batch(
        &self,
        id: &str,
        gone: UnixNanos,
        change: &mut dyn FnMut(&mut BatchState),
    ) -> Result<Option<BatchRecord>, ObjectError>;

    /// Removes a batch with its requests, where it is over; whether it was removed.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn delete_batch(&self, project: &ProjectId, id: &str) -> Result<bool, ObjectError>;

    /// Adds requests to a batch. `Some`: nothing was added, as the batch has a request with this id of its client's already.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn add_lines(&self, batch: &str, lines: &[LineRecord]) -> Result<Option<String>, ObjectError>;

    /// Removes all requests of a batch: they are read anew.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn clear_lines(&self, batch: &str) -> Result<(), ObjectError>;

    /// Removes all requests of a batch whose results are elsewhere. Its counts stay.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn forget_lines(&self, batch: &str) -> Result<(), ObjectError>;

    /// Requests that have not ended, in their order, from a place on: as many as come to so many bytes, one at least.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn lines(&self, batch: &str, from: u64, most_bytes: u64) -> Result<Vec<LineRecord>, ObjectError>;

    /// Checks that a project and the disk have room for a further answer.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn check_room(&self, project: &ProjectId) -> Result<(), ObjectError> {
        let _ = project;
        Ok(())
    }

    /// Requests that have not ended, and for which an answer was noted.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn begun_lines(&self, batch: &str) -> Result<Vec<LineRecord>, ObjectError>;

    /// Writes down an answer that is about to be paid for.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn note_answer(&self, batch: &str, at: u64, request: &str, answer: &str) -> Result<(), ObjectError>;

    /// A request has ended. Where it ended well, its answer is the one that was noted; otherwise `answer` is.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn end_line(
        &self,
        batch: &str,
        at: u64,
        end: LineEnd,
        status: u16,
        told: Option<(&str, &str)>,
    ) -> Result<(), ObjectError>;

    /// All requests that have not ended have ended so.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn end_rest(&self, batch: &str, end: LineEnd) -> Result<(), ObjectError>;

    /// Requests that have ended, in their order, from a place on: as many as come to so many bytes, one at least.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn results(&self, batch: &str, from: u64, most_bytes: u64) -> Result<Vec<LineResult>, ObjectError>;
}
