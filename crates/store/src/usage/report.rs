//! Queries to the projection: sums by group, and a month's statement. Changes nothing.

use headrace_domain::{NanoDollarsPerMillion, OrgId, ProjectId, TokenClass, UnixNanos};
use headrace_trace::{
    HOUR_NS, MAX_USAGE_ROWS, Month, MonthStatement, StatementLine, TraceError, UsageBy, UsageInterval,
    UsageQuery, UsageReport, UsageRow,
};
use sqlx::QueryBuilder;
use sqlx::Row;
use sqlx::sqlite::{Sqlite, SqliteConnection, SqliteRow};

use super::rows::{LineRow, SUMS, hour, journal_row, ledger_time, money, sums_of};
use crate::trace::integer;

/// Returns the sums, and the last journal row that they include.
pub(super) async fn report(
    open: &mut SqliteConnection,
    query: &UsageQuery,
) -> Result<UsageReport, sqlx::Error> {
    let journal_row = journal_row(open).await?;
    let mut sql = QueryBuilder::<Sqlite>::new("SELECT ");
    sql.push(start(query.interval)).push(" AS start");
    for by in &query.by {
        sql.push(", ").push(column(*by)).push(" AS by_").push(column(*by));
    }
    for name in SUMS.split(", ") {
        sql.push(format!(", sum({name}) AS {name}"));
    }
    sql.push(", max(CASE WHEN calls > 0 OR refused > 0 THEN hour END) * 3600 AS last_hour");
    sql.push(" FROM hours WHERE hour >= ").push_bind(query.since.map_or(0, hour));
    if let Some(until) = query.until {
        // An hour always counts as a whole.
        let last = UnixNanos::new(until.get().saturating_add(HOUR_NS - 1));
        sql.push(" AND hour < ").push_bind(hour(last));
    }
    if let Some(org) = &query.org {
        sql.push(" AND org = ").push_bind(org.as_str());
    }
    if let Some(project) = &query.project {
        sql.push(" AND project = ").push_bind(project.as_str());
    }
    sql.push(" GROUP BY 1");
    (0..query.by.len()).for_each(|at| {
        sql.push(format!(", {}", at + 2));
    });
    sql.push(" HAVING count(*) > 0 ORDER BY 1");
    (0..query.by.len()).for_each(|at| {
        sql.push(format!(", {}", at + 2));
    });
    sql.push(" LIMIT ").push_bind(integer(MAX_USAGE_ROWS + 1));
    let rows = sql.build().fetch_all(open).await?;
    let rows = rows.iter().map(|row| row_of(row, query)).collect::<Result<_, _>>()?;
    Ok(UsageReport { query: query.clone(), rows, journal_row })
}

/// Refuses a report with too many rows.
pub(super) fn bounded(query: &UsageQuery, report: UsageReport) -> Result<UsageReport, TraceError> {
    if report.rows.len() <= MAX_USAGE_ROWS {
        return Ok(report);
    }
    let what = format!(
        "usage by {} has more than {MAX_USAGE_ROWS} rows: ask for a shorter time, a longer interval or fewer things to tell apart",
        query.by.iter().map(|by| by.name()).collect::<Vec<_>>().join(", ")
    );
    Err(TraceError::TooMuch { what })
}

fn row_of(row: &SqliteRow, query: &UsageQuery) -> Result<UsageRow, sqlx::Error> {
    let moment = |name: &str| -> Result<Option<UnixNanos>, sqlx::Error> {
        let seconds: Option<i64> = row.try_get(name)?;
        let nanos = seconds.and_then(|seconds| u64::try_from(seconds).ok()?.checked_mul(1_000_000_000));
        Ok(nanos.map(UnixNanos::new))
    };
    let (start, last_hour) = (moment("start")?, moment("last_hour")?);
    let of = query.by.iter().map(|by| {
        let name: String = row.try_get(format!("by_{}", column(*by)).as_str())?;
        Ok::<_, sqlx::Error>(Some(name).filter(|name| !name.is_empty()))
    });
    Ok(UsageRow { start, of: of.collect::<Result<_, _>>()?, last_hour, sums: sums_of(row)? })
}

/// SQL for the start of the interval that contains an hour, in seconds since 1970.
const fn start(interval: Option<UsageInterval>) -> &'static str {
    match interval {
        None => "NULL",
        Some(UsageInterval::Hour) => "hour * 3600",
        Some(UsageInterval::Day) => "hour / 24 * 86400",
        Some(UsageInterval::Month) => {
            "CAST(strftime('%s', hour * 3600, 'unixepoch', 'start of month') AS INTEGER)"
        }
    }
}

const fn column(by: UsageBy) -> &'static str {
    match by {
        UsageBy::Org => "org",
        UsageBy::Project => "project",
        UsageBy::Key => "key",
        UsageBy::Model => "model",
        UsageBy::Upstream => "upstream",
        UsageBy::User => "user",
        UsageBy::Tag => "tag",
    }
}

/// The statement of a project for a month. `None` if there is no such project.
pub(super) async fn statement(
    open: &mut SqliteConnection,
    project: &ProjectId,
    month: Month,
) -> Result<Option<MonthStatement>, sqlx::Error> {
    let org = sqlx::query_as("SELECT org FROM projects WHERE project = ?").bind(project.as_str());
    let org: Option<(String,)> = org.fetch_optional(&mut *open).await?;
    let Some(org) = org.and_then(|(org,)| OrgId::new(&org).ok()) else { return Ok(None) };
    let lines = "SELECT model, class, price, tokens, amount FROM lines WHERE project = ? AND month = ? \
                 ORDER BY model, class, price";
    let lines: Vec<LineRow> = sqlx::query_as(lines)
        .bind(project.as_str())
        .bind(integer(month.start().get()))
        .fetch_all(&mut *open)
        .await?;
    let refunded = sqlx::query_as("SELECT amount FROM refunds WHERE project = ? AND month = ?");
    let refunded = refunded.bind(project.as_str()).bind(integer(month.start().get()));
    let refunded: Option<(i64,)> = refunded.fetch_optional(&mut *open).await?;
    let refunded = money(refunded.map_or(0, |(amount,)| amount));
    let query = UsageQuery {
        interval: Some(UsageInterval::Day),
        since: Some(month.start()),
        until: Some(month.end()),
        project: Some(project.clone()),
        ..UsageQuery::default()
    };
    let days = report(open, &query).await?;
    let sums = days.total();
    let charged = |row: &UsageRow| Some((row.start?, row.sums.charged));
    let is_closed = ledger_time(open).await? >= month.end();
    let days: Vec<_> = days.rows.iter().filter_map(charged).filter(|(_, amount)| amount.get() != 0).collect();
    let lines = lines.into_iter().filter_map(line).collect();
    Ok(Some(MonthStatement { project: project.clone(), org, month, lines, days, sums, refunded, is_closed }))
}

fn line((model, class, price, tokens, amount): LineRow) -> Option<StatementLine> {
    let class = TokenClass::ALL.into_iter().find(|known| known.name() == class)?;
    let price = NanoDollarsPerMillion::new(price).ok()?;
    let tokens = u64::try_from(tokens).ok()?;
    Some(StatementLine { model, class, price, tokens, amount: money(amount) })
}
