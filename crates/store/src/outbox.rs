//! Events that wait for delivery, in one SQLite file. Opens when it is first used, so that a server without webhooks has no
//! such file. Must not know what an event says.

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headrace_domain::UnixNanos;
use headrace_ledger::{
    DeliveryOutcome, DeliveryRecord, DeliveryState, DueDelivery, EventOutbox, OutboxError, OutboxEvent,
};
use headrace_postgres::OutboxContents;
use sqlx::sqlite::{Sqlite, SqliteConnection, SqliteRow};
use sqlx::{QueryBuilder, Row};

use crate::sqlite::{CommitDurability, FileFormat, FormatError, SqliteFile};
use crate::trace::integer;

/// The file's format.
const FORMAT: FileFormat = FileFormat {
    what: "outbox of webhooks",
    application_id: i32::from_be_bytes(*b"HRwh"),
    version: 1,
    newest: 1,
    schema: "
        CREATE TABLE position (only INTEGER PRIMARY KEY CHECK (only = 1), journal INTEGER NOT NULL) STRICT;
        CREATE TABLE event (
            id TEXT PRIMARY KEY,
            kind TEXT NOT NULL,
            at INTEGER NOT NULL,        -- nanoseconds since 1970, as all times
            body TEXT NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX event_at ON event (at);
        CREATE TABLE delivery (
            event TEXT NOT NULL REFERENCES event (id),
            endpoint TEXT NOT NULL,
            state TEXT NOT NULL,
            tries INTEGER NOT NULL,
            next INTEGER NOT NULL,      -- when a try is due, or the lease of the one in progress ends
            tried INTEGER,
            result TEXT,
            PRIMARY KEY (event, endpoint)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX delivery_due ON delivery (next) WHERE state = 'pending';
        CREATE TABLE gone (endpoint TEXT PRIMARY KEY, at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    ",
    upgrade: "",
    shrinks: false,
};

/// Removes everything.
const CLEAR: &str = "DELETE FROM delivery; DELETE FROM event; DELETE FROM gone; DELETE FROM position";

/// The outbox. See the top of the file.
pub struct SqliteOutbox {
    database: Mutex<SqliteFile>,
}

impl SqliteOutbox {
    /// Describes an outbox in the file at `path`.
    pub fn new(path: &Path) -> Self {
        Self { database: Mutex::new(SqliteFile::closed(path, CommitDurability::Full, FORMAT, None)) }
    }

    /// Returns what the outbox has.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn contents(&self) -> Result<OutboxContents, OutboxError> {
        let (position, events) = self.read(async |connection| {
            let position: Option<(i64,)> =
                sqlx::query_as("SELECT journal FROM position").fetch_optional(&mut *connection).await?;
            let rows = sqlx::query("SELECT id, kind, at, body FROM event ORDER BY id");
            let rows = rows.fetch_all(connection).await?;
            let events = rows.iter().map(stored_event).collect::<Result<Vec<_>, _>>()?;
            Ok((position.map(|(journal,)| journal.unsigned_abs()), events))
        })?;
        Ok(OutboxContents { position, events, deliveries: self.deliveries(u32::MAX)?, gone: self.gone()? })
    }

    /// Stores contents in place of the ones that the outbox has: all or nothing.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn restore(&self, contents: &OutboxContents) -> Result<(), OutboxError> {
        let OutboxContents { position, events, deliveries, gone } = contents;
        self.write(async |connection| {
            sqlx::raw_sql(CLEAR).execute(&mut *connection).await?;
            for OutboxEvent { id, kind, at, body } in events {
                let put = "INSERT INTO event (id, kind, at, body) VALUES (?, ?, ?, ?)";
                let put = sqlx::query(put).bind(id).bind(kind).bind(integer(at.get())).bind(body);
                put.execute(&mut *connection).await?;
            }
            for record in deliveries {
                let put = "INSERT INTO delivery (event, endpoint, state, tries, next, tried, result) \
                           VALUES (?, ?, ?, ?, ?, ?, ?)";
                let (tried, result) = record.last.as_ref().map(|(at, why)| (at.get(), why.as_str())).unzip();
                let put = sqlx::query(put).bind(&record.event).bind(&record.endpoint);
                let put = put.bind(record.state.name()).bind(i64::from(record.tries));
                let put = put.bind(integer(record.next.map_or(0, UnixNanos::get)));
                put.bind(tried.map(integer)).bind(result).execute(&mut *connection).await?;
            }
            for (endpoint, at) in gone {
                let put = sqlx::query("INSERT INTO gone VALUES (?, ?)").bind(endpoint);
                put.bind(integer(at.get())).execute(&mut *connection).await?;
            }
            if let Some(position) = position {
                let put = sqlx::query("INSERT INTO position VALUES (1, ?)").bind(integer(*position));
                put.execute(connection).await?;
            }
            Ok(())
        })
    }

    fn lock(&self) -> MutexGuard<'_, SqliteFile> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write<T>(
        &self,
        change: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, FormatError>,
    ) -> Result<T, OutboxError> {
        self.lock().write(change).map_err(failed)
    }

    fn read<T>(
        &self,
        query: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, FormatError>,
    ) -> Result<T, OutboxError> {
        self.lock().read(query).map_err(failed)
    }
}

