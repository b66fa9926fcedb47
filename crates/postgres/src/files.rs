//! Clients' files, uploads and batches as tables that all gateways share. The bytes of files are rows of bounded size, so
//! that no file is in memory whole. Knows no form and no dialect.

mod archive;
mod batch_rows;
mod batches;
mod rows;

use std::fmt;
use std::sync::Arc;

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    FileDraft, FileLimits, FileRecord, FileStore, ObjectError, PageAsk, UploadFault, UploadRecord,
    UploadStatus,
};
use tokio_postgres::Client;

use crate::object_schema;
use crate::objects::OwnerSource;
use crate::pool::{SessionPool, StatementFailure, limit_for};
use crate::session::DatabaseSession;
use crate::url::PostgresUrl;

/// Files, uploads and batches of each kind that one sweep removes at most.
const SWEPT_AT_ONCE: i64 = 64;

/// The store of files and batches. See the top of the file.
pub struct PostgresFiles {
    pool: SessionPool,
    limits: FileLimits,
    owner: OwnerSource,
}

impl PostgresFiles {
    /// Opens the store, and makes its tables if they are missing. `owner` names this gateway, which runs the batches that
    /// it creates.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the database cannot be reached, or a newer program made the tables.
    pub fn open(url: Arc<PostgresUrl>, limits: FileLimits, owner: OwnerSource) -> Result<Self, ObjectError> {
        object_schema::ensure(&mut DatabaseSession::new(Arc::clone(&url)))?;
        Ok(Self { pool: SessionPool::new(url), limits, owner })
    }

    fn pull<T: Send>(
        &self,
        query: impl AsyncFn(&Client) -> Result<T, StatementFailure> + Send + Sync,
    ) -> Result<T, ObjectError> {
        self.pool.read(limit_for(0), query)
    }

    fn write<T: Send>(
        &self,
        change: impl AsyncFnOnce(&Client) -> Result<T, StatementFailure> + Send,
    ) -> Result<T, ObjectError> {
        self.pool.write(limit_for(0), change)
    }

    /// Removes a file that clients no longer see, in small transactions, so that others can write in between.
    fn remove(&self, id: &str) -> Result<(), ObjectError> {
        while self.write(async |client| rows::remove_some(client, id).await)? {}
        Ok(())
    }
}

impl FileStore for PostgresFiles {
    fn limits(&self) -> FileLimits {
        self.limits
    }

    fn begin(&self, draft: &FileDraft) -> Result<(), ObjectError> {
        if self.pull(async |client| rows::is_unfinished(client, draft).await)? {
            // A gateway that ended had begun the same result file.
            self.remove(draft.id())?;
        }
        self.write(async |client| {
            rows::begin(client, draft).await?;
            rows::count(client, &self.limits, draft.project().as_str(), draft.is_bounded(), (1, 0)).await
        })
    }

    fn append(&self, id: &str, at: u64, bytes: &[u8]) -> Result<(), ObjectError> {
        self.pool.write(limit_for(bytes.len() as u64), async |client| {
            rows::append(client, &self.limits, id, at, bytes).await
        })
    }

    fn finish(&self, draft: &FileDraft, now: UnixNanos) -> Result<bool, ObjectError> {
        self.write(async |client| rows::finish(client, draft, now).await)
    }

    fn give_up(&self, id: &str) -> Result<(), ObjectError> {
        self.remove(id)
    }

