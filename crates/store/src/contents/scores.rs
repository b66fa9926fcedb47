//! Rows of scores.

use headrace_domain::{RequestId, UnixNanos};
use headrace_trace::{CallScore, RecordName, ScoreValue, TraceError};

use super::content_file::SqliteContents;
use crate::trace::integer;

/// Scores that are kept. The oldest ones are removed first.
const MAX_SCORES: i64 = 1_000_000;

pub(super) fn put(store: &SqliteContents, score: &CallScore) -> Result<(), TraceError> {
    store.write("write a score to", async |connection| {
        sqlx::query(
            "INSERT INTO score (id, name, value, comment, actor, at) VALUES (?, ?, ?, ?, ?, ?) \
             ON CONFLICT (id, name) DO UPDATE SET value = excluded.value, comment = excluded.comment, \
             actor = excluded.actor, at = excluded.at",
        )
        .bind(&score.id.bits().to_be_bytes()[..])
        .bind(score.name.as_str())
        .bind(score.value.millionths())
        .bind(score.comment.as_str())
        .bind(score.actor.as_str())
        .bind(integer(score.at.get()))
        .execute(&mut *connection)
        .await?;
        let oldest = "DELETE FROM score WHERE rowid <= (SELECT max(rowid) FROM score) - ?";
        sqlx::query(oldest).bind(MAX_SCORES).execute(connection).await?;
        Ok(())
    })
}

pub(super) fn of(store: &SqliteContents, id: RequestId) -> Result<Vec<CallScore>, TraceError> {
    let rows: Vec<(String, i64, String, String, i64)> = store.read(async |connection| {
        let query = "SELECT name, value, comment, actor, at FROM score WHERE id = ? ORDER BY name";
        let query = sqlx::query_as(query).bind(id.bits().to_be_bytes().to_vec());
        Ok(query.fetch_all(connection).await?)
    })?;
    let score = |(name, value, comment, actor, at): (String, i64, String, String, i64)| {
        let name = RecordName::new(&name);
        let name = name.map_err(|why| TraceError::Corrupt { what: format!("a score of {id}"), why })?;
        let at = UnixNanos::new(u64::try_from(at).unwrap_or(0));
        Ok(CallScore { id, name, value: ScoreValue::of_millionths(value), comment, actor, at })
    };
    rows.into_iter().map(score).collect()
}
