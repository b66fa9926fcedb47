//! Batches of calls: the records of a batch and of its requests, and the interface to the stores that keep them. A
//! batch is the only object that several parties change, so each change is one step on the stored state. Knows no
//! dialect and no money, and runs nothing.

use headrace_domain::{Endpoint, KeyId, ProjectId, UnixNanos};
use serde::{Deserialize, Serialize};

use crate::{FileStore, ObjectError, PageAsk};

/// The state of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchStatus {
    /// The requests of the batch are being read.
    Validating,
    /// Final: the requests could not be read. [`BatchState::faults`] says why.
    Failed,
    /// The requests run.
    InProgress,
    /// No further request starts. The results are being written.
    Finalizing,
    /// Cancellation was requested: no further request starts.
    Cancelling,
    /// Final: every request has ended.
    Completed,
    /// Final: the batch's time was over.
    Expired,
    /// Final: the batch was cancelled.
    Cancelled,
}

impl BatchStatus {
    /// Returns `true` if the state is final.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }
}

/// When a batch reached its states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BatchTimes {
    /// When its requests began to run.
    pub in_progress: Option<UnixNanos>,
    /// When its last request ended, or when no further request could start.
    pub finalizing: Option<UnixNanos>,
    /// When the batch was completed.
    pub completed: Option<UnixNanos>,
    /// When the batch failed.
    pub failed: Option<UnixNanos>,
    /// When the batch ended because its time was over.
    pub expired: Option<UnixNanos>,
    /// When cancellation was requested.
    pub cancelling: Option<UnixNanos>,
    /// When the batch ended after a cancellation.
    pub cancelled: Option<UnixNanos>,
}

/// An error in the requests of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchFault {
    /// Error code, for programs.
    pub code: String,
    /// Error message, for people.
    pub message: String,
    /// Name of the faulty field.
    pub param: Option<String>,
    /// Line number of the faulty request, from 1.
    pub line: Option<u64>,
}

/// Number of requests in a batch, by result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchCounts {
    /// All requests.
    pub total: u64,
    /// Requests answered successfully.
    pub completed: u64,
    /// Requests answered with an error.
    pub failed: u64,
    /// Requests never started because the batch was cancelled.
    pub cancelled: u64,
    /// Requests never started in time.
    pub expired: u64,
}

/// A batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRecord {
    /// The batch id: `batch_…` or `msgbatch_…`.
    pub id: String,
    /// The project that owns the batch.
    pub project: ProjectId,
    /// Number of requests, by result.
    pub counts: BatchCounts,
    /// The rest of the batch's state.
    pub state: BatchState,
}

/// The state of a batch, except id, owner and counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchState {
    /// The key that created the batch. Its requests run under this key.
    pub key: KeyId,
    /// The endpoint that each request calls.
    pub endpoint: Endpoint,
    /// When the batch was created.
    pub created: UnixNanos,
    /// The latest time at which a request may start.
    pub expires: UnixNanos,
    /// The state that the batch has reached.
    pub status: BatchStatus,
    /// When the batch reached its states.
    pub times: BatchTimes,
    /// The file with the requests. `None` if the batch was created with its requests.
    pub input: Option<String>,
    /// The completion window that the client asked for, as the dialect writes it.
    pub window: String,
    /// A JSON object of labels.
    pub metadata: Option<String>,
    /// Retention of the result files in seconds. `None` keeps them until they are deleted.
    pub kept_seconds: Option<u64>,
    /// Why the batch failed.
    pub faults: Vec<BatchFault>,
    /// The file of successful answers.
    pub output: Option<String>,
    /// The file of failed requests.
    pub errors: Option<String>,
}

/// A request of a batch that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineRecord {
    /// The index in the batch, from 0.
    pub at: u64,
    /// The client's id for the request, unique within the batch.
    pub custom_id: String,
    /// The body of the call.
    pub body: String,
    /// The id of a call whose answer was noted for this request. That call may or may not have been paid for.
    pub noted: Option<String>,
}

/// How a request of a batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineEnd {
    /// Answered successfully.
    Completed,
    /// Answered with an error.
    Failed,
    /// Never started because the batch was cancelled.
    Cancelled,
    /// Never started in time.
    Expired,
}

/// A request of a batch that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineResult {
    /// The index in the batch, from 0.
    pub at: u64,
    /// The client's id for the request.
    pub custom_id: String,
    /// How the request ended.
    pub end: LineEnd,
    /// The HTTP status of the answer, or 0 if there is none.
    pub status: u16,
    /// The id of the call.
    pub request: String,
    /// The body of the answer, as JSON. Empty if there is none.
    pub answer: String,
}

