//! Reads pages of calls from the search table. Each query reads one index, newest first, over a bounded number of rows.
//! The next query continues where it ended.

use headrace_domain::{AskedAddress, ModerationOutcome, UnixNanos};
use headrace_trace::{
    CallCursor, CallPage, CallQuery, CallRow, MAX_BESIDE, MAX_CALLS_PER_PAGE, ModerationFilter, TraceError,
    WorkerStay, decode_record,
};
use sqlx::QueryBuilder;
use sqlx::sqlite::{Sqlite, SqliteConnection};

use super::calls::{DEAR_NANOS, SLOW_NS, is_rare, kind, place};
use super::table::integer;

/// Maximum rows that one query examines.
const ROWS_PER_QUESTION: i64 = 20_000;
/// Maximum calls of a worker that are examined for overlaps, counted back from the end of the call in question.
const NEIGHBOURS_LOOKED_AT: i64 = 20_000;

/// The result of a query, with records still as text.
pub(super) struct SearchRows {
    rows: Vec<(String, i64, i64)>,
    limit: usize,
    floor: Option<(i64, i64)>,
    unindexed: u64,
}

impl SearchRows {
    /// Decodes the result into a page.
    ///
    /// # Errors
    /// Fails if a record cannot be decoded.
    pub(super) fn page(self) -> Result<CallPage, TraceError> {
        let Self { mut rows, limit, floor, unindexed } = self;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let cursor = |started: i64, number: i64| CallCursor {
            started: UnixNanos::new(started.cast_unsigned()),
            number: number.cast_unsigned(),
        };
        let last = rows.last().map(|(_, started, number)| cursor(*started, *number));
        // The row at the floor was not examined.
        let floor =
            floor.filter(|_| !more).map(|(started, number)| cursor(started, number.saturating_add(1)));
        let calls = rows.iter().map(|(record, ..)| Ok(CallRow::of(&decode_record(record)?)));
        Ok(CallPage {
            calls: calls.collect::<Result<_, TraceError>>()?,
            next: if more { last } else { floor },
            searched_to: floor.map(|floor| floor.started),
            unindexed: if more || floor.is_some() { 0 } else { unindexed },
        })
    }
}

/// Searches one page.
pub(super) async fn search(
    connection: &mut SqliteConnection,
    query: &CallQuery,
    after: Option<CallCursor>,
    limit: usize,
) -> Result<SearchRows, sqlx::Error> {
    let limit = limit.clamp(1, MAX_CALLS_PER_PAGE);
    if !has_table(connection).await? {
        let (unindexed,): (i64,) =
            sqlx::query_as("SELECT count(*) FROM trace").fetch_one(&mut *connection).await?;
        return Ok(SearchRows { rows: Vec::new(), limit, floor: None, unindexed: unindexed.cast_unsigned() });
    }
    let way = SearchIndex::of(query);
    let is_all = way.is_all_of(query) && (way.is_without_jobs() || !has_jobs(connection).await?);
    let floor = if is_all { None } else { floor(connection, query, way, after).await? };
    let mut page = QueryBuilder::<Sqlite>::new("SELECT trace.record, call.started, call.seq FROM call ");
    page.push(way.index()).push(" CROSS JOIN trace ON trace.seq = call.seq WHERE TRUE");
    way.push(&mut page, query);
    push_range(&mut page, query, after);
    if let Some((started, number)) = floor {
        page.push(" AND (call.started, call.seq) > (").push_bind(started).push(", ").push_bind(number);
        page.push(")");
    }
    push_rest(&mut page, query);
    if query.key.is_none() {
        page.push(" AND call.key IS NOT 'worker-job'");
    }
    page.push(" ORDER BY call.started DESC, call.seq DESC LIMIT ").push_bind(integer(limit + 1));
    let rows = page.build_query_as().fetch_all(&mut *connection).await?;
    let unindexed = unfilled(connection).await?;
    Ok(SearchRows { rows, limit, floor, unindexed })
}