    fn file(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<Option<FileRecord>, ObjectError> {
        self.pull(async |client| rows::file(client, project, id, now).await)
    }

    fn files(
        &self,
        project: &ProjectId,
        purpose: Option<&str>,
        ask: &PageAsk,
        now: UnixNanos,
    ) -> Result<(Vec<FileRecord>, bool), ObjectError> {
        self.pull(async |client| rows::files(client, project, purpose, ask, now).await)
    }

    fn read(&self, id: &str, at: u64) -> Result<Vec<u8>, ObjectError> {
        self.pull(async |client| rows::bytes(client, id, at).await)
    }

    fn delete_file(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<bool, ObjectError> {
        let is_there = self.write(async |client| rows::hide(client, project, id, now).await)?;
        if is_there {
            self.remove(id)?;
        }
        Ok(is_there)
    }

    fn create_upload(&self, upload: &UploadRecord) -> Result<(), ObjectError> {
        self.write(async |client| rows::create_upload(client, &self.limits, upload).await)
    }

    fn upload(&self, project: &ProjectId, id: &str) -> Result<Option<UploadRecord>, ObjectError> {
        self.pull(async |client| rows::upload(client, project, id, "").await)
    }

    fn cancel_upload(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<Result<UploadRecord, UploadFault>>, ObjectError> {
        let outcome = self.write(async |client| {
            let Some(mut upload) = rows::upload(client, project, id, "FOR UPDATE").await? else {
                return Ok(None);
            };
            if upload.status != UploadStatus::Pending || upload.expires <= now {
                return Ok(Some((Err(UploadFault::NotPending), Vec::new())));
            }
            upload.status = UploadStatus::Cancelled;
            let parts = rows::end_upload(client, &upload).await?;
            Ok(Some((Ok(upload), parts)))
        })?;
        let Some((outcome, parts)) = outcome else { return Ok(None) };
        parts.iter().try_for_each(|part| self.remove(part))?;
        Ok(Some(outcome))
    }

    fn read_part(&self, upload: &str, part: &str, at: u64) -> Result<Vec<u8>, ObjectError> {
        self.pull(async |client| match rows::part_bytes(client, upload, part).await? {
            Some(_) => rows::bytes(client, part, at).await,
            None => Ok(Vec::new()),
        })
    }

    fn complete_upload(
        &self,
        project: &ProjectId,
        id: &str,
        parts: &[String],
        file: &str,
        now: UnixNanos,
    ) -> Result<Result<(UploadRecord, FileRecord), UploadFault>, ObjectError> {
        let most = limit_for(self.limits.max_file_bytes / 16);
        let (outcome, left) = self.pool.write(most, async |client| {
            let Some(mut upload) = rows::upload(client, project, id, "FOR UPDATE").await? else {
                return Ok((Err(UploadFault::Missing), Vec::new()));
            };
            if upload.status != UploadStatus::Pending || upload.expires <= now {
                return Ok((Err(UploadFault::NotPending), Vec::new()));
            }
            match rows::join(client, &upload, parts, file, now).await? {
                Ok(joined) => {
                    upload.status = UploadStatus::Completed;
                    upload.file = Some(joined.id.clone());
                    let left = rows::end_upload(client, &upload).await?;
                    Ok((Ok((upload, joined)), left))
                }
                Err(why) => Ok((Err(why), Vec::new())),
            }
        })?;
        left.iter().try_for_each(|part| self.remove(part))?;
        Ok(outcome)
    }

    fn sweep_files(&self, now: UnixNanos) -> Result<u64, ObjectError> {
        let left = self.pull(async |client| rows::left(client, SWEPT_AT_ONCE).await)?;
        left.iter().try_for_each(|file| self.remove(file))?;
        let (files, uploads) = self.write(async |client| {
            let mut files = rows::expired(client, now, SWEPT_AT_ONCE).await?;
            let (parts, uploads) = rows::expired_uploads(client, now, SWEPT_AT_ONCE).await?;
            files.extend(parts);
            Ok((files, uploads))
        })?;
        files.iter().try_for_each(|file| self.remove(file))?;
        let mut batches = 0;
        for batch in self.pull(async |client| batch_rows::expired(client, now, SWEPT_AT_ONCE).await)? {
            let is_gone = self.pool.write(batch_rows::LINES_LIMIT, async |client| {
                batch_rows::remove(client, &batch, None, now).await
            })?;
            batches += u64::from(is_gone);
        }
        Ok(files.len() as u64 + uploads + batches)
    }

    fn failing(&self) -> Option<String> {
        self.pool.failing()
    }
}

impl fmt::Debug for PostgresFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresFiles").field("limits", &self.limits).finish_non_exhaustive()
    }
}