impl fmt::Debug for SqliteOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteOutbox").finish_non_exhaustive()
    }
}

fn failed(error: FormatError) -> OutboxError {
    OutboxError(error.to_string())
}

/// The event of a row with its columns.
fn stored_event(row: &SqliteRow) -> Result<OutboxEvent, sqlx::Error> {
    Ok(OutboxEvent {
        id: row.try_get("id")?,
        kind: row.try_get("kind")?,
        at: time(row, "at")?,
        body: row.try_get("body")?,
    })
}

fn time(row: &SqliteRow, name: &str) -> Result<UnixNanos, sqlx::Error> {
    let nanos: i64 = row.try_get(name)?;
    Ok(UnixNanos::new(nanos.unsigned_abs()))
}

impl EventOutbox for SqliteOutbox {
    fn position(&self, start: u64) -> Result<u64, OutboxError> {
        self.write(async |connection| {
            let put = "INSERT INTO position VALUES (1, ?) ON CONFLICT DO NOTHING";
            sqlx::query(put).bind(integer(start)).execute(&mut *connection).await?;
            let (row,): (i64,) = sqlx::query_as("SELECT journal FROM position").fetch_one(connection).await?;
            Ok(row.unsigned_abs())
        })
    }

    fn take_in(
        &self,
        from: u64,
        to: u64,
        events: &[OutboxEvent],
        endpoints: &[String],
    ) -> Result<(), OutboxError> {
        self.write(async |connection| {
            let moved = sqlx::query("UPDATE position SET journal = ? WHERE journal = ?");
            let moved = moved.bind(integer(to)).bind(integer(from)).execute(&mut *connection).await?;
            if moved.rows_affected() == 0 {
                return Ok(());
            }
            for OutboxEvent { id, kind, at, body } in events {
                let put = "INSERT INTO event (id, kind, at, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING";
                let put = sqlx::query(put).bind(id).bind(kind).bind(integer(at.get())).bind(body);
                put.execute(&mut *connection).await?;
                for endpoint in endpoints {
                    let put = "INSERT INTO delivery (event, endpoint, state, tries, next) \
                               VALUES (?, ?, 'pending', 0, ?) ON CONFLICT DO NOTHING";
                    let put = sqlx::query(put).bind(id).bind(endpoint).bind(integer(at.get()));
                    put.execute(&mut *connection).await?;
                }
            }
            Ok(())
        })
    }

    fn claim(
        &self,
        endpoints: &[String],
        now: UnixNanos,
        lease: Duration,
        limit: u32,
    ) -> Result<Vec<DueDelivery>, OutboxError> {
        self.write(async |connection| {
            let mut query = QueryBuilder::<Sqlite>::new(
                "SELECT id, kind, at, body, endpoint, tries FROM delivery JOIN event ON event = id \
                 WHERE state = 'pending' AND next <= ",
            );
            query.push_bind(integer(now.get()));
            query.push(" AND endpoint NOT IN (SELECT endpoint FROM gone) AND endpoint IN (");
            let mut names = query.separated(", ");
            for endpoint in endpoints {
                names.push_bind(endpoint);
            }
            query.push(") ORDER BY next, id LIMIT ").push_bind(i64::from(limit));
            let rows = query.build().fetch_all(&mut *connection).await?;
            let mut due = Vec::with_capacity(rows.len());
            for row in &rows {
                let tries: i64 = row.try_get("tries")?;
                let delivery = DueDelivery {
                    event: stored_event(row)?,
                    endpoint: row.try_get("endpoint")?,
                    tries: u32::try_from(tries).unwrap_or(u32::MAX),
                };
                let leased = sqlx::query("UPDATE delivery SET next = ? WHERE event = ? AND endpoint = ?");
                let leased = leased.bind(integer(now.after(lease).get())).bind(&delivery.event.id);
                leased.bind(&delivery.endpoint).execute(&mut *connection).await?;
                due.push(delivery);
            }
            Ok(due)
        })
    }

