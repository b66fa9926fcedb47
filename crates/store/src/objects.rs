//! Clients' objects in one SQLite file: responses, and conversations with their items. A stored object is on the disk
//! (`synchronous=FULL`), because clients may rely on it. Knows no dialect.

mod archive;
pub(crate) mod forget;
mod kept;
pub(crate) mod rows;
mod sizes;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    ConversationRecord, HistoryOf, ItemPage, ItemRecord, ObjectError, ObjectLimits, ObjectStore, OnStored,
    PageAsk, PendingResponse, ResponseRecord, ResponseSink as _, ResponseWriter, StoredLookup,
};

use crate::disk::DiskGuard;
use crate::pair::ReadWritePair;
use crate::sqlite::FileFormat;

use kept::ObjectDatabase;
use rows::integer;

/// The bytes of the items of each project's conversations, kept correct by triggers.
macro_rules! held_items {
    () => {
        "
        CREATE TABLE held_items (project TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT;
        CREATE TRIGGER item_added AFTER INSERT ON item BEGIN
            INSERT INTO held_items (project, bytes)
                SELECT project, octet_length(new.json) FROM conversation WHERE id = new.conversation
                ON CONFLICT (project) DO UPDATE SET bytes = bytes + excluded.bytes;
        END;
        CREATE TRIGGER item_removed AFTER DELETE ON item BEGIN
            UPDATE held_items SET bytes = bytes - octet_length(old.json)
                WHERE project = (SELECT project FROM conversation WHERE id = old.conversation);
        END;
    "
    };
}

/// The database format.
const FORMAT: FileFormat = FileFormat {
    what: "store of objects",
    application_id: i32::from_be_bytes(*b"HRob"),
    version: 2,
    newest: 2,
    schema: concat!(
        "
        CREATE TABLE response (
            seq INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            project TEXT NOT NULL,
            created INTEGER NOT NULL,   -- nanoseconds since 1970, UTC
            expires INTEGER NOT NULL,   -- likewise
            ended INTEGER NOT NULL,     -- 0: somebody works on it
            previous TEXT,
            conversation TEXT,
            bytes INTEGER NOT NULL,
            input TEXT NOT NULL,        -- JSON, as all that follows
            output TEXT NOT NULL,
            body TEXT NOT NULL,
            events TEXT
        ) STRICT;
        CREATE INDEX response_project ON response (project, seq);
        CREATE INDEX response_expires ON response (expires);
        CREATE INDEX response_open ON response (ended) WHERE ended = 0;
        CREATE TABLE held (             -- what a project's responses come to
            project TEXT PRIMARY KEY,
            responses INTEGER NOT NULL,
            bytes INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE conversation (
            id TEXT PRIMARY KEY,
            project TEXT NOT NULL,
            created INTEGER NOT NULL,
            expires INTEGER NOT NULL,
            items INTEGER NOT NULL,
            metadata TEXT NOT NULL
        ) STRICT;
        CREATE INDEX conversation_project ON conversation (project);
        CREATE INDEX conversation_expires ON conversation (expires);
        CREATE TABLE item (
            seq INTEGER PRIMARY KEY,
            conversation TEXT NOT NULL REFERENCES conversation (id),
            id TEXT NOT NULL,
            json TEXT NOT NULL
        ) STRICT;
        CREATE INDEX item_conversation ON item (conversation, seq);
        CREATE INDEX item_id ON item (conversation, id);
",
        held_items!()
    ),
    upgrade: concat!(
        held_items!(),
        "INSERT INTO held_items (project, bytes) SELECT project, sum(octet_length(json)) FROM item \
         JOIN conversation ON conversation.id = item.conversation GROUP BY project;"
    ),
    shrinks: true,
};

/// Maximum objects that one sweep removes, so that no sweep takes long.
const SWEPT_AT_ONCE: i64 = 256;

/// The store of objects. See the top of the file.
pub struct SqliteObjects {
    kept: Arc<ObjectDatabase>,
    writer: ResponseWriter,
}

impl SqliteObjects {
    /// Opens the database, and creates it if it is missing.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the file is not a store of objects.
    pub fn open(path: &Path, limits: ObjectLimits) -> Result<Self, ObjectError> {
        Self::open_guarded(path, limits, None)
    }

    /// Like [`Self::open`], and keeps the disk's reserve free. If the disk currently prevents opening, the first call
    /// that can open the database does so.
    ///
    /// # Errors
    /// Same as [`Self::open`].
    pub fn open_guarded(
        path: &Path,
        limits: ObjectLimits,
        guard: Option<DiskGuard>,
    ) -> Result<Self, ObjectError> {
        let pair = ReadWritePair::open(path, FORMAT, Some(limits.max_total_bytes))?;
        let kept = Arc::new(ObjectDatabase { pair, limits, guard });
        let writer = ResponseWriter::start(&kept)?;
        Ok(Self { kept, writer })
    }
}

impl ObjectStore for SqliteObjects {
    fn put_response(&self, response: &ResponseRecord, items: &[ItemRecord]) -> Result<(), ObjectError> {
        self.kept.put(response, items)
    }

    fn put_response_then(&self, response: ResponseRecord, items: Vec<ItemRecord>, on_stored: OnStored) {
        self.writer.put(PendingResponse { response, items, on_stored });
    }

    fn response(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ResponseRecord>, ObjectError> {
        self.kept.pair.read(async |connection| rows::response(connection, project, id, now).await)
    }

    fn delete_response(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<bool, ObjectError> {
        self.kept.pair.write(async |connection| {
            let found: Option<(i64,)> =
                sqlx::query_as("SELECT seq FROM response WHERE id = ? AND project = ? AND expires > ?")
                    .bind(id)
                    .bind(project.as_str())
                    .bind(integer(now.get()))
                    .fetch_optional(&mut *connection)
                    .await?;
            let Some((seq,)) = found else { return Ok(false) };
            rows::remove(connection, seq).await?;
            Ok(true)
        })
    }

    fn size(
        &self,
        project: &ProjectId,
        what: StoredLookup<'_>,
        now: UnixNanos,
    ) -> Result<Option<u64>, ObjectError> {
        let limits = &self.kept.limits;
        self.kept.pair.read(async |connection| sizes::size(connection, limits, project, what, now).await)
    }

    fn history(
        &self,
        project: &ProjectId,
        of: HistoryOf<'_>,
        most_bytes: u64,
        now: UnixNanos,
    ) -> Result<Option<Vec<String>>, ObjectError> {
        let limits = &self.kept.limits;
        self.kept
            .pair
            .read(async |connection| sizes::history(connection, limits, project, (of, most_bytes), now).await)
    }

    fn unfinished(&self, now: UnixNanos) -> Result<Vec<(ProjectId, String)>, ObjectError> {
        self.kept.pair.read(async |connection| rows::unfinished(connection, now).await)
    }

    fn create_conversation(
        &self,
        conversation: &ConversationRecord,
        items: &[ItemRecord],
    ) -> Result<(), ObjectError> {
        let limits = &self.kept.limits;
        self.kept.check(items.iter().map(|item| item.json.len() as u64).sum())?;
        let done = self.kept.pair.write(async |connection| {
            let ConversationRecord { id, project, created, expires, metadata } = conversation;
            let (own,): (i64,) = sqlx::query_as("SELECT count(*) FROM conversation WHERE project = ?")
                .bind(project.as_str())
                .fetch_one(&mut *connection)
                .await?;
            let most = limits.max_conversations_per_project;
            rows::fits("max_conversations_per_project", most, own.unsigned_abs() + 1)?;
            sqlx::query("INSERT INTO conversation (id, project, created, expires, items, metadata) VALUES (?, ?, ?, ?, 0, ?)")
                .bind(id)
                .bind(project.as_str())
                .bind(integer(created.get()))
                .bind(integer(expires.get()))
                .bind(metadata)
                .execute(&mut *connection)
                .await?;
            rows::add_items(connection, limits, (project, id), items, *created, *expires).await?;
            Ok(())
        });
        self.kept.name_limit(done)
    }

    fn conversation(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ConversationRecord>, ObjectError> {
        self.kept.pair.read(async |connection| rows::conversation(connection, project, id, now).await)
    }

    fn label_conversation(
        &self,
        project: &ProjectId,
        id: &str,
        metadata: &str,
        now: UnixNanos,
    ) -> Result<Option<ConversationRecord>, ObjectError> {
        self.kept.pair.write(async |connection| {
            sqlx::query("UPDATE conversation SET metadata = ? WHERE id = ? AND project = ? AND expires > ?")
                .bind(metadata)
                .bind(id)
                .bind(project.as_str())
                .bind(integer(now.get()))
                .execute(&mut *connection)
                .await?;
            rows::conversation(connection, project, id, now).await
        })
    }

    fn delete_conversation(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<bool, ObjectError> {
        self.kept.pair.write(async |connection| {
            if rows::conversation(connection, project, id, now).await?.is_none() {
                return Ok(false);
            }
            rows::remove_conversation(connection, id).await?;
            Ok(true)
        })
    }

    fn add_items(
        &self,
        project: &ProjectId,
        conversation: &str,
        items: &[ItemRecord],
        now: UnixNanos,
    ) -> Result<bool, ObjectError> {
        let (limits, later) = (&self.kept.limits, self.kept.limits.expiry(now));
        self.kept.check(items.iter().map(|item| item.json.len() as u64).sum())?;
        let done = self.kept.pair.write(async |connection| {
            rows::add_items(connection, limits, (project, conversation), items, now, later).await
        });
        self.kept.name_limit(done)
    }

    fn items(
        &self,
        project: &ProjectId,
        conversation: &str,
        ask: &PageAsk,
        now: UnixNanos,
    ) -> Result<Option<ItemPage>, ObjectError> {
        self.kept.pair.read(async |connection| {
            if rows::conversation(connection, project, conversation, now).await?.is_none() {
                return Ok(None);
            }
            rows::items(connection, conversation, ask).await.map(Some)
        })
    }

    fn item(
        &self,
        project: &ProjectId,
        conversation: &str,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ItemRecord>, ObjectError> {
        self.kept.pair.read(async |connection| {
            if rows::conversation(connection, project, conversation, now).await?.is_none() {
                return Ok(None);
            }
            let found: Option<(String,)> = sqlx::query_as(
                "SELECT json FROM item WHERE conversation = ? AND id = ? ORDER BY seq LIMIT 1",
            )
            .bind(conversation)
            .bind(id)
            .fetch_optional(&mut *connection)
            .await?;
            Ok(found.map(|(json,)| ItemRecord { id: id.to_owned(), json }))
        })
    }

    fn delete_item(
        &self,
        project: &ProjectId,
        conversation: &str,
        id: &str,
        now: UnixNanos,
    ) -> Result<bool, ObjectError> {
        self.kept.pair.write(async |connection| {
            if rows::conversation(connection, project, conversation, now).await?.is_none() {
                return Ok(false);
            }
            rows::remove_item(connection, conversation, id).await
        })
    }

    fn failing(&self) -> Option<String> {
        self.kept.pair.failing().or_else(|| self.kept.check(0).err().map(|error| error.to_string()))
    }

    fn is_full(&self) -> bool {
        self.kept.guard.as_ref().is_some_and(DiskGuard::was_full)
    }

    fn sweep(&self, now: UnixNanos) -> Result<u64, ObjectError> {
        let swept = self.kept.pair.write(async |connection| {
            let expired = "SELECT seq FROM response WHERE expires <= ? LIMIT ?";
            let responses: Vec<(i64,)> = sqlx::query_as(expired)
                .bind(integer(now.get()))
                .bind(SWEPT_AT_ONCE)
                .fetch_all(&mut *connection)
                .await?;
            for (seq,) in &responses {
                rows::remove(connection, *seq).await?;
            }
            let expired = "SELECT id FROM conversation WHERE expires <= ? LIMIT ?";
            let conversations: Vec<(String,)> = sqlx::query_as(expired)
                .bind(integer(now.get()))
                .bind(SWEPT_AT_ONCE)
                .fetch_all(&mut *connection)
                .await?;
            for (id,) in &conversations {
                rows::remove_conversation(connection, id).await?;
            }
            Ok((responses.len() + conversations.len()) as u64)
        })?;
        // Free pages in the file are room that others need.
        self.kept.pair.shrink(self.kept.check(0).is_err())?;
        Ok(swept)
    }
}

impl fmt::Debug for SqliteObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteObjects").field("limits", &self.kept.limits).finish_non_exhaustive()
    }
}
