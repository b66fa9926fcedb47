//! Details and uses of keys behind their seam.

use headrace_domain::{KeyId, UnixNanos};
use headrace_identity::{AuditEntry, KeyDetailStore, KeyDetails, KeyUse, StoreError};

use super::detail_rows::{put_details, put_uses};
use super::rows::{RowFailure, nanos, number, parsed};
use super::{SqliteKeyStore, log};

impl KeyDetailStore for SqliteKeyStore {
    fn set_key_details(
        &self,
        id: &KeyId,
        details: &KeyDetails,
        audit: &AuditEntry,
    ) -> Result<(), StoreError> {
        self.write("changing a key's details", async |connection| {
            let found = sqlx::query("SELECT 1 FROM keys WHERE id = ?").bind(id.as_str());
            if found.fetch_optional(&mut *connection).await?.is_none() {
                return Err(RowFailure::Store(StoreError::NotFound { what: "key" }));
            }
            put_details(connection, id, details).await?;
            log(connection, audit.clone()).await
        })
    }

    fn put_key_uses(&self, uses: &[KeyUse]) -> Result<(), StoreError> {
        self.write("writing uses of keys", async |connection| put_uses(connection, uses).await)
    }

    fn key_uses(&self, since: UnixNanos) -> Result<Vec<KeyUse>, StoreError> {
        self.read("reading uses of keys", async |connection| {
            let rows = sqlx::query("SELECT key, used FROM key_uses WHERE used > ?").bind(nanos(since)?);
            let rows = rows.fetch_all(connection).await?;
            let read = |row| {
                Ok(KeyUse { key: parsed(row, "key", KeyId::new)?, at: UnixNanos::new(number(row, "used")?) })
            };
            rows.iter().map(read).collect()
        })
    }
}
