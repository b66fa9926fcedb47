//! What the traces add to the journal: the key of a call, the upstream that answered it, what that upstream charges,
//! and which calls were refused. Reads the trace file beside its writer.

use std::collections::HashMap;
use std::path::Path;

use headrace_domain::{HoldId, UnixNanos};
use headrace_trace::{TraceError, UsageSums};
use sqlx::QueryBuilder;
use sqlx::sqlite::Sqlite;

use super::rows::{UsageGroup, bytes, hold_of, money};
use crate::trace::{SqliteTraceReader, integer};

/// Ids per statement.
const IDS_PER_QUESTION: usize = 500;
/// Traces that are searched for refusals at a time.
const TRACES_PER_STEP: i64 = 5_000;

/// The trace's data of one call.
pub(super) struct TraceFacts {
    key: String,
    upstream: String,
    user: String,
    tag: String,
    model: String,
    paid: Option<i64>,
}

impl TraceFacts {
    /// Adds what the journal does not contain.
    pub(super) fn complete(&self, group: &mut UsageGroup, sums: &mut UsageSums) {
        group.key.clone_from(&self.key);
        group.upstream.clone_from(&self.upstream);
        group.user.clone_from(&self.user);
        group.tag.clone_from(&self.tag);
        if group.model.is_empty() {
            group.model.clone_from(&self.model);
        }
        if let Some(paid) = self.paid {
            sums.paid = money(paid);
            sums.paid_calls = 1;
            sums.paid_charged = sums.charged;
        }
    }
}

/// A row with the columns of the query.
type TracedRow =
    (Vec<u8>, Option<String>, Option<String>, Option<String>, Option<i64>, Option<String>, Option<String>);

/// Returns the data of those calls that have a trace. A hold has the same id as its call.
pub(super) fn look_up(
    traces: &Path,
    holds: impl Iterator<Item = HoldId>,
) -> Result<HashMap<HoldId, TraceFacts>, TraceError> {
    let holds: Vec<HoldId> = holds.collect();
    let mut found = HashMap::new();
    if holds.is_empty() || !traces.exists() {
        return Ok(found);
    }
    let reader = SqliteTraceReader::open(traces)?;
    for some in holds.chunks(IDS_PER_QUESTION) {
        let rows: Vec<TracedRow> = reader.rows(async |connection| {
            let mut query = QueryBuilder::<Sqlite>::new(
                "SELECT id, key, record ->> '$.upstream', record ->> '$.model_served', record ->> '$.paid', \
                 record ->> '$.user', record ->> '$.labels.tag' FROM trace WHERE id IN (",
            );
            let mut ids = query.separated(", ");
            some.iter().for_each(|hold| {
                ids.push_bind(bytes(*hold));
            });
            query.push(")").build_query_as().fetch_all(connection).await
        })?;
        found.extend(rows.into_iter().map(|(id, key, upstream, model, paid, user, tag)| {
            let (key, upstream) = (key.unwrap_or_default(), upstream.unwrap_or_default());
            let (model, user) = (model.unwrap_or_default(), user.unwrap_or_default());
            let tag = tag.unwrap_or_default();
            (hold_of(&id), TraceFacts { key, upstream, user, tag, model, paid })
        }));
    }
    Ok(found)
}

/// A row with the columns of the query.
type RefusedRow =
    (i64, Option<String>, Option<String>, Option<String>, Option<String>, Option<String>, Option<String>);

/// Refused calls among the traces after row `from`, and the last row that was searched. Only the model that was to
/// serve a call is counted, because any other name may be a caller's invention.
pub(super) fn refusals_after(
    traces: &Path,
    from: i64,
) -> Result<(i64, HashMap<UsageGroup, UsageSums>), TraceError> {
    let mut refused = HashMap::new();
    if !traces.exists() {
        return Ok((from, refused));
    }
    let reader = SqliteTraceReader::open(traces)?;
    let bounds: Vec<(Option<i64>,)> = reader.rows(async |connection| {
        let last = "SELECT max(seq) FROM (SELECT seq FROM trace WHERE seq > ? ORDER BY seq LIMIT ?)";
        sqlx::query_as(last).bind(from).bind(TRACES_PER_STEP).fetch_all(connection).await
    })?;
    let Some((Some(last),)) = bounds.first().copied() else { return Ok((from, refused)) };
    let rows: Vec<RefusedRow> = reader.rows(async |connection| {
        let query = "SELECT started, org, project, key, record ->> '$.model_served', record ->> '$.user', \
                     record ->> '$.labels.tag' FROM trace WHERE seq > ? AND seq <= ? AND outcome = 'refused'";
        sqlx::query_as(query).bind(from).bind(last).fetch_all(connection).await
    })?;
    for (started, org, project, key, model, user, tag) in rows {
        let named = |name: &Option<String>| name.as_deref().unwrap_or_default().to_owned();
        let started = UnixNanos::new(u64::try_from(started).unwrap_or(0));
        let mut group = UsageGroup::new(started, &named(&org), &named(&project), &named(&model));
        (group.key, group.user, group.tag) = (named(&key), named(&user), named(&tag));
        let sums: &mut UsageSums = refused.entry(group).or_default();
        sums.refused = sums.refused.saturating_add(1);
    }
    Ok((integer(last), refused))
}
