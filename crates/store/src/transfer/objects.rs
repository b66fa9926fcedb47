//! Copies responses, conversations, files, batches and answers from one store to another, object by object. An interrupted copy can
//! be repeated.

use std::sync::Arc;

use headrace_domain::UnixNanos;
use headrace_objects::{
    AnswerArchive, ArchivedLine, BatchCounts, BatchRecord, FileArchive, FileDraft, FileLimits, ObjectArchive,
    ObjectError, ObjectLimits,
};
use headrace_postgres::{PostgresAnswers, PostgresFiles, PostgresObjects};

use crate::answers::SqliteAnswers;
use crate::files::SqliteFiles;
use crate::objects::SqliteObjects;
use crate::storage::{Storage, StoreName};

/// Before every time, so that nothing has expired.
const BEFORE: UnixNanos = UnixNanos::new(0);

/// The number of copied objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopiedObjects {
    /// Responses.
    pub responses: u64,
    /// Conversations.
    pub conversations: u64,
    /// Files.
    pub files: u64,
    /// Batches.
    pub batches: u64,
    /// Answers to requests with an idempotency key.
    pub answers: u64,
}

/// A copy has what its source had.
const OBJECT_LIMITS: ObjectLimits = ObjectLimits {
    retention_seconds: 0,
    max_object_bytes: u64::MAX,
    max_responses_per_project: u64::MAX,
    max_response_bytes_per_project: u64::MAX,
    max_conversations_per_project: u64::MAX,
    max_conversation_bytes_per_project: u64::MAX,
    max_total_bytes: u64::MAX >> 1,
    max_items_per_conversation: u64::MAX,
    max_turns: usize::MAX,
    max_history_bytes: u64::MAX,
};
const FILE_LIMITS: FileLimits = FileLimits {
    max_file_bytes: u64::MAX,
    max_files_per_project: u64::MAX,
    max_file_bytes_per_project: u64::MAX,
    max_total_bytes: u64::MAX,
    max_open_batches_per_project: u64::MAX,
    max_requests_per_batch: u64::MAX,
};
const MAX_ANSWER_BYTES: u64 = u64::MAX >> 1;

impl Storage {
    /// Copies responses, conversations, files, batches and answers to `to`, where others may be. The source may be in use: what is
    /// stored meanwhile may be missing. An interrupted copy can be repeated.
    ///
    /// # Errors
    /// Returns an error if a store cannot be read or written.
    pub fn transfer_objects_to(&self, to: &Self) -> Result<CopiedObjects, ObjectError> {
        let mut copied = CopiedObjects::default();
        copy_objects(self.object_archive()?.as_ref(), to.object_archive()?.as_ref(), &mut copied)?;
        copy_files(self.file_archive()?.as_ref(), to.file_archive()?.as_ref(), &mut copied)?;
        copied.answers = copy_answers(self.answer_archive()?.as_ref(), to.answer_archive()?.as_ref())?;
        Ok(copied)
    }

    fn answer_archive(&self) -> Result<Box<dyn AnswerArchive>, ObjectError> {
        Ok(match self.url().database() {
            Some(url) => Box::new(PostgresAnswers::open(Arc::clone(url), MAX_ANSWER_BYTES)?),
            None => Box::new(SqliteAnswers::new(&self.path(StoreName::Answers), MAX_ANSWER_BYTES, None)),
        })
    }

    fn object_archive(&self) -> Result<Box<dyn ObjectArchive>, ObjectError> {
        Ok(match self.url().database() {
            Some(url) => Box::new(PostgresObjects::open(Arc::clone(url), OBJECT_LIMITS, Arc::new(|| None))?),
            None => Box::new(SqliteObjects::open(&self.path(StoreName::Objects), OBJECT_LIMITS)?),
        })
    }

    fn file_archive(&self) -> Result<Box<dyn FileArchive>, ObjectError> {
        Ok(match self.url().database() {
            Some(url) => Box::new(PostgresFiles::open(Arc::clone(url), FILE_LIMITS, Arc::new(|| None))?),
            None => Box::new(SqliteFiles::open(&self.path(StoreName::Files), FILE_LIMITS)?),
        })
    }
}

fn copy_objects(
    from: &dyn ObjectArchive,
    to: &dyn ObjectArchive,
    copied: &mut CopiedObjects,
) -> Result<(), ObjectError> {
    let mut after = i64::MIN;
    loop {
        let responses = from.archived_responses(after)?;
        let Some((last, _)) = responses.last() else { break };
        after = *last;
        for (_, response) in &responses {
            to.put_response(response, &[])?;
            copied.responses += 1;
        }
    }
    let mut after = String::new();
    loop {
        let conversations = from.archived_conversations(&after)?;
        let Some(last) = conversations.last() else { return Ok(()) };
        after.clone_from(&last.id);
        for conversation in &conversations {
            let (project, id) = (&conversation.project, conversation.id.as_str());
            to.delete_conversation(project, id, BEFORE)?;
            to.create_conversation(conversation, &[])?;
            let mut after = i64::MIN;
            loop {
                let items = from.archived_items(id, after)?;
                let Some((last, _)) = items.last() else { break };
                after = *last;
                let items: Vec<_> = items.into_iter().map(|(_, item)| item).collect();
                to.add_items(project, id, &items, BEFORE)?;
            }
            copied.conversations += 1;
        }
    }
}