/// Records of the calls since a time that took the server longest. Uses the search table once every trace has its row
/// there.
pub(super) async fn slowest(
    connection: &mut SqliteConnection,
    since: i64,
    limit: i64,
) -> Result<Vec<(String,)>, sqlx::Error> {
    let query = if has_table(connection).await? && unfilled(connection).await? == 0 {
        "SELECT trace.record FROM (SELECT seq, server FROM call WHERE started >= ? AND key IS NOT 'worker-job' \
         ORDER BY server DESC, seq DESC LIMIT ?) AS slow JOIN trace ON trace.seq = slow.seq ORDER BY slow.server DESC, slow.seq DESC"
    } else {
        "SELECT record FROM trace WHERE started >= ? AND key IS NOT 'worker-job' ORDER BY duration DESC, seq DESC LIMIT ?"
    };
    sqlx::query_as(query).bind(since).bind(limit).fetch_all(connection).await
}

/// Records of calls that a worker had during a stay, longest overlap first.
pub(super) async fn beside(
    connection: &mut SqliteConnection,
    stay: &WorkerStay,
) -> Result<Vec<(String,)>, sqlx::Error> {
    if !has_table(connection).await? {
        return Ok(Vec::new());
    }
    // Compares the times of whole calls, which contain their time at the worker.
    let query = "SELECT trace.record FROM (SELECT seq, started, ends FROM call INDEXED BY call_worker \
                 WHERE worker = ?1 AND started < ?3 ORDER BY started DESC, seq DESC LIMIT ?4) AS near \
                 JOIN trace ON trace.seq = near.seq WHERE near.ends > ?2 \
                 ORDER BY min(near.ends, ?3) - max(near.started, ?2) DESC, near.seq LIMIT ?5";
    sqlx::query_as(query)
        .bind(stay.worker.as_str())
        .bind(integer(stay.from))
        .bind(integer(stay.until))
        .bind(NEIGHBOURS_LOOKED_AT)
        // Includes the call itself, and some whose stay at the worker turns out not to overlap.
        .bind(integer(2 * MAX_BESIDE))
        .fetch_all(connection)
        .await
}

/// Whether a program that knows the search table has opened the file.
async fn has_table(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    let found = "SELECT count(*) FROM sqlite_schema WHERE name = 'unfilled'";
    let (tables,): (i64,) = sqlx::query_as(found).fetch_one(connection).await?;
    Ok(tables > 0)
}

/// Whether the table has a row of a worker job.
async fn has_jobs(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    let found = "SELECT 1 FROM call INDEXED BY call_key WHERE key = 'worker-job' LIMIT 1";
    let found: Option<(i64,)> = sqlx::query_as(found).fetch_optional(connection).await?;
    Ok(found.is_some())
}

/// Number of traces that are not in the search table yet.
async fn unfilled(connection: &mut SqliteConnection) -> Result<u64, sqlx::Error> {
    let unfilled: Option<(i64,)> =
        sqlx::query_as("SELECT traces FROM unfilled").fetch_optional(connection).await?;
    Ok(unfilled.map_or(0, |(traces,)| u64::try_from(traces).unwrap_or(0)))
}

/// The row at which a query ends, if there is one. The query examines only the rows above it.
async fn floor(
    connection: &mut SqliteConnection,
    query: &CallQuery,
    way: SearchIndex,
    after: Option<CallCursor>,
) -> Result<Option<(i64, i64)>, sqlx::Error> {
    let mut floor = QueryBuilder::<Sqlite>::new("SELECT call.started, call.seq FROM call ");
    floor.push(way.index()).push(" WHERE TRUE");
    way.push(&mut floor, query);
    push_range(&mut floor, query, after);
    floor.push(" ORDER BY call.started DESC, call.seq DESC LIMIT 1 OFFSET ").push_bind(ROWS_PER_QUESTION);
    floor.build_query_as().fetch_optional(connection).await
}

/// The index that a query reads: the one that likely has the fewest rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SearchIndex {
    Key,
    Project,
    Dear,
    Slow,
    Troubled,
    RareStage,
    Org,
    All,
}

