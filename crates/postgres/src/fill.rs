//! Fills an empty journal from another one, page by page. An interrupted copy continues where it ended.

use std::sync::Arc;
use std::time::Duration;

use headrace_ledger::{JournalError, JournalRow};
use tokio_postgres::types::Type;

use crate::schema::{self, journal_error};
use crate::session::DatabaseSession;
use crate::url::PostgresUrl;

/// How long writing a page may take.
const LIMIT: Duration = Duration::from_secs(60);
const BEGIN: &str = "BEGIN; SET LOCAL synchronous_commit = 'on'";
const LOCK: &str = "SELECT sequence, checksum FROM headrace.head WHERE id = 0 FOR UPDATE";
/// The rows have no gateway. Their numbers stand for turns.
const APPEND: &str = "INSERT INTO headrace.journal SELECT sequence, decode(repeat('00', 16), 'hex'), sequence, format, time, \
    previous, checksum, payload FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::bytea[], $5::bytea[], $6::bytea[]) \
    AS page (sequence, format, time, previous, checksum, payload)";
const MOVE_HEAD: &str = "UPDATE headrace.head SET sequence = $1, checksum = $2 WHERE id = 0";

/// Fills the shared journal of a database.
#[derive(Debug)]
pub struct PostgresJournalFiller {
    session: DatabaseSession,
}

impl PostgresJournalFiller {
    /// Opens a database, and makes its tables if they are missing.
    ///
    /// # Errors
    /// Returns an error if the database cannot be reached, or a newer program made its tables.
    pub fn open(url: Arc<PostgresUrl>) -> Result<Self, JournalError> {
        let mut session = DatabaseSession::new(url);
        schema::ensure(&mut session)?;
        Ok(Self { session })
    }

    /// Returns the number and the checksum of the last row. Zeros if there is none.
    ///
    /// # Errors
    /// Returns an error if the database cannot be reached.
    pub fn head(&mut self) -> Result<(u64, Vec<u8>), JournalError> {
        let head = "SELECT sequence, checksum FROM headrace.head WHERE id = 0";
        let head = self.session.run(LIMIT, async |client| client.query_typed_one(head, &[]).await);
        let head = head.map_err(journal_error)?;
        Ok((u64::try_from(head.get::<_, i64>(0)).unwrap_or(0), head.get(1)))
    }

    /// Appends rows that follow the last one. All of them are durable when this returns.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] if the first row does not follow the last one of the journal. Other errors if the
    /// database cannot be reached. After an error, none of the rows was appended, or all of them.
    pub fn append(&mut self, rows: &[JournalRow]) -> Result<(), JournalError> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let sequences: Vec<i64> = rows.iter().map(|row| signed(row.sequence)).collect();
        let formats: Vec<i32> =
            rows.iter().map(|row| i32::try_from(row.format_version).unwrap_or(i32::MAX)).collect();
        let times: Vec<i64> = rows.iter().map(|row| signed(row.time.get())).collect();
        let previous: Vec<&[u8]> = rows.iter().map(|row| row.previous.as_slice()).collect();
        let checksums: Vec<&[u8]> = rows.iter().map(|row| row.checksum.as_slice()).collect();
        let payloads: Vec<&[u8]> = rows.iter().map(|row| row.payload.as_slice()).collect();
        let (end, checksum) = (signed(last.sequence), last.checksum.as_slice());
        let appended = self.session.run(LIMIT, async |client| {
            client.batch_execute(BEGIN).await?;
            let head = client.query_typed_one(LOCK, &[]).await?;
            let follows = head.get::<_, i64>(0).checked_add(1) == Some(signed(first.sequence))
                && head.get::<_, &[u8]>(1) == first.previous;
            if !follows {
                client.batch_execute("ROLLBACK").await?;
                return Ok(false);
            }
            let values = [
                (&sequences as _, Type::INT8_ARRAY),
                (&formats as _, Type::INT4_ARRAY),
                (&times as _, Type::INT8_ARRAY),
                (&previous as _, Type::BYTEA_ARRAY),
                (&checksums as _, Type::BYTEA_ARRAY),
                (&payloads as _, Type::BYTEA_ARRAY),
            ];
            client.execute_typed(APPEND, &values).await?;
            client.execute_typed(MOVE_HEAD, &[(&end, Type::INT8), (&checksum, Type::BYTEA)]).await?;
            client.batch_execute("COMMIT").await?;
            Ok(true)
        });
        match appended {
            Ok(true) => Ok(()),
            Ok(false) => Err(JournalError::Corrupt {
                sequence: first.sequence,
                why: "the database has another journal: name an empty database".to_owned(),
            }),
            Err(fault) => {
                self.session.close();
                Err(journal_error(fault))
            }
        }
    }
}
