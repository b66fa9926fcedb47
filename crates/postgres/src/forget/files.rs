//! Removes files and uploads that have the name of a user. Must not know what is in a file.

use headrace_objects::{FileStore as _, ObjectError};
use tokio_postgres::types::Type;

use super::NameSearch;

/// Files, parts of uploads, and those whose removal has begun. No hint selects them: a chunk may have a part of the name
/// alone, and nearly every chunk of compressed bytes has one of the short hints.
const FILES: &str = "
    SELECT seq AS place, id, name, state = 3, octet_length(name)::bigint AS size FROM headrace.file
    WHERE seq > $1 AND ($2::text IS NULL OR project = $2) AND state IN (1, 2, 3)";
const CHUNKS: &str = "
    SELECT at AS place, data, octet_length(data)::bigint AS size FROM headrace.file_chunk WHERE file = $4 AND at > $1";
const UPLOADS: &str = "
    SELECT id AS place, name, mime, octet_length(name)::bigint + octet_length(mime) AS size FROM headrace.upload
    WHERE id > $1 AND ($2::text IS NULL OR project = $2)";
/// Locks the upload of a part. An upload that is being completed would take the part's bytes over.
const LOCK_UPLOAD: &str =
    "SELECT FROM headrace.upload WHERE id = (SELECT upload FROM headrace.file WHERE id = $1) FOR UPDATE";
/// Hides a file or a part.
const HIDE: &str =
    "UPDATE headrace.file SET state = 3, touched = clock_timestamp() WHERE id = $1 AND state IN (1, 2)";
/// Hides the parts of an upload.
const HIDE_PARTS: &str = "
    UPDATE headrace.file SET state = 3, touched = clock_timestamp() WHERE upload = $1 AND state = 2 RETURNING id";

impl NameSearch<'_> {
    /// Removes files, and parts of uploads. Returns their number.
    pub(super) fn forget_files(&self) -> Result<u64, ObjectError> {
        let (mut removed, mut after) = (0, i64::MIN);
        loop {
            let rows = self.page(FILES, (&after, Type::INT8), None)?;
            let Some(last) = rows.last() else { return Ok(removed) };
            after = last.get(0);
            for row in &rows {
                let id: &str = row.get(1);
                if self.is_in_texts(row, &[2]) || self.is_in_file(id)? {
                    removed += self.remove_file(id, row.get(3))?;
                }
            }
        }
    }

    /// Removes uploads that have the name in that of their file or in its media type, with their parts. Returns the number
    /// of uploads.
    pub(super) fn forget_uploads(&self) -> Result<u64, ObjectError> {
        let (mut removed, mut after) = (0, String::new());
        loop {
            let rows = self.page(UPLOADS, (&after, Type::TEXT), None)?;
            let Some(last) = rows.last() else { return Ok(removed) };
            after = last.get(0);
            for row in &rows {
                if self.is_in_texts(row, &[1, 2]) {
                    removed += self.remove_upload(row.get(0))?;
                }
            }
        }
    }

    /// Whether the bytes of a file contain the name. Reads them in pieces that overlap.
    fn is_in_file(&self, id: &str) -> Result<bool, ObjectError> {
        let (mut after, mut piece) = (-1_i64, Vec::new());
        loop {
            let rows = self.page(CHUNKS, (&after, Type::INT8), Some(id))?;
            let Some(last) = rows.last() else { return Ok(false) };
            after = last.get(0);
            rows.iter().for_each(|row| piece.extend_from_slice(row.get(1)));
            if self.user.is_in(&piece) {
                return Ok(true);
            }
            let kept_from = piece.len().saturating_sub(self.user.overlap_bytes());
            piece.drain(..kept_from);
        }
    }

    /// Removes a file or a part. It `is_going` if its removal had begun before. Returns how many were removed: none if
    /// another caller has begun to remove it.
    fn remove_file(&self, id: &str, is_going: bool) -> Result<u64, ObjectError> {
        let hidden = self.write(async |client| {
            client.query_typed(LOCK_UPLOAD, &[(&id, Type::TEXT)]).await?;
            Ok(client.execute_typed(HIDE, &[(&id, Type::TEXT)]).await?)
        })?;
        if hidden > 0 || is_going {
            // In small transactions.
            self.files.give_up(id)?;
        }
        Ok(hidden)
    }

    /// Returns how many were removed: none if another caller has removed it.
    fn remove_upload(&self, id: &str) -> Result<u64, ObjectError> {
        let (removed, parts) = self.write(async |client| {
            let upload = "DELETE FROM headrace.upload WHERE id = $1";
            let removed = client.execute_typed(upload, &[(&id, Type::TEXT)]).await?;
            Ok((removed, client.query_typed(HIDE_PARTS, &[(&id, Type::TEXT)]).await?))
        })?;
        parts.iter().try_for_each(|part| self.files.give_up(part.get(0)))?;
        Ok(removed)
    }
}
