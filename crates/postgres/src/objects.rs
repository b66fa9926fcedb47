//! Clients' responses and conversations as tables that all gateways share. Knows no dialect.

mod archive;
mod conversations;
mod database;
mod responses;
mod sizes;

use std::fmt;
use std::sync::Arc;

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    ConversationRecord, HistoryOf, ItemPage, ItemRecord, ObjectError, ObjectLimits, ObjectStore, OnStored,
    PageAsk, PendingResponse, ResponseRecord, ResponseSink as _, ResponseWriter, StoredLookup,
};

use tokio_postgres::Client;

use crate::object_schema;
use crate::pool::{SessionPool, StatementFailure, limit_for};
use crate::session::DatabaseSession;
use crate::url::PostgresUrl;

pub use database::OwnerSource;
pub(crate) use database::owner_value;

use database::ObjectDatabase;

/// The store of responses and conversations. See the top of the file.
pub struct PostgresObjects {
    database: Arc<ObjectDatabase>,
    writer: ResponseWriter,
}

impl PostgresObjects {
    /// Opens the store, and makes its tables if they are missing. `owner` names this gateway.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the database cannot be reached, or a newer program made the tables.
    pub fn open(
        url: Arc<PostgresUrl>,
        limits: ObjectLimits,
        owner: OwnerSource,
    ) -> Result<Self, ObjectError> {
        object_schema::ensure(&mut DatabaseSession::new(Arc::clone(&url)))?;
        let database = Arc::new(ObjectDatabase { pool: SessionPool::new(url), limits, owner });
        let writer = ResponseWriter::start(&database)?;
        Ok(Self { database, writer })
    }

    fn read<T: Send>(
        &self,
        query: impl AsyncFn(&Client) -> Result<T, StatementFailure> + Send + Sync,
    ) -> Result<T, ObjectError> {
        self.database.pool.read(limit_for(0), query)
    }

    /// Like [`Self::read`], for look-ups of many bytes.
    fn read_long<T: Send>(
        &self,
        query: impl AsyncFn(&Client) -> Result<T, StatementFailure> + Send + Sync,
    ) -> Result<T, ObjectError> {
        let ObjectLimits { max_history_bytes, max_object_bytes, .. } = self.database.limits;
        self.database.pool.read(limit_for(max_history_bytes.max(max_object_bytes)), query)
    }

    fn write<T: Send>(
        &self,
        change: impl AsyncFnOnce(&Client) -> Result<T, StatementFailure> + Send,
    ) -> Result<T, ObjectError> {
        self.database.pool.write(limit_for(0), change)
    }
}

impl ObjectStore for PostgresObjects {
    fn put_response(&self, response: &ResponseRecord, items: &[ItemRecord]) -> Result<(), ObjectError> {
        self.database.put(response, items)
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
        self.read_long(async |client| responses::response(client, project, id, now).await)
    }

    fn delete_response(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<bool, ObjectError> {
        self.write(async |client| responses::delete(client, project, id, now).await)
    }

    fn size(
        &self,
        project: &ProjectId,
        what: StoredLookup<'_>,
        now: UnixNanos,
    ) -> Result<Option<u64>, ObjectError> {
        let limits = &self.database.limits;
        self.read(async |client| sizes::size(client, limits, project, what, now).await)
    }

    fn history(
        &self,
        project: &ProjectId,
        of: HistoryOf<'_>,
        most_bytes: u64,
        now: UnixNanos,
    ) -> Result<Option<Vec<String>>, ObjectError> {
        let limits = &self.database.limits;
        self.read_long(async |client| sizes::history(client, limits, project, (of, most_bytes), now).await)
    }

    fn unfinished(&self, now: UnixNanos) -> Result<Vec<(ProjectId, String)>, ObjectError> {
        self.read(async |client| responses::unfinished(client, now).await)
    }

    fn create_conversation(
        &self,
        conversation: &ConversationRecord,
        items: &[ItemRecord],
    ) -> Result<(), ObjectError> {
        let limits = &self.database.limits;
        let bytes = items.iter().map(|item| item.json.len() as u64).sum();
        self.database.pool.write(limit_for(bytes), async |client| {
            responses::lock(client, &conversation.project).await?;
            conversations::create(client, limits, conversation, items).await
        })
    }

    fn conversation(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ConversationRecord>, ObjectError> {
        self.read(async |client| conversations::conversation(client, project, id, now).await)
    }

    fn label_conversation(
        &self,
        project: &ProjectId,
        id: &str,
        metadata: &str,
        now: UnixNanos,
    ) -> Result<Option<ConversationRecord>, ObjectError> {
        self.write(async |client| conversations::label(client, project, id, metadata, now).await)
    }

    fn delete_conversation(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<bool, ObjectError> {
        self.write(async |client| {
            responses::lock(client, project).await?;
            conversations::remove(client, project, id, |expires| expires > now).await
        })
    }

    fn add_items(
        &self,
        project: &ProjectId,
        conversation: &str,
        items: &[ItemRecord],
        now: UnixNanos,
    ) -> Result<bool, ObjectError> {
        let (limits, later) = (&self.database.limits, self.database.limits.expiry(now));
        let bytes = items.iter().map(|item| item.json.len() as u64).sum();
        self.database.pool.write(limit_for(bytes), async |client| {
            responses::lock(client, project).await?;
            conversations::add_items(client, limits, (project, conversation), items, (now, later)).await
        })
    }

    fn items(
        &self,
        project: &ProjectId,
        conversation: &str,
        ask: &PageAsk,
        now: UnixNanos,
    ) -> Result<Option<ItemPage>, ObjectError> {
        self.read_long(async |client| {
            if conversations::conversation(client, project, conversation, now).await?.is_none() {
                return Ok(None);
            }
            conversations::items(client, conversation, ask).await.map(Some)
        })
    }

    fn item(
        &self,
        project: &ProjectId,
        conversation: &str,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ItemRecord>, ObjectError> {
        self.read(async |client| {
            if conversations::conversation(client, project, conversation, now).await?.is_none() {
                return Ok(None);
            }
            conversations::item(client, conversation, id).await
        })
    }

    fn delete_item(
        &self,
        project: &ProjectId,
        conversation: &str,
        id: &str,
        now: UnixNanos,
    ) -> Result<bool, ObjectError> {
        self.write(async |client| {
            responses::lock(client, project).await?;
            if conversations::conversation(client, project, conversation, now).await?.is_none() {
                return Ok(false);
            }
            conversations::remove_item(client, project, conversation, id).await
        })
    }

    fn failing(&self) -> Option<String> {
        self.database.pool.failing()
    }

    fn sweep(&self, now: UnixNanos) -> Result<u64, ObjectError> {
        let mut swept = 0;
        for (project, expired) in self.read(async |client| responses::expired(client, now).await)? {
            swept += self.write(async |client| {
                responses::lock(client, &project).await?;
                responses::sweep(client, &project, &expired, now).await
            })?;
        }
        for (project, id) in self.read(async |client| conversations::expired(client, now).await)? {
            let is_gone = self.write(async |client| {
                responses::lock(client, &project).await?;
                conversations::remove(client, &project, &id, |expires| expires <= now).await
            })?;
            swept += u64::from(is_gone);
        }
        Ok(swept)
    }
}

impl fmt::Debug for PostgresObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresObjects").field("limits", &self.database.limits).finish_non_exhaustive()
    }
}
