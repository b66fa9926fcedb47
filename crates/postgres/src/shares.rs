//! The shares of gateways in rate limits, as two tables. An exchange is one transaction of two round trips under an
//! advisory lock. Must not know how shares are decided.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headrace_limits::{
    LimitShares, ShareHolder, ShareKey, ShareMember, ShareStore, ShareStoreError, ShareTable,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::session::{DatabaseSession, SessionFault};
use crate::url::PostgresUrl;

/// How long the statements of an exchange may take, with the wait for the lock.
const LIMIT: Duration = Duration::from_secs(2);
/// How long making the tables may take.
const SETUP_LIMIT: Duration = Duration::from_secs(30);
/// The names of the locks.
const EXCHANGE: i64 = 0x4852_7368;
const SETUP: i64 = 0x4852_7373;

/// Later than version 1 of the other tables, and no change of them: older programs do not look for these. They are logged,
/// because after a crash, gateways would otherwise take shares that others still use. A gateway updates its row once a
/// second; the free space lets PostgreSQL keep the versions in the same page.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS headrace.share_member (
    holder      bytea  PRIMARY KEY CHECK (length(holder) = 16),
    seen_micros bigint NOT NULL,
    base_units  int    NOT NULL,
    used_micros bigint NOT NULL
) WITH (fillfactor = 30);
CREATE TABLE IF NOT EXISTS headrace.share_limit (
    rule text NOT NULL,
    kind text NOT NULL,
    id   text NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (rule, kind, id)
) WITH (fillfactor = 30);
";

/// Begins an exchange. The settings end with the transaction, as a pooler requires. A gateway that stops while it has the
/// lock loses its connection after half a second.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '1s'; \
    SET LOCAL idle_in_transaction_session_timeout = '500ms'; SET LOCAL synchronous_commit = 'on'";
const LOCK: &str = "SELECT pg_advisory_xact_lock($1)";
const MEMBERS: &str = "SELECT holder, seen_micros, base_units, used_micros FROM headrace.share_member";
const LIMITS: &str = "SELECT rule, kind, id, body FROM headrace.share_limit";
/// Runs after the lock was taken, so that its time is not before that of an earlier exchange.
const TIME: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
const PUT_MEMBERS: &str = "INSERT INTO headrace.share_member \
    SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::int[], $4::bigint[]) \
    ON CONFLICT (holder) DO UPDATE SET seen_micros = excluded.seen_micros, base_units = excluded.base_units, \
    used_micros = excluded.used_micros";
const PUT_LIMITS: &str = "INSERT INTO headrace.share_limit \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) \
    ON CONFLICT (rule, kind, id) DO UPDATE SET body = excluded.body";
const DROP_MEMBERS: &str = "DELETE FROM headrace.share_member WHERE holder = ANY($1)";
const DROP_LIMITS: &str = "DELETE FROM headrace.share_limit \
    WHERE (rule, kind, id) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]))";
/// A commit that lets no gateway use more may be lost in a crash of the database: gateways then use less than their rows.
const COMMIT_LAZILY: &str = "SET LOCAL synchronous_commit = 'off'; COMMIT";
const COMMIT: &str = "COMMIT";

/// A handle to the shares in a database, for one thread.
pub struct PostgresShares {
    session: DatabaseSession,
    has_tables: bool,
}

impl fmt::Debug for PostgresShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresShares").field("url", self.session.url()).finish_non_exhaustive()
    }
}

impl PostgresShares {
    /// Prepares a handle. It connects when it is used. The other tables must exist.
    pub fn new(url: Arc<PostgresUrl>) -> Self {
        Self { session: DatabaseSession::new(url), has_tables: false }
    }

    fn ensure_tables(&mut self) -> Result<(), SessionFault> {
        if self.has_tables {
            return Ok(());
        }
        let make = format!("BEGIN; SELECT pg_advisory_xact_lock({SETUP}); {TABLES} COMMIT");
        self.session.run(SETUP_LIMIT, async |client| client.batch_execute(&make).await)?;
        self.has_tables = true;
        Ok(())
    }

