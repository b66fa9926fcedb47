//! The table of calls' other names: the ids that upstreams gave their answers, W3C trace ids, and the calls that worker
//! jobs belong to. It is not part of the file's format. It is created if it is missing, and calls that an older program
//! recorded have no row in it.

use std::borrow::Cow;

use headrace_domain::TraceRecord;
use headrace_trace::{MAX_NAMED, WritePace, other_names};
use sqlx::sqlite::SqliteConnection;

use super::inserts::{InsertBatch, give_way};
use super::table::integer;

/// The table, and the trigger that deletes a call's names with its trace. The trigger reads the names from the record,
/// so that the table needs no second index. It replaces the trigger of older programs, which kept the names of worker
/// jobs. `substr` skips the prefix `req_`.
pub(super) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS call_name (
        name TEXT NOT NULL,
        seq INTEGER NOT NULL,
        PRIMARY KEY (name, seq)
    ) STRICT, WITHOUT ROWID;
    DROP TRIGGER IF EXISTS call_name_gone;
    CREATE TRIGGER IF NOT EXISTS call_names_gone AFTER DELETE ON trace BEGIN
        DELETE FROM call_name WHERE seq = OLD.seq AND name IN (
            json_extract(OLD.record, '$.upstream_id'),
            json_extract(OLD.record, '$.trace_id'),
            substr(json_extract(OLD.record, '$.worker_job.call'), 5)
        );
    END;
";

/// Inserts names.
const INSERTS: InsertBatch = InsertBatch { head: "INSERT OR IGNORE INTO call_name (name, seq) ", columns: 2 };

/// Inserts the other names of new records, under their traces' numbers.
pub(super) async fn insert(
    connection: &mut SqliteConnection,
    records: &[(i64, &TraceRecord)],
    pace: WritePace,
) -> Result<(), sqlx::Error> {
    let mut names: Vec<(Cow<'_, str>, i64)> = Vec::new();
    for (number, record) in records {
        names.extend(other_names(record).map(|name| (name, *number)));
    }
    for chunk in InsertBatch::chunks(&names, pace) {
        let mut query = INSERTS.query(chunk.len());
        for (name, number) in chunk {
            query = query.bind(&**name).bind(*number);
        }
        query.execute(&mut *connection).await?;
        give_way(pace);
    }
    Ok(())
}

/// Returns the newest records with the given name, calls before worker jobs. Returns none if the table does not exist
/// yet.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    name: &str,
) -> Result<Vec<(String,)>, sqlx::Error> {
    let table = "SELECT name FROM sqlite_schema WHERE name = 'call_name'";
    let table: Option<(String,)> = sqlx::query_as(table).fetch_optional(&mut *connection).await?;
    if table.is_none() {
        return Ok(Vec::new());
    }
    let query = "SELECT trace.record FROM call_name JOIN trace ON trace.seq = call_name.seq WHERE call_name.name = ? \
                 ORDER BY trace.key IS 'worker-job', trace.started DESC, trace.seq DESC LIMIT ?";
    sqlx::query_as(query).bind(name).bind(integer(MAX_NAMED)).fetch_all(connection).await
}
