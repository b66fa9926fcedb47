//! Files that clients store, and uploads that become files: their records, and the interface to the stores that keep
//! their bytes. Knows no disk and no form, and does not interpret the bytes.

use std::time::Duration;

use headrace_domain::{ProjectId, UnixNanos};

use crate::{ObjectError, PageAsk};

/// Limits on files, uploads and batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimits {
    /// Maximum bytes of one file.
    pub max_file_bytes: u64,
    /// Maximum files of a project, including parts of uploads. Further files are refused.
    pub max_files_per_project: u64,
    /// Maximum bytes of a project's files, parts of uploads, and requests and answers of its batches. More bytes are
    /// refused.
    pub max_file_bytes_per_project: u64,
    /// The same maximum for all projects together.
    pub max_total_bytes: u64,
    /// Maximum batches of a project that have not ended. Further batches are refused.
    pub max_open_batches_per_project: u64,
    /// Maximum requests of a batch.
    pub max_requests_per_batch: u64,
}

impl Default for FileLimits {
    /// OpenAI's limits on a file and a batch, and 10 GiB per project.
    fn default() -> Self {
        Self {
            max_file_bytes: 512 << 20,
            max_files_per_project: 10_000,
            max_file_bytes_per_project: 10 << 30,
            max_total_bytes: 1 << 40,
            max_open_batches_per_project: 100,
            max_requests_per_batch: 50_000,
        }
    }
}

/// The purpose of batch result files. Clients may not store files with this purpose, and a project's limits do not
/// apply to them.
pub const OUTPUT_PURPOSE: &str = "batch_output";

/// The record of a file, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRecord {
    /// The file id: `file-…`.
    pub id: String,
    /// The project that owns the file.
    pub project: ProjectId,
    /// When the file was created.
    pub created: UnixNanos,
    /// When the file expires. `None` keeps it until it is deleted.
    pub expires: Option<UnixNanos>,
    /// Size in bytes.
    pub bytes: u64,
    /// The owner's name for the file. Nothing is looked up by it.
    pub name: String,
    /// The purpose, as the dialect writes it.
    pub purpose: String,
}

/// The state of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UploadStatus {
    /// The upload accepts parts.
    Pending,
    /// The upload has become a file.
    Completed,
    /// The upload was cancelled.
    Cancelled,
}

/// The record of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRecord {
    /// The upload id: `upload_…`.
    pub id: String,
    /// The project that owns the upload.
    pub project: ProjectId,
    /// When the upload was created.
    pub created: UnixNanos,
    /// When the upload expires. It then accepts no parts and cannot be completed.
    pub expires: UnixNanos,
    /// The state of the upload.
    pub status: UploadStatus,
    /// Size of the future file in bytes.
    pub bytes: u64,
    /// Name of the future file.
    pub name: String,
    /// Purpose of the future file.
    pub purpose: String,
    /// The media type that the client declared.
    pub mime: String,
    /// Retention of the future file in seconds. `None` keeps it until it is deleted.
    pub kept_seconds: Option<u64>,
    /// The id of the file, once the upload is completed.
    pub file: Option<String>,
}

impl UploadRecord {
    /// Returns the record of the file `id` that the completed upload becomes at `now`.
    pub fn joined(&self, id: &str, now: UnixNanos) -> FileRecord {
        FileRecord {
            id: id.to_owned(),
            project: self.project.clone(),
            created: now,
            expires: self.kept_seconds.map(|seconds| now.after(Duration::from_secs(seconds))),
            bytes: self.bytes,
            name: self.name.clone(),
            purpose: self.purpose.clone(),
        }
    }
}

/// The record of one part of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartRecord {
    /// The part id: `part_…`.
    pub id: String,
    /// The id of the upload.
    pub upload: String,
    /// When the part was created.
    pub created: UnixNanos,
    /// Size in bytes.
    pub bytes: u64,
}

/// An object whose bytes are being written and that no client can see yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileDraft {
    /// The future file.
    File(FileRecord),
    /// The future part of an upload.
    Part {
        /// The project that owns the upload.
        project: ProjectId,
        /// The part.
        part: PartRecord,
    },
}

impl FileDraft {
    /// The id of the future file or part.
    pub fn id(&self) -> &str {
        match self {
            Self::File(file) => &file.id,
            Self::Part { part, .. } => &part.id,
        }
    }

    /// The project that owns the draft.
    pub const fn project(&self) -> &ProjectId {
        match self {
            Self::File(file) => &file.project,
            Self::Part { project, .. } => project,
        }
    }

