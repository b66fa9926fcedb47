//! The journal that several gateways append to, as tables. A turn locks the row `headrace.head`. Knows the
//! shape of rows, not the meaning of their payloads.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::UnixNanos;
use headrace_ledger::{
    GatewayPresence, JournalError, JournalHistory, JournalRow, Owner, SharedJournal, StartedTurn,
    StateSnapshot, TurnStamp,
};
use tokio_postgres::types::Type;

use crate::history::PostgresJournalHistory;
use crate::rows::{SNAPSHOT_COLUMNS, owner_of, row_of, rows_after, snapshot_of};
use crate::schema::{self, journal_error};
use crate::session::DatabaseSession;
use crate::url::PostgresUrl;

/// How long the statements of a turn may take, with the wait for the lock.
const TURN_LIMIT: Duration = Duration::from_secs(4);
/// How long reading a page of rows or a snapshot may take.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// Number of snapshots kept. One is enough to start from.
const SNAPSHOTS_KEPT: i64 = 3;

/// Begins a turn. The settings end with the transaction, as a pooler requires. A gateway that stops while it has the lock
/// loses its connection after half a second.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '2s'; \
    SET LOCAL idle_in_transaction_session_timeout = '500ms'; SET LOCAL synchronous_commit = 'on'";
const LOCK: &str = "SELECT sequence, checksum, directory FROM headrace.head WHERE id = 0 FOR UPDATE";
/// Runs after the lock was taken, so that its time is not before that of the last row.
const STATE: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
    EXISTS (SELECT FROM headrace.gateway WHERE owner = $1 AND state = 'live'), \
    ARRAY(SELECT owner FROM headrace.gateway WHERE $2 AND state = 'live' \
          AND seen < clock_timestamp() - make_interval(secs => $3) ORDER BY owner), \
    (SELECT min(format_version) FROM headrace.gateway WHERE state = 'live')";
const APPEND: &str = "WITH moved AS (UPDATE headrace.head SET sequence = $1, checksum = $6 WHERE id = 0 RETURNING id) \
    INSERT INTO headrace.journal SELECT $1, $7, $8, $2, $3, $4, $6, $5 FROM moved";
const DECLARE_DEAD: &str =
    "UPDATE headrace.gateway SET state = 'dead' WHERE owner = ANY($1) AND state = 'live'";
const JOIN: &str = "INSERT INTO headrace.gateway (owner, format_version, name, version, state) VALUES ($1, $2, $3, $4, 'live') \
    ON CONFLICT (owner) DO UPDATE SET seen = clock_timestamp() WHERE gateway.state = 'live'";
/// Forgets gateways that ended long ago. An owner that is not in the table is not live either.
const FORGET: &str =
    "DELETE FROM headrace.gateway WHERE state <> 'live' AND seen < clock_timestamp() - interval '7 days'";
const RENEW: &str =
    "UPDATE headrace.gateway SET seen = clock_timestamp() WHERE owner = $1 AND state = 'live'";
const LEAVE: &str = "UPDATE headrace.gateway SET state = 'left' WHERE owner = $1 AND state = 'live'";

/// A handle to the shared journal of a database, for one thread.
pub struct PostgresJournal {
    session: DatabaseSession,
    name: String,
    version: String,
    /// Whether the tables were found by the current program.
    is_checked: bool,
    /// Receives the duration of each commit.
    timed: Option<Box<dyn Fn(Duration) + Send>>,
}

impl std::fmt::Debug for PostgresJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresJournal").field("url", self.session.url()).finish_non_exhaustive()
    }
}

impl PostgresJournal {
    /// Prepares a handle. It connects when it joins.
    pub fn new(url: Arc<PostgresUrl>) -> Self {
        let (name, version) = (String::new(), String::new());
        Self { session: DatabaseSession::new(url), name, version, is_checked: false, timed: None }
    }

    /// Returns the journal with the name and the program version under which operators see this gateway.
    #[must_use]
    pub fn named(mut self, name: &str, version: &str) -> Self {
        (self.name, self.version) = (name.to_owned(), version.to_owned());
        self
    }

    /// Returns the journal with a callback that receives the duration of each commit.
    #[must_use]
    pub fn timed(mut self, times: Box<dyn Fn(Duration) + Send>) -> Self {
        self.timed = Some(times);
        self
    }
}

fn owner_bytes(owner: Owner) -> Vec<u8> {
    owner.get().to_be_bytes().to_vec()
}

fn signed(value: u64) -> Result<i64, JournalError> {
    i64::try_from(value)
        .map_err(|_| JournalError::Io(format!("{value} does not fit the database's integers")))
}

