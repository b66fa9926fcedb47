//! Rows of the journal and its snapshots: their columns, and how they are decoded. Knows neither turns nor payloads.

use headrace_domain::UnixNanos;
use headrace_ledger::{JournalError, JournalRow, Owner, StateSnapshot};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};

const ROWS: &str = "SELECT sequence, format_version, time, previous, checksum, payload FROM headrace.journal \
    WHERE sequence > $1 ORDER BY sequence LIMIT $2";

/// Decodes the columns of one row, whose first column is its sequence.
struct RowColumns<'a>(&'a Row);

impl RowColumns<'_> {
    fn corrupt(&self, why: &str) -> JournalError {
        JournalError::Corrupt { sequence: self.sequence(), why: why.to_owned() }
    }

    fn sequence(&self) -> u64 {
        u64::try_from(self.0.get::<_, i64>(0)).unwrap_or(0)
    }

    fn format(&self, index: usize) -> Result<u32, JournalError> {
        u32::try_from(self.0.get::<_, i32>(index)).map_err(|_| self.corrupt("its format is negative"))
    }

    fn hash(&self, index: usize) -> Result<[u8; 32], JournalError> {
        let bytes: &[u8] = self.0.get(index);
        bytes.try_into().map_err(|_| self.corrupt("a checksum is not 32 bytes long"))
    }
}

/// Decodes a row of the columns of [`ROWS`].
pub(crate) fn row_of(row: &Row) -> Result<JournalRow, JournalError> {
    let columns = RowColumns(row);
    let time = u64::try_from(row.get::<_, i64>(2)).map_err(|_| columns.corrupt("its time is negative"))?;
    Ok(JournalRow {
        sequence: columns.sequence(),
        format_version: columns.format(1)?,
        time: UnixNanos::new(time),
        previous: columns.hash(3)?,
        checksum: columns.hash(4)?,
        payload: row.get(5),
    })
}

/// The columns of a snapshot.
pub(crate) const SNAPSHOT_COLUMNS: &str = "sequence, format_version, row_checksum, checksum, payload";

/// Decodes a row of [`SNAPSHOT_COLUMNS`].
pub(crate) fn snapshot_of(row: &Row) -> Result<StateSnapshot, JournalError> {
    let columns = RowColumns(row);
    Ok(StateSnapshot {
        sequence: columns.sequence(),
        format_version: columns.format(1)?,
        row_checksum: columns.hash(2)?,
        checksum: columns.hash(3)?,
        payload: row.get(4),
    })
}

/// Reads at most `limit` rows after row `sequence`.
pub(crate) async fn rows_after(client: &Client, sequence: i64, limit: i64) -> Result<Vec<Row>, Error> {
    client.query_typed(ROWS, &[(&sequence, Type::INT8), (&limit, Type::INT8)]).await
}

/// Returns the owner that the database names.
pub(crate) fn owner_of(bytes: &[u8]) -> Result<Owner, JournalError> {
    let bytes = <[u8; 16]>::try_from(bytes);
    bytes
        .map(|bytes| Owner::new(u128::from_be_bytes(bytes)))
        .map_err(|_| JournalError::Io("a gateway's name in the database does not have 16 bytes".to_owned()))
}