/// The two kinds of batches, which are listed separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchKind {
    /// Batches that are created from a file.
    OfFiles,
    /// Batches of messages, which are created with their requests.
    OfMessages,
}

impl BatchKind {
    /// The kind of a batch that calls this endpoint.
    pub const fn of(endpoint: Endpoint) -> Self {
        match endpoint {
            Endpoint::Messages => Self::OfMessages,
            _ => Self::OfFiles,
        }
    }
}

/// Stores batches, beside their input and result files.
pub trait BatchStore: FileStore {
    /// Creates a batch without requests. Refuses a batch from a file if its requests would not fit beside the file.
    ///
    /// # Errors
    /// [`ObjectError`] if a limit would be exceeded or the store fails.
    fn create_batch(&self, batch: &BatchRecord) -> Result<(), ObjectError>;

    /// The batch with this id, if `project` owns it.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn batch(&self, project: &ProjectId, id: &str) -> Result<Option<BatchRecord>, ObjectError>;

    /// A page of a project's batches, and whether more follow. The page is empty if its cursor names a missing batch.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn batches(
        &self,
        project: &ProjectId,
        kind: BatchKind,
        ask: &PageAsk,
    ) -> Result<(Vec<BatchRecord>, bool), ObjectError>;

    /// Batches of all projects that are not in a final state, oldest first.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn open_batches(&self) -> Result<Vec<BatchRecord>, ObjectError>;

    /// The open batches that this process is to run, oldest first. In a store that several processes share, these are its
    /// own ones and those of processes that have ended. The latter become its own.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn own_batches(&self) -> Result<Vec<BatchRecord>, ObjectError> {
        self.open_batches()
    }

    /// Reads and changes the state of a batch in one step, and returns the new state. If the new state is final, the
    /// batch may be removed from time `gone` on.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn change_batch(
        &self,
        id: &str,
        gone: UnixNanos,
        change: &mut dyn FnMut(&mut BatchState),
    ) -> Result<Option<BatchRecord>, ObjectError>;

    /// Removes a batch and its requests if its state is final. Returns whether it was removed.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn delete_batch(&self, project: &ProjectId, id: &str) -> Result<bool, ObjectError>;

    /// Adds requests to a batch. If a `custom_id` is already used in the batch, adds nothing and returns that id.
    ///
    /// # Errors
    /// [`ObjectError`] if a limit would be exceeded or the store fails.
    fn add_lines(&self, batch: &str, lines: &[LineRecord]) -> Result<Option<String>, ObjectError>;

    /// Removes all requests of a batch and resets its counts, before they are read again.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn clear_lines(&self, batch: &str) -> Result<(), ObjectError>;

    /// Removes all requests of a batch whose results are stored elsewhere. The counts stay.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn forget_lines(&self, batch: &str) -> Result<(), ObjectError>;

    /// Requests that have not ended, in order, from index `from`. Returns at most `most_bytes` of bodies, but at least
    /// one request if there is one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn lines(&self, batch: &str, from: u64, most_bytes: u64) -> Result<Vec<LineRecord>, ObjectError>;

    /// Checks that the project and the disk have room for another answer.
    ///
    /// # Errors
    /// [`ObjectError`] if a limit would be exceeded or the store fails.
    fn check_room(&self, project: &ProjectId) -> Result<(), ObjectError> {
        let _ = project;
        Ok(())
    }

    /// Requests that have not ended and have a noted answer.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn begun_lines(&self, batch: &str) -> Result<Vec<LineRecord>, ObjectError>;

    /// Stores an answer just before it is paid for.
    ///
    /// # Errors
    /// [`ObjectError`] if a limit would be exceeded or the store fails.
    fn note_answer(&self, batch: &str, at: u64, request: &str, answer: &str) -> Result<(), ObjectError>;

    /// Records how a request ended. `told` is the call's id and its answer. `None` keeps the noted ones.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn end_line(
        &self,
        batch: &str,
        at: u64,
        end: LineEnd,
        status: u16,
        told: Option<(&str, &str)>,
    ) -> Result<(), ObjectError>;

    /// Ends all requests that have not ended, with the result `end`.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn end_rest(&self, batch: &str, end: LineEnd) -> Result<(), ObjectError>;

    /// Requests that have ended, in order, from index `from`. Returns at most `most_bytes` of answers, but at least one
    /// request if there is one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn results(&self, batch: &str, from: u64, most_bytes: u64) -> Result<Vec<LineResult>, ObjectError>;
}