    /// Returns `true` if the project's limits apply.
    pub fn is_bounded(&self) -> bool {
        match self {
            Self::File(file) => file.purpose != OUTPUT_PURPOSE,
            Self::Part { .. } => true,
        }
    }

    /// Size in bytes.
    pub const fn bytes(&self) -> u64 {
        match self {
            Self::File(file) => file.bytes,
            Self::Part { part, .. } => part.bytes,
        }
    }

    /// Sets the size in bytes.
    pub const fn set_bytes(&mut self, bytes: u64) {
        match self {
            Self::File(file) => file.bytes = bytes,
            Self::Part { part, .. } => part.bytes = bytes,
        }
    }
}

/// Why an upload was not completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UploadFault {
    /// The upload does not exist, or belongs to another project.
    Missing,
    /// The upload was completed or cancelled, or has expired.
    NotPending,
    /// This part does not exist, or is listed twice.
    Part(String),
    /// The parts have this total size, not the size that the upload was created for.
    Bytes(u64),
}

/// Stores files. Every look-up names the owning project: an object of another project, an expired one and one that
/// never existed are all `None`. Written data is on disk when a call returns successfully. Calls may wait for the disk.
pub trait FileStore: Send + Sync {
    /// The limits that this store enforces.
    fn limits(&self) -> FileLimits;

    /// Starts a draft, which no client sees until it is finished. A draft that is never finished does not survive the
    /// process.
    ///
    /// # Errors
    /// [`ObjectError`] if a limit would be exceeded or the store fails.
    fn begin(&self, draft: &FileDraft) -> Result<(), ObjectError>;

    /// Appends bytes to a draft. `at` is the draft's size before the call.
    ///
    /// # Errors
    /// [`ObjectError`] if a limit would be exceeded or the store fails.
    fn append(&self, id: &str, at: u64, bytes: &[u8]) -> Result<(), ObjectError>;

    /// Finishes a draft that has all its bytes, as many as `draft` says, and makes it visible. Returns `false` if it is
    /// a part whose upload accepts no more parts.
    ///
    /// # Errors
    /// [`ObjectError`] if the store fails.
    fn finish(&self, draft: &FileDraft, now: UnixNanos) -> Result<bool, ObjectError>;

    /// Discards a draft.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn give_up(&self, id: &str) -> Result<(), ObjectError>;

    /// The file with this id, if `project` owns it.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn file(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<Option<FileRecord>, ObjectError>;

    /// A page of a project's files, and whether more follow. `purpose` restricts the list to one purpose. The page is
    /// empty if its cursor names a missing file.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn files(
        &self,
        project: &ProjectId,
        purpose: Option<&str>,
        ask: &PageAsk,
        now: UnixNanos,
    ) -> Result<(Vec<FileRecord>, bool), ObjectError>;

    /// Reads one chunk of a file from offset `at`. An empty result means that the file ends there or no longer exists.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn read(&self, id: &str, at: u64) -> Result<Vec<u8>, ObjectError>;

    /// Removes a file. Returns whether there was one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn delete_file(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<bool, ObjectError>;

    /// Creates an upload.
    ///
    /// # Errors
    /// [`ObjectError`] if a limit would be exceeded or the store fails.
    fn create_upload(&self, upload: &UploadRecord) -> Result<(), ObjectError>;

    /// The upload with this id, if `project` owns it.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn upload(&self, project: &ProjectId, id: &str) -> Result<Option<UploadRecord>, ObjectError>;

    /// Cancels an upload and removes its parts. Returns the new record, or [`UploadFault::NotPending`]. `None` if there
    /// is no such upload.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn cancel_upload(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<Result<UploadRecord, UploadFault>>, ObjectError>;

    /// Reads one chunk of a part from offset `at`, like [`FileStore::read`]. Used to check the parts' digest before
    /// they become a file.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn read_part(&self, upload: &str, part: &str, at: u64) -> Result<Vec<u8>, ObjectError>;

    /// Joins the parts, in this order, into the file with id `file`. Does all of it or nothing.
    ///
    /// # Errors
    /// [`ObjectError`] if the store fails.
    fn complete_upload(
        &self,
        project: &ProjectId,
        id: &str,
        parts: &[String],
        file: &str,
        now: UnixNanos,
    ) -> Result<Result<(UploadRecord, FileRecord), UploadFault>, ObjectError>;

    /// Removes some of the expired files, uploads and batches, and returns how many it removed.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn sweep_files(&self, now: UnixNanos) -> Result<u64, ObjectError>;

    /// Why nothing can be stored now, according to a check of the disk and the last write. May wait for the disk.
    fn failing(&self) -> Option<String> {
        None
    }
}
