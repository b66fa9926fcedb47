//! Reads the shared journal beside its gateways, or without any.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headrace_domain::UnixNanos;
use headrace_ledger::verify::{JournalVerifier, VerifyReport};
use headrace_ledger::{GatewayRecord, GatewayState, JournalError, JournalHistory, JournalRow};
use tokio_postgres::{Client, Error, Row};

use crate::rows::{SNAPSHOT_COLUMNS, owner_of, row_of, rows_after, snapshot_of};
use crate::schema::journal_error;
use crate::session::{DatabaseSession, locked};
use crate::url::PostgresUrl;

/// Rows read at a time.
const PAGE_ROWS: i64 = 256;
/// How long reading a page may take.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// How long reading the gateways may take.
const GATEWAYS_LIMIT: Duration = Duration::from_secs(1);
const GATEWAYS: &str = "SELECT owner, name, version, (extract(epoch FROM joined) * 1000000)::bigint, \
    (extract(epoch FROM clock_timestamp() - seen) * 1000)::bigint, state FROM headrace.gateway \
    WHERE state = 'live' OR seen > clock_timestamp() - interval '1 hour' ORDER BY name, joined";
/// Reads everything as of one moment.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// The shared journal of a database, read on a connection of its own.
#[derive(Debug)]
pub struct PostgresJournalHistory {
    session: Mutex<DatabaseSession>,
}

impl PostgresJournalHistory {
    /// Names the database. No connection is opened yet.
    pub fn new(url: Arc<PostgresUrl>) -> Self {
        Self { session: Mutex::new(DatabaseSession::new(url)) }
    }
}

fn gateway_of(row: &Row) -> Result<GatewayRecord, JournalError> {
    let unsigned = |column: usize| u64::try_from(row.get::<_, i64>(column)).unwrap_or(0);
    let (name, unknown): (&str, _) = (row.get(5), "a gateway's state in the database is unknown");
    let state = GatewayState::ALL.into_iter().find(|state| state.name() == name);
    Ok(GatewayRecord {
        owner: owner_of(row.get(0))?,
        name: row.get(1),
        version: row.get(2),
        joined: UnixNanos::new(unsigned(3).saturating_mul(1_000)),
        unseen: Duration::from_millis(unsigned(4)),
        state: state.ok_or_else(|| JournalError::Io(unknown.to_owned()))?,
    })
}

impl JournalHistory for PostgresJournalHistory {
    fn rows_after(&self, after: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        let mut session = locked(&self.session);
        let (after, limit) =
            (i64::try_from(after).unwrap_or(i64::MAX), i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = session.run(READ_LIMIT, async |client| rows_after(client, after, limit).await);
        rows.map_err(journal_error)?.iter().map(row_of).collect()
    }

    fn gateways(&self) -> Result<Vec<GatewayRecord>, JournalError> {
        let mut session = locked(&self.session);
        let found = session.run(GATEWAYS_LIMIT, async |client| client.query_typed(GATEWAYS, &[]).await);
        found.map_err(journal_error)?.iter().map(gateway_of).collect()
    }

    fn verify(&self) -> Result<VerifyReport, JournalError> {
        let mut session = locked(&self.session);
        let snapshots = format!("SELECT {SNAPSHOT_COLUMNS} FROM headrace.snapshot ORDER BY sequence");
        let (head, kept) = session
            .run(READ_LIMIT, async |client: &Client| -> Result<_, Error> {
                client.batch_execute(BEGIN).await?;
                let head = "SELECT sequence, checksum FROM headrace.head WHERE id = 0";
                let head = client.query_typed_one(head, &[]).await?;
                Ok((head, client.query_typed(&snapshots, &[]).await?))
            })
            .map_err(journal_error)?;
        let mut unreadable = Vec::new();
        let mut read = Vec::new();
        for row in &kept {
            match snapshot_of(row) {
                Ok(snapshot) => read.push(snapshot),
                Err(error) => unreadable.push(error),
            }
        }
        let mut verifier = JournalVerifier::new(&read);
        let (mut after, mut checksum) = (0_i64, vec![0; 32]);
        loop {
            let rows =
                session.run_open(READ_LIMIT, async |client| rows_after(client, after, PAGE_ROWS).await);
            let rows = rows.map_err(journal_error)?;
            let Some(last) = rows.last() else { break };
            (after, checksum) = (last.get(0), last.get(4));
            for row in &rows {
                match row_of(row) {
                    Ok(row) => verifier.row(&row),
                    Err(error) => unreadable.push(error),
                }
            }
        }
        // The transaction only read, so that its end changes nothing.
        session.close();
        let last = u64::try_from(after).unwrap_or(0);
        for error in unreadable {
            verifier.find(last, error.to_string());
        }
        if (head.get::<_, i64>(0), head.get::<_, &[u8]>(1)) != (after, checksum.as_slice()) {
            verifier.find(last, "the head of the journal does not name its last row".to_owned());
        }
        Ok(verifier.finish())
    }
}