impl SearchIndex {
    fn of(query: &CallQuery) -> Self {
        let is_slow = query.slower_than_ns.is_some_and(|nanos| integer(nanos) >= SLOW_NS);
        let is_dear = query.dearer_than.is_some_and(|money| money.get() >= DEAR_NANOS);
        let is_troubled = query.text.is_some() || query.outcome.is_some_and(|ended| kind(ended) != 0);
        match query {
            CallQuery { key: Some(_), .. } => Self::Key,
            CallQuery { project: Some(_), .. } => Self::Project,
            _ if is_dear => Self::Dear,
            _ if is_slow => Self::Slow,
            _ if is_troubled => Self::Troubled,
            CallQuery { stage: Some(stage), .. } if is_rare(*stage) => Self::RareStage,
            CallQuery { org: Some(_), .. } => Self::Org,
            _ => Self::All,
        }
    }

    const fn index(self) -> &'static str {
        match self {
            Self::Key => "INDEXED BY call_key",
            Self::Project => "INDEXED BY call_project",
            Self::Dear => "INDEXED BY call_dear",
            Self::Slow => "INDEXED BY call_slow",
            Self::Troubled => "INDEXED BY call_troubled",
            Self::RareStage => "INDEXED BY call_rare_stage",
            Self::Org => "INDEXED BY call_org",
            Self::All => "NOT INDEXED",
        }
    }

    /// Whether no row that the question walks is of a worker job, unless it asks for those: they have no organisation and no project.
    const fn is_without_jobs(self) -> bool {
        matches!(self, Self::Key | Self::Project | Self::Org)
    }

    /// Adds the condition that all rows of the index meet.
    fn push(self, sql: &mut QueryBuilder<Sqlite>, query: &CallQuery) {
        let mut equal = |column: &str, value: Option<&str>| {
            if let Some(value) = value {
                sql.push(" AND call.").push(column).push(" = ").push_bind(value);
            }
        };
        match self {
            Self::Key => equal("key", query.key.as_ref().map(|id| id.as_str())),
            Self::Project => equal("project", query.project.as_ref().map(|id| id.as_str())),
            Self::Org => equal("org", query.org.as_ref().map(|id| id.as_str())),
            // This condition and those below must match the index definitions literally.
            Self::RareStage => {
                if let Some(stage) = query.stage {
                    sql.push(" AND call.stage NOT IN (11, 12, 13, 14) AND call.stage = ")
                        .push_bind(place(stage));
                }
            }
            Self::Dear => {
                sql.push(" AND call.charged > 10000000");
            }
            Self::Slow => {
                sql.push(" AND call.server > 1000000000");
            }
            Self::Troubled => {
                sql.push(" AND call.ended <> 0");
            }
            Self::All => {}
        }
    }

    /// Whether the query wants every row of the index, apart from its time range. Then a page reads only the rows that
    /// it shows.
    fn is_all_of(self, query: &CallQuery) -> bool {
        let mut left = query.clone();
        (left.since, left.until) = (None, None);
        match self {
            Self::Key => left.key = None,
            Self::Project => left.project = None,
            Self::RareStage => left.stage = None,
            Self::Org => left.org = None,
            Self::Dear | Self::Slow | Self::Troubled | Self::All => {}
        }
        left == CallQuery::default()
    }
}

/// Adds the start position and the time range.
fn push_range(sql: &mut QueryBuilder<Sqlite>, query: &CallQuery, after: Option<CallCursor>) {
    if let Some(CallCursor { started, number }) = after {
        sql.push(" AND (call.started, call.seq) < (").push_bind(integer(started.get())).push(", ");
        sql.push_bind(integer(number)).push(")");
    }
    if let Some(since) = query.since {
        sql.push(" AND call.started >= ").push_bind(integer(since.get()));
    }
    if let Some(until) = query.until {
        sql.push(" AND call.started < ").push_bind(integer(until.get()));
    }
}

