//! Files that clients store, and uploads that become files: what is known of them, and the seam to whatever keeps their bytes. Knows
//! no disk, no form, and nothing of what the bytes mean.

use headrace_domain::{ProjectId, UnixNanos};

use crate::{ObjectError, PageAsk};

/// How much is kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimits {
    /// Bytes of one file.
    pub max_file_bytes: u64,
    /// Files of a project, parts of uploads too; further ones are refused.
    pub max_files_per_project: u64,
    /// Bytes of a project's files, parts of uploads, and the requests and answers of its batches; more are refused.
    pub max_file_bytes_per_project: u64,
    /// The same of all projects.
    pub max_total_bytes: u64,
    /// Batches of a project that have not ended; further ones are refused.
    pub max_open_batches_per_project: u64,
    /// Requests of a batch.
    pub max_requests_per_batch: u64,
}

impl Default for FileLimits {
    /// OpenAI's bounds on a file and a batch; ten gigabytes of each project.
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

/// What the results of batches are for. Nobody else may store such files, and they are never refused for want of room.
pub const OUTPUT_PURPOSE: &str = "batch_output";

/// A file, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRecord {
    /// Its id: `file-…`.
    pub id: String,
    /// Whose it is.
    pub project: ProjectId,
    /// When it was created.
    pub created: UnixNanos,
    /// From when on it is gone; `None`: when it is deleted.
    pub expires: Option<UnixNanos>,
    /// How many bytes it has.
    pub bytes: u64,
    /// What its owner calls it. It is a name alone: nothing is looked up by it.
    pub name: String,
    /// What it is for, in the dialect's word.
    pub purpose: String,
}

/// How far an upload has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UploadStatus {
    /// It takes parts.
    Pending,
    /// It is a file.
    Completed,
    /// It was given up.
    Cancelled,
}

/// An upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRecord {
    /// Its id: `upload_…`.
    pub id: String,
    /// Whose it is.
    pub project: ProjectId,
    /// When it was created.
    pub created: UnixNanos,
    /// From when on it takes no parts, and cannot be completed.
    pub expires: UnixNanos,
    /// How far it has come.
    pub status: UploadStatus,
    /// How many bytes the file will have.
    pub bytes: u64,
    /// What the file will be called.
    pub name: String,
    /// What it will be for.
    pub purpose: String,
    /// The media type that its client gave.
    pub mime: String,
    /// Seconds that the file will be kept for; `None`: until it is deleted.
    pub kept_seconds: Option<u64>,
    /// The file, once it is one.
    pub file: Option<String>,
}

/// A part of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartRecord {
    /// Its id: `part_…`.
    pub id: String,
    /// Of which upload.
    pub upload: String,
    /// When it was created.
    pub created: UnixNanos,
    /// How many bytes it has.
    pub bytes: u64,
}

/// What bytes are written to that nobody can see yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Draft {
    /// What becomes a file.
    File(FileRecord),
    /// What becomes a part of an upload.
    Part {
        /// Whose upload it is.
        project: ProjectId,
        /// The part.
        part: PartRecord,
    },
}

impl Draft {
    /// The id of what it becomes.
    pub fn id(&self) -> &str {
        match self {
            Self::File(file) => &file.id,
            Self::Part { part, .. } => &part.id,
        }
    }

    /// Whose it is.
    pub const fn project(&self) -> &ProjectId {
        match self {
            Self::File(file) => &file.project,
            Self::Part { project, .. } => project,
        }
    }

    /// Whether the bounds of its project are for it.
    pub fn is_bounded(&self) -> bool {
        match self {
            Self::File(file) => file.purpose != OUTPUT_PURPOSE,
            Self::Part { .. } => true,
        }
    }

    /// How many bytes it has.
    pub const fn bytes(&self) -> u64 {
        match self {
            Self::File(file) => file.bytes,
            Self::Part { part, .. } => part.bytes,
        }
    }

    /// Says how many bytes it has.
    pub const fn set_bytes(&mut self, bytes: u64) {
        match self {
            Self::File(file) => file.bytes = bytes,
            Self::Part { part, .. } => part.bytes = bytes,
        }
    }
}

/// Why an upload was not completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incomplete {
    /// It is not there, or not this project's.
    Missing,
    /// It was completed or cancelled, or its time is over.
    NotPending,
    /// No such part, or named twice.
    Part(String),
    /// The parts come to another number of bytes than the upload was created for.
    Bytes(u64),
}

/// Keeps files. Every look-up names whose they must be: what is somebody else's, has expired or never was is `None` alike.
/// What a call that returns well has written is on the disk. Calls may wait for it.
pub trait FileStore: Send + Sync {
    /// The bounds that are kept.
    fn limits(&self) -> FileLimits;

    /// Begins something that nobody sees until it is finished. What is never finished is gone with the process.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn begin(&self, draft: &Draft) -> Result<(), ObjectError>;

    /// Adds bytes to what was begun, behind the `at` that it has.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn append(&self, id: &str, at: u64, bytes: &[u8]) -> Result<(), ObjectError>;

    /// It has all its bytes, as many as the draft says: from now on it is seen. `false`: the upload that it is a part of takes none.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn finish(&self, draft: &Draft, now: UnixNanos) -> Result<bool, ObjectError>;

    /// Throws away what was begun.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn give_up(&self, id: &str) -> Result<(), ObjectError>;

    /// A file.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn file(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<Option<FileRecord>, ObjectError>;

    /// A page of a project's files, of one purpose or of any; whether more follow. Behind a file that is not there comes nothing.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn files(
        &self,
        project: &ProjectId,
        purpose: Option<&str>,
        ask: &PageAsk,
        now: UnixNanos,
    ) -> Result<(Vec<FileRecord>, bool), ObjectError>;

    /// Some bytes of a file from a place on, as many as are read at once; none: it ends there, or is gone.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn read(&self, id: &str, at: u64) -> Result<Vec<u8>, ObjectError>;

    /// Removes a file; whether there was one.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn delete_file(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<bool, ObjectError>;

    /// Creates an upload.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn create_upload(&self, upload: &UploadRecord) -> Result<(), ObjectError>;

    /// An upload.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn upload(&self, project: &ProjectId, id: &str) -> Result<Option<UploadRecord>, ObjectError>;

    /// Gives an upload and its parts up. What it is then, or that it was pending no more; `None`: it is not there.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn cancel_upload(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<Result<UploadRecord, Incomplete>>, ObjectError>;

    /// Bytes of one part from a place on, as [`FileStore::read`] has them: for whoever sums them up before they are a file.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn read_part(&self, upload: &str, part: &str, at: u64) -> Result<Vec<u8>, ObjectError>;

    /// Makes the parts, in this order, the file with this id. All of it is done, or none.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn complete_upload(
        &self,
        project: &ProjectId,
        id: &str,
        parts: &[String],
        file: &str,
        now: UnixNanos,
    ) -> Result<Result<(UploadRecord, FileRecord), Incomplete>, ObjectError>;

    /// Removes what has expired, some of it; how many files, uploads and batches that were.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]
    fn sweep_files(&self, now: UnixNanos) -> Result<u64, ObjectError>;

    /// Why nothing can be stored now, as a look at the disk and the last write say. May wait for the disk.
    fn failing(&self) -> Option<String> {
        None
    }
}
