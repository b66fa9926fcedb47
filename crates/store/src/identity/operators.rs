//! Operators in the identity store's file. Knows only hashes, never an operator's key.

use headrace_domain::{OrgId, UnixNanos};
use headrace_identity::{
    AccountId, AuditEntry, KeyHash, OperatorId, OperatorRecord, OperatorStore, Role, StoreError,
    StoredOperator,
};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::account_rows::WITH_ACCOUNTS;
use super::detail_rows::raise_format;
use super::rows::{RowFailure, bytes, constraint, nanos, number, optional_time, parsed};
use super::{SqliteKeyStore, log};

const WHAT: &str = "operator";

const OPERATORS: &str = "SELECT operators.*, org, user FROM operators \
                         LEFT JOIN operator_scopes ON operator = operators.id ORDER BY operators.rowid";

impl OperatorStore for SqliteKeyStore {
    fn operators(&self) -> Result<Vec<StoredOperator>, StoreError> {
        self.read("loading operators", async |connection| {
            let rows = sqlx::query(OPERATORS).fetch_all(connection).await?;
            rows.iter().map(operator).collect()
        })
    }

    fn insert_operator(&self, operator: &StoredOperator, audit: &AuditEntry) -> Result<(), StoreError> {
        let (operator, audit) = (operator.clone(), audit.clone());
        self.write("adding an operator", async move |connection| {
            add_operator(connection, &operator).await?;
            log(connection, audit).await
        })
    }

    fn set_operator_revoked(
        &self,
        id: &OperatorId,
        at: UnixNanos,
        audit: &AuditEntry,
    ) -> Result<(), StoreError> {
        let (id, audit) = (id.clone(), audit.clone());
        self.write("revoking an operator", async move |connection| {
            let set = sqlx::query("UPDATE operators SET revoked = ? WHERE id = ? AND revoked IS NULL");
            let set = set.bind(nanos(at)?).bind(id.as_str()).execute(&mut *connection).await?;
            if set.rows_affected() > 0 {
                return log(connection, audit).await;
            }
            let found = sqlx::query("SELECT 1 FROM operators WHERE id = ?").bind(id.as_str());
            match found.fetch_optional(connection).await? {
                Some(_) => Ok(()),
                None => Err(RowFailure::Store(StoreError::NotFound { what: WHAT })),
            }
        })
    }
}

/// Adds an operator, within the caller's transaction.
pub(super) async fn add_operator(
    connection: &mut SqliteConnection,
    operator: &StoredOperator,
) -> Result<(), RowFailure> {
    let StoredOperator { hash, record } = operator;
    let inserted = sqlx::query(
        "INSERT INTO operators (id, hash, name, role, hint, created, revoked) VALUES (?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(record.id.as_str())
    .bind(hash.as_bytes().as_slice())
    .bind(&record.name)
    .bind(record.role.name())
    .bind(&record.hint)
    .bind(nanos(record.created)?)
    .bind(record.revoked.map(nanos).transpose()?)
    .execute(&mut *connection)
    .await;
    inserted.map_err(|error| constraint(error, WHAT, WHAT))?;
    let Some(org) = &record.org else { return Ok(()) };
    let scope = sqlx::query("INSERT INTO operator_scopes (operator, org, user) VALUES (?, ?, ?)");
    let scope = scope.bind(record.id.as_str()).bind(org.as_str());
    scope.bind(record.user.as_ref().map(AccountId::as_str)).execute(&mut *connection).await?;
    raise_format(connection, WITH_ACCOUNTS).await
}

fn operator(row: &SqliteRow) -> Result<StoredOperator, RowFailure> {
    Ok(StoredOperator {
        hash: KeyHash::from_bytes(bytes(row, "hash")?),
        record: OperatorRecord {
            id: parsed(row, "id", OperatorId::new)?,
            name: row.try_get("name")?,
            role: parsed(row, "role", |text| Role::named(text).ok_or("there is no such role"))?,
            org: match row.try_get::<Option<&str>, _>("org")? {
                Some(_) => Some(parsed(row, "org", OrgId::new)?),
                None => None,
            },
            user: match row.try_get::<Option<&str>, _>("user")? {
                Some(_) => Some(parsed(row, "user", AccountId::new)?),
                None => None,
            },
            hint: row.try_get("hint")?,
            created: UnixNanos::new(number(row, "created")?),
            revoked: optional_time(row, "revoked")?,
        },
    })
}
