//! Operators in the shared tables. Knows only hashes, never an operator's key.

use headrace_domain::{OrgId, UnixNanos};
use headrace_identity::{
    AccountId, AuditEntry, KeyHash, OperatorId, OperatorRecord, OperatorStore, Role, StoreError,
    StoredOperator,
};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::rows::{RowFailure, hash, nanos, optional_time, parsed, time};
use super::{LIMIT, PostgresKeyStore, Value, exists, log};

const WHAT: &str = "operator";

impl OperatorStore for PostgresKeyStore {
    fn operators(&self) -> Result<Vec<StoredOperator>, StoreError> {
        self.read("loading operators", LIMIT, async |client| {
            let all = "SELECT id, hash, name, role, NULL AS org, NULL AS person, hint, created, revoked, position \
                       FROM headrace.operators UNION ALL \
                       SELECT id, hash, name, role, org, person, hint, created, revoked, position \
                       FROM headrace.org_operators ORDER BY created, position";
            client.query_typed(all, &[]).await?.iter().map(operator).collect()
        })
    }

    fn insert_operator(&self, operator: &StoredOperator, audit: &AuditEntry) -> Result<(), StoreError> {
        let StoredOperator { hash, record } = operator;
        self.write("adding an operator", async |client| {
            let (id, hash) = (record.id.as_str(), hash.as_bytes().as_slice());
            let taken = "SELECT FROM headrace.operators WHERE id = $1 OR hash = $2 UNION ALL \
                         SELECT FROM headrace.org_operators WHERE id = $1 OR hash = $2 LIMIT 1";
            if exists(client, taken, &[(&id, Type::TEXT), (&hash, Type::BYTEA)]).await? {
                return Err(StoreError::Duplicate { what: WHAT }.into());
            }
            add_operator(client, operator).await?;
            log(client, audit).await.map(drop)
        })
    }

    fn set_operator_revoked(
        &self,
        id: &OperatorId,
        at: UnixNanos,
        audit: &AuditEntry,
    ) -> Result<(), StoreError> {
        self.write("revoking an operator", async |client| {
            let (id, at) = (id.as_str(), nanos(at)?);
            for table in ["operators", "org_operators"] {
                let set =
                    format!("UPDATE headrace.{table} SET revoked = $2 WHERE id = $1 AND revoked IS NULL");
                if client.execute_typed(&set, &[(&id, Type::TEXT), (&at, Type::INT8)]).await? > 0 {
                    return log(client, audit).await.map(drop);
                }
                let known = format!("SELECT FROM headrace.{table} WHERE id = $1");
                if exists(client, &known, &[(&id, Type::TEXT)]).await? {
                    return Ok(());
                }
            }
            Err(StoreError::NotFound { what: WHAT }.into())
        })
    }
}

/// Adds an operator to the table, within the caller's transaction.
pub(super) async fn add_operator(client: &Client, operator: &StoredOperator) -> Result<(), RowFailure> {
    let StoredOperator { hash, record } = operator;
    let (id, hash, role) = (record.id.as_str(), hash.as_bytes().as_slice(), record.role.name());
    let (created, revoked) = (nanos(record.created)?, record.revoked.map(nanos).transpose()?);
    if let Some(org) = &record.org {
        let (org, user) = (org.as_str(), record.user.as_ref().map(AccountId::as_str));
        let insert = "INSERT INTO headrace.org_operators (id, hash, name, role, hint, created, revoked, org, person) \
                      VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        let values: [Value<'_>; 9] = [
            (&id, Type::TEXT),
            (&hash, Type::BYTEA),
            (&record.name, Type::TEXT),
            (&role, Type::TEXT),
            (&record.hint, Type::TEXT),
            (&created, Type::INT8),
            (&revoked, Type::INT8),
            (&org, Type::TEXT),
            (&user, Type::TEXT),
        ];
        client.execute_typed(insert, &values).await?;
        return Ok(());
    }
    client
        .execute_typed(
            "INSERT INTO headrace.operators (id, hash, name, role, hint, created, revoked) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
            &[
                (&id, Type::TEXT),
                (&hash, Type::BYTEA),
                (&record.name, Type::TEXT),
                (&role, Type::TEXT),
                (&record.hint, Type::TEXT),
                (&created, Type::INT8),
                (&revoked, Type::INT8),
            ],
        )
        .await?;
    Ok(())
}

fn operator(row: &Row) -> Result<StoredOperator, RowFailure> {
    Ok(StoredOperator {
        hash: KeyHash::from_bytes(hash(row, "hash")?),
        record: OperatorRecord {
            id: parsed(row, "id", OperatorId::new)?,
            name: row.try_get("name")?,
            role: parsed(row, "role", |text| Role::named(text).ok_or("there is no such role"))?,
            org: match row.try_get::<_, Option<&str>>("org")? {
                Some(_) => Some(parsed(row, "org", OrgId::new)?),
                None => None,
            },
            user: match row.try_get::<_, Option<&str>>("person")? {
                Some(_) => Some(parsed(row, "person", AccountId::new)?),
                None => None,
            },
            hint: row.try_get("hint")?,
            created: time(row, "created")?,
            revoked: optional_time(row, "revoked")?,
        },
    })
}