impl SharedJournal for PostgresJournal {
    fn join(&mut self, owner: Owner, newest_format: u32) -> Result<(), JournalError> {
        // A connection in doubt must not be used again.
        self.session.close();
        if !self.is_checked {
            schema::ensure(&mut self.session)?;
            self.is_checked = true;
        }
        let (owner, format) = (owner_bytes(owner), i32::try_from(newest_format).unwrap_or(i32::MAX));
        let values = [
            (&owner as _, Type::BYTEA),
            (&format as _, Type::INT4),
            (&self.name as _, Type::TEXT),
            (&self.version as _, Type::TEXT),
        ];
        let joined = self.session.run(TURN_LIMIT, async |client| {
            client.batch_execute(FORGET).await?;
            client.execute_typed(JOIN, &values).await
        });
        joined.map(drop).map_err(journal_error)
    }

    fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError> {
        let before = i64::try_from(sequence).unwrap_or(i64::MAX);
        let newest = format!(
            "SELECT {SNAPSHOT_COLUMNS} FROM headrace.snapshot WHERE sequence < $1 ORDER BY sequence DESC LIMIT 1"
        );
        let found = self
            .session
            .run(READ_LIMIT, async |client| client.query_typed_opt(&newest, &[(&before, Type::INT8)]).await);
        found.map_err(journal_error)?.as_ref().map(snapshot_of).transpose()
    }

    fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        let (after, limit) = (signed(sequence)?, i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.session.run(READ_LIMIT, async |client| rows_after(client, after, limit).await);
        rows.map_err(journal_error)?.iter().map(row_of).collect()
    }

    fn begin(
        &mut self,
        owner: Owner,
        sequence: u64,
        limit: usize,
        lease: Option<Duration>,
    ) -> Result<StartedTurn, JournalError> {
        let (after, limit) = (signed(sequence)?, i64::try_from(limit).unwrap_or(i64::MAX));
        let (owner, asks, seconds) =
            (owner_bytes(owner), lease.is_some(), lease.unwrap_or_default().as_secs_f64());
        let begun = self.session.run(TURN_LIMIT, async |client| {
            // All four are sent at once. The database runs them one after another.
            let state = [(&owner as _, Type::BYTEA), (&asks as _, Type::BOOL), (&seconds as _, Type::FLOAT8)];
            let (begun, head, rows, state) = tokio::join!(
                client.batch_execute(BEGIN),
                client.query_typed_one(LOCK, &[]),
                rows_after(client, after, limit),
                client.query_typed_one(STATE, &state),
            );
            begun?;
            Ok((head?, rows?, state?))
        });
        let (head, rows, state) = begun.map_err(|fault| {
            self.abandon();
            journal_error(fault)
        })?;
        let read = || {
            let head_sequence = u64::try_from(head.get::<_, i64>(0)).unwrap_or(0);
            let checksum =
                <[u8; 32]>::try_from(head.get::<_, &[u8]>(1)).map_err(|_| JournalError::Corrupt {
                    sequence: head_sequence,
                    why: "the head's checksum is not 32 bytes long".to_owned(),
                })?;
            let micros = u64::try_from(state.get::<_, i64>(0)).unwrap_or(0);
            let lapsed: Vec<&[u8]> = state.get(2);
            Ok(StartedTurn {
                head: head_sequence,
                checksum,
                time: UnixNanos::new(micros.saturating_mul(1_000)),
                is_live: state.get(1),
                newest_format: state
                    .get::<_, Option<i32>>(3)
                    .map_or(1, |format| u32::try_from(format).unwrap_or(1)),
                identity_changes: u64::try_from(head.get::<_, i64>(2)).unwrap_or(0),
                rows: rows.iter().map(row_of).collect::<Result<_, _>>()?,
                lapsed: lapsed.into_iter().map(owner_of).collect::<Result<_, _>>()?,
            })
        };
        read().inspect_err(|_| self.abandon())
    }