/// Adds all conditions of the query except the time range.
fn push_rest(sql: &mut QueryBuilder<Sqlite>, query: &CallQuery) {
    let equal = [
        ("org", query.org.as_ref().map(|id| id.as_str())),
        ("project", query.project.as_ref().map(|id| id.as_str())),
        ("key", query.key.as_ref().map(|id| id.as_str())),
        ("model", query.model.as_deref()),
        ("upstream", query.upstream.as_deref()),
    ];
    for (column, value) in equal {
        if let Some(value) = value {
            sql.push(" AND call.").push(column).push(" = ").push_bind(value);
        }
    }
    let numbers = [
        ("ended =", query.outcome.map(kind)),
        ("stage =", query.stage.map(place)),
        ("server >", query.slower_than_ns.map(integer)),
        ("charged >", query.dearer_than.map(|money| money.get())),
    ];
    for (column, value) in numbers {
        if let Some(value) = value {
            sql.push(" AND call.").push(column).push(" ").push_bind(value);
        }
    }
    if query.moderation.is_some() || query.content_rule.is_some() {
        push_verdicts(sql, query);
    }
    if let Some(user) = &query.user {
        // There is no column for the user, because few queries need one and every call would pay for it.
        sql.push(" AND trace.record ->> '$.user' = ").push_bind(user.as_str());
    }
    if let Some((name, value)) = &query.label {
        // As for the user. A name has no quotation marks.
        sql.push(" AND trace.record ->> ").push_bind(format!("$.labels.\"{name}\""));
        sql.push(" = ").push_bind(value.as_str());
    }
    if let Some(asked) = query.address {
        // As for the user.
        sql.push(" AND trace.record ->> '$.client.network' = ").push_bind(asked.network().to_string());
        if let AskedAddress::Address(address) = asked {
            sql.push(" AND coalesce(trace.record ->> '$.client.address', ").push_bind(address.to_string());
            sql.push(") = ").push_bind(address.to_string());
        }
    }
    if let Some(text) = &query.text {
        // LIKE ignores the case of ASCII letters.
        let escaped: String = text
            .chars()
            .flat_map(|c| matches!(c, '%' | '_' | '\\').then_some('\\').into_iter().chain([c]))
            .collect();
        sql.push(" AND call.said LIKE ").push_bind(format!("%{escaped}%")).push(" ESCAPE '\\'");
    }
}

/// Adds the conditions on verdicts of content rules. There is no column for verdicts, because few calls have one. The first
/// condition is of the text alone, so that SQLite parses few records. A record of a version without verdicts on requests names
/// one rule.
fn push_verdicts(sql: &mut QueryBuilder<Sqlite>, query: &CallQuery) {
    sql.push(
        " AND (instr(trace.record, '_verdicts\":[') > 0 OR instr(trace.record, '\"moderation\":\"') > 0) \
         AND EXISTS (SELECT 1 FROM (\
           SELECT value ->> '$.rule' AS rule, value ->> '$.action' AS action, value ->> '$.dry_run' AS dry_run \
             FROM json_each(trace.record, '$.input_verdicts') \
           UNION ALL SELECT value ->> '$.rule', value ->> '$.action', value ->> '$.dry_run' \
             FROM json_each(trace.record, '$.output_verdicts') \
           UNION ALL SELECT trace.record ->> '$.moderation', \
             CASE WHEN trace.record ->> '$.outcome.code' IS 'content_policy' THEN 'block' ELSE 'flag' END, NULL \
             WHERE trace.record ->> '$.moderation' IS NOT NULL AND trace.record -> '$.input_verdicts' IS NULL\
         ) AS verdict WHERE TRUE",
    );
    if let Some(rule) = &query.content_rule {
        sql.push(" AND verdict.rule = ").push_bind(rule.clone());
    }
    match query.moderation {
        None | Some(ModerationFilter::Any) => {}
        Some(ModerationFilter::Outcome(outcome)) => {
            sql.push(match outcome {
                ModerationOutcome::Blocked => " AND verdict.action = 'block'",
                ModerationOutcome::Redacted => " AND verdict.action = 'redact'",
                ModerationOutcome::NoVerdict => " AND verdict.action = 'no_verdict'",
                ModerationOutcome::Flagged => {
                    " AND verdict.action NOT IN ('block', 'redact', 'no_verdict') AND verdict.dry_run IS NULL"
                }
                ModerationOutcome::DryRun => {
                    " AND verdict.action NOT IN ('block', 'redact', 'no_verdict') AND verdict.dry_run IS NOT NULL"
                }
            });
        }
    }
    sql.push(")");
}