fn copy_files(
    from: &dyn FileArchive,
    to: &dyn FileArchive,
    copied: &mut CopiedObjects,
) -> Result<(), ObjectError> {
    // Before the files: the result files of a batch that ends meanwhile are then copied, too.
    let mut after = i64::MIN;
    loop {
        let batches = from.archived_batches(after)?;
        let Some((last, ..)) = batches.last() else { break };
        after = *last;
        for (row, ..) in &batches {
            if copy_batch(from, to, *row)? {
                copied.batches += 1;
            }
        }
    }
    let mut after = String::new();
    loop {
        let uploads = from.archived_uploads(&after)?;
        let Some(last) = uploads.last() else { break };
        after.clone_from(&last.id);
        for upload in &uploads {
            if to.upload(&upload.project, &upload.id)?.is_none() {
                to.create_upload(upload)?;
            }
        }
    }
    let mut after = i64::MIN;
    loop {
        let files = from.archived_files(after)?;
        let Some((last, _)) = files.last() else { return Ok(()) };
        after = *last;
        for (_, draft) in &files {
            if copy_file(from, to, draft)? {
                copied.files += 1;
            }
        }
    }
}

/// Copies the answers that are not there. Returns the number of copied ones.
fn copy_answers(from: &dyn AnswerArchive, to: &dyn AnswerArchive) -> Result<u64, ObjectError> {
    let (mut after, mut copied) = (i64::MIN, 0);
    while let Some((row, answer)) = from.next_answer(after)? {
        after = row;
        if to.body(&answer.project, answer.hold, BEFORE)?.is_none() {
            to.put(&answer)?;
            copied += 1;
        }
    }
    Ok(copied)
}

/// A batch with its row, and the time from which it may be removed.
type BatchRow = (i64, BatchRecord, Option<UnixNanos>);

/// Copies a batch with its requests. One whose state changes meanwhile is copied again, because the requests of a batch that
/// has ended are gone. Returns whether it is still there.
fn copy_batch(from: &dyn FileArchive, to: &dyn FileArchive, row: i64) -> Result<bool, ObjectError> {
    let read = || -> Result<Option<BatchRow>, ObjectError> {
        let next = from.archived_batches(row.saturating_sub(1))?.into_iter().next();
        Ok(next.filter(|found| found.0 == row))
    };
    let mut current = read()?;
    while let Some((_, batch, gone)) = current {
        to.restore_batch(&batch, gone)?;
        let (mut next, mut counts) = (0, BatchCounts { total: batch.counts.total, ..BatchCounts::default() });
        loop {
            let lines = from.archived_lines(&batch.id, next)?;
            let Some(last) = lines.last() else { break };
            next = last.at + 1;
            lines.iter().for_each(|line| count(&mut counts, line));
            to.restore_lines(&batch.id, &lines)?;
        }
        current = read()?;
        if current.as_ref().is_some_and(|(_, now, _)| now.state == batch.state) {
            if !batch.state.status.is_over() {
                to.restore_counts(&batch.id, &counts)?;
            }
            return Ok(true);
        }
    }
    Ok(false)
}

fn count(counts: &mut BatchCounts, line: &ArchivedLine) {
    match line.ended {
        1 => counts.completed += 1,
        2 => counts.failed += 1,
        3 => counts.cancelled += 1,
        4 => counts.expired += 1,
        _ => {}
    }
}

/// Copies a file, or a part of an upload that accepts parts. Returns whether it was a file.
fn copy_file(from: &dyn FileArchive, to: &dyn FileArchive, draft: &FileDraft) -> Result<bool, ObjectError> {
    let is_there = match draft {
        FileDraft::File(file) => to.file(&file.project, &file.id, BEFORE)?.is_some(),
        FileDraft::Part { project, part } => {
            // The parts of an ended upload are about to be removed.
            to.upload(project, &part.upload)?.is_none()
                || !to.read_part(&part.upload, &part.id, 0)?.is_empty()
        }
    };
    let is_file = matches!(draft, FileDraft::File(_));
    if is_there {
        return Ok(is_file);
    }
    to.begin(draft)?;
    let mut at = 0;
    loop {
        let bytes = from.read(draft.id(), at)?;
        if bytes.is_empty() {
            break;
        }
        to.append(draft.id(), at, &bytes)?;
        at += bytes.len() as u64;
    }
    if at != draft.bytes() {
        to.give_up(draft.id())?;
        let is_gone = match draft {
            FileDraft::File(file) => from.file(&file.project, &file.id, BEFORE)?.is_none(),
            FileDraft::Part { part, .. } => from.read_part(&part.upload, &part.id, 0)?.is_empty(),
        };
        if is_gone {
            return Ok(false);
        }
        let why = format!("{} has {at} bytes instead of {}", draft.id(), draft.bytes());
        return Err(ObjectError::Unavailable { why });
    }
    to.finish(draft, BEFORE)?;
    Ok(is_file)
}