    fn commit(
        &mut self,
        row: Option<&JournalRow>,
        stamp: TurnStamp,
        dead: &[Owner],
    ) -> Result<(), JournalError> {
        let (sequence, time, turn) = match row {
            Some(row) => (signed(row.sequence), signed(row.time.get()), signed(stamp.turn)),
            None => (Ok(0), Ok(0), Ok(0)),
        };
        let numbers = (|| Ok((sequence?, time?, turn?)))();
        let (sequence, time, turn) = numbers.inspect_err(|_| self.abandon())?;
        let owner = owner_bytes(stamp.owner);
        let dead: Vec<Vec<u8>> = dead.iter().copied().map(owner_bytes).collect();
        let started = std::time::Instant::now();
        let committed = self.session.run_open(TURN_LIMIT, async |client| {
            let append = async {
                let Some(row) = row else { return Ok(1) };
                let format = i32::try_from(row.format_version).unwrap_or(i32::MAX);
                let (previous, checksum, payload) =
                    (row.previous.as_slice(), row.checksum.as_slice(), row.payload.as_slice());
                let values = [
                    (&sequence as _, Type::INT8),
                    (&format as _, Type::INT4),
                    (&time as _, Type::INT8),
                    (&previous as _, Type::BYTEA),
                    (&payload as _, Type::BYTEA),
                    (&checksum as _, Type::BYTEA),
                    (&owner as _, Type::BYTEA),
                    (&turn as _, Type::INT8),
                ];
                client.execute_typed(APPEND, &values).await
            };
            let declare = async {
                if dead.is_empty() {
                    return Ok(0);
                }
                client.execute_typed(DECLARE_DEAD, &[(&dead, Type::BYTEA_ARRAY)]).await
            };
            let (appended, declared, committed) =
                tokio::join!(append, declare, client.batch_execute("COMMIT"));
            // If a statement failed, the commit was a rollback.
            let appended = appended?;
            declared?;
            committed?;
            Ok(appended)
        });
        match committed {
            Ok(1) => {
                if let (Some(times), Some(_)) = (&self.timed, row) {
                    times(started.elapsed());
                }
                Ok(())
            }
            Ok(count) => {
                let why = format!(
                    "{}: the head of the journal is missing ({count} rows moved)",
                    self.session.url()
                );
                Err(JournalError::Io(why))
            }
            Err(fault) => {
                self.session.close();
                Err(journal_error(fault))
            }
        }
    }

    fn abandon(&mut self) {
        let ended = self.session.run_open(TURN_LIMIT, async |client| client.batch_execute("ROLLBACK").await);
        if ended.is_err() {
            self.session.close();
        }
    }

    fn write_snapshot(&mut self, snapshot: &StateSnapshot) -> Result<(), JournalError> {
        let sequence = signed(snapshot.sequence)?;
        let format = i32::try_from(snapshot.format_version).unwrap_or(i32::MAX);
        let (row_checksum, checksum) = (snapshot.row_checksum.as_slice(), snapshot.checksum.as_slice());
        let payload = snapshot.payload.as_slice();
        let insert = "INSERT INTO headrace.snapshot VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
        let outdated = "DELETE FROM headrace.snapshot WHERE sequence NOT IN \
                        (SELECT sequence FROM headrace.snapshot ORDER BY sequence DESC LIMIT $1)";
        let written = self.session.run(READ_LIMIT, async |client| {
            let values = [
                (&sequence as _, Type::INT8),
                (&format as _, Type::INT4),
                (&row_checksum as _, Type::BYTEA),
                (&checksum as _, Type::BYTEA),
                (&payload as _, Type::BYTEA),
            ];
            client.execute_typed(insert, &values).await?;
            client.execute_typed(outdated, &[(&SNAPSHOTS_KEPT, Type::INT8)]).await
        });
        written.map(drop).map_err(journal_error)
    }

    fn history(&self) -> Arc<dyn JournalHistory> {
        Arc::new(PostgresJournalHistory::new(self.session.shared_url()))
    }

    fn leave(&mut self, owner: Owner) -> Result<(), JournalError> {
        let owner = owner_bytes(owner);
        let left = self
            .session
            .run(TURN_LIMIT, async |client| client.execute_typed(LEAVE, &[(&owner, Type::BYTEA)]).await);
        left.map(drop).map_err(journal_error)
    }
}

/// Renews a gateway's presence on a connection of its own.
pub struct PostgresPresence {
    session: DatabaseSession,
}

impl std::fmt::Debug for PostgresPresence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresPresence").field("url", self.session.url()).finish_non_exhaustive()
    }
}

impl PostgresPresence {
    /// Prepares a handle. It connects when it is used.
    pub fn new(url: Arc<PostgresUrl>) -> Self {
        Self { session: DatabaseSession::new(url) }
    }
}

impl GatewayPresence for PostgresPresence {
    fn renew(&mut self, owner: Owner) -> Result<bool, JournalError> {
        let owner = owner_bytes(owner);
        let renewed = self
            .session
            .run(TURN_LIMIT, async |client| client.execute_typed(RENEW, &[(&owner, Type::BYTEA)]).await);
        renewed.map(|rows| rows == 1).map_err(journal_error)
    }
}
