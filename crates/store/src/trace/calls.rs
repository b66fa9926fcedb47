//! The narrow table that searches read: one row per trace, with only the columns that are queried. It is not part of
//! the file's format. It is created if it is missing, and an older program may write to the same file. Every index
//! costs every call, so there are indexes only for conditions that few rows meet.

use headrace_domain::Stage;
use headrace_trace::{CallEndKind, CallRow, WritePace};
use sqlx::sqlite::SqliteConnection;

use super::inserts::{InsertBatch, give_way};
use super::table::integer;

/// A call above this duration, or above [`DEAR_NANOS`], is in an index, because there are few of them.
pub(super) const SLOW_NS: i64 = 1_000_000_000;
/// A cent, in nano-dollars.
pub(super) const DEAR_NANOS: i64 = 10_000_000;

/// Whether few calls spend most of their time in this stage or end in it. Such stages have an index.
pub(super) const fn is_rare(stage: Stage) -> bool {
    !matches!(stage, Stage::Upstream | Stage::Queue | Stage::Prefill | Stage::Decode)
}

/// Table, indexes, and the trigger that deletes a row with its trace. `seq` is the trace's number. The dropped indexes
/// were made by earlier programs. They were of little use, because nearly all calls of a server use a few models and
/// upstreams.
///
/// `unfilled` has one row: the traces before `before` that have no row here yet, and their number.
pub(super) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS call (
        started INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        server INTEGER NOT NULL,  -- nanoseconds
        ends INTEGER NOT NULL,    -- nanoseconds since 1970
        ended INTEGER NOT NULL,   -- 0 completed, 1 refused, 2 cancelled, 3 failed
        stage INTEGER,            -- its place on the path, from 0
        charged INTEGER NOT NULL, -- nano-dollars
        org TEXT,
        project TEXT,
        key TEXT,
        model TEXT,
        upstream TEXT,
        worker TEXT,
        said TEXT,
        PRIMARY KEY (started, seq)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS call_org ON call (org, started, seq);
    CREATE INDEX IF NOT EXISTS call_project ON call (project, started, seq);
    CREATE INDEX IF NOT EXISTS call_key ON call (key, started, seq);
    DROP INDEX IF EXISTS call_model;
    DROP INDEX IF EXISTS call_stage;
    DROP INDEX IF EXISTS call_upstream;
    CREATE INDEX IF NOT EXISTS call_rare_stage ON call (stage, started, seq) WHERE stage NOT IN (11, 12, 13, 14);
    CREATE INDEX IF NOT EXISTS call_worker ON call (worker, started, seq, ends) WHERE worker IS NOT NULL;
    CREATE INDEX IF NOT EXISTS call_troubled ON call (started, seq) WHERE ended <> 0;
    CREATE INDEX IF NOT EXISTS call_slow ON call (started, seq) WHERE server > 1000000000;
    CREATE INDEX IF NOT EXISTS call_dear ON call (started, seq) WHERE charged > 10000000;
    CREATE TABLE IF NOT EXISTS unfilled (before INTEGER NOT NULL, traces INTEGER NOT NULL) STRICT;
    CREATE TRIGGER IF NOT EXISTS call_gone AFTER DELETE ON trace BEGIN
        DELETE FROM call WHERE started = OLD.started AND seq = OLD.seq;
        UPDATE unfilled SET traces = max(traces - 1, 0) WHERE before > OLD.seq;
    END;
";

/// Inserts rows.
const INSERTS: InsertBatch = InsertBatch {
    head: "INSERT OR REPLACE INTO call (started, seq, server, ends, ended, stage, charged, org, project, key, model, \
           upstream, worker, said) ",
    columns: 14,
};

/// Inserts rows under their traces' numbers.
pub(super) async fn insert(
    connection: &mut SqliteConnection,
    calls: &[(i64, &CallRow)],
    pace: WritePace,
) -> Result<(), sqlx::Error> {
    for chunk in InsertBatch::chunks(calls, pace) {
        let mut query = INSERTS.query(chunk.len());
        for (number, call) in chunk {
            query = query
                .bind(integer(call.started.get()))
                .bind(*number)
                .bind(integer(call.server_ns))
                .bind(integer(call.started.get().saturating_add(call.duration_ns)))
                .bind(kind(call.ended))
                .bind(call.stage.map(place))
                .bind(call.charged.get())
                .bind(call.org.as_ref().map(|id| id.as_str()))
                .bind(call.project.as_ref().map(|id| id.as_str()))
                .bind(call.key.as_ref().map(|id| id.as_str()))
                .bind(call.model())
                .bind(call.upstream.as_deref())
                .bind(call.worker.as_deref())
                .bind(call.said());
        }
        query.execute(&mut *connection).await?;
        give_way(pace);
    }
    Ok(())
}

/// The stored number for how a call ended.
pub(super) const fn kind(ended: CallEndKind) -> i64 {
    match ended {
        CallEndKind::Completed => 0,
        CallEndKind::Refused => 1,
        CallEndKind::Cancelled => 2,
        CallEndKind::Failed => 3,
    }
}

/// The stored number of a stage. Numbers never change. A new stage gets a new number, even if it is in the middle of
/// the path.
pub(super) const fn place(stage: Stage) -> i64 {
    match stage {
        Stage::Connect => 0,
        Stage::Authenticate => 1,
        Stage::Receive => 2,
        Stage::Parse => 3,
        Stage::Authorize => 4,
        Stage::Route => 5,
        Stage::Moderate => 6,
        Stage::Render => 7,
        Stage::Cache => 8,
        Stage::Hold => 9,
        Stage::Place => 10,
        Stage::Upstream => 11,
        Stage::Queue => 12,
        Stage::Prefill => 13,
        Stage::Decode => 14,
        Stage::Handover => 15,
        Stage::Reader => 16,
        Stage::Postprocess => 17,
        Stage::Deliver => 18,
        Stage::Settle => 19,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_rare_stages_leaves_out_those_that_are_not() {
        let mut usual: Vec<i64> =
            Stage::ALL.into_iter().filter(|stage| !is_rare(*stage)).map(place).collect();
        usual.sort_unstable();
        let usual: Vec<String> = usual.iter().map(i64::to_string).collect();
        assert!(SCHEMA.contains(&format!("WHERE stage NOT IN ({})", usual.join(", "))));
    }
}