    fn record(
        &self,
        delivery: &DueDelivery,
        now: UnixNanos,
        result: &str,
        outcome: DeliveryOutcome,
    ) -> Result<(), OutboxError> {
        self.write(async |connection| {
            let (state, next) = match outcome {
                DeliveryOutcome::Delivered => (DeliveryState::Delivered, now),
                DeliveryOutcome::Retry(next) => (DeliveryState::Pending, next),
                DeliveryOutcome::Failed => (DeliveryState::Failed, now),
                DeliveryOutcome::EndpointGone => {
                    let gone = sqlx::query("INSERT INTO gone VALUES (?, ?) ON CONFLICT DO NOTHING");
                    let gone = gone.bind(&delivery.endpoint).bind(integer(now.get()));
                    gone.execute(&mut *connection).await?;
                    (DeliveryState::Pending, now)
                }
            };
            let set = "UPDATE delivery SET state = ?, tries = tries + 1, next = ?, tried = ?, result = ? \
                       WHERE event = ? AND endpoint = ? AND state = 'pending'";
            let set = sqlx::query(set).bind(state.name()).bind(integer(next.get())).bind(integer(now.get()));
            let set = set.bind(result).bind(&delivery.event.id).bind(&delivery.endpoint);
            set.execute(connection).await?;
            Ok(())
        })
    }

    fn deliveries(&self, limit: u32) -> Result<Vec<DeliveryRecord>, OutboxError> {
        self.read(async |connection| {
            let newest = "SELECT id, kind, at, endpoint, state, tries, next, tried, result FROM delivery \
                          JOIN event ON event = id ORDER BY at DESC, id, endpoint LIMIT ?";
            let rows = sqlx::query(newest).bind(i64::from(limit)).fetch_all(connection).await?;
            let record = |row: &SqliteRow| -> Result<_, sqlx::Error> {
                let state: &str = row.try_get("state")?;
                let state = DeliveryState::ALL.into_iter().find(|known| known.name() == state);
                let state = state.unwrap_or(DeliveryState::Failed);
                let (tried, tries): (Option<i64>, i64) = (row.try_get("tried")?, row.try_get("tries")?);
                let result: Option<String> = row.try_get("result")?;
                let next = time(row, "next")?;
                Ok(DeliveryRecord {
                    event: row.try_get("id")?,
                    kind: row.try_get("kind")?,
                    endpoint: row.try_get("endpoint")?,
                    at: time(row, "at")?,
                    state,
                    tries: u32::try_from(tries).unwrap_or(u32::MAX),
                    last: tried.map(|at| UnixNanos::new(at.unsigned_abs())).zip(result),
                    next: (state == DeliveryState::Pending).then_some(next),
                })
            };
            Ok(rows.iter().map(record).collect::<Result<_, _>>()?)
        })
    }

    fn gone(&self) -> Result<Vec<(String, UnixNanos)>, OutboxError> {
        self.read(async |connection| {
            let rows = sqlx::query("SELECT endpoint, at FROM gone ORDER BY endpoint");
            let rows = rows.fetch_all(connection).await?;
            let one = |row: &SqliteRow| Ok::<_, sqlx::Error>((row.try_get("endpoint")?, time(row, "at")?));
            Ok(rows.iter().map(one).collect::<Result<_, _>>()?)
        })
    }

    fn resume(&self, endpoint: &str) -> Result<(), OutboxError> {
        self.write(async |connection| {
            sqlx::query("DELETE FROM gone WHERE endpoint = ?").bind(endpoint).execute(connection).await?;
            Ok(())
        })
    }

    fn sweep(&self, before: UnixNanos) -> Result<(), OutboxError> {
        self.write(async |connection| {
            let old = "DELETE FROM delivery WHERE event IN (SELECT id FROM event WHERE at < ?)";
            sqlx::query(old).bind(integer(before.get())).execute(&mut *connection).await?;
            let old = "DELETE FROM event WHERE at < ? AND id NOT IN (SELECT event FROM delivery)";
            sqlx::query(old).bind(integer(before.get())).execute(connection).await?;
            Ok(())
        })
    }
}
