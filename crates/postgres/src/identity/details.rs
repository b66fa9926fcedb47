//! Details and uses of keys. A use is no change of the directory, so that no gateway loads identities again.

use headrace_domain::{KeyId, UnixNanos};
use headrace_identity::{AuditEntry, KeyDetailStore, KeyDetails, KeyUse, StoreError};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::rows::{RowFailure, json, nanos, parsed, time};
use super::{LIMIT, LOAD_LIMIT, PostgresKeyStore, change_key};

/// Writes uses of keys, and of users' tokens. A later one stays.
const PUT_USES: &str = "INSERT INTO headrace.key_uses (key, used) \
     SELECT given.key, given.used FROM unnest($1::text[], $2::bigint[]) AS given (key, used) \
     WHERE EXISTS (SELECT FROM headrace.keys WHERE id = given.key) \
     OR EXISTS (SELECT FROM headrace.accounts WHERE id = given.key) ORDER BY given.key \
     ON CONFLICT (key) DO UPDATE SET used = excluded.used WHERE key_uses.used < excluded.used";

/// Writes uses of keys, and of users' tokens, within the caller's transaction if there is one.
pub(super) async fn put_uses(client: &Client, uses: &[KeyUse]) -> Result<(), RowFailure> {
    let keys: Vec<&str> = uses.iter().map(|used| used.key.as_str()).collect();
    let times = uses.iter().map(|used| nanos(used.at)).collect::<Result<Vec<i64>, _>>()?;
    let values = [(&keys as _, Type::TEXT_ARRAY), (&times as _, Type::INT8_ARRAY)];
    client.execute_typed(PUT_USES, &values).await?;
    Ok(())
}

impl KeyDetailStore for PostgresKeyStore {
    fn set_key_details(
        &self,
        id: &KeyId,
        details: &KeyDetails,
        audit: &AuditEntry,
    ) -> Result<(), StoreError> {
        self.write("changing a key's details", async |client| {
            let set = "UPDATE headrace.keys SET details = $2 WHERE id = $1";
            change_key(client, set, id, &json(details)?, audit).await
        })
    }

    fn put_key_uses(&self, uses: &[KeyUse]) -> Result<(), StoreError> {
        if uses.is_empty() {
            return Ok(());
        }
        self.read("writing uses of keys", LIMIT, async |client| put_uses(client, uses).await)
    }

    fn key_uses(&self, since: UnixNanos) -> Result<Vec<KeyUse>, StoreError> {
        self.read("reading uses of keys", LOAD_LIMIT, async |client| {
            let since = nanos(since)?;
            let query = "SELECT key, used FROM headrace.key_uses WHERE used > $1";
            let rows = client.query_typed(query, &[(&since, Type::INT8)]).await?;
            let read = |row| Ok(KeyUse { key: parsed(row, "key", KeyId::new)?, at: time(row, "used")? });
            rows.iter().map(read).collect()
        })
    }
}