    /// Locks the tables and reads them with the database's time.
    fn begin(&mut self) -> Result<(Vec<Row>, Vec<Row>, i64), SessionFault> {
        self.session.run(LIMIT, async |client| {
            // All are sent at once. The database runs them one after another.
            let (begun, locked, members, limits, time) = tokio::join!(
                client.batch_execute(BEGIN),
                client.query_typed(LOCK, &[(&EXCHANGE, Type::INT8)]),
                client.query_typed(MEMBERS, &[]),
                client.query_typed(LIMITS, &[]),
                client.query_typed_one(TIME, &[]),
            );
            begun?;
            locked?;
            Ok((members?, limits?, time?.get(0)))
        })
    }

    fn commit(&mut self, changes: &ShareChanges) -> Result<(), SessionFault> {
        let ShareChanges { members, limits, gone_members, gone_limits, lets_grow } = changes;
        self.session.run_open(LIMIT, async |client| {
            let put_members = async {
                if members.holders.is_empty() {
                    return Ok(0);
                }
                let values = [
                    (&members.holders as _, Type::BYTEA_ARRAY),
                    (&members.seen as _, Type::INT8_ARRAY),
                    (&members.units as _, Type::INT4_ARRAY),
                    (&members.used as _, Type::INT8_ARRAY),
                ];
                client.execute_typed(PUT_MEMBERS, &values).await
            };
            let put_limits = async {
                if limits.rules.is_empty() {
                    return Ok(0);
                }
                let values = [
                    (&limits.rules as _, Type::TEXT_ARRAY),
                    (&limits.kinds as _, Type::TEXT_ARRAY),
                    (&limits.ids as _, Type::TEXT_ARRAY),
                    (&limits.bodies as _, Type::TEXT_ARRAY),
                ];
                client.execute_typed(PUT_LIMITS, &values).await
            };
            let drop_members = async {
                if gone_members.is_empty() {
                    return Ok(0);
                }
                client.execute_typed(DROP_MEMBERS, &[(gone_members, Type::BYTEA_ARRAY)]).await
            };
            let drop_limits = async {
                if gone_limits.rules.is_empty() {
                    return Ok(0);
                }
                let values = [
                    (&gone_limits.rules as _, Type::TEXT_ARRAY),
                    (&gone_limits.kinds as _, Type::TEXT_ARRAY),
                    (&gone_limits.ids as _, Type::TEXT_ARRAY),
                ];
                client.execute_typed(DROP_LIMITS, &values).await
            };
            let commit = client.batch_execute(if *lets_grow { COMMIT } else { COMMIT_LAZILY });
            let (put_members, put_limits, drop_members, drop_limits, commit) =
                tokio::join!(put_members, put_limits, drop_members, drop_limits, commit);
            // If a statement failed, the commit was a rollback.
            put_members?;
            put_limits?;
            drop_members?;
            drop_limits?;
            commit
        })
    }
}

impl ShareStore for PostgresShares {
    fn exchange(&mut self, change: &mut dyn FnMut(&mut ShareTable, u64)) -> Result<(), ShareStoreError> {
        let failed = |fault: SessionFault| ShareStoreError { why: fault.why() };
        self.ensure_tables().map_err(failed)?;
        let begun = self.begin();
        let (members, limits, time) = begun.map_err(|fault| {
            // Ends the transaction, too.
            self.session.close();
            failed(fault)
        })?;
        let read = read_table(&members, &limits);
        let before = read.inspect_err(|_| self.session.close())?;
        let mut table = before.clone();
        change(&mut table, u64::try_from(time).unwrap_or(0));
        let changes = ShareChanges::between(&before, &table);
        let changes = changes.inspect_err(|_| self.session.close())?;
        self.commit(&changes).map_err(|fault| {
            self.session.close();
            failed(fault)
        })
    }
}

fn read_table(members: &[Row], limits: &[Row]) -> Result<ShareTable, ShareStoreError> {
    let mut table = ShareTable::default();
    for row in members {
        let holder = row.get::<_, &[u8]>(0).try_into().map(u128::from_be_bytes);
        let holder = holder.map_err(|_| unreadable("share_member", &"a holder does not have 16 bytes"))?;
        let member = ShareMember {
            seen_micros: u64::try_from(row.get::<_, i64>(1)).unwrap_or(0),
            base_units: u32::try_from(row.get::<_, i32>(2)).unwrap_or(0),
            used_micros: u64::try_from(row.get::<_, i64>(3)).unwrap_or(0),
        };
        table.members.insert(ShareHolder::new(holder), member);
    }
    for row in limits {
        let (rule, kind, id): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
        let key = ShareKey::from_columns(rule, kind, id)
            .ok_or_else(|| unreadable("share_limit", &format_args!("{rule} of {kind} `{id}`")))?;
        let shares: LimitShares =
            serde_json::from_str(row.get(3)).map_err(|error| unreadable("share_limit", &error))?;
        table.limits.insert(key, shares);
    }
    Ok(table)
}

fn unreadable(table: &str, why: &dyn fmt::Display) -> ShareStoreError {
    let why = format!(
        "table headrace.{table} has a row that this program cannot read ({why}): stop all gateways and empty the table"
    );
    ShareStoreError { why }
}

/// What an exchange changed, in columns.
#[derive(Debug, Default)]
struct ShareChanges {
    members: MemberColumns,
    limits: LimitColumns,
    gone_members: Vec<Vec<u8>>,
    gone_limits: LimitColumns,
    /// A gateway may use more than before.
    lets_grow: bool,
}

#[derive(Debug, Default)]
struct MemberColumns {
    holders: Vec<Vec<u8>>,
    seen: Vec<i64>,
    units: Vec<i32>,
    used: Vec<i64>,
}

#[derive(Debug, Default)]
struct LimitColumns {
    rules: Vec<&'static str>,
    kinds: Vec<&'static str>,
    ids: Vec<String>,
    bodies: Vec<String>,
}

impl LimitColumns {
    fn push(&mut self, key: &ShareKey) {
        let (rule, kind, id) = key.columns();
        self.rules.push(rule);
        self.kinds.push(kind);
        self.ids.push(id.to_owned());
    }
}

impl ShareChanges {
    fn between(before: &ShareTable, after: &ShareTable) -> Result<Self, ShareStoreError> {
        let mut changes = Self::default();
        for (holder, member) in &after.members {
            let known = before.members.get(holder);
            if known == Some(member) {
                continue;
            }
            changes.lets_grow |= member.base_units > known.map_or(0, |known| known.base_units);
            changes.members.holders.push(bytes_of(*holder));
            changes.members.seen.push(i64::try_from(member.seen_micros).unwrap_or(i64::MAX));
            changes.members.units.push(i32::try_from(member.base_units).unwrap_or(i32::MAX));
            changes.members.used.push(i64::try_from(member.used_micros).unwrap_or(i64::MAX));
        }
        changes.gone_members =
            gone(&before.members, &after.members).map(|holder| bytes_of(*holder)).collect();
        for (key, shares) in &after.limits {
            let known = before.limits.get(key);
            if known.is_none_or(|known| !known.is_same(shares)) {
                let body = serde_json::to_string(shares).map_err(|error| ShareStoreError {
                    why: format!("a row could not be encoded: {error}"),
                })?;
                changes.lets_grow |= known.is_some_and(|known| shares.lets_grow(known));
                changes.limits.push(key);
                changes.limits.bodies.push(body);
            }
        }
        gone(&before.limits, &after.limits).for_each(|key| changes.gone_limits.push(key));
        // Without rows, each gateway may use its base share.
        changes.lets_grow |= !changes.gone_limits.rules.is_empty();
        Ok(changes)
    }
}

/// The keys that are in `before` alone.
fn gone<'a, K: Ord, V>(before: &'a BTreeMap<K, V>, after: &'a BTreeMap<K, V>) -> impl Iterator<Item = &'a K> {
    before.keys().filter(|key| !after.contains_key(key))
}

fn bytes_of(holder: ShareHolder) -> Vec<u8> {
    holder.get().to_be_bytes().to_vec()
}
